/* standalone.c - HAMi-core's variables, for a program run outside a slice.
 *
 * Owns: their parsing, and a state of our own format in CUDA_DEVICE_MEMORY_SHARED_CACHE (shared by processes that name the same file) or in
 *       private memory. Never consulted where a configuration page exists: a tenant can set variables.
 * Keys: limits are by this process's CUDA ordinal, as the variables are; the state is by UUID, for two processes may see different cards under
 *       one ordinal. A card enters the state when a process first meets it.
 * Names: HAMi-core 8f3a89c, src/multiprocess/multiprocess_memory_limit.c (CUDA_DEVICE_MEMORY_LIMIT, CUDA_DEVICE_SM_LIMIT, _<i> per ordinal). */
#include "slice/standalone.h"

#include "base/decimal.h"
#include "base/message.h"
#include "slice/slots.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#define MEMORY_VARIABLE "CUDA_DEVICE_MEMORY_LIMIT"
#define CORES_VARIABLE "CUDA_DEVICE_SM_LIMIT"
#define CACHE_VARIABLE "CUDA_DEVICE_MEMORY_SHARED_CACHE"

/* "8g", "512M", "1024": bytes; anything else, 0, or an overflow: no limit. */
static uint64_t parse_bytes(const char *text)
{
    const char *end;
    if (!text || *text < '0' || *text > '9')
        return 0;
    uint64_t value = tf_decimal(text, &end);
    int shift = 0;
    switch (*end | 0x20) {
    case 'g': shift = 30, end++; break;
    case 'm': shift = 20, end++; break;
    case 'k': shift = 10, end++; break;
    default: break;
    }
    if (*end || value > TENFOLD_BYTES_MASK >> shift)
        return 0;
    return value << shift;
}

static const char *variable_of(const char *name, uint32_t ordinal)
{
    char indexed[64];
    snprintf(indexed, sizeof indexed, "%s_%u", name, ordinal);
    const char *value = secure_getenv(indexed);
    return value ? value : secure_getenv(name);
}

/* *ret_cores: percent, 0 for no limit. Is there any limit at all? */
static bool limits_of(uint32_t ordinal, uint64_t *ret_memory_bytes, uint32_t *ret_cores)
{
    uint64_t cores = parse_bytes(variable_of(CORES_VARIABLE, ordinal));
    *ret_memory_bytes = parse_bytes(variable_of(MEMORY_VARIABLE, ordinal));
    *ret_cores = cores < 100 ? (uint32_t)cores : 0;
    return *ret_memory_bytes || cores;
}

static bool has_variables(struct tf_container *container)
{
    bool has_any = false, has_core_limits = false;
    for (uint32_t ordinal = 0; ordinal < TENFOLD_GPUS_MAX; ordinal++) {
        uint64_t memory_bytes;
        uint32_t cores;
        has_any |= limits_of(ordinal, &memory_bytes, &cores);
        has_core_limits |= cores != 0;
    }
    atomic_store(&container->has_core_limits, has_core_limits);
    return has_any;
}

