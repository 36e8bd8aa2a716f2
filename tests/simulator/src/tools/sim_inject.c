/* sim_inject.c - `tenfold-sim inject`: errors at chosen calls, XIDs on cards. */
#include <stdio.h>
#include <string.h>

#include "sim_commands.h"

/* With the lock. False: no place left. */
static bool arm(struct sim_state *state, const struct sim_injection *wanted)
{
    for (uint32_t i = 0; i < SIM_INJECTIONS_MAX; i++) {
        if (state->injections[i].armed)
            continue;
        state->injections[i] = *wanted;
        atomic_fetch_add(&state->injections_armed, 1);
        return true;
    }
    return false;
}

static int inject_call(struct sim_machine *machine, struct arguments *arguments)
{
    const char *symbols = take_option(arguments, "--symbol"), *times = take_option(arguments, "--times");
    const char *error_text = take_option(arguments, "--error"), *after_text = take_option(arguments, "--after");
    const char *pid_text = take_option(arguments, "--pid");
    long long error = 0, after = 0, repeat = 1, pid = 0;
    const bool is_forever = times && strcmp(times, "forever") == 0;
    if (!symbols)
        return fail("inject call needs --symbol with exported names such as cuMemAlloc_v2 or nvmlDeviceGetCount_v2");
    if (!parse_number(error_text, 1, INT32_MAX, &error))
        return fail("--error is \"%s\", expected a code such as 2 (out of memory)", error_text ? error_text : "");
    if ((after_text && !parse_number(after_text, 0, INT64_MAX, &after)) || (pid_text && !parse_number(pid_text, 1, INT32_MAX, &pid)) ||
        (times && !is_forever && !parse_number(times, 1, INT64_MAX, &repeat)))
        return fail("--after, --times and --pid expect numbers (--times also \"forever\")");
    int result = 0;
    state_lock(machine);
    for (const char *symbol = symbols; result == 0 && *symbol; symbol += *symbol == ',') {
        struct sim_injection wanted = {.error = (int32_t)error,
                                       .pid = (int32_t)pid,
                                       .skip = (uint64_t)after,
                                       .repeat = is_forever ? UINT64_MAX : (uint64_t)repeat,
                                       .armed = 1};
        const size_t length = strcspn(symbol, ",");
        snprintf(wanted.symbol, sizeof wanted.symbol, "%.*s", (int)length, symbol);
        result = length && length < sizeof wanted.symbol && arm(machine->state, &wanted) ? 0 : 2;
        symbol += length;
    }
    state_unlock(machine);
    return result ? fail("--symbol names nothing, or all %d places are armed; tenfold-sim inject clear", SIM_INJECTIONS_MAX) : 0;
}

static int inject_xid(struct sim_machine *machine, struct arguments *arguments)
{
    const char *card_text = take_option(arguments, "--card"), *xid_text = take_option(arguments, "--xid");
    long long card = 0, xid = 0;
    if (!parse_number(card_text, 0, (long long)machine->state->card_count - 1, &card))
        return fail("--card is \"%s\", expected an index below %u", card_text ? card_text : "", machine->state->card_count);
    if (!parse_number(xid_text, 1, 1000000, &xid))
        return fail("--xid is \"%s\", expected a number such as 79 (fallen off the bus)", xid_text ? xid_text : "");
    state_lock(machine);
    state_raise_xid(machine->state, (uint32_t)card, (uint64_t)xid);
    if (xid == 79)
        machine->state->cards[card].lost = 1; /* sticky, as on hardware: only `set lost=0` (a reset) brings it back */
    state_count_lost(machine->state);
    state_unlock(machine);
    return 0;
}

static int inject_clear(struct sim_machine *machine)
{
    state_lock(machine);
    memset(machine->state->injections, 0, sizeof machine->state->injections);
    atomic_store(&machine->state->injections_armed, 0);
    state_unlock(machine);
    return 0;
}

int command_inject(const char *path, struct arguments *arguments)
{
    struct sim_machine machine;
    const char *what = take_word(arguments);
    if (!what || (strcmp(what, "call") != 0 && strcmp(what, "xid") != 0 && strcmp(what, "clear") != 0))
        return fail("inject what? \"call\", \"xid\" or \"clear\"");
    int result = attach(path, &machine);
    if (result)
        return result;
    if (strcmp(what, "call") == 0)
        result = inject_call(&machine, arguments);
    else if (strcmp(what, "xid") == 0)
        result = inject_xid(&machine, arguments);
    else
        result = inject_clear(&machine);
    state_detach(&machine);
    return result;
}
