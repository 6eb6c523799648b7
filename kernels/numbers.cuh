/* fp32, fp16 and bf16 as tiles of floats: what one thread loads, adds and stores at a time.
 *
 * GPU: a tile is one 16-byte pack, in registers. CPU: a few KiB, so that the compiler's vector loops have something to
 * chew on. Rounding is to nearest, ties to even, once per store; NaN stays NaN.
 */
#ifndef ROCE_RING_NUMBERS_CUH
#define ROCE_RING_NUMBERS_CUH

#include "device.cuh"

struct rr_f32 {
    uint32_t bits;
};
struct rr_f16 {
    uint16_t bits;
};
struct rr_bf16 {
    uint16_t bits;
};

#if RR_GPU
RR_FN float rr_float_of_bits(uint32_t bits) { return __uint_as_float(bits); }
RR_FN uint32_t rr_bits_of_float(float value) { return __float_as_uint(value); }
RR_FN float rr_to_float(rr_f16 x) {
    float v;
    asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"(x.bits));
    return v;
}
RR_FN void rr_from_float(float v, rr_f16 *x) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(x->bits) : "f"(v)); }
#else
RR_FN float rr_float_of_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}
RR_FN uint32_t rr_bits_of_float(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}
#if defined(__aarch64__) || (defined(__FLT16_MAX__) && defined(__F16C__))
#if defined(__aarch64__)
typedef __fp16 rr_half; /* Arm's own: g++ before 13 has no _Float16 there */
#else
typedef _Float16 rr_half;
#endif
RR_FN float rr_to_float(rr_f16 x) {
    rr_half h;
    memcpy(&h, &x.bits, 2);
    return (float)h;
}
RR_FN void rr_from_float(float v, rr_f16 *x) {
    rr_half h = (rr_half)v;
    memcpy(&x->bits, &h, 2);
}
#else
/* No hardware conversion: by magic multiplication, which lets the FPU treat subnormals. */
RR_FN float rr_to_float(rr_f16 x) {
    uint32_t sign = (uint32_t)(x.bits & 0x8000u) << 16, rest = x.bits & 0x7fffu;
    if (rest >= 0x7c00u)
        return rr_float_of_bits(sign | 0x7f800000u | (rest & 0x3ffu) << 13 | (rest > 0x7c00u ? 0x400000u : 0));
    return rr_float_of_bits(
        sign | rr_bits_of_float(rr_float_of_bits(rest << 13) * rr_float_of_bits(0x77800000u))); /* * 2^112 */
}
RR_FN void rr_from_float(float v, rr_f16 *x) {
    uint32_t bits = rr_bits_of_float(v), sign = bits >> 16 & 0x8000u, rest = bits & 0x7fffffffu;
    if (rest > 0x7f800000u) { /* NaN: quiet, payload's top bits kept, as the hardware does */
        x->bits = (uint16_t)(sign | 0x7e00u | (rest >> 13 & 0x3ffu));
    } else if (rest >= 0x477ff000u) { /* rounds to 65536 or more */
        x->bits = (uint16_t)(sign | 0x7c00u);
    } else if (rest < 0x38800000u) { /* subnormal: let the FPU round at 2^-24 by adding 0.5 */
        x->bits = (uint16_t)(sign | (rr_bits_of_float(rr_float_of_bits(rest) + 0.5f) - 0x3f000000u));
    } else {
        uint32_t odd = rest >> 13 & 1;
        x->bits = (uint16_t)(sign | ((rest - 0x38000000u + 0xfffu + odd) >> 13));
    }
}
#endif
#endif

