// Copies the selected bytes of frames. Each thread writes 16 bytes at a time, so writes are coalesced; reads are as wide
// as the selected pieces allow.

#include "samples.cuh"

// The place of a piece of the input, which moves on to the next piece.
struct Place {
    const Places& places;
    u32 group, within, at;

    __device__ Place(const Places& places, u32 i)
        : places(places), group(i / places.each), within(i % places.each) {
        at = places.bases[group] + within * places.step;
    }
    // Moves to the next place. Returns whether it is the first place again.
    __device__ bool next() {
        at += places.step;
        if (++within < places.each) return false;
        within = 0;
        bool again = (++group) * places.each == places.count;
        if (again) group = 0;
        at = places.bases[group];
        return again;
    }
};

template <class W> struct alignas(16) Line {
    W words[16 / sizeof(W)];
};

template <class W> __device__ void copy(const Selection& p, const u8* from, u8* to) {
    constexpr u32 WORDS = 16 / sizeof(W);
    u32 per_run = p.run / (u32)sizeof(W), total = p.bytes / (u32)sizeof(W);
    u32 step = gridDim.x * blockDim.x;
    u32 lines = (total + WORDS - 1) / WORDS;
    for (u32 line = blockIdx.x * blockDim.x + threadIdx.x; line < lines; line += step) {
        u32 first = line * WORDS;
        u32 piece = first / per_run, word = first % per_run;
        Place outer(p.outer, piece / p.inner.count), inner(p.inner, piece % p.inner.count);
        u32 count = total - first < WORDS ? total - first : WORDS;
        Line<W> copied;
        for (u32 k = 0; k < WORDS; k++) {
            if (k >= count) break;
            copied.words[k] = *(const W*)(from + outer.at + inner.at + word * (u32)sizeof(W));
            if (++word == per_run) {
                word = 0;
                if (inner.next()) outer.next();
            }
        }
        if (count == WORDS) {
            ((Line<W>*)to)[line] = copied;
        } else {
            for (u32 k = 0; k < count; k++) ((W*)to)[first + k] = copied.words[k];
        }
    }
}

struct alignas(16) Sixteen {
    u64 halves[2];
};

// blocks: x is the part of a frame, y the frame
extern "C" __global__ void __launch_bounds__(256) select_bytes(SELECTION_PARAMETERS) {
    const Selection p = SELECTION_GIVEN;
    const u8* from = frame_of(p.from, blockIdx.y);
    u8* to = frame_of(p.to, blockIdx.y);
    switch (p.word) {
    case 1: copy<u8>(p, from, to); break;
    case 2: copy<u16>(p, from, to); break;
    case 4: copy<u32>(p, from, to); break;
    case 8: copy<u64>(p, from, to); break;
    default: copy<Sixteen>(p, from, to); break;
    }
}
