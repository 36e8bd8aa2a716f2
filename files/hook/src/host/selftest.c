/* selftest.c - a small CUDA program that does what it is told and says what it saw; cuda_hook_verify judges.
 *
 * Runs under the hook on a node, with the node's driver: reads commands from stdin, one a line, answers each with one line of JSON.
 *   cards                what NVML knows, without touching a card: UUID, memory, processes, utilisation
 *   open UUID            primary context on that card
 *   view                 total and free memory by cuMemGetInfo, cuDeviceTotalMem, NVML
 *   fill STEP MOST       allocates STEP bytes until refused, at most MOST bytes
 *   alloc BYTES          one allocation
 *   drain                frees everything
 *   spin US MILLISECONDS launches kernels of US microseconds without pause, tells how many the card has finished
 *   routes               every hooked symbol: does cuGetProcAddress give what dlsym gives?
 * It is driver API alone, links no CUDA, and needs a C library of 2012 or later. The PTX busy-waits on any card. */
#include "abi/cuda.h"
#include "abi/nvml.h"
#include "base/decimal.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { BLOCKS_MAX = 65536, LINE_BYTES = 256, CARDS_MAX = 32 };

static const char spin_ptx[] = ".version 6.0\n.target sm_50\n.address_size 64\n"
    ".visible .entry tenfold_spin(.param .u32 us)\n{\n"
    ".reg .pred %p<2>;\n.reg .b32 %r<2>;\n.reg .b64 %rd<6>;\n"
    "ld.param.u32 %r1, [us];\nmul.wide.u32 %rd1, %r1, 1000;\nmov.u64 %rd2, %globaltimer;\n"
    "again:\nmov.u64 %rd3, %globaltimer;\nsub.u64 %rd4, %rd3, %rd2;\nsetp.lt.u64 %p1, %rd4, %rd1;\n@%p1 bra again;\nret;\n}\n";

typedef struct CUmod_st *CUmodule;

static void *cuda_handle, *nvml_handle;
static CUdevice device;
static char uuid_text[64];
static CUdeviceptr blocks[BLOCKS_MAX];
static uint64_t block_bytes[BLOCKS_MAX];
static uint32_t block_count;
static CUfunction spin_function;

static char answer[65536];
static size_t answer_chars;

__attribute__((format(printf, 1, 2))) static void say(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int chars = vsnprintf(answer + answer_chars, sizeof answer - answer_chars - 1, format, arguments);
    va_end(arguments);
    if (chars > 0 && answer_chars + (size_t)chars < sizeof answer - 1)
        answer_chars += (size_t)chars;
}

static void send_answer(void)
{
    answer[answer_chars++] = '\n';
    for (size_t sent = 0; sent < answer_chars;) {
        ssize_t length = write(STDOUT_FILENO, answer + sent, answer_chars - sent);
        if (length <= 0)
            _exit(3);
        sent += (size_t)length;
    }
    answer_chars = 0;
}

/* Looked up on each use, as a program does: through dlsym, so through the hook. */
#define CUDA(symbol, ...) ((CUresult(*)(__VA_ARGS__))dlsym(cuda_handle, symbol))
#define NVML(symbol, ...) ((nvmlReturn_t(*)(__VA_ARGS__))dlsym(nvml_handle, symbol))

static uint64_t now_us(void)
{
    struct timespec now = {0, 0};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000u;
}

static bool load_nvml(void)
{
    if (!nvml_handle)
        nvml_handle = dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_LOCAL);
    return nvml_handle && NVML("nvmlInit_v2", void) && NVML("nvmlInit_v2", void)() == NVML_SUCCESS;
}

static nvmlDevice_t nvml_device(unsigned int index)
{
    nvmlDevice_t found = NULL;
    return NVML("nvmlDeviceGetHandleByIndex_v2", unsigned int, nvmlDevice_t *)(index, &found) == NVML_SUCCESS ? found : NULL;
}

