/* What the right answer is, computed without any of the kernels' code: numbers by arithmetic, not by bits. */
#ifndef RR_REFERENCE_H
#define RR_REFERENCE_H

#include "op.h"
#include "testing.h"

#include <math.h>

/* precision: bits of a significand with the hidden one. smallest: exponent of the smallest normal number. */
typedef struct number_format {
    uint32_t bytes, precision, exponent_bits;
    int smallest;
} number_format;

static inline number_format format_of(uint32_t dtype) {
    if (dtype == RR_FLOAT32) return (number_format){4, 24, 8, -126};
    if (dtype == RR_FLOAT16) return (number_format){2, 11, 5, -14};
    return (number_format){2, 8, 8, -126};
}

/* Half an ulp of 1: the largest relative error of one rounding. */
static inline double unit_roundoff(uint32_t dtype) { return ldexp(1, -(int)format_of(dtype).precision); }

static inline float decode(uint32_t dtype, const uint8_t *from) {
    number_format f = format_of(dtype);
    uint32_t bits = 0;
    memcpy(&bits, from, f.bytes);
    uint32_t fraction_bits = f.precision - 1, fraction = bits & ((1u << fraction_bits) - 1);
    uint32_t exponent = bits >> fraction_bits & ((1u << f.exponent_bits) - 1);
    CHECK(exponent != (1u << f.exponent_bits) - 1, "the tests use finite numbers only: %x", bits);
    double v = exponent
                   ? ldexp(fraction + ldexp(1, (int)fraction_bits), (int)exponent - 1 + f.smallest - (int)fraction_bits)
                   : ldexp(fraction, f.smallest - (int)fraction_bits);
    return (float)(bits >> (f.bytes * 8 - 1) ? -v : v);
}

/* To nearest, ties to even. `v` must not round to infinity. */
static inline void encode(uint32_t dtype, double v, uint8_t *to) {
    number_format f = format_of(dtype);
    uint32_t fraction_bits = f.precision - 1, bits = 0;
    double magnitude = fabs(v);
    if (magnitude != 0) {
        int exponent = ilogb(magnitude);
        if (exponent < f.smallest) exponent = f.smallest;
        /* In units of the last place. nearbyint rounds to even in the default mode. */
        double units = nearbyint(ldexp(magnitude, (int)fraction_bits - exponent)), one = ldexp(1, (int)fraction_bits);
        if (units == 2 * one) units = one, exponent++;
        bits = units < one ? (uint32_t)units
                           : (uint32_t)(units - one) | (uint32_t)(exponent - f.smallest + 1) << fraction_bits;
    }
    bits |= (signbit(v) ? 1u : 0u) << (f.bytes * 8 - 1);
    memcpy(to, &bits, f.bytes);
}

/* Element `i` of what rank `rank` puts in: a function, so that every rank knows everybody's input.
 * Whole numbers up to 8 in size: sums over 16 ranks are exact in every dtype. Otherwise anything in (-1, 1), and now
 * and then something tiny, so that fp16's subnormals are summed too. */
static inline float input_value(uint64_t seed, uint32_t rank, uint64_t i, int whole) {
    uint64_t state = seed * 1000003 + rank * 0x10001 + i * 0x9e3779b1ull, x = rng_next(&state);
    if (whole) return (float)((int)(x % 17) - 8);
    float v = (float)((double)(int64_t)(x & ~0xffull) / 9223372036854775808.0);
    return (x & 0xff) < 8 ? v * 0x1p-15f : v;
}

/* Raw contributions meet: fp32 sums in rank order. The inputs are what `dtype` can hold. */
static inline float sum_in_rank_order(const float *const *inputs, uint32_t world, uint64_t i) {
    volatile float sum =
        inputs[0][i]; /* volatile: an fp32 after every addition, whatever the compiler keeps in registers */
    for (uint32_t r = 1; r < world; r++) sum = sum + inputs[r][i];
    return sum;
}

/* What norm.cuh promises for one row of `n` sums: `h` holds the residual and becomes the new one, `out` the output. An
 * fp32 after every step, as above. */
static inline void norm_row(uint32_t dtype, const float *sum, float *h, const float *weight, float eps, uint64_t n,
                            float *out) {
    volatile float lane[512] = {0}, v;
    uint32_t pack = 16 / format_of(dtype).bytes;
    uint8_t bits[4];
    for (uint64_t i = 0; i < n; i++) {
        v = sum[i] + h[i];
        encode(dtype, v, bits);
        h[i] = decode(dtype, bits);
        v = h[i] * h[i];
        lane[i / pack % 512] = lane[i / pack % 512] + v;
    }
    for (uint32_t group = 0; group < 512; group += 32)
        for (uint32_t apart = 16; apart; apart /= 2)
            for (uint32_t i = group; i < group + apart; i++) lane[i] = lane[i] + lane[i + apart];
    for (uint32_t apart = 256; apart >= 32; apart /= 2)
        for (uint32_t i = 0; i < apart; i += 32) lane[i] = lane[i] + lane[i + apart];
    v = lane[0] / (float)n;
    v = v + eps;
    v = (float)sqrt((double)v); /* of an fp32, the double's root rounds to the fp32's */
    v = 1.0f / v;
    for (uint64_t i = 0; i < n; i++) {
        volatile float scaled = h[i] * v;
        scaled = scaled * weight[i];
        encode(dtype, scaled, bits);
        out[i] = decode(dtype, bits);
    }
}

#endif
