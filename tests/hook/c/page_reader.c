/* page_reader.c PAGE MILLISECONDS: reads a mapped page as the hook does, as fast as it can, and says what it saw as JSON.
 *
 * The writer puts the same number into several fields of every card (percent, neighbours, MiB): a page where they differ is torn. A word on
 * GPU time has its busy time as its begin and three times that as its end. */
#include "slice/config_page.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static unsigned long long now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (unsigned long long)now.tv_sec * 1000u + (unsigned long long)now.tv_nsec / 1000000u;
}

static bool is_torn(const struct tenfold_config_copy *copy)
{
    for (uint32_t gpu = 0; gpu < copy->gpu_count; gpu++) {
        const struct tenfold_gpu_config *config = &copy->gpus[gpu];
        if (config->core_limit_percent != copy->gpus[0].core_limit_percent || config->neighbours != config->core_limit_percent
            || config->memory_limit_bytes >> 20 != config->core_limit_percent)
            return true;
    }
    return false;
}

int main(int argc, char **argv)
{
    unsigned long long words = 0, torn_words = 0, last_ns = 0, reads = 0, torn = 0, errors = 0, backwards = 0, pages = 0, last = 0;
    int descriptor = argc == 3 ? open(argv[1], O_RDONLY) : -1;
    const void *page = descriptor < 0 ? MAP_FAILED : mmap(NULL, TENFOLD_CONFIG_BYTES, PROT_READ, MAP_SHARED, descriptor, 0);
    if (page == MAP_FAILED)
        return 2;
    puts("ready");
    fflush(stdout);
    for (unsigned long long until_ms = now_ms() + strtoull(argv[2], NULL, 10); now_ms() < until_ms; reads++) {
        struct tenfold_config_copy copy;
        struct tenfold_busy_window window;
        unsigned char uuid[16];
        uint32_t abi;
        if (tf_uuid_parse("GPU-11111111-2222-3333-4444-555555555555", uuid) && tf_busy_read(page, uuid, &window)) {
            torn_words += window.from_ns != window.busy_ns || window.to_ns != 3 * window.busy_ns;
            words += window.to_ns != last_ns;
            last_ns = window.to_ns;
        }
        if (tf_config_read(page, &copy, &abi) != 0) {
            errors++;
            continue;
        }
        torn += is_torn(&copy);
        backwards += copy.generation < last;
        pages += copy.generation != last;
        last = copy.generation;
    }
    printf("{\"reads\": %llu, \"torn\": %llu, \"errors\": %llu, \"backwards\": %llu, \"pages\": %llu, \"last\": %llu, \"words\": %llu, "
           "\"torn_words\": %llu}\n",
        reads, torn, errors, backwards, pages, last, words, torn_words);
    return 0;
}
