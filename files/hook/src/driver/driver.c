/* driver.c - the real driver's functions.
 *
 * Owns: struct tf_cuda, struct tf_nvml.
 * Threads: two that load at once fill two tables, and the first is kept; there is no lock that a fork could leave taken. */
#include "driver/driver.h"

#include "driver/elf_object.h"
#include "driver/loader.h"

#include <sys/mman.h>

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
    struct tf_cuda *table = tf_object_find(TF_CUDA_SONAME, &object) ? new_table(sizeof *table) : NULL;
    if (!table)
        return NULL;
#define CUDA_HOOK(symbol, base, since, class, parameters) fill((void **)&table->symbol, &object, #symbol);
#define CUDA_REAL(symbol, parameters) fill((void **)&table->symbol, &object, #symbol);
#include "abi/hooks.def"
    tf_loader_pin(TF_CUDA_SONAME);
    return table;
}

static struct tf_nvml *load_nvml(void)
{
    struct tf_object object;
    struct tf_nvml *table = tf_object_find(TF_NVML_SONAME, &object) ? new_table(sizeof *table) : NULL;
    if (!table)
        return NULL;
#define NVML_HOOK(symbol, class, parameters) fill((void **)&table->symbol, &object, #symbol);
#define NVML_REAL(symbol, parameters) fill((void **)&table->symbol, &object, #symbol);
#include "abi/hooks.def"
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

void *tf_driver_symbol(void *found, const char *symbol, bool is_nvml)
{
    const char *soname = is_nvml ? TF_NVML_SONAME : TF_CUDA_SONAME;
    struct tf_object first, copy;
    if (!tf_object_find_at(soname, found, &copy) || !tf_object_find(soname, &first) || first.base == copy.base)
        return found;
    return tf_object_symbol(&first, symbol);
}
