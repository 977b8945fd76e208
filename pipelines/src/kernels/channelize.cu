// Divides samples into frequency channels with a polyphase filter bank.
//
// SIZE is the number of channels: the number of points of the complex transform. For complex samples, a point is a sample.
// For real samples, a point consists of two samples, of which the second is the imaginary part, and the spectrum of the
// 2 * SIZE real samples follows from the transform and its mirror image. All distances are in points.
//
// A block processes `count` sets of SPECTRA successive spectra of an input. First, each thread sums the products of samples
// and coefficients for two neighbouring points of all spectra of a set. If the windows of successive spectra are a transform
// apart (SLIDES), a thread keeps the coefficients of several taps while it loads samples, and uses each sample for several
// spectra. If the filter is symmetric and the samples of the block follow each other in memory, which is the usual case, a
// thread also uses the coefficients for the mirror image of the two points. The threads write the sums to shared memory,
// where they transform them in place.

#include "channelize_filter.cuh"
#include "quantise.cuh"

// Returns the size of a number of the output.
__device__ inline u32 output_bytes(u32 kind) { return kind == FLOAT32 ? 8 : kind == INT8 ? 2 : 4; }

// What a block keeps in shared memory: the points of all transforms, and the addresses of outputs and samples.
template <u32 SIZE, u32 SPECTRA, bool SLIDES> struct Space {
    // Number of rows of a set.
    static constexpr u32 ROWS = SLIDES ? SPECTRA + CHUNK - 1 : SPECTRA * CHUNK;

    Complex* points;
    u8** outputs;
    Row* rows;

    __device__ Space(void* shared, u32 count)
        : points((Complex*)shared), outputs((u8**)(points + count * SPECTRA * SIZE)),
          rows((Row*)(outputs + count * SPECTRA)) {}
};

// Adds the products of CHUNK taps from `tap` on for the first half of the points of a block, and those of the mirrored taps for
// the second half. The samples of the block begin at `samples`.
template <u32 SIZE, u32 SPECTRA, class N, bool REAL>
__device__ __forceinline__ void filter_mirrored(const Polyphase& p, const Space<SIZE, SPECTRA, true>& space,
                                                const Samples<N>* samples, u32 tap) {
    constexpr u32 PAIRS = SIZE / 4;
    for (u32 item = threadIdx.x; item < p.count * PAIRS; item += blockDim.x) {
        const u32 transform = item / PAIRS * SPECTRA;
        const Filter<SIZE, SPECTRA, N, REAL> filter{space.points, item % PAIRS * 2, transform, nullptr, p.coefficients, p.taps,
                                                    tap > 0};
        filter.slide_mirrored(samples + transform * (SIZE / 2), tap);
    }
}

// Sums the products of samples and coefficients of the taps from `first` on for all points of a block.
template <u32 SIZE, u32 SPECTRA, bool SLIDES, class N, bool REAL>
__device__ __forceinline__ void filter_chunk(const Polyphase& p, const Space<SIZE, SPECTRA, SLIDES>& space, u32 first) {
    for (u32 item = threadIdx.x; item < p.count * (SIZE / 2); item += blockDim.x) {
        const u32 set = item / (SIZE / 2);
        const Filter<SIZE, SPECTRA, N, REAL> filter{space.points,
                                                    item % (SIZE / 2) * 2,
                                                    set * SPECTRA,
                                                    space.rows + set * space.ROWS,
                                                    p.coefficients + (u64)first * SIZE * (REAL ? 2 : 1),
                                                    min(CHUNK, p.taps - first),
                                                    first > 0};
        if constexpr (SLIDES) {
            filter.slide();
        } else {
            filter.step(p.phase + (blockIdx.x * p.count + set) % p.sets * SPECTRA * p.hop, p.hop);
        }
    }
}

// Finds the samples of the taps from `first` on.
template <u32 SIZE, u32 SPECTRA, bool SLIDES>
__device__ __forceinline__ void find_rows(const Polyphase& p, const Space<SIZE, SPECTRA, SLIDES>& space, u32 first) {
    const u32 each = space.ROWS, bytes = point_bytes(p.scalar);
    // Position of the last row of the run. It replaces rows that no output needs.
    const u32 last = (p.frames * p.spectra - 1) * p.hop + (p.taps - 1) * SIZE;
    for (u32 i = threadIdx.x; i < p.count * each; i += blockDim.x) {
        const u32 set = min(blockIdx.x * p.count + i / each, p.sets * p.inputs - 1), row = i % each;
        const u32 spectrum = set % p.sets * SPECTRA + (SLIDES ? 0 : row / CHUNK);
        const u32 tap = first + (SLIDES ? row : row % CHUNK);
        space.rows[i] = Row(p, set / p.sets, min(spectrum * p.hop + tap * SIZE, last), bytes);
    }
}

// Returns the samples of a block if the filter is symmetric and the rows follow each other in memory, otherwise null.
template <u32 SIZE, u32 SPECTRA> __device__ __forceinline__ const u8* find_samples(const Polyphase& p) {
    if (!p.symmetric) return nullptr;
    const u32 set = blockIdx.x * p.count, input = p.inputs == 1 ? 0 : set / p.sets, at = set - input * p.sets;
    const Row row(p, input, at * SPECTRA * SIZE, point_bytes(p.scalar));
    const bool is_contiguous = at + p.count <= p.sets && row.split >= (p.count * SPECTRA + p.taps - 1) * SIZE;
    return is_contiguous ? row.now : nullptr;
}

