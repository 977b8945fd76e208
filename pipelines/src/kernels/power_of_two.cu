// Computes averaged power spectra whose size is a power of two: whole transforms of 128 to 8192 points, and the columns and
// rows of longer transforms. power_spectrum.cu describes the method and computes all other sizes.
//
// A thread keeps POINTS points of a transform in registers, from the samples to the sums, so that a pass has radix 16. Only
// the first pass can have a smaller radix. Between two passes, the threads exchange their points through shared memory. In
// each pass, thread `i` of a transform has the points `i + m * THREADS`. The same points are its bins at the end.

#include "spectra.cuh"

constexpr u32 POINTS = 16;

template <> struct Small<16> {
    __device__ __forceinline__ static void run(Complex* v) {
        // cos(2 pi k / 16)
        constexpr float C1 = 0.92387953251128676f, C2 = 0.70710678118654752f, C3 = 0.38268343236508977f;
        constexpr Complex TURN[4][4] = {{{1.0f, 0.0f}, {1.0f, 0.0f}, {1.0f, 0.0f}, {1.0f, 0.0f}},
                                        {{1.0f, 0.0f}, {C1, -C3}, {C2, -C2}, {C3, -C1}},
                                        {{1.0f, 0.0f}, {C2, -C2}, {0.0f, -1.0f}, {-C2, -C2}},
                                        {{1.0f, 0.0f}, {C3, -C1}, {-C2, -C2}, {-C1, C3}}};
        Complex inner[4][4];
#pragma unroll
        for (int a = 0; a < 4; a++) {
#pragma unroll
            for (int b = 0; b < 4; b++) inner[a][b] = v[a + 4 * b];
            Small<4>::run(inner[a]);
        }
#pragma unroll
        for (int k = 0; k < 4; k++) {
            Complex outer[4];
#pragma unroll
            for (int a = 0; a < 4; a++) {
                Complex z = inner[a][k];
                if (a * k == 4) {
                    z = turned(z);
                } else if (a * k == 2) {
                    z = Complex{C2 * (z.x + z.y), C2 * (z.y - z.x)};
                } else if (a * k == 6) {
                    z = Complex{C2 * (z.y - z.x), -C2 * (z.x + z.y)};
                } else if (a * k > 0) {
                    z = z * TURN[a][k];
                }
                outer[a] = z;
            }
            Small<4>::run(outer);
#pragma unroll
            for (int b = 0; b < 4; b++) v[k + 4 * b] = outer[b];
        }
    }
};

// Hides where a value comes from, so that the compiler computes the addresses that depend on it where they are used. Otherwise
// it computes them before the loop over spectra, for which there are too few registers.
__device__ __forceinline__ u32 hidden(u32 x) {
#ifdef __CUDA_ARCH__
    asm volatile("" : "+r"(x));
#endif
    return x;
}

// Multiplies v[m] by w^m.
__device__ __forceinline__ void rotate(Complex (&v)[POINTS], Complex w) {
    Complex w2 = w * w, w3 = w2 * w, w4 = w2 * w2;
    v[1] = v[1] * w;
    v[2] = v[2] * w2;
    v[3] = v[3] * w3;
    Complex fours = w4;
#pragma unroll
    for (int m = 4; m < POINTS; m += 4) {
        v[m] = v[m] * fours;
        v[m + 1] = v[m + 1] * (fours * w);
        v[m + 2] = v[m + 2] * (fours * w2);
        v[m + 3] = v[m + 3] * (fours * w3);
        fours = fours * w4;
    }
}

// Sums of squared magnitudes. The host limits the number of spectra of a piece, so that float32 sums are exact enough.
struct Sums {
    float of[POINTS] = {};

    __device__ __forceinline__ void add(const Complex (&v)[POINTS]) {
#pragma unroll
        for (u32 m = 0; m < POINTS; m++) of[m] += v[m].x * v[m].x + v[m].y * v[m].y;
    }
};

