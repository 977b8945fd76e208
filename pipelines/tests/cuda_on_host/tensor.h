// The instructions for tensor cores, as functions that the threads of a warp call together.

#pragma once

#include "block.h"

// Returns the value of a float16 number, and the float16 number nearest to a value, half to even.
inline float value_of_half(unsigned bits) {
    float magnitude = __uint_as_float((bits & 0x7fff) << 13) * 0x1p112f;
    return bits & 0x8000 ? -magnitude : magnitude;
}
inline unsigned short half_of(float x) {
    unsigned sign = __float_as_uint(x) >> 16 & 0x8000;
    float magnitude = fabsf(x);
    if (!(magnitude < 65520.0f)) return (unsigned short)(sign | (x == x ? 0x7c00 : 0x7e00));
    if (magnitude == 0.0f) return (unsigned short)sign;
    // The step of float16 numbers of this magnitude. Adding and subtracting a large number rounds to it.
    int exponent = 0;
    frexpf(magnitude, &exponent);
    float step = ldexpf(1.0f, (exponent > -13 ? exponent : -13) - 11);
    unsigned steps = (unsigned)rintf(magnitude / step);
    // Numbers are consecutive codes, also from one exponent to the next.
    unsigned code = exponent > -13 ? (unsigned)(exponent + 14) * 1024 + steps - 1024 : steps;
    return (unsigned short)(sign | code);
}
inline unsigned subtract_halves(unsigned a, unsigned b) {
    unsigned low = half_of(value_of_half(a & 0xffff) - value_of_half(b & 0xffff));
    return low | (unsigned)half_of(value_of_half(a >> 16) - value_of_half(b >> 16)) << 16;
}

// The words that the threads of a warp have. Thread `lane` has the words of row `lane / 4`.
struct Fragments {
    unsigned a[4], b[2];
};
inline OF_BLOCK Fragments fragments[32][32];

// Returns numbers (row, k) of `a` and (k, column) of `b`; a word contains PER numbers.
template <unsigned PER> unsigned number_of(unsigned word, unsigned k) { return word >> (k % PER * (32 / PER)); }
template <unsigned PER> unsigned left(const Fragments* warp, unsigned row, unsigned k) {
    return number_of<PER>(warp[row % 8 * 4 + k / PER % 4].a[row / 8 + k / (4 * PER) * 2], k);
}
template <unsigned PER> unsigned right(const Fragments* warp, unsigned k, unsigned column) {
    return number_of<PER>(warp[column * 4 + k / PER % 4].b[k / (4 * PER)], k);
}

template <unsigned PER, class SUM, class Value>
void multiply_add_in_warp(SUM (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2], Value value) {
    const unsigned lane = threadIdx.x % 32;
    Fragments* warp = fragments[threadIdx.x / 32];
    warp[lane] = {{a[0], a[1], a[2], a[3]}, {b[0], b[1]}};
    __syncwarp();
    for (unsigned e = 0; e < 4; e++) {
        for (unsigned k = 0; k < 8 * PER; k++) {
            c[e] += value(left<PER>(warp, lane / 4 + e / 2 * 8, k)) * value(right<PER>(warp, k, lane % 4 * 2 + e % 2));
        }
    }
    __syncwarp();
}
inline void multiply_add(int (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    multiply_add_in_warp<4>(c, a, b, [](unsigned bits) { return (int)(signed char)bits; });
}
inline void multiply_add(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    multiply_add_in_warp<2>(c, a, b, [](unsigned bits) { return value_of_half(bits & 0xffff); });
}
