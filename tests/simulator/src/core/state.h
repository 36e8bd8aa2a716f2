/* state.h - the layout of a simulated machine: one file, mapped by every process that uses its cards.
 *
 * Owns:    struct sim_state and what may be done with it: attach, lock, reap, find visible cards.
 * Truth:   everything in here is what the "hardware" knows; tests compare the product with it.
 * Threads: fields are written under state_lock() unless a comment says otherwise.
 * Death:   a process holds an OFD lock on the byte of its slot (SLOT_BYTE_OFFSET + slot) for as long as it lives; the kernel gives it
 *          back however the process dies and whatever pid namespace it lived in. Whoever meets a dead owner reaps it.
 * Units:   bytes, nanoseconds of CLOCK_MONOTONIC, MiB and percent where the name says so.
 * Next:    memory.c charges bytes, timeline.c spends GPU time, profile.c fills in cards from data. */
#ifndef TENFOLD_SIM_STATE_H
#define TENFOLD_SIM_STATE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SIM_MAGIC UINT64_C(0x31304d4953464e54) /* "TNFSIM01" */
#define SIM_ABI 6u
#define SIM_DEFAULT_STATE "/run/nvidia-persistenced/socket" /* the NVIDIA toolkit mounts it into containers, read-write */
#define SIM_STATE_VARIABLE "TENFOLD_SIM_STATE"

enum {
    SIM_CARDS_MAX = 16,
    SIM_SLOTS_MAX = 1024,
    SIM_CHANNELS_MAX = 1024,
    SIM_RING_ITEMS = 1024, /* pending pieces of work per channel; a full ring blocks the launch, as the hardware's queue does */
    SIM_STREAMS_MAX = 1024, /* told apart in a channel; more share a number, and with it an order */
    SIM_OVERLAP_MAX = 32, /* pieces of one channel that run at the same time */
    SIM_XID_MAX = 64,
    SIM_INJECTIONS_MAX = 64,
    SIM_OBITUARIES_MAX = 256,
    SIM_SAMPLES_MAX = 64,
    SIM_NAME_BYTES = 64,
};

/* Bytes of memory one process holds on one card. */
struct sim_usage {
    uint64_t requested_bytes; /* as asked for by the program */
    uint64_t allocated_bytes; /* each allocation rounded to its granule (sim_memory_model) */
    uint64_t reserved_bytes;  /* taken from the card: blocks, pools, physical handles, and context_bytes */
    uint64_t context_bytes;   /* contexts' own share of reserved_bytes */
    uint64_t peak_reserved_bytes;
    uint32_t contexts;
    uint32_t channel; /* index + 1 of the channel; 0 = none */
};

struct sim_slot {
    uint32_t live; /* 1 from attach until detach or reap */
    uint32_t generation;
    int32_t pid;         /* in the process's own pid namespace */
    uint32_t host_pid;   /* what NVML reports where it knows no better (nvml_pid.c): the pid in the machine's pid namespace, else made up and unique */
    uint64_t pid_namespace;
    char name[SIM_NAME_BYTES]; /* path of the executable, cut from the left */
    struct sim_usage usage[SIM_CARDS_MAX];
    uint64_t gpu_time_ns[SIM_CARDS_MAX]; /* exact; outlives the channel */
    uint64_t launches[SIM_CARDS_MAX];
};

/* A piece of work. remaining_ns is 0 for a marker (an event, a memory operation). */
struct sim_item {
    int64_t remaining_ns;
    int64_t end_ns; /* valid once the item is done */
    uint64_t sequence; /* machine-wide order of submission */
    uint64_t cookie;   /* the owner's event that wants end_ns, 0 = nobody */
    uint64_t after;    /* ticket + 1 that must be done before, 0 = none */
    uint32_t stream;   /* pieces of a stream are done in their order */
    bool is_legacy, is_blocking; /* the legacy stream waits for all blocking ones before it, and they for it */
    bool is_held;      /* waits for timeline_release() */
    bool is_done;
};

