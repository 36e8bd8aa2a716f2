/* callback.h - host functions in stream order, called by one thread of the process after the work before them is done. */
#ifndef TENFOLD_SIM_CALLBACK_H
#define TENFOLD_SIM_CALLBACK_H

#include "driver.h"

/* Either function or old is set. */
CUresult callback_submit(CUstream stream, CUhostFn function, CUstreamCallback old, void *user_data);

/* Sleeps until the callbacks of this stream that exist now have returned. Must not hold a lock. No effect inside a callback. */
void callback_wait(CUstream stream);
bool callback_is_pending(CUstream stream);

#endif
