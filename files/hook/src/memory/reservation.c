/* reservation.c - reserving bytes of the slice around a driver call.
 *
 * Owns: the order of charge, driver call and ledger entry; what happens when the limit says no (first look for dead processes and for pools
 *       that shrank, for overhead that has gone and for a probe in the way, then refuse and count).
 * Next: hooks/memory.c and hooks/pool.c wrap the driver's calls; account.c keeps the sums. */
#include "memory/reservation.h"

#include "base/sync.h"
#include "driver/driver.h"
#include "memory/overhead.h"
#include "slice/account.h"
#include "slice/device.h"
#include "slice/probe.h"
#include "slice/slots.h"

#include <time.h>

/* How the driver cuts memory: small allocations share blocks of 2 MiB in steps of 512 bytes, larger ones get blocks of their own.
 * Source: granularity that cuMemGetAllocationGranularity reports, and the step that NVML shows for cuMemAlloc. */
#define GRANULE_BYTES 512ull
#define SMALL_BYTES (1ull << 20)

enum { VIEW_REAP_MS = 100 };

static uint64_t round_up(uint64_t bytes, uint64_t step)
{
    return bytes > UINT64_MAX - step ? UINT64_MAX : (bytes + step - 1) / step * step;
}

uint64_t tf_memory_rounded(uint64_t bytes) { return round_up(bytes, bytes < SMALL_BYTES ? GRANULE_BYTES : TF_BLOCK_BYTES); }

static int charge(struct tf_container *container, int gpu, uint64_t bytes)
{
    uint64_t limit_bytes = atomic_load_explicit(&container->quotas[gpu].memory_limit_bytes, memory_order_relaxed);
    int error = tf_overhead_know(container, gpu);
    return error ? error : tf_account_charge(container->state, container->slot, (uint32_t)gpu, bytes, limit_bytes);
}

