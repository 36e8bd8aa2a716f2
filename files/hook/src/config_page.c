/* config_page.c - the host's configuration page.
 *
 * Owns: the protocol of two checksummed copies and an active index. plugins/module_utils/tenfold/region.py writes the same bytes.
 * Next: quota.c keeps what was read; vgpuctl.c writes. */
#include "config_page.h"

#include <errno.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

enum { READ_TRIES = 4 }; /* a writer replaces the copy that we read only if two writes overtake one memcpy */

uint64_t tf_config_checksum(const struct tenfold_config_copy *copy)
{
    const unsigned char *bytes = (const unsigned char *)copy;
    uint64_t value = 0xcbf29ce484222325ull;
    for (size_t index = 0; index < sizeof *copy; index++)
        value = (value ^ (index < sizeof copy->checksum ? 0 : bytes[index])) * 0x100000001b3ull;
    return value;
}

static bool take_copy(const void *page, uint32_t index, struct tenfold_config_copy *ret_copy)
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
        if (take_copy(page, active, ret_copy) || take_copy(page, 1u - active, ret_copy))
            return 0;
    }
    return -EBADMSG;
}

static int write_all(int descriptor, const void *data, size_t bytes, off_t offset)
{
    ssize_t written = pwrite(descriptor, data, bytes, offset);
    if (written < 0)
        return -errno;
    return (size_t)written == bytes ? 0 : -ENOSPC;
}

static int write_locked(int descriptor, const struct tenfold_config_copy *copy)
{
    unsigned char page[TENFOLD_CONFIG_BYTES];
    struct tenfold_config_copy old, new_copy = *copy;
    uint32_t abi;
    if (pread(descriptor, page, sizeof page, 0) != (ssize_t)sizeof page)
        return -EPROTO;
    int error = tf_config_read(page, &old, &abi);
    if (error)
        return error;
    /* the copy in force may be the inactive one, if the active one is damaged */
    struct tenfold_header header;
    memcpy(&header, page, sizeof header);
    uint32_t in_force = take_copy(page, header.active & 1u, &old) ? header.active & 1u : 1u - (header.active & 1u);

    new_copy.generation = old.generation + 1;
    new_copy.checksum = tf_config_checksum(&new_copy);
    struct {
        uint64_t generation;
        uint32_t active;
    } __attribute__((packed)) switch_words = {new_copy.generation, 1u - in_force};
    error = write_all(descriptor, &new_copy, sizeof new_copy, (off_t)TENFOLD_CONFIG_COPY_OFFSET(1u - in_force));
    return error ? error : write_all(descriptor, &switch_words, 12, offsetof(struct tenfold_header, generation));
}

int tf_config_write(int descriptor, const struct tenfold_config_copy *copy)
{
    if (flock(descriptor, LOCK_EX) != 0)
        return -errno;
    int error = write_locked(descriptor, copy);
    flock(descriptor, LOCK_UN);
    return error;
}
