/* random.h - seeded random numbers of the virtual bench: the same seed gives the same run on every machine. */
#ifndef VT_RANDOM_H
#define VT_RANDOM_H

#include <math.h>
#include <stdint.h>

struct vt_random {
    uint64_t state;
};

static inline void random_seed(struct vt_random *random, uint64_t seed) { random->state = seed * UINT64_C(0x9e3779b97f4a7c15) + 1; }

static inline uint64_t random_u64(struct vt_random *random) /* splitmix64 */
{
    uint64_t z = random->state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static inline double random_unit(struct vt_random *random) { return ((double)(random_u64(random) >> 11) + 0.5) / 9007199254740992.0; }

static inline double random_normal(struct vt_random *random)
{
    return sqrt(-2.0 * log(random_unit(random))) * cos(6.283185307179586 * random_unit(random));
}

/* Mean 1, coefficient of variation cv. */
static inline double random_lognormal(struct vt_random *random, double cv)
{
    double variance = log(1.0 + cv * cv);
    return exp(sqrt(variance) * random_normal(random) - variance / 2);
}

#endif
