/* page_writer.h - the one way in which a host's configuration page comes into being and changes.
 *
 * Who:      vgpuctl, linked in; the device plugin and Ansible through libtenfold_page.so (ctypes). The hook only reads (config_page.h).
 * Contract: the inactive copy is put in place, then a switch of 12 bytes puts it in force; a writer that dies anywhere leaves the last good
 *           copy. One writer at a time, by flock. `copy` has its checksum and generation filled in here, whatever they say.
 *           0 or negative errno; on failure the page in force is the one of before and out-parameters are untouched. Nothing is written where
 *           the number is EINVAL, EPROTO, ESTALE or ETIMEDOUT.
 * Names:    exported and called from outside: what they take changes only together with their name. */
#pragma once

#include "tenfold_region.h"

#include <stddef.h>
#include <stdint.h>

#pragma GCC visibility push(default)

enum { TENFOLD_PAGE_WAIT_MS = 2000 }; /* a writer needs microseconds: one that holds the lock for longer is stuck */

/* TENFOLD_ABI_VERSION of this build. */
uint32_t tenfold_page_abi(void);

/* Makes a page of generation 1 of an open file of TENFOLD_CONFIG_BYTES that nobody reads yet. -EINVAL: values that no reader understands;
 * -EPROTO: `copy_bytes` is another struct's. */
int tenfold_page_create(int descriptor, const struct tenfold_config_copy *copy, size_t copy_bytes);

/* Puts `copy` in force in an open page. `expected_generation` is the page that the caller has looked at, 0: whatever is there.
 * As above, and -ESTALE: another one is in force; -ETIMEDOUT: another writer held the lock for `wait_ms`; -EPROTO: no page, or of another
 * ABI; -EBADMSG: both its copies are damaged. */
int tenfold_page_write(int descriptor, const struct tenfold_config_copy *copy, size_t copy_bytes, uint64_t expected_generation, uint32_t wait_ms,
    uint64_t *ret_generation);

/* Tells the container what the host has seen of its GPU time on a card, in one write of an entry that is no part of the page in force: no
 * generation, no lock. `checksum` is filled in. A reader that meets half of it, or what a writer left that died, takes it as not told.
 * -EINVAL: no window, or busier than long; -EPROTO: `window_bytes` is another struct's, or no page, or of another ABI. */
int tenfold_page_tell_busy(int descriptor, const struct tenfold_busy_window *window, size_t window_bytes);

#pragma GCC visibility pop
