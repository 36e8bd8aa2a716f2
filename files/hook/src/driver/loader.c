/* loader.c - dlsym, dlvsym, dlopen and thread functions, wherever this glibc keeps them.
 *
 * Owns: the real loader pointers. They live in libc.so.6 since glibc 2.34, in libdl.so.2 and libpthread.so.0 before; the hook links
 *       against neither of those. A process that has no libdl cannot call dlsym, so a missing pointer is harmless.
 * Next: entry_*.S jumps to them, lookup.c calls them for names that are ours. */
#include "driver/loader.h"

#include "driver/elf_object.h"

#include <dlfcn.h>
#include <stddef.h>

__attribute__((visibility("hidden"))) void *(*tf_real_dlsym)(void *handle, const char *name);
__attribute__((visibility("hidden"))) void *(*tf_real_dlvsym)(void *handle, const char *name, const char *version);

static void *symbol_in(const char *const *sonames, const char *name)
{
    for (; *sonames; sonames++) {
        struct tf_object object;
        void *address = tf_object_find(*sonames, &object) ? tf_object_symbol(&object, name) : NULL;
        if (address)
            return address;
    }
    return NULL;
}

void *tf_loader_libc(const char *name)
{
    static const char *const sonames[] = {"libc.so.6", "libpthread.so.0", "libdl.so.2", NULL};
    return symbol_in(sonames, name);
}

void tf_loader_find(void)
{
    if (!__atomic_load_n(&tf_real_dlvsym, __ATOMIC_ACQUIRE))
        __atomic_store_n(&tf_real_dlvsym, (void *(*)(void *, const char *, const char *))tf_loader_libc("dlvsym"), __ATOMIC_RELEASE);
    if (!__atomic_load_n(&tf_real_dlsym, __ATOMIC_ACQUIRE))
        __atomic_store_n(&tf_real_dlsym, (void *(*)(void *, const char *))tf_loader_libc("dlsym"), __ATOMIC_RELEASE);
}

static void load(const char *soname, int flags)
{
    void *(*real_dlopen)(const char *, int) = (void *(*)(const char *, int))tf_loader_libc("dlopen");
    if (real_dlopen)
        real_dlopen(soname, RTLD_LAZY | RTLD_LOCAL | flags);
}

void tf_loader_pin(const char *soname) { load(soname, RTLD_NOLOAD | RTLD_NODELETE); }

void tf_loader_open(const char *soname) { load(soname, RTLD_NODELETE); }
