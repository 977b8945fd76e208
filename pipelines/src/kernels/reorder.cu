// Copies samples of antennas and channels into the order (channel, antenna, time).

#include "samples.cuh"

// Copies the samples of a frame into the order (channel, antenna, time). Each block transposes 32 x 32 samples of the input's
// fastest axis, which has `fast` elements, and of time. The third axis has `slow` elements.
template <class N> __device__ void reorder(const Reordering& p) {
    __shared__ N tile[32][33];
    const u8* from = frame_of(p.from, blockIdx.y);
    u8* to = frame_of(p.to, blockIdx.y);
    const u32 across = (p.fast + 31) / 32, along = (p.times + 31) / 32;
    const u32 first = blockIdx.x % across * 32, time = blockIdx.x / across % along * 32, third = blockIdx.x / across / along;
    const u32 lane = threadIdx.x % 32, row = threadIdx.x / 32;
    for (u32 r = row; r < 32; r += 8) {
        if (first + lane < p.fast && time + r < p.times) {
            tile[r][lane] = ((const N*)from)[first + lane + (time + r) * p.time_step + third * p.slow_step];
        }
    }
    __syncthreads();
    for (u32 r = row; r < 32; r += 8) {
        if (first + r < p.fast && time + lane < p.times) {
            ((N*)to)[(first + r) * p.to_fast_step + third * p.to_slow_step + time + lane] = tile[lane][r];
        }
    }
}

// blocks: x is (third axis, time, fastest axis), the fastest axis varies fastest, y is the frame; 256 threads
extern "C" __global__ void __launch_bounds__(256) reorder_samples(REORDERING_PARAMETERS) {
    const Reordering p = REORDERING_GIVEN;
    switch (p.bytes) {
    case 2: reorder<u16>(p); break;
    case 4: reorder<u32>(p); break;
    default: reorder<u64>(p); break;
    }
}
