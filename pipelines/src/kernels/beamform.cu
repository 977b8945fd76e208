// Forms beams without tensor cores.

#include "beamform.cuh"

constexpr u32 THREADS = 256;
// Number of beams that a thread computes at one time.
constexpr u32 OWN = BEAMS * TIMES / THREADS;

struct Float16 {
    u16 bits;
};

__device__ inline float number(signed char x) { return (float)x; }
__device__ inline float number(short x) { return (float)x; }
__device__ inline float number(float x) { return x; }
__device__ inline float number(Float16 x) { return of_half(x.bits); }

// blocks: x is the span of times, y the channel, z is (frame, tile of beams), the tile varies fastest. A thread has one time
// of a tile, and OWN beams.
template <class N> __device__ void beamform(const Beams& p, Powers& powers) {
    const u32 channel = blockIdx.y, beam = blockIdx.z % p.tiles * BEAMS, frame = blockIdx.z / p.tiles;
    const N* from = (const N*)frame_of(p.from, frame) + 2 * channel * p.channel_step;
    u8* to = frame_of(p.to, frame);
    const Span span(p, blockIdx.x);
    const u32 column = threadIdx.x % TIMES, row = threadIdx.x / TIMES * OWN;
    const Complex* weights = (const Complex*)p.weights + (u64)(p.by_channel ? channel : 0) * p.beams * p.antennas;
    float power[OWN] = {};
    for (u32 start = span.begin; start < span.end; start += span.step) {
        const u32 time = start + column;
        const bool is_used = column < span.step && time < span.end;
        Complex sum[OWN] = {};
        for (u32 antenna = 0; is_used && antenna < p.antennas; antenna++) {
            const N* x = from + 2 * (antenna * p.antenna_step + time);
            float a = number(x[0]), b = number(x[1]);
#pragma unroll
            for (u32 k = 0; k < OWN; k++) {
                // Beams that do not exist repeat the last one.
                Complex w = weights[(u64)min(beam + row + k, p.beams - 1) * p.antennas + antenna];
                sum[k].x += w.x * a - w.y * b;
                sum[k].y += w.x * b + w.y * a;
            }
        }
#pragma unroll
        for (u32 k = 0; k < OWN; k++) {
            power[k] += sum[k].x * sum[k].x + sum[k].y * sum[k].y;
            if (p.detects || !is_used || beam + row + k >= p.beams) continue;
            Complex z = {sum[k].x * (float)p.scale, sum[k].y * (float)p.scale};
            store(to + ((u64)(beam + row + k) * p.channels + channel) * p.times * p.sample_bytes, time, z, p.kind);
        }
    }
    if (!p.detects) return;
    for (u32 k = 0; k < OWN; k++) powers.of[row + k][column] = power[k];
    __syncthreads();
    const bool is_long = p.integrate > TIMES;
    const u32 valid = is_long ? TIMES : span.end - span.begin;
    powers.write(p, to, beam, channel, span.first, valid, is_long ? TIMES : p.integrate);
}

extern "C" __global__ void __launch_bounds__(256) beamform_any(BEAMS_PARAMETERS) {
    const Beams p = BEAMS_GIVEN;
    __shared__ Powers powers;
    switch (p.scalar) {
    case INT8: beamform<signed char>(p, powers); break;
    case INT16: beamform<short>(p, powers); break;
    case FLOAT16: beamform<Float16>(p, powers); break;
    default: beamform<float>(p, powers); break;
    }
}