struct sim_sample {
    int64_t end_ns; /* 0 = never taken */
    uint32_t busy_percent;
    uint32_t filler;
};

/* Utilisation in whole windows, as NVML publishes it. */
struct sim_meter {
    int64_t window_start_ns;
    int64_t busy_ns; /* in the window that is still open */
    uint32_t next_sample;
    uint32_t filler;
    struct sim_sample samples[SIM_SAMPLES_MAX];
};

/* The work queue of one process on one card: first in first out, or, if the model has overlap, so by stream. */
struct sim_channel {
    uint32_t live;
    uint32_t slot;
    uint32_t card;
    uint32_t running; /* entries of run[]; 0 = nothing to do, or nothing that may go on */
    uint64_t submitted; /* tickets given out; ticket t sits in items[t % SIM_RING_ITEMS] */
    uint64_t completed; /* the tickets below are done; of those above, the ones that say so */
    int64_t backlog_ns; /* sum of remaining_ns */
    uint64_t run[SIM_OVERLAP_MAX]; /* tickets that have the engine when the channel has it, the oldest first */
    struct sim_meter meter;
    struct sim_item items[SIM_RING_ITEMS];
};

enum sim_policy { SIM_POLICY_FIFO = 0, SIM_POLICY_ROUND_ROBIN = 1 };

struct sim_timeline {
    int64_t now_ns; /* the card's work is simulated up to here */
    int64_t slice_left_ns;
    int64_t switch_left_ns;
    uint32_t current; /* channel index + 1 that owns the engine, 0 = none */
    uint32_t channels; /* entries of order[] */
    uint64_t busy_ns; /* kernels only, without context switches */
    struct sim_meter meter;
    uint32_t order[SIM_CHANNELS_MAX];
};

struct sim_xid {
    uint64_t sequence; /* 1, 2, ...; 0 = empty */
    uint64_t xid;
    int64_t at_ns;
};

struct sim_card {
    char name[96];
    char uuid_text[48]; /* GPU-8-4-4-4-12 */
    uint8_t uuid[16];
    char serial[32];
    char pci_bus_id[32]; /* 00000000:17:00.0 */
    uint32_t pci_domain, pci_bus, pci_device, pci_device_id, pci_subsystem_id;
    uint32_t minor_number;
    int32_t numa_node;
    uint64_t memory_total_bytes;    /* NVML's total */
    uint64_t memory_reserved_bytes; /* kept by the driver: NVML's reserved; CUDA's total is total - reserved */
    uint32_t multiprocessors, threads_per_multiprocessor, shared_memory_per_multiprocessor_bytes, registers_per_multiprocessor;
    uint32_t shared_memory_per_block_optin_bytes, l2_bytes, memory_bus_width_bits, copy_engines;
    uint32_t compute_major, compute_minor;
    uint32_t sm_clock_max_mhz, memory_clock_max_mhz, sm_clock_idle_mhz;
    uint32_t power_limit_mw, power_idle_mw, temperature_c;
    uint32_t brand, architecture; /* NVML's numbers */
    uint32_t mig_capable, mig_enabled;
    uint32_t compute_mode; /* 0 default, 2 prohibited, 3 exclusive process */
    uint32_t persistence, ecc_enabled;
    _Atomic uint32_t lost; /* 1: fallen off the bus, every call that touches the card says so */
    uint64_t contexts_ever;
    _Atomic uint64_t used_bytes; /* sum of all slots' reserved_bytes; read without the lock */
    uint64_t xid_sequence;
    struct sim_xid xids[SIM_XID_MAX];
    struct sim_timeline timeline;
};

/* "the nth call of symbol, and `repeat - 1` more after it, return error"; armed and counted here, by every process alike. */
struct sim_injection {
    char symbol[72];
    uint32_t armed;
    int32_t error;
    int32_t pid; /* 0 = any process; else the pid as its own namespace numbers it */
    uint32_t filler;
    uint64_t skip;   /* calls still let through */
    uint64_t repeat; /* calls still to fail; UINT64_MAX = for ever */
    uint64_t fired;
};

