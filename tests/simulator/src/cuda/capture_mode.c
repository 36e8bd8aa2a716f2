/* capture_mode.c - which calls an open capture forbids, in which threads.
 *
 * Rules: cuStreamBeginCapture and cuThreadExchangeStreamCaptureMode (CUDA driver API, Stream Management). A capture that is not relaxed forbids
 *        "potentially unsafe" calls to its own thread, a global one to every thread that has not left the global mode; a forbidden call fails
 *        and breaks the capture.
 * Which: NVIDIA names cudaMalloc as an example and no list. cuEventQuery from a watchdog thread breaks captures on real drivers (PyTorch pull
 *        requests 104555 and 148594); frees, synchronisation and physical memory are taken to be alike.
 * Next:  capture.c opens and closes captures, driver.c asks at each entry while one is open. */
#include "graph.h"

enum { MODE_GLOBAL = 0, MODE_RELAXED = 2, OPEN_MAX = 256 };

static __thread int t_mode = MODE_GLOBAL;
static struct capture *g_open[OPEN_MAX]; /* those that are not relaxed; under driver_lock() */

static const char *const g_unsafe[] = {
    "cuMemAlloc_v2", "cuMemAllocPitch_v2", "cuMemAllocManaged", "cuMemFree_v2", "cuMemHostAlloc", "cuMemAllocHost_v2", "cuMemFreeHost",
    "cuMemCreate", "cuMemRelease", "cuMemMap", "cuMemUnmap", "cuEventQuery", "cuEventSynchronize", "cuEventElapsedTime", "cuCtxSynchronize",
    "cuMemcpyDtoH_v2", "cuMemcpyHtoD_v2", "cuMemcpyDtoD_v2", "cuDeviceGraphMemTrim",
};

static const void *this_thread(void) { return &t_mode; }

void capture_mode_opened(struct capture *capture)
{
    capture->thread = this_thread();
    for (unsigned index = 0; capture->mode != MODE_RELAXED && index < OPEN_MAX; index++) {
        if (g_open[index])
            continue;
        g_open[index] = capture;
        atomic_fetch_add(&g_driver.captures_open, 1);
        return;
    }
}

void capture_mode_closed(struct capture *capture)
{
    for (unsigned index = 0; index < OPEN_MAX; index++) {
        if (g_open[index] != capture)
            continue;
        g_open[index] = NULL;
        atomic_fetch_sub(&g_driver.captures_open, 1);
    }
}

static bool is_unsafe(const char *symbol)
{
    for (unsigned index = 0; index < sizeof g_unsafe / sizeof *g_unsafe; index++)
        if (strcmp(g_unsafe[index], symbol) == 0)
            return true;
    return false;
}

static bool forbids(const struct capture *capture)
{
    return capture->thread == this_thread() || (capture->mode == MODE_GLOBAL && t_mode == MODE_GLOBAL);
}

CUresult capture_mode_check(const char *symbol)
{
    bool is_forbidden = false;
    if (t_mode == MODE_RELAXED || !is_unsafe(symbol))
        return CUDA_SUCCESS;
    driver_lock();
    for (unsigned index = 0; index < OPEN_MAX; index++) {
        if (!g_open[index] || !forbids(g_open[index]))
            continue;
        g_open[index]->is_broken = true;
        is_forbidden = true;
    }
    driver_unlock();
    return is_forbidden ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

CUDA_EXPORT cuThreadExchangeStreamCaptureMode(int *mode)
{
    ENTER(cuThreadExchangeStreamCaptureMode);
    REQUIRE(mode && *mode >= MODE_GLOBAL && *mode <= MODE_RELAXED, CUDA_ERROR_INVALID_VALUE);
    int before = t_mode;
    t_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}
