/* timeline_laws.c - the engine of a card in virtual time: random tenants, and what must hold whatever they do.
 *
 * Usage: timeline_laws SEED. Compiled with src/core; no process, no clock, no file. Exits 1 with the law that broke. */
#include <stdio.h>
#include <stdlib.h>

#include "../../src/core/timeline.h"

enum { TENANTS = 6, STEPS = 4000 };

static struct sim_state *g_state;
static unsigned g_seed;
static int64_t g_now_ns;
static uint32_t g_channels[TENANTS];

static void law(bool holds, const char *text)
{
    if (holds)
        return;
    fprintf(stderr, "at %lld ns, seed %u: %s\n", (long long)g_now_ns, g_seed, text);
    exit(1);
}

static int64_t below(int64_t limit)
{
    static uint64_t state;
    if (!state)
        state = g_seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (int64_t)(state % (uint64_t)limit);
}

static void make(enum sim_policy policy, int64_t slice_ns, int64_t switch_ns)
{
    free(g_state);
    g_state = calloc(1, sizeof *g_state);
    g_state->card_count = 1;
    g_state->time = (struct sim_time_model){.policy = policy, .slice_ns = slice_ns, .switch_ns = switch_ns, .window_ns = 1000000};
    g_now_ns = 0;
    for (uint32_t i = 0; i < TENANTS; i++) {
        g_state->slots[i].live = 1;
        if (timeline_open_channel(g_state, i, 0, &g_channels[i]) < 0)
            exit(2);
    }
}

static void advance(int64_t by_ns)
{
    g_now_ns += by_ns;
    timeline_advance(g_state, 0, g_now_ns);
}

static bool submit(uint32_t tenant, int64_t duration_ns, uint64_t *ret_ticket)
{
    uint64_t cookie;
    int64_t end_ns;
    return timeline_submit(g_state, g_channels[tenant], &(struct sim_item){.remaining_ns = duration_ns}, ret_ticket, &cookie, &end_ns) == 0;
}

static uint64_t served_ns(void)
{
    uint64_t sum_ns = 0;
    for (int i = 0; i < TENANTS; i++)
        sum_ns += g_state->slots[i].gpu_time_ns[0];
    return sum_ns;
}

static int64_t backlog_ns(void)
{
    int64_t sum_ns = 0;
    for (int i = 0; i < TENANTS; i++)
        sum_ns += g_state->channels[g_channels[i]].backlog_ns;
    return sum_ns;
}

/* What was submitted is either served or still to do; the card's busy time is what it served; it cannot serve faster than time goes. */
static void time_is_conserved(void)
{
    int64_t submitted_ns = 0;
    for (int step = 0; step < STEPS; step++) {
        const int64_t duration_ns = below(10) ? below(300000) : 0;
        uint64_t ticket;
        if (submit((uint32_t)below(TENANTS), duration_ns, &ticket))
            submitted_ns += duration_ns;
        const uint64_t before_ns = served_ns();
        const int64_t step_ns = below(200000);
        advance(step_ns);
        law(served_ns() - before_ns <= (uint64_t)step_ns, "no more is served than time has passed");
        law((int64_t)served_ns() + backlog_ns() == submitted_ns, "work is served or left, never lost or made");
        law(served_ns() == g_state->cards[0].timeline.busy_ns, "busy time is the sum of what tenants got");
    }
    advance(INT64_C(1) << 40);
    law(backlog_ns() == 0 && (int64_t)served_ns() == submitted_ns, "in the end all work is done");
}

