// Stores complex numbers as float32 or as integers. Includes nothing; the file that includes it defines Complex.

// Rounds to the nearest integer, half to even, and limits the result to +-max. A NaN becomes 0.
__device__ inline int limited(float x, float max) { return x == x ? (int)rintf(fminf(fmaxf(x, -max), max)) : 0; }

// Writes complex number `i` of an output.
__device__ __forceinline__ void store(u8* to, u32 i, Complex z, u32 scalar) {
    if (scalar == FLOAT32) {
        ((Complex*)to)[i] = z;
    } else if (scalar == INT16) {
        u32 x = (u16)limited(z.x, 32767.0f), y = (u16)limited(z.y, 32767.0f);
        ((u32*)to)[i] = y << 16 | x;
    } else {
        u32 x = (u8)limited(z.x, 127.0f), y = (u8)limited(z.y, 127.0f);
        ((u16*)to)[i] = (u16)(y << 8 | x);
    }
}
