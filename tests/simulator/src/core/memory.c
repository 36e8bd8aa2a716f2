/* memory.c - the bytes of each card (contract: memory.h). */
#include "memory.h"

#include <errno.h>

static uint64_t round_up(uint64_t value, uint64_t step)
{
    uint64_t rest = value % step;
    if (rest == 0)
        return value;
    return value > UINT64_MAX - (step - rest) ? 0 : value + (step - rest);
}

uint64_t memory_rounded(const struct sim_memory_model *model, uint64_t size_bytes)
{
    return round_up(size_bytes, size_bytes < model->small_limit_bytes ? model->granule_bytes : model->block_bytes);
}

uint64_t memory_total_bytes(const struct sim_card *card)
{
    return card->memory_total_bytes - card->memory_reserved_bytes;
}

uint64_t memory_free_bytes(const struct sim_card *card)
{
    const uint64_t total_bytes = memory_total_bytes(card), used_bytes = atomic_load_explicit(&card->used_bytes, memory_order_relaxed);
    return used_bytes < total_bytes ? total_bytes - used_bytes : 0;
}

int memory_reserve(struct sim_machine *machine, uint32_t card_index, uint64_t reserve_bytes)
{
    struct sim_card *card = &machine->state->cards[card_index];
    if (reserve_bytes > memory_free_bytes(card)) {
        state_reap(machine);
        if (reserve_bytes > memory_free_bytes(card))
            return -ENOMEM;
    }
    struct sim_usage *usage = &machine->slot->usage[card_index];
    usage->reserved_bytes += reserve_bytes;
    if (usage->reserved_bytes > usage->peak_reserved_bytes)
        usage->peak_reserved_bytes = usage->reserved_bytes;
    card->used_bytes += reserve_bytes;
    return 0;
}

void memory_unreserve(struct sim_machine *machine, uint32_t card_index, uint64_t reserve_bytes)
{
    machine->slot->usage[card_index].reserved_bytes -= reserve_bytes;
    machine->state->cards[card_index].used_bytes -= reserve_bytes;
}

void memory_note(struct sim_machine *machine, uint32_t card_index, int64_t requested_bytes, int64_t allocated_bytes)
{
    struct sim_usage *usage = &machine->slot->usage[card_index];
    usage->requested_bytes += (uint64_t)requested_bytes;
    usage->allocated_bytes += (uint64_t)allocated_bytes;
}