/* With nothing more submitted, a ticket ends exactly when it was foretold. */
static void endings_are_foretold(void)
{
    for (int round = 0; round < 300; round++) {
        uint64_t tickets[TENANTS][8];
        int counts[TENANTS] = {0};
        for (int i = 0; i < 16; i++) {
            const uint32_t tenant = (uint32_t)below(TENANTS);
            if (counts[tenant] < 8 && submit(tenant, below(3) ? 1 + below(5000000) : 0, &tickets[tenant][counts[tenant]]))
                counts[tenant]++;
        }
        advance(below(3000000));
        const uint32_t tenant = (uint32_t)below(TENANTS);
        if (counts[tenant]) {
            const uint64_t ticket = tickets[tenant][below(counts[tenant])];
            const int64_t end_ns = timeline_expected_end_ns(g_state, g_channels[tenant], ticket);
            const bool is_done = timeline_is_done(g_state, g_channels[tenant], ticket);
            if (!is_done && end_ns - g_now_ns > 1) {
                advance(end_ns - g_now_ns - 1);
                law(!timeline_is_done(g_state, g_channels[tenant], ticket), "a ticket is not done before its foretold end");
                advance(1);
            } else if (!is_done)
                advance(end_ns - g_now_ns);
            law(timeline_is_done(g_state, g_channels[tenant], ticket), "a ticket is done at its foretold end");
            if (!is_done)
                law(timeline_end_ns(g_state, g_channels[tenant], ticket) == end_ns, "the recorded end is the foretold one");
        }
        advance(INT64_C(1) << 36);
    }
}

/* Tenants that always have work get equal shares under round robin, to within a slice each. */
static void backlogged_tenants_share_equally(int64_t slice_ns)
{
    uint64_t ticket, least_ns = UINT64_MAX, most_ns = 0, before_ns[TENANTS];
    for (uint32_t i = 0; i < TENANTS; i++) {
        before_ns[i] = g_state->slots[i].gpu_time_ns[0];
        for (int k = 0; k < 100; k++)
            submit(i, 1000000 + below(1000000), &ticket);
    }
    advance(300 * slice_ns);
    for (uint32_t i = 0; i < TENANTS; i++) {
        const uint64_t got_ns = g_state->slots[i].gpu_time_ns[0] - before_ns[i];
        least_ns = got_ns < least_ns ? got_ns : least_ns;
        most_ns = got_ns > most_ns ? got_ns : most_ns;
    }
    law(most_ns - least_ns <= (uint64_t)slice_ns, "backlogged tenants differ by a slice at most");
}

/* However often the past is settled, it comes out the same. */
static void settling_often_changes_nothing(enum sim_policy policy)
{
    uint64_t got_ns[2][TENANTS];
    for (int pass = 0; pass < 2; pass++) {
        uint64_t ticket;
        make(policy, 2000000, 50000);
        for (uint32_t i = 0; i < TENANTS; i++)
            for (int k = 0; k < 20; k++)
                submit(i, 100000 * (i + 1) + 7919 * (uint32_t)k, &ticket);
        for (int step = 0; step < (pass ? 5000 : 1); step++)
            advance(pass ? 5000 : 25000000);
        for (int i = 0; i < TENANTS; i++)
            got_ns[pass][i] = g_state->slots[i].gpu_time_ns[0];
    }
    for (int i = 0; i < TENANTS; i++)
        law(got_ns[0][i] == got_ns[1][i], "settling in small steps gives what one step gives");
}

/* A tenant that vanishes takes its queue along and nothing of the others. */
static void the_dead_leave_the_queue(void)
{
    uint64_t ticket, last = 0;
    for (uint32_t i = 0; i < TENANTS; i++)
        submit(i, 5000000, i == TENANTS - 1 ? &last : &ticket);
    advance(1000000);
    timeline_close_channel(g_state, g_channels[0]);
    timeline_close_channel(g_state, g_channels[2]);
    advance(INT64_C(1) << 36);
    law(timeline_is_done(g_state, g_channels[TENANTS - 1], last), "those who stay are served");
    law(g_state->slots[0].gpu_time_ns[0] <= 1000000, "the dead get nothing after their death");
}