static struct tenfold_state *map_bytes(int descriptor, int flags)
{
    void *memory = mmap(NULL, TENFOLD_STATE_BYTES, PROT_READ | PROT_WRITE, flags, descriptor, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

static void write_header(struct tenfold_state *state)
{
    state->header.abi_version = TENFOLD_ABI_VERSION;
    state->header.header_bytes = sizeof state->header;
    state->header.file_bytes = TENFOLD_STATE_BYTES;
    state->header.generation = 1;
    __atomic_store_n(&state->header.magic, TENFOLD_STATE_MAGIC, __ATOMIC_RELEASE);
}

/* With the file's lock held: a file of ours, made if it is empty. Blocks are allocated, so that a full disk is an error and no SIGBUS. */
static struct tenfold_state *map_cache_locked(int descriptor)
{
    off_t size = lseek(descriptor, 0, SEEK_END);
    if (size == 0) {
        if (fallocate(descriptor, 0, 0, TENFOLD_STATE_BYTES) != 0)
            return NULL;
        struct tenfold_state *state = map_bytes(descriptor, MAP_SHARED);
        if (state)
            write_header(state);
        return state;
    }
    struct tenfold_state *state = size == TENFOLD_STATE_BYTES ? map_bytes(descriptor, MAP_SHARED) : NULL;
    if (state && state->header.magic != TENFOLD_STATE_MAGIC) {
        munmap(state, TENFOLD_STATE_BYTES);
        return NULL;
    }
    return state;
}

/* With the lock on it, or -1. */
static int open_cache(const char *path)
{
    int descriptor = path && *path ? open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW, 0666) : -1;
    if (descriptor >= 0 && flock(descriptor, LOCK_EX) == 0)
        return descriptor;
    if (descriptor >= 0)
        close(descriptor);
    return -1;
}

static void close_cache(int descriptor)
{
    if (descriptor < 0)
        return;
    flock(descriptor, LOCK_UN); /* the mapping keeps the file open, and with it the lock */
    close(descriptor);
}

static struct tenfold_state *map_cache(const char *path)
{
    int descriptor = open_cache(path);
    struct tenfold_state *state = descriptor >= 0 ? map_cache_locked(descriptor) : NULL;
    close_cache(descriptor);
    return state;
}

int tf_standalone_attach(struct tf_container *container)
{
    if (!has_variables(container))
        return TF_NO_SLICE;
    const char *path = secure_getenv(CACHE_VARIABLE);
    container->gpu_count = 0;
    container->state = path && *path ? map_cache(path) : NULL;
    if (path && *path && !container->state)
        tf_message("%s is \"%s\", which is no state of ours and cannot become one; limits hold per process", CACHE_VARIABLE, path);
    if (!container->state) {
        container->state = map_bytes(-1, MAP_PRIVATE | MAP_ANONYMOUS);
        if (!container->state)
            return TF_CLOSED;
        write_header(container->state);
    }
    return tf_slots_attach(container->state, &container->self, &container->slot) == 0 ? TF_ENFORCED : TF_CLOSED;
}

static void print_uuid(const unsigned char uuid[16], char ret_text[TENFOLD_UUID_CHARS])
{
    char *cursor = ret_text + snprintf(ret_text, TENFOLD_UUID_CHARS, "GPU");
    for (int index = 0; index < 16; index++)
        cursor += snprintf(cursor, 4, index == 0 || index == 4 || index == 6 || index == 8 || index == 10 ? "-%02x" : "%02x", uuid[index]);
}

/* With the cache's lock: the card's number in the state, where it is entered if it is new; -1 for a full table. */
static int enter_card(struct tenfold_state *state, const unsigned char uuid[16])
{
    char text[TENFOLD_UUID_CHARS] = "";
    print_uuid(uuid, text);
    for (int gpu = 0; gpu < (int)TENFOLD_GPUS_MAX; gpu++) {
        if (!state->gpus[gpu].uuid[0])
            memcpy(state->gpus[gpu].uuid, text, sizeof text);
        if (memcmp(state->gpus[gpu].uuid, text, sizeof text) == 0)
            return gpu;
    }
    return -1;
}

static void take_card(struct tf_container *container, int gpu, uint32_t ordinal, const unsigned char uuid[16])
{
    struct tf_quota *quota = &container->quotas[gpu];
    uint64_t memory_bytes;
    uint32_t cores;
    limits_of(ordinal, &memory_bytes, &cores);
    atomic_store(&quota->memory_limit_bytes, memory_bytes);
    atomic_store(&quota->core_limit_percent, cores);
    atomic_store(&quota->is_listed, true);
    memcpy(container->uuids[gpu], uuid, 16);
    if ((uint32_t)gpu >= container->gpu_count)
        container->gpu_count = (uint32_t)gpu + 1;
}

int tf_standalone_gpu(struct tf_container *container, int ordinal, const unsigned char uuid[16])
{
    if (ordinal < 0 || (uint32_t)ordinal >= TENFOLD_GPUS_MAX || !container->state)
        return -1;
    tf_lock_acquire(&container->refresh_lock);
    int cache = open_cache(secure_getenv(CACHE_VARIABLE));
    int gpu = enter_card(container->state, uuid);
    close_cache(cache);
    if (gpu >= 0)
        take_card(container, gpu, (uint32_t)ordinal, uuid);
    tf_lock_release(&container->refresh_lock);
    return gpu;
}
