// Shared by the device code of `correlate`: the samples of an output, and its visibilities.

#include "samples.cuh"

// The samples of successive items of one channel. The samples of an antenna follow each other within an item.
struct Items {
    u64 next, end;
    // Position in the item, in samples, and sample 0 of antenna 0 of the item.
    u32 at;
    const u8* base;

    __device__ Items(const Correlation& p, u32 o, u32 channel, u32 bytes)
        : next(begin_of(p.cut, o)), end(end_of(p.cut, o)), at(0), base(nullptr) {
        if (next < end) base = start(p, channel, bytes);
    }

    __device__ const u8* start(const Correlation& p, u32 channel, u32 bytes) const {
        u64 item = p.origin + next;
        return frame_of(p.from, item / p.items) + (channel * p.channel_step + item % p.items * p.length) * bytes;
    }
    __device__ bool more() const { return next < end; }
    __device__ void advance(const Correlation& p, u32 samples, u32 channel, u32 bytes) {
        at += samples;
        if (at < p.length) return;
        at = 0;
        next++;
        if (next < end) base = start(p, channel, bytes);
    }
};

// The antennas of a tile of the matrix of baselines: rows from `i`, columns from `j`.
struct Tile {
    u32 i, j;

    // Tile `index` of those with row <= column, row after row.
    __device__ Tile(u32 antennas, u32 index, u32 size) {
        u32 across = (antennas + size - 1) / size, row = 0;
        while (index >= across - row) {
            index -= across - row;
            row++;
        }
        i = row * size;
        j = (row + index) * size;
    }
};

// Adds the sums of earlier rounds to a visibility of output `o`, and writes it.
__device__ inline void finish(const Correlation& p, u32 o, u32 channel, u32 i, u32 j, double re, double im) {
    u64 baselines = (u64)p.antennas * (p.antennas + 1) / 2;
    u64 at = channel * baselines + (u64)i * p.antennas - (u64)i * (i + 1) / 2 + j;
    if (o == 0 && p.carried != nullptr) {
        re += p.carried[2 * at];
        im += p.carried[2 * at + 1];
    }
    if (o >= p.complete) {
        p.carry[2 * at] = re;
        p.carry[2 * at + 1] = im;
        return;
    }
    u8* to = frame_of(p.to, o);
    if (p.kind == FLOAT32) {
        ((float*)to)[2 * at] = (float)(re * p.scale);
        ((float*)to)[2 * at + 1] = (float)(im * p.scale);
    } else {
        ((int*)to)[2 * at] = (int)re;
        ((int*)to)[2 * at + 1] = (int)im;
    }
}