// Sums the products of samples and coefficients of all taps for all points of a block.
template <u32 SIZE, u32 SPECTRA, bool SLIDES, class N, bool REAL>
__device__ __forceinline__ void filter(const Polyphase& p, const Space<SIZE, SPECTRA, SLIDES>& space) {
    if constexpr (SLIDES) {
        const u8* samples = find_samples<SIZE, SPECTRA>(p);
        if (samples != nullptr) {
            for (u32 tap = 0; tap < p.taps; tap += CHUNK) {
                filter_mirrored<SIZE, SPECTRA, N, REAL>(p, space, (const Samples<N>*)in_global_memory(samples), tap);
            }
            __syncthreads();
            return;
        }
    }
    for (u32 tap = 0; tap < p.taps; tap += CHUNK) {
        find_rows(p, space, tap);
        __syncthreads();
        filter_chunk<SIZE, SPECTRA, SLIDES, N, REAL>(p, space, tap);
        __syncthreads();
    }
}

// Selects the code for complex or real samples.
template <class N, u32 SIZE, u32 SPECTRA, bool SLIDES>
__device__ __forceinline__ void filter_parts(const Polyphase& p, const Space<SIZE, SPECTRA, SLIDES>& space) {
    if (p.complex) {
        filter<SIZE, SPECTRA, SLIDES, N, false>(p, space);
    } else {
        filter<SIZE, SPECTRA, SLIDES, N, true>(p, space);
    }
}

// Finds the outputs; null for spectra that do not exist.
template <u32 SIZE, u32 SPECTRA, bool SLIDES>
__device__ __forceinline__ void find_outputs(const Polyphase& p, const Space<SIZE, SPECTRA, SLIDES>& space) {
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
template <u32 SIZE, u32 SPECTRA, bool SLIDES> __device__ __forceinline__ void channelize(const Polyphase& p, void* shared) {
    constexpr u32 THREADS = SIZE / POINTS;
    const Space<SIZE, SPECTRA, SLIDES> space(shared, p.count);
    find_outputs(p, space);
    switch (p.scalar) {
    case INT8: filter_parts<signed char>(p, space); break;
    case INT16: filter_parts<short>(p, space); break;
    default: filter_parts<float>(p, space); break;
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

#define CHANNELIZE_FUNCTION(name, size, threads, blocks, spectra, slides)                                            \
    extern "C" __global__ void __launch_bounds__(threads, blocks) name(POLYPHASE_PARAMETERS) {                       \
        const Polyphase p = with_known_values(POLYPHASE_GIVEN);                                                      \
        DYNAMIC_SHARED(Four<float>, shared);                                                                         \
        channelize<size, spectra, slides>(p, shared);                                                                \
    }
#define CRITICAL_KERNEL(size, threads, blocks, spectra)                                                              \
    CHANNELIZE_FUNCTION(channelize_##size##_##threads##x##spectra, size, threads, blocks, spectra, true)
// The filter needs 128 registers.
#define OVERSAMPLED_KERNEL(size, threads, spectra)                                                                   \
    CHANNELIZE_FUNCTION(channelize_##size##_##threads##x##spectra##_oversampled, size, threads, 512 / threads, spectra, false)

// The functions of each size: threads per block, blocks per multiprocessor for which registers must be available, and
// spectra per set. GPUs with little shared memory use the second function.
#define CHANNELIZE_64(CRITICAL, OVERSAMPLED) CRITICAL(64, 64, 10, 8) OVERSAMPLED(64, 64, 8)
#define CHANNELIZE_128(CRITICAL, OVERSAMPLED) CRITICAL(128, 64, 10, 8) OVERSAMPLED(128, 64, 8)
#define CHANNELIZE_256(CRITICAL, OVERSAMPLED) CRITICAL(256, 64, 10, 8) OVERSAMPLED(256, 64, 8)
#define CHANNELIZE_512(CRITICAL, OVERSAMPLED) CRITICAL(512, 128, 5, 8) OVERSAMPLED(512, 128, 8)
#define CHANNELIZE_1024(CRITICAL, OVERSAMPLED) CRITICAL(1024, 128, 5, 4) OVERSAMPLED(1024, 128, 4)
#define CHANNELIZE_2048(CRITICAL, OVERSAMPLED) \
    CRITICAL(2048, 256, 2, 6) CRITICAL(2048, 128, 6, 2) OVERSAMPLED(2048, 128, 2)
#define CHANNELIZE_4096(CRITICAL, OVERSAMPLED) \
    CRITICAL(4096, 256, 2, 3) CRITICAL(4096, 128, 6, 1) OVERSAMPLED(4096, 256, 2) OVERSAMPLED(4096, 128, 1)
#define CHANNELIZE_8192(CRITICAL, OVERSAMPLED) \
    CRITICAL(8192, 512, 1, 3) CRITICAL(8192, 256, 3, 1) OVERSAMPLED(8192, 256, 1)

// NVRTC compiles this file once for each size. The tests compile all sizes together.
#ifdef ONLY_SIZE
#define CHANNELIZE_OF(size) CHANNELIZE_##size(CRITICAL_KERNEL, OVERSAMPLED_KERNEL)
#define CHANNELIZE_EXPANDED(size) CHANNELIZE_OF(size)
CHANNELIZE_EXPANDED(ONLY_SIZE)
#endif
