// Converts samples of any type to float32. Each product and each sum is rounded separately, exactly as on the CPU.

#include "samples.cuh"

// Number of samples in a tile. Tiles are used if the sample order changes.
constexpr u32 TILE = 1024;

struct Line {
    float factor32, offset32;
    double factor64, offset64;

    __device__ Line(double factor, double offset)
        : factor32((float)factor), offset32((float)offset), factor64(factor), offset64(offset) {}

    __device__ float narrow(float x) const { return __fadd_rn(__fmul_rn(x, factor32), offset32); }
    __device__ float wide(double x) const {
        return __double2float_rn(__dadd_rn(__dmul_rn(x, factor64), offset64));
    }
    __device__ float of(signed char x) const { return narrow((float)x); }
    __device__ float of(u8 x) const { return narrow((float)x); }
    __device__ float of(short x) const { return narrow((float)x); }
    __device__ float of(int x) const { return wide((double)x); }
    // Return a NaN unchanged. Arithmetic might not keep its sign and payload.
    __device__ float of(float x) const {
        return x == x ? narrow(x) : __uint_as_float(__float_as_uint(x) | 0x00400000u);
    }
    __device__ float of(double x) const {
        u64 bits = (u64)__double_as_longlong(x);
        u32 nan = (u32)(bits >> 32 & 0x80000000u) | 0x7fc00000u | (u32)(bits >> 29 & 0x003fffffu);
        return x == x ? wide(x) : __uint_as_float(nan);
    }
};

template <class N> struct alignas(4 * sizeof(N) > 16 ? 16 : 4 * sizeof(N)) Four {
    N x[4];
};

template <class N> __device__ void straight(const u8* from, u8* to, u64 numbers, Line line) {
    const N* source = (const N*)from;
    float* target = (float*)to;
    u64 step = (u64)gridDim.x * blockDim.x;
    u64 first = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    // Slots are aligned to 64 bytes, so vector loads of four samples are aligned.
    u64 fours = numbers / 4;
#pragma unroll 4
    for (u64 i = first; i < fours; i += step) {
        Four<N> x = ((const Four<N>*)source)[i];
        Four<float> y;
        for (int k = 0; k < 4; k++) y.x[k] = line.of(x.x[k]);
        ((Four<float>*)target)[i] = y;
    }
    for (u64 i = fours * 4 + first; i < numbers; i += step) target[i] = line.of(source[i]);
}

// Converts samples into the other order. `parts` is 2 for complex samples, otherwise 1. A tile consists of
// `tile_points` points of `wide` channels.
template <class N>
__device__ void tiles(const u8* from, u8* to, float* tile, u64 points, u32 channels, u32 parts, u32 tile_points,
                      u32 wide, bool planar, Line line) {
    const N* source = (const N*)from;
    float* target = (float*)to;
    u64 point = (u64)blockIdx.x * tile_points;
    u32 channel = blockIdx.z * wide;
    u32 across = channels - channel < wide ? channels - channel : wide;
    u32 along = points - point < tile_points ? (u32)(points - point) : tile_points;
    // The pitch is odd, so that the elements of a column are in different shared memory banks.
    u32 pitch = along * parts | 1;
    Divider rows(along * parts), columns(across * parts);
    for (u32 i = threadIdx.x; i < along * across * parts; i += blockDim.x) {
        u32 c, k;
        u64 at;
        if (planar) {
            u32 p = columns.of(i), rest = i - p * columns.by;
            c = rest / parts;
            k = p * parts + rest % parts;
            at = ((point + p) * channels + channel) * parts + rest;
        } else {
            c = rows.of(i);
            k = i - c * rows.by;
            at = ((channel + c) * points + point) * parts + k;
        }
        tile[c * pitch + k] = line.of(source[at]);
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < along * across * parts; i += blockDim.x) {
        if (planar) {
            u32 c = rows.of(i), k = i - c * rows.by;
            target[((channel + c) * points + point) * parts + k] = tile[c * pitch + k];
        } else {
            u32 p = columns.of(i), rest = i - p * columns.by;
            target[((point + p) * channels + channel) * parts + rest] =
                tile[rest / parts * pitch + p * parts + rest % parts];
        }
    }
}

// blocks: x is the part of a frame, y the frame
extern "C" __global__ void __launch_bounds__(256) convert_straight(CONVERSION_PARAMETERS) {
    const Conversion p = CONVERSION_GIVEN;
    const u8* from = frame_of(p.from, blockIdx.y);
    u8* to = frame_of(p.to, blockIdx.y);
    u64 numbers = p.points * p.channels * p.parts;
    Line line(p.factor, p.offset);
#define STRAIGHT(N) straight<N>(from, to, numbers, line)
    FOR_TYPE(p.scalar, STRAIGHT)
}

// blocks: x is the range of points, y the frame, z the range of channels
extern "C" __global__ void __launch_bounds__(256) convert_tiles(CONVERSION_PARAMETERS) {
    const Conversion p = CONVERSION_GIVEN;
    // The pitch adds at most one element per row, and a tile has at most 32 rows.
    __shared__ float tile[TILE * 2 + 32];
    const u8* from = frame_of(p.from, blockIdx.y);
    u8* to = frame_of(p.to, blockIdx.y);
    Line line(p.factor, p.offset);
#define TILES(N) \
    tiles<N>(from, to, tile, p.points, p.channels, p.parts, p.tile_points, p.wide, p.planar != 0, line)
    FOR_TYPE(p.scalar, TILES)
}
