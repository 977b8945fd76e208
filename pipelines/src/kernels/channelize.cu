// Divides samples into frequency channels with a polyphase filter bank.
//
// SIZE is the number of channels: the number of points of the complex transform. For complex samples, a point is a sample.
// For real samples, a point consists of two samples, of which the second is the imaginary part, and the spectrum of the
// 2 * SIZE real samples follows from the transform and its mirror image. All distances are in points.
//
// A block processes `count` sets of SPECTRA successive spectra of an input. First, each thread sums the products of samples
// and coefficients for two neighbouring points of all spectra of a set. If the windows of successive spectra are a transform
// apart, a thread keeps the coefficients of GROUP taps while it loads samples, and uses each sample for several spectra.
// GROUP is 0 for other windows. The threads write the sums to shared memory, where they transform them in place.

#include "channelize_fft.cuh"
#include "quantise.cuh"

// Number of taps that are processed together, and to whose multiple the coefficients are extended with zeros.
constexpr u32 CHUNK = 8;

// Returns an address that the compiler knows to be in global memory.
template <class T> __device__ __forceinline__ T* in_global_memory(T* address) {
#ifdef __CUDACC__
    __builtin_assume(__isGlobal(address));
#endif
    return address;
}

// Returns the sizes of a point of the input and of a number of the output.
__device__ inline u32 point_bytes(u32 scalar) { return scalar == FLOAT32 ? 8 : scalar == INT16 ? 4 : 2; }
__device__ inline u32 output_bytes(u32 kind) { return kind == FLOAT32 ? 8 : kind == INT8 ? 2 : 4; }

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

// What a block keeps in shared memory: the points of all transforms, and the addresses of outputs and samples.
template <u32 SIZE, u32 SPECTRA, u32 GROUP> struct Space {
    // Number of rows of a set.
    static constexpr u32 ROWS = GROUP ? SPECTRA + CHUNK - 1 : SPECTRA * CHUNK;

    Complex* points;
    u8** outputs;
    Row* rows;

    __device__ Space(void* shared, u32 count)
        : points((Complex*)shared), outputs((u8**)(points + count * SPECTRA * SIZE)),
          rows((Row*)(outputs + count * SPECTRA)) {}
};

// Numbers that are successive in memory.
template <class N, u32 COUNT> struct alignas(COUNT * sizeof(N)) Numbers {
    N v[COUNT];
};

// Converts samples. For integers, this replaces slow conversions: the bits of the sample, with its sign bit inverted, become
// the last bits of the float32 number 2^23, and the sum of all offsets is subtracted. Each function copies its numbers as a
// whole, so that the compiler loads them with one instruction.
__device__ __forceinline__ void convert(float (&to)[4], const Numbers<float, 4>& from) {
    const Numbers<float, 4> copy = from;
#pragma unroll
    for (u32 i = 0; i < 4; i++) to[i] = copy.v[i];
}
__device__ __forceinline__ void convert(float (&to)[4], const Numbers<short, 4>& from) {
    const Numbers<u32, 2> words = (const Numbers<u32, 2>&)from;
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        const u32 word = words.v[i / 2] ^ 0x80008000u;
        to[i] = __uint_as_float(__byte_perm(word, 0x4b000000u, i % 2 ? 0x7432 : 0x7410)) - 8421376.0f;
    }
}
__device__ __forceinline__ void convert(float (&to)[4], const Numbers<signed char, 4>& from) {
    const u32 word = *(const u32*)from.v ^ 0x80808080u;
#pragma unroll
    for (u32 i = 0; i < 4; i++) to[i] = __uint_as_float(__byte_perm(word, 0x4b000000u, 0x7440 + i)) - 8388736.0f;
}

