/* nvml_pid.c - by which number NVML names a process to whom.
 *
 * Owns: what is known of processes in other pid namespaces than the machine's. Such a process cannot know its outer pid, so it is made up
 *       (sim_slot.host_pid). Who asks from the machine's own namespace, as a driver's kernel module would, finds the true one in /proc, and
 *       is told that; everybody else goes on seeing the made-up one.
 * Rules: a driver that translates (SIM_PIDS_CALLER) names a process by its pid in the caller's namespace and leaves out who has none there.
 *       Namespaces inside of a container's are strangers to it here, which they are not to a kernel.
 * Next: nvml_process.c names processes by it. */
#include "nvml.h"

#include "../core/old_libc.h"

#include <dirent.h>
#include <stdlib.h>
#include <time.h>

#define RETRY_NS 1000000000 /* one that was not found may just have ended, or its /proc may be closed to us */

/* Under the machine's lock. `made_up` says whose entry it is: it is given once. */
static struct found {
    uint32_t made_up;
    uint32_t pid; /* 0: not found */
    int64_t tried_ns;
} g_found[SIM_SLOTS_MAX];

struct sought {
    uint32_t slot_index, made_up, pid;
    uint64_t pid_namespace;
    int32_t inner_pid;
};

static bool is_made_up(const struct sim_slot *slot) { return slot->live && slot->host_pid >= SIM_HOST_PID_BASE; }

/* The last number of the line NSpid: the pid in the innermost namespace. */
static int32_t innermost_pid(uint32_t pid)
{
    char path[64], line[256];
    int32_t innermost = 0;
    snprintf(path, sizeof path, "/proc/%u/status", pid);
    FILE *status = fopen(path, "re");
    while (status && fgets(line, sizeof line, status)) {
        if (strncmp(line, "NSpid:", 6) != 0)
            continue;
        char *rest = line + 6, *end;
        for (long number = strtol(rest, &end, 10); end != rest; number = strtol(rest, &end, 10)) {
            innermost = (int32_t)number;
            rest = end;
        }
        break;
    }
    if (status)
        fclose(status);
    return innermost;
}

static void look_into_proc(struct sought *sought, uint32_t count)
{
    DIR *proc = opendir("/proc");
    for (struct dirent *entry; proc && (entry = readdir(proc));) {
        char path[64];
        struct stat status;
        uint32_t pid = (uint32_t)strtoul(entry->d_name, NULL, 10);
        snprintf(path, sizeof path, "/proc/%u/ns/pid", pid);
        if (!pid || old_libc_stat(path, &status) != 0)
            continue;
        int32_t innermost = 0;
        for (uint32_t i = 0; i < count; i++) {
            if (sought[i].pid_namespace != status.st_ino)
                continue;
            innermost = innermost ? innermost : innermost_pid(pid);
            if (innermost == sought[i].inner_pid)
                sought[i].pid = pid;
        }
    }
    if (proc)
        closedir(proc);
}

void nvml_resolve_pids(void)
{
    struct sim_machine *machine = nvml_machine();
    struct sim_state *state = machine->state;
    const int64_t now_ns = state_now_ns();
    uint32_t count = 0;
    if (state_pid_namespace() != state->pid_namespace)
        return;
    struct sought *sought = malloc(sizeof *sought * SIM_SLOTS_MAX);
    if (!sought)
        return;
    state_lock(machine);
    for (uint32_t i = 0; i < state->slot_ceiling; i++) {
        const struct sim_slot *slot = &state->slots[i];
        bool is_tried = g_found[i].made_up == slot->host_pid && (g_found[i].pid || now_ns - g_found[i].tried_ns < RETRY_NS);
        if (is_made_up(slot) && !is_tried)
            sought[count++] = (struct sought){.slot_index = i, .made_up = slot->host_pid, .pid_namespace = slot->pid_namespace, .inner_pid = slot->pid};
    }
    state_unlock(machine);
    if (count) {
        look_into_proc(sought, count);
        state_lock(machine);
        for (uint32_t i = 0; i < count; i++)
            g_found[sought[i].slot_index] = (struct found){sought[i].made_up, sought[i].pid, now_ns};
        state_unlock(machine);
    }
    free(sought);
}

uint32_t nvml_pid_of(const struct sim_state *state, const struct sim_slot *slot, uint32_t pids)
{
    const uint64_t own_namespace = nvml_machine()->slot->pid_namespace;
    if (pids == SIM_PIDS_CALLER && own_namespace != state->pid_namespace)
        return slot->pid_namespace == own_namespace ? (uint32_t)slot->pid : 0;
    const struct found *found = &g_found[slot - state->slots];
    return is_made_up(slot) && found->made_up == slot->host_pid && found->pid ? found->pid : slot->host_pid;
}