/* What a process had used when it ended, so that a test can ask after the fact. */
struct sim_obituary {
    uint32_t host_pid;
    int32_t pid;
    uint32_t reaped; /* 0: detached by itself (NVML, tools), 1: exited or was killed with its slot open */
    uint32_t cards;
    int64_t at_ns;
    char name[SIM_NAME_BYTES];
    uint64_t gpu_time_ns[SIM_CARDS_MAX];
    uint64_t launches[SIM_CARDS_MAX];
    uint64_t peak_reserved_bytes[SIM_CARDS_MAX];
};

/* How the driver cuts memory; data of the driver profile. */
struct sim_memory_model {
    uint64_t granule_bytes;      /* 512: every allocation is a multiple */
    uint64_t block_bytes;        /* 2 MiB: what small allocations share and large ones are multiples of */
    uint64_t small_limit_bytes;  /* allocations below this share blocks */
    uint64_t pitch_bytes;        /* row alignment of cuMemAllocPitch */
    uint64_t pool_growth_bytes;  /* steps in which a stream-ordered pool takes memory from the card */
    uint64_t context_bytes;      /* taken by a process's first context on a card */
    uint64_t module_bytes;       /* taken by each loaded module */
    uint64_t graph_use_is_mapped; /* what graphs use: 1: all that is mapped for graphs that live; 0: what is allocated right now */
};

struct sim_time_model {
    uint32_t policy; /* enum sim_policy */
    uint32_t filler;
    int64_t slice_ns;
    int64_t switch_ns;
    int64_t window_ns;         /* one NVML utilisation sample */
    int64_t window_lag_ns;     /* a sample is published this long after its window ends */
    int64_t other_kernel_ns;   /* GPU time of a kernel that is not tenfold_spin */
    int64_t event_error_ns;    /* bias of event timestamps */
    int64_t sample_noise_percent; /* a published sample is off by up to so much, either way */
    int64_t queue_depth;       /* pieces of work that may wait (in a stream, with overlap); more block their caller. At most SIM_RING_ITEMS */
    int64_t streams_overlap;   /* kernels of one process that run at the same time, in several streams; 1: one queue for all streams */
    int64_t copy_bytes_per_us; /* 0: copies take no GPU time */
    int64_t memory_call_ns;    /* time that cuMemAlloc and cuMemFree keep their caller's CPU, beyond our own */
    int64_t launch_call_ns;    /* the same for kernel launches, once the kernel is in its stream */
};

enum sim_pids { SIM_PIDS_MACHINE = 0, SIM_PIDS_CALLER = 1 };

/* Where drivers are stricter than the ideal one; each a key of the model, 0 or 1. */
struct sim_rules {
    uint32_t process_pids, sample_pids; /* enum sim_pids: whose numbers NVML's process list, and its utilisation samples, speak in */
    uint32_t capture_is_strict; /* what crosses the border of a capture fails and breaks it */
    uint32_t sticky_errors;     /* an injected error of a kind that ends a context fails every later call in it */
    uint32_t reset_deactivates; /* cuDevicePrimaryCtxReset ends the primary context; else it begins anew */
    uint32_t free_waits;        /* cuMemFree waits for the work of its context */
    uint32_t pool_has_pieces;   /* what pools reserve is cut into pieces, which are used again in stream order */
    uint32_t managed_on_touch;  /* managed memory is on the card once it was moved there, not before */
};

