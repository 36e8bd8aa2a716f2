/* nvml_event.c - event sets: waiting for XIDs, which tests raise with `tenfold-sim inject xid`. Waiters sleep on the machine's futex. */
#include "nvml.h"

#include <linux/futex.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

struct nvmlEventSet_st {
    uint64_t seen[SIM_CARDS_MAX];    /* XID sequence number per card that was handed out last */
    bool is_watched[SIM_CARDS_MAX];
    nvmlDevice_t devices[SIM_CARDS_MAX];
};

NVML_EXPORT nvmlEventSetCreate(nvmlEventSet_t *ret_set)
{
    ENTER(nvmlEventSetCreate);
    REQUIRE(ret_set, NVML_ERROR_INVALID_ARGUMENT);
    *ret_set = calloc(1, sizeof **ret_set);
    return *ret_set ? NVML_SUCCESS : NVML_ERROR_MEMORY;
}

NVML_EXPORT nvmlEventSetFree(nvmlEventSet_t set)
{
    ENTER(nvmlEventSetFree);
    REQUIRE(set, NVML_ERROR_INVALID_ARGUMENT);
    free(set);
    return NVML_SUCCESS;
}

/* Only XIDs ever come. */
NVML_EXPORT nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set)
{
    ENTER(nvmlDeviceRegisterEvents);
    CARD(device, card);
    REQUIRE(set, NVML_ERROR_INVALID_ARGUMENT);
    if (types & NVML_EVENT_XID) {
        set->is_watched[device->card] = true;
        set->devices[device->card] = device;
        set->seen[device->card] = card->xid_sequence; /* what happened before is not told */
    }
    return NVML_SUCCESS;
}

/* With the state lock. */
static bool take_event(nvmlEventSet_t set, nvmlEventData_t *ret_event)
{
    struct sim_state *state = nvml_machine()->state;
    for (uint32_t i = 0; i < state->card_count; i++) {
        struct sim_card *card = &state->cards[i];
        if (!set->is_watched[i] || set->seen[i] >= card->xid_sequence)
            continue;
        uint64_t next = set->seen[i] + 1;
        if (card->xid_sequence - set->seen[i] > SIM_XID_MAX)
            next = card->xid_sequence - SIM_XID_MAX + 1; /* older ones are overwritten */
        set->seen[i] = next;
        *ret_event = (nvmlEventData_t){.device = set->devices[i],
                                       .type = NVML_EVENT_XID,
                                       .data = card->xids[next % SIM_XID_MAX].xid,
                                       .gpu_instance = NVML_NO_INSTANCE,
                                       .compute_instance = NVML_NO_INSTANCE};
        return true;
    }
    return false;
}

NVML_EXPORT nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *ret_event, unsigned timeout_ms)
{
    ENTER(nvmlEventSetWait_v2);
    struct sim_machine *machine = nvml_machine();
    const int64_t deadline_ns = state_now_ns() + (int64_t)timeout_ms * 1000000;
    REQUIRE(set && ret_event, NVML_ERROR_INVALID_ARGUMENT);
    for (;;) {
        uint32_t word = atomic_load(&machine->state->event_word);
        state_lock(machine);
        bool is_there = take_event(set, ret_event);
        state_unlock(machine);
        int64_t left_ns = deadline_ns - state_now_ns();
        if (is_there)
            return NVML_SUCCESS;
        if (left_ns <= 0)
            return NVML_ERROR_TIMEOUT;
        const struct timespec timeout = {.tv_sec = left_ns / 1000000000, .tv_nsec = left_ns % 1000000000};
        syscall(SYS_futex, &machine->state->event_word, FUTEX_WAIT, word, &timeout, NULL, 0);
    }
}
