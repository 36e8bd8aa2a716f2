/* loader.h - the dynamic loader's own functions, found without linking against them. */
#pragma once

/* Filled by tf_loader_find(); NULL until then, and where the process has no such function. */
extern void *(*tf_real_dlsym)(void *handle, const char *name);
extern void *(*tf_real_dlvsym)(void *handle, const char *name, const char *version);

/* Finds both. Cheap when done before; any thread, any time. */
void tf_loader_find(void);

/* Marks a loaded library as never to be unloaded, because we keep pointers into it. */
void tf_loader_pin(const char *soname);

/* Loads a library that the program did not ask for. Only for the helper thread. */
void tf_loader_open(const char *soname);

/* A function of the C library or of its thread library (separate before glibc 2.34), or NULL. */
void *tf_loader_libc(const char *name);