/* A refusal is told only when the dead have been looked for, overhead that is gone is given back, and no probe was in the way. */
static CUresult charge_after_all(struct tf_container *container, int gpu, uint64_t bytes)
{
    tf_slots_reap(container->state, &container->self);
    if (charge(container, gpu, bytes) == 0)
        return CUDA_SUCCESS;
    tf_overhead_look_again(container, gpu);
    for (int tries = 0; tries < TF_PROBE_TRIES; tries++) {
        uint64_t seen = tf_probe_seen(container->state, (uint32_t)gpu);
        if (charge(container, gpu, bytes) == 0)
            return CUDA_SUCCESS;
        if (!tf_probe_overlapped(container->state, (uint32_t)gpu, seen))
            break;
        tf_slots_reap(container->state, &container->self); /* the prober may have died meanwhile */
    }
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult charge_or_reap(struct tf_container *container, int gpu, uint64_t bytes)
{
    return TF_LIKELY(charge(container, gpu, bytes) == 0) ? CUDA_SUCCESS : charge_after_all(container, gpu, bytes);
}

/* Does this stance charge at all? If not, *ret_result is what the allocation gets. */
static bool is_charging(struct tf_container *container, int gpu, CUresult *ret_result)
{
    int stance = atomic_load_explicit(&container->stance, memory_order_relaxed);
    *ret_result = CUDA_SUCCESS;
    if (TF_UNLIKELY(stance != TF_ENFORCED)) {
        if (stance == TF_CLOSED)
            *ret_result = CUDA_ERROR_OUT_OF_MEMORY;
        return false;
    }
    if (gpu == TF_DEVICE_UNKNOWN) /* the driver will refuse by itself */
        return false;
    if (gpu == TF_DEVICE_UNLISTED || !atomic_load_explicit(&container->quotas[gpu].is_listed, memory_order_relaxed)) {
        if (container->policy == TENFOLD_POLICY_CLOSED)
            *ret_result = CUDA_ERROR_OUT_OF_MEMORY;
        return false;
    }
    return true;
}

CUresult tf_memory_try(struct tf_container *container, int gpu, uint64_t bytes, struct tf_reservation *ret)
{
    CUresult result;
    tf_container_refresh(container);
    *ret = (struct tf_reservation){.container = container, .gpu = -1};
    if (!is_charging(container, gpu, &result)) {
        ret->is_blind = gpu == TF_DEVICE_UNKNOWN && atomic_load_explicit(&container->stance, memory_order_relaxed) == TF_ENFORCED;
        return result;
    }
    result = charge_or_reap(container, gpu, bytes);
    if (result == CUDA_SUCCESS)
        *ret = (struct tf_reservation){.container = container, .gpu = gpu, .bytes = bytes};
    return result;
}

CUresult tf_memory_reserve(struct tf_container *container, int gpu, uint64_t bytes, struct tf_reservation *ret)
{
    CUresult result = tf_memory_try(container, gpu, bytes, ret);
    if (TF_UNLIKELY(result != CUDA_SUCCESS) && gpu >= 0 && container->state)
        __atomic_fetch_add(&container->state->gpus[gpu].refusals, 1, __ATOMIC_RELAXED);
    return result;
}

CUresult tf_memory_adjust(struct tf_reservation *reservation, uint64_t bytes)
{
    struct tf_container *container = reservation->container;
    if (reservation->gpu < 0 || bytes == reservation->bytes)
        return CUDA_SUCCESS;
    if (bytes > reservation->bytes) {
        CUresult result = charge_or_reap(container, reservation->gpu, bytes - reservation->bytes);
        if (result != CUDA_SUCCESS)
            return result;
    } else {
        tf_account_release(container->state, container->slot, (uint32_t)reservation->gpu, reservation->bytes - bytes);
    }
    reservation->bytes = bytes;
    return CUDA_SUCCESS;
}

void tf_memory_undo(const struct tf_reservation *reservation)
{
    if (reservation->gpu < 0 || !reservation->bytes)
        return;
    tf_account_release(reservation->container->state, reservation->container->slot, (uint32_t)reservation->gpu, reservation->bytes);
    if (reservation->is_managed)
        tf_overhead_managed(reservation->gpu, -(int64_t)reservation->bytes);
}

void tf_memory_gone(struct tf_container *container, const struct tf_entry *entry)
{
    if (entry->bytes)
        tf_account_release(container->state, container->slot, entry->gpu, entry->bytes);
    if (entry->kind == TF_KIND_POINTER && entry->extra)
        tf_overhead_managed(entry->gpu, -(int64_t)entry->bytes);
}

CUresult tf_memory_keep(const struct tf_reservation *reservation, enum tf_kind kind, uint64_t key)
{
    if (reservation->gpu < 0)
        return TF_UNLIKELY(reservation->is_blind) ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
    struct tf_entry entry = {.key = key, .context = reservation->context, .extra = reservation->is_managed,
        .bytes = reservation->bytes, .kind = (uint8_t)kind, .gpu = (uint8_t)reservation->gpu};
    struct tf_entry replaced;
    if (tf_ledger_add(&entry, &replaced) != 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (TF_UNLIKELY(replaced.kind))
        tf_memory_gone(reservation->container, &replaced);
    return CUDA_SUCCESS;
}

void tf_memory_back(struct tf_container *container, const struct tf_entry *entry)
{
    struct tf_entry replaced;
    if (tf_ledger_add(entry, &replaced) != 0)
        tf_memory_gone(container, entry); /* we lose sight of it rather than leak it */
    else if (replaced.kind)
        tf_memory_gone(container, &replaced);
}

/* What dead siblings held is free, and a program that only looks must see it: looked for now and then, and only if there are siblings. */
static uint64_t used_by_the_living(struct tf_container *container, uint32_t gpu)
{
    static _Atomic uint64_t looked_ms;
    uint64_t used_bytes = tf_account_used(container->state, gpu);
    if (TF_LIKELY(used_bytes <= tf_account_slot_used(container->state, container->slot, gpu)))
        return used_bytes;
    struct timespec now = {0, 0};
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    uint64_t now_ms = (uint64_t)now.tv_sec * 1000u + (uint64_t)now.tv_nsec / 1000000u, before_ms = atomic_load(&looked_ms);
    if (now_ms - before_ms < VIEW_REAP_MS || !atomic_compare_exchange_strong(&looked_ms, &before_ms, now_ms))
        return used_bytes;
    tf_slots_reap(container->state, &container->self);
    return tf_account_used(container->state, gpu);
}

bool tf_memory_view(struct tf_container *container, int gpu, uint64_t real_total_bytes, uint64_t *ret_total_bytes, uint64_t *ret_used_bytes)
{
    tf_container_refresh(container);
    if (atomic_load(&container->stance) != TF_ENFORCED || gpu < 0)
        return false;
    uint64_t limit_bytes = atomic_load(&container->quotas[gpu].memory_limit_bytes);
    if (!limit_bytes || !atomic_load(&container->quotas[gpu].is_listed))
        return false;
    uint64_t total_bytes = limit_bytes < real_total_bytes ? limit_bytes : real_total_bytes;
    uint64_t used_bytes = used_by_the_living(container, (uint32_t)gpu);
    *ret_total_bytes = total_bytes;
    *ret_used_bytes = used_bytes < total_bytes ? used_bytes : total_bytes;
    return true;
}
