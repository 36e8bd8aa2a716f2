/* gpu.c - the engine of gpu.h. */
#include "gpu.h"
#include <stdlib.h>
#include <string.h>

int gpu_init(struct gpu *gpu, uint32_t contexts)
{
    gpu->contexts = calloc(contexts, sizeof *gpu->contexts);
    gpu->context_count = contexts;
    gpu->loaded = 0;
    gpu->running = 0;
    gpu->next_ns = NEVER;
    gpu->wasted_ns = 0;
    return gpu->contexts == NULL ? -1 : 0;
}

void gpu_free(struct gpu *gpu)
{
    free(gpu->contexts);
    gpu->contexts = NULL;
}

int gpu_is_full(const struct gpu *gpu, uint32_t context) { return gpu->contexts[context].count >= GPU_DEPTH; }

static struct gpu_kernel *head_of(struct gpu_context *context) { return &context->queue[context->head]; }

/* Begin events that the front end can reach now: the context has the GPU (or the policy does not care) and the stream is free. */
static void reach_events(struct gpu *gpu, uint32_t index, uint64_t now_ns)
{
    struct gpu_context *context = &gpu->contexts[index];
    uint32_t seen = 0; /* streams with an unfinished kernel before this one */
    uint32_t look = context->count < GPU_STREAMS ? context->count : GPU_STREAMS;
    for (uint32_t i = 0; i < look; i++) {
        struct gpu_kernel *kernel = &context->queue[(context->head + i) % GPU_DEPTH];
        if (!(seen >> kernel->stream & 1) && kernel->begun_ns == NEVER)
            kernel->begun_ns = now_ns;
        seen |= 1u << kernel->stream;
    }
}

static uint32_t next_context(const struct gpu *gpu)
{
    if (gpu->policy == GPU_ROUND_ROBIN) {
        for (uint32_t i = 1; i <= gpu->context_count; i++) {
            uint32_t index = (gpu->loaded + i) % gpu->context_count;
            if (gpu->contexts[index].count > 0)
                return index;
        }
        return UINT32_MAX;
    }
    uint32_t best = UINT32_MAX;
    for (uint32_t index = 0; index < gpu->context_count; index++) {
        struct gpu_context *context = &gpu->contexts[index];
        if (context->count > 0 && (best == UINT32_MAX || head_of(context)->submitted_ns < head_of(&gpu->contexts[best])->submitted_ns))
            best = index;
    }
    return best;
}

/* The engine is free at from_ns: gives it to a context. keep: the loaded one still owns its slice. */
static void dispatch(struct gpu *gpu, uint64_t from_ns, int keep)
{
    uint32_t index = keep && gpu->contexts[gpu->loaded].count > 0 ? gpu->loaded : next_context(gpu);
    if (index == UINT32_MAX) {
        gpu->running = 0;
        gpu->next_ns = NEVER;
        return;
    }
    if (gpu->policy == GPU_ROUND_ROBIN && (index != gpu->loaded || !keep)) {
        if (index != gpu->loaded) {
            from_ns += gpu->switch_ns;
            gpu->wasted_ns += gpu->switch_ns;
        }
        gpu->slice_end_ns = from_ns + gpu->slice_ns;
    }
    gpu->loaded = index;
    gpu->running = 1;
    gpu->run_from_ns = from_ns;
    reach_events(gpu, index, from_ns);
    struct gpu_kernel *kernel = head_of(&gpu->contexts[index]);
    uint64_t end_ns = from_ns + kernel->left_ns;
    gpu->next_ns = gpu->policy == GPU_ROUND_ROBIN && end_ns > gpu->slice_end_ns ? gpu->slice_end_ns : end_ns;
    if (gpu->next_ns < from_ns)
        gpu->next_ns = from_ns;
}

void gpu_submit(struct gpu *gpu, uint32_t index, const struct gpu_kernel *kernel, uint64_t now_ns)
{
    struct gpu_context *context = &gpu->contexts[index];
    if (context->dead)
        return;
    struct gpu_kernel *slot = &context->queue[(context->head + context->count++) % GPU_DEPTH];
    *slot = *kernel;
    slot->left_ns = kernel->duration_ns;
    slot->submitted_ns = now_ns;
    slot->begun_ns = NEVER;
    if (gpu->policy == GPU_FIFO || (gpu->running && gpu->loaded == index && now_ns >= gpu->run_from_ns))
        reach_events(gpu, index, now_ns);
    if (!gpu->running)
        dispatch(gpu, now_ns, gpu->loaded == index && now_ns < gpu->slice_end_ns);
}

void gpu_account(struct gpu *gpu, uint64_t now_ns)
{
    if (!gpu->running || now_ns <= gpu->run_from_ns)
        return;
    struct gpu_context *context = &gpu->contexts[gpu->loaded];
    gpu->on_busy(gpu->user, gpu->loaded, gpu->run_from_ns, now_ns);
    context->busy_ns += now_ns - gpu->run_from_ns;
    head_of(context)->left_ns -= now_ns - gpu->run_from_ns;
    gpu->run_from_ns = now_ns;
}

void gpu_advance(struct gpu *gpu, uint64_t now_ns)
{
    uint32_t index = gpu->loaded;
    struct gpu_context *context = &gpu->contexts[index];
    struct gpu_kernel *kernel = head_of(context);
    gpu_account(gpu, now_ns);
    uint64_t free_ns = now_ns;
    if (kernel->left_ns == 0) {
        struct gpu_kernel done = *kernel;
        context->head = (context->head + 1) % GPU_DEPTH;
        context->count--;
        context->stream_free_ns[done.stream] = now_ns;
        if (done.measured_end)
            free_ns += gpu->event_stall_ns;
        if (gpu->policy == GPU_FIFO)
            reach_events(gpu, index, now_ns);
        gpu->running = 0; /* on_complete may submit */
        gpu->next_ns = NEVER;
        gpu->on_complete(gpu->user, index, &done, now_ns);
        if (gpu->running)
            return;
    }
    dispatch(gpu, free_ns, gpu->policy == GPU_ROUND_ROBIN && now_ns < gpu->slice_end_ns);
}

void gpu_kill(struct gpu *gpu, uint32_t index, uint64_t now_ns)
{
    struct gpu_context *context = &gpu->contexts[index];
    context->dead = 1;
    context->count = 0;
    if (gpu->running && gpu->loaded == index) {
        gpu->running = 0;
        dispatch(gpu, now_ns, 0);
    }
}
