/* driver.c - the real driver's functions, and the way back from a pointer to our function.
 *
 * Owns: struct tf_cuda, struct tf_nvml, the hook rows, the map pointer -> exported name.
 * Why:  cuGetProcAddress hides which of several ABIs it returned. The pointer tells: it is an exported symbol, and the hook of exactly that
 *       name has exactly that ABI. Guessing by name and version gives wrong ABIs; the version table serves only drivers whose
 *       answers are no exported symbols.
 * Threads: two that load at once fill two tables, and the first is kept; there is no lock that a fork could leave taken.
 * Next: lookup.c (dlsym) and hooks_resolve.c (cuGetProcAddress) ask; hooks_*.c call through the tables. */
#include "driver/driver.h"

#include "driver/elf_object.h"
#include "driver/loader.h"

#include <string.h>
#include <sys/mman.h>

#define CUDA_SONAME "libcuda.so.1"

static const struct tf_hook cuda_hooks[] = {
#define CUDA_HOOK(symbol, base, since, class, parameters) {#symbol, base, since, (void *)symbol, offsetof(struct tf_cuda, symbol)},
#define CUDA_REAL(symbol, parameters)
#define NVML_HOOK(symbol, class, parameters)
#define NVML_REAL(symbol, parameters)
#include "abi/hooks.def"
#undef CUDA_HOOK
#undef NVML_HOOK
};

static const struct tf_hook nvml_hooks[] = {
#define CUDA_HOOK(symbol, base, since, class, parameters)
#define NVML_HOOK(symbol, class, parameters) {#symbol, #symbol, 0, (void *)symbol, offsetof(struct tf_nvml, symbol)},
#include "abi/hooks.def"
#undef CUDA_HOOK
#undef CUDA_REAL
#undef NVML_HOOK
#undef NVML_REAL
};

enum { CUDA_HOOKS = sizeof(cuda_hooks) / sizeof(*cuda_hooks), NVML_HOOKS = sizeof(nvml_hooks) / sizeof(*nvml_hooks) };

_Atomic(const struct tf_cuda *) tf_cuda_ready;
static _Atomic(const struct tf_nvml *) nvml_ready;

static void fill(void **slot, const struct tf_object *object, const char *symbol)
{
    *slot = tf_object_symbol(object, symbol);
}

