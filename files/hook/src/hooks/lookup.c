/* lookup.c - which pointer dlsym and dlvsym return for a name that may be ours.
 *
 * Owns: the decision for cu[A-Z]* and nvml[A-Z]* names. Ours is returned only where the program would have got the driver's own symbol:
 *       the same name in cuDNN, another copy of the driver, or a process without the driver is none of our business.
 * Next: entry_*.S called us and, where we decline, jumps on to the loader; resolve.c knows the rows. */
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

struct decision tf_dlsym_decide(void *handle, const char *name, const char *version)
{
    const struct decision declined = {0, NULL};
    bool is_nvml = name[0] == 'n';
    const struct tf_hook *hook = tf_hook_named(name, is_nvml);
    if (!hook)
        return declined;
    tf_loader_find();
    if (!tf_real_dlsym || (version && !tf_real_dlvsym))
        return declined;

    void *found = version ? tf_real_dlvsym(handle, name, version) : tf_real_dlsym(handle, name);
    void *real = tf_hook_real(hook, is_nvml);
    if (found && found == real)
        return (struct decision){1, hook->function};
    if (found != hook->function)
        return (struct decision){1, found};
    /* A global lookup met our own export first. Without us it would have met the driver's, if that is loaded, or nothing. */
    if (real)
        return (struct decision){1, hook->function};
    return (struct decision){1, tf_real_dlsym(RTLD_NEXT, name)};
}
