/* busy_reader.c: what the hook takes for the host's word on GPU time, from pages of every kind of damage. Built with sanitizers.
 *
 * The page ends where its memory ends, so that a read behind it is seen. */
#include "slice/config_page.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failures;

static void expect(bool is_true, const char *what, unsigned number)
{
    if (!is_true && failures++ < 10)
        fprintf(stderr, "%s, number %u\n", what, number);
}

int main(void)
{
    unsigned char *page = calloc(1, TENFOLD_CONFIG_BYTES), uuid[16];
    struct tenfold_busy_window window = {.from_ns = 1000, .to_ns = 2000, .busy_ns = 1000}, read;
    if (!page || !tf_uuid_parse("GPU-11111111-2222-3333-4444-555555555555", uuid))
        return 2;
    expect(!tf_busy_read(page, uuid, &read), "zeros tell something", 0);
    memcpy(window.uuid, uuid, sizeof uuid);
    window.checksum = tf_busy_checksum(&window);
    for (unsigned index = 0; index < TENFOLD_BUSY_WINDOWS; index++) {
        unsigned char *entry = page + TENFOLD_BUSY_OFFSET + index * sizeof window;
        memcpy(entry, &window, sizeof window);
        expect(tf_busy_read(page, uuid, &read) && memcmp(&read, &window, sizeof window) == 0, "a whole word is not read", index);
        for (unsigned bit = 0; bit < 8 * sizeof window; bit++) {
            entry[bit / 8] ^= (unsigned char)(1u << bit % 8);
            expect(!tf_busy_read(page, uuid, &read), "a damaged word is read", bit);
            entry[bit / 8] ^= (unsigned char)(1u << bit % 8);
        }
        memset(entry, 0, sizeof window);
    }
    const uint64_t bounds[] = {0, 1, 999, 1000, 1001, 2000, UINT64_MAX / 2, UINT64_MAX - 1, UINT64_MAX};
    enum { BOUNDS = sizeof bounds / sizeof *bounds };
    for (unsigned number = 0; number < BOUNDS * BOUNDS * BOUNDS; number++) {
        window.from_ns = bounds[number % BOUNDS], window.to_ns = bounds[number / BOUNDS % BOUNDS], window.busy_ns = bounds[number / BOUNDS / BOUNDS];
        window.checksum = tf_busy_checksum(&window);
        memcpy(page + TENFOLD_BUSY_OFFSET, &window, sizeof window);
        bool makes_sense = window.from_ns < window.to_ns && window.busy_ns <= window.to_ns - window.from_ns;
        expect(tf_busy_read(page, uuid, &read) == makes_sense, "a sealed word of odd numbers is misjudged", number);
    }
    free(page);
    return failures ? 1 : 0;
}
