/* SipHash-2-4 (Aumasson and Bernstein 2012): a keyed hash of short texts that cannot be forged without its key. */
#ifndef XPROF_PY_PROBE_SIPHASH_H
#define XPROF_PY_PROBE_SIPHASH_H

#include <stddef.h>
#include <stdint.h>

uint64_t xpr_siphash(const uint8_t key[16], const void *content, size_t bytes);

#endif
