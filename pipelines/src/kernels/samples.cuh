// Shared by the device code of the built-in kernels: rings, number types, and the part of a burst that a block
// processes. NVRTC compiles this file without system headers; the tests compile it with a C++ compiler.

#ifndef DYNAMIC_SHARED
#define DYNAMIC_SHARED(type, name) extern __shared__ type name[]
#endif

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

// Number types; the values equal those of `code_of` on the host.
enum Scalar : u32 {
    INT8,
    UINT8,
    INT16,
    UINT16,
    INT32,
    FLOAT32,
    FLOAT64,
    // Types that only `convert` supports. Packed types have one value for signed and unsigned numbers.
    UINT32,
    INT64,
    FLOAT16,
    BFLOAT16,
    PACKED4,
    PACKED10,
    PACKED12,
    PACKED4_MSB,
    PACKED10_MSB,
    PACKED12_MSB,
    INT16_BE,
    UINT16_BE,
    INT32_BE,
    UINT32_BE,
    FLOAT32_BE,
};

// Offset of a field in bytes. NVRTC has no other expression for it.
#ifndef OFFSET_OF
#define OFFSET_OF(type, field) __INTADDR__(&((type*)0)->field)
#endif

#include "parameters.cuh"

// Returns the address of frame `i`, which is at most `slots`.
__device__ inline u8* frame_of(const RingSlots& ring, u32 i) {
    const u32 slot = ring.first + i;
    return (u8*)(ring.base + (slot < ring.slots ? slot : slot - ring.slots) * ring.stride);
}

// Return the range of items of output `o`, and the output of an item.
__device__ inline u64 begin_of(const Cut& cut, u64 o) {
    u64 at = o == 0 ? 0 : cut.left + (o - 1) * cut.each;
    return at < cut.total ? at : cut.total;
}
__device__ inline u64 end_of(const Cut& cut, u64 o) { return begin_of(cut, o + 1); }
__device__ inline u64 output_of(const Cut& cut, u64 item) {
    return item < cut.left ? 0 : 1 + (item - cut.left) / cut.each;
}

// Calls CALL(N) with the C++ type of the numbers.
#define FOR_TYPE(scalar, CALL)            \
    switch (scalar) {                     \
    case INT8: CALL(signed char); break;  \
    case UINT8: CALL(u8); break;          \
    case INT16: CALL(short); break;       \
    case UINT16: CALL(u16); break;        \
    case INT32: CALL(int); break;         \
    case FLOAT32: CALL(float); break;     \
    default: CALL(double); break;         \
    }

// Computes x / by for x < 2^16 and 1 <= by < 2^16 by multiplication with the inverse of `by` (Granlund and Montgomery).
// The result is exact, because the error of the inverse is below one.
struct Divider {
    u32 by, inverse;

    __device__ explicit Divider(u32 by) : by(by), inverse(0xffffffffu / by + 1) {}
    __device__ u32 of(u32 x) const { return by == 1 ? x : __umulhi(x, inverse); }
};

// Returns the value of a float16 number.
__device__ inline float of_half(u16 half) {
    u32 bits = half;
    // Multiplies by 2^112, the difference between the exponent offsets. Exact for denormal numbers too.
    u32 magnitude = __float_as_uint(__uint_as_float((bits & 0x7fffu) << 13) * __uint_as_float(239u << 23));
    u32 special = (bits & 0x7c00u) == 0x7c00u ? 0x7f800000u : 0u;
    return __uint_as_float((bits & 0x8000u) << 16 | special | magnitude);
}
