// Computes averaged power spectra.
//
// Blocks of samples are transformed in shared memory with Stockham's algorithm, in passes of radix 2, 3, 4, 5, 7 or 8.
// Each pass leaves the data in order, so no reordering is needed at the end. A thread keeps its points in registers
// while they are rewritten, so one buffer is sufficient. Longer transforms of A * B points use global memory once:
// columns of length A, then rows of length B (Bailey's four-step algorithm without the last transposition):
//
//   x[b + B a]  --columns-->  y[ka, b]  --times w^(b ka)-->  --rows-->  X[ka + A kb]
//
// For real samples, two successive blocks are the real and the imaginary part of one transform. The sums of |Z|^2 are
// folded into the sums of both blocks: |A[k]|^2 + |B[k]|^2 = (|Z[k]|^2 + |Z[N-k]|^2) / 2.

#include "spectra.cuh"

// Maximum number of points of a transform that one thread processes.
constexpr int POINTS = 8;
constexpr int MAX_THREADS = 1024; // higher values leave fewer than 64 registers per thread

// Transforms that are stored side by side in shared memory.
struct Batch : Transforms {
    Complex* buffer;

    __device__ Batch(const Transforms& transforms, Complex* buffer) : Transforms(transforms), buffer(buffer) {}

    // Pads the points, so that points at a distance of a small power of two are in different shared memory banks. The
    // pitch of the transforms is odd for the same reason.
    __device__ static u32 place(u32 point) { return point + (point >> 4); }
    __device__ u32 pitch() const { return place(size) | 1; }
    __device__ u32 at(u32 transform, u32 point) const { return transform * pitch() + place(point); }

    // Performs one pass. `done` is the product of the radices of earlier passes. If `squares` is set, the last pass
    // adds squared magnitudes to `sums`.
    template <int R> __device__ __forceinline__ void pass(u32 done, bool squares, Compensated (&sums)[POINTS]) const {
        constexpr int K = POINTS / R;
        u32 across = size / R, work = across * count;
        u32 stride = size / (done * R);
        Divider by_transform(across), by_done(done);
        Complex v[K][R];
#pragma unroll
        for (int q = 0; q < K; q++) {
            // Threads without work repeat the last item, because conditional reads need more registers on all paths.
            u32 i = threadIdx.x + q * blockDim.x;
            i = i < work ? i : work - 1;
            u32 t = by_transform.of(i), j = i - t * across;
            u32 k = j - by_done.of(j) * done;
            const Complex* from = buffer + t * pitch();
#pragma unroll
            for (int r = 0; r < R; r++) {
                v[q][r] = from[place(j + r * across)];
                if (r > 0 && done > 1) v[q][r] = v[q][r] * roots[k * r * stride];
            }
            Small<R>::run(v[q]);
        }
        if (squares && done * R == size) {
#pragma unroll
            for (int q = 0; q < K; q++) {
                if (threadIdx.x + q * blockDim.x >= work) continue;
#pragma unroll
                for (int r = 0; r < R; r++) {
                    Complex z = v[q][r];
                    sums[q * R + r].add(z.x * z.x + z.y * z.y);
                }
            }
            __syncthreads();
            return;
        }
        __syncthreads();
#pragma unroll
        for (int q = 0; q < K; q++) {
            u32 i = threadIdx.x + q * blockDim.x;
            if (i >= work) continue;
            u32 t = by_transform.of(i), j = i - t * across;
            u32 block = by_done.of(j), k = j - block * done;
            Complex* to = buffer + t * pitch();
#pragma unroll
            for (int r = 0; r < R; r++) to[place(block * done * R + k + r * done)] = v[q][r];
        }
        __syncthreads();
    }

    // Performs all passes on the buffer. The caller must have synchronised the block, so that the points of other
    // threads are visible.
    __device__ __forceinline__ void run(bool squares, Compensated (&sums)[POINTS]) const {
        u32 done = 1;
        for (u64 rest = radices; rest != 0; rest >>= 4) {
            u32 radix = (u32)rest & 15;
            switch (radix) {
            case 2: pass<2>(done, squares, sums); break;
            case 3: pass<3>(done, squares, sums); break;
            case 4: pass<4>(done, squares, sums); break;
            case 5: pass<5>(done, squares, sums); break;
            case 7: pass<7>(done, squares, sums); break;
            default: pass<8>(done, squares, sums); break;
            }
            done *= radix;
        }
    }

