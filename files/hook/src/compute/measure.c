/* measure.c - what launches really cost.
 *
 * Owns:    per card: this process's half of the limiter, pairs of events in flight, one clock for them; the helper thread.
 * Clock:   cuEventElapsedTime returns float milliseconds, exact enough only over short times. So each measured end becomes the reference for
 *          the next begin; the first of a context is anchored to CLOCK_MONOTONIC.
 * Threads: `lock` guards the queue and every use of an event but recording it: that may wait in the driver for room in the card's queue, which
 *          another thread may have to make, so meanwhile the event is its recorder's alone. The launch path takes the lock only where the
 *          limiter asks for an event.
 * Cost:    the helper sleeps until the time at which the limiter's estimate says that the head of the queue is done.
 * Next:    the limiter decides, hooks/launch.c calls. */
#include "compute/measure.h"

#include "base/clock.h"
#include "base/parts.h"
#include "base/sync.h"
#include "compute/neighbours.h"
#include "driver/helper.h"
#include "driver/nested.h"
#include "limiter/contention.h"
#include "limiter/gate.h"
#include "limiter/settle.h"
#include "slice/device.h"

#include <limits.h>
#include <sched.h>
#include <string.h>
#include <time.h>

enum { QUEUE_MAX = 64, SPARE_EVENTS = 32, CALIBRATIONS = 4, LOSE_TRIES = 16, LOSE_TRIES_MAX = 1000 };
#define NAP_MIN_NS 50000ull
#define NAP_MAX_NS 2000000ull
#define LINGER_NS 4000000000ull /* after its last work a card is still watched: the word on that comes a second later and is weighed when it is settled */
#define END_PATIENCE_NS 2000000000ull /* how long the end of a context waits for its work to be measured: the driver itself waits for it, as a rule */
#define CLOCK_GAP_NS 5000000000ull /* beyond this an event of the past is no good reference any more */

struct stretch {
    CUevent begin, end;
    CUevent again; /* right behind `end`: what two events measure without work; of a card's first stretches only */
    CUcontext context;
    struct tf_limit_segment segment;
    uint64_t expected_ns; /* when it should be done */
    bool is_used;
}; /* without an end it is lost, and only the limiter has still to be told */

struct spare {
    CUevent event;
    CUcontext context;
};

/* A thread that is in the driver with an event, on its own stack. */
struct recorder {
    CUcontext context;
    CUstream stream;
    struct recorder *next;
};

struct card {
    struct tf_lock lock;
    struct stretch queue[QUEUE_MAX];
    uint32_t first;
    _Atomic uint32_t count; /* a ring; settled out of order, removed in order; read without the lock to see whether there is work */
    _Atomic(CUevent) open_begin; /* NULL: no stretch is open; likewise */
    CUcontext open_context;
    struct tf_stream open_stream;
    uint64_t open_stream_number;
    uint64_t stretches, open_stretch; /* numbers: the last that was begun, whose the begin event is */
    uint64_t open_batch;              /* the last that another launch is to end */
    uint64_t expected_end_ns;
    CUevent reference;
    CUcontext reference_context;
    uint64_t reference_ns;
    struct spare spares[SPARE_EVENTS];
    uint32_t spare_count;
    uint32_t calibrations;
    struct recorder *recorders;
    uint64_t worked_ns; /* the helper's: when it last had something to settle; 0: never */
};

struct tf_limit_process tf_limit_processes[TENFOLD_GPUS_MAX];
_Atomic uint32_t tf_open_captures;
static struct card cards[TENFOLD_GPUS_MAX];

static struct tf_limit_state *limiter_of(struct tf_container *container, int gpu)
{
    return (struct tf_limit_state *)container->state->gpus[gpu].limiter;
}

