/* tenfold_region.h - the layout of a slot's two files, shared by the hook, vgpuctl and the host.
 *
 * Owns:     every offset of `config` (written by the host alone, read-only in the container) and `state` (written by the
 *           container's processes; the host reads it with pread and believes nothing).
 * Mirror:   plugins/module_utils/tenfold/region.py; tests/unit/domain/test_region.py compiles this header and compares each offset.
 * Next:     files/hook/src/slice/config_page.c reads pages, host/page_writer.c writes them, slots.c and account.c own the state, limiter/ owns the
 *           limiter bytes.
 *
 * Frozen:   the first 64 bytes of both files mean the same in every ABI version. A hook that meets a higher abi_version obeys
 *           the policy it was built with (closed) and never guesses. Reserved bytes are zero and ignored by readers.
 * Order:    little-endian, natural alignment, no bit fields, no pointers. */
#ifndef TENFOLD_REGION_H
#define TENFOLD_REGION_H

#include <stddef.h>
#include <stdint.h>

#define TENFOLD_ABI_VERSION 1u

#define TENFOLD_CONFIG_MAGIC 0x31474643464e4554ull /* "TENFCFG1" in memory order */
#define TENFOLD_STATE_MAGIC 0x315453464e4554ull    /* "TENFST1\0" in memory order */

#define TENFOLD_GPUS_MAX 16u
#define TENFOLD_SLOTS_MAX 1024u
#define TENFOLD_LANES_MAX 8u       /* operations that one process can have in flight; the last one belongs to the reaper */
#define TENFOLD_UUID_CHARS 48u     /* "GPU-" or "MIG-" and 36 characters, padded with NUL */
#define TENFOLD_LIMITER_BYTES 256u /* room for struct limit_state (limiter/limiter.h) */

/* What the hook does where it cannot enforce. */
enum tenfold_policy {
    TENFOLD_POLICY_CLOSED = 0, /* no CUDA memory: allocation fails with out of memory */
    TENFOLD_POLICY_OPEN = 1,   /* no limits; counted in the state */
};

enum tenfold_mode {
    TENFOLD_MODE_HARD = 0,    /* the core limit holds always */
    TENFOLD_MODE_ELASTIC = 1, /* the core limit holds only while another tenant works on the card */
    TENFOLD_MODE_OFF = 2,     /* no core limit */
    TENFOLD_MODE_PRIORITY = 3, /* as elastic among equals; a quarter of it while a tenant of higher priority works */
};

/* Who else works on the card, as far as the host tells; where it does not, the hook looks at NVML, which knows no priorities. */
enum tenfold_pressure {
    TENFOLD_PRESSURE_UNKNOWN = 0,
    TENFOLD_PRESSURE_NONE = 1,
    TENFOLD_PRESSURE_LOWER = 2,  /* only tenants of lower priority */
    TENFOLD_PRESSURE_HIGHER = 3, /* a tenant of higher priority */
    TENFOLD_PRESSURE_EQUAL = 4,
};

/* What of a context's own memory is charged. */
enum tenfold_overhead {
    TENFOLD_OVERHEAD_MEASURED = 0, /* what NVML shows beyond the program's allocations, at least the reserve */
    TENFOLD_OVERHEAD_RESERVED = 1, /* the reserve and nothing else */
};

enum tenfold_view {
    TENFOLD_VIEW_CLOCKS = 1u << 0,       /* NVML shows SM clocks scaled by the core limit */
    TENFOLD_VIEW_COMPUTE_MODE = 1u << 1, /* NVML shows exclusive process mode */
};

/* First 64 bytes of both files. */
struct tenfold_header {
    uint64_t magic;
    uint32_t abi_version;
    uint32_t header_bytes; /* sizeof(struct tenfold_header) of the writer */
    uint64_t file_bytes;
    uint64_t generation; /* config: of the active copy; state: counts creations of the file */
    uint32_t active;     /* config: which copy is valid, 0 or 1; state: 0 */
    uint32_t reserved32;
    uint64_t reserved[3];
};

