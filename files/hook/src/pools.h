/* pools.h - memory that the driver keeps in pools: stream-ordered pools and the pool of graphs. Charged is what a pool reserves, not what is
 * allocated from it. Pools shrink behind our back (at synchronisation), so their size is asked again where it matters. */
#ifndef TENFOLD_POOLS_H
#define TENFOLD_POOLS_H

#include "container.h"
#include "driver.h"

/* Asks every known pool for its size and corrects the charge. */
void tf_pools_refresh(struct tf_container *container, const struct tf_cuda *cuda);

/* An address that is no plain allocation has been freed: a destroyed pool may be gone with its last block. */
void tf_pools_freed(CUdeviceptr pointer);

/* Graphs of this process may hold memory of a card from now on. */
void tf_pools_note_graph(struct tf_container *container, const struct tf_cuda *cuda, CUdevice device);
bool tf_pools_has_graphs(void);

/* In a forked child: there are none. */
void tf_pools_reset(void);

#endif
