/* timeline.c - the simulated engine of each card (contract: timeline.h).
 *
 * FIFO: the oldest submitted piece runs to its end. Round robin: channels with work take turns of slice_ns, a change of channel costs
 * switch_ns; a channel that is alone is not interrupted. Kernels of one process never overlap, whatever stream they are in; or, with the
 * model's streams_overlap, up to so many of different streams run at the same time, each as fast as if it were alone. */
#include "timeline.h"

#include <errno.h>
#include <string.h>

enum { POLL_NS = 50000 }; /* where a piece waits for its own process, nobody can foretell its end */

static struct sim_item *item_of(struct sim_channel *channel, uint64_t ticket)
{
    return &channel->items[ticket % SIM_RING_ITEMS];
}

/* The oldest piece that runs. */
static struct sim_item *head_of(struct sim_channel *channel)
{
    return item_of(channel, channel->run[0]);
}

static bool has_work(const struct sim_channel *channel)
{
    return channel->live && channel->running;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Books busy time into windows of window_ns; a window that nobody used leaves no sample, as with NVML. */
static void meter_add(struct sim_meter *meter, int64_t from_ns, int64_t run_ns, int64_t window_ns)
{
    while (run_ns > 0) {
        int64_t window_start_ns = from_ns - from_ns % window_ns;
        if (meter->window_start_ns != window_start_ns) {
            if (meter->busy_ns > 0) {
                meter->samples[meter->next_sample % SIM_SAMPLES_MAX] = (struct sim_sample){
                    .end_ns = meter->window_start_ns + window_ns, .busy_percent = (uint32_t)(meter->busy_ns * 100 / window_ns)};
                meter->next_sample++;
            }
            meter->window_start_ns = window_start_ns;
            meter->busy_ns = 0;
        }
        int64_t room_ns = window_start_ns + window_ns - from_ns;
        int64_t part_ns = run_ns < room_ns ? run_ns : room_ns;
        meter->busy_ns += part_ns;
        from_ns += part_ns;
        run_ns -= part_ns;
    }
}

/* What NVML says of a window: the same to whoever asks again. */
static int published_percent(const struct sim_state *state, int64_t end_ns, int64_t percent)
{
    const int64_t noise = state->time.sample_noise_percent;
    if (noise > 0)
        percent += (int64_t)(((uint64_t)(end_ns + percent) * UINT64_C(0x9e3779b97f4a7c15) >> 33) % (uint64_t)(2 * noise + 1)) - noise;
    return percent < 0 ? 0 : percent > 100 ? 100 : (int)percent;
}

int timeline_busy_percent(const struct sim_state *state, const struct sim_meter *meter, int64_t now_ns, int64_t horizon_ns)
{
    const int64_t window_ns = state->time.window_ns;
    const int64_t published_ns = now_ns - state->time.window_lag_ns;
    /* the open window may have ended without anybody touching the meter since */
    int64_t open_end_ns = meter->window_start_ns + window_ns;
    if (meter->busy_ns > 0 && open_end_ns <= published_ns)
        return open_end_ns > now_ns - horizon_ns ? published_percent(state, open_end_ns, meter->busy_ns * 100 / window_ns) : -1;
    for (uint32_t back = 1; back <= SIM_SAMPLES_MAX && back <= meter->next_sample; back++) {
        const struct sim_sample *sample = &meter->samples[(meter->next_sample - back) % SIM_SAMPLES_MAX];
        if (sample->end_ns <= published_ns)
            return sample->end_ns > now_ns - horizon_ns ? published_percent(state, sample->end_ns, sample->busy_percent) : -1;
    }
    return -1;
}

int timeline_mean_percent(const struct sim_state *state, const struct sim_meter *meter, int64_t now_ns, int64_t since_ns,
                          int64_t *ret_newest_end_ns)
{
    const int64_t published_ns = now_ns - state->time.window_lag_ns, open_end_ns = meter->window_start_ns + state->time.window_ns;
    int64_t sum_percent = 0, count = 0, newest_ns = 0;
    if (meter->busy_ns > 0 && open_end_ns <= published_ns && open_end_ns > since_ns) {
        sum_percent = published_percent(state, open_end_ns, meter->busy_ns * 100 / state->time.window_ns);
        newest_ns = open_end_ns;
        count = 1;
    }
    for (uint32_t back = 1; back <= SIM_SAMPLES_MAX && back <= meter->next_sample; back++) {
        const struct sim_sample *sample = &meter->samples[(meter->next_sample - back) % SIM_SAMPLES_MAX];
        if (sample->end_ns <= since_ns)
            break;
        if (sample->end_ns > published_ns)
            continue;
        sum_percent += published_percent(state, sample->end_ns, sample->busy_percent);
        count++;
        newest_ns = sample->end_ns > newest_ns ? sample->end_ns : newest_ns;
    }
    if (count == 0)
        return -1;
    *ret_newest_end_ns = newest_ns;
    return (int)(sum_percent / count);
}

/* What stands before the next piece: streams with pieces that are not done. */
struct ahead {
    uint64_t streams[SIM_STREAMS_MAX / 64];
    bool has_legacy, has_blocking;
};

static bool is_ready(const struct sim_state *state, const struct sim_channel *channel, uint32_t index, const struct sim_item *item, const struct ahead *ahead)
{
    if (ahead->streams[item->stream / 64] >> item->stream % 64 & 1)
        return false;
    if ((item->is_blocking && ahead->has_legacy) || (item->is_legacy && ahead->has_blocking))
        return false;
    return channel->live && !item->is_held && (!item->after || timeline_is_done(state, index, item->after - 1));
}

/* With one queue for all streams: the first piece that is no marker. */
static void refresh_queue(struct sim_channel *channel, int64_t at_ns)
{
    channel->running = 0;
    for (; channel->completed < channel->submitted; channel->completed++) {
        struct sim_item *item = item_of(channel, channel->completed);
        if (item->remaining_ns) {
            channel->run[channel->running++] = channel->completed;
            return;
        }
        item->end_ns = at_ns;
        item->is_done = true;
    }
}

/* Finds what may run, in order of submission, and passes the markers that nothing stands before. */
static void refresh(struct sim_state *state, uint32_t index, int64_t at_ns)
{
    struct sim_channel *channel = &state->channels[index];
    const uint32_t most = (uint32_t)least(state->time.streams_overlap, SIM_OVERLAP_MAX);
    if (!timeline_has_streams(state)) {
        refresh_queue(channel, at_ns);
        return;
    }
    struct ahead ahead = {.has_legacy = false};
    channel->running = 0;
    for (uint64_t ticket = channel->completed; ticket < channel->submitted && channel->running < most; ticket++) {
        struct sim_item *item = item_of(channel, ticket);
        if (item->is_done)
            continue;
        if (is_ready(state, channel, index, item, &ahead)) {
            if (item->remaining_ns == 0) {
                item->end_ns = at_ns;
                item->is_done = true;
                continue;
            }
            channel->run[channel->running++] = ticket;
        }
        ahead.streams[item->stream / 64] |= UINT64_C(1) << item->stream % 64;
        ahead.has_legacy = ahead.has_legacy || item->is_legacy;
        ahead.has_blocking = ahead.has_blocking || item->is_blocking;
    }
    while (channel->completed < channel->submitted && item_of(channel, channel->completed)->is_done)
        channel->completed++;
}

static void leave_order(struct sim_timeline *timeline, uint32_t position)
{
    memmove(&timeline->order[position], &timeline->order[position + 1], (timeline->channels - position - 1) * sizeof timeline->order[0]);
    timeline->channels--;
}

/* order[] is the queue of channels with work; its first entry is next. Round robin moves a channel to the back when its turn ends. */
static uint32_t choose(struct sim_state *state, struct sim_timeline *timeline)
{
    if (state->time.policy == SIM_POLICY_ROUND_ROBIN)
        return 0;
    uint32_t oldest = 0;
    for (uint32_t i = 1; i < timeline->channels; i++)
        if (head_of(&state->channels[timeline->order[i]])->sequence < head_of(&state->channels[timeline->order[oldest]])->sequence)
            oldest = i;
    return oldest;
}

static void begin_turn(struct sim_state *state, struct sim_timeline *timeline)
{
    uint32_t position = choose(state, timeline);
    uint32_t chosen = timeline->order[position];
    memmove(&timeline->order[1], &timeline->order[0], position * sizeof timeline->order[0]);
    timeline->order[0] = chosen;
    if (timeline->current != chosen + 1)
        timeline->switch_left_ns = timeline->current ? state->time.switch_ns : 0;
    timeline->current = chosen + 1;
    timeline->slice_left_ns = state->time.slice_ns;
}

static void end_turn(struct sim_state *state, struct sim_timeline *timeline)
{
    uint32_t channel = timeline->order[0];
    leave_order(timeline, 0);
    if (has_work(&state->channels[channel]))
        timeline->order[timeline->channels++] = channel;
    if (timeline->channels)
        begin_turn(state, timeline);
}

/* True: a piece is done. */
static bool spend(struct sim_state *state, struct sim_card *card, uint32_t index, int64_t run_ns)
{
    struct sim_channel *channel = &state->channels[index];
    struct sim_timeline *timeline = &card->timeline;
    bool is_one_done = false;
    for (uint32_t i = 0; i < channel->running; i++) {
        struct sim_item *item = item_of(channel, channel->run[i]);
        item->remaining_ns -= run_ns;
        channel->backlog_ns -= run_ns;
        is_one_done = is_one_done || item->remaining_ns == 0;
    }
    state->slots[channel->slot].gpu_time_ns[channel->card] += (uint64_t)run_ns;
    timeline->busy_ns += (uint64_t)run_ns;
    meter_add(&channel->meter, timeline->now_ns, run_ns, state->time.window_ns);
    meter_add(&timeline->meter, timeline->now_ns, run_ns, state->time.window_ns);
    timeline->now_ns += run_ns;
    timeline->slice_left_ns -= run_ns;
    if (is_one_done)
        refresh(state, index, timeline->now_ns);
    return is_one_done;
}

/* Until the first of the pieces that run is done. */
static int64_t shortest_ns(struct sim_channel *channel)
{
    int64_t shortest_ns = INT64_MAX;
    for (uint32_t i = 0; i < channel->running; i++)
        shortest_ns = least(shortest_ns, item_of(channel, channel->run[i])->remaining_ns);
    return shortest_ns;
}

/* Has this turn ended? FIFO looks again after every piece, round robin after a slice; both when the channel is empty. */
static bool is_turn_over(const struct sim_state *state, const struct sim_timeline *timeline, const struct sim_channel *channel,
                         bool is_one_done)
{
    if (!has_work(channel))
        return true;
    if (state->time.policy == SIM_POLICY_FIFO)
        return is_one_done;
    return timeline->slice_left_ns <= 0;
}

void timeline_advance(struct sim_state *state, uint32_t card_index, int64_t until_ns)
{
    struct sim_card *card = &state->cards[card_index];
    struct sim_timeline *timeline = &card->timeline;
    while (timeline->channels && timeline->now_ns < until_ns) {
        if (timeline->switch_left_ns > 0) {
            int64_t step_ns = least(timeline->switch_left_ns, until_ns - timeline->now_ns);
            timeline->switch_left_ns -= step_ns;
            timeline->now_ns += step_ns;
            continue;
        }
        struct sim_channel *channel = &state->channels[timeline->order[0]];
        int64_t run_ns = least(shortest_ns(channel), until_ns - timeline->now_ns);
        if (state->time.policy == SIM_POLICY_ROUND_ROBIN)
            run_ns = least(run_ns, timeline->slice_left_ns > 0 ? timeline->slice_left_ns : state->time.slice_ns);
        bool is_one_done = spend(state, card, timeline->order[0], run_ns);
        if (is_turn_over(state, timeline, channel, is_one_done))
            end_turn(state, timeline);
    }
    if (timeline->now_ns < until_ns)
        timeline->now_ns = until_ns;
}

int timeline_open_channel(struct sim_state *state, uint32_t slot, uint32_t card, uint32_t *ret_channel)
{
    for (uint32_t i = 0; i < SIM_CHANNELS_MAX; i++) {
        struct sim_channel *channel = &state->channels[i];
        if (channel->live)
            continue;
        channel->slot = slot;
        channel->card = card;
        channel->submitted = channel->completed = channel->running = 0;
        channel->backlog_ns = 0;
        memset(&channel->meter, 0, sizeof channel->meter);
        channel->live = 1;
        state->slots[slot].usage[card].channel = i + 1;
        *ret_channel = i;
        return 0;
    }
    return -ENOSPC;
}

void timeline_close_channel(struct sim_state *state, uint32_t index)
{
    struct sim_channel *channel = &state->channels[index];
    struct sim_timeline *timeline = &state->cards[channel->card].timeline;
    channel->live = 0;
    state->slots[channel->slot].usage[channel->card].channel = 0;
    for (uint32_t i = 0; i < timeline->channels; i++)
        if (timeline->order[i] == index) {
            leave_order(timeline, i);
            if (i == 0 && timeline->channels)
                begin_turn(state, timeline);
            break;
        }
    if (timeline->current == index + 1) {
        timeline->current = 0;
        timeline->switch_left_ns = 0;
    }
}

/* Pieces ahead of new work in its queue, and the oldest of them. */
static uint64_t count_waiting(const struct sim_state *state, struct sim_channel *channel, uint32_t stream, uint64_t *ret_oldest)
{
    uint64_t count = 0;
    *ret_oldest = channel->completed;
    if (!timeline_has_streams(state) || channel->submitted - channel->completed >= SIM_RING_ITEMS)
        return channel->submitted - channel->completed;
    for (uint64_t ticket = channel->completed; ticket < channel->submitted; ticket++)
        if (item_of(channel, ticket)->stream == stream && !item_of(channel, ticket)->is_done && count++ == 0)
            *ret_oldest = ticket;
    return count;
}

/* Work that has become able to run takes its place behind the others'. */
static void refresh_order(struct sim_state *state, uint32_t index)
{
    struct sim_channel *channel = &state->channels[index];
    struct sim_timeline *timeline = &state->cards[channel->card].timeline;
    const bool was_idle = !has_work(channel);
    refresh(state, index, timeline->now_ns);
    if (!was_idle || !has_work(channel))
        return;
    timeline->order[timeline->channels++] = index;
    if (timeline->channels == 1)
        begin_turn(state, timeline);
}

int timeline_submit(struct sim_state *state, uint32_t index, const struct sim_item *work, uint64_t *ret_ticket, uint64_t *ret_evicted_cookie,
                    int64_t *ret_evicted_end_ns)
{
    struct sim_channel *channel = &state->channels[index];
    const uint64_t depth = state->time.queue_depth > 0 ? (uint64_t)state->time.queue_depth : SIM_RING_ITEMS;
    if (count_waiting(state, channel, work->stream, ret_ticket) >= (depth < SIM_RING_ITEMS ? depth : SIM_RING_ITEMS))
        return -EAGAIN;
    const uint64_t ticket = channel->submitted;
    struct sim_item *item = item_of(channel, ticket);
    const bool is_recycled = ticket >= SIM_RING_ITEMS;
    *ret_evicted_cookie = is_recycled ? item->cookie : 0;
    *ret_evicted_end_ns = is_recycled ? item->end_ns : 0;
    if (timeline_has_streams(state)) {
        *item = *work;
        item->stream %= SIM_STREAMS_MAX;
    } else { /* the rest is not looked at: launches are many */
        item->remaining_ns = work->remaining_ns;
        item->cookie = work->cookie;
    }
    item->sequence = state->next_sequence++;
    item->is_done = false;
    channel->submitted++;
    channel->backlog_ns += item->remaining_ns;
    *ret_ticket = ticket;
    if (timeline_has_streams(state) || !has_work(channel))
        refresh_order(state, index);
    return 0;
}

void timeline_release(struct sim_state *state, uint32_t index, uint64_t ticket)
{
    struct sim_channel *channel = &state->channels[index];
    if (ticket >= channel->submitted || timeline_is_done(state, index, ticket))
        return;
    item_of(channel, ticket)->is_held = false;
    refresh_order(state, index);
}

bool timeline_is_done(const struct sim_state *state, uint32_t index, uint64_t ticket)
{
    const struct sim_channel *channel = &state->channels[index];
    return ticket < channel->completed || (ticket < channel->submitted && channel->items[ticket % SIM_RING_ITEMS].is_done);
}

int64_t timeline_end_ns(const struct sim_state *state, uint32_t index, uint64_t ticket)
{
    const struct sim_channel *channel = &state->channels[index];
    bool is_in_ring = timeline_is_done(state, index, ticket) && channel->submitted - ticket <= SIM_RING_ITEMS;
    return is_in_ring ? channel->items[ticket % SIM_RING_ITEMS].end_ns : 0;
}

/* Work that a channel must do before the ticket is done. */
static int64_t backlog_until(const struct sim_channel *channel, uint64_t ticket)
{
    int64_t sum_ns = 0;
    for (uint64_t t = channel->completed; t <= ticket && t < channel->submitted; t++)
        sum_ns += channel->items[t % SIM_RING_ITEMS].remaining_ns;
    return sum_ns;
}

/* Plays the pieces forward in order of submission, each change of channel at its price. */
static int64_t expected_end_fifo(const struct sim_state *state, uint32_t index, uint64_t ticket)
{
    const struct sim_timeline *timeline = &state->cards[state->channels[index].card].timeline;
    uint64_t next[SIM_CHANNELS_MAX]; /* ticket that each channel of order[] comes to */
    int64_t end_ns = timeline->now_ns + timeline->switch_left_ns;
    for (uint32_t i = 0; i < timeline->channels; i++)
        next[i] = state->channels[timeline->order[i]].completed;
    for (uint32_t at = 0;;) { /* order[0] is running */
        const struct sim_channel *channel = &state->channels[timeline->order[at]];
        end_ns += channel->items[next[at] % SIM_RING_ITEMS].remaining_ns;
        if (timeline->order[at] == index && next[at] >= ticket)
            return end_ns;
        do /* markers are passed with the piece before them */
            next[at]++;
        while (next[at] < channel->submitted && channel->items[next[at] % SIM_RING_ITEMS].remaining_ns == 0 &&
               !(timeline->order[at] == index && next[at] > ticket));
        if (timeline->order[at] == index && next[at] > ticket)
            return end_ns;
        uint32_t oldest = SIM_CHANNELS_MAX;
        for (uint32_t i = 0; i < timeline->channels; i++) {
            const struct sim_channel *other = &state->channels[timeline->order[i]];
            if (next[i] < other->submitted &&
                (oldest == SIM_CHANNELS_MAX || other->items[next[i] % SIM_RING_ITEMS].sequence <
                                                   state->channels[timeline->order[oldest]].items[next[oldest] % SIM_RING_ITEMS].sequence))
                oldest = i;
        }
        if (oldest == SIM_CHANNELS_MAX)
            return end_ns; /* not queued: cannot happen for a ticket that was given out */
        end_ns += oldest != at ? state->time.switch_ns : 0;
        at = oldest;
    }
}

/* Plays the turns forward with nothing but each channel's backlog. */
static int64_t expected_end_round_robin(const struct sim_state *state, uint32_t index, uint64_t ticket)
{
    const struct sim_timeline *timeline = &state->cards[state->channels[index].card].timeline;
    int64_t left_ns[SIM_CHANNELS_MAX];
    uint32_t queue[SIM_CHANNELS_MAX], count = timeline->channels;
    for (uint32_t i = 0; i < count; i++) {
        queue[i] = timeline->order[i];
        left_ns[i] = queue[i] == index ? backlog_until(&state->channels[index], ticket) : state->channels[queue[i]].backlog_ns;
    }
    int64_t end_ns = timeline->now_ns + timeline->switch_left_ns, turn_ns = timeline->slice_left_ns;
    while (count) {
        const bool is_alone = count == 1;
        int64_t run_ns = is_alone ? left_ns[0] : least(left_ns[0], turn_ns > 0 ? turn_ns : state->time.slice_ns);
        end_ns += run_ns;
        left_ns[0] -= run_ns;
        if (left_ns[0] == 0 && queue[0] == index)
            return end_ns;
        uint32_t channel = queue[0];
        int64_t rest_ns = left_ns[0];
        count--;
        memmove(&queue[0], &queue[1], count * sizeof queue[0]);
        memmove(&left_ns[0], &left_ns[1], count * sizeof left_ns[0]);
        if (rest_ns > 0) {
            queue[count] = channel;
            left_ns[count++] = rest_ns;
        }
        if (count) {
            end_ns += queue[0] != channel ? state->time.switch_ns : 0;
            turn_ns = state->time.slice_ns;
        }
    }
    return end_ns;
}

/* Not before the pieces of its stream have run, nor before whoever has the engine comes to the end of something. */
static int64_t expected_end_of_stream(struct sim_state *state, uint32_t index, uint64_t ticket)
{
    struct sim_channel *channel = &state->channels[index];
    const struct sim_timeline *timeline = &state->cards[channel->card].timeline;
    if (!timeline->channels)
        return timeline->now_ns + POLL_NS;
    struct sim_channel *at_work = &state->channels[timeline->order[0]];
    const int64_t next_ns = at_work == channel ? shortest_ns(channel) : least(shortest_ns(at_work), state->time.slice_ns);
    int64_t sum_ns = 0;
    for (uint64_t t = channel->completed; t <= ticket; t++)
        if (item_of(channel, t)->stream == item_of(channel, ticket)->stream)
            sum_ns += item_of(channel, t)->remaining_ns;
    return timeline->now_ns + (sum_ns > next_ns ? sum_ns : next_ns);
}

int64_t timeline_expected_end_ns(struct sim_state *state, uint32_t index, uint64_t ticket)
{
    if (timeline_has_streams(state) && !timeline_is_done(state, index, ticket))
        return expected_end_of_stream(state, index, ticket);
    if (timeline_is_done(state, index, ticket))
        return state->cards[state->channels[index].card].timeline.now_ns;
    return state->time.policy == SIM_POLICY_FIFO ? expected_end_fifo(state, index, ticket) : expected_end_round_robin(state, index, ticket);
}

void timeline_rebuild(struct sim_state *state, uint32_t card)
{
    struct sim_timeline *timeline = &state->cards[card].timeline;
    timeline->channels = 0;
    timeline->switch_left_ns = 0;
    for (uint32_t i = 0; i < SIM_CHANNELS_MAX; i++) {
        struct sim_channel *channel = &state->channels[i];
        if (!channel->live || channel->card != card)
            continue;
        channel->backlog_ns = channel->submitted ? backlog_until(channel, channel->submitted - 1) : 0;
        refresh(state, i, timeline->now_ns);
        if (has_work(channel))
            timeline->order[timeline->channels++] = i;
    }
    if (timeline->channels)
        begin_turn(state, timeline);
}
