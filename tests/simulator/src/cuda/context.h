/* context.h - the list of live streams that contexts keep; under driver_lock(). */
#ifndef TENFOLD_SIM_CONTEXT_H
#define TENFOLD_SIM_CONTEXT_H

#include "driver.h"

void context_add_stream(CUstream stream);
void context_remove_stream(CUstream stream);

#endif
