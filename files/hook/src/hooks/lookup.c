/* lookup.c - which pointer dlsym and dlvsym return for a name that may be ours.
 *
 * Owns: the decision for cu[A-Z]* and nvml[A-Z]* names. Ours is returned only where the program would have got the driver's own symbol: the
 *       same name in cuDNN, or in a process without the driver, is none of our business. Who asks a further copy of the driver, also for what
 *       is not hooked, is answered by the first.
 * Next: entry_*.S called us and, where we decline, jumps on to the loader; resolve.c knows the rows. */
#include "driver/driver.h"
#include "driver/loader.h"
#include "hooks/resolve.h"

#include <dlfcn.h>
#include <stdint.h>

/* Returned in two registers: entry_*.S reads rax/rdx or x0/x1. */
struct decision {
    uint64_t is_decided; /* 0: the loader answers */
    void *value;
};

__attribute__((visibility("hidden"))) struct decision tf_dlsym_decide(void *handle, const char *name, const char *version);

static struct decision decided(void *value) { return (struct decision){1, value}; }

struct decision tf_dlsym_decide(void *handle, const char *name, const char *version)
{
    const struct decision declined = {0, NULL};
    bool is_nvml = name[0] == 'n';
    const struct tf_hook *hook = tf_hook_named(name, is_nvml);
    if (!hook && handle == RTLD_DEFAULT) /* met the first copy's */
        return declined;
    tf_loader_find();
    if (!tf_real_dlsym || (version && !tf_real_dlvsym))
        return declined;

    void *found = version ? tf_real_dlvsym(handle, name, version) : tf_real_dlsym(handle, name);
    void *real = hook ? tf_hook_real(hook, is_nvml) : NULL;
    if (hook && found == hook->function) /* A global lookup met our own export first. Without us it would have met the driver's, if that is loaded. */
        return decided(real ? hook->function : tf_real_dlsym(RTLD_NEXT, name));
    if (found && found != real)
        found = tf_driver_symbol(found, name, is_nvml);
    return decided(found && found == real ? hook->function : found);
}
