/* module.c - modules: which kernels a program text declares, and how many microseconds they ask for.
 *
 * PTX text is scanned for `.entry` declarations; nothing is compiled. `tenfold_spin` is special: its first parameter (u32 or u64) is its
 * duration in microseconds of GPU time. Binary images (ELF, fat binaries) are opaque: any name is found in them. */
#include "module.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>

#define SPIN_NAME "tenfold_spin"

enum image_kind { IMAGE_PTX, IMAGE_BINARY, IMAGE_BAD };

static CUmodule g_modules; /* all loaded ones, through head.next */

static void unlink_module(CUmodule module)
{
    CUmodule *link = &g_modules;
    while (*link && *link != module)
        link = (CUmodule *)&(*link)->head.next;
    if (*link)
        *link = (CUmodule)module->head.next;
}

static enum image_kind classify(const char *image)
{
    static const unsigned char elf[] = {0x7f, 'E', 'L', 'F'}, fat_wrapper[] = {0xb1, 0x43, 0x62, 0x46}, fat[] = {0x50, 0xed, 0x55, 0xba};
    if (!memcmp(image, elf, 4) || !memcmp(image, fat_wrapper, 4) || !memcmp(image, fat, 4))
        return IMAGE_BINARY;
    return strstr(image, ".version") ? IMAGE_PTX : IMAGE_BAD;
}

