/* probe.c - nobody is refused because of a probe (contract: probe.h). Next: driver_pid.c probes, reservation.c refuses. */
#include "slice/probe.h"

#include "base/clock.h"
#include "base/words.h"

#include <time.h>

#define NAP_NS 50000l
#define ACTIVE_BIT 1ull

/* `now` was read after the word. A time beyond the longest probe was never written by one. */
static bool is_active(uint64_t word, uint64_t now) { return (word & ACTIVE_BIT) && word > now && word - now <= TF_PROBE_PATIENCE_NS + ACTIVE_BIT; }

bool tf_probe_begin(struct tenfold_state *state, uint32_t gpu, uint64_t *ret_word)
{
    uint64_t before = tf_word_load(&state->gpus[gpu].probe), now = tf_now_ns();
    if (is_active(before, now))
        return false;
    uint64_t word = (now + TF_PROBE_PATIENCE_NS) | ACTIVE_BIT;
    if ((word | ACTIVE_BIT) == (before | ACTIVE_BIT))
        word += 2 * ACTIVE_BIT; /* who was refused tells probes apart by their words */
    *ret_word = word;
    return tf_word_swap(&state->gpus[gpu].probe, before, word);
}

void tf_probe_end(struct tenfold_state *state, uint32_t gpu, uint64_t word) { tf_word_swap(&state->gpus[gpu].probe, word, word & ~ACTIVE_BIT); }

uint64_t tf_probe_seen(const struct tenfold_state *state, uint32_t gpu) { return tf_word_load(&state->gpus[gpu].probe); }

bool tf_probe_overlapped(const struct tenfold_state *state, uint32_t gpu, uint64_t seen)
{
    const struct timespec nap = {.tv_nsec = NAP_NS};
    uint64_t began = tf_now_ns();
    for (bool has_waited = false;; has_waited = true) {
        uint64_t word = tf_word_load(&state->gpus[gpu].probe), now = tf_now_ns();
        if (!is_active(word, now) || now - began > TF_PROBE_PATIENCE_NS)
            return has_waited || word != seen;
        nanosleep(&nap, NULL);
    }
}
