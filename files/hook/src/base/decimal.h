/* decimal.h - numbers out of text. The C library's strtoull carries a symbol version of its newest release into our object. */
#pragma once

#include <stdint.h>

/* Digits from `text` on; *ret_end is the first other character. UINT64_MAX on overflow; 0 and *ret_end == text without a digit. */
static inline uint64_t tf_decimal(const char *text, const char **ret_end)
{
    uint64_t value = 0;
    for (; *text >= '0' && *text <= '9'; text++) {
        uint64_t digit = (uint64_t)(*text - '0');
        value = value > (UINT64_MAX - digit) / 10 ? UINT64_MAX : value * 10 + digit;
    }
    *ret_end = text;
    return value;
}
