/* errors.c - names and one-line descriptions of CUDA's error codes. */
#include "driver.h"

struct error_text {
    CUresult code;
    const char *name, *description;
};

static const struct error_text g_texts[] = {
#define ERROR(name, code, description) {code, #name, description},
#include "../../include/cuda_errors.def"
};

static const struct error_text *find(CUresult code)
{
    for (size_t i = 0; i < sizeof g_texts / sizeof g_texts[0]; i++)
        if (g_texts[i].code == code)
            return &g_texts[i];
    return NULL;
}

CUDA_EXPORT cuGetErrorName(CUresult code, const char **ret_name)
{
    const struct error_text *text = find(code);
    REQUIRE(ret_name, CUDA_ERROR_INVALID_VALUE);
    *ret_name = text ? text->name : NULL;
    return text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUDA_EXPORT cuGetErrorString(CUresult code, const char **ret_description)
{
    const struct error_text *text = find(code);
    REQUIRE(ret_description, CUDA_ERROR_INVALID_VALUE);
    *ret_description = text ? text->description : NULL;
    return text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
