/* route_table.c - the addresses of all exported symbols (contract: route.h). Apart from route.c, because the symbols are declared here
 * without their types. */
#include "route.h"

#define SYMBOL(exported, asked, version, stream) extern CUresult exported(void);
#include "cuda_symbols.def"
#undef SYMBOL

const struct route route_table[] = {
#define SYMBOL(exported, asked, version, stream) {#asked, exported, version, ROUTE_##stream},
#include "cuda_symbols.def"
};
const size_t route_count = sizeof route_table / sizeof route_table[0];
