/* visible.c - CUDA_VISIBLE_DEVICES: which of the machine's cards CUDA numbers, and in which order.
 *
 * Rules (CUDA C++ programming guide, "CUDA Environment Variables"): a comma-separated list of indices or of UUIDs that may be cut short
 * as long as they stay unambiguous; the list ends before the first entry that names no card; an empty list hides them all. A card named
 * twice ends the list as well. Indices count in PCI order, which is the order of the machine's cards. NVML knows nothing of it. */
#include <stdlib.h>

#include "driver.h"

enum { NO_CARD = -1 };

/* Position among the cards that this process may see; NO_CARD for anything else. */
static int position_of_uuid(const struct sim_machine *machine, const char *text, size_t length)
{
    int found = NO_CARD;
    for (uint32_t i = 0; i < machine->visible_count; i++) {
        if (strncasecmp(machine->state->cards[machine->visible[i]].uuid_text, text, length) != 0)
            continue;
        if (found != NO_CARD)
            return NO_CARD; /* ambiguous */
        found = (int)i;
    }
    return found;
}

static int position_of(const struct sim_machine *machine, const char *text, size_t length)
{
    if (length > 4 && strncasecmp(text, "GPU-", 4) == 0)
        return position_of_uuid(machine, text, length);
    char *end = NULL;
    long index = strtol(text, &end, 10);
    bool is_number = end != text && (size_t)(end - text) == length;
    return is_number && index >= 0 && index < (long)machine->visible_count ? (int)index : NO_CARD;
}

void visible_apply(struct sim_machine *machine)
{
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    uint32_t chosen[SIM_CARDS_MAX], count = 0, taken = 0;
    if (!list)
        return;
    for (const char *entry = list; *entry;) {
        entry += strspn(entry, " ");
        size_t length = strcspn(entry, ", ");
        int position = position_of(machine, entry, length);
        if (position == NO_CARD || (taken & 1u << position))
            break;
        taken |= 1u << position;
        chosen[count++] = machine->visible[position];
        entry += length;
        entry += strspn(entry, " ");
        entry += *entry == ',';
    }
    memcpy(machine->visible, chosen, count * sizeof chosen[0]);
    machine->visible_count = count;
}
