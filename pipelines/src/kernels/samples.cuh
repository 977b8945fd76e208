// Shared by the device code of the built-in kernels: rings, number types, and the part of a burst that a block
// processes. NVRTC compiles this file without system headers; the tests compile it with a C++ compiler.

#ifndef DYNAMIC_SHARED
#define DYNAMIC_SHARED(type, name) extern __shared__ type name[]
#endif

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

// Number types; the values equal those of `code_of` on the host.
enum Scalar : u32 { INT8, UINT8, INT16, INT32, FLOAT32, FLOAT64 };

// Consecutive slots of a ring: frame `i` is in slot `(first + i) % slots`.
struct Ring {
    u64 base, stride;
    u32 slots, first;

    __device__ u8* frame(u64 i) const { return (u8*)(base + (first + i) % slots * stride); }
};

// Divides a run of items (spectra or frames) into outputs. The first output consists of the next `left` items, which
// complete it. Each further output consists of `each` items; the last output may remain incomplete. Output `o` begins
// at item `begin(o)`.
struct Cut {
    u64 total, left, each;

    __device__ u64 begin(u64 o) const {
        u64 at = o == 0 ? 0 : left + (o - 1) * each;
        return at < total ? at : total;
    }
    __device__ u64 end(u64 o) const { return begin(o + 1); }
    __device__ u64 output_of(u64 item) const { return item < left ? 0 : 1 + (item - left) / each; }
};

// Computes x / by for x < 2^16 and 1 <= by < 2^16 by multiplication with the inverse of `by` (Granlund and Montgomery).
// The result is exact, because the error of the inverse is below one.
struct Divider {
    u32 by, inverse;

    __device__ explicit Divider(u32 by) : by(by), inverse(0xffffffffu / by + 1) {}
    __device__ u32 of(u32 x) const { return by == 1 ? x : __umulhi(x, inverse); }
};
