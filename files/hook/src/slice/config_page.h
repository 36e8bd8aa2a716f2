/* config_page.h - the host's configuration page, read.
 *
 * Contract: a reader gets a whole, checksummed copy or an error, however writers (page_writer.h) behave or die. 0 or negative errno;
 *           out-parameters are untouched on failure. */
#pragma once

#include "tenfold_region.h"

#include <stdbool.h>
#include <stdint.h>

/* FNV-1a over the copy with its checksum taken as zero. */
uint64_t tf_config_checksum(const struct tenfold_config_copy *copy);

/* Copy number `index`, if it is whole. */
bool tf_config_take(const void *page, uint32_t index, struct tenfold_config_copy *ret_copy);

/* "GPU-..." or "MIG-..." to 16 bytes. */
bool tf_uuid_parse(const char *text, unsigned char ret_uuid[16]);

/* FNV-1a over the entry with its checksum taken as zero. */
uint64_t tf_busy_checksum(const struct tenfold_busy_window *window);

/* What the host last told of a card's GPU time, from a mapped (or read) page. false: nothing, or nothing that is whole and makes sense. How
 * old it is, is for the caller to judge. */
bool tf_busy_read(const void *page, const unsigned char uuid[16], struct tenfold_busy_window *ret_window);

/* Reads the copy in force from a mapped (or read) page of TENFOLD_CONFIG_BYTES. -EPROTO: no page or another ABI (*ret_abi is set if it is a
 * page); -EBADMSG: both copies are damaged. */
int tf_config_read(const void *page, struct tenfold_config_copy *ret_copy, uint32_t *ret_abi);