/* Number of compute processes, or -1: asking with no room tells whether there are any. */
static int compute_processes(nvmlDevice_t card)
{
    static const char *const names[] = {"nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2",
        "nvmlDeviceGetComputeRunningProcesses"};
    for (int index = 0; index < 3; index++) {
        nvmlReturn_t (*ask)(nvmlDevice_t, unsigned int *, void *) = (nvmlReturn_t(*)(nvmlDevice_t, unsigned int *, void *))dlsym(nvml_handle, names[index]);
        unsigned int count = 0;
        nvmlReturn_t result = ask ? ask(card, &count, NULL) : NVML_ERROR_FUNCTION_NOT_FOUND;
        if (result == NVML_SUCCESS)
            return 0;
        if (result == 7 /* insufficient size */)
            return count ? (int)count : 1;
    }
    return -1;
}

static void command_cards(void)
{
    unsigned int count = 0;
    if (!load_nvml() || NVML("nvmlDeviceGetCount_v2", unsigned int *)(&count) != NVML_SUCCESS) {
        say("{\"error\": \"NVML cannot be used\"}");
        return;
    }
    char driver[96] = "";
    NVML("nvmlSystemGetDriverVersion", char *, unsigned int)(driver, sizeof driver);
    say("{\"driver\": \"%s\", \"cards\": [", driver);
    for (unsigned int index = 0; index < count && index < CARDS_MAX; index++) {
        char uuid[96] = "";
        nvmlMemory_t memory = {0, 0, 0};
        struct { unsigned int gpu, memory; } utilisation = {0, 0};
        nvmlDevice_t card = nvml_device(index);
        NVML("nvmlDeviceGetUUID", nvmlDevice_t, char *, unsigned int)(card, uuid, sizeof uuid);
        NVML("nvmlDeviceGetMemoryInfo", nvmlDevice_t, nvmlMemory_t *)(card, &memory);
        NVML("nvmlDeviceGetUtilizationRates", nvmlDevice_t, void *)(card, &utilisation);
        say("%s{\"uuid\": \"%s\", \"total_bytes\": %llu, \"free_bytes\": %llu, \"processes\": %d, \"busy_percent\": %u}", index ? ", " : "", uuid,
            memory.total, memory.free, compute_processes(card), utilisation.gpu);
    }
    say("]}");
}

