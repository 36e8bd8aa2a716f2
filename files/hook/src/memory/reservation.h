/* reservation.h - reserving bytes of the slice around a driver call.
 *
 * The life of an allocation:   tf_memory_reserve(); the driver's call; tf_memory_keep() or, on failure, tf_memory_undo().
 * The life of a free:          tf_ledger_take(); the driver's call; tf_memory_gone() or, on failure, tf_memory_back().
 * A free takes the entry before the driver frees, because the driver may hand the same address to another thread at once. */
#pragma once

#include "abi/cuda.h"
#include "memory/ledger.h"
#include "slice/container.h"

/* Bytes reserved and not yet in the ledger. */
struct tf_reservation {
    struct tf_container *container;
    int gpu; /* negative: nothing is charged */
    uint64_t bytes;
    uint64_t context; /* CUcontext that the memory will die with; 0: none */
    bool is_managed;
    bool is_blind; /* the driver did not say which card: it must not succeed, see tf_memory_keep() */
};

/* What the driver takes for one allocation of this size: multiples of 512 bytes below 1 MiB, of 2 MiB from there.
 * UINT64_MAX when it does not fit 64 bits. */
uint64_t tf_memory_rounded(uint64_t bytes);

/* CUDA_SUCCESS: reserved (or nothing to charge), *ret is valid. CUDA_ERROR_OUT_OF_MEMORY: the limit says no. `gpu` is a number of device.h;
 * bytes are charged as they are. */
CUresult tf_memory_reserve(struct tf_container *container, int gpu, uint64_t bytes, struct tf_reservation *ret);

/* The same without counting a refusal: for callers that can try again. */
CUresult tf_memory_try(struct tf_container *container, int gpu, uint64_t bytes, struct tf_reservation *ret);

/* Changes a reservation to what the driver really took. CUDA_ERROR_OUT_OF_MEMORY: it does not fit, nothing changed. */
CUresult tf_memory_adjust(struct tf_reservation *reservation, uint64_t bytes);

/* Into the ledger. CUDA_ERROR_OUT_OF_MEMORY: no memory for the entry, or the driver allocated on a card that it would not name; the
 * reservation stands and the caller undoes both. */
CUresult tf_memory_keep(const struct tf_reservation *reservation, enum tf_kind kind, uint64_t key);

void tf_memory_undo(const struct tf_reservation *reservation);

void tf_memory_gone(struct tf_container *container, const struct tf_entry *entry);
void tf_memory_back(struct tf_container *container, const struct tf_entry *entry);

/* What the slice shows of a card: false when there is no limit to show. *ret_used_bytes never exceeds *ret_total_bytes. */
bool tf_memory_view(struct tf_container *container, int gpu, uint64_t real_total_bytes, uint64_t *ret_total_bytes, uint64_t *ret_used_bytes);
