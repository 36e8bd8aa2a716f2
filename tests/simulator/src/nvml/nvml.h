/* nvml.h - what the files of the simulated libnvidia-ml share: entry check, handles.
 *
 * Entries open with ENTER(name): uninitialised and lost-library states and failure injection sit there and nowhere else. */
#ifndef TENFOLD_SIM_NVML_H
#define TENFOLD_SIM_NVML_H

#include <stdio.h>
#include <string.h>

#include "../../include/nvml_abi.h"
#include "../core/memory.h"
#include "../core/state.h"
#include "../core/timeline.h"

#define NVML_EXPORT __attribute__((visibility("default"))) nvmlReturn_t

struct nvmlDevice_st {
    uint32_t magic;
    uint32_t card; /* index into the machine */
    uint32_t index; /* NVML's own: among the visible cards */
};

/* 0, or why this call may not go on. Attaches again in a forked child. */
nvmlReturn_t nvml_enter(const char *symbol);

#define ENTER(symbol)                              \
    do {                                           \
        nvmlReturn_t refused_ = nvml_enter(#symbol); \
        if (refused_ != NVML_SUCCESS)              \
            return refused_;                       \
    } while (0)
/* A call that is one expression. */
#define ENTRY(symbol, parameters, call) \
    NVML_EXPORT symbol parameters       \
    {                                   \
        ENTER(symbol);                  \
        return call;                    \
    }
#define REQUIRE(condition, error) \
    do {                          \
        if (!(condition))         \
            return (error);       \
    } while (0)

struct sim_machine *nvml_machine(void);
nvmlDevice_t nvml_device(uint32_t index); /* NULL beyond the last visible card */

/* The card behind a handle. INVALID_ARGUMENT, or GPU_IS_LOST. */
nvmlReturn_t nvml_card(nvmlDevice_t device, struct sim_card **ret_card);

/* The same, or return. */
#define CARD(device, card)                                \
    struct sim_card *card;                                \
    do {                                                  \
        nvmlReturn_t missing_ = nvml_card(device, &card); \
        if (missing_ != NVML_SUCCESS)                     \
            return missing_;                              \
    } while (0)

/* Before the machine's lock is taken: finds out what nvml_pid_of() will say. */
void nvml_resolve_pids(void);

/* With the lock: the number by which this caller sees a process; 0 = not at all. pids: one of the model's two rules (enum sim_pids). */
uint32_t nvml_pid_of(const struct sim_state *state, const struct sim_slot *slot, uint32_t pids);

/* Copies a text with its zero; INSUFFICIENT_SIZE if it does not fit. */
nvmlReturn_t nvml_text(char *ret_text, unsigned size_bytes, const char *text);

#endif
