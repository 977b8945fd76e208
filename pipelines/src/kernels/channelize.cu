// Divides samples into frequency channels with a polyphase filter bank.
//
// SIZE is the number of channels: the number of points of the complex transform. For complex samples, a point is a sample.
// For real samples, a point consists of two samples, of which the second is the imaginary part, and the spectrum of the
// 2 * SIZE real samples follows from the transform and its mirror image.
//
// A thread keeps POINTS points of a spectrum in registers, from the samples to the channels: it sums the products of
// samples and coefficients, then the threads of a spectrum exchange their points through shared memory between the passes
// of the transform. Only the first pass can have a radix below 16.

#include "spectra.cuh"
#include "quantise.cuh"

constexpr u32 POINTS = 16;

// Two successive numbers of a frame: a complex sample or two real samples.
template <class N> struct alignas(2 * sizeof(N)) Two {
    N x, y;
};

// A transform of 16 points.
__device__ __forceinline__ void transform16(Complex (&v)[POINTS]) {
    // cos(2 pi k / 16)
    constexpr float C1 = 0.92387953251128676f, C2 = 0.70710678118654752f, C3 = 0.38268343236508977f;
    Complex rows[4][4];
#pragma unroll
    for (int a = 0; a < 4; a++) {
#pragma unroll
        for (int b = 0; b < 4; b++) rows[a][b] = v[a + 4 * b];
        Small<4>::run(rows[a]);
    }
    rows[1][1] = rows[1][1] * Complex{C1, -C3};
    rows[1][2] = Complex{C2 * (rows[1][2].x + rows[1][2].y), C2 * (rows[1][2].y - rows[1][2].x)};
    rows[1][3] = rows[1][3] * Complex{C3, -C1};
    rows[2][1] = Complex{C2 * (rows[2][1].x + rows[2][1].y), C2 * (rows[2][1].y - rows[2][1].x)};
    rows[2][2] = turned(rows[2][2]);
    rows[2][3] = Complex{C2 * (rows[2][3].y - rows[2][3].x), -C2 * (rows[2][3].x + rows[2][3].y)};
    rows[3][1] = rows[3][1] * Complex{C3, -C1};
    rows[3][2] = Complex{C2 * (rows[3][2].y - rows[3][2].x), -C2 * (rows[3][2].x + rows[3][2].y)};
    rows[3][3] = rows[3][3] * Complex{-C1, C3};
#pragma unroll
    for (int k = 0; k < 4; k++) {
        Complex column[4] = {rows[0][k], rows[1][k], rows[2][k], rows[3][k]};
        Small<4>::run(column);
#pragma unroll
        for (int b = 0; b < 4; b++) v[k + 4 * b] = column[b];
    }
}