static void format_uuid(const unsigned char bytes[16], const char *prefix, char text[64])
{
    const unsigned char *b = bytes;
    snprintf(text, 64, "%s-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", prefix, b[0], b[1], b[2], b[3], b[4], b[5], b[6],
        b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
}

static CUresult open_card(const char *uuid)
{
    int count = 0;
    CUcontext context = NULL;
    CUmodule module = NULL;
    CUresult result = CUDA("cuInit", unsigned int)(0);
    if (result == CUDA_SUCCESS)
        result = CUDA("cuDeviceGetCount", int *)(&count);
    for (CUdevice candidate = 0; result == CUDA_SUCCESS && candidate < count; candidate++) {
        CUuuid bytes;
        const char *get_uuid = dlsym(cuda_handle, "cuDeviceGetUuid_v2") ? "cuDeviceGetUuid_v2" : "cuDeviceGetUuid";
        result = ((CUresult(*)(CUuuid *, CUdevice))dlsym(cuda_handle, get_uuid))(&bytes, candidate);
        format_uuid(bytes.bytes, strncmp(uuid, "MIG", 3) == 0 ? "MIG" : "GPU", uuid_text);
        if (result == CUDA_SUCCESS && strcmp(uuid_text, uuid) == 0) {
            device = candidate;
            result = CUDA("cuDevicePrimaryCtxRetain", CUcontext *, CUdevice)(&context, candidate);
            if (result == CUDA_SUCCESS)
                result = CUDA("cuCtxSetCurrent", CUcontext)(context);
            if (result == CUDA_SUCCESS)
                result = CUDA("cuModuleLoadData", CUmodule *, const void *)(&module, spin_ptx);
            if (result == CUDA_SUCCESS)
                result = CUDA("cuModuleGetFunction", CUfunction *, CUmodule, const char *)(&spin_function, module, "tenfold_spin");
            return result;
        }
    }
    return result == CUDA_SUCCESS ? 101 /* invalid device */ : result;
}

static void command_open(const char *uuid)
{
    cuda_handle = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (!cuda_handle)
        say("{\"error\": \"libcuda.so.1 cannot be loaded\"}");
    else
        say("{\"result\": %d}", open_card(uuid));
}

static void command_view(void)
{
    size_t free_bytes = 0, total_bytes = 0, device_bytes = 0;
    unsigned long long nvml_total = 0, nvml_used = 0, nvml_free = 0;
    unsigned int count = 0;
    CUresult result = CUDA("cuMemGetInfo_v2", size_t *, size_t *)(&free_bytes, &total_bytes);
    CUDA("cuDeviceTotalMem_v2", size_t *, CUdevice)(&device_bytes, device);
    if (load_nvml() && NVML("nvmlDeviceGetCount_v2", unsigned int *)(&count) == NVML_SUCCESS)
        for (unsigned int index = 0; index < count; index++) {
            char uuid[96] = "";
            nvmlMemory_t memory = {0, 0, 0};
            nvmlDevice_t card = nvml_device(index);
            NVML("nvmlDeviceGetUUID", nvmlDevice_t, char *, unsigned int)(card, uuid, sizeof uuid);
            if (strcmp(uuid, uuid_text) == 0 && NVML("nvmlDeviceGetMemoryInfo", nvmlDevice_t, nvmlMemory_t *)(card, &memory) == NVML_SUCCESS)
                nvml_total = memory.total, nvml_used = memory.used, nvml_free = memory.free;
        }
    say("{\"result\": %d, \"total_bytes\": %llu, \"free_bytes\": %llu, \"device_total_bytes\": %llu, \"nvml_total_bytes\": %llu, "
        "\"nvml_used_bytes\": %llu, \"nvml_free_bytes\": %llu}",
        result, (unsigned long long)total_bytes, (unsigned long long)free_bytes, (unsigned long long)device_bytes, nvml_total, nvml_used, nvml_free);
}

static CUresult allocate(uint64_t bytes)
{
    if (block_count == BLOCKS_MAX)
        return -1;
    CUresult result = CUDA("cuMemAlloc_v2", CUdeviceptr *, size_t)(&blocks[block_count], bytes);
    if (result == CUDA_SUCCESS)
        block_bytes[block_count++] = bytes;
    return result;
}

static uint64_t allocated_bytes(void)
{
    uint64_t bytes = 0;
    for (uint32_t index = 0; index < block_count; index++)
        bytes += block_bytes[index];
    return bytes;
}

static void command_fill(uint64_t step_bytes, uint64_t most_bytes)
{
    CUresult result = CUDA_SUCCESS;
    uint64_t total = allocated_bytes();
    while (total + step_bytes <= most_bytes && (result = allocate(step_bytes)) == CUDA_SUCCESS)
        total += step_bytes;
    say("{\"result\": %d, \"allocated_bytes\": %llu}", result, (unsigned long long)total);
}

static void command_drain(void)
{
    CUresult result = CUDA_SUCCESS;
    while (block_count && result == CUDA_SUCCESS)
        result = CUDA("cuMemFree_v2", CUdeviceptr)(blocks[--block_count]);
    say("{\"result\": %d}", result);
}

static void command_spin(uint64_t kernel_us, uint64_t milliseconds)
{
    CUresult (*launch)(CUfunction, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int, CUstream,
        void **, void **) = (CUresult(*)(CUfunction, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int,
        unsigned int, CUstream, void **, void **))dlsym(cuda_handle, "cuLaunchKernel");
    unsigned int us = (unsigned int)kernel_us;
    void *parameters[] = {&us};
    uint64_t began = now_us(), launches = 0;
    CUresult result = CUDA_SUCCESS;
    /* two in flight keep the card busy without a queue that would outlast the time */
    while (result == CUDA_SUCCESS && now_us() - began < milliseconds * 1000u) {
        for (int index = 0; index < 2 && result == CUDA_SUCCESS; index++)
            result = launch(spin_function, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL);
        if (result == CUDA_SUCCESS)
            result = CUDA("cuCtxSynchronize", void)();
        launches += 2;
    }
    say("{\"result\": %d, \"launches\": %llu, \"gpu_us\": %llu, \"wall_us\": %llu}", result, (unsigned long long)launches,
        (unsigned long long)(launches * kernel_us), (unsigned long long)(now_us() - began));
}

static bool is_per_thread(const char *symbol)
{
    size_t chars = strlen(symbol);
    return chars > 5 && (strcmp(symbol + chars - 5, "_ptsz") == 0 || strcmp(symbol + chars - 5, "_ptds") == 0);
}

/* The driver decides whether it knows a symbol; where both ways know it, they must agree. */
static void check_route(const char *symbol, const char *base, int since, const char *class, bool *ret_is_first)
{
    if (strcmp(class, "resolve") == 0) /* drivers differ in whether the resolver itself has a per-thread flavour */
        return;
    void *by_name = dlsym(cuda_handle, symbol), *by_request = NULL;
    uint64_t flags = is_per_thread(symbol) ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM : 0;
    int status;
    CUresult result = -1;
    if (dlsym(cuda_handle, "cuGetProcAddress_v2"))
        result = CUDA("cuGetProcAddress_v2", const char *, void **, int, uint64_t, int *)(base, &by_request, since, flags, &status);
    else if (dlsym(cuda_handle, "cuGetProcAddress"))
        result = CUDA("cuGetProcAddress", const char *, void **, int, uint64_t)(base, &by_request, since, flags);
    if (result != CUDA_SUCCESS || !by_request || !by_name || by_name == by_request)
        return;
    say("%s\"%s\"", *ret_is_first ? "" : ", ", symbol);
    *ret_is_first = false;
}

static void command_routes(void)
{
    bool is_first = true;
    say("{\"wrong\": [");
#define CUDA_HOOK(symbol, base, since, class, parameters) check_route(#symbol, base, since, #class, &is_first);
#include "abi/hooks.def"
    say("]}");
}

static bool read_line(char line[LINE_BYTES])
{
    for (size_t chars = 0; chars < LINE_BYTES - 1; chars++) {
        if (read(STDIN_FILENO, &line[chars], 1) != 1)
            return false;
        if (line[chars] == '\n') {
            line[chars] = '\0';
            return true;
        }
    }
    return false;
}

int main(void)
{
    char line[LINE_BYTES];
    while (read_line(line)) {
        char *argument = strchr(line, ' ');
        const char *rest = "";
        uint64_t first = 0, second = 0;
        if (argument) {
            *argument++ = '\0';
            first = tf_decimal(argument, &rest);
            second = *rest ? tf_decimal(rest + 1, &rest) : 0;
        }
        if (strcmp(line, "cards") == 0)
            command_cards();
        else if (strcmp(line, "open") == 0 && argument)
            command_open(argument);
        else if (strcmp(line, "quit") == 0)
            return 0;
        else if (!cuda_handle)
            say("{\"error\": \"no card is open\"}");
        else if (strcmp(line, "view") == 0)
            command_view();
        else if (strcmp(line, "fill") == 0 && first)
            command_fill(first, second);
        else if (strcmp(line, "alloc") == 0)
            say("{\"result\": %d}", allocate(first));
        else if (strcmp(line, "drain") == 0)
            command_drain();
        else if (strcmp(line, "spin") == 0)
            command_spin(first, second);
        else if (strcmp(line, "routes") == 0)
            command_routes();
        else
            say("{\"error\": \"unknown command\"}");
        send_answer();
    }
    return 0;
}
