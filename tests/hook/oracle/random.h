/* random.h - a small generator whose seed reproduces a run (splitmix64, Steele, Lea, Flood 2014). */
#ifndef TENFOLD_ORACLE_RANDOM_H
#define TENFOLD_ORACLE_RANDOM_H

#include <stdint.h>

static inline uint64_t random_next(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static inline uint64_t random_below(uint64_t *state, uint64_t bound) { return random_next(state) % bound; }

#endif
