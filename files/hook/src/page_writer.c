/* page_writer.c - writing the host's configuration page (contract: page_writer.h).
 *
 * Owns: the protocol of two copies and an active index, generations, and the lock between writers.
 * Next: config_page.c reads what is written here; plugins/module_utils/tenfold/page_writer.py calls it. */
#include "page_writer.h"

#include "config_page.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#define LOCK_STEP_NS 1000000l

uint32_t tenfold_page_abi(void) { return TENFOLD_ABI_VERSION; }

static bool is_sound(const struct tenfold_config_copy *copy)
{
    if (copy->gpu_count > TENFOLD_GPUS_MAX || copy->policy > TENFOLD_POLICY_OPEN)
        return false;
    for (uint32_t gpu = 0; gpu < copy->gpu_count; gpu++) {
        const struct tenfold_gpu_config *config = &copy->gpus[gpu];
        if (config->memory_limit_bytes > TENFOLD_BYTES_MASK || config->overhead_reserve_bytes > TENFOLD_BYTES_MASK
            || config->core_limit_percent > 100 || config->mode > TENFOLD_MODE_PRIORITY || config->pressure > TENFOLD_PRESSURE_EQUAL
            || config->overhead > TENFOLD_OVERHEAD_RESERVED || config->uuid[TENFOLD_UUID_CHARS - 1] != '\0')
            return false;
    }
    return true;
}

static int write_all(int descriptor, const void *data, size_t bytes, off_t offset)
{
    ssize_t written = pwrite(descriptor, data, bytes, offset);
    if (written < 0)
        return -errno;
    return (size_t)written == bytes ? 0 : -ENOSPC;
}

static void seal(struct tenfold_config_copy *copy, uint64_t generation)
{
    copy->generation = generation;
    copy->checksum = tf_config_checksum(copy);
}

int tenfold_page_create(int descriptor, const struct tenfold_config_copy *copy, size_t copy_bytes)
{
    if (copy_bytes != sizeof *copy)
        return -EPROTO;
    if (!is_sound(copy))
        return -EINVAL;
    struct tenfold_config_copy first = *copy;
    seal(&first, 1);
    struct tenfold_header header = {
        .magic = TENFOLD_CONFIG_MAGIC,
        .abi_version = TENFOLD_ABI_VERSION,
        .header_bytes = sizeof header,
        .file_bytes = TENFOLD_CONFIG_BYTES,
        .generation = 1,
    };
    int error = write_all(descriptor, &first, sizeof first, (off_t)TENFOLD_CONFIG_COPY_OFFSET(0));
    if (!error)
        error = write_all(descriptor, &first, sizeof first, (off_t)TENFOLD_CONFIG_COPY_OFFSET(1));
    return error ? error : write_all(descriptor, &header, sizeof header, 0);
}

static int write_locked(int descriptor, struct tenfold_config_copy *copy, uint64_t expected_generation)
{
    unsigned char page[TENFOLD_CONFIG_BYTES];
    struct tenfold_config_copy old;
    struct tenfold_header header;
    uint32_t abi;
    if (pread(descriptor, page, sizeof page, 0) != (ssize_t)sizeof page)
        return -EPROTO;
    int error = tf_config_read(page, &old, &abi);
    if (error)
        return error;
    if (expected_generation && expected_generation != old.generation)
        return -ESTALE;
    /* the copy in force may be the inactive one, if the active one is damaged */
    memcpy(&header, page, sizeof header);
    uint32_t active = header.active & 1u, in_force = tf_config_take(page, active, &old) ? active : 1u - active;

    seal(copy, old.generation + 1);
    struct {
        uint64_t generation;
        uint32_t active;
    } __attribute__((packed)) switch_words = {copy->generation, 1u - in_force};
    error = write_all(descriptor, copy, sizeof *copy, (off_t)TENFOLD_CONFIG_COPY_OFFSET(1u - in_force));
    return error ? error : write_all(descriptor, &switch_words, sizeof switch_words, offsetof(struct tenfold_header, generation));
}

static uint64_t now_ms(void)
{
    struct timespec now = {0, 0};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000u + (uint64_t)now.tv_nsec / 1000000u;
}

static int lock(int descriptor, uint32_t wait_ms)
{
    const struct timespec step = {0, LOCK_STEP_NS};
    uint64_t until_ms = now_ms() + wait_ms;
    while (flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            return -errno;
        if (now_ms() >= until_ms)
            return -ETIMEDOUT;
        nanosleep(&step, NULL);
    }
    return 0;
}

int tenfold_page_write(int descriptor, const struct tenfold_config_copy *copy, size_t copy_bytes, uint64_t expected_generation, uint32_t wait_ms,
    uint64_t *ret_generation)
{
    if (copy_bytes != sizeof *copy)
        return -EPROTO;
    if (!is_sound(copy))
        return -EINVAL;
    struct tenfold_config_copy next = *copy;
    int error = lock(descriptor, wait_ms);
    if (error)
        return error;
    error = write_locked(descriptor, &next, expected_generation);
    flock(descriptor, LOCK_UN);
    if (!error)
        *ret_generation = next.generation;
    return error;
}
