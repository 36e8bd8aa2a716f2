/* mutant.c - hooks that are broken on purpose; linked into a copy of the hook with -Wl,--wrap. The oracle must find each. */
#include "slice/account.h"

int __real_tf_account_charge(struct tenfold_state *state, uint32_t slot, uint32_t gpu, uint64_t bytes, uint64_t limit_bytes);
void __real_tf_account_release(struct tenfold_state *state, uint32_t slot, uint32_t gpu, uint64_t bytes);
int __wrap_tf_account_charge(struct tenfold_state *state, uint32_t slot, uint32_t gpu, uint64_t bytes, uint64_t limit_bytes);
void __wrap_tf_account_release(struct tenfold_state *state, uint32_t slot, uint32_t gpu, uint64_t bytes);
void __wrap_tf_account_reap(struct tenfold_state *state, uint32_t slot);

#if defined MUTANT_LEAK || defined MUTANT_TWICE
void __wrap_tf_account_release(struct tenfold_state *state, uint32_t slot, uint32_t gpu, uint64_t bytes)
{
    static _Atomic uint32_t calls;
    int is_sixtyfourth = ++calls % 64 == 0;
#ifdef MUTANT_LEAK
    if (!is_sixtyfourth)
        __real_tf_account_release(state, slot, gpu, bytes);
#else
    __real_tf_account_release(state, slot, gpu, is_sixtyfourth ? 2 * bytes : bytes);
#endif
}
#endif

#ifdef MUTANT_LIMIT
int __wrap_tf_account_charge(struct tenfold_state *state, uint32_t slot, uint32_t gpu, uint64_t bytes, uint64_t limit_bytes)
{
    return __real_tf_account_charge(state, slot, gpu, bytes, limit_bytes ? limit_bytes + (2u << 20) : 0);
}
#endif

#ifdef MUTANT_REAP
void __wrap_tf_account_reap(struct tenfold_state *state, uint32_t slot)
{
    (void)state, (void)slot;
}
#endif