struct tenfold_gpu_config {
    char uuid[TENFOLD_UUID_CHARS]; /* as NVML prints it */
    uint64_t memory_limit_bytes;   /* 0: no limit */
    uint64_t overhead_reserve_bytes; /* strict mode: charged to each process, before its first allocation on the card */
    uint32_t core_limit_percent;   /* 1..99; 0 or 100: no limit */
    uint32_t mode;                 /* enum tenfold_mode */
    int32_t priority;              /* 0 is the highest */
    uint32_t neighbours;           /* other slots that the host booked on this card, for people; 0: none, or not told */
    uint32_t pressure;             /* enum tenfold_pressure */
    uint32_t overhead;             /* enum tenfold_overhead */
    uint32_t reserved32[10];
};

/* One of two copies. The checksum is FNV-1a (64 bits) over the whole struct with `checksum` taken as zero. */
struct tenfold_config_copy {
    uint64_t checksum;
    uint64_t generation;
    uint32_t gpu_count;
    uint32_t policy; /* enum tenfold_policy */
    uint32_t view;   /* enum tenfold_view bits */
    uint32_t reserved32;
    uint64_t reserved[4];
    struct tenfold_gpu_config gpus[TENFOLD_GPUS_MAX];
};

#define TENFOLD_CONFIG_COPY_STRIDE 4096u
#define TENFOLD_CONFIG_COPY_OFFSET(index) (4096u + (index) * TENFOLD_CONFIG_COPY_STRIDE)
#define TENFOLD_CONFIG_BYTES 12288u

/* GPU time of all processes of the container between two of NVML's samples, as the host has seen it. Between the header and the copies, in
 * entries that belong to no card: the newest sound one with the card's UUID counts, so that no order of cards can mislead. It is no part of a
 * generation: a word a second must not make every program read its quota again. The checksum is FNV-1a (64 bits) over the entry with
 * `checksum` taken as zero; what fails it (zeros, half a write) tells nothing. */
struct tenfold_busy_window {
    uint64_t checksum;
    unsigned char uuid[16]; /* the 32 hex digits of the card's UUID */
    uint64_t from_ns;       /* CLOCK_MONOTONIC */
    uint64_t to_ns;
    uint64_t busy_ns; /* at most the window's length */
    uint64_t reserved[2];
};

#define TENFOLD_BUSY_OFFSET 1024u
#define TENFOLD_BUSY_WINDOWS 16u /* as many as cards */

/* Per card, shared by all processes of the container. The order of cards is the configuration page's at creation. */
struct tenfold_gpu_state {
    char uuid[TENFOLD_UUID_CHARS];
    uint64_t used;        /* tagged word: bytes in use and who changed them last, see below */
    uint64_t gpu_time_us; /* measured GPU time of all processes, ever */
    uint64_t refusals;    /* allocations refused by the limit */
    uint64_t probe;       /* until when a process looks for itself with memory that it gives back at once (src/probe.h) */
    uint64_t reserved0[6];
    unsigned char limiter[TENFOLD_LIMITER_BYTES]; /* struct limit_state */
    uint64_t reserved1[16];
};

/* A process. A slot never moves; `identity` decides who owns it:
 * bits 0-1 state (enum tenfold_slot_state), 2-23 pid, 24-51 start time in clock ticks (low 28 bits), 52-63 pid namespace inode
 * (low 12 bits). While a dead process is being reaped the word holds the reaper's identity with state REAPING. */
struct tenfold_slot {
    uint64_t identity;
    uint64_t start_ticks; /* field 22 of /proc/<pid>/stat; informative, as is all up to lanes */
    uint64_t pid_namespace;
    uint32_t pid; /* in that namespace */
    uint32_t flags;
    uint64_t attached_ns; /* CLOCK_MONOTONIC */
    uint64_t driver_pid;  /* as NVML names the process, once it has found out; 0: not known */
    uint64_t overhead_bytes; /* what of `used`, summed over cards, is no allocation of the program: contexts, modules; for people */
    uint64_t reserved[1];
    uint64_t lanes[TENFOLD_LANES_MAX];    /* journal words, see below */
    uint64_t used[TENFOLD_GPUS_MAX];      /* tagged words: bytes of this process per card */
};

