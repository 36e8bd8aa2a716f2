/* route.c - cuGetProcAddress: from a name, a CUDA version and a default-stream flag to the one symbol of that very ABI.
 *
 * The table is symbols.c. The answer is the newest ABI whose version is not above the one asked for; a version above the driver's is
 * an invalid value, so that an ABI newer than the driver is never replaced by an older one. Public rules: CUDA driver API, "Driver Entry
 * Point Access" (11.7 for the first ABI, 12.9 for the second, 13.4 for versions above the driver's). */
#include "route.h"

static size_t first_of_name(const char *name)
{
    size_t low = 0, high = route_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (strcmp(route_table[middle].asked, name) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* NULL if no ABI of that name is old enough; *ret_is_known says whether the name exists at all. */
static const struct route *find_route(const char *name, int version, enum routing routing, bool *ret_is_known)
{
    const struct route *best = NULL;
    *ret_is_known = false;
    for (size_t i = first_of_name(name); i < route_count && strcmp(route_table[i].asked, name) == 0; i++) {
        *ret_is_known = true;
        if (route_table[i].routing == routing && route_table[i].version <= version && (!best || route_table[i].version > best->version))
            best = &route_table[i];
    }
    return best;
}

/* *ret_status is one of CU_GET_PROC_ADDRESS_*; *ret_entry is NULL unless it is SUCCESS. Errors are those of usage alone. */
static CUresult resolve(const char *name, void **ret_entry, int version, uint64_t flags, int *ret_status)
{
    REQUIRE(name && ret_entry, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(flags <= CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, CUDA_ERROR_INVALID_VALUE);
    *ret_entry = NULL;
    int driver_version = 0;
    TRY(driver_cuda_version(&driver_version));
    REQUIRE(version <= driver_version, CUDA_ERROR_INVALID_VALUE);
    bool is_known = false;
    const struct route *route = NULL;
    if (flags == CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM)
        route = find_route(name, version, ROUTE_PER_THREAD, &is_known);
    if (!route)
        route = find_route(name, version, ROUTE_LEGACY, &is_known);
    *ret_status = route ? CU_GET_PROC_ADDRESS_SUCCESS
                        : is_known ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    if (route)
        memcpy(ret_entry, &route->entry, sizeof *ret_entry);
    return CUDA_SUCCESS;
}

/* Callable before cuInit, as the runtime does. */
#define UNREADY_ENTRY(symbol, parameters, call) \
    CUDA_EXPORT symbol parameters               \
    {                                           \
        ENTER_UNREADY(symbol);                  \
        return call;                            \
    }

/* The first ABI (CUDA 11.3) answers "not found" as an error ... */
static CUresult resolve_or_fail(const char *name, void **ret_entry, int version, uint64_t flags)
{
    int status = CU_GET_PROC_ADDRESS_SUCCESS;
    TRY(resolve(name, ret_entry, version, flags, &status));
    return status == CU_GET_PROC_ADDRESS_SUCCESS ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

/* ... the second (CUDA 12) as success with a NULL pointer and a status. */
static CUresult resolve_with_status(const char *name, void **ret_entry, int version, uint64_t flags, int *ret_status)
{
    int status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    TRY(resolve(name, ret_entry, version, flags, &status));
    if (ret_status)
        *ret_status = status;
    return CUDA_SUCCESS;
}

/* NVIDIA's headers make the twins inline functions that set the flag; the names are exported for completeness. */
static uint64_t flags_of_thread(uint64_t flags)
{
    return flags ? flags : CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
}

UNREADY_ENTRY(cuGetProcAddress, (const char *name, void **ret_entry, int version, uint64_t flags),
              resolve_or_fail(name, ret_entry, version, flags))
UNREADY_ENTRY(cuGetProcAddress_ptsz, (const char *name, void **ret_entry, int version, uint64_t flags),
              resolve_or_fail(name, ret_entry, version, flags_of_thread(flags)))
UNREADY_ENTRY(cuGetProcAddress_v2, (const char *name, void **ret_entry, int version, uint64_t flags, int *ret_status),
              resolve_with_status(name, ret_entry, version, flags, ret_status))
UNREADY_ENTRY(cuGetProcAddress_v2_ptsz, (const char *name, void **ret_entry, int version, uint64_t flags, int *ret_status),
              resolve_with_status(name, ret_entry, version, flags_of_thread(flags), ret_status))

/* The runtime's private tables are NVIDIA's secret and end in an integrity check: there are none here. */
CUDA_EXPORT cuGetExportTable(const void **ret_table, const CUuuid *id)
{
    ENTER_UNREADY(cuGetExportTable);
    REQUIRE(ret_table && id, CUDA_ERROR_INVALID_VALUE);
    *ret_table = NULL;
    return CUDA_ERROR_NOT_FOUND;
}
