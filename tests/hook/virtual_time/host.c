/* host.c - what the hook and the program do around the limiter: launch, record events, poll them, sleep, wake.
 *
 * Owns:  the hook's side of the limiter in virtual time. It is the reference for the hook's real launch entries.
 * Next:  gpu.c runs the kernels, bench.c keeps the clock. */
#include "bench.h"
#include <stdlib.h>

#define FRESH_NS (3000 * MS)  /* of neighbours.c */
#define LINGER_NS (4000 * MS) /* of measure.c */

/* Begin and end of a measured segment travel with the kernels as pointers to this. */
struct mark {
    struct pending *begin; /* the kernel's begin event opens this */
    struct pending *end;   /* the kernel's end event closes this */
};

static struct pending *take_pending(struct process *process)
{
    struct pending *pending = process->spare;
    if (pending != NULL) {
        process->spare = pending->next;
        *pending = (struct pending){.begin_ns = NEVER, .end_ns = NEVER, .older = pending->older};
        return pending;
    }
    if ((pending = malloc(sizeof *pending)) == NULL)
        abort();
    *pending = (struct pending){.begin_ns = NEVER, .end_ns = NEVER, .older = process->newest};
    process->newest = pending;
    return pending;
}

static void give_pending(struct process *process, struct pending *pending)
{
    pending->next = process->spare;
    process->spare = pending;
}

static void drop_open(struct process *process)
{
    if (process->open != NULL && process->open->begin_ns == NEVER)
        process->open->dropped = 1; /* the kernel behind it still points here */
    else if (process->open != NULL)
        give_pending(process, process->open);
    process->open = NULL;
}

int host_start(struct bench *bench)
{
    bench->process_count = 0;
    for (uint32_t t = 0; t < bench->tenant_count; t++) {
        struct tenant *tenant = &bench->tenants[t];
        for (uint32_t i = 0; i < tenant->processes; i++) {
            if (bench->process_count == PROCESSES)
                return -1;
            struct process *process = &bench->processes[bench->process_count];
            *process = (struct process){.tenant = tenant, .context = bench->process_count, .helper_ns = NEVER};
            process->limit = aligned_alloc(64, sizeof *process->limit);
            if (process->limit == NULL)
                return -1;
            for (size_t b = 0; b < sizeof *process->limit; b++)
                ((unsigned char *)process->limit)[b] = 0;
            random_seed(&process->random, bench->seed * 1000 + bench->process_count);
            process->next_ns = tenant->start_ns + random_u64(&process->random) % (1 * MS);
            process->last = &process->first;
            tf_limit_observe_event_overhead(process->limit, (uint64_t)((double)bench->parameters.event_bias_ns * bench->parameters.event_null));
            bench->process_count++;
        }
    }
    return 0;
}

static void forget_queue(struct bench *bench, struct process *process)
{
    struct gpu_context *context = &bench->gpu.contexts[process->context];
    for (uint32_t i = 0; i < context->count; i++)
        free(context->queue[(context->head + i) % GPU_DEPTH].tag);
    context->count = 0;
}

void host_stop(struct bench *bench)
{
    for (uint32_t i = 0; i < bench->process_count; i++) {
        struct process *process = &bench->processes[i];
        forget_queue(bench, process);
        while (process->newest != NULL) {
            struct pending *older = process->newest->older;
            free(process->newest);
            process->newest = older;
        }
        free(process->limit);
        process->limit = NULL;
    }
}

static void queue_pending(struct bench *bench, struct process *process, struct pending *pending)
{
    *process->last = pending;
    process->last = &pending->next;
    if (process->helper_ns == NEVER || process->helper_ns > bench->now_ns + bench->parameters.poll_ns)
        process->helper_ns = bench->now_ns + bench->parameters.poll_ns;
}

static uint32_t next_size(struct process *process, uint64_t now_ns)
{
    struct tenant *tenant = process->tenant;
    uint32_t any = tenant->size_count == 1 ? 0 : (uint32_t)(random_u64(&process->random) % tenant->size_count);
    if (tenant->phase_ns == 0)
        return any;
    if (!tenant->random_phases)
        return (uint32_t)(now_ns / tenant->phase_ns % tenant->size_count);
    if (now_ns >= process->phase_end_ns) {
        process->size = any;
        process->phase_end_ns = now_ns + (uint64_t)(2.0 * (double)tenant->phase_ns * random_unit(&process->random));
    }
    return process->size;
}