// A transform of SIZE points by SIZE / POINTS threads. Thread `i` has the points `i + m * THREADS`, and at the end the
// channels with the same numbers.
template <u32 SIZE> struct Fft {
    static constexpr u32 THREADS = SIZE / POINTS;
    // Radix of the first pass: SIZE is FIRST times a power of 16.
    static constexpr u32 FIRST = SIZE == 64 || SIZE == 1024      ? 4
                                 : SIZE == 128 || SIZE == 2048   ? 8
                                 : SIZE == 512 || SIZE == 8192   ? 2
                                                                 : 16;
    // Whether the buffer has place for whole points, or for real and imaginary parts one after the other.
    static constexpr bool WHOLE = SIZE <= 4096;
    // Size of the buffer of a transform in floats. The last place is not used, so that transforms begin in other banks.
    static constexpr u32 PITCH = ((SIZE + SIZE / 16) | 1) * (WHOLE ? 2 : 1);

    float* buffer;
    u32 i;
    // The roots of unity exp(-pi i k / SIZE).
    const Complex* roots;

    // Returns the place of a point in the buffer. Points at a distance of a small power of two are in different banks.
    __device__ static constexpr u32 place(u32 point) { return point + (point >> 4); }

    // Writes point `m` to place `to(m)`, and replaces it with the point in place `from(m)`. All threads of the block must
    // call this function.
    template <class To, class From>
    __device__ __forceinline__ void exchange(const Complex (&v)[POINTS], Complex (&w)[POINTS], To to, From from) const {
        __syncthreads();
        if constexpr (WHOLE) {
            Complex* points = (Complex*)buffer;
#pragma unroll
            for (u32 m = 0; m < POINTS; m++) points[to(m)] = v[m];
            __syncthreads();
#pragma unroll
            for (u32 m = 0; m < POINTS; m++) w[m] = points[from(m)];
        } else {
            float real[POINTS];
#pragma unroll
            for (u32 m = 0; m < POINTS; m++) buffer[to(m)] = v[m].x;
            __syncthreads();
#pragma unroll
            for (u32 m = 0; m < POINTS; m++) real[m] = buffer[from(m)];
            __syncthreads();
#pragma unroll
            for (u32 m = 0; m < POINTS; m++) buffer[to(m)] = v[m].y;
            __syncthreads();
#pragma unroll
            for (u32 m = 0; m < POINTS; m++) w[m] = Complex{real[m], buffer[from(m)]};
        }
    }

    // Exchanges the points after a pass of radix R. DONE is the product of the radices of earlier passes.
    template <u32 R, u32 DONE> __device__ __forceinline__ void shuffle(Complex (&v)[POINTS]) const {
        constexpr u32 K = POINTS / R;
        const u32 j = i;
        exchange(
            v, v,
            [j](u32 m) {
                u32 at = j + m % K * THREADS;
                return place(at / DONE * DONE * R + at % DONE + m / K * DONE);
            },
            [j](u32 m) { return place(j + m * THREADS); });
    }

    // Performs the passes of radix 16 after a pass of radix R.
    template <u32 R, u32 DONE> __device__ __forceinline__ void proceed(Complex (&v)[POINTS]) const {
        if constexpr (R * DONE < SIZE) {
            shuffle<R, DONE>(v);
            constexpr u32 NOW = R * DONE;
            const Complex root = roots[i % NOW * (2 * SIZE / (NOW * POINTS))];
            Complex power = root;
#pragma unroll
            for (u32 m = 1; m < POINTS; m++) {
                v[m] = v[m] * power;
                // Short chains of products keep the error small.
                power = m % 4 == 3 ? roots[i % NOW * (m + 1) * (2 * SIZE / (NOW * POINTS))] : power * root;
            }
            transform16(v);
            proceed<POINTS, NOW>(v);
        }
    }

    __device__ __forceinline__ void run(Complex (&v)[POINTS]) const {
        if constexpr (FIRST == 16) {
            transform16(v);
        } else {
            constexpr u32 K = POINTS / FIRST;
#pragma unroll
            for (u32 q = 0; q < K; q++) {
                Complex u[FIRST];
#pragma unroll
                for (u32 r = 0; r < FIRST; r++) u[r] = v[q + K * r];
                Small<FIRST>::run(u);
#pragma unroll
                for (u32 r = 0; r < FIRST; r++) v[q + K * r] = u[r];
            }
        }
        proceed<FIRST, 1>(v);
    }

    // Makes the spectrum of 2 * SIZE real samples from the transform of SIZE pairs.
    __device__ __forceinline__ void unfold(Complex (&v)[POINTS]) const {
        Complex w[POINTS];
        const u32 j = i;
        exchange(
            v, w, [j](u32 m) { return place(j + m * THREADS); },
            [j](u32 m) { return place((SIZE - j - m * THREADS) % SIZE); });
#pragma unroll
        for (u32 m = 0; m < POINTS; m++) {
            // Twice the transforms of the even and of the odd samples.
            Complex even = {v[m].x + w[m].x, v[m].y - w[m].y}, odd = {v[m].y + w[m].y, w[m].x - v[m].x};
            odd = odd * roots[j + m * THREADS];
            v[m] = Complex{0.5f * (even.x + odd.x), 0.5f * (even.y + odd.y)};
        }
    }
};

// The samples of one input from the first sample of a window: the samples before the burst and the frames follow each
// other.
struct Window {
    // Sample 0 of the part that contains the window's position, and of the following frame.
    const u8 *now, *next;
    // Position in the part, and length of the part.
    u32 at, length;
    // Slot of the following frame.
    u32 slot;

    __device__ Window(const Polyphase& p, u32 frame, u32 spectrum, u32 input, u32 bytes) {
        u64 start = (u64)spectrum * p.hop;
        u32 back = 0;
        if (start < p.before) {
            u32 missing = p.before - (u32)start;
            back = (missing + p.points - 1) / p.points;
            if (back > frame) {
                at = p.before - (missing - frame * p.points);
                length = p.before;
                now = p.history + (u64)input * p.history_step * bytes;
                slot = p.from.first;
                next = address(p, input, bytes);
                return;
            }
            at = back * p.points - missing;
        } else {
            at = (u32)start - p.before;
        }
        slot = (u32)((p.from.first + frame - back) % p.from.slots);
        now = address(p, input, bytes);
        length = p.points;
        follow(p, input, bytes);
    }

