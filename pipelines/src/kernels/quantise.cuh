// Stores complex numbers as float32, float16 or integers. The file that includes this one defines Complex.

#ifdef __CUDACC__
// Returns the bits of the float16 number nearest to `x`, half to even.
__device__ __forceinline__ u16 half_of(float x) {
    u16 half;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(x));
    return half;
}
#endif

// Rounds to the nearest integer, half to even, and limits the result to +-limit. A NaN becomes 0.
__device__ __forceinline__ int limited(float x, int limit) { return min(max(__float2int_rn(x), -limit), limit); }

// Writes complex number `i` of an output.
__device__ __forceinline__ void store(u8* to, u32 i, Complex z, u32 scalar) {
    if (scalar == FLOAT32) {
        ((Complex*)to)[i] = z;
    } else if (scalar == INT8) {
        u32 x = (u8)limited(z.x, 127), y = (u8)limited(z.y, 127);
        ((u16*)to)[i] = (u16)(y << 8 | x);
    } else {
        u32 x = scalar == INT16 ? (u16)limited(z.x, 32767) : half_of(z.x);
        u32 y = scalar == INT16 ? (u16)limited(z.y, 32767) : half_of(z.y);
        ((u32*)to)[i] = y << 16 | x;
    }
}