enum tenfold_slot_state {
    TENFOLD_SLOT_FREE = 0,
    TENFOLD_SLOT_LIVE = 1,
    TENFOLD_SLOT_REAPING = 2,
};

/* Tagged word: the lower 42 bits are bytes (4 TiB), above them the operation that wrote them: lane (3 bits), slot (10),
 * sequence (9, never 0 for a real operation). A writer first marks the previous operation as done in its journal word, then
 * replaces the word by compare-and-swap; so whoever finds a dead process knows for each of its operations whether it happened. */
#define TENFOLD_BYTES_BITS 42u
#define TENFOLD_BYTES_MASK ((1ull << TENFOLD_BYTES_BITS) - 1u)
#define TENFOLD_TAG_LANE_SHIFT 42u
#define TENFOLD_TAG_SLOT_SHIFT 45u
#define TENFOLD_TAG_SEQUENCE_SHIFT 55u

/* Journal word of a lane: 0-41 bytes, 42-45 card, 46 sign (1: release), 47-48 phase, 49-54 zero, 55-63 sequence. */
#define TENFOLD_LANE_GPU_SHIFT 42u
#define TENFOLD_LANE_RELEASE_BIT (1ull << 46)
#define TENFOLD_LANE_PHASE_SHIFT 47u
#define TENFOLD_LANE_SEQUENCE_SHIFT 55u

enum tenfold_lane_phase {
    TENFOLD_LANE_IDLE = 0,    /* nothing pending, or the operation is complete */
    TENFOLD_LANE_PENDING = 1, /* announced: the card's word may or may not hold it */
    TENFOLD_LANE_CARD = 2,    /* the card's word holds it; the slot's word may or may not */
    TENFOLD_LANE_DONE = 3,    /* both hold it */
};

#define TENFOLD_STATE_GPUS_OFFSET 4096u
#define TENFOLD_STATE_SLOTS_OFFSET (TENFOLD_STATE_GPUS_OFFSET + TENFOLD_GPUS_MAX * 512u)
#define TENFOLD_STATE_BYTES (TENFOLD_STATE_SLOTS_OFFSET + TENFOLD_SLOTS_MAX * 256u)

/* The whole state file. Counters after the header are statistics that any process may add to. */
struct tenfold_state {
    struct tenfold_header header;
    uint64_t slots_high_water; /* slots at and above this index were never used */
    uint64_t open_fallbacks;   /* processes that ran without limits by the open policy */
    uint64_t unknown_entry_points; /* cuGetProcAddress answers that no exported symbol matched */
    uint64_t reaped;               /* dead processes whose memory was given back */
    unsigned char reserved[TENFOLD_STATE_GPUS_OFFSET - 64u - 32u];
    struct tenfold_gpu_state gpus[TENFOLD_GPUS_MAX];
    struct tenfold_slot slots[TENFOLD_SLOTS_MAX];
};

#ifndef __cplusplus
_Static_assert(sizeof(struct tenfold_header) == 64, "frozen header");
_Static_assert(sizeof(struct tenfold_gpu_config) == 128, "layout");
_Static_assert(sizeof(struct tenfold_config_copy) == 64 + 128 * TENFOLD_GPUS_MAX, "layout");
_Static_assert(sizeof(struct tenfold_busy_window) == 64, "a cache line");
_Static_assert(TENFOLD_BUSY_OFFSET + sizeof(struct tenfold_busy_window) * TENFOLD_BUSY_WINDOWS <= TENFOLD_CONFIG_COPY_OFFSET(0), "layout");
_Static_assert(sizeof(struct tenfold_gpu_state) == 512, "layout");
_Static_assert(offsetof(struct tenfold_gpu_state, limiter) % 64 == 0, "the limiter has its own cache lines");
_Static_assert(sizeof(struct tenfold_slot) == 256, "layout");
_Static_assert(offsetof(struct tenfold_state, gpus) == TENFOLD_STATE_GPUS_OFFSET, "layout");
_Static_assert(offsetof(struct tenfold_state, slots) == TENFOLD_STATE_SLOTS_OFFSET, "layout");
_Static_assert(sizeof(struct tenfold_state) == TENFOLD_STATE_BYTES, "layout");
#endif

#endif
