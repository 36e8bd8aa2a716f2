/* bench.h - one case of the virtual bench: tenants, their processes and the measured outcome.
 *
 * Owns:  the data that bench.c (reading cases, printing results) and host.c (what processes do) share. */
#ifndef VT_BENCH_H
#define VT_BENCH_H

#include "limiter/contention.h"
#include "limiter/gate.h"
#include "limiter/settle.h"
#include "gpu.h"
#include "random.h"

#define TENANTS 16
#define PROCESSES GPU_CONTEXTS
#define SIZES 8
#define CHANGES 512
#define WINDOWS 16384
#define NVML_WINDOWS 32768
#define PENDING 2048
#define US UINT64_C(1000)
#define MS UINT64_C(1000000)

enum style { ASYNC, SYNC };

/* What the processes of a container run, and under which quota. */
struct tenant {
    /* given */
    struct tf_limit_policy policy;
    int limited; /* 0: no hook at all */
    int priority;
    enum style style;
    uint32_t processes, streams, size_count;
    uint64_t size_ns[SIZES];
    double cv;
    uint64_t on_ns, off_ns; /* duty cycle; off 0: always on */
    uint64_t start_ns, stop_ns;
    uint64_t gap_ns; /* host work between launches */
    uint64_t launch_ns;
    uint64_t kill_ns; /* when its first process dies; 0: never */
    int nvml;
    int host; /* the host's plugin reads NVML and tells in the page */
    int one_key; /* kernels of all sizes look alike */
    uint64_t phase_ns; /* one size for so long, then the next; 0: any size at any time */
    int random_phases; /* each lasts up to twice as long, and any size follows */
    uint32_t garbage; /* garbage is written into the state so often per second */
    /* shared memory of the container */
    struct tf_limit_state state;
    /* outcome */
    uint64_t busy_ns;
    uint64_t counted_busy_ns;          /* after the warm-up */
    uint64_t used_at_warmup_ns;
    uint64_t window_busy_ns[WINDOWS];
    uint64_t nvml_busy_ns[NVML_WINDOWS];
    uint64_t nvml_seen; /* samples that the hook has read */
    uint64_t host_seen; /* samples that the host's plugin has read */
    struct tf_limit_observation told, next_told; /* what the page says, and from next_told_ns on */
    uint64_t next_told_ns;
    uint64_t last_busy_ns;
};

struct pending {
    struct tf_limit_segment segment;
    uint64_t begin_ns, end_ns; /* NEVER: not reached yet */
    int dropped;               /* its begin event was forgotten before it was reached */
    struct pending *next;
    struct pending *older; /* of the same process, whoever points to it */
};

enum waiting { RUN, BLOCKED_FULL, BLOCKED_SYNC, SLEEP, DEAD };

struct process {
    struct tenant *tenant;
    struct tf_limit_process *limit;
    uint32_t context;
    struct vt_random random;
    enum waiting waiting;
    uint64_t next_ns; /* of the launching thread, NEVER: waits for the GPU */
    uint64_t helper_ns; /* next poll of the measuring thread, NEVER: nothing pending */
    /* the launch that waits at the gate */
    int at_gate;
    uint64_t key, duration_ns;
    uint32_t stream;
    uint32_t size;         /* with random phases: the one of now, */
    uint64_t phase_end_ns; /*   until then */
    struct tf_limit_ticket ticket;
    uint64_t looked_ns; /* at what the host told */
    uint64_t worked_ns; /* when the measuring thread last had something to settle */
    /* segment whose begin event is recorded and whose end event is not */
    struct pending *open;
    struct pending *first, **last, *spare; /* what the measuring thread polls; what is free */
    struct pending *newest;                /* all of them */
    uint64_t launches, gates, waits, measured;
    uint64_t counted_busy_ns;
};

struct change {
    uint64_t at_ns;
    uint32_t tenant, limit;
};

struct parameters {
    uint64_t slice_ns, switch_ns, event_bias_ns, event_stall_ns, nvml_window_ns, nvml_lag_ns, nvml_phase_ns, poll_ns, wake_ns, launch_ns, sync_ns;
    uint64_t host_period_ns, host_jitter_ns, host_delay_ns, host_look_ns;
    double event_null, event_noise;
};

struct bench {
    struct parameters parameters;
    enum gpu_policy policy;
    uint64_t seed, warmup_ns, length_ns, window_ns, now_ns;
    struct tenant tenants[TENANTS];
    uint32_t tenant_count;
    struct process processes[PROCESSES];
    uint32_t process_count;
    struct change changes[CHANGES];
    uint32_t change_count, change_next;
    struct gpu gpu;
    struct vt_random random;
    uint64_t pressure_ns; /* next look at who works */
    uint64_t host_ns;     /* next round of the host's plugin */
    uint64_t garbage_ns;
};

/* host.c */
int host_start(struct bench *bench);
void host_stop(struct bench *bench);
void host_run_thread(struct bench *bench, struct process *process, uint64_t until_ns);
void host_run_helper(struct bench *bench, struct process *process);
void host_on_complete(void *user, uint32_t context, const struct gpu_kernel *kernel, uint64_t end_ns);
void host_kill(struct bench *bench, struct process *process);

#endif
