// Forms beams of int8 and float16 samples on tensor cores: for each channel, the product of the matrix of weights (beam,
// antenna) and the matrix of samples (antenna, time).
//
// Weights and samples are float16, sums are float32. Int8 samples are exact in float16. The host stores the weights in the
// order in which threads need them: 16 beams and 16 antennas in 32 threads × (4 words of real parts, 4 words of imaginary
// parts).

#include "beamform.cuh"
#include "tensor.cuh"

constexpr u32 THREADS = 128;
// Number of antennas of a step.
constexpr u32 STEP = 16;
// Distance between two pairs of antennas in shared memory. Threads of a warp read from different banks.
constexpr u32 PITCH = TIMES + 8;

struct alignas(16) Words {
    u32 w[4];
};

// Four successive samples.
template <class S> struct alignas(4 * sizeof(S)) Four {
    S x[4];
};

// The samples of a step: a word contains the real or imaginary parts of two antennas at one time.
struct Samples {
    u32 re[STEP / 2][PITCH], im[STEP / 2][PITCH];
};

// Two samples of one time, of two antennas, as words of two float16 real parts and two imaginary parts.
struct Both {
    u32 re, im;

    __device__ __forceinline__ static Both of(u16 a, u16 b) {
        // The code of byte x + 128 with exponent 0x64 is the float16 number 1024 + 128 + x.
        u32 codes = (a | (u32)b << 16) ^ 0x80808080u;
        return {subtract_halves(__byte_perm(codes, 0x64646464u, 0x4240), 0x64806480u),
                subtract_halves(__byte_perm(codes, 0x64646464u, 0x4341), 0x64806480u)};
    }
    __device__ __forceinline__ static Both of(u32 a, u32 b) {
        return {__byte_perm(a, b, 0x5410), __byte_perm(a, b, 0x7632)};
    }
};

