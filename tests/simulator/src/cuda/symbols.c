/* symbols.c - cuda_symbols.def as code: the table of addresses (contract: route.h), and the calls that have no behaviour.
 *
 * Apart from everything else, because the symbols are declared here without their types. The linker proves the table: a SYMBOL that nobody
 * defines is missing, a STUB that somebody defines is there twice. */
#include "route.h"

#define SYMBOL(symbol, asked, version) extern CUresult symbol(void);
#define SYMBOL_TWINS(symbol, suffix, asked, version, twin_version) SYMBOL(symbol, , ) SYMBOL(symbol##suffix, , )
#define STUB(symbol, asked, version)                                                   \
    CUDA_EXPORT symbol(void);                                                          \
    CUDA_EXPORT symbol(void)                                                           \
    {                                                                                  \
        CUresult refused = driver_enter(#symbol);                                      \
        return refused != CUDA_SUCCESS ? refused : (CUresult)CUDA_ERROR_NOT_SUPPORTED; \
    }
#define STUB_TWINS(symbol, suffix, asked, version, twin_version) STUB(symbol, , ) STUB(symbol##suffix, , )
#define UNROUTED(symbol, version)
#include "cuda_symbols.def"
#undef SYMBOL
#undef SYMBOL_TWINS
#undef STUB
#undef STUB_TWINS

#define SYMBOL(symbol, asked, version) {#asked, symbol, version, ROUTE_LEGACY},
#define SYMBOL_TWINS(symbol, suffix, asked, version, twin_version) \
    SYMBOL(symbol, asked, version) {#asked, symbol##suffix, twin_version, ROUTE_PER_THREAD},
#define STUB SYMBOL
#define STUB_TWINS SYMBOL_TWINS
const struct route route_table[] = {
#include "cuda_symbols.def"
};
const size_t route_count = sizeof route_table / sizeof route_table[0];
