/* nested.h - is this call one that the driver itself makes while it serves another? Then it is part of what was already charged.
 *
 * The real driver binds its calls inside; a driver that calls itself through the global scope would else be charged twice. */
#pragma once

#include "base/sync.h"

#include <stdbool.h>

extern _Thread_local int tf_nesting;

static inline bool tf_is_nested(void) { return TF_UNLIKELY(tf_nesting != 0); }

/* The value of a driver call, made with nesting on. */
#define TF_NESTED(call) \
    __extension__({ \
        tf_nesting++; \
        CUresult tf_nested_result = (call); \
        tf_nesting--; \
        tf_nested_result; \
    })
