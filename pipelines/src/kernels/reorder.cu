// Copies samples of antennas and channels into the order (channel, antenna, time).

#include "samples.cuh"

// Size of the tile that a block transposes, and maximum size of its rows in the input, in bytes.
constexpr u32 TILE_BYTES = 8192;
constexpr u32 MAX_ROW_BYTES = 64;

// Copies the samples of a frame into the order (channel, antenna, time). Each block transposes a tile of the input's fastest
// axis, which has `fast` elements, and of time. The third axis has `slow` elements. Threads access words of at least 4 bytes
// where the addresses are aligned.
template <class N> __device__ void reorder(const Reordering& p, void* shared) {
    // Number of elements per word, and of unused elements after each column of the tile, so that columns are in other banks.
    constexpr u32 EACH = sizeof(N) < 4 ? 4 / sizeof(N) : 1;
    struct alignas(EACH * sizeof(N)) Word { N of[EACH]; };
    u32 width = 4;
    while (width < p.fast && width * sizeof(N) < MAX_ROW_BYTES) width *= 2;
    const u32 length = TILE_BYTES / sizeof(N) / width, pitch = length + EACH;
    N* tile = (N*)shared;
    const u32 across = (p.fast + width - 1) / width, along = (p.times + length - 1) / length;
    const u32 first = blockIdx.x % across * width, time = blockIdx.x / across % along * length;
    const u32 third = blockIdx.x / across / along;
    const N* from = (const N*)frame_of(p.from, blockIdx.y) + first + time * p.time_step + third * p.slow_step;
    N* to = (N*)frame_of(p.to, blockIdx.y) + first * p.to_fast_step + third * p.to_slow_step + time;
    const u32 columns = min(width, p.fast - first), rows = min(length, p.times - time);
#pragma unroll
    for (u32 i = 0; i < TILE_BYTES / sizeof(N) / EACH / 256; i++) {
        const u32 e = (i * 256 + threadIdx.x) * EACH, c = e & (width - 1), r = e / width;
        if (r >= rows || c >= columns) continue;
        const N* x = from + c + r * p.time_step;
        Word word;
        if (c + EACH <= columns && (u64)x % sizeof(Word) == 0) {
            word = *(const Word*)x;
        } else {
            for (u32 j = 0; j < EACH; j++) word.of[j] = c + j < columns ? x[j] : N(0);
        }
#pragma unroll
        for (u32 j = 0; j < EACH; j++) tile[(c + j) * pitch + r] = word.of[j];
    }
    __syncthreads();
#pragma unroll
    for (u32 i = 0; i < TILE_BYTES / sizeof(N) / EACH / 256; i++) {
        const u32 e = (i * 256 + threadIdx.x) * EACH, c = e / length, r = e & (length - 1);
        if (r >= rows || c >= columns) continue;
        N* x = to + c * p.to_fast_step + r;
        const Word word = *(const Word*)(tile + c * pitch + r);
        if (r + EACH <= rows && (u64)x % sizeof(Word) == 0) {
            *(Word*)x = word;
        } else {
            for (u32 j = 0; j < EACH && r + j < rows; j++) x[j] = word.of[j];
        }
    }
}

// blocks: x is (third axis, time, fastest axis), the fastest axis varies fastest, y is the frame; 256 threads
extern "C" __global__ void __launch_bounds__(256) reorder_samples(REORDERING_PARAMETERS) {
    const Reordering p = REORDERING_GIVEN;
    // At most 64 columns have an unused word.
    __shared__ u64 tile[(TILE_BYTES + MAX_ROW_BYTES * 4) / 8];
    switch (p.bytes) {
    case 1: reorder<u8>(p, tile); break;
    case 2: reorder<u16>(p, tile); break;
    case 4: reorder<u32>(p, tile); break;
    default: reorder<u64>(p, tile); break;
    }
}