/* The host's word, which knows priorities, before NVML's. */
static uint32_t pressure_of(struct tf_container *container, int gpu)
{
    switch (atomic_load_explicit(&container->quotas[gpu].pressure, memory_order_relaxed)) {
    case TENFOLD_PRESSURE_NONE: return TF_LIMIT_PRESSURE_NONE;
    case TENFOLD_PRESSURE_LOWER: return TF_LIMIT_PRESSURE_LOWER;
    case TENFOLD_PRESSURE_HIGHER: return TF_LIMIT_PRESSURE_HIGHER;
    case TENFOLD_PRESSURE_EQUAL: return TF_LIMIT_PRESSURE_EQUAL;
    default: return tf_neighbours_pressure(gpu, tf_now_ns());
    }
}

static struct tf_limit_policy policy_of(struct tf_container *container, int gpu)
{
    struct tf_quota *quota = &container->quotas[gpu];
    tf_container_refresh(container);
    return (struct tf_limit_policy){
        .limit_percent = atomic_load_explicit(&quota->core_limit_percent, memory_order_relaxed),
        .mode = atomic_load_explicit(&quota->mode, memory_order_relaxed),
        .pressure = pressure_of(container, gpu),
    };
}

/* --- contexts that may be ending ------------------------------------------------------------------------------------------------- */

enum { HELD_MAX = 8 };
static _Atomic(CUcontext) held[HELD_MAX]; /* a context whose end another thread is in: its events may go at any moment */

static bool is_held(CUcontext context)
{
    for (int index = 0; index < HELD_MAX; index++)
        if (context && atomic_load(&held[index]) == context)
            return true;
    return false;
}

/* --- events; all with the card's lock ------------------------------------------------------------------------------------------ */

static CUevent take_event(struct card *card, const struct tf_cuda *cuda, CUcontext context)
{
    CUevent event = NULL;
    for (uint32_t index = 0; index < card->spare_count; index++) {
        if (card->spares[index].context != context)
            continue;
        event = card->spares[index].event;
        card->spares[index] = card->spares[--card->spare_count];
        return event;
    }
    return cuda->cuEventCreate(&event, CU_EVENT_DEFAULT) == CUDA_SUCCESS ? event : NULL;
}

static void give_event(struct card *card, const struct tf_cuda *cuda, CUevent event, CUcontext context)
{
    if (!event)
        return;
    if (card->spare_count < SPARE_EVENTS)
        card->spares[card->spare_count++] = (struct spare){event, context};
    else
        cuda->cuEventDestroy_v2(event);
}

/* A default stream that cannot tell, because another stream captures, may not be touched either. */
bool tf_stream_captures(const struct tf_cuda *cuda, struct tf_stream stream)
{
    if (TF_LIKELY(!atomic_load_explicit(&tf_open_captures, memory_order_relaxed)))
        return false;
    int status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult (*ask)(CUstream, int *) = stream.is_per_thread && cuda->cuStreamIsCapturing_ptsz ? cuda->cuStreamIsCapturing_ptsz : cuda->cuStreamIsCapturing;
    return ask && (ask(stream.handle, &status) != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE);
}

/* Without the lock, which the caller has before and after: all that it read of the card may have changed. */
static bool record(struct card *card, const struct tf_cuda *cuda, CUevent event, CUcontext context, struct tf_stream stream)
{
    CUresult (*record_on)(CUevent, CUstream) = stream.is_per_thread && cuda->cuEventRecord_ptsz ? cuda->cuEventRecord_ptsz : cuda->cuEventRecord;
    if (!event || is_held(context))
        return false;
    struct recorder self = {context, stream.handle, card->recorders}, **link = &card->recorders;
    card->recorders = &self;
    tf_lock_release(&card->lock);
    bool is_recorded = !tf_stream_captures(cuda, stream) && record_on(event, stream.handle) == CUDA_SUCCESS;
    tf_lock_acquire(&card->lock);
    while (*link != &self)
        link = &(*link)->next;
    *link = self.next;
    return is_recorded;
}

