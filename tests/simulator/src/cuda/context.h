/* context.h - contexts for the files that make, end and describe them. Under driver_lock() unless it says so. */
#ifndef TENFOLD_SIM_CONTEXT_H
#define TENFOLD_SIM_CONTEXT_H

#include "driver.h"

/* Brings a record to life on a device: takes its place on the card, with the process's first one the overhead of a context. */
CUresult context_open(CUcontext context, CUdevice device);

/* Ends it with all it holds. Waits for nothing: what is queued is dropped with the channel, as a destroyed context's work is. */
void context_close(CUcontext context);

/* The context named, or the current one for NULL. Without driver_lock(). */
CUresult context_resolve(CUcontext context, CUcontext *ret_context);

/* The primary context of a card, with one user more or less; the last one ends it. */
CUresult primary_retain(CUdevice device, CUcontext *ret_context);
CUresult primary_release(CUdevice device);

/* green.c: the primary context ends with all that was in it. */
void green_primary_closed(CUcontext primary);

/* module.c: the context is gone, and with it what its modules took. */
void module_drop_context(CUcontext context);

/* The list of live streams, of all contexts. */
void context_add_stream(CUstream stream);
void context_remove_stream(CUstream stream);

#endif