struct sim_state {
    uint64_t magic;
    uint32_t abi;
    uint32_t card_count;
    char driver_version[32];
    int32_t cuda_version; /* 12020 = CUDA 12.2 */
    uint32_t device_nodes_required; /* 1: a process sees a card only if it may open /dev/nvidia<minor> */
    uint64_t pid_namespace; /* inode of the machine's own pid namespace */
    uint32_t next_host_pid;
    uint32_t slot_ceiling; /* no slot from here on was ever used: scans end here */
    uint32_t filler;
    uint32_t next_generation;
    uint64_t next_sequence;
    _Atomic uint32_t lock_word;        /* slot + 1 of the owner, LOCK_WAITERS on top */
    _Atomic uint32_t lock_steals;      /* owners found dead inside the lock */
    _Atomic uint32_t event_word;       /* futex: bumped with every XID */
    _Atomic uint32_t injections_armed; /* read without the lock by every entry, as the next one */
    _Atomic uint32_t cards_lost;
    _Atomic uint32_t dead_streams;     /* uses of a stream that is gone, or never was: an error here, anything at all with a real driver */
    uint64_t obituary_count;
    struct sim_memory_model memory;
    struct sim_time_model time;
    struct sim_rules rules;
    struct sim_injection injections[SIM_INJECTIONS_MAX];
    struct sim_obituary obituaries[SIM_OBITUARIES_MAX];
    struct sim_card cards[SIM_CARDS_MAX];
    struct sim_slot slots[SIM_SLOTS_MAX];
    struct sim_channel channels[SIM_CHANNELS_MAX];
};

#define SIM_LOCK_WAITERS UINT32_C(0x80000000)
#define SIM_SLOT_BYTE_OFFSET INT64_C(0x10000000) /* far behind the end of the file: a lock needs no byte there */
#define SIM_HOST_PID_BASE 4200000u /* above the kernel's largest pid (2^22), so that made-up ones never meet real ones */

/* A process's view of the machine. One per library that attaches; plain data, usable under any thread. */
struct sim_machine {
    struct sim_state *state;
    struct sim_slot *slot;
    uint32_t slot_index;
    int fd;
    uint32_t visible_count;
    uint32_t visible[SIM_CARDS_MAX]; /* card indices, in PCI order, that this process may use */
};

/* Path of the state file: $TENFOLD_SIM_STATE if set (and the program is not setuid), else the default. */
const char *state_path(void);

/* Maps the machine and takes a slot. 0, or -ENOENT (no such machine: "driver not loaded"), -EPROTO (other layout), -EAGAIN (all
 * slots taken), another negative errno. On failure *machine is untouched. */
int state_attach(const char *path, struct sim_machine *machine);

/* Gives memory, work and slot back. Accepts a machine that never attached. */
void state_detach(struct sim_machine *machine);

/* In a forked child: drops the inherited descriptor, so that the parent's death is seen, and forgets the mapping. */
void state_forget(struct sim_machine *machine);

/* The machine's one lock. Never held over a sleep or a callback. A dead owner's lock is stolen and the books are made true again. */
void state_lock(struct sim_machine *machine);
void state_unlock(struct sim_machine *machine);

/* With the lock: gives back what dead processes held. Returns how many were found. */
uint32_t state_reap(struct sim_machine *machine);

/* With the lock: forgets one slot and writes its obituary. */
void state_release_slot(struct sim_state *state, uint32_t slot_index, bool found_dead);

bool state_is_slot_alive(const struct sim_machine *machine, uint32_t slot_index);

/* Position among the visible cards of the one at "00000000:17:00.0", "0000:17:00.0" or "17:00.0". */
enum { SIM_NO_CARD = -1, SIM_BAD_BUS_ID = -2 };
int state_find_bus_id(const struct sim_machine *machine, const char *bus_id);

int64_t state_now_ns(void);

/* Inode of the caller's pid namespace; 0: not known. */
uint64_t state_pid_namespace(void);

/* With the lock, after a card was lost or came back. */
void state_count_lost(struct sim_state *state);

/* The injected error for this call, or 0. Counts the call; takes the lock while anything is armed. */
int32_t state_injected_error(struct sim_machine *machine, const char *symbol);

/* With the lock: records an XID on a card and wakes the waiters. */
void state_raise_xid(struct sim_state *state, uint32_t card, uint64_t xid);

#endif