static void next_launch(struct process *process, uint64_t now_ns)
{
    struct tenant *tenant = process->tenant;
    uint32_t size = next_size(process, now_ns);
    double factor = tenant->cv > 0 ? random_lognormal(&process->random, tenant->cv) : 1.0;
    double duration_ns = (double)tenant->size_ns[size] * factor;
    process->duration_ns = duration_ns < 1000 ? 1000 : (uint64_t)duration_ns;
    process->stream = tenant->streams == 1 ? 0 : (uint32_t)(process->launches % tenant->streams);
    process->key = tf_limit_key((const void *)(uintptr_t)(0x5500 + 64 * (tenant->one_key ? 0 : size)), 512, 1, 1, 256, 1, 1, 0);
}

/* Records the end event of the open segment behind the last launch of its stream; on an idle stream it is reached at once. */
static void close_segment(struct bench *bench, struct process *process)
{
    struct tf_limit_segment segment;
    if (process->open == NULL || !tf_limit_close(process->limit, bench->now_ns, &segment))
        return;
    struct gpu_context *context = &bench->gpu.contexts[process->context];
    struct pending *pending = process->open;
    process->open = NULL;
    pending->segment = segment;
    struct gpu_kernel *tail = NULL;
    for (uint32_t i = context->count; i-- > 0 && tail == NULL;)
        if (context->queue[(context->head + i) % GPU_DEPTH].stream + 1 == segment.stream)
            tail = &context->queue[(context->head + i) % GPU_DEPTH];
    if (tail == NULL) {
        pending->end_ns = bench->now_ns;
    } else {
        struct mark *mark = tail->tag;
        if (mark == NULL && (tail->tag = mark = calloc(1, sizeof *mark)) == NULL)
            abort();
        mark->end = pending;
        tail->measured_end = 1;
    }
    process->measured++;
    queue_pending(bench, process, pending);
}

static void launch(struct bench *bench, struct process *process)
{
    struct tf_limit_ticket *ticket = &process->ticket;
    struct gpu_kernel kernel = {.duration_ns = process->duration_ns, .stream = process->stream};
    struct mark *mark = NULL;
    if (process->tenant->limited && ticket->flags != 0 && (mark = calloc(1, sizeof *mark)) == NULL)
        abort();
    if (mark != NULL && (ticket->flags & TF_LIMIT_BEGIN)) {
        drop_open(process);
        process->open = mark->begin = take_pending(process);
    }
    if (mark != NULL && (ticket->flags & TF_LIMIT_END) && process->open != NULL) {
        mark->end = process->open;
        process->open = NULL;
        mark->end->segment = ticket->segment;
        kernel.measured_end = 1;
        process->measured++;
        queue_pending(bench, process, mark->end);
    }
    kernel.tag = mark;
    process->launches++;
    gpu_submit(&bench->gpu, process->context, &kernel, bench->now_ns);
}

/* Runs the launching thread from now until it blocks or the next event of anybody else. */
void host_run_thread(struct bench *bench, struct process *process, uint64_t until_ns)
{
    struct tenant *tenant = process->tenant;
    uint64_t start_ns = bench->now_ns;
    while (bench->now_ns <= until_ns) {
        uint64_t now_ns = bench->now_ns;
        process->waiting = RUN;
        if (now_ns >= tenant->stop_ns) {
            process->next_ns = NEVER;
            process->waiting = DEAD;
            break;
        }
        if (!process->at_gate) {
            if (tenant->off_ns > 0) {
                uint64_t phase_ns = (now_ns - tenant->start_ns) % (tenant->on_ns + tenant->off_ns);
                if (phase_ns >= tenant->on_ns) {
                    process->next_ns = now_ns + tenant->on_ns + tenant->off_ns - phase_ns;
                    process->waiting = SLEEP;
                    break;
                }
            }
            if (gpu_is_full(&bench->gpu, process->context)) {
                process->next_ns = NEVER;
                process->waiting = BLOCKED_FULL;
                break;
            }
            next_launch(process, now_ns);
        }
        int go = 1;
        if (tenant->limited && (process->at_gate || !tf_limit_enter(process->limit, process->key, process->stream + 1, &process->ticket))) {
            process->gates++;
            go = tf_limit_gate(&tenant->state, process->limit, &tenant->policy, process->key, process->stream + 1, now_ns, &process->ticket) ==
                 TF_LIMIT_GO;
        }
        if (!go) {
            process->at_gate = 1;
            process->waits++;
            close_segment(bench, process);
            process->next_ns = process->ticket.wait_until_ns + (uint64_t)(2.0 * (double)bench->parameters.wake_ns * random_unit(&process->random));
            process->waiting = SLEEP;
            break;
        }
        process->at_gate = 0;
        launch(bench, process);
        uint64_t busy_until_ns = now_ns + tenant->launch_ns + tenant->gap_ns;
        if (tenant->style == SYNC) {
            close_segment(bench, process);
            process->next_ns = NEVER;
            process->waiting = BLOCKED_SYNC;
            break;
        }
        process->next_ns = busy_until_ns;
        /* kernels that end before the next launch must be seen by the engine first */
        if (busy_until_ns > until_ns || busy_until_ns >= bench->gpu.next_ns)
            break;
        bench->now_ns = busy_until_ns;
    }
    bench->now_ns = start_ns;
}

