/* library.c - cuLibrary* and cuKernel* (contract: library.h): a library's module is loaded into the context that first runs it. */
#include "library.h"

#include <stdio.h>
#include <stdlib.h>

#include "module.h"

/* Under driver_lock(): the library's module, loaded (again) if its context took it along. */
static CUresult live_module(CUlibrary library, CUcontext context, CUmodule *ret_module)
{
    bool is_there = object_is(library->module, KIND_MODULE) && library->module->head.id == library->module_id;
    CUresult result = is_there ? CUDA_SUCCESS : module_load(context, library->text, &library->module);
    if (result != CUDA_SUCCESS)
        return result;
    library->module_id = library->module->head.id;
    *ret_module = library->module;
    return CUDA_SUCCESS;
}

static CUresult function_of(CUkernel kernel, CUfunction *ret_function)
{
    CUcontext context;
    CUresult result = context_require(&context);
    if (result != CUDA_SUCCESS)
        return result;
    driver_lock();
    CUmodule module;
    result = live_module(kernel->library, context, &module);
    if (result == CUDA_SUCCESS && (!kernel->function || kernel->module_id != module->head.id))
        result = module_function(module, kernel->name, &kernel->function);
    if (result == CUDA_SUCCESS)
        kernel->module_id = module->head.id;
    driver_unlock();
    if (result == CUDA_SUCCESS)
        *ret_function = kernel->function;
    return result;
}

CUfunction library_function(CUfunction handle)
{
    CUfunction function = NULL;
    if (!object_is(handle, KIND_KERNEL))
        return handle;
    return function_of((CUkernel)handle, &function) == CUDA_SUCCESS ? function : NULL;
}

CUDA_EXPORT cuLibraryLoadData(CUlibrary *ret_library, const void *code, int *jit_options, void **jit_values, unsigned jit_count,
                              int *options, void **values, unsigned count)
{
    ENTER(cuLibraryLoadData);
    (void)jit_options, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count;
    REQUIRE(ret_library && code, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(strstr(code, ".version"), CUDA_ERROR_INVALID_IMAGE); /* text only: a binary's length is not known here */
    CUlibrary library = object_new(KIND_LIBRARY, sizeof *library);
    if (library)
        library->text = strdup(code);
    if (!library || !library->text) {
        object_free(library);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *ret_library = library;
    return CUDA_SUCCESS;
}

CUDA_EXPORT cuLibraryUnload(CUlibrary library)
{
    ENTER(cuLibraryUnload);
    REQUIRE(object_is(library, KIND_LIBRARY), CUDA_ERROR_INVALID_HANDLE);
    driver_lock();
    for (CUkernel kernel = library->kernels, next; kernel; kernel = next) {
        next = kernel->next_in_library;
        object_free(kernel);
    }
    if (object_is(library->module, KIND_MODULE) && library->module->head.id == library->module_id)
        module_unload(library->module);
    free(library->text);
    object_free(library);
    driver_unlock();
    return CUDA_SUCCESS;
}

CUDA_EXPORT cuLibraryGetKernel(CUkernel *ret_kernel, CUlibrary library, const char *name)
{
    ENTER(cuLibraryGetKernel);
    REQUIRE(ret_kernel && name, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(object_is(library, KIND_LIBRARY), CUDA_ERROR_INVALID_HANDLE);
    REQUIRE(strlen(name) < sizeof((CUkernel)0)->name && module_declares(library->text, name), CUDA_ERROR_NOT_FOUND);
    CUkernel kernel = object_new(KIND_KERNEL, sizeof *kernel);
    REQUIRE(kernel, CUDA_ERROR_OUT_OF_MEMORY);
    snprintf(kernel->name, sizeof kernel->name, "%s", name);
    kernel->library = library;
    driver_lock();
    kernel->next_in_library = library->kernels;
    library->kernels = kernel;
    driver_unlock();
    *ret_kernel = kernel;
    return CUDA_SUCCESS;
}

CUDA_EXPORT cuLibraryGetModule(CUmodule *ret_module, CUlibrary library)
{
    ENTER(cuLibraryGetModule);
    CUcontext context;
    REQUIRE(ret_module, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(object_is(library, KIND_LIBRARY), CUDA_ERROR_INVALID_HANDLE);
    CUresult result = context_require(&context);
    if (result != CUDA_SUCCESS)
        return result;
    driver_lock();
    result = live_module(library, context, ret_module);
    driver_unlock();
    return result;
}

CUDA_EXPORT cuKernelGetFunction(CUfunction *ret_function, CUkernel kernel)
{
    ENTER(cuKernelGetFunction);
    REQUIRE(ret_function, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(object_is(kernel, KIND_KERNEL), CUDA_ERROR_INVALID_HANDLE);
    return function_of(kernel, ret_function);
}

CUDA_EXPORT cuKernelGetName(const char **ret_name, CUkernel kernel)
{
    ENTER(cuKernelGetName);
    REQUIRE(ret_name, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(object_is(kernel, KIND_KERNEL), CUDA_ERROR_INVALID_HANDLE);
    *ret_name = kernel->name;
    return CUDA_SUCCESS;
}

CUDA_EXPORT cuKernelGetLibrary(CUlibrary *ret_library, CUkernel kernel)
{
    ENTER(cuKernelGetLibrary);
    REQUIRE(ret_library, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(object_is(kernel, KIND_KERNEL), CUDA_ERROR_INVALID_HANDLE);
    *ret_library = kernel->library;
    return CUDA_SUCCESS;
}
