/* elf_object.h - symbols of a library that is already loaded, read from its dynamic section.
 *
 * Contract: no dlopen, no dlsym, no allocation; safe before any initialisation. A file that is malformed simply has no symbols. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct tf_object {
    unsigned long base;
    const void *symbols; /* ElfW(Sym) */
    const char *strings;
    const unsigned int *gnu_hash;
    const unsigned int *sysv_hash;
    const unsigned short *versions;
};

/* The first loaded library whose DT_SONAME is `soname`, in the caller's namespace. false: not loaded, *ret_object untouched. */
bool tf_object_find(const char *soname, struct tf_object *ret_object);

/* The one that `address` is in, if that is its DT_SONAME: several copies may be loaded. */
bool tf_object_find_at(const char *soname, const void *address, struct tf_object *ret_object);

/* Address of a defined symbol (its default version where it has several), or NULL. */
void *tf_object_symbol(const struct tf_object *object, const char *name);

/* Calls `visit` for every defined function. */
void tf_object_each(const struct tf_object *object, void (*visit)(void *address, const char *name, void *context), void *context);
