// Computes visibilities without tensor cores.

#include "correlate.cuh"

constexpr u32 TILE = 32;
// Number of samples that a step processes.
constexpr u32 STEP = 16;
constexpr u32 THREADS = 256;

struct Float16 {
    u16 bits;
};

__device__ inline int number(signed char x) { return x; }
__device__ inline float number(short x) { return (float)x; }
__device__ inline float number(float x) { return x; }
__device__ inline float number(Float16 x) { return of_half(x.bits); }

// The real or imaginary parts of a step, of the antennas of the rows and of the columns.
template <class SUM> using Numbers = SUM[2][TILE][STEP + 1];

// N is the type of the samples, SUM that of the sums. A thread computes 2 x 2 baselines.
// blocks: x is (channel, tile), the tile varies fastest, y is the output; 256 threads
template <class N, class SUM> __device__ void correlate(const Correlation& p, Numbers<SUM>& re, Numbers<SUM>& im) {
    constexpr u32 BYTES = 2 * sizeof(N);
    const u32 channel = blockIdx.x / p.tiles, o = blockIdx.y;
    const Tile tile(p.antennas, blockIdx.x % p.tiles, TILE);
    const u32 row = threadIdx.x / 16, column = threadIdx.x % 16;
    SUM real[2][2] = {}, imaginary[2][2] = {};
    for (Items items(p, o, channel, BYTES); items.more(); items.advance(p, STEP, channel, BYTES)) {
        for (u32 k = threadIdx.x; k < 2 * TILE * STEP; k += THREADS) {
            u32 sample = k % STEP, index = k / STEP % TILE, side = k / STEP / TILE;
            u32 antenna = (side == 0 ? tile.i : tile.j) + index;
            bool exists = antenna < p.antennas && items.at + sample < p.length;
            const N* x = (const N*)(items.base + (antenna * p.antenna_step + items.at + sample) * BYTES);
            re[side][index][sample] = exists ? number(x[0]) : 0;
            im[side][index][sample] = exists ? number(x[1]) : 0;
        }
        __syncthreads();
        for (u32 k = 0; k < STEP; k++) {
#pragma unroll
            for (u32 m = 0; m < 2; m++) {
                SUM a = re[0][row + 16 * m][k], b = im[0][row + 16 * m][k];
#pragma unroll
                for (u32 n = 0; n < 2; n++) {
                    SUM c = re[1][column + 16 * n][k], d = im[1][column + 16 * n][k];
                    real[m][n] += a * c + b * d;
                    imaginary[m][n] += b * c - a * d;
                }
            }
        }
        __syncthreads();
    }
    for (u32 m = 0; m < 2; m++) {
        for (u32 n = 0; n < 2; n++) {
            u32 i = tile.i + row + 16 * m, j = tile.j + column + 16 * n;
            if (j < p.antennas && i <= j) finish(p, o, channel, i, j, (double)real[m][n], (double)imaginary[m][n]);
        }
    }
}

extern "C" __global__ void __launch_bounds__(256) correlate_any(CORRELATION_PARAMETERS) {
    const Correlation p = CORRELATION_GIVEN;
    __shared__ Numbers<float> re, im;
    switch (p.scalar) {
    case INT8: {
        __shared__ Numbers<int> whole_re, whole_im;
        correlate<signed char, int>(p, whole_re, whole_im);
        break;
    }
    case INT16: correlate<short, float>(p, re, im); break;
    case FLOAT16: correlate<Float16, float>(p, re, im); break;
    default: correlate<float, float>(p, re, im); break;
    }
}
