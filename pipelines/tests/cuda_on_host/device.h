// Compiles CUDA C++ with a C++ compiler. One CPU thread runs the threads of a block in turn, each until it waits at a
// barrier. Supports only the functions that the built-in kernels and the kernels of the tests use.

#pragma once

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define __host__
#define __device__
#define OFFSET_OF(type, field) __builtin_offsetof(type, field)
#define __global__
#define __constant__
#define __forceinline__ inline
#define __launch_bounds__(...)
// Blocks run one after another or, with BLOCKS_AT_ONCE, concurrently on one CPU thread each.
#ifdef BLOCKS_AT_ONCE
#define OF_BLOCK thread_local
#else
#define OF_BLOCK
#endif
#define __shared__ static OF_BLOCK
#define DYNAMIC_SHARED(type, name) type* name = (type*)dynamic_shared
extern unsigned char dynamic_shared[];

struct Dim {
    unsigned x, y, z;
};

// The indices and sizes of the thread that is running.
extern OF_BLOCK Dim threadIdx, blockIdx, blockDim, gridDim;

// Runs the other threads of the block up to their barriers.
void __syncthreads();

// Selects four of the eight bytes of two words. In a selector of 8 or more, the byte is all sign bits.
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selectors) {
    uint64_t bytes = (uint64_t)high << 32 | low;
    unsigned chosen = 0;
    for (int i = 0; i < 4; i++) {
        unsigned selector = selectors >> (4 * i) & 15;
        unsigned byte = bytes >> (8 * (selector & 7)) & 0xff;
        if (selector & 8) byte = byte & 0x80 ? 0xff : 0;
        chosen |= byte << (8 * i);
    }
    return chosen;
}
inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((uint64_t)a * b >> 32); }

template <class To, class From> To bits_as(From from) {
    To to;
    static_assert(sizeof to == sizeof from);
    memcpy(&to, &from, sizeof to);
    return to;
}
inline float __uint_as_float(unsigned x) { return bits_as<float>(x); }
inline unsigned __float_as_uint(float x) { return bits_as<unsigned>(x); }
inline double __longlong_as_double(long long x) { return bits_as<double>(x); }
inline long long __double_as_longlong(double x) { return bits_as<long long>(x); }

// The file is compiled without contraction, so the CPU rounds after each operation.
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline int __float2int_rn(float x) { return x == x ? (int)fminf(fmaxf(rintf(x), -0x1p31f), 0x1.fffffep30f) : 0; }
inline int __double2int_rn(double x) { return x == x ? (int)fmin(fmax(rint(x), -0x1p31), 0x1p31 - 1) : INT32_MIN; }
inline float __double2float_rn(double x) { return (float)x; }

template <class T> T atomicAdd(T* at, T more) {
    T before = *at;
    *at = before + more;
    return before;
}
template <class T> T atomicMin(T* at, T other) {
    T before = *at;
    *at = other < before ? other : before;
    return before;
}
template <class T> T atomicOr(T* at, T bits) {
    T before = *at;
    *at = before | bits;
    return before;
}

template <class T> T min(T a, T b) { return b < a ? b : a; }
template <class T> T max(T a, T b) { return a < b ? b : a; }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