/* With streams of their own, pieces overlap, and nothing ends before what it comes after. */
static void streams_keep_their_orders(void)
{
    enum { PIECES = 300, STREAMS = 5 };
    struct sim_item pieces[PIECES];
    uint64_t tickets[PIECES], cookie;
    int64_t end_ns, longest_ns = 0, ends_ns[PIECES], foretold_ns[PIECES];
    g_state->time.streams_overlap = 4;
    for (int i = 0; i < PIECES; i++) {
        const uint32_t stream = (uint32_t)below(STREAMS);
        pieces[i] = (struct sim_item){.remaining_ns = below(4) ? below(300000) : 0, .stream = stream};
        pieces[i].is_legacy = stream == 0;
        pieces[i].is_blocking = stream == 1 || stream == 2;
        pieces[i].is_held = pieces[i].remaining_ns == 0 && below(4) == 0;
        pieces[i].after = i && below(5) == 0 ? tickets[below(i)] + 1 : 0;
        longest_ns += pieces[i].remaining_ns;
        if (timeline_submit(g_state, g_channels[1], &pieces[i], &tickets[i], &cookie, &end_ns) < 0)
            exit(2);
        foretold_ns[i] = timeline_is_done(g_state, g_channels[1], tickets[i]) ? 0 : timeline_expected_end_ns(g_state, g_channels[1], tickets[i]);
        if (below(4) == 0)
            advance(below(300000));
    }
    for (int i = 0; i < PIECES; i++) {
        law(!pieces[i].is_held || !timeline_is_done(g_state, g_channels[1], tickets[i]), "a held piece is not done");
        timeline_release(g_state, g_channels[1], tickets[i]);
        advance(below(100000));
    }
    advance(INT64_C(1) << 36);
    law(served_ns() <= (uint64_t)longest_ns && served_ns() > 0, "what overlaps takes the engine once");
    law(backlog_ns() == 0 && g_state->channels[g_channels[1]].completed == PIECES, "in the end all work is done");
    for (int i = 0; i < PIECES; i++) {
        ends_ns[i] = timeline_end_ns(g_state, g_channels[1], tickets[i]);
        law(pieces[i].is_held || foretold_ns[i] <= ends_ns[i] + 50000, "a piece is not foretold much later than it ends");
        for (int j = 0; j < i; j++) {
            const bool is_ordered = pieces[i].stream == pieces[j].stream || pieces[i].after == tickets[j] + 1 ||
                                    (pieces[i].is_legacy && pieces[j].is_blocking) || (pieces[i].is_blocking && pieces[j].is_legacy);
            law(!is_ordered || ends_ns[j] + pieces[i].remaining_ns <= ends_ns[i], "nothing runs before what it comes after has ended");
        }
    }
}

int main(int count, char **words)
{
    g_seed = count > 1 ? (unsigned)atoi(words[1]) : 1;
    const struct {
        enum sim_policy policy;
        int64_t slice_ns, switch_ns;
    } models[] = {{SIM_POLICY_FIFO, 2000000, 0},
                  {SIM_POLICY_FIFO, 2000000, 30000},
                  {SIM_POLICY_ROUND_ROBIN, 2000000, 0},
                  {SIM_POLICY_ROUND_ROBIN, 300000, 25000}};
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        make(models[i].policy, models[i].slice_ns, models[i].switch_ns);
        time_is_conserved();
        make(models[i].policy, models[i].slice_ns, models[i].switch_ns);
        endings_are_foretold();
        make(models[i].policy, models[i].slice_ns, models[i].switch_ns);
        the_dead_leave_the_queue();
        if (models[i].policy == SIM_POLICY_ROUND_ROBIN) {
            make(models[i].policy, models[i].slice_ns, models[i].switch_ns);
            backlogged_tenants_share_equally(models[i].slice_ns);
        }
        settling_often_changes_nothing(models[i].policy);
        make(models[i].policy, models[i].slice_ns, models[i].switch_ns);
        streams_keep_their_orders();
    }
    free(g_state);
    return 0;
}
