// The filter of `channelize`: samples and coefficients in global memory, sums in shared memory.

#include "channelize_fft.cuh"

// Number of taps that are processed together, and to whose multiple the coefficients are extended with zeros.
constexpr u32 CHUNK = 8;
// Number of taps whose coefficients a thread keeps in the general case.
constexpr u32 GROUP = 4;

// Returns an address that the compiler knows to be in global memory.
template <class T> __device__ __forceinline__ T* in_global_memory(T* address) {
#ifdef __CUDACC__
    __builtin_assume(__isGlobal(address));
#endif
    return address;
}

// Returns the size of a point of the input.
__device__ inline u32 point_bytes(u32 scalar) { return scalar == FLOAT32 ? 8 : scalar == INT16 ? 4 : 2; }

// Where the points of a row are: up to `split` in `now`, then in `next`. Both addresses are relative to the row.
struct Row {
    const u8 *now, *next;
    u32 split;

    __device__ Row(const Polyphase& p, u32 input, u32 position, u32 bytes) {
        u32 frame = 0;
        if (position < p.before) {
            now = p.history + ((u64)input * p.before + position) * bytes;
            split = p.before - position;
        } else {
            frame = (position - p.before) / p.points;
            const u32 at = position - p.before - frame * p.points;
            now = start(p, frame++, input, bytes) + (u64)at * bytes;
            split = p.points - at;
        }
        next = start(p, frame, input, bytes) - (u64)split * bytes;
    }

    // Returns the address of the first point of a frame.
    __device__ static const u8* start(const Polyphase& p, u32 frame, u32 input, u32 bytes) {
        return frame_of(p.from, frame) + (u64)input * p.points * bytes;
    }

    template <class N> __device__ __forceinline__ Two<N> at(u32 point) const {
        return ((const Two<N>*)in_global_memory(point < split ? now : next))[point];
    }
};

// Numbers that are successive in memory.
template <class N, u32 COUNT> struct alignas(COUNT * sizeof(N)) Numbers {
    N v[COUNT];
};

// The bits of four samples.
template <class N> using Samples = Numbers<u32, sizeof(N)>;

// Converts samples. Conversions of integers are slow, so half of the samples are converted in another way: the bits of the
// sample, with its sign bit inverted, become the last bits of the float32 number 2^23, and the sum of all offsets is subtracted.
__device__ __forceinline__ void convert(float (&to)[4], const Samples<float>& from) {
#pragma unroll
    for (u32 i = 0; i < 4; i++) to[i] = __uint_as_float(from.v[i]);
}
__device__ __forceinline__ void convert(float (&to)[4], const Samples<short>& from) {
    const u32 word = from.v[0] ^ 0x80008000u;
    to[0] = __uint_as_float(__byte_perm(word, 0x4b000000u, 0x7410)) - 8421376.0f;
    to[1] = __uint_as_float(__byte_perm(word, 0x4b000000u, 0x7432)) - 8421376.0f;
    to[2] = (float)(int)(short)from.v[1];
    to[3] = (float)((int)from.v[1] >> 16);
}
__device__ __forceinline__ void convert(float (&to)[4], const Samples<signed char>& from) {
    const u32 word = from.v[0] ^ 0x80808080u;
    to[0] = (float)(int)(signed char)from.v[0];
    to[1] = __uint_as_float(__byte_perm(word, 0x4b000000u, 0x7441)) - 8388736.0f;
    to[2] = __uint_as_float(__byte_perm(word, 0x4b000000u, 0x7442)) - 8388736.0f;
    to[3] = (float)((int)from.v[0] >> 24);
}

