/* nvml_client.h - NVML for the hook's own questions: opened once, a handle per card, the list of processes on a card.
 *
 * Contract: only the helper thread opens the library; any thread may ask once it is open. Every call of NVML by us is made between
 *           tf_nvml_enter() and tf_nvml_leave(): a fork of the program waits for the end of it, so that the child, which may use NVML itself,
 *           finds neither the loader's nor NVML's own locks taken by a thread that it does not have. */
#pragma once

#include "driver/driver.h"
#include "slice/container.h"

enum { TF_NVML_PROCESSES_MAX = 256 };

struct tf_nvml_list {
    unsigned int count;
    nvmlProcessInfo_v1_t processes[TF_NVML_PROCESSES_MAX];
};

/* For the helper thread: loads and initialises NVML if need be. NULL: this machine has none, or none that answers. */
const struct tf_nvml *tf_nvml_open(void);

/* NULL until tf_nvml_open() has succeeded in this process. */
const struct tf_nvml *tf_nvml_opened(void);

void tf_nvml_enter(void);
void tf_nvml_leave(void);

/* NULL: NVML does not know the card. */
nvmlDevice_t tf_nvml_card(struct tf_container *container, const struct tf_nvml *nvml, int gpu);

/* The processes on a card. false: NVML fails, or there are more than fit. */
bool tf_nvml_list(struct tf_container *container, const struct tf_nvml *nvml, int gpu, struct tf_nvml_list *ret_list);

/* Bytes of a process in a list. false: not in it. */
bool tf_nvml_list_bytes(const struct tf_nvml_list *list, uint32_t pid, uint64_t *ret_bytes);
