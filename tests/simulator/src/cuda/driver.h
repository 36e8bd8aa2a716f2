/* driver.h - what every part of the simulated libcuda shares: this process's machine, its entry check, its objects.
 *
 * Entries: each exported function opens with ENTER(name) (or ENTER_UNREADY before cuInit): refusal of uninitialised and forked
 *          processes, and failure injection, sit there and nowhere else. ENTRY writes a function that is one expression; STREAM_ENTRY
 *          and DEFAULT_STREAM_ENTRY add its twin for programs whose default stream is per thread.
 * Objects: handles are pointers to records that start with a kind; records of a kind are recycled, never unmapped, so that a stale
 *          handle is refused and not a crash.
 * Locks:   driver_lock() guards objects and the heap of this process; state_lock() comes after it, never before. */
#ifndef TENFOLD_SIM_DRIVER_H
#define TENFOLD_SIM_DRIVER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#include "../../include/cuda_abi.h"
#include "../core/memory.h"
#include "../core/state.h"
#include "../core/timeline.h"

#define CUDA_EXPORT __attribute__((visibility("default"))) CUresult

struct driver {
    struct sim_machine machine;
    _Atomic uint32_t is_ready;   /* cuInit succeeded in this process */
    _Atomic uint32_t is_inherited; /* forked from a process that used CUDA */
    _Atomic uint32_t captures_open; /* that forbid calls */
    _Atomic uint32_t streams_capturing;
    _Atomic uint32_t contexts_failed;
};
extern struct driver g_driver;

/* May this thread make the call while captures are open? capture_mode.c */
CUresult capture_mode_check(const char *symbol);

/* Slow half of ENTER. */
CUresult driver_check_entry(const char *symbol, bool needs_ready);

static inline CUresult driver_enter(const char *symbol)
{
    if (__builtin_expect(atomic_load_explicit(&g_driver.is_ready, memory_order_acquire) &&
                             !atomic_load_explicit(&g_driver.machine.state->injections_armed, memory_order_relaxed) &&
                             !atomic_load_explicit(&g_driver.machine.state->cards_lost, memory_order_relaxed) &&
                             !atomic_load_explicit(&g_driver.contexts_failed, memory_order_relaxed) &&
                             !atomic_load_explicit(&g_driver.captures_open, memory_order_relaxed),
                         1))
        return CUDA_SUCCESS;
    return driver_check_entry(symbol, true);
}