// S is the type of the bits of a complex sample.
// blocks: x is the span of times, y the channel, z is (frame, tile of beams), the tile varies fastest
template <class S> __device__ __forceinline__ void beamform(const Beams& p) {
    __shared__ union {
        Samples samples[2];
        Powers powers;
    } shared;
    const u32 channel = blockIdx.y, beam = blockIdx.z % p.tiles * BEAMS, frame = blockIdx.z / p.tiles;
    const u8* from = frame_of(p.from, frame) + channel * p.channel_step * sizeof(S);
    u8* to = frame_of(p.to, frame);
    const Span span(p, blockIdx.x);
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
    // A warp has 32 beams and 32 times.
    const u32 row = warp / 2 * 32, column = warp % 2 * 32;
    const u32 pair = threadIdx.x / 16, time = threadIdx.x % 16 * 4;
    const u32 steps = (p.antennas + STEP - 1) / STEP;
    const Words* weights = (const Words*)p.weights + (p.by_channel ? channel : 0) * p.groups * steps * 64;

    S next[2][4];
    auto fetch = [&](u32 start, u32 step) {
#pragma unroll
        for (u32 a = 0; a < 2; a++) {
            u32 antenna = step * STEP + 2 * pair + a;
            const S* x = (const S*)from + antenna * p.antenna_step + start + time;
            const bool exists = antenna < p.antennas;
            if (exists && start + time + 4 <= span.end && (u64)x % sizeof(Four<S>) == 0) {
                Four<S> four = *(const Four<S>*)x;
#pragma unroll
                for (u32 t = 0; t < 4; t++) next[a][t] = four.x[t];
                continue;
            }
#pragma unroll
            for (u32 t = 0; t < 4; t++) next[a][t] = exists && start + time + t < span.end ? x[t] : (S)0;
        }
    };
    auto keep = [&](u32 buffer) {
#pragma unroll
        for (u32 t = 0; t < 4; t++) {
            Both both = Both::of(next[0][t], next[1][t]);
            shared.samples[buffer].re[pair][time + t] = both.re;
            shared.samples[buffer].im[pair][time + t] = both.im;
        }
    };

    float power[2][4][4] = {};
    for (u32 start = span.begin; start < span.end; start += span.step) {
        float re[2][4][4] = {}, im[2][4][4] = {};
        fetch(start, 0);
        keep(0);
        __syncthreads();
        for (u32 step = 0; step < steps; step++) {
            if (step + 1 < steps) fetch(start, step + 1);
            const Samples& samples = shared.samples[step % 2];
            u32 wr[2][4], wi[2][4];
#pragma unroll
            for (u32 m = 0; m < 2; m++) {
                u32 group = (beam + row) / 16 + m;
                Words zero = {}, real = zero, imaginary = zero;
                if (group < p.groups) {
                    real = weights[((u64)group * steps + step) * 64 + 2 * lane];
                    imaginary = weights[((u64)group * steps + step) * 64 + 2 * lane + 1];
                }
#pragma unroll
                for (u32 k = 0; k < 4; k++) {
                    wr[m][k] = real.w[k];
                    wi[m][k] = imaginary.w[k];
                }
            }
#pragma unroll
            for (u32 n = 0; n < 4; n++) {
                u32 at = column + 8 * n + g;
                u32 xr[2] = {samples.re[q][at], samples.re[q + 4][at]}, xi[2] = {samples.im[q][at], samples.im[q + 4][at]};
                // The signs of float16 numbers.
                u32 minus[2] = {xi[0] ^ 0x80008000u, xi[1] ^ 0x80008000u};
#pragma unroll
                for (u32 m = 0; m < 2; m++) {
                    multiply_add(re[m][n], wr[m], xr);
                    multiply_add(re[m][n], wi[m], minus);
                    multiply_add(im[m][n], wr[m], xi);
                    multiply_add(im[m][n], wi[m], xr);
                }
            }
            if (step + 1 < steps) keep((step + 1) % 2);
            __syncthreads();
        }
#pragma unroll
        for (u32 m = 0; m < 2; m++) {
#pragma unroll
            for (u32 n = 0; n < 4; n++) {
#pragma unroll
                for (u32 e = 0; e < 4; e++) {
                    u32 b = beam + row + 16 * m + g + e / 2 * 8, t = start + column + 8 * n + 2 * q + e % 2;
                    float x = re[m][n][e], y = im[m][n][e];
                    if (p.detects) {
                        // Times after the end of the span have samples of 0.
                        power[m][n][e] += x * x + y * y;
                    } else if (b < p.beams && t < span.end) {
                        Complex z = {x * (float)p.scale, y * (float)p.scale};
                        store(to + ((u64)b * p.channels + channel) * p.times * p.sample_bytes, t, z, p.kind);
                    }
                }
            }
        }
    }
    if (!p.detects) return;
#pragma unroll
    for (u32 m = 0; m < 2; m++) {
#pragma unroll
        for (u32 n = 0; n < 4; n++) {
#pragma unroll
            for (u32 e = 0; e < 4; e++) {
                shared.powers.of[row + 16 * m + g + e / 2 * 8][column + 8 * n + 2 * q + e % 2] = power[m][n][e];
            }
        }
    }
    __syncthreads();
    const bool is_long = p.integrate > TIMES;
    const u32 valid = is_long ? TIMES : span.end - span.begin;
    shared.powers.write(p, to, beam, channel, span.first, valid, is_long ? TIMES : p.integrate);
}

extern "C" __global__ void __launch_bounds__(THREADS, 3) beamform_int8(BEAMS_PARAMETERS) {
    const Beams p = BEAMS_GIVEN;
    beamform<u16>(p);
}

extern "C" __global__ void __launch_bounds__(THREADS, 3) beamform_float16(BEAMS_PARAMETERS) {
    const Beams p = BEAMS_GIVEN;
    beamform<u32>(p);
}