RR_FN float rr_to_float(rr_f32 x) { return rr_float_of_bits(x.bits); }
RR_FN void rr_from_float(float v, rr_f32 *x) { x->bits = rr_bits_of_float(v); }
RR_FN float rr_to_float(rr_bf16 x) { return rr_float_of_bits((uint32_t)x.bits << 16); }
RR_FN void rr_from_float(float v, rr_bf16 *x) {
    uint32_t bits = rr_bits_of_float(v);
    uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1)) >> 16, quiet = bits >> 16 | 0x40u;
    x->bits = (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

/* A value as T holds it. */
template <typename T> RR_FN float rr_rounded(float v) {
    T x;
    rr_from_float(v, &x);
    return rr_to_float(x);
}

/* One rounding each on every machine: never fused with an addition that follows (CPU: -ffp-contract=off). */
#if RR_GPU
RR_FN float rr_square(float v) { return __fmul_rn(v, v); }
RR_FN float rr_quotient(float a, float b) { return __fdiv_rn(a, b); }
RR_FN float rr_root(float v) { return __fsqrt_rn(v); }
#else
RR_FN float rr_square(float v) { return v * v; }
RR_FN float rr_quotient(float a, float b) { return a / b; }
RR_FN float rr_root(float v) { return __builtin_sqrtf(v); }
#endif

/* Elements of a tile of T. `n` below is how many of them exist; buffers inside a region are padded to whole packs. */
template <typename T> struct rr_tile_of {
#if RR_GPU
    static const uint32_t count = RR_PACK_BYTES / sizeof(T);
#else
    static const uint32_t count = 1024;
#endif
};

#if RR_GPU
/* Bytewise where the address is no multiple of the element. */
template <typename T> RR_FN T rr_load_unaligned(const uint8_t *from) {
    if ((uint64_t)from % sizeof(T) == 0) return *(const T *)from;
    T v = {0};
#pragma unroll
    for (uint32_t i = 0; i < sizeof(T); i++) v.bits |= (uint32_t)from[i] << 8 * i;
    return v;
}
template <typename T> RR_FN void rr_store_unaligned(uint8_t *to, T v) {
#pragma unroll
    for (uint32_t i = 0; i < sizeof(T); i++) to[i] = (uint8_t)(v.bits >> 8 * i);
}
template <typename T, uint32_t N> RR_FN void rr_unpack(float (&v)[N], const rr_pack &pack) {
    const T *x = (const T *)&pack;
#pragma unroll
    for (uint32_t i = 0; i < N; i++) v[i] = rr_to_float(x[i]);
}
/* P may be wider than T (fp32 partial sums of a 16-bit payload): then a tile of T's count spans two packs. */
template <typename P, uint32_t N> RR_FN void rr_load_tile(float (&v)[N], const P *from, uint32_t) {
    const uint32_t per = RR_PACK_BYTES / sizeof(P);
#pragma unroll
    for (uint32_t k = 0; k < N / per; k++) {
        rr_pack pack = rr_load_pack((const uint8_t *)from + k * RR_PACK_BYTES);
        const P *x = (const P *)&pack;
#pragma unroll
        for (uint32_t i = 0; i < per; i++) v[k * per + i] = rr_to_float(x[i]);
    }
}
template <typename P, uint32_t N> RR_FN void rr_store_tile(P *to, const float (&v)[N], uint32_t n) {
    const uint32_t per = RR_PACK_BYTES / sizeof(P);
    if (n == N && (uint64_t)to % RR_PACK_BYTES == 0) {
#pragma unroll
        for (uint32_t k = 0; k < N / per; k++) {
            rr_pack pack;
            P *x = (P *)&pack;
#pragma unroll
            for (uint32_t i = 0; i < per; i++) rr_from_float(v[k * per + i], &x[i]);
            rr_store_pack((uint8_t *)to + k * RR_PACK_BYTES, pack);
        }
    } else {
#pragma unroll
        for (uint32_t i = 0; i < N; i++)
            if (i < n) rr_from_float(v[i], &to[i]);
    }
}
template <typename P, uint32_t N> RR_FN void rr_add_tile(float (&v)[N], const P *from, uint32_t n) {
    float w[N];
    rr_load_tile<P, N>(w, from, n);
#pragma unroll
    for (uint32_t i = 0; i < N; i++) v[i] += w[i];
}
#else
/* Always inlined: GCC otherwise folds tiles of different sizes into one function, and warns of the larger's bounds. */
#define RR_TILE_FN RR_FN __attribute__((always_inline))
template <typename P, uint32_t N> RR_TILE_FN void rr_load_tile(float (&v)[N], const P *from, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) v[i] = rr_to_float(from[i]);
}
template <typename P, uint32_t N> RR_FN void rr_add_tile(float (&v)[N], const P *from, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) v[i] += rr_to_float(from[i]);
}
template <typename P, uint32_t N> RR_TILE_FN void rr_store_tile(P *__restrict__ to, const float (&v)[N], uint32_t n) {
    for (uint32_t i = 0; i < n; i++) rr_from_float(v[i], &to[i]);
}
#endif

/* `n` elements from any address: not even a multiple of their size. On a GPU the rest of `v` is 0. */
template <typename T, uint32_t N> RR_FN void rr_load_from(const uint8_t *from, float (&v)[N], uint32_t n) {
#if RR_GPU
    if (n == N && (uint64_t)from % RR_PACK_BYTES == 0) {
        rr_load_tile<T, N>(v, (const T *)from, n);
    } else {
#pragma unroll
        for (uint32_t i = 0; i < N; i++) {
            T one = {0};
            if (i < n) one = rr_load_unaligned<T>(from + i * sizeof(T));
            v[i] = rr_to_float(one);
        }
    }
#else
    if ((uint64_t)from % alignof(T)) {
        T aligned[N];
        memcpy(aligned, from, n * sizeof(T));
        rr_load_tile<T, N>(v, aligned, n);
        return;
    }
    rr_load_tile<T, N>(v, (const T *)from, n);
#endif
}

/* To any address. */
template <typename T, uint32_t N> RR_FN void rr_store_to(uint8_t *to, const float (&v)[N], uint32_t n) {
    if ((uint64_t)to % sizeof(T)) {
#if RR_GPU
#pragma unroll
        for (uint32_t i = 0; i < N; i++) {
            T one;
            rr_from_float(v[i], &one);
            if (i < n) rr_store_unaligned<T>(to + i * sizeof(T), one);
        }
#else
        T aligned[N];
        rr_store_tile<T, N>(aligned, v, n);
        memcpy(to, aligned, n * sizeof(T));
#endif
        return;
    }
    rr_store_tile<T, N>((T *)to, v, n);
}

/* Runs `body(begin, n)` over [0, count) elements in tiles, shared out over all threads of the launch. */
#define RR_FOR_TILES(c, T, total, begin, n)                                                                            \
    for (uint64_t begin = ((uint64_t)(c).worker * (c).threads + (c).tid) * rr_tile_of<T>::count,                       \
                  n##_all = (c).worker == (c).workers ? 0 : (total), n = 0;                                            \
         begin < n##_all &&                                                                                            \
         (n = n##_all - begin < rr_tile_of<T>::count ? n##_all - begin : rr_tile_of<T>::count, true);                  \
         begin += (uint64_t)(c).workers * (c).threads * rr_tile_of<T>::count)

#endif