static void wake_tenant(struct bench *bench, struct tenant *tenant)
{
    for (uint32_t i = 0; i < bench->process_count; i++) {
        struct process *process = &bench->processes[i];
        if (process->tenant == tenant && process->at_gate && process->waiting == SLEEP) {
            uint64_t wake_ns = bench->now_ns + (uint64_t)(2.0 * (double)bench->parameters.wake_ns * random_unit(&process->random));
            if (wake_ns < process->next_ns)
                process->next_ns = wake_ns;
        }
    }
}

/* The last word that the host has put into the page. */
static void look_at_told(struct bench *bench, struct process *process)
{
    struct tenant *tenant = process->tenant;
    if (!tenant->host || bench->now_ns - process->looked_ns < bench->parameters.host_look_ns)
        return;
    process->looked_ns = bench->now_ns;
    if (tenant->next_told_ns != 0 && tenant->next_told_ns <= bench->now_ns)
        tenant->told = tenant->next_told;
    if (tenant->told.to_ns != 0 && bench->now_ns - tenant->told.to_ns < FRESH_NS)
        tf_limit_observe_told(&tenant->state, process->limit, tenant->told.from_ns, tenant->told.to_ns, tenant->told.busy_ns, bench->now_ns);
}

void host_run_helper(struct bench *bench, struct process *process)
{
    struct tenant *tenant = process->tenant;
    int wake = 0;
    if (process->first != NULL)
        process->worked_ns = bench->now_ns;
    look_at_told(bench, process);
    struct pending **link = &process->first;
    while (*link != NULL) {
        struct pending *pending = *link;
        if (pending->end_ns > bench->now_ns) {
            link = &pending->next;
            continue;
        }
        double length_ns = (double)(pending->end_ns - pending->begin_ns);
        length_ns *= 1.0 + bench->parameters.event_noise * random_normal(&process->random);
        length_ns += (double)bench->parameters.event_bias_ns;
        if (length_ns < 0)
            length_ns = 0;
        int result = tf_limit_settle(&tenant->state, process->limit, &tenant->policy, &pending->segment, pending->begin_ns,
                                     pending->begin_ns + (uint64_t)length_ns, bench->now_ns);
        wake |= result & TF_LIMIT_WAKE;
        *link = pending->next;
        if (process->last == &pending->next)
            process->last = link;
        give_pending(process, pending);
    }
    uint64_t rest_ns = tenant->host && bench->now_ns - process->worked_ns < LINGER_NS ? bench->now_ns + bench->parameters.host_look_ns : NEVER;
    process->helper_ns = process->first == NULL ? rest_ns : bench->now_ns + bench->parameters.poll_ns;
    if (wake)
        wake_tenant(bench, tenant);
}

void host_on_complete(void *user, uint32_t context, const struct gpu_kernel *kernel, uint64_t end_ns)
{
    struct bench *bench = user;
    struct process *process = &bench->processes[context];
    struct mark *mark = kernel->tag;
    if (mark != NULL) {
        if (mark->begin != NULL) {
            mark->begin->begin_ns = kernel->begun_ns;
            if (mark->begin->dropped)
                give_pending(process, mark->begin);
        }
        if (mark->end != NULL)
            mark->end->end_ns = end_ns;
        free(mark);
    }
    if (process->waiting == BLOCKED_SYNC)
        process->next_ns = end_ns + bench->parameters.sync_ns + process->tenant->launch_ns + process->tenant->gap_ns;
    else if (process->waiting == BLOCKED_FULL)
        process->next_ns = end_ns + bench->parameters.launch_ns;
    if (process->next_ns != NEVER && (process->waiting == BLOCKED_SYNC || process->waiting == BLOCKED_FULL))
        process->waiting = RUN;
}

void host_kill(struct bench *bench, struct process *process)
{
    gpu_account(&bench->gpu, bench->now_ns);
    forget_queue(bench, process);
    gpu_kill(&bench->gpu, process->context, bench->now_ns);
    process->waiting = DEAD;
    process->next_ns = NEVER;
    process->helper_ns = NEVER;
    process->at_gate = 0;
}
