/* words.h - words of the region that several processes change: plain memory in the header, every access atomic. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

static inline uint64_t tf_word_load(const uint64_t *word) { return __atomic_load_n(word, __ATOMIC_SEQ_CST); }

static inline bool tf_word_swap(uint64_t *word, uint64_t expected, uint64_t value)
{
    return __atomic_compare_exchange_n(word, &expected, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}