    __device__ const u8* address(const Polyphase& p, u32 input, u32 bytes) const {
        return (const u8*)p.from.base + slot * p.from.stride + input * p.channel_step * bytes;
    }

    __device__ __forceinline__ void follow(const Polyphase& p, u32 input, u32 bytes) {
        slot = slot + 1 == p.from.slots ? 0 : slot + 1;
        next = address(p, input, bytes);
    }

    __device__ __forceinline__ void advance(const Polyphase& p, u32 samples, u32 input, u32 bytes) {
        at += samples;
        if (at >= length) {
            at -= length;
            length = p.points;
            now = next;
            follow(p, input, bytes);
        }
    }
};

// Sums the products of samples and coefficients of a window that is in one part. `PAIRS` is 2 for real samples, of which
// each point has two, otherwise 1. The numbers of a point follow each other.
template <u32 SIZE, class N, u32 PAIRS>
__device__ __forceinline__ void filter(Complex (&v)[POINTS], const Polyphase& p, const Window& window, u32 i) {
    constexpr u32 THREADS = SIZE / POINTS;
    // Distance between two points in pairs of numbers.
    const u32 step = PAIRS == 2 ? 1 : (u32)p.point_step;
    const Two<N>* from = (const Two<N>*)(window.now + (u64)window.at * sizeof(Two<N>) / PAIRS * step) + i * step;
    const float* coefficients = p.coefficients + i * PAIRS;
    for (u32 tap = 0; tap < p.taps; tap++) {
#pragma unroll
        for (u32 m = 0; m < POINTS; m++) {
            Two<N> two = from[m * THREADS * step];
            if constexpr (PAIRS == 2) {
                Complex h = ((const Complex*)coefficients)[m * THREADS];
                v[m].x += h.x * (float)two.x;
                v[m].y += h.y * (float)two.y;
            } else {
                float h = coefficients[m * THREADS];
                v[m].x += h * (float)two.x;
                v[m].y += h * (float)two.y;
            }
        }
        coefficients += SIZE * PAIRS;
        from += SIZE * step;
    }
}

// Does the same for a window that is in several parts, and for real samples that do not follow each other.
template <u32 SIZE, class N>
__device__ __forceinline__ void filter_parts(Complex (&v)[POINTS], const Polyphase& p, Window& window, u32 i, u32 input,
                                             u32 bytes) {
    constexpr u32 THREADS = SIZE / POINTS;
    const u32 pairs = p.complex ? 1 : 2, samples = SIZE * pairs, step = (u32)p.point_step * bytes;
    // Distance between the two numbers of a point, of samples and of coefficients.
    const u32 second = p.complex ? (u32)sizeof(N) : step, other = p.complex ? 0 : 1;
    const float* coefficients = p.coefficients + i * pairs;
    for (u32 tap = 0; tap < p.taps; tap++) {
        const u32 here = window.length - window.at;
        const u8 *now = window.now + (u64)window.at * step, *next = window.next - (u64)here * step;
#pragma unroll
        for (u32 m = 0; m < POINTS; m++) {
            const u32 n = pairs * (i + m * THREADS);
            const u8* x = (n < here ? now : next) + n * step;
            v[m].x += coefficients[pairs * m * THREADS] * (float)*(const N*)x;
            v[m].y += coefficients[pairs * m * THREADS + other] * (float)*(const N*)(x + second);
        }
        coefficients += samples;
        window.advance(p, samples, input, bytes);
    }
}

template <u32 SIZE, class N>
__device__ __forceinline__ void filter_any(Complex (&v)[POINTS], const Polyphase& p, u32 i, u32 frame, u32 spectrum,
                                           u32 input) {
    const u32 bytes = (u32)sizeof(N) << p.complex;
    Window window(p, frame, spectrum, input, bytes);
    const bool in_one = window.at + p.taps * (p.complex ? SIZE : 2 * SIZE) <= window.length;
#pragma unroll
    for (u32 m = 0; m < POINTS; m++) v[m] = Complex{0.0f, 0.0f};
    if (in_one && p.complex) {
        filter<SIZE, N, 1>(v, p, window, i);
    } else if (in_one && p.point_step == 1) {
        filter<SIZE, N, 2>(v, p, window, i);
    } else {
        filter_parts<SIZE, N>(v, p, window, i, input, bytes);
    }
}

