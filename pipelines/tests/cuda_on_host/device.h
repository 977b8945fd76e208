// CUDA C++ for a C++ compiler: one thread of the host runs the threads of a block in turn, each until it waits at a
// barrier. Only what the built-in kernels and those of the tests use.

#pragma once

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define __host__
#define __device__
#define __global__
#define __constant__
#define __forceinline__ inline
#define __launch_bounds__(...)
// One block runs at a time, or each on a thread of the host of its own.
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

// Of the thread that runs.
extern OF_BLOCK Dim threadIdx, blockIdx, blockDim, gridDim;

// Lets the other threads of the block run up to their barriers.
void __syncthreads();

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

// Compiled without contraction, the host rounds after each operation.
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dmul_rn(double a, double b) { return a * b; }
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
