/* standalone.h - limits from HAMi-core's environment variables, where no slice is mounted. */
#pragma once

#include "slice/slice.h"

/* TF_NO_SLICE when no variable is set; else TF_ENFORCED. Returns an enum tf_stance. */
int tf_standalone_attach(struct tf_container *container);

/* Cards are met one by one: the number in the state of the card that CUDA calls `ordinal`, with its quota taken; or -1. */
int tf_standalone_gpu(struct tf_container *container, int ordinal, const unsigned char uuid[16]);