    // Stores the sums of the last pass at the indices of their points.
    template <int R> __device__ __forceinline__ void spread(float* to, const Compensated (&sums)[POINTS]) const {
        constexpr int K = POINTS / R;
        u32 across = size / R;
        Divider by_transform(across);
#pragma unroll
        for (int q = 0; q < K; q++) {
            u32 i = threadIdx.x + q * blockDim.x;
            if (i >= across * count) continue;
            u32 t = by_transform.of(i), j = i - t * across;
#pragma unroll
            for (int r = 0; r < R; r++) to[at(t, j + r * across)] = sums[q * R + r].sum;
        }
    }

    __device__ __forceinline__ void spread(float* to, const Compensated (&sums)[POINTS]) const {
        u64 rest = radices;
        while (rest >> 4 != 0) rest >>= 4;
        switch (rest) {
        case 2: spread<2>(to, sums); break;
        case 3: spread<3>(to, sums); break;
        case 4: spread<4>(to, sums); break;
        case 5: spread<5>(to, sums); break;
        case 7: spread<7>(to, sums); break;
        default: spread<8>(to, sums); break;
        }
    }
};

// Fills the buffer with the blocks that begin at `starts`, padded with zeros; a null pointer gives zeros. For real
// samples, each transform processes two blocks. Point `e` of transform `t` is point `first + t * t_step + e * e_step` of its block.
template <class N>
__device__ void fill(const Batch& batch, const Spectra& p, const u8* const* starts, Means means, u32 first,
                     u32 t_step, u32 e_step, u32 count, bool columns) {
    Divider by(columns ? batch.count : batch.size);
#pragma unroll 4
    for (u32 i = threadIdx.x; i < batch.size * batch.count; i += blockDim.x) {
        u32 high = by.of(i), low = i - high * by.by;
        u32 t = columns ? low : high, e = columns ? high : low;
        u32 point = first + t * t_step + e * e_step;
        u32 which = columns ? 0 : 2 * t;
        const N *a = (const N*)starts[which], *b = (const N*)starts[which + 1];
        Complex z = {0.0f, 0.0f};
        if (t < count && a != nullptr && point < p.block) {
            float w = p.window[point];
            u64 at = point * p.point_step;
            Complex less = {0.0f, 0.0f};
            if (means.first != nullptr) {
                const Complex* mean = means.first + (columns ? 0 : (p.complex ? t : 2 * t)) * means.step;
                less.x = mean->x;
                less.y = p.complex ? mean->y : b != nullptr ? mean[means.step].x : 0.0f;
            }
            if (p.complex) {
                z = Complex{((float)a[2 * at] - less.x) * w, ((float)a[2 * at + 1] - less.y) * w};
            } else {
                z.x = ((float)a[at] - less.x) * w;
                if (b != nullptr) z.y = ((float)b[at] - less.y) * w;
            }
        }
        batch.buffer[batch.at(t, e)] = z;
    }
}

__device__ inline void fill_any(const Batch& batch, const Spectra& p, const u8* const* starts, Means means, u32 first,
                                u32 t_step, u32 e_step, u32 count, bool columns) {
#define FILL(N) fill<N>(batch, p, starts, means, first, t_step, e_step, count, columns)
    FOR_TYPE(p.scalar, FILL)
}

// Adds this thread's share of the `size` points of a block that begins at `start` to `x` and `y`.
template <class N>
__device__ void add_points(const Spectra& p, const u8* start, u32 size, double& x, double& y) {
    const N* a = (const N*)start;
    for (u32 i = threadIdx.x; i < size; i += blockDim.x) {
        u64 at = i * p.point_step;
        if (p.complex) {
            x += (double)(float)a[2 * at];
            y += (double)(float)a[2 * at + 1];
        } else {
            x += (double)(float)a[at];
        }
    }
}

