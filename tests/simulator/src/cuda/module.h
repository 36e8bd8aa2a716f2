/* module.h - modules and their functions; under driver_lock() where it changes a module's list. */
#ifndef TENFOLD_SIM_MODULE_H
#define TENFOLD_SIM_MODULE_H

#include "driver.h"

CUresult module_load(CUcontext context, const void *image, CUmodule *ret_module);
CUresult module_function(CUmodule module, const char *name, CUfunction *ret_function);
CUresult module_unload(CUmodule module);
bool module_declares(const char *text, const char *name); /* PTX has such a kernel */
void module_drop_context(CUcontext context); /* the context is gone: so is what its modules took */

#endif
