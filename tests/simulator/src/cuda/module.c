/* module.c - modules: which kernels a program text declares, and how many microseconds they ask for.
 *
 * PTX text is scanned for `.entry` declarations; nothing is compiled. `tenfold_spin` is special: its first parameter (u32 or u64) is its
 * duration in microseconds of GPU time. Binary images (ELF, fat binaries) are opaque: any name is found in them. */
#include "context.h"

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

/* Under driver_lock(). */
static CUresult load(CUcontext context, const void *image, CUmodule *ret_module)
{
    enum image_kind kind = classify(image);
    REQUIRE(kind != IMAGE_BAD, CUDA_ERROR_INVALID_IMAGE);
    const uint64_t bytes = g_driver.machine.state->memory.module_bytes;
    TRY(driver_take_memory(context->card, bytes));
    CUmodule module = object_new(KIND_MODULE, sizeof *module);
    if (module && kind == IMAGE_PTX && !(module->text = strdup(image))) {
        object_free(module);
        module = NULL;
    }
    if (!module) {
        driver_settle_memory(context->card, 0, 0, bytes);
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

/* after_name: what follows the kernel's name, "(.param .u32 us, ...)" or "()" or nothing. 0: no parameter. */
static unsigned first_parameter_bytes(const char *after_name)
{
    const char *open = after_name + strspn(after_name, " \t\r\n");
    return *open == '(' && strchr(open, ')') ? parameter_bytes(open + 1) : 0;
}

/* Under driver_lock(). */
static CUresult find_function(CUmodule module, const char *name, CUfunction *ret_function)
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
    function->first_parameter_bytes = first_parameter_bytes(after_name);
    function->is_spin =
        module->text && strcmp(name, SPIN_NAME) == 0 && (function->first_parameter_bytes == 4 || function->first_parameter_bytes == 8);
    function->next_in_module = module->functions;
    module->functions = function;
    *ret_function = function;
    return CUDA_SUCCESS;
}

static void unload(CUmodule module)
{
    for (CUfunction function = module->functions, next; function; function = next) {
        next = function->next_in_module;
        object_free(function);
    }
    driver_settle_memory(module->context->card, 0, 0, module->reserved_bytes);
    free(module->text);
    unlink_module(module);
    object_free(module);
}

void module_drop_context(CUcontext context)
{
    for (CUmodule module = g_modules, next; module; module = next) {
        next = (CUmodule)module->head.next;
        if (module->context == context)
            unload(module);
    }
}

CUDA_EXPORT cuModuleLoadData(CUmodule *ret_module, const void *image)
{
    ENTER(cuModuleLoadData);
    CUcontext context;
    REQUIRE(ret_module && image, CUDA_ERROR_INVALID_VALUE);
    TRY(context_require(&context));
    driver_lock();
    CUresult result = load(context, image, ret_module);
    driver_unlock();
    return result;
}

CUDA_EXPORT cuModuleUnload(CUmodule module)
{
    ENTER(cuModuleUnload);
    REQUIRE(object_is(module, KIND_MODULE), CUDA_ERROR_INVALID_HANDLE);
    driver_lock();
    unload(module);
    driver_unlock();
    return CUDA_SUCCESS;
}

CUDA_EXPORT cuModuleGetFunction(CUfunction *ret_function, CUmodule module, const char *name)
{
    ENTER(cuModuleGetFunction);
    REQUIRE(ret_function && name, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(object_is(module, KIND_MODULE), CUDA_ERROR_INVALID_HANDLE);
    driver_lock();
    CUresult result = find_function(module, name, ret_function);
    driver_unlock();
    return result;
}