// Computes the means of blocks of samples and writes one per spectrum and channel to `means`.
// blocks: (spectrum, channel), the channel varies fastest; 256 threads
extern "C" __global__ void __launch_bounds__(256) power_spectrum_means(SPECTRA_PARAMETERS) {
    const Spectra p = SPECTRA_GIVEN;
    __shared__ double sums[256][2];
    const u8* start = start_of(p, blockIdx.x / p.channels, blockIdx.x % p.channels);
    double x = 0.0, y = 0.0;
#define ADD_POINTS(N) add_points<N>(p, start, p.block, x, y)
    FOR_TYPE(p.scalar, ADD_POINTS)
    sums[threadIdx.x][0] = x;
    sums[threadIdx.x][1] = y;
    __syncthreads();
    for (u32 half = 128; half > 0; half /= 2) {
        if (threadIdx.x < half) {
            sums[threadIdx.x][0] += sums[threadIdx.x + half][0];
            sums[threadIdx.x][1] += sums[threadIdx.x + half][1];
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) p.means[blockIdx.x] = Complex{(float)(sums[0][0] / p.block), (float)(sums[0][1] / p.block)};
}

// Performs short transforms, from the samples to the sums. Writes `bins` numbers per piece and channel to `partial`.
// blocks: (output, piece, channel), the channel varies fastest
extern "C" __global__ void __launch_bounds__(MAX_THREADS, 1) power_spectrum_short(SPECTRA_PARAMETERS) {
    const Spectra p = SPECTRA_GIVEN;
    DYNAMIC_SHARED(Complex, shared);
    Batch batch(p.rows, shared);
    const u32 size = batch.size, count = batch.count;
    const u8** starts = (const u8**)(shared + count * batch.pitch());
    u32 channel = blockIdx.x % p.channels;
    Piece piece(p, blockIdx.x / p.channels);
    if (piece.begin >= piece.end) return;
    Compensated sums[POINTS];
    u32 blocks = p.complex ? count : 2 * count;
    for (u64 s = piece.begin; s < piece.end; s += blocks) {
        for (u32 t = threadIdx.x; t < 2 * count; t += blockDim.x) {
            u64 mine = s + (p.complex ? t / 2 : t);
            starts[t] = mine < piece.end ? start_of(p, mine, channel) : nullptr;
        }
        __syncthreads();
        fill_any(batch, p, starts, Means{p.means, p.channels}.of(s, channel), 0, 0, 1, count, false);
        __syncthreads();
        batch.run(true, sums);
    }
    float* spread = (float*)shared;
    batch.spread(spread, sums);
    __syncthreads();
    for (u32 k = threadIdx.x; k < p.bins; k += blockDim.x) {
        u32 mirrored = p.complex || k == 0 ? k : size - k;
        Compensated sum;
        for (u32 t = 0; t < count; t++) {
            sum.add(spread[batch.at(t, k)]);
            sum.add(spread[batch.at(t, mirrored)]);
        }
        write_sum(p, k, sum.sum / 2.0f);
    }
}

// Transforms the columns of long transforms. `work` has `down` * `across` points per spectrum and channel. For real
// samples, only the points of the first spectrum of each pair are written.
// blocks: (spectrum, channel, group of `count` columns), the group varies fastest
extern "C" __global__ void __launch_bounds__(MAX_THREADS, 1) power_spectrum_columns(SPECTRA_PARAMETERS) {
    const Spectra p = SPECTRA_GIVEN;
    DYNAMIC_SHARED(Complex, shared);
    Batch batch(p.columns, shared);
    const u32 down = p.columns.size, across = p.rows.size, count = batch.count;
    const u8** starts = (const u8**)(shared + count * batch.pitch());
    u32 groups = (across + count - 1) / count;
    u32 first = blockIdx.x % groups * count;
    u32 index = blockIdx.x / groups;
    u32 channel = index % p.channels;
    u64 s = index / p.channels;
    u64 o = output_of(p.cut, s);
    u64 inside = (s - begin_of(p.cut, o)) % p.chunk;
    if (!p.complex && inside % 2 == 1) return;
    bool paired = !p.complex && inside + 1 < p.chunk && s + 1 < end_of(p.cut, o);
    if (threadIdx.x == 0) {
        starts[0] = start_of(p, s, channel);
        starts[1] = paired ? start_of(p, s + 1, channel) : nullptr;
    }
    __syncthreads();
    u32 valid = across - first < count ? across - first : count;
    fill_any(batch, p, starts, Means{p.means, p.channels}.of(s, channel), first, 1, across, valid, true);
    __syncthreads();
    Compensated none[POINTS];
    batch.run(false, none);
    Complex* to = p.work + (u64)index * down * across;
    Divider by(count);
    for (u32 i = threadIdx.x; i < down * count; i += blockDim.x) {
        u32 ka = by.of(i), t = i - ka * count, b = first + t;
        if (t < valid) to[(u64)ka * across + b] = batch.buffer[batch.at(t, ka)] * p.all_roots[(u64)b * ka];
    }
}

// Transforms the rows of long transforms. Writes `down` * `across` numbers per piece and channel to `partial`.
// blocks: (output, piece, channel, group of `count` rows), the group varies fastest
extern "C" __global__ void __launch_bounds__(MAX_THREADS, 1) power_spectrum_rows(SPECTRA_PARAMETERS) {
    const Spectra p = SPECTRA_GIVEN;
    DYNAMIC_SHARED(Complex, shared);
    Batch batch(p.rows, shared);
    const u32 down = p.columns.size, across = p.rows.size, count = batch.count;
    u32 groups = (down + count - 1) / count;
    u32 first = blockIdx.x % groups * count;
    u32 index = blockIdx.x / groups;
    u32 channel = index % p.channels;
    Piece piece(p, index / p.channels);
    if (piece.begin >= piece.end) return;
    u32 valid = down - first < count ? down - first : count;
    u64 size = (u64)down * across;
    Compensated sums[POINTS];
    Divider by(across);
    for (u64 s = piece.begin; s < piece.end; s += p.complex ? 1 : 2) {
        const Complex* from = p.work + (s * p.channels + channel) * size + (u64)first * across;
#pragma unroll 4
        for (u32 i = threadIdx.x; i < across * count; i += blockDim.x) {
            u32 t = by.of(i), e = i - t * across;
            batch.buffer[batch.at(t, e)] = t < valid ? from[i] : Complex{0.0f, 0.0f};
        }
        __syncthreads();
        batch.run(true, sums);
    }
    float* spread = (float*)shared;
    batch.spread(spread, sums);
    __syncthreads();
    float* to = p.partial + (set_of(p, index / p.channels) * p.channels + channel) * size + first;
    Divider by_row(count);
    for (u32 i = threadIdx.x; i < across * count; i += blockDim.x) {
        u32 kb = by_row.of(i), t = i - kb * count;
        if (t < valid) to[(u64)kb * down + t] = spread[batch.at(t, kb)];
    }
}

// Adds up the pieces of each output and the sums carried over from earlier bursts. Writes complete outputs, and writes
// the sums of an incomplete output to `carry`.
// blocks: (output, channel, 32 bins), the bins vary fastest; 256 threads
extern "C" __global__ void __launch_bounds__(256) power_spectrum_combine(SPECTRA_PARAMETERS) {
    const Spectra p = SPECTRA_GIVEN;
    __shared__ double lanes[8][33];
    const u32 bins = p.bins, width = p.width;
    u32 tiles = (bins + 31) / 32;
    u32 lane = threadIdx.x % 32, row = threadIdx.x / 32;
    u32 k = blockIdx.x % tiles * 32 + lane;
    u32 channel = blockIdx.x / tiles % p.channels, o = blockIdx.x / tiles / p.channels;
    u32 mine = (u32)((end_of(p.cut, o) - begin_of(p.cut, o) + p.chunk - 1) / p.chunk);
    // Partial sums of more values than bins must still be folded.
    bool fold = width != bins;
    u32 mirrored = fold && k > 0 ? width - k : k;
    double sum = 0.0;
    if (k < bins) {
#pragma unroll 4
        for (u32 q = row; q < mine; q += 8) {
            const float* from = p.partial + (((u64)o * p.pieces + q) * p.channels + channel) * width;
            sum += fold ? ((double)from[k] + (double)from[mirrored]) / 2.0 : (double)from[k];
        }
    }
    lanes[row][lane] = sum;
    __syncthreads();
    if (row != 0 || k >= bins) return;
    for (u32 other = 1; other < 8; other++) sum += lanes[other][lane];
    u64 at = (u64)channel * bins + k;
    if (o == 0 && p.carried != nullptr) sum += p.carried[at];
    if (o >= p.complete) {
        p.carry[at] = sum;
        return;
    }
    write_bin(p, o, channel, k, sum);
}

// Finds medians of spectra, bin by bin. Squared magnitudes are not negative, so their bits have the same order as the numbers.
struct Column {
    const float* first;
    u64 step;
    u32 mirrored, count;
    bool fold;

    __device__ u32 bits(u32 i) const {
        const float* at = first + i * step;
        return __float_as_uint(fold ? (at[0] + at[mirrored]) / 2.0f : at[0]);
    }
};

// Computes the medians of all complete outputs.
// blocks: (output, channel, 32 bins), the bins vary fastest; 256 threads
extern "C" __global__ void __launch_bounds__(256) power_spectrum_median(SPECTRA_PARAMETERS) {
    const Spectra p = SPECTRA_GIVEN;
    __shared__ u32 found[8][33];
    const u32 tiles = (p.bins + 31) / 32, lane = threadIdx.x % 32, row = threadIdx.x / 32;
    const u32 k = blockIdx.x % tiles * 32 + lane;
    const u32 channel = blockIdx.x / tiles % p.channels, o = blockIdx.x / tiles / p.channels;
    const bool fold = p.width != p.bins, used = k < p.bins;
    const u64 space = (u64)((p.space + o) % p.spaces) * p.history;
    Column column;
    column.first = p.partial + (space * p.channels + channel) * p.width + (used ? k : 0);
    column.step = (u64)p.channels * p.width;
    column.fold = fold && used && k > 0;
    column.mirrored = column.fold ? p.width - 2 * k : 0;
    column.count = p.history;
    // Sets the bits of the lower median, from the highest to the lowest: a bit is 0 if enough numbers are not above the largest
    // number with this bit 0.
    const u32 rank = (p.history - 1) / 2 + 1;
    u32 lower = 0, below = 0;
    for (int bit = 31; bit >= 0; bit--) {
        u32 largest = lower | ((1u << bit) - 1), count = 0;
        for (u32 i = row; i < column.count; i += 8) count += column.bits(i) <= largest;
        found[row][lane] = count;
        __syncthreads();
        count = 0;
        for (u32 other = 0; other < 8; other++) count += found[other][lane];
        __syncthreads();
        if (count < rank) {
            lower |= 1u << bit;
        } else {
            below = count;
        }
    }
    // The next larger number, and the largest, which is a NaN if there is one.
    u32 next = 0xffffffffu, largest = 0;
    for (u32 i = row; i < column.count; i += 8) {
        u32 bits = column.bits(i);
        if (bits > lower) next = min(next, bits);
        largest = max(largest, bits);
    }
    found[row][lane] = next;
    __syncthreads();
    for (u32 other = 0; other < 8; other++) next = min(next, found[other][lane]);
    __syncthreads();
    found[row][lane] = largest;
    __syncthreads();
    for (u32 other = 0; other < 8; other++) largest = max(largest, found[other][lane]);
    if (row != 0 || !used) return;
    u32 upper = p.history % 2 == 1 || below > rank ? lower : next;
    double median = ((double)__uint_as_float(lower) + (double)__uint_as_float(upper)) / 2.0;
    if (largest > 0x7f800000u) median = __uint_as_float(largest);
    write_bin(p, o, channel, k, median);
}

struct alignas(16) Wide {
    u32 words[4];
};

constexpr u32 JOINED_BYTES = 16 << 10; // number of bytes that a block copies; the host uses the same value

template <class Word> __device__ void copy_words(u8* to, const u8* from, u64 bytes) {
    for (u32 i = threadIdx.x; i < bytes / sizeof(Word); i += blockDim.x) ((Word*)to)[i] = ((const Word*)from)[i];
}

// Appends frames to the rows of a buffer.
// blocks: (frame, row, part of the row), the part varies fastest; 256 threads
extern "C" __global__ void __launch_bounds__(256) power_spectrum_join(JOINING_PARAMETERS) {
    const Joining p = JOINING_GIVEN;
    const u32 parts = (u32)((p.row + JOINED_BYTES - 1) / JOINED_BYTES);
    const u32 part = blockIdx.x % parts, row = blockIdx.x / parts % p.rows, frame = blockIdx.x / parts / p.rows;
    const u64 first = (u64)part * JOINED_BYTES, rest = p.row - first, bytes = rest < JOINED_BYTES ? rest : JOINED_BYTES;
    const u8* from = frame_of(p.from, frame) + row * p.from_pitch + first;
    u8* to = (u8*)p.to + row * p.to_pitch + frame * p.row + first;
    switch (p.word) {
    case 16: copy_words<Wide>(to, from, bytes); break;
    case 8: copy_words<u64>(to, from, bytes); break;
    case 4: copy_words<u32>(to, from, bytes); break;
    case 2: copy_words<u16>(to, from, bytes); break;
    default: copy_words<u8>(to, from, bytes);
    }
}
