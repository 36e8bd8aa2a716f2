/* link.c - the linker: PTX texts in, one text out that cuModuleLoadData takes as if it were a binary. Nothing is compiled. */
#include <stdlib.h>

#include "driver.h"

struct CUlinkState_st {
    struct object head;
    char *text;
    size_t bytes;
    bool is_complete;
};
typedef struct CUlinkState_st *CUlinkState;

enum { INPUT_CUBIN = 0, INPUT_PTX = 1 };

static CUresult create(unsigned count, int *options, void **values, CUlinkState *ret_state)
{
    REQUIRE(ret_state && (count == 0 || (options && values)), CUDA_ERROR_INVALID_VALUE);
    CUlinkState state = object_new(KIND_LINKER, sizeof *state);
    REQUIRE(state, CUDA_ERROR_OUT_OF_MEMORY);
    *ret_state = state;
    return CUDA_SUCCESS;
}

CUDA_EXPORT cuLinkCreate(unsigned count, int *options, void **values, CUlinkState *ret_state)
{
    ENTER(cuLinkCreate);
    return create(count, options, values, ret_state);
}

CUDA_EXPORT cuLinkCreate_v2(unsigned count, int *options, void **values, CUlinkState *ret_state)
{
    ENTER(cuLinkCreate_v2);
    return create(count, options, values, ret_state);
}

static CUresult add(CUlinkState state, int type, const void *data, size_t bytes)
{
    REQUIRE(object_is(state, KIND_LINKER), CUDA_ERROR_INVALID_HANDLE);
    REQUIRE(data && bytes && !state->is_complete, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(type == INPUT_PTX, CUDA_ERROR_NOT_SUPPORTED);
    REQUIRE(memmem(data, bytes, ".version", 8), CUDA_ERROR_INVALID_PTX);
    char *grown = realloc(state->text, state->bytes + bytes + 2);
    REQUIRE(grown, CUDA_ERROR_OUT_OF_MEMORY);
    memcpy(grown + state->bytes, data, bytes);
    state->bytes += strnlen(grown + state->bytes, bytes);
    grown[state->bytes++] = '\n';
    grown[state->bytes] = '\0';
    state->text = grown;
    return CUDA_SUCCESS;
}

CUDA_EXPORT cuLinkAddData(CUlinkState state, int type, void *data, size_t bytes, const char *name, unsigned count, int *options,
                          void **values)
{
    ENTER(cuLinkAddData);
    (void)name, (void)count, (void)options, (void)values;
    return add(state, type, data, bytes);
}

CUDA_EXPORT cuLinkAddData_v2(CUlinkState state, int type, void *data, size_t bytes, const char *name, unsigned count, int *options,
                             void **values)
{
    ENTER(cuLinkAddData_v2);
    (void)name, (void)count, (void)options, (void)values;
    return add(state, type, data, bytes);
}

/* The result belongs to the state. */
CUDA_EXPORT cuLinkComplete(CUlinkState state, void **ret_image, size_t *ret_bytes)
{
    ENTER(cuLinkComplete);
    REQUIRE(object_is(state, KIND_LINKER), CUDA_ERROR_INVALID_HANDLE);
    REQUIRE(ret_image && state->text, CUDA_ERROR_INVALID_VALUE);
    state->is_complete = true;
    *ret_image = state->text;
    if (ret_bytes)
        *ret_bytes = state->bytes;
    return CUDA_SUCCESS;
}

CUDA_EXPORT cuLinkDestroy(CUlinkState state)
{
    ENTER(cuLinkDestroy);
    REQUIRE(object_is(state, KIND_LINKER), CUDA_ERROR_INVALID_HANDLE);
    free(state->text);
    object_free(state);
    return CUDA_SUCCESS;
}