// Channelizes the frames of a run.
// blocks: x is a group of `count` pairs of spectrum and input, y the frame; SIZE / 16 threads per pair
template <u32 SIZE> __device__ __forceinline__ void channelize(const Polyphase& p, float* shared) {
    constexpr u32 THREADS = SIZE / POINTS;
    const u32 t = threadIdx.x / THREADS, i = threadIdx.x % THREADS;
    const u32 pairs = p.spectra * p.inputs, frame = blockIdx.y;
    // Threads without work compute the last pair again, so that all threads reach the barriers.
    const u32 pair = min(blockIdx.x * p.count + t, pairs - 1);
    // Neighbours read the same cache lines.
    const u32 spectrum = p.by_input ? pair / p.inputs : pair % p.spectra;
    const u32 input = p.by_input ? pair % p.inputs : pair / p.spectra;
    Complex v[POINTS];
#define FILTER(N) filter_any<SIZE, N>(v, p, i, frame, spectrum, input)
    switch (p.scalar) {
    case INT8: FILTER(signed char); break;
    case INT16: FILTER(short); break;
    default: FILTER(float); break;
    }
    Fft<SIZE> fft{shared + t * Fft<SIZE>::PITCH, i, p.roots};
    fft.run(v);
    if (!p.complex) fft.unfold(v);
    if (p.rotates) {
        // The phase of channel k is that of the first sample of the window.
        const u32 first = (u32)(p.phase + (u64)frame * p.points + (u64)spectrum * p.hop);
#pragma unroll
        for (u32 m = 0; m < POINTS; m++) {
            u32 turn = first * (i + m * THREADS);
            v[m] = v[m] * p.roots[(p.complex ? 2 * turn : turn) & (2 * SIZE - 1)];
        }
    }
    const u32 bytes = p.kind == FLOAT32 ? 8 : p.kind == INT8 ? 2 : 4;
    u8* to = frame_of(p.to, frame) + ((u64)spectrum * p.inputs + input) * SIZE * bytes;
#pragma unroll
    for (u32 m = 0; m < POINTS; m++) {
        u32 channel = i + m * THREADS;
        // The negative frequencies of complex samples come first.
        store(to, p.complex ? (channel + SIZE / 2) % SIZE : channel, v[m], p.kind);
    }
}

// Copies sample `i` of `from` to sample `j` of `to`.
__device__ inline void copy_sample(u8* to, u64 j, const u8* from, u64 i, u32 bytes) {
    switch (bytes) {
    case 1: to[j] = from[i]; break;
    case 2: ((u16*)to)[j] = ((const u16*)from)[i]; break;
    case 4: ((u32*)to)[j] = ((const u32*)from)[i]; break;
    default: ((u64*)to)[j] = ((const u64*)from)[i]; break;
    }
}

// Copies the last samples of a run of `frames` frames to `kept`. The next burst needs them.
// blocks: 256 samples each
extern "C" __global__ void __launch_bounds__(256) channelize_history(POLYPHASE_PARAMETERS) {
    const Polyphase p = POLYPHASE_GIVEN;
    const u64 i = (u64)blockIdx.x * 256 + threadIdx.x;
    if (i >= (u64)p.before * p.inputs) return;
    // The order is that of the frames.
    const u32 input = p.by_input ? (u32)(i % p.inputs) : (u32)(i / p.before);
    const u32 h = p.by_input ? (u32)(i / p.inputs) : (u32)(i % p.before);
    const u32 bytes = (p.scalar == FLOAT32 ? 4 : p.scalar >= INT16 ? 2 : 1) << p.complex;
    const u64 end = (u64)p.frames * p.points + h;
    const u64 to = input * p.history_step + h * p.point_step;
    if (end < p.before) {
        copy_sample(p.kept, to, p.history, input * p.history_step + end * p.point_step, bytes);
    } else {
        u64 at = end - p.before;
        u64 from = input * p.channel_step + at % p.points * p.point_step;
        copy_sample(p.kept, to, frame_of(p.from, at / p.points), from, bytes);
    }
}

template <u32 SIZE> constexpr u32 BLOCK_THREADS = SIZE <= 2048 ? 128 : SIZE / POINTS;

#define SIZED_KERNEL(size, threads)                                                                                  \
    extern "C" __global__ void __launch_bounds__(threads, 512 / threads) channelize_##size(POLYPHASE_PARAMETERS) { \
        const Polyphase p = POLYPHASE_GIVEN;                                                                     \
        DYNAMIC_SHARED(float, shared);                                                                           \
        channelize<size>(p, shared);                                                                             \
    }
#define CHANNELIZE_KERNEL(size) SIZED_KERNEL(size, (BLOCK_THREADS<size>))

// NVRTC compiles this file once for each size. The tests compile all sizes together.
#ifdef ONLY_SIZE
CHANNELIZE_KERNEL(ONLY_SIZE)
#endif
