/* What the C tests ask. A test ends at the first claim that does not hold. */
#ifndef XPROF_PY_TESTS_CHECK_H
#define XPROF_PY_TESTS_CHECK_H

#include <stdio.h>
#include <stdlib.h>

#define CHECK(claim)                                                            \
    do {                                                                        \
        if (!(claim)) {                                                         \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #claim); \
            exit(1);                                                            \
        }                                                                       \
    } while (0)

#endif
