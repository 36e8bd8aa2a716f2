/* sim_truth.c - `tenfold-sim truth` and `info`: what the simulated hardware knows, as JSON. Dead processes are reaped first. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../core/memory.h"
#include "../core/timeline.h"
#include "sim_commands.h"

static void print_quoted(const char *text)
{
    putchar('"');
    for (; *text; text++) {
        if (*text == '"' || *text == '\\')
            putchar('\\');
        if ((unsigned char)*text >= 0x20)
            putchar(*text);
    }
    putchar('"');
}

static unsigned long long u64(uint64_t value)
{
    return value;
}

static void print_card_json(const struct sim_state *state, uint32_t index, int64_t now_ns)
{
    const struct sim_card *card = &state->cards[index];
    printf("    {\"index\": %u, \"uuid\": \"%s\", \"name\": ", index, card->uuid_text);
    print_quoted(card->name);
    printf(", \"pci_bus_id\": \"%s\", \"minor\": %u, \"total_bytes\": %llu, \"driver_reserved_bytes\": %llu, \"used_bytes\": %llu, "
           "\"free_bytes\": %llu, \"busy_ns\": %llu, \"utilisation_percent\": %d, \"contexts_ever\": %llu, \"xids\": %llu, \"lost\": %s}",
           card->pci_bus_id, card->minor_number, u64(card->memory_total_bytes), u64(card->memory_reserved_bytes), u64(card->used_bytes),
           u64(memory_free_bytes(card)), u64(card->timeline.busy_ns),
           timeline_busy_percent(state, &card->timeline.meter, now_ns, 2 * state->time.window_ns), u64(card->contexts_ever),
           u64(card->xid_sequence), card->lost ? "true" : "false");
}

/* What is left to do in each channel; the copy of the machine has no channels, which are large and mostly untouched. */
static int64_t g_pending_ns[SIM_CHANNELS_MAX];

static void print_usage_json(const struct sim_state *state, const struct sim_slot *slot, uint32_t card)
{
    const struct sim_usage *usage = &slot->usage[card];
    int64_t pending_ns = usage->channel ? g_pending_ns[usage->channel - 1] : 0;
    printf("      {\"index\": %u, \"uuid\": \"%s\", \"requested_bytes\": %llu, \"allocated_bytes\": %llu, \"reserved_bytes\": %llu, "
           "\"context_bytes\": %llu, \"peak_reserved_bytes\": %llu, \"contexts\": %u, \"gpu_time_ns\": %llu, \"launches\": %llu, "
           "\"pending_ns\": %lld}",
           card, state->cards[card].uuid_text, u64(usage->requested_bytes), u64(usage->allocated_bytes), u64(usage->reserved_bytes),
           u64(usage->context_bytes), u64(usage->peak_reserved_bytes), usage->contexts, u64(slot->gpu_time_ns[card]),
           u64(slot->launches[card]), (long long)pending_ns);
}

static void print_processes_json(const struct sim_machine *machine)
{
    const struct sim_state *state = machine->state;
    const char *separator = "";
    for (uint32_t i = 0; i < state->slot_ceiling; i++) {
        const struct sim_slot *slot = &state->slots[i];
        if (!slot->live || i == machine->slot_index)
            continue;
        printf("%s\n    {\"slot\": %u, \"pid\": %d, \"host_pid\": %u, \"pid_namespace\": %llu, \"name\": ", separator, i, slot->pid,
               slot->host_pid, u64(slot->pid_namespace));
        print_quoted(slot->name);
        printf(", \"cards\": [\n");
        for (uint32_t card = 0; card < state->card_count; card++) {
            print_usage_json(state, slot, card);
            puts(card + 1 < state->card_count ? "," : "");
        }
        printf("    ]}");
        separator = ",";
    }
}

static void print_ended_json(const struct sim_state *state)
{
    uint64_t first = state->obituary_count > SIM_OBITUARIES_MAX ? state->obituary_count - SIM_OBITUARIES_MAX : 0;
    const char *separator = "";
    for (uint64_t i = first; i < state->obituary_count; i++) {
        const struct sim_obituary *obituary = &state->obituaries[i % SIM_OBITUARIES_MAX];
        printf("%s\n    {\"pid\": %d, \"host_pid\": %u, \"name\": ", separator, obituary->pid, obituary->host_pid);
        print_quoted(obituary->name);
        printf(", \"cards\": [");
        for (uint32_t card = 0; card < obituary->cards; card++)
            printf("%s{\"index\": %u, \"gpu_time_ns\": %llu, \"launches\": %llu, \"peak_reserved_bytes\": %llu}", card ? ", " : "", card,
                   u64(obituary->gpu_time_ns[card]), u64(obituary->launches[card]), u64(obituary->peak_reserved_bytes[card]));
        printf("]}");
        separator = ",";
    }
}

