/* config_page.c - the host's configuration page, as a reader finds it.
 *
 * Owns: the checksums, the choice between two copies, and which word on a card's GPU time counts.
 * Next: page_writer.c changes pages; container.c keeps what was read. */
#include "slice/config_page.h"

#include <errno.h>
#include <string.h>

enum { READ_TRIES = 4 }; /* a writer replaces the copy that we read only if two writes overtake one memcpy */

/* FNV-1a over a struct that begins with its checksum. */
static uint64_t checksum(const void *data, size_t size)
{
    const unsigned char *bytes = data;
    uint64_t value = 0xcbf29ce484222325ull;
    for (size_t index = 0; index < size; index++)
        value = (value ^ (index < sizeof(uint64_t) ? 0 : bytes[index])) * 0x100000001b3ull;
    return value;
}

uint64_t tf_config_checksum(const struct tenfold_config_copy *copy) { return checksum(copy, sizeof *copy); }

uint64_t tf_busy_checksum(const struct tenfold_busy_window *window) { return checksum(window, sizeof *window); }

static int hex_value(char digit)
{
    if (digit >= '0' && digit <= '9')
        return digit - '0';
    digit |= 0x20;
    return digit >= 'a' && digit <= 'f' ? digit - 'a' + 10 : -1;
}

bool tf_uuid_parse(const char *text, unsigned char ret_uuid[16])
{
    unsigned char uuid[16];
    if (strncmp(text, "GPU-", 4) != 0 && strncmp(text, "MIG-", 4) != 0)
        return false;
    const char *cursor = text + 4;
    for (int index = 0; index < 16; index++) {
        if (*cursor == '-')
            cursor++;
        int high = hex_value(cursor[0]), low = high < 0 ? -1 : hex_value(cursor[1]);
        if (low < 0)
            return false;
        uuid[index] = (unsigned char)(high << 4 | low);
        cursor += 2;
    }
    memcpy(ret_uuid, uuid, sizeof uuid);
    return *cursor == '\0';
}

bool tf_busy_read(const void *page, const unsigned char uuid[16], struct tenfold_busy_window *ret_window)
{
    bool is_found = false;
    for (uint32_t index = 0; index < TENFOLD_BUSY_WINDOWS; index++) {
        struct tenfold_busy_window window;
        memcpy(&window, (const char *)page + TENFOLD_BUSY_OFFSET + index * sizeof window, sizeof window);
        if (memcmp(window.uuid, uuid, sizeof window.uuid) != 0 || window.checksum != tf_busy_checksum(&window)
            || window.to_ns <= window.from_ns || window.busy_ns > window.to_ns - window.from_ns
            || (is_found && window.to_ns <= ret_window->to_ns))
            continue;
        *ret_window = window;
        is_found = true;
    }
    return is_found;
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