/* Room for a table that is filled before anybody can see it. */
static void *new_table(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

static struct tf_cuda *load_cuda(void)
{
    struct tf_object object;
    struct tf_cuda *table = tf_object_find(CUDA_SONAME, &object) ? new_table(sizeof *table) : NULL;
    if (!table)
        return NULL;
#define CUDA_HOOK(symbol, base, since, class, parameters) fill((void **)&table->symbol, &object, #symbol);
#define CUDA_REAL(symbol, parameters) fill((void **)&table->symbol, &object, #symbol);
#define NVML_HOOK(symbol, class, parameters)
#define NVML_REAL(symbol, parameters)
#include "abi/hooks.def"
#undef CUDA_HOOK
#undef CUDA_REAL
#undef NVML_HOOK
#undef NVML_REAL
    tf_loader_pin(CUDA_SONAME);
    return table;
}

static struct tf_nvml *load_nvml(void)
{
    struct tf_object object;
    struct tf_nvml *table = tf_object_find(TF_NVML_SONAME, &object) ? new_table(sizeof *table) : NULL;
    if (!table)
        return NULL;
#define CUDA_HOOK(symbol, base, since, class, parameters)
#define CUDA_REAL(symbol, parameters)
#define NVML_HOOK(symbol, class, parameters) fill((void **)&table->symbol, &object, #symbol);
#define NVML_REAL(symbol, parameters) fill((void **)&table->symbol, &object, #symbol);
#include "abi/hooks.def"
#undef CUDA_HOOK
#undef CUDA_REAL
#undef NVML_HOOK
#undef NVML_REAL
    tf_loader_pin(TF_NVML_SONAME);
    return table;
}

const struct tf_cuda *tf_cuda_first(void)
{
    const struct tf_cuda *ready = NULL;
    struct tf_cuda *fresh = load_cuda();
    if (!fresh || atomic_compare_exchange_strong(&tf_cuda_ready, &ready, fresh))
        return fresh;
    munmap(fresh, sizeof *fresh); /* another thread was faster */
    return ready;
}

const struct tf_nvml *tf_nvml(void)
{
    const struct tf_nvml *ready = atomic_load_explicit(&nvml_ready, memory_order_acquire);
    if (TF_LIKELY(ready != NULL))
        return ready;
    struct tf_nvml *fresh = load_nvml();
    if (!fresh || atomic_compare_exchange_strong(&nvml_ready, &ready, fresh))
        return fresh;
    munmap(fresh, sizeof *fresh); /* another thread was faster */
    return ready;
}

const struct tf_hook *tf_hook_named(const char *symbol, bool is_nvml)
{
    const struct tf_hook *hooks = is_nvml ? nvml_hooks : cuda_hooks;
    unsigned int count = is_nvml ? NVML_HOOKS : CUDA_HOOKS;
    for (unsigned int index = 0; index < count; index++)
        if (strcmp(hooks[index].symbol, symbol) == 0)
            return &hooks[index];
    return NULL;
}

void *tf_hook_real(const struct tf_hook *hook, bool is_nvml)
{
    const char *table = is_nvml ? (const char *)tf_nvml() : (const char *)tf_cuda();
    return table ? *(void *const *)(table + hook->real_offset) : NULL;
}

static bool has_suffix(const char *text, const char *suffix)
{
    size_t text_chars = strlen(text), suffix_chars = strlen(suffix);
    return text_chars >= suffix_chars && strcmp(text + text_chars - suffix_chars, suffix) == 0;
}

static bool is_per_thread_stream(const char *symbol)
{
    return has_suffix(symbol, "_ptsz") || has_suffix(symbol, "_ptds");
}

/* Is `address` any function that the driver exports? Scanned only for pointers that no row has, which is rare and never hot. */
struct export_search {
    void *address;
    bool is_found;
};

static void visit_export(void *address, const char *name, void *context)
{
    struct export_search *search = context;
    (void)name;
    search->is_found |= address == search->address;
}

static bool is_exported(void *address)
{
    struct tf_object object;
    struct export_search search = {address, false};
    if (tf_object_find(CUDA_SONAME, &object))
        tf_object_each(&object, visit_export, &search);
    return search.is_found;
}

/* The newest symbol of a base name that a request for `cuda_version` can mean. */
static const struct tf_hook *by_version(const char *base, int cuda_version, bool per_thread_stream)
{
    const struct tf_hook *best = NULL;
    for (unsigned int index = 0; index < CUDA_HOOKS; index++) {
        const struct tf_hook *hook = &cuda_hooks[index];
        if (strcmp(hook->base, base) == 0 && hook->since <= cuda_version && is_per_thread_stream(hook->symbol) == per_thread_stream
            && (!best || hook->since > best->since))
            best = hook;
    }
    return best;
}

static bool is_hooked_base(const char *base)
{
    for (unsigned int index = 0; index < CUDA_HOOKS; index++)
        if (strcmp(cuda_hooks[index].base, base) == 0)
            return true;
    return false;
}

void *tf_hook_for_pointer(void *real, const char *base, int cuda_version, uint64_t flags, bool *ret_unknown)
{
    *ret_unknown = false;
    for (unsigned int index = 0; index < CUDA_HOOKS; index++)
        if (tf_hook_real(&cuda_hooks[index], false) == real)
            return cuda_hooks[index].function;
    if (!is_hooked_base(base) || is_exported(real))
        return NULL;
    const struct tf_hook *hook = by_version(base, cuda_version, flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);
    if (!hook && (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM))
        hook = by_version(base, cuda_version, false); /* most functions know no default stream */
    if (!hook || !tf_hook_real(hook, false)) {
        *ret_unknown = true;
        return NULL;
    }
    return hook->function;
}