static bool is_recorded_in(const struct card *card, CUcontext context, CUstream stream)
{
    const struct recorder *recorder = card->recorders;
    while (recorder && recorder->context != context && (!stream || recorder->stream != stream))
        recorder = recorder->next;
    return recorder;
}

/* Takes the lock when no thread is in the driver with an event of the context, or on the stream (NULL: whichever), any more. One that waits there
 * is waited for up to a bound. */
static void lock_when_unrecorded(struct card *card, CUcontext context, CUstream stream)
{
    const struct timespec nap = {.tv_nsec = NAP_MIN_NS};
    tf_lock_acquire(&card->lock);
    for (uint64_t began = tf_now_ns(); is_recorded_in(card, context, stream) && tf_now_ns() - began < END_PATIENCE_NS;) {
        tf_lock_release(&card->lock);
        nanosleep(&nap, NULL);
        tf_lock_acquire(&card->lock);
    }
}

static void drop_open(struct card *card, const struct tf_cuda *cuda)
{
    give_event(card, cuda, card->open_begin, card->open_context);
    card->open_begin = NULL;
}

static void wake_waiters(struct tf_container *container, int gpu, int what)
{
    if (what & TF_LIMIT_WAKE)
        syscall(SYS_futex, &limiter_of(container, gpu)->wake_word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* false: another thread is in a short critical part of the limiter, try again. */
static bool lose(struct tf_container *container, int gpu, const struct tf_limit_segment *segment)
{
    int what = tf_limit_lose(limiter_of(container, gpu), &tf_limit_processes[gpu], segment);
    if (what == TF_LIMIT_RETRY)
        return false;
    wake_waiters(container, gpu, what);
    return true;
}

static bool lose_within(struct tf_container *container, int gpu, const struct tf_limit_segment *segment, int tries)
{
    while (tries-- > 0) {
        if (lose(container, gpu, segment))
            return true;
        sched_yield();
    }
    return false;
}

/* --- the launch's side --------------------------------------------------------------------------------------------------------- */

/* One more event right behind the end, while the work before it most likely runs. */
static CUevent record_again(struct card *card, const struct tf_cuda *cuda, CUcontext context, struct tf_stream stream)
{
    CUevent again = card->calibrations < CALIBRATIONS ? take_event(card, cuda, context) : NULL;
    card->calibrations += again != NULL;
    if (record(card, cuda, again, context, stream))
        return again;
    give_event(card, cuda, again, context);
    return NULL;
}

/* A stretch is done being launched: into the queue, measured or (no event, no room) lost. Another thread may have begun its own meanwhile: then
 * the begin event is that one's, and stays. */
static void enqueue(struct tf_container *container, const struct tf_cuda *cuda, int gpu, const struct tf_limit_segment *segment, uint64_t number,
    bool is_launched_now)
{
    struct card *card = &cards[gpu];
    struct stretch stretch = {.context = card->open_context, .segment = *segment, .is_used = true};
    struct tf_stream stream = card->open_stream;
    if (card->open_begin && card->open_stretch == number) {
        stretch.begin = card->open_begin;
        card->open_begin = NULL;
        if (tf_stream_number(stream) == card->open_stream_number) /* else another thread has begun it on its own default stream */
            stretch.end = take_event(card, cuda, stretch.context);
    }
    bool is_recorded = record(card, cuda, stretch.end, stretch.context, stream);
    if (is_recorded && is_launched_now)
        stretch.again = record_again(card, cuda, stretch.context, stream);
    if (!is_recorded || card->count == QUEUE_MAX) {
        give_event(card, cuda, stretch.begin, stretch.context);
        give_event(card, cuda, stretch.end, stretch.context);
        give_event(card, cuda, stretch.again, stretch.context);
        stretch.begin = stretch.end = stretch.again = NULL;
        bool is_full = card->count == QUEUE_MAX; /* and the limiter stays busy: then the segment counts as under way until its process ends */
        if (lose_within(container, gpu, segment, is_full ? LOSE_TRIES_MAX : LOSE_TRIES) || is_full)
            return; /* else the helper's next round tells the limiter */
    }
    uint64_t now = tf_now_ns();
    if (stretch.end)
        card->expected_end_ns = (card->expected_end_ns > now ? card->expected_end_ns : now) + segment->charged_ns;
    stretch.expected_ns = stretch.end ? card->expected_end_ns : now;
    card->queue[(card->first + card->count++) % QUEUE_MAX] = stretch;
    tf_helper_wake();
}

static bool is_open_in(struct card *card, CUcontext context)
{
    tf_lock_acquire(&card->lock);
    bool is_open = card->open_begin && card->open_context == context;
    tf_lock_release(&card->lock);
    return is_open;
}

/* NULL: of any context. */
static void close_open(struct tf_container *container, const struct tf_cuda *cuda, CUcontext context)
{
    for (uint32_t gpu = 0; gpu < container->gpu_count; gpu++) {
        struct tf_limit_segment segment;
        if (!cards[gpu].open_begin || (context && !is_open_in(&cards[gpu], context))
            || !tf_limit_close(&tf_limit_processes[gpu], tf_now_ns(), &segment))
            continue;
        tf_lock_acquire(&cards[gpu].lock);
        enqueue(container, cuda, (int)gpu, &segment, cards[gpu].open_batch, false);
        tf_lock_release(&cards[gpu].lock);
    }
}

void tf_measure_close(struct tf_container *container, const struct tf_cuda *cuda) { close_open(container, cuda, NULL); }

void tf_capture_begin(struct tf_container *container, const struct tf_cuda *cuda)
{
    atomic_fetch_add(&tf_open_captures, 1);
    if (atomic_load_explicit(&container->has_core_limits, memory_order_relaxed))
        tf_measure_close(container, cuda);
}

CUresult tf_capture_begun(CUresult result)
{
    if (result != CUDA_SUCCESS)
        atomic_fetch_sub(&tf_open_captures, 1);
    return result;
}

CUresult tf_capture_ended(const struct tf_cuda *cuda, struct tf_stream stream, bool has_captured, CUresult result)
{
    if (has_captured && !tf_stream_captures(cuda, stream)) /* also one that was broken; not one that another thread has to end */
        atomic_fetch_sub(&tf_open_captures, 1);
    return result;
}

void tf_measure_leave_stream(struct tf_container *container, const struct tf_cuda *cuda, CUstream stream)
{
    for (uint32_t gpu = 0; gpu < container->gpu_count; gpu++) {
        struct card *card = &cards[gpu];
        lock_when_unrecorded(card, NULL, stream);
        if (card->open_begin && card->open_stream.handle == stream)
            drop_open(card, cuda);
        tf_lock_release(&card->lock);
    }
}

static void wait_for_credit(struct tf_container *container, int gpu, const struct tf_limit_ticket *ticket)
{
    uint64_t now = tf_now_ns();
    if (ticket->wait_until_ns <= now)
        return;
    uint64_t left_ns = ticket->wait_until_ns - now;
    struct timespec left = {(time_t)(left_ns / 1000000000u), (long)(left_ns % 1000000000u)};
    syscall(SYS_futex, &limiter_of(container, gpu)->wake_word, FUTEX_WAIT, ticket->wake_seen, &left, NULL, 0);
}

static void pass_gate(struct tf_launch *launch, uint64_t key)
{
    struct tf_container *container = launch->container;
    struct tf_limit_process *process = &tf_limit_processes[launch->gpu];
    uint64_t stream = tf_stream_number(launch->stream);
    if (tf_limit_enter(process, key, stream, &launch->ticket))
        return;
    for (;;) {
        struct tf_limit_policy policy = policy_of(container, launch->gpu);
        if (tf_limit_gate(limiter_of(container, launch->gpu), process, &policy, key, stream, tf_now_ns(), &launch->ticket) == TF_LIMIT_GO)
            return;
        tf_measure_close(container, launch->cuda);
        wait_for_credit(container, launch->gpu, &launch->ticket);
    }
}

bool tf_launch_begin(struct tf_launch *launch, struct tf_container *container, const struct tf_cuda *cuda, uint64_t key, struct tf_stream stream)
{
    /* field by field: the ticket is large, and tf_limit_enter() fills what is read of it */
    launch->container = container;
    launch->cuda = cuda;
    launch->stream = stream;
    launch->gpu = -1;
    launch->stretch = 0;
    launch->ticket.flags = 0;
    int gpu = tf_device_of_context(container, cuda, &launch->context);
    if (gpu < 0 || tf_is_nested() || tf_stream_captures(cuda, stream) || tf_helper_has_ended())
        return false;
    uint32_t limit_percent = atomic_load_explicit(&container->quotas[gpu].core_limit_percent, memory_order_relaxed);
    if (limit_percent == 0 || atomic_load_explicit(&container->quotas[gpu].mode, memory_order_relaxed) == TENFOLD_MODE_OFF)
        return false;
    launch->gpu = gpu;
    pass_gate(launch, key);
    return launch->ticket.flags & TF_LIMIT_BEGIN;
}

void tf_launch_record(struct tf_launch *launch)
{
    struct card *card = &cards[launch->gpu];
    CUcontext context = launch->context;
    tf_lock_acquire(&card->lock);
    drop_open(card, launch->cuda);
    CUevent event = context ? take_event(card, launch->cuda, context) : NULL;
    if (record(card, launch->cuda, event, context, launch->stream)) {
        drop_open(card, launch->cuda); /* another thread's, of meanwhile */
        card->open_begin = event;
        card->open_context = context;
        card->open_stream = launch->stream;
        card->open_stream_number = tf_stream_number(launch->stream);
        card->open_stretch = launch->stretch = ++card->stretches;
        if (!(launch->ticket.flags & TF_LIMIT_END))
            card->open_batch = launch->stretch;
    } else {
        give_event(card, launch->cuda, event, context);
    }
    tf_lock_release(&card->lock);
}

CUresult tf_launch_end(struct tf_launch *launch, CUresult result)
{
    if (launch->gpu < 0)
        return result;
    struct card *card = &cards[launch->gpu];
    if (result != CUDA_SUCCESS) {
        tf_limit_cancel(&tf_limit_processes[launch->gpu], &launch->ticket);
        if (launch->ticket.flags & TF_LIMIT_BEGIN) {
            tf_lock_acquire(&card->lock);
            if (card->open_stretch == launch->stretch)
                drop_open(card, launch->cuda);
            tf_lock_release(&card->lock);
        }
    } else if (launch->ticket.flags & TF_LIMIT_END) {
        tf_lock_acquire(&card->lock);
        enqueue(launch->container, launch->cuda, launch->gpu, &launch->ticket.segment,
            launch->ticket.flags & TF_LIMIT_BEGIN ? launch->stretch : card->open_batch, true);
        tf_lock_release(&card->lock);
    }
    return result;
}

/* --- the helper's side --------------------------------------------------------------------------------------------------------- */

static bool elapsed_ns(const struct tf_cuda *cuda, CUevent begin, CUevent end, uint64_t *ret_ns)
{
    float milliseconds = 0;
    if (cuda->cuEventElapsedTime(&milliseconds, begin, end) != CUDA_SUCCESS)
        return false;
    *ret_ns = milliseconds > 0 ? (uint64_t)((double)milliseconds * 1e6) : 0;
    return true;
}

/* When the stretch began on the card's one clock. */
static uint64_t begin_on_clock(struct card *card, const struct tf_cuda *cuda, const struct stretch *stretch, uint64_t duration_ns, uint64_t now)
{
    uint64_t since_ns, arrived_ns = now > duration_ns ? now - duration_ns : 0;
    float milliseconds = 0;
    if (!card->reference || card->reference_context != stretch->context || now - card->reference_ns > CLOCK_GAP_NS
        || cuda->cuEventElapsedTime(&milliseconds, card->reference, stretch->begin) != CUDA_SUCCESS)
        return arrived_ns;
    /* negative: it began before the reference ended, on another stream */
    since_ns = (uint64_t)((double)(milliseconds < 0 ? -milliseconds : milliseconds) * 1e6);
    uint64_t began_ns = milliseconds < 0 ? card->reference_ns - since_ns : card->reference_ns + since_ns;
    return began_ns < arrived_ns ? began_ns : arrived_ns; /* never in the future */
}

/* false: the limiter is busy in another thread, ask again. */
static bool settle(struct tf_container *container, const struct tf_cuda *cuda, int gpu, struct stretch *stretch)
{
    struct card *card = &cards[gpu];
    uint64_t duration_ns, now = tf_now_ns();
    struct tf_limit_policy policy = policy_of(container, gpu);
    if (!elapsed_ns(cuda, stretch->begin, stretch->end, &duration_ns))
        return lose(container, gpu, &stretch->segment);
    uint64_t overhead_ns;
    if (stretch->again && elapsed_ns(cuda, stretch->end, stretch->again, &overhead_ns))
        tf_limit_observe_event_overhead(&tf_limit_processes[gpu], overhead_ns);
    uint64_t began_ns = begin_on_clock(card, cuda, stretch, duration_ns, now);
    int what = tf_limit_settle(limiter_of(container, gpu), &tf_limit_processes[gpu], &policy, &stretch->segment, began_ns, began_ns + duration_ns, now);
    if (what == TF_LIMIT_RETRY)
        return false;
    wake_waiters(container, gpu, what);
    if (!is_held(card->reference_context)) /* else it is left to the end of its context */
        give_event(card, cuda, card->reference, card->reference_context);
    card->reference = stretch->end;
    card->reference_context = stretch->context;
    card->reference_ns = began_ns + duration_ns;
    stretch->end = NULL;
    uint64_t used_ns = atomic_load_explicit(&limiter_of(container, gpu)->used_ns, memory_order_relaxed);
    __atomic_store_n(&container->state->gpus[gpu].gpu_time_us, used_ns / 1000u, __ATOMIC_RELAXED);
    return true;
}

/* Looks at one stretch; true: it is dealt with. */
static bool poll_stretch(struct tf_container *container, const struct tf_cuda *cuda, int gpu, struct stretch *stretch)
{
    CUcontext popped;
    if (!stretch->end || cuda->cuCtxPushCurrent_v2(stretch->context) != CUDA_SUCCESS)
        return lose(container, gpu, &stretch->segment);
    CUresult result = cuda->cuEventQuery(stretch->end);
    bool is_done = result != CUDA_ERROR_NOT_READY;
    if (result == CUDA_SUCCESS)
        is_done = settle(container, cuda, gpu, stretch);
    else if (is_done)
        is_done = lose(container, gpu, &stretch->segment);
    cuda->cuCtxPopCurrent_v2(&popped);
    return is_done;
}

static void retire(struct card *card, const struct tf_cuda *cuda, struct stretch *stretch)
{
    give_event(card, cuda, stretch->begin, stretch->context);
    give_event(card, cuda, stretch->end, stretch->context);
    give_event(card, cuda, stretch->again, stretch->context);
    *stretch = (struct stretch){.is_used = false};
    while (card->count && !card->queue[card->first].is_used) {
        card->first = (card->first + 1) % QUEUE_MAX;
        card->count--;
    }
}

/* One round over a card's queue. Returns nanoseconds until the next is worth it, UINT64_MAX for an empty queue. */
static uint64_t poll_card(struct tf_container *container, const struct tf_cuda *cuda, int gpu)
{
    struct card *card = &cards[gpu];
    uint64_t nap_ns = UINT64_MAX;
    tf_lock_acquire(&card->lock);
    for (uint32_t index = 0, count = card->count, first = card->first; index < count; index++) {
        struct stretch *stretch = &card->queue[(first + index) % QUEUE_MAX];
        if (!stretch->is_used || is_held(stretch->context))
            continue;
        if (poll_stretch(container, cuda, gpu, stretch)) {
            retire(card, cuda, stretch);
            continue;
        }
        uint64_t now = tf_now_ns(), left_ns = stretch->expected_ns > now ? stretch->expected_ns - now : stretch->segment.charged_ns / 16;
        left_ns = left_ns < NAP_MIN_NS ? NAP_MIN_NS : left_ns > NAP_MAX_NS ? NAP_MAX_NS : left_ns;
        nap_ns = left_ns < nap_ns ? left_ns : nap_ns;
    }
    tf_lock_release(&card->lock);
    return nap_ns;
}

static uint64_t poll(void)
{
    struct tf_container *container = tf_container();
    const struct tf_cuda *cuda = tf_cuda();
    uint64_t nap_ns = UINT64_MAX;
    if (!cuda || atomic_load(&container->stance) != TF_ENFORCED)
        return nap_ns;
    for (uint32_t gpu = 0; gpu < container->gpu_count; gpu++) {
        struct card *card = &cards[gpu];
        bool has_work = card->count != 0;
        if (!has_work && !card->worked_ns)
            continue;
        uint64_t card_nap_ns = has_work ? poll_card(container, cuda, (int)gpu) : UINT64_MAX, now = tf_now_ns();
        if (has_work)
            card->worked_ns = now;
        else if (now - card->worked_ns > LINGER_NS)
            card->worked_ns = 0;
        tf_neighbours_observe(container, cuda, (int)gpu, &tf_limit_processes[gpu], has_work, now);
        if (card->worked_ns && card_nap_ns > TF_NEIGHBOURS_LOOK_NS)
            card_nap_ns = TF_NEIGHBOURS_LOOK_NS;
        nap_ns = card_nap_ns < nap_ns ? card_nap_ns : nap_ns;
    }
    return nap_ns;
}

/* --- the end of contexts and processes ------------------------------------------------------------------------------------------ */

static void forget_on(struct tf_container *container, int gpu, CUcontext context)
{
    struct card *card = &cards[gpu];
    if (card->open_begin && (!context || card->open_context == context))
        card->open_begin = NULL;
    if (card->reference && (!context || card->reference_context == context))
        card->reference = NULL;
    for (uint32_t index = 0; index < card->spare_count;) {
        if (!context || card->spares[index].context == context)
            card->spares[index] = card->spares[--card->spare_count];
        else
            index++;
    }
    for (uint32_t index = 0, count = card->count, first = card->first; index < count; index++) {
        struct stretch *stretch = &card->queue[(first + index) % QUEUE_MAX];
        if (!stretch->is_used || (context && stretch->context != context))
            continue;
        stretch->begin = stretch->end = stretch->again = NULL; /* the driver destroys them with the context */
        stretch->context = NULL;
        if (lose(container, gpu, &stretch->segment))
            retire(card, NULL, stretch);
    }
}

/* No event of it is used again; what is under way is lost, and its estimate stands. */
static void forget(struct tf_container *container, CUcontext context)
{
    for (uint32_t gpu = 0; gpu < container->gpu_count; gpu++) {
        lock_when_unrecorded(&cards[gpu], context, NULL);
        forget_on(container, (int)gpu, context);
        tf_lock_release(&cards[gpu].lock);
    }
}

static bool has_work_of(const struct tf_container *container, CUcontext context)
{
    bool is_any = false;
    for (uint32_t gpu = 0; gpu < container->gpu_count; gpu++) {
        struct card *card = &cards[gpu];
        tf_lock_acquire(&card->lock);
        is_any = is_any || (card->open_begin && card->open_context == context);
        for (uint32_t index = 0; index < card->count; index++) {
            const struct stretch *stretch = &card->queue[(card->first + index) % QUEUE_MAX];
            is_any = is_any || (stretch->is_used && stretch->end && stretch->context == context);
        }
        tf_lock_release(&card->lock);
    }
    return is_any;
}

/* What the helper does, by the thread that needs it now, with the helper's right to ask for events while the program captures. */
static void settle_what_is_done(struct tf_container *container, const struct tf_cuda *cuda)
{
    int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    bool is_relaxed = cuda->cuThreadExchangeStreamCaptureMode && cuda->cuThreadExchangeStreamCaptureMode(&mode) == CUDA_SUCCESS;
    for (uint32_t gpu = 0; gpu < container->gpu_count; gpu++)
        if (cards[gpu].count)
            poll_card(container, cuda, (int)gpu);
    if (is_relaxed)
        cuda->cuThreadExchangeStreamCaptureMode(&mode);
}

/* Measures the work of a context as far as it is done, or comes to its end within `patience_ns`. */
static void settle_work_of(struct tf_container *container, const struct tf_cuda *cuda, CUcontext context, uint64_t patience_ns)
{
    CUcontext popped;
    if (!has_work_of(container, context) || tf_helper_has_ended() || cuda->cuCtxPushCurrent_v2(context) != CUDA_SUCCESS)
        return;
    close_open(container, cuda, context);
    cuda->cuCtxPopCurrent_v2(&popped);
    uint64_t began = tf_now_ns(), nap_ns = NAP_MIN_NS;
    for (;;) {
        settle_what_is_done(container, cuda);
        if (tf_now_ns() - began >= patience_ns || !has_work_of(container, context))
            return;
        const struct timespec nap = {.tv_nsec = (long)nap_ns};
        nanosleep(&nap, NULL);
        nap_ns = 2 * nap_ns < NAP_MAX_NS ? 2 * nap_ns : NAP_MAX_NS;
    }
}

void tf_measure_end(CUcontext context)
{
    struct tf_container *container = tf_container();
    const struct tf_cuda *cuda = tf_cuda();
    if (!cuda || atomic_load(&container->stance) != TF_ENFORCED)
        return;
    settle_work_of(container, cuda, context, END_PATIENCE_NS);
    forget(container, context);
}

void tf_measure_hold(CUcontext context)
{
    struct tf_container *container = tf_container();
    const struct tf_cuda *cuda = tf_cuda();
    if (!cuda || atomic_load(&container->stance) != TF_ENFORCED)
        return;
    settle_work_of(container, cuda, context, 0);
    for (int index = 0; index < HELD_MAX; index++) {
        CUcontext free = NULL;
        if (!atomic_compare_exchange_strong(&held[index], &free, context))
            continue;
        for (uint32_t gpu = 0; gpu < container->gpu_count; gpu++) { /* who uses an event of it now is waited for */
            lock_when_unrecorded(&cards[gpu], context, NULL);
            tf_lock_release(&cards[gpu].lock);
        }
        return;
    }
    forget(container, context); /* so many ends at once: it may go on, but what is under way is not measured */
}

void tf_measure_resume(CUcontext context, bool has_ended)
{
    struct tf_container *container = tf_container();
    if (atomic_load(&container->stance) != TF_ENFORCED)
        return;
    if (has_ended)
        forget(container, context);
    for (int index = 0; index < HELD_MAX; index++) {
        CUcontext expected = context;
        if (atomic_compare_exchange_strong(&held[index], &expected, NULL))
            break;
    }
    if (has_work_of(container, context))
        tf_helper_wake();
}

static void forget_all(void)
{
    memset((void *)cards, 0, sizeof cards);
    memset((void *)held, 0, sizeof held);
    atomic_store(&tf_open_captures, 0);
    memset((void *)tf_limit_processes, 0, sizeof tf_limit_processes);
}

TF_PART(.forget = forget_all, .poll = poll);
