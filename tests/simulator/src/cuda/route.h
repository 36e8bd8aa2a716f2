/* route.h - which exported symbol is which ABI of which name: cuda_symbols.def as a table. */
#ifndef TENFOLD_SIM_ROUTE_H
#define TENFOLD_SIM_ROUTE_H

#include "driver.h"

enum routing { ROUTE_LEGACY, ROUTE_PER_THREAD };

struct route {
    const char *asked;
    CUresult (*entry)(void); /* of whatever type the symbol really is */
    int version;
    enum routing routing;
};

extern const struct route route_table[]; /* sorted by name asked for: cuda_symbols.def is, and tests/test_routing.py checks it */
extern const size_t route_count;

#endif
