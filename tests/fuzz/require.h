/* Aborts when a property does not hold, so that the fuzzer keeps the input. */
#ifndef TANDEM_TESTS_FUZZ_REQUIRE_H
#define TANDEM_TESTS_FUZZ_REQUIRE_H
#include <stdio.h>
#include <stdlib.h>

#define REQUIRE(cond)                                                                                                  \
    do {                                                                                                               \
        if (!(cond)) {                                                                                                 \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #cond);                                                 \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)
#endif