// Sums the products of samples and coefficients of at most CHUNK taps for two neighbouring points of all spectra of a set.
template <u32 SIZE, u32 SPECTRA, class N, bool REAL> struct Filter {
    // Number of coefficients for the two points.
    static constexpr u32 EACH = REAL ? 4 : 2;

    Complex* points;
    // The first of the two points, the first spectrum of the set in the block, and the rows of the set.
    u32 n, transform;
    const Row* rows;
    // The coefficients, the number of taps, and whether sums of earlier taps exist.
    const float* coefficients;
    u32 taps;
    bool continues;

    // Loads the coefficients of COUNT taps. There are at least CHUNK taps in memory.
    template <u32 COUNT> __device__ __forceinline__ void load(Numbers<float, EACH> (&h)[COUNT], u32 tap) const {
#pragma unroll
        for (u32 t = 0; t < COUNT; t++) h[t] = *(const Numbers<float, EACH>*)(coefficients + ((tap + t) * SIZE + n) * EACH / 2);
    }

    __device__ __forceinline__ static void add(float (&sums)[4], const Numbers<float, EACH>& h, const float (&x)[4]) {
#pragma unroll
        for (u32 i = 0; i < 4; i++) sums[i] += h.v[i * EACH / 4] * x[i];
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

    // For windows that are a transform apart: row `t` of spectrum `s` has the number t + s.
    template <u32 GROUP> __device__ __forceinline__ void slide() const {
        float sums[SPECTRA][4];
#pragma unroll
        for (u32 s = 0; s < SPECTRA; s++) begin(sums[s], s, n);
#pragma unroll 1
        for (u32 tap = 0; tap < taps; tap += GROUP) {
            Numbers<float, EACH> h[GROUP];
            load(h, tap);
#pragma unroll
            for (u32 r = 0; r < SPECTRA + GROUP - 1; r++) {
                float x[4];
                convert(x, ((const Numbers<N, 4>*)in_global_memory(rows[tap + r].now))[n / 2]);
#pragma unroll
                for (u32 t = 0; t < GROUP; t++) {
                    if (t <= r && r - t < SPECTRA && tap + t < taps) add(sums[r - t], h[t], x);
                }
            }
        }
#pragma unroll
        for (u32 s = 0; s < SPECTRA; s++) {
            const float(&sum)[4] = sums[s];
            (Four<float>&)point(s, n) = Four<float>{{sum[0], sum[1]}, {sum[2], sum[3]}};
        }
    }

    // Loads point `n` and the following one of all taps of a spectrum.
    __device__ __forceinline__ void fetch(Numbers<N, 4> (&x)[CHUNK], u32 s, u32 hop) const {
        const Row* row = rows + s * CHUNK;
        if (hop % 2 == 0 && row->split >= CHUNK * SIZE) {
            const Numbers<N, 4>* from = (const Numbers<N, 4>*)in_global_memory(row->now) + n / 2;
#pragma unroll
            for (u32 t = 0; t < CHUNK; t++) {
                if (t < taps) x[t] = from[t * SIZE / 2];
            }
        } else {
#pragma unroll
            for (u32 t = 0; t < CHUNK; t++) {
                if (t < taps) {
                    const Two<N> a = row[t].template at<N>(n), b = row[t].template at<N>(n + 1);
                    x[t] = Numbers<N, 4>{{a.x, a.y, b.x, b.y}};
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
            Numbers<N, 4> x[CHUNK];
            fetch(x, s, hop);
            float sums[4];
            begin(sums, s, n + shift);
#pragma unroll
            for (u32 t = 0; t < CHUNK; t++) {
                if (t < taps) {
                    float y[4];
                    convert(y, x[t]);
                    add(sums, h[t], y);
                }
            }
            point(s, n + shift) = Complex{sums[0], sums[1]};
            point(s, n + 1 + shift) = Complex{sums[2], sums[3]};
        }
    }
};

// Sums the products of samples and coefficients of the taps from `first` on for all points of a block. WHOLE means that
// there are CHUNK of them.
template <u32 SIZE, u32 SPECTRA, u32 GROUP, bool WHOLE, class N, bool REAL>
__device__ __forceinline__ void filter(const Polyphase& p, const Space<SIZE, SPECTRA, GROUP>& space, u32 first) {
    for (u32 item = threadIdx.x; item < p.count * (SIZE / 2); item += blockDim.x) {
        const u32 set = item / (SIZE / 2);
        const Filter<SIZE, SPECTRA, N, REAL> filter{space.points,
                                                    item % (SIZE / 2) * 2,
                                                    set * SPECTRA,
                                                    space.rows + set * space.ROWS,
                                                    p.coefficients + (u64)first * SIZE * (REAL ? 2 : 1),
                                                    WHOLE ? CHUNK : min(CHUNK, p.taps - first),
                                                    first > 0};
        if constexpr (GROUP > 0) {
            filter.template slide<GROUP>();
        } else {
            filter.step(p.phase + (blockIdx.x * p.count + set) % p.sets * SPECTRA * p.hop, p.hop);
        }
    }
}

template <u32 SIZE, u32 SPECTRA, u32 GROUP, bool WHOLE, class N>
__device__ __forceinline__ void filter_any(const Polyphase& p, const Space<SIZE, SPECTRA, GROUP>& space, u32 first) {
    if (p.complex) {
        filter<SIZE, SPECTRA, GROUP, WHOLE, N, false>(p, space, first);
    } else {
        filter<SIZE, SPECTRA, GROUP, WHOLE, N, true>(p, space, first);
    }
}

// Finds the samples of the taps from `first` on.
template <u32 SIZE, u32 SPECTRA, u32 GROUP>
__device__ __forceinline__ void find_rows(const Polyphase& p, const Space<SIZE, SPECTRA, GROUP>& space, u32 first) {
    const u32 each = space.ROWS, bytes = point_bytes(p.scalar);
    // Position of the last row of the run. It replaces rows that no output needs.
    const u32 last = (p.frames * p.spectra - 1) * p.hop + (p.taps - 1) * SIZE;
    for (u32 i = threadIdx.x; i < p.count * each; i += blockDim.x) {
        const u32 set = min(blockIdx.x * p.count + i / each, p.sets * p.inputs - 1), row = i % each;
        const u32 spectrum = set % p.sets * SPECTRA + (GROUP ? 0 : row / CHUNK);
        const u32 tap = first + (GROUP ? row : row % CHUNK);
        space.rows[i] = Row(p, set / p.sets, min(spectrum * p.hop + tap * SIZE, last), bytes);
    }
}

// Sums the products of samples and coefficients of all taps for all points of a block.
template <bool WHOLE, u32 SIZE, u32 SPECTRA, u32 GROUP>
__device__ __forceinline__ void filter_taps(const Polyphase& p, const Space<SIZE, SPECTRA, GROUP>& space) {
    for (u32 tap = 0; tap < p.taps; tap += CHUNK) {
        find_rows(p, space, tap);
        __syncthreads();
        switch (p.scalar) {
        case INT8: filter_any<SIZE, SPECTRA, GROUP, WHOLE, signed char>(p, space, tap); break;
        case INT16: filter_any<SIZE, SPECTRA, GROUP, WHOLE, short>(p, space, tap); break;
        default: filter_any<SIZE, SPECTRA, GROUP, WHOLE, float>(p, space, tap); break;
        }
        __syncthreads();
    }
}

// Finds the outputs; null for spectra that do not exist.
template <u32 SIZE, u32 SPECTRA, u32 GROUP>
__device__ __forceinline__ void find_outputs(const Polyphase& p, const Space<SIZE, SPECTRA, GROUP>& space) {
    const u32 bytes = output_bytes(p.kind);
    for (u32 i = threadIdx.x; i < p.count * SPECTRA; i += blockDim.x) {
        const u32 set = blockIdx.x * p.count + i / SPECTRA, spectrum = set % p.sets * SPECTRA + i % SPECTRA;
        const u64 index = (u64)(spectrum % p.spectra) * p.inputs + set / p.sets;
        const bool exists = set < p.sets * p.inputs && spectrum < p.frames * p.spectra;
        space.outputs[i] = exists ? frame_of(p.to, spectrum / p.spectra) + index * SIZE * bytes : nullptr;
    }
}

// Stores `v[m]` in place `m` * STEP of `low`, or of `high` for m >= 8, and `v[15]` in the first place of `last`.
template <u32 STEP, u32 KIND>
__device__ __forceinline__ void store_as(u8* low, u8* high, u8* last, const Complex (&v)[POINTS]) {
#pragma unroll
    for (u32 m = 0; m < POINTS - 1; m++) store(m < POINTS / 2 ? low : high, m * STEP, v[m], KIND);
    store(last, 0, v[POINTS - 1], KIND);
}
template <u32 STEP>
__device__ __forceinline__ void store_all(u8* low, u8* high, u8* last, const Complex (&v)[POINTS], u32 kind) {
    switch (kind) {
    case FLOAT32: store_as<STEP, FLOAT32>(low, high, last, v); break;
    case INT8: store_as<STEP, INT8>(low, high, last, v); break;
    case INT16: store_as<STEP, INT16>(low, high, last, v); break;
    default: store_as<STEP, FLOAT16>(low, high, last, v); break;
    }
}

// Channelizes the frames of a run.
// blocks: `count` sets of spectra; the sets of an input follow each other
template <u32 SIZE, u32 SPECTRA, u32 GROUP> __device__ __forceinline__ void channelize(const Polyphase& p, void* shared) {
    constexpr u32 THREADS = SIZE / POINTS;
    const Space<SIZE, SPECTRA, GROUP> space(shared, p.count);
    find_outputs(p, space);
    if (GROUP > 0 && p.taps % CHUNK == 0) {
        filter_taps<true>(p, space);
    } else {
        filter_taps<false>(p, space);
    }
    const u32 slices = p.count * SPECTRA * THREADS, bytes = output_bytes(p.kind);
    Fft<SIZE>::run(space.points, p.roots, slices);
    for (u32 slice = threadIdx.x; slice < slices; slice += blockDim.x) {
        const u32 transform = slice / THREADS;
        u8* to = in_global_memory(space.outputs[transform]);
        Complex v[POINTS];
        if (p.complex) {
            const u32 k = slice % THREADS;
            Fft<SIZE>::last(v, space.points, p.roots, transform, k);
            // The negative frequencies come first.
            u8 *low = to + (k + SIZE / 2) * bytes, *high = to + k * bytes - SIZE / 2 * bytes;
            if (to != nullptr) store_all<THREADS>(low, high, high + (SIZE - THREADS) * bytes, v, p.kind);
        } else {
            const Mirror<SIZE> mirror(slice % THREADS);
            Fft<SIZE>::last(v, space.points, p.roots, transform, mirror.k);
            mirror.unfold(v, p.roots);
            u8 *low = to + mirror.k * bytes, *high = to + (THREADS - mirror.k) * bytes;
            u8* last = high + (mirror.k == 0 ? SIZE / 2 - THREADS : SIZE - THREADS) * bytes;
            if (to != nullptr) store_all<THREADS>(low, high, last, v, p.kind);
        }
    }
}

// Copies point `i` of `from` to point `j` of `to`.
__device__ inline void copy_point(u8* to, u64 j, const u8* from, u64 i, u32 bytes) {
    switch (bytes) {
    case 2: ((u16*)to)[j] = ((const u16*)from)[i]; break;
    case 4: ((u32*)to)[j] = ((const u32*)from)[i]; break;
    default: ((u64*)to)[j] = ((const u64*)from)[i]; break;
    }
}

// Copies the last points of a run of `frames` frames to `kept`. The next burst needs them.
// blocks: 256 points each
extern "C" __global__ void __launch_bounds__(256) channelize_history(POLYPHASE_PARAMETERS) {
    const Polyphase p = POLYPHASE_GIVEN;
    const u64 i = (u64)blockIdx.x * 256 + threadIdx.x;
    if (i >= (u64)p.before * p.inputs) return;
    const u64 input = i / p.before, end = (u64)p.frames * p.points + i % p.before;
    const u32 bytes = point_bytes(p.scalar);
    if (end < p.before) {
        copy_point(p.kept, i, p.history, input * p.before + end, bytes);
    } else {
        const u64 at = end - p.before;
        copy_point(p.kept, i, frame_of(p.from, at / p.points), input * p.points + at % p.points, bytes);
    }
}

// Returns the number of spectra per set for blocks of `threads` threads with 32 points each.
__device__ constexpr u32 spectra_of(u32 size, u32 threads) { return threads * 32 < 8 * size ? threads * 32 / size : 8; }

// Sets `number` to a value that is known when the code is loaded: daq replaces `name` in the PTX by it, and the driver's
// compiler then removes the code for other values.
#ifdef __CUDACC__
#define KNOWN_AT_LOAD(name, number) asm("mov.u32 %0, " #name ";" : "=r"(number))
#else
#define KNOWN_AT_LOAD(name, number)
#endif

__device__ __forceinline__ Polyphase with_known_values(Polyphase p) {
    KNOWN_AT_LOAD(DAQ_SCALAR, p.scalar);
    KNOWN_AT_LOAD(DAQ_COMPLEX, p.complex);
    KNOWN_AT_LOAD(DAQ_KIND, p.kind);
    KNOWN_AT_LOAD(DAQ_TAPS, p.taps);
    return p;
}

#define CHANNELIZE_FUNCTION(name, size, threads, blocks, group)                                                      \
    extern "C" __global__ void __launch_bounds__(threads, blocks) name(POLYPHASE_PARAMETERS) {                       \
        const Polyphase p = with_known_values(POLYPHASE_GIVEN);                                                      \
        DYNAMIC_SHARED(Four<float>, shared);                                                                         \
        channelize<size, spectra_of(size, threads), group>(p, shared);                                               \
    }
#define CRITICAL_KERNEL(size, threads, blocks, group)                                                                \
    CHANNELIZE_FUNCTION(channelize_##size##_##threads, size, threads, blocks, group)
// The filter needs 128 registers.
#define OVERSAMPLED_KERNEL(size, threads)                                                                            \
    CHANNELIZE_FUNCTION(channelize_##size##_##threads##_oversampled, size, threads, 512 / threads, 0)

// The functions of each size: threads per block, blocks per multiprocessor for which registers must be available, and GROUP.
// GPUs with little shared memory use the second function.
#define CHANNELIZE_64(CRITICAL, OVERSAMPLED) CRITICAL(64, 64, 12, 4) OVERSAMPLED(64, 64)
#define CHANNELIZE_128(CRITICAL, OVERSAMPLED) CRITICAL(128, 64, 12, 4) OVERSAMPLED(128, 64)
#define CHANNELIZE_256(CRITICAL, OVERSAMPLED) CRITICAL(256, 64, 12, 4) OVERSAMPLED(256, 64)
#define CHANNELIZE_512(CRITICAL, OVERSAMPLED) CRITICAL(512, 128, 6, 4) OVERSAMPLED(512, 128)
#define CHANNELIZE_1024(CRITICAL, OVERSAMPLED) CRITICAL(1024, 128, 5, 8) OVERSAMPLED(1024, 128)
#define CHANNELIZE_2048(CRITICAL, OVERSAMPLED) \
    CRITICAL(2048, 256, 3, 8) CRITICAL(2048, 128, 6, 4) OVERSAMPLED(2048, 128)
#define CHANNELIZE_4096(CRITICAL, OVERSAMPLED) \
    CRITICAL(4096, 256, 3, 8) CRITICAL(4096, 128, 6, 4) OVERSAMPLED(4096, 256) OVERSAMPLED(4096, 128)
#define CHANNELIZE_8192(CRITICAL, OVERSAMPLED) \
    CRITICAL(8192, 768, 1, 4) CRITICAL(8192, 256, 3, 4) OVERSAMPLED(8192, 256)

// NVRTC compiles this file once for each size. The tests compile all sizes together.
#ifdef ONLY_SIZE
#define CHANNELIZE_OF(size) CHANNELIZE_##size(CRITICAL_KERNEL, OVERSAMPLED_KERNEL)
#define CHANNELIZE_EXPANDED(size) CHANNELIZE_OF(size)
CHANNELIZE_EXPANDED(ONLY_SIZE)
#endif
