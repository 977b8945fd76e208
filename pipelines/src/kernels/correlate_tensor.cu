// Computes visibilities of int8 and float16 samples on tensor cores.
//
// With x = a + ib, the visibility of two antennas is the sum of a_i a_j + b_i b_j + i (b_i a_j - a_i b_j): four products of
// real matrices, whose columns are the samples. Real and imaginary parts of successive samples are separated when a thread
// reads its part of the matrices. The order of the samples does not matter, but must be the same for both matrices: thread
// `lane` of a warp processes 16 bytes of each row, which become the words that the instruction needs. The two terms of the
// imaginary part have sums of their own, because -a is not an int8 number for a = -128.

#include "correlate.cuh"
#include "tensor.cuh"

constexpr u32 TILE = 64;
constexpr u32 THREADS = 128;
// Number of bytes of a row that a step processes, and number of 16-byte words.
constexpr u32 STEP = 128, CHUNKS = STEP / 16;
// Number of bytes of a row that the threads of a warp need for one product.
constexpr u32 PART = 64;

struct alignas(16) Words {
    u32 w[4];
};

// The matrices of real and imaginary parts, two words each.
struct Parts {
    u32 re[2], im[2];

    // Separates the parts of int8 or float16 samples.
    template <u32 BYTES> __device__ __forceinline__ static Parts of(const Words& x) {
        constexpr u32 RE = BYTES == 2 ? 0x6420 : 0x5410, IM = BYTES == 2 ? 0x7531 : 0x7632;
        return {{__byte_perm(x.w[0], x.w[1], RE), __byte_perm(x.w[2], x.w[3], RE)},
                {__byte_perm(x.w[0], x.w[1], IM), __byte_perm(x.w[2], x.w[3], IM)}};
    }
};

// Loads 16 bytes of a row, of which `left` samples exist; the others are zeros.
template <u32 BYTES> __device__ __forceinline__ Words load(const u8* from, int left) {
    constexpr int SAMPLES = 16 / BYTES;
    if (left >= SAMPLES && ((u64)from & 15) == 0) return *(const Words*)from;
    Words words = {};
#pragma unroll
    for (int s = 0; s < SAMPLES; s++) {
        if (s >= left) break;
        if (BYTES == 2) {
            words.w[s / 2] |= (u32)((const u16*)from)[s] << (16 * (s % 2));
        } else {
            words.w[s] = ((const u32*)from)[s];
        }
    }
    return words;
}

// Returns the place of a word in a row in shared memory. Threads of a warp that read two rows read from different banks.
__device__ __forceinline__ u32 place(u32 row, u32 chunk) { return chunk ^ row % 2 * (CHUNKS / 2); }

// BYTES is the size of a complex sample, SUM the type of the sums.
// blocks: x is (channel, tile), the tile varies fastest, y is the output; 4 warps of 32 x 32 baselines each
template <u32 BYTES, class SUM> __device__ __forceinline__ void correlate(const Correlation& p) {
    __shared__ Words rows[2][2 * TILE][CHUNKS];
    const u32 channel = blockIdx.x / p.tiles, o = blockIdx.y;
    const Tile tile(p.antennas, blockIdx.x % p.tiles, TILE);
    // On the diagonal, the rows and the columns are the same antennas.
    const bool is_diagonal = tile.i == tile.j;
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
    const u32 row = warp / 2 * 32, column = warp % 2 * 32;
    const bool is_used = tile.i + row < p.antennas && tile.j + column < p.antennas && tile.j + column + 31 >= tile.i + row;
    const u32 columns = is_diagonal ? 0 : TILE;
    constexpr u32 LOADS = 2 * TILE * CHUNKS / THREADS, ROWS = THREADS / CHUNKS;
    const u32 chunk = threadIdx.x % CHUNKS, first = threadIdx.x / CHUNKS;

    Items items(p, o, channel, BYTES);
    Words next[LOADS];
    auto fetch = [&] {
        int left = (int)(p.length - items.at) - (int)(chunk * (16 / BYTES));
        const u8* from = items.base + (items.at * BYTES + chunk * 16);
#pragma unroll
        for (u32 r = 0; r < LOADS; r++) {
            u32 index = first + r * ROWS;
            if (is_diagonal && index >= TILE) break;
            u32 antenna = index < TILE ? tile.i + index : tile.j + index - TILE;
            next[r] = Words{};
            if (antenna < p.antennas && left > 0) next[r] = load<BYTES>(from + antenna * p.antenna_step * BYTES, left);
        }
        items.advance(p, STEP / BYTES, channel, BYTES);
    };
    auto keep = [&](u32 buffer) {
#pragma unroll
        for (u32 r = 0; r < LOADS; r++) {
            if (is_diagonal && first + r * ROWS >= TILE) break;
            rows[buffer][first + r * ROWS][place(first + r * ROWS, chunk)] = next[r];
        }
    };

    SUM real[2][4][4] = {}, plus[2][4][4] = {}, minus[2][4][4] = {};
    bool more = items.more();
    if (more) {
        fetch();
        keep(0);
    }
    __syncthreads();
    for (u32 buffer = 0; more; buffer ^= 1) {
        more = items.more();
        if (more) fetch();
#pragma unroll
        for (u32 part = 0; part < STEP / PART; part++) {
            if (!is_used) break;
            const u32 at = place(g, part * PART / 16 + q);
            u32 re[2][4], im[2][4];
#pragma unroll
            for (u32 m = 0; m < 2; m++) {
                Parts low = Parts::of<BYTES>(rows[buffer][row + 16 * m + g][at]);
                Parts high = Parts::of<BYTES>(rows[buffer][row + 16 * m + g + 8][at]);
#pragma unroll
                for (u32 k = 0; k < 2; k++) {
                    re[m][2 * k] = low.re[k];
                    re[m][2 * k + 1] = high.re[k];
                    im[m][2 * k] = low.im[k];
                    im[m][2 * k + 1] = high.im[k];
                }
            }
#pragma unroll
            for (u32 n = 0; n < 4; n++) {
                Parts other = Parts::of<BYTES>(rows[buffer][columns + column + 8 * n + g][at]);
#pragma unroll
                for (u32 m = 0; m < 2; m++) {
                    multiply_add(real[m][n], re[m], other.re);
                    multiply_add(real[m][n], im[m], other.im);
                    multiply_add(plus[m][n], im[m], other.re);
                    multiply_add(minus[m][n], re[m], other.im);
                }
            }
        }
        if (more) keep(buffer ^ 1);
        __syncthreads();
    }
    if (!is_used) return;
#pragma unroll
    for (u32 m = 0; m < 2; m++) {
#pragma unroll
        for (u32 n = 0; n < 4; n++) {
#pragma unroll
            for (u32 e = 0; e < 4; e++) {
                u32 i = tile.i + row + 16 * m + g + e / 2 * 8, j = tile.j + column + 8 * n + 2 * q + e % 2;
                if (j >= p.antennas || i > j) continue;
                finish(p, o, channel, i, j, (double)real[m][n][e], (double)plus[m][n][e] - (double)minus[m][n][e]);
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 3) correlate_int8(CORRELATION_PARAMETERS) {
    const Correlation p = CORRELATION_GIVEN;
    correlate<2, int>(p);
}

extern "C" __global__ void __launch_bounds__(THREADS, 3) correlate_float16(CORRELATION_PARAMETERS) {
    const Correlation p = CORRELATION_GIVEN;
    correlate<4, float>(p);
}