#define ENTER(symbol)                                 \
    do {                                              \
        CUresult refused_ = driver_enter(#symbol);    \
        if (refused_ != CUDA_SUCCESS)                 \
            return refused_;                          \
    } while (0)
#define ENTER_UNREADY(symbol)                                   \
    do {                                                        \
        CUresult refused_ = driver_check_entry(#symbol, false); \
        if (refused_ != CUDA_SUCCESS)                           \
            return refused_;                                    \
    } while (0)
#define REQUIRE(condition, error) \
    do {                          \
        if (!(condition))         \
            return (error);       \
    } while (0)

/* The call, or return what it failed with. */
#define TRY(call)                       \
    do {                                \
        CUresult failed_ = (call);      \
        if (failed_ != CUDA_SUCCESS)    \
            return failed_;             \
    } while (0)

#define ENTRY(symbol, parameters, call) \
    CUDA_EXPORT symbol parameters       \
    {                                   \
        ENTER(symbol);                  \
        return call;                    \
    }
/* The parameters name a `stream`; in the twin its NULL is the calling thread's own. */
#define STREAM_ENTRY(symbol, parameters, call) \
    ENTRY(symbol, parameters, call)            \
    ENTRY(symbol##_ptsz, parameters, (stream = stream_of_thread(stream), call))
/* The call names a `stream` that the parameters don't: the default one. */
#define DEFAULT_STREAM_ENTRY(symbol, parameters, call) \
    CUDA_EXPORT symbol parameters                      \
    {                                                  \
        const CUstream stream = NULL;                  \
        ENTER(symbol);                                 \
        return call;                                   \
    }                                                  \
    CUDA_EXPORT symbol##_ptds parameters               \
    {                                                  \
        const CUstream stream = CU_STREAM_PER_THREAD;  \
        ENTER(symbol##_ptds);                          \
        return call;                                   \
    }

void driver_lock(void);
void driver_unlock(void);

/* Keeps the caller's CPU for so long. Outside of the driver's lock, so that calls of several threads overlap. */
void driver_spend(int64_t time_ns);
CUresult driver_error(int negative_errno);

/* This process's share of a card's memory, under the machine's lock. Takes bytes off the card, or OUT_OF_MEMORY. */
CUresult driver_take_memory(uint32_t card, uint64_t bytes);
/* Books what programs asked for and what their blocks come to, and gives bytes back to the card. */
void driver_settle_memory(uint32_t card, int64_t requested_bytes, int64_t allocated_bytes, uint64_t give_back_bytes);
CUresult driver_cuda_version(int *ret_version); /* without cuInit */

/* visible.c: narrows the machine's visible cards to CUDA_VISIBLE_DEVICES. */
void visible_apply(struct sim_machine *machine);

/* The card behind a CUDA ordinal, honouring visibility. NULL if there is none. */
struct sim_card *driver_card(CUdevice device);
uint32_t driver_card_index(CUdevice device);
CUdevice driver_device_count(void);

enum object_kind {
    KIND_FREE = 0,
    KIND_CONTEXT = 0x43545831, /* unlike anything that a foreign pointer is likely to point to */
    KIND_STREAM,
    KIND_EVENT,
    KIND_MODULE,
    KIND_FUNCTION,
    KIND_ARRAY,
    KIND_MIPMAP,
    KIND_POOL,
    KIND_GRAPH,
    KIND_NODE,
    KIND_EXEC,
    KIND_CAPTURE,
    KIND_PHYSICAL,
    KIND_EXTERNAL,
    KIND_GREEN,
    KIND_DESCRIPTOR,
    KIND_LAST = KIND_DESCRIPTOR,
};

struct object {
    uint32_t kind;
    uint32_t filler;
    uint64_t id;
    struct object *next; /* in its list: live ones of a context, or free ones of a kind */
};

/* Zeroed record of that kind; NULL without memory. Sizes must not vary within a kind. */
void *object_new(enum object_kind kind, size_t size_bytes);
void object_free(void *object);
static inline bool object_is(const void *handle, enum object_kind kind)
{
    return (uintptr_t)handle > 4096 && ((const struct object *)handle)->kind == (uint32_t)kind;
}

struct CUctx_st {
    struct object head;
    CUdevice device;
    uint32_t card;
    uint32_t channel;
    uint32_t users; /* threads that have it current or retained it; a primary context lives while > 0 */
    bool is_primary;
    CUcontext primary; /* of a green context: whose memory and modules it uses; else NULL */
    _Atomic bool is_alive;
    _Atomic int error; /* of its work: what every later call answers; not of a green one, which has its primary's */
    _Atomic uint64_t last_ticket; /* newest work + 1 of the whole context, 0 = none */
    struct CUstream_st *legacy_stream;
    struct heap_small_block *small_block; /* heap.c */
    uint64_t epoch; /* grows when a primary context opens again: older tickets are void */
};

static inline CUcontext context_of_memory(CUcontext context)
{
    return context->primary ? context->primary : context;
}

struct CUstream_st {
    struct object head;
    CUcontext context;
    bool is_default;
    bool is_blocking; /* waits for the legacy stream, and that for it */
    _Atomic uint64_t last_ticket; /* ticket + 1, 0 = nothing submitted */
    struct capture *capture; /* graph.c; not NULL while the stream records instead of running */
    CUgraphNode *tail; /* capture.c: what the next recorded node comes after */
    size_t tail_count;
};

struct CUevent_st {
    struct object head;
    CUcontext context;
    unsigned flags;
    bool is_recorded;
    bool has_end;
    uint64_t ticket;
    uint64_t epoch;
    uint32_t channel;
    int64_t end_ns;
    struct capture *capture; /* recorded into a capturing stream */
    uint64_t capture_id;
    CUgraphNode *tail;
    size_t tail_count;
};

struct CUmod_st {
    struct object head;
    CUcontext context;
    char *text; /* PTX, zero-terminated; NULL for a binary */
    CUfunction functions;
    uint64_t reserved_bytes;
};

struct CUfunc_st {
    struct object head;
    CUmodule module;
    CUfunction next_in_module;
    char name[128];
    bool is_spin;
    unsigned first_parameter_bytes;
    /* the state of the launch interface before CUDA 4 */
    unsigned legacy_block[3];
    uint64_t legacy_parameter; /* the first one; later ones are nobody's business here */
};

/* context.c */
CUcontext context_current(void); /* NULL if this thread has none */
CUresult context_require(CUcontext *ret_context); /* INVALID_CONTEXT, or CONTEXT_IS_DESTROYED */
CUresult context_error(CUcontext context); /* why nothing works in it any more: an earlier error, or its card is gone */
CUresult context_check_call(const char *symbol); /* the same of the current one, for calls that need it */
void context_fail(CUresult error); /* the current one, if the error is of a kind that ends contexts */
void context_visit_streams(CUcontext context, void (*visit)(CUstream)); /* NULL = of all contexts */

/* stream.c */
CUresult stream_resolve(CUstream handle, CUstream *ret_stream); /* NULL, legacy and per-thread become objects */
CUresult stream_submit(CUstream stream, int64_t duration_ns, CUevent event, bool is_launch); /* blocks while the queue is full */
/* The same for work that waits: for a ticket of its own channel (ticket + 1; 0 = none), or, held, for stream_release(). */
CUresult stream_submit_waiting(CUstream stream, uint64_t after, bool is_held);
void stream_release(CUcontext context, uint64_t epoch, uint64_t ticket_after);
bool stream_has_own_order(void); /* else one queue keeps the order of all */
CUresult stream_wait_ticket(CUcontext context, uint64_t ticket_after); /* sleeps; 0 = nothing to wait for */
CUresult stream_wait_context(CUcontext context); /* for all work submitted so far */
bool stream_is_ticket_done(CUcontext context, uint64_t ticket_after);
CUresult stream_create(CUcontext context, bool is_blocking, CUstream *ret_stream);
static inline CUstream stream_of_thread(CUstream handle)
{
    return handle ? handle : CU_STREAM_PER_THREAD;
}

/* event.c */
void event_leave_queue(CUevent event); /* with state_lock(): no entry of the queue names it any more */
void event_keep_end(uint64_t cookie, uint32_t channel, uint64_t ticket, int64_t end_ns); /* with state_lock() */

#endif