// One of the transforms that a block computes side by side, as seen by one of its threads.
template <u32 SIZE> struct Transform {
    static constexpr u32 THREADS = SIZE / POINTS;
    // Radix of the first pass.
    static constexpr u32 FIRST = SIZE == 128 || SIZE == 2048     ? 8
                                 : SIZE == 512 || SIZE == 8192   ? 2
                                 : SIZE == 1024                  ? 4
                                                                 : 16;
    static constexpr u32 PASSES = SIZE <= 256 ? 2 : SIZE <= 4096 ? 3 : 4;
    static constexpr u32 PITCH = (SIZE + SIZE / 16) | 1;

    // Index of the thread within the transform.
    u32 i;
    // The points of this transform in the buffer that the next exchange writes.
    Complex* buffer;
    // Distance to the other buffer. If it is 0, there is one buffer, which must be read before it is written again.
    int other;
    // Roots of the passes after the first.
    Complex roots[PASSES - 1];

    __device__ Transform(const Transforms& all, Complex* shared, u32 t, u32 i)
        : i(i), buffer(shared + t * PITCH), other((int)all.second) {
        u32 done = FIRST;
#pragma unroll
        for (u32 pass = 0; pass + 1 < PASSES; pass++) {
            roots[pass] = all.roots[i % done * (SIZE / (done * POINTS))];
            done *= POINTS;
        }
    }

    // Returns the place of a point in the buffer. Points at a distance of a small power of two are in different banks.
    __device__ static constexpr u32 place(u32 point) { return point + (point >> 4); }

    // Performs the first pass.
    __device__ __forceinline__ void begin(Complex (&v)[POINTS]) const {
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

    // Exchanges points after a pass of radix R. DONE is the product of the radices of earlier passes.
    template <u32 R, u32 DONE> __device__ __forceinline__ void exchange(Complex (&v)[POINTS]) {
        constexpr u32 K = POINTS / R;
        if (other == 0) __syncthreads();
        const u32 i = hidden(this->i);
        Complex* to = buffer + place(i / DONE * DONE * R + i % DONE);
#pragma unroll
        for (u32 q = 0; q < K; q++) {
#pragma unroll
            for (u32 r = 0; r < R; r++) to[place(q * THREADS * R) + place(r * DONE)] = v[q + K * r];
        }
        __syncthreads();
        const Complex* from = buffer + place(i);
#pragma unroll
        for (u32 m = 0; m < POINTS; m++) v[m] = from[place(m * THREADS)];
        buffer += other;
        other = -other;
    }

    // Performs the passes after a pass of radix R.
    template <u32 R, u32 DONE, u32 PASS> __device__ __forceinline__ void proceed(Complex (&v)[POINTS]) {
        if constexpr (R * DONE < SIZE) {
            exchange<R, DONE>(v);
            rotate(v, roots[PASS]);
            Small<POINTS>::run(v);
            proceed<POINTS, R * DONE, PASS + 1>(v);
        }
    }

    // Transforms the points in the registers of the transform's threads. All threads of the block must call this function.
    __device__ __forceinline__ void run(Complex (&v)[POINTS]) {
        begin(v);
        proceed<FIRST, 1, 0>(v);
    }
};

// The spectra of a channel in the slots of a ring, one after another.
struct Cursor {
    u32 slot, index;

    __device__ Cursor(const Spectra& p, u64 s)
        : slot((u32)((p.from.first + (p.origin + s) / p.spectra) % p.from.slots)), index((u32)((p.origin + s) % p.spectra)) {}

    __device__ __forceinline__ void advance(const Spectra& p, u32 count) {
        index += count;
        while (index >= (u32)p.spectra) {
            index -= (u32)p.spectra;
            slot = slot + 1 == p.from.slots ? 0 : slot + 1;
        }
    }
};

// The samples of one channel of a ring.
struct Channel {
    const u8* base;
    u64 stride, row;
    // Distance between two points, in numbers.
    u32 step;

    __device__ Channel(const Spectra& p, u32 channel) : stride(p.from.stride), step((u32)p.point_step << p.complex) {
        u64 bytes = (u64)bytes_of(p) << p.complex;
        base = (const u8*)p.from.base + channel * p.channel_step * bytes;
        row = p.hop * p.point_step * bytes;
    }
    __device__ __forceinline__ const u8* at(Cursor cursor) const { return base + cursor.slot * stride + cursor.index * row; }
};

// Two real blocks or one complex block, from which the points of a transform are loaded.
struct Source {
    const u8 *real, *imaginary;
    Complex mean;
    // Without a block, all points are zero. Without a second block, the imaginary parts are zero.
    bool is_used, has_imaginary;

    // The block of spectrum `s` if `used`, and the block after it if `paired`.
    __device__ Source(const Spectra& p, const Channel& from, Cursor cursor, u64 s, u32 channel, bool used, bool paired)
        : mean{0.0f, 0.0f}, is_used(used), has_imaginary(used && (p.complex || paired)) {
        real = imaginary = from.at(cursor);
        if (p.complex) {
            imaginary += bytes_of(p);
        } else if (has_imaginary) {
            cursor.advance(p, 1);
            imaginary = from.at(cursor);
        }
        if (p.means != nullptr && used) {
            mean = p.means[s * p.channels + channel];
            if (!p.complex) mean.y = has_imaginary ? p.means[(s + 1) * p.channels + channel].x : 0.0f;
        }
    }

    // Loads the points `first + m * apart`.
    template <class N>
    __device__ __forceinline__ void load(Complex (&v)[POINTS], const Spectra& p, u32 step, u32 first, u32 apart) const {
        const N *x = (const N*)real, *y = (const N*)imaginary;
        step = hidden(step);
        first = hidden(first);
#pragma unroll
        for (u32 m = 0; m < POINTS; m++) {
            u32 point = first + m * apart;
            float w = p.window[point];
            v[m].x = ((float)x[point * step] - mean.x) * w;
            v[m].y = has_imaginary ? ((float)y[point * step] - mean.y) * w : 0.0f;
        }
    }
    __device__ __forceinline__ void load_any(Complex (&v)[POINTS], const Spectra& p, u32 step, u32 first, u32 apart) const {
        // Slots after the last frame of the round may be written meanwhile.
        if (!is_used) {
#pragma unroll
            for (u32 m = 0; m < POINTS; m++) v[m] = Complex{0.0f, 0.0f};
            return;
        }
#define LOAD(N) load<N>(v, p, step, first, apart)
        FOR_TYPE(p.scalar, LOAD)
    }
};

// Writes the sums of a transform to shared memory, to which `spread` points.
template <u32 SIZE>
__device__ __forceinline__ void share(const Sums& sums, float* spread, const Transform<SIZE>& transform, u32 t) {
    spread += t * transform.PITCH + transform.place(transform.i);
    // Other threads may still read their points.
    __syncthreads();
#pragma unroll
    for (u32 m = 0; m < POINTS; m++) spread[transform.place(m * transform.THREADS)] = sums.of[m];
    __syncthreads();
}

// Performs short transforms, from the samples to the sums. Writes `bins` numbers per piece and channel to `partial`.
// blocks: (output, piece, channel), the channel varies fastest; SIZE / 16 threads per transform
template <u32 SIZE> __device__ __forceinline__ void short_transforms(const Spectra& p, Complex* shared) {
    const u32 threads = Transform<SIZE>::THREADS;
    const u32 t = threadIdx.x / threads, each = p.complex ? 1 : 2;
    const u32 channel = blockIdx.x % p.channels;
    const Piece piece(p, blockIdx.x / p.channels);
    if (piece.begin >= piece.end) return;
    Transform<SIZE> transform(p.rows, shared, t, threadIdx.x % threads);
    const Channel from(p, channel);
    Cursor cursor(p, piece.begin + t * each);
    Sums sums;
    for (u64 start = piece.begin; start < piece.end; start += p.rows.count * each) {
        u64 s = start + t * each;
        Complex v[POINTS];
        Source(p, from, cursor, s, channel, s < piece.end, s + 1 < piece.end).load_any(v, p, from.step, transform.i, threads);
        transform.run(v);
        sums.add(v);
        cursor.advance(p, p.rows.count * each);
    }
    const float* spread = (const float*)shared;
    share(sums, (float*)shared, transform, t);
    for (u32 k = threadIdx.x; k < p.bins; k += blockDim.x) {
        u32 mirrored = p.complex || k == 0 ? k : SIZE - k;
        Compensated sum;
        for (u32 other = 0; other < p.rows.count; other++) {
            const float* one = spread + other * transform.PITCH;
            sum.add(one[transform.place(k)]);
            sum.add(one[transform.place(mirrored)]);
        }
        write_sum(p, k, sum.sum / 2.0f);
    }
}

// Transforms the columns of long transforms. `work` has `SIZE` * `across` points per spectrum and channel. For real samples,
// only the points of the first spectrum of each pair are written.
// blocks: (spectrum, channel, group of `count` columns), the group varies fastest; SIZE / 16 threads per column
template <u32 SIZE> __device__ __forceinline__ void column_transforms(const Spectra& p, Complex* shared) {
    const u32 threads = Transform<SIZE>::THREADS;
    const u32 count = p.columns.count, across = p.rows.size, groups = across / count;
    const u32 index = blockIdx.x / groups, channel = index % p.channels;
    const u64 s = index / p.channels, o = output_of(p.cut, s), inside = (s - begin_of(p.cut, o)) % p.chunk;
    if (!p.complex && inside % 2 == 1) return;
    const bool paired = inside + 1 < p.chunk && s + 1 < end_of(p.cut, o);
    // Threads beside each other read columns beside each other.
    const u32 t = threadIdx.x % count, column = blockIdx.x % groups * count + t;
    Transform<SIZE> transform(p.columns, shared, t, threadIdx.x / count);
    const Channel from(p, channel);
    const Cursor cursor(p, s);
    Complex v[POINTS];
    Source(p, from, cursor, s, channel, true, paired)
        .load_any(v, p, from.step, column + transform.i * across, threads * across);
    transform.run(v);
    // Point `k` is multiplied by the root with the index `k * column`, where k = i + m * threads.
    const Complex first = p.all_roots[transform.i * column];
    rotate(v, p.all_roots[threads * column]);
    Complex* to = p.work + (u64)index * SIZE * across + transform.i * across + column;
#pragma unroll
    for (u32 m = 0; m < POINTS; m++) to[m * threads * across] = v[m] * first;
}

// Transforms the rows of long transforms. Writes `down` * SIZE numbers per piece and channel to `partial`.
// blocks: (output, piece, channel, group of `count` rows), the group varies fastest; SIZE / 16 threads per row
template <u32 SIZE> __device__ __forceinline__ void row_transforms(const Spectra& p, Complex* shared) {
    const u32 threads = Transform<SIZE>::THREADS;
    const u32 down = p.columns.size, count = p.rows.count, groups = down / count;
    const u32 first = blockIdx.x % groups * count, index = blockIdx.x / groups, channel = index % p.channels;
    const Piece piece(p, index / p.channels);
    if (piece.begin >= piece.end) return;
    const u32 t = threadIdx.x / threads;
    Transform<SIZE> transform(p.rows, shared, t, threadIdx.x % threads);
    Sums sums;
    float* to = p.partial + (set_of(p, index / p.channels) * p.channels + channel) * down * SIZE + first;
    const u32 each = p.complex ? 1 : 2;
    for (u64 s = piece.begin; s < piece.end; s += each) {
        const Complex* from = p.work + ((s * p.channels + channel) * down + first + t) * SIZE + transform.i;
        Complex v[POINTS];
#pragma unroll
        for (u32 m = 0; m < POINTS; m++) v[m] = from[m * threads];
        transform.run(v);
        sums.add(v);
    }
    const float* spread = (const float*)shared;
    share(sums, (float*)shared, transform, t);
    for (u32 i = threadIdx.x; i < SIZE * count; i += blockDim.x) {
        u32 k = i / count, row = i % count;
        to[(u64)k * down + row] = spread[row * transform.PITCH + transform.place(k)];
    }
}

// Number of threads per block, at most. Blocks with fewer threads wait for fewer other threads at barriers.
template <u32 SIZE> constexpr u32 SHORT_THREADS = SIZE <= 2048 ? 128 : SIZE / POINTS;
template <u32 SIZE> constexpr u32 LONG_THREADS = SIZE <= 256 ? 128 : SIZE <= 512 ? 256 : 512;
// Number of threads per multiprocessor that must fit with their registers.
constexpr u32 RESIDENT = 512;

#define KERNEL(name, size, threads, body)                                                                     \
    extern "C" __global__ void __launch_bounds__(threads, RESIDENT / (threads)) name##_##size(SPECTRA_PARAMETERS) { \
        const Spectra p = SPECTRA_GIVEN;                                                                      \
        DYNAMIC_SHARED(Complex, shared);                                                                      \
        body<size>(p, shared);                                                                                \
    }
#define SHORT_KERNEL(size) KERNEL(power_spectrum_short, size, SHORT_THREADS<size>, short_transforms)
#define LONG_KERNELS(size)                                                           \
    KERNEL(power_spectrum_columns, size, LONG_THREADS<size>, column_transforms)            \
    KERNEL(power_spectrum_rows, size, LONG_THREADS<size>, row_transforms)

// NVRTC compiles this file once for each size. The tests compile all sizes together.
#ifdef ONLY_SIZE
SHORT_KERNEL(ONLY_SIZE)
#if ONLY_SIZE <= 1024
LONG_KERNELS(ONLY_SIZE)
#endif
#endif
