/* config_page.c - the host's configuration page, as a reader finds it.
 *
 * Owns: the checksum and the choice between two copies.
 * Next: page_writer.c changes pages; container.c keeps what was read. */
#include "config_page.h"

#include <errno.h>
#include <string.h>

enum { READ_TRIES = 4 }; /* a writer replaces the copy that we read only if two writes overtake one memcpy */

uint64_t tf_config_checksum(const struct tenfold_config_copy *copy)
{
    const unsigned char *bytes = (const unsigned char *)copy;
    uint64_t value = 0xcbf29ce484222325ull;
    for (size_t index = 0; index < sizeof *copy; index++)
        value = (value ^ (index < sizeof copy->checksum ? 0 : bytes[index])) * 0x100000001b3ull;
    return value;
}

bool tf_config_take(const void *page, uint32_t index, struct tenfold_config_copy *ret_copy)
{
    struct tenfold_config_copy copy;
    memcpy(&copy, (const char *)page + TENFOLD_CONFIG_COPY_OFFSET(index), sizeof copy);
    if (copy.checksum != tf_config_checksum(&copy) || copy.gpu_count > TENFOLD_GPUS_MAX)
        return false;
    for (uint32_t gpu = 0; gpu < copy.gpu_count; gpu++)
        copy.gpus[gpu].uuid[TENFOLD_UUID_CHARS - 1] = '\0';
    *ret_copy = copy;
    return true;
}

int tf_config_read(const void *page, struct tenfold_config_copy *ret_copy, uint32_t *ret_abi)
{
    const struct tenfold_header *header = page;
    if (header->magic != TENFOLD_CONFIG_MAGIC)
        return -EPROTO;
    *ret_abi = header->abi_version;
    if (header->abi_version != TENFOLD_ABI_VERSION || header->file_bytes != TENFOLD_CONFIG_BYTES)
        return -EPROTO;
    for (int tries = 0; tries < READ_TRIES; tries++) {
        uint32_t active = __atomic_load_n(&header->active, __ATOMIC_ACQUIRE) & 1u;
        if (tf_config_take(page, active, ret_copy) || tf_config_take(page, 1u - active, ret_copy))
            return 0;
    }
    return -EBADMSG;
}
