/* resolve.c - the hooked functions by name and by the driver's pointer, and cuGetProcAddress in its two ABIs and two stream flavours.
 *
 * Owns:    the hook rows, made from hooks.def.
 * Promise: the driver decides what a request means; we only replace its pointer by our function for exactly that symbol.
 * Why:     cuGetProcAddress hides which of several ABIs it returned. The pointer tells: it is an exported symbol, and the hook of exactly that
 *          name has exactly that ABI. Guessing by name and version gives wrong ABIs; the version table serves only drivers whose
 *          answers are no exported symbols.
 * Next:    lookup.c asks for dlsym. */
#include "hooks/resolve.h"

#include "driver/driver.h"
#include "driver/elf_object.h"
#include "hooks/hooks.h"
#include "slice/container.h"

#include <string.h>

static const struct tf_hook cuda_hooks[] = {
#define CUDA_HOOK(symbol, base, since, class, parameters) {#symbol, base, since, (void *)symbol, offsetof(struct tf_cuda, symbol)},
#include "abi/hooks.def"
};

static const struct tf_hook nvml_hooks[] = {
#define NVML_HOOK(symbol, class, parameters) {#symbol, #symbol, 0, (void *)symbol, offsetof(struct tf_nvml, symbol)},
#include "abi/hooks.def"
};

enum { CUDA_HOOKS = sizeof(cuda_hooks) / sizeof(*cuda_hooks), NVML_HOOKS = sizeof(nvml_hooks) / sizeof(*nvml_hooks) };

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
    if (tf_object_find(TF_CUDA_SONAME, &object))
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

/* Our function for what the driver answered to (base, version, flags), or NULL to keep the driver's pointer. *ret_unknown is set to true
 * where the pointer is no exported symbol and no row of the version table fits. */
static void *hook_for_pointer(void *real, const char *base, int cuda_version, uint64_t flags, bool *ret_unknown)
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

static void count_unknown(void)
{
    struct tf_container *container = tf_container();
    if (atomic_load(&container->stance) == TF_ENFORCED)
        __atomic_fetch_add(&container->state->unknown_entry_points, 1, __ATOMIC_RELAXED);
}

static void substitute(void **function, const char *name, int cuda_version, uint64_t flags)
{
    bool is_unknown;
    void *ours = hook_for_pointer(*function, name, cuda_version, flags, &is_unknown);
    if (ours)
        *function = ours;
    if (TF_UNLIKELY(is_unknown))
        count_unknown();
}

#define RESOLVE(symbol, call) \
    TF_ENTER(symbol); \
    CUresult result = cuda->symbol call; \
    if (result == CUDA_SUCCESS && name && function && *function) \
        substitute(function, name, cuda_version, flags); \
    return result

CUresult cuGetProcAddress(const char *name, void **function, int cuda_version, uint64_t flags)
{
    RESOLVE(cuGetProcAddress, (name, function, cuda_version, flags));
}

CUresult cuGetProcAddress_ptsz(const char *name, void **function, int cuda_version, uint64_t flags)
{
    RESOLVE(cuGetProcAddress_ptsz, (name, function, cuda_version, flags));
}

CUresult cuGetProcAddress_v2(const char *name, void **function, int cuda_version, uint64_t flags, int *status)
{
    RESOLVE(cuGetProcAddress_v2, (name, function, cuda_version, flags, status));
}

CUresult cuGetProcAddress_v2_ptsz(const char *name, void **function, int cuda_version, uint64_t flags, int *status)
{
    RESOLVE(cuGetProcAddress_v2_ptsz, (name, function, cuda_version, flags, status));
}
