/* page_writer.c - writing the host's configuration page (contract: page_writer.h).
 *
 * Owns: the protocol of two copies and an active index, generations, the lock between writers; and which entry a word on GPU time takes.
 * Next: config_page.c reads what is written here; plugins/module_utils/tenfold/page_writer.py calls it. */
#include "host/page_writer.h"

#include "slice/config_page.h"

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

/* The entry of the card; else one that tells nothing; else the oldest, which can only be of a card that the slot has no more. */
static uint32_t choose_entry(const unsigned char *page, const unsigned char uuid[16])
{
    uint32_t oldest = 0;
    uint64_t oldest_ns = UINT64_MAX;
    for (uint32_t index = 0; index < TENFOLD_BUSY_WINDOWS; index++) {
        struct tenfold_busy_window window;
        memcpy(&window, page + TENFOLD_BUSY_OFFSET + index * sizeof window, sizeof window);
        if (memcmp(window.uuid, uuid, sizeof window.uuid) == 0)
            return index;
        uint64_t to_ns = window.checksum == tf_busy_checksum(&window) ? window.to_ns : 0;
        if (to_ns < oldest_ns) {
            oldest = index;
            oldest_ns = to_ns;
        }
    }
    return oldest;
}

int tenfold_page_tell_busy(int descriptor, const struct tenfold_busy_window *window, size_t window_bytes)
{
    unsigned char page[TENFOLD_CONFIG_COPY_OFFSET(0)];
    struct tenfold_header header;
    if (window_bytes != sizeof *window)
        return -EPROTO;
    if (window->to_ns <= window->from_ns || window->busy_ns > window->to_ns - window->from_ns)
        return -EINVAL;
    if (pread(descriptor, page, sizeof page, 0) != (ssize_t)sizeof page)
        return -EPROTO;
    memcpy(&header, page, sizeof header);
    if (header.magic != TENFOLD_CONFIG_MAGIC || header.abi_version != TENFOLD_ABI_VERSION || header.file_bytes != TENFOLD_CONFIG_BYTES)
        return -EPROTO;
    struct tenfold_busy_window entry = *window;
    entry.checksum = tf_busy_checksum(&entry);
    return write_all(descriptor, &entry, sizeof entry, (off_t)(TENFOLD_BUSY_OFFSET + choose_entry(page, entry.uuid) * sizeof entry));
}
