/* timeline.h - who uses a card's engine when: queues of work, time slices, exact GPU time, utilisation windows.
 *
 * A card has one engine. Nobody runs in the background: whoever holds the lock first advances the card to the present, so that the
 * past is always settled before anything is read or added. All functions need state_lock() and an advanced card unless they say so.
 * Next: cuda/stream.c sleeps until an end that timeline_expected_end_ns() foretold. */
#ifndef TENFOLD_SIM_TIMELINE_H
#define TENFOLD_SIM_TIMELINE_H

#include "state.h"

/* Simulates the card's work up to until_ns; never goes back. */
void timeline_advance(struct sim_state *state, uint32_t card, int64_t until_ns);

/* A queue for this slot on this card, also stored in the slot's usage. 0, or -ENOSPC. */
int timeline_open_channel(struct sim_state *state, uint32_t slot, uint32_t card, uint32_t *ret_channel);

/* Drops what is still queued. */
void timeline_close_channel(struct sim_state *state, uint32_t channel);

/* Do streams go their own ways? Else all feed one queue, and what follows of streams, `after` and held pieces has no effect. */
static inline bool timeline_has_streams(const struct sim_state *state)
{
    return state->time.streams_overlap > 1;
}

/* Appends work: remaining_ns (0 = a marker), cookie, stream, after and is_* are the caller's. *ret_ticket names it. 0, or -EAGAIN when the
 * queue is full; *ret_ticket is then the piece whose end makes room. The cookie of the entry that is overwritten, and when that entry ended,
 * come back for its owner to keep (0 = nobody waits). */
int timeline_submit(struct sim_state *state, uint32_t channel, const struct sim_item *work, uint64_t *ret_ticket,
                    uint64_t *ret_evicted_cookie, int64_t *ret_evicted_end_ns);

/* A held piece may be done. */
void timeline_release(struct sim_state *state, uint32_t channel, uint64_t ticket);

bool timeline_is_done(const struct sim_state *state, uint32_t channel, uint64_t ticket);

/* When the ticket ended. Only for a done ticket that is still in the ring; else 0. */
int64_t timeline_end_ns(const struct sim_state *state, uint32_t channel, uint64_t ticket);

/* When the ticket will be done if nobody submits anything more: exact for what is queued now. With overlap: not before. */
int64_t timeline_expected_end_ns(struct sim_state *state, uint32_t channel, uint64_t ticket);

/* Share of the last published window, 0..100; -1 = no sample younger than horizon_ns before now. */
int timeline_busy_percent(const struct sim_state *state, const struct sim_meter *meter, int64_t now_ns, int64_t horizon_ns);

/* Mean of the published samples that ended after since_ns, and when the newest of them ended; -1 = there is none. */
int timeline_mean_percent(const struct sim_state *state, const struct sim_meter *meter, int64_t now_ns, int64_t since_ns,
                          int64_t *ret_newest_end_ns);

/* After a crash inside the lock: makes the order of runnable channels true again. */
void timeline_rebuild(struct sim_state *state, uint32_t card);

#endif
