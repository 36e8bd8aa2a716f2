/* tiles.h - tiles of sparse arrays that are mapped to physical handles of ours. */
#pragma once

#include "abi/cuda.h"

#include <stdbool.h>
#include <stdint.h>

/* Tiles that the driver is about to be asked to let go of: those that a list names, or all of an array. NULL: there are none. */
struct tf_tiles *tf_tiles_take_listed(const CUarrayMapInfo *list, uint32_t count);
struct tf_tiles *tf_tiles_take(const void *array);

/* And it did, or not. */
void tf_tiles_conclude(struct tf_tiles *tiles, bool is_done);

/* The driver has mapped it. */
void tf_tiles_map(const CUarrayMapInfo *info);
