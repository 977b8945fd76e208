// Products of small matrices on tensor cores, as warp-wide instructions (compute capability 8.0). Thread `lane` of a warp
// has, with g = lane / 4 and q = lane % 4, where a word contains four int8 or two float16 numbers:
//
//   a  words of the rows g, g + 8, g, g + 8: word q of the first half of the row (a[0], a[1]) and of the second half
//   b  words of column g: word q of the first half and of the second half
//   c  numbers (g, 2q), (g, 2q + 1), (g + 8, 2q), (g + 8, 2q + 1)

#ifdef __CUDACC__
// Subtracts the two float16 numbers of a word.
__device__ __forceinline__ u32 subtract_halves(u32 a, u32 b) {
    u32 c;
    asm("sub.f16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
    return c;
}

// Adds a 16 x 32 times 32 x 8 product of int8 matrices to `c`.
__device__ __forceinline__ void multiply_add(int (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Adds a 16 x 16 times 16 x 8 product of float16 matrices to `c`.
__device__ __forceinline__ void multiply_add(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#endif