CUresult module_load(CUcontext context, const void *image, CUmodule *ret_module)
{
    enum image_kind kind = classify(image);
    REQUIRE(kind != IMAGE_BAD, CUDA_ERROR_INVALID_IMAGE);
    const uint64_t bytes = g_driver.machine.state->memory.module_bytes;
    state_lock(&g_driver.machine);
    int error = memory_reserve(&g_driver.machine, context->card, bytes);
    state_unlock(&g_driver.machine);
    if (error)
        return driver_error(error);
    CUmodule module = object_new(KIND_MODULE, sizeof *module);
    if (module && kind == IMAGE_PTX && !(module->text = strdup(image))) {
        object_free(module);
        module = NULL;
    }
    if (!module) {
        state_lock(&g_driver.machine);
        memory_unreserve(&g_driver.machine, context->card, bytes);
        state_unlock(&g_driver.machine);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    module->context = context_of_memory(context);
    module->head.next = (struct object *)g_modules;
    g_modules = module;
    module->reserved_bytes = bytes;
    *ret_module = module;
    return CUDA_SUCCESS;
}

static bool is_name_character(char c)
{
    return isalnum((unsigned char)c) || c == '_' || c == '$' || c == '%';
}

/* Start of the name after the next `.entry` at or after from; NULL at the end. */
static const char *next_entry(const char *from)
{
    const char *entry = strstr(from, ".entry");
    if (!entry)
        return NULL;
    entry += strlen(".entry");
    return entry + strspn(entry, " \t\r\n");
}

static const char *find_entry(const char *text, const char *name)
{
    size_t length = strlen(name);
    for (const char *entry = next_entry(text); entry; entry = next_entry(entry))
        if (strncmp(entry, name, length) == 0 && !is_name_character(entry[length]))
            return entry + length;
    return NULL;
}

bool module_declares(const char *text, const char *name)
{
    return find_entry(text, name) != NULL;
}

static unsigned parameter_bytes(const char *parameter)
{
    const char *type = strstr(parameter, ".param");
    const char *end = strpbrk(parameter, ",)");
    if (!type || (end && type > end))
        return 0;
    const char *width = type + strlen(".param");
    while (*width && (!end || width < end)) {
        if (*width == '.' && strchr("usfb", width[1]) && isdigit((unsigned char)width[2]))
            return (unsigned)atoi(width + 2) / 8;
        width++;
    }
    return 0;
}

/* after_name: what follows the kernel's name, "(.param .u32 us, ...)" or "()" or nothing. */
static void read_parameters(CUfunction function, const char *after_name)
{
    const char *open = after_name + strspn(after_name, " \t\r\n");
    if (*open != '(')
        return;
    const char *close = strchr(open, ')');
    for (const char *at = open; close && at && at < close; at = strchr(at + 1, ',')) {
        unsigned bytes = parameter_bytes(at + 1);
        if (bytes == 0)
            break;
        if (function->parameter_count++ == 0)
            function->first_parameter_bytes = bytes;
    }
}

CUresult module_function(CUmodule module, const char *name, CUfunction *ret_function)
{
    for (CUfunction known = module->functions; known; known = known->next_in_module)
        if (strcmp(known->name, name) == 0) {
            *ret_function = known;
            return CUDA_SUCCESS;
        }
    const char *after_name = module->text ? find_entry(module->text, name) : "";
    REQUIRE(after_name && strlen(name) < sizeof((CUfunction)0)->name, CUDA_ERROR_NOT_FOUND);
    CUfunction function = object_new(KIND_FUNCTION, sizeof *function);
    REQUIRE(function, CUDA_ERROR_OUT_OF_MEMORY);
    snprintf(function->name, sizeof function->name, "%s", name);
    function->module = module;
    read_parameters(function, after_name);
    function->is_spin =
        module->text && strcmp(name, SPIN_NAME) == 0 && (function->first_parameter_bytes == 4 || function->first_parameter_bytes == 8);
    function->next_in_module = module->functions;
    module->functions = function;
    *ret_function = function;
    return CUDA_SUCCESS;
}

CUresult module_unload(CUmodule module)
{
    CUcontext context = module->context;
    for (CUfunction function = module->functions, next; function; function = next) {
        next = function->next_in_module;
        object_free(function);
    }
    state_lock(&g_driver.machine);
    memory_unreserve(&g_driver.machine, context->card, module->reserved_bytes);
    state_unlock(&g_driver.machine);
    free(module->text);
    unlink_module(module);
    object_free(module);
    return CUDA_SUCCESS;
}

void module_drop_context(CUcontext context)
{
    for (CUmodule module = g_modules, next; module; module = next) {
        next = (CUmodule)module->head.next;
        if (module->context == context)
            module_unload(module);
    }
}

static CUresult load_data(CUmodule *ret_module, const void *image)
{
    CUcontext context;
    REQUIRE(ret_module && image, CUDA_ERROR_INVALID_VALUE);
    CUresult result = context_require(&context);
    if (result != CUDA_SUCCESS)
        return result;
    driver_lock();
    result = module_load(context, image, ret_module);
    driver_unlock();
    return result;
}

CUDA_EXPORT cuModuleLoadData(CUmodule *ret_module, const void *image)
{
    ENTER(cuModuleLoadData);
    return load_data(ret_module, image);
}

CUDA_EXPORT cuModuleLoadDataEx(CUmodule *ret_module, const void *image, unsigned option_count, int *options, void **values)
{
    ENTER(cuModuleLoadDataEx);
    REQUIRE(option_count == 0 || (options && values), CUDA_ERROR_INVALID_VALUE);
    return load_data(ret_module, image);
}

CUDA_EXPORT cuModuleLoadFatBinary(CUmodule *ret_module, const void *image)
{
    ENTER(cuModuleLoadFatBinary);
    return load_data(ret_module, image);
}

/* Whole file, zero-terminated; the caller frees it. */
static char *read_file(const char *path)
{
    FILE *file = fopen(path, "rbe");
    if (!file)
        return NULL;
    char *content = NULL;
    if (fseek(file, 0, SEEK_END) == 0) {
        long bytes = ftell(file);
        rewind(file);
        content = bytes >= 4 ? calloc(1, (size_t)bytes + 1) : NULL;
        if (content && fread(content, 1, (size_t)bytes, file) != (size_t)bytes) {
            free(content);
            content = NULL;
        }
    }
    fclose(file);
    return content;
}

CUDA_EXPORT cuModuleLoad(CUmodule *ret_module, const char *path)
{
    ENTER(cuModuleLoad);
    REQUIRE(ret_module && path, CUDA_ERROR_INVALID_VALUE);
    char *content = read_file(path);
    REQUIRE(content, CUDA_ERROR_FILE_NOT_FOUND);
    CUresult result = load_data(ret_module, content);
    free(content);
    return result;
}

CUDA_EXPORT cuModuleUnload(CUmodule module)
{
    ENTER(cuModuleUnload);
    REQUIRE(object_is(module, KIND_MODULE), CUDA_ERROR_INVALID_HANDLE);
    driver_lock();
    CUresult result = module_unload(module);
    driver_unlock();
    return result;
}

CUDA_EXPORT cuModuleGetFunction(CUfunction *ret_function, CUmodule module, const char *name)
{
    ENTER(cuModuleGetFunction);
    REQUIRE(ret_function && name, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(object_is(module, KIND_MODULE), CUDA_ERROR_INVALID_HANDLE);
    driver_lock();
    CUresult result = module_function(module, name, ret_function);
    driver_unlock();
    return result;
}

CUDA_EXPORT cuModuleGetLoadingMode(int *ret_mode)
{
    ENTER(cuModuleGetLoadingMode);
    REQUIRE(ret_mode, CUDA_ERROR_INVALID_VALUE);
    *ret_mode = 2; /* lazy, the default since CUDA 12.2 */
    return CUDA_SUCCESS;
}

/* Variables are not simulated: programs that need one learn that it is not there. */
CUDA_EXPORT cuModuleGetGlobal_v2(CUdeviceptr *ret_address, size_t *ret_bytes, CUmodule module, const char *name)
{
    ENTER(cuModuleGetGlobal_v2);
    (void)ret_address, (void)ret_bytes;
    REQUIRE(name, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(object_is(module, KIND_MODULE), CUDA_ERROR_INVALID_HANDLE);
    return CUDA_ERROR_NOT_FOUND;
}

/* Attributes (CUfunction_attribute): 0 threads per block, 1 static shared, 4 registers, 5 PTX version, 6 binary version, 8 dynamic shared. */
CUDA_EXPORT cuFuncGetAttribute(int *ret_value, int attribute, CUfunction function)
{
    ENTER(cuFuncGetAttribute);
    REQUIRE(ret_value && attribute >= 0 && attribute < 16, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(object_is(function, KIND_FUNCTION), CUDA_ERROR_INVALID_HANDLE);
    const struct sim_card *card = &g_driver.machine.state->cards[function->module->context->card];
    const int version = (int)(card->compute_major * 10 + card->compute_minor);
    const int shared_bytes = function->shared_bytes_max ? function->shared_bytes_max : 49152;
    const int values[16] = {[0] = 1024, [4] = 32, [5] = version, [6] = version, [8] = shared_bytes};
    *ret_value = values[attribute];
    return CUDA_SUCCESS;
}

CUDA_EXPORT cuFuncSetAttribute(CUfunction function, int attribute, int value)
{
    ENTER(cuFuncSetAttribute);
    REQUIRE(object_is(function, KIND_FUNCTION), CUDA_ERROR_INVALID_HANDLE);
    if (attribute == 8)
        function->shared_bytes_max = value;
    return CUDA_SUCCESS;
}

CUDA_EXPORT cuFuncSetCacheConfig(CUfunction function, int config)
{
    ENTER(cuFuncSetCacheConfig);
    (void)config;
    REQUIRE(object_is(function, KIND_FUNCTION), CUDA_ERROR_INVALID_HANDLE);
    return CUDA_SUCCESS;
}

CUDA_EXPORT cuFuncSetSharedMemConfig(CUfunction function, int config)
{
    ENTER(cuFuncSetSharedMemConfig);
    (void)config;
    REQUIRE(object_is(function, KIND_FUNCTION), CUDA_ERROR_INVALID_HANDLE);
    return CUDA_SUCCESS;
}

CUDA_EXPORT cuFuncGetModule(CUmodule *ret_module, CUfunction function)
{
    ENTER(cuFuncGetModule);
    REQUIRE(ret_module, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(object_is(function, KIND_FUNCTION), CUDA_ERROR_INVALID_HANDLE);
    *ret_module = function->module;
    return CUDA_SUCCESS;
}

CUDA_EXPORT cuFuncGetName(const char **ret_name, CUfunction function)
{
    ENTER(cuFuncGetName);
    REQUIRE(ret_name, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(object_is(function, KIND_FUNCTION), CUDA_ERROR_INVALID_HANDLE);
    *ret_name = function->name;
    return CUDA_SUCCESS;
}

CUDA_EXPORT cuFuncIsLoaded(int *ret_state, CUfunction function)
{
    ENTER(cuFuncIsLoaded);
    REQUIRE(ret_state, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(object_is(function, KIND_FUNCTION), CUDA_ERROR_INVALID_HANDLE);
    *ret_state = 1;
    return CUDA_SUCCESS;
}

CUDA_EXPORT cuFuncLoad(CUfunction function)
{
    ENTER(cuFuncLoad);
    REQUIRE(object_is(function, KIND_FUNCTION), CUDA_ERROR_INVALID_HANDLE);
    return CUDA_SUCCESS;
}