static void print_injections_json(const struct sim_state *state)
{
    const char *separator = "";
    for (uint32_t i = 0; i < SIM_INJECTIONS_MAX; i++) {
        const struct sim_injection *injection = &state->injections[i];
        if (!injection->symbol[0])
            continue;
        printf("%s\n    {\"symbol\": \"%s\", \"error\": %d, \"armed\": %s, \"fired\": %llu, \"skip\": %llu}", separator, injection->symbol,
               injection->error, injection->armed ? "true" : "false", u64(injection->fired), u64(injection->skip));
        separator = ",";
    }
}

static void print_json(const struct sim_machine *machine, int64_t now_ns)
{
    const struct sim_state *state = machine->state;
    printf("{\n  \"driver_version\": \"%s\", \"cuda_version\": %d, \"now_ns\": %lld, \"policy\": \"%s\", \"lock_steals\": %u, \"dead_streams\": %u,\n"
           "  \"cards\": [\n",
           state->driver_version, state->cuda_version, (long long)now_ns,
           state->time.policy == SIM_POLICY_FIFO ? "fifo" : "round-robin", atomic_load(&machine->state->lock_steals),
           atomic_load(&machine->state->dead_streams));
    for (uint32_t i = 0; i < state->card_count; i++) {
        print_card_json(state, i, now_ns);
        puts(i + 1 < state->card_count ? "," : "");
    }
    printf("  ],\n  \"processes\": [");
    print_processes_json(machine);
    printf("\n  ],\n  \"ended\": [");
    print_ended_json(state);
    printf("\n  ],\n  \"injections\": [");
    print_injections_json(state);
    printf("\n  ]\n}\n");
}

int command_truth(const char *path, struct arguments *arguments)
{
    struct sim_machine machine;
    take_flag(arguments, "--json"); /* the only form there is */
    const char *left = take_word(arguments);
    if (left)
        return fail("truth does not know \"%s\"", left);
    int result = attach(path, &machine);
    if (result)
        return result;
    state_lock(&machine);
    int64_t now_ns = state_now_ns();
    for (uint32_t card = 0; card < machine.state->card_count; card++)
        timeline_advance(machine.state, card, now_ns);
    const size_t bytes = offsetof(struct sim_state, channels);
    struct sim_state *copy = malloc(sizeof *copy); /* printing may block: not under the lock */
    if (copy)
        memcpy(copy, machine.state, bytes);
    for (uint32_t i = 0; i < machine.state->slot_ceiling; i++)
        for (uint32_t card = 0; card < machine.state->card_count; card++) {
            const uint32_t channel = machine.state->slots[i].usage[card].channel;
            if (channel)
                g_pending_ns[channel - 1] = machine.state->channels[channel - 1].backlog_ns;
        }
    state_unlock(&machine);
    struct sim_machine view = machine;
    view.state = copy;
    if (copy)
        print_json(&view, now_ns);
    else
        result = fail("no memory for a copy of the machine");
    free(copy);
    state_detach(&machine);
    return result;
}

int command_info(const char *path, struct arguments *arguments)
{
    struct sim_machine machine;
    (void)arguments;
    int result = attach(path, &machine);
    if (result)
        return result;
    printf("driver %s, CUDA %d.%d, %u cards, %s\n", machine.state->driver_version, machine.state->cuda_version / 1000,
           machine.state->cuda_version % 1000 / 10, machine.state->card_count,
           machine.state->device_nodes_required ? "device nodes required" : "device nodes ignored");
    for (uint32_t i = 0; i < machine.state->card_count; i++)
        printf("  %u  %s  %s  %s\n", i, machine.state->cards[i].uuid_text, machine.state->cards[i].pci_bus_id, machine.state->cards[i].name);
    state_detach(&machine);
    return 0;
}

int command_layout(const char *path, struct arguments *arguments)
{
    (void)path, (void)arguments;
    printf("size %zu\nlock_word %zu\nslots %zu\nslot_bytes %zu\ncards %zu\n", sizeof(struct sim_state), offsetof(struct sim_state, lock_word),
           offsetof(struct sim_state, slots), sizeof(struct sim_slot), offsetof(struct sim_state, cards));
    return 0;
}