// Sums the products of samples and coefficients for two neighbouring points of all spectra of a set, at most CHUNK taps at a
// time.
template <u32 SIZE, u32 SPECTRA, class N, bool REAL> struct Filter {
    // Number of coefficients for the two points.
    static constexpr u32 EACH = REAL ? 4 : 2;

    Complex* points;
    // The first of the two points, the first spectrum of the set in the block, and the rows of the set.
    u32 n, transform;
    const Row* rows;
    // The coefficients and their number of taps (at most CHUNK, but all taps for `slide_mirrored`), and whether there are sums
    // of earlier taps.
    const float* coefficients;
    u32 taps;
    bool continues;

    // Loads the coefficients of COUNT taps. There are at least CHUNK taps in memory.
    template <u32 COUNT> __device__ __forceinline__ void load(Numbers<float, EACH> (&h)[COUNT], u32 tap) const {
        const float* from = coefficients + (tap * SIZE + n) * EACH / 2;
#pragma unroll
        for (u32 t = 0; t < COUNT; t++) h[t] = *(const Numbers<float, EACH>*)(from + t * SIZE * EACH / 2);
    }

    // Adds the products of four samples and their coefficients. MIRROR reverses the coefficients.
    template <bool MIRROR>
    __device__ __forceinline__ static void add(float (&sums)[4], const Numbers<float, EACH>& h, const float (&x)[4]) {
#pragma unroll
        for (u32 i = 0; i < 4; i++) sums[i] += h.v[(MIRROR ? 3 - i : i) * EACH / 4] * x[i];
    }

    // Returns point `n` of spectrum `s`.
    __device__ __forceinline__ Complex& point(u32 s, u32 n) const {
        return points[Fft<SIZE>::place(transform + s, n % SIZE)];
    }

    // Loads the sums of earlier taps for points `n` and n + 1 of spectrum `s`.
    __device__ __forceinline__ void begin(float (&sums)[4], u32 s, u32 n) const {
#pragma unroll
        for (u32 j = 0; j < 2; j++) {
            const Complex a = continues ? point(s, n + j) : Complex{0.0f, 0.0f};
            sums[2 * j] = a.x, sums[2 * j + 1] = a.y;
        }
    }

    // Stores the sums for points `n` and n + 1 of all spectra.
    __device__ __forceinline__ void finish(const float (&sums)[SPECTRA][4], u32 n) const {
#pragma unroll
        for (u32 s = 0; s < SPECTRA; s++) {
            const float(&sum)[4] = sums[s];
            (Four<float>&)point(s, n) = Four<float>{{sum[0], sum[1]}, {sum[2], sum[3]}};
        }
    }

    // For windows that are a transform apart: adds the products of `count` of TAPS taps. `samples(r)` returns the four
    // samples of row `r`; row `t` of spectrum `s` has the number t + s. MIRROR reverses the coefficients.
    template <u32 TAPS, bool MIRROR, class Load>
    __device__ __forceinline__ static void add_taps(float (&sums)[SPECTRA][4], const Numbers<float, EACH> (&h)[TAPS], u32 count,
                                                    const Load& samples) {
#pragma unroll
        for (u32 r = 0; r < SPECTRA + TAPS - 1; r++) {
            float x[4];
            convert(x, samples(r));
#pragma unroll
            for (u32 t = 0; t < TAPS; t++) {
                if (t <= r && r - t < SPECTRA && t < count) add<MIRROR>(sums[r - t], h[MIRROR ? TAPS - 1 - t : t], x);
            }
        }
    }

    // For windows that are a transform apart.
    __device__ __forceinline__ void slide() const {
        float sums[SPECTRA][4];
#pragma unroll
        for (u32 s = 0; s < SPECTRA; s++) begin(sums[s], s, n);
#pragma unroll 1
        for (u32 tap = 0; tap < taps; tap += GROUP) {
            Numbers<float, EACH> h[GROUP];
            load(h, tap);
            add_taps<GROUP, false>(sums, h, taps - tap, [&](u32 r) {
                return ((const Samples<N>*)in_global_memory(rows[tap + r].now))[n / 2];
            });
        }
        finish(sums, n);
    }

    // Adds the products of CHUNK taps, whose rows begin at `first`, to the sums for points `at` and at + 1.
    template <bool MIRROR>
    __device__ __forceinline__ void add_chunk(const Numbers<float, EACH> (&h)[CHUNK], const Samples<N>* first, u32 at) const {
        const Samples<N>* from = first + at / 2;
        float sums[SPECTRA][4];
#pragma unroll
        for (u32 s = 0; s < SPECTRA; s++) begin(sums[s], s, at);
        add_taps<CHUNK, MIRROR>(sums, h, CHUNK, [&](u32 r) { return from[r * (SIZE / 2)]; });
        finish(sums, at);
    }

    // For windows that are a transform apart, a symmetric filter, and rows that follow each other in memory from `samples`
    // on: adds the products of CHUNK taps from `tap` on for points n and n + 1. With the same coefficients, adds those of the
    // mirror image: the taps at the same distance from the last one, for points SIZE - 1 - n and SIZE - 2 - n.
    __device__ __forceinline__ void slide_mirrored(const Samples<N>* samples, u32 tap) const {
        Numbers<float, EACH> h[CHUNK];
        load(h, tap);
        add_chunk<false>(h, samples + tap * (SIZE / 2), n);
        add_chunk<true>(h, samples + (taps - CHUNK - tap) * (SIZE / 2), SIZE - 2 - n);
    }

    // Loads point `n` and the following one of all taps of a spectrum.
    __device__ __forceinline__ void fetch(Samples<N> (&x)[CHUNK], u32 s, u32 hop) const {
        const Row* row = rows + s * CHUNK;
        if (hop % 2 == 0 && row->split >= CHUNK * SIZE) {
            const Samples<N>* from = (const Samples<N>*)in_global_memory(row->now) + n / 2;
#pragma unroll
            for (u32 t = 0; t < CHUNK; t++) {
                if (t < taps) x[t] = from[t * SIZE / 2];
            }
        } else {
#pragma unroll
            for (u32 t = 0; t < CHUNK; t++) {
                if (t < taps) {
                    const Two<N> a = row[t].template at<N>(n), b = row[t].template at<N>(n + 1);
                    const Four<N> four = {a, b};
                    memcpy(&x[t], &four, sizeof(four));
                }
            }
        }
    }

    // For other windows: row `t` of spectrum `s` has the number t + s * CHUNK. Sample `t` of the epoch is added to point `t`
    // modulo SIZE, so that the phases of the channels do not depend on the window. `shift` is the number of the first
    // sample of the set.
    __device__ __forceinline__ void step(u32 shift, u32 hop) const {
        Numbers<float, EACH> h[CHUNK];
        load(h, 0);
#pragma unroll 1
        for (u32 s = 0; s < SPECTRA; s++, shift += hop) {
            Samples<N> x[CHUNK];
            fetch(x, s, hop);
            float sums[4];
            begin(sums, s, n + shift);
#pragma unroll
            for (u32 t = 0; t < CHUNK; t++) {
                if (t < taps) {
                    float y[4];
                    convert(y, x[t]);
                    add<false>(sums, h[t], y);
                }
            }
            point(s, n + shift) = Complex{sums[0], sums[1]};
            point(s, n + 1 + shift) = Complex{sums[2], sums[3]};
        }
    }
};
