// Shared by the device code of `beamform`: the output of a tile of beams and times.

#include "samples.cuh"

struct alignas(8) Complex {
    float x, y;
};

#include "quantise.cuh"

// Number of beams and of times of a tile.
constexpr u32 BEAMS = 64, TIMES = 64;

// The powers of a tile of beams and times, from which threads make the sums of outputs.
struct Powers {
    float of[BEAMS][TIMES + 1];

    // Writes the sums of the first `valid` times, `each` times per sum, as outputs from `first`.
    __device__ void write(const Beams& p, u8* to, u32 beam, u32 channel, u32 first, u32 valid, u32 each) const {
        const u32 sums = valid / each;
        for (u32 k = threadIdx.x; k < BEAMS * sums; k += blockDim.x) {
            u32 b = k / sums, n = k % sums;
            if (beam + b >= p.beams) continue;
            float sum = 0.0f;
            for (u32 t = n * each; t < (n + 1) * each; t++) sum += of[b][t];
            ((float*)to)[((u64)(beam + b) * p.channels + channel) * p.outputs + first + n] = sum * (float)p.scale;
        }
    }
};

// The part of a frame that a block processes: tiles of times, one after the other. Without detection, or with sums of at
// most TIMES times, there is one tile, which contains whole sums. Otherwise the tiles make up one sum.
struct Span {
    u32 begin, end;
    // Number of times per tile, and index of the first output.
    u32 step, first;

    __device__ Span(const Beams& p, u32 index) {
        if (p.integrate <= TIMES) {
            step = TIMES / p.integrate * p.integrate;
            begin = index * step;
            end = min(begin + step, p.times);
            first = begin / p.integrate;
        } else {
            step = TIMES;
            begin = index * p.integrate;
            end = begin + p.integrate;
            first = index;
        }
    }
};
