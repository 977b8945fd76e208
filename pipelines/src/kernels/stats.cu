// Computes statistics of numbers. Each block processes a part of one channel of one frame. A second kernel combines the
// parts.

#include "samples.cuh"

constexpr u32 THREADS = 256;
// Number of tables in which a block counts codes. Groups of threads use different tables, to avoid contention.
constexpr u32 TABLES = 8;

// The statistics of one channel, as sums.
struct Tally {
    u64 count, clip;
    double min, max, sum, squares;

    __device__ void clear() {
        count = clip = 0;
        min = __longlong_as_double(0x7ff0000000000000LL);
        max = -min;
        sum = squares = 0.0;
    }
    __device__ void add(double x, double low, double high) {
        // Comparisons with a NaN are false, so a NaN changes neither the minimum nor the maximum.
        min = x < min ? x : min;
        max = x > max ? x : max;
        bool number = x == x;
        double value = number ? x : 0.0;
        sum += value;
        squares += value * value;
        count += number;
        clip += x <= low || x >= high;
    }
    __device__ void add(const Tally& other) {
        count += other.count;
        clip += other.clip;
        min = other.min < min ? other.min : min;
        max = other.max > max ? other.max : max;
        sum += other.sum;
        squares += other.squares;
    }
};

// Adds the tallies of all threads to the tally of thread 0.
__device__ inline void gather(Tally* tallies, Tally mine) {
    tallies[threadIdx.x] = mine;
    __syncthreads();
    for (u32 half = THREADS / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) tallies[threadIdx.x].add(tallies[threadIdx.x + half]);
        __syncthreads();
    }
}

// Bins of equal width, with the same edges as in numpy.histogram.
struct Bins {
    u32 count, rounds;
    double low, high, per_unit;
    const double* edges;

    // Returns the bin of `x`; `count` if `x` is outside the range.
    __device__ u32 of(double x) const {
        if (!(x >= low && x <= high)) return count;
        u32 near = (u32)((x - low) * per_unit);
        near = near < count - 1 ? near : count - 1;
        if (rounds) {
            if (x < edges[near]) return near - 1;
            if (near + 1 < count && x >= edges[near + 1]) return near + 1;
        }
        return near;
    }
};

// A part of one channel of one frame.
struct Part {
    const u8* base; // the channel's first number
    u64 begin, end; // range of numbers
    u64 point_step; // in numbers
    u32 parts;
    u32 channel;
    u64 output;

    __device__ u64 at(u64 i) const {
        return parts == 1 ? i * point_step : (i >> 1) * point_step + (i & 1);
    }
    __device__ bool side_by_side() const { return point_step == parts; }
};

// blocks: (frame, part, channel), the channel varies fastest
__device__ inline Part part_of(Ring ring, u32 bytes, u32 parts, u64 points, u32 channels, u64 point_step,
                               u64 channel_step, u64 chunk, u32 pieces, Cut cut) {
    u32 channel = blockIdx.x % channels, piece = blockIdx.x / channels % pieces;
    u64 frame = blockIdx.x / channels / pieces;
    u64 begin = piece * chunk, numbers = points * parts;
    return Part{ring.frame(frame) + channel * channel_step * parts * bytes,
                begin < numbers ? begin : numbers,
                begin + chunk < numbers ? begin + chunk : numbers,
                point_step * parts,
                parts,
                channel,
                cut.output_of(frame)};
}

template <class N> struct alignas(16) Wide {
    N x[16 / sizeof(N)];
};

// Calls `each` for every number of the part. Loads 16 bytes at a time if the numbers are contiguous.
template <class N, class F> __device__ __forceinline__ void walk(const Part& part, F each) {
    constexpr u32 V = 16 / sizeof(N);
    const N* source = (const N*)part.base;
    if (part.side_by_side() && (u64)(source + part.begin) % 16 == 0) {
        u64 whole = (part.end - part.begin) / V;
        const Wide<N>* wide = (const Wide<N>*)(source + part.begin);
        for (u64 i = threadIdx.x; i < whole; i += THREADS) {
            Wide<N> numbers = wide[i];
#pragma unroll
            for (u32 k = 0; k < V; k++) each(numbers.x[k]);
        }
        for (u64 i = part.begin + whole * V + threadIdx.x; i < part.end; i += THREADS) each(source[i]);
    } else {
#pragma unroll 4
        for (u64 i = part.begin + threadIdx.x; i < part.end; i += THREADS) each(source[part.at(i)]);
    }
}

template <class N>
__device__ void count_numbers(const Part& part, Bins bins, u32* shared, u64* counts, double low, double high,
                              Tally& tally) {
    walk<N>(part, [&](N number) {
        double x = (double)number;
        tally.add(x, low, high);
        if (bins.count == 0) return;
        u32 bin = bins.of(x);
        if (bin == bins.count) return;
        if (shared != nullptr) {
            atomicAdd(shared + bin, 1u);
        } else {
            atomicAdd(counts + bin, (u64)1);
        }
    });
}

// Processes numbers of more than 8 bits. `in_shared`: histograms are first counted in shared memory.
extern "C" __global__ void __launch_bounds__(THREADS)
    stats_numbers(u64 in_base, u64 in_stride, u32 in_slots, u32 in_first, u32 scalar, u32 parts, u64 points,
                  u32 channels, u64 point_step, u64 channel_step, u64 total, u64 left, u64 each, u64 chunk, u32 pieces,
                  double low, double high, u32 bins, u32 rounds, double bins_low, double bins_high, double per_unit,
                  const double* edges, u32 in_shared, u64* counts, u32 buffers, u32 buffer, Tally* partial) {
    DYNAMIC_SHARED(u32, shared);
    __shared__ Tally tallies[THREADS];
    u32 bytes = scalar == FLOAT64 ? 8 : scalar == INT16 ? 2 : 4;
    Part part = part_of(Ring{in_base, in_stride, in_slots, in_first}, bytes, parts, points, channels, point_step,
                        channel_step, chunk, pieces, Cut{total, left, each});
    Bins table = {bins, rounds, bins_low, bins_high, per_unit, edges};
    u64* mine = counts + ((buffer + part.output) % buffers * channels + part.channel) * bins;
    u32* near = in_shared ? shared : nullptr;
    if (in_shared) {
        for (u32 i = threadIdx.x; i < bins; i += THREADS) shared[i] = 0;
        __syncthreads();
    }
    Tally tally;
    tally.clear();
    switch (scalar) {
    case INT16: count_numbers<short>(part, table, near, mine, low, high, tally); break;
    case INT32: count_numbers<int>(part, table, near, mine, low, high, tally); break;
    case FLOAT32: count_numbers<float>(part, table, near, mine, low, high, tally); break;
    default: count_numbers<double>(part, table, near, mine, low, high, tally); break;
    }
    gather(tallies, tally);
    if (threadIdx.x == 0) partial[blockIdx.x] = tallies[0];
    if (in_shared) {
        for (u32 i = threadIdx.x; i < bins; i += THREADS) {
            if (shared[i] != 0) atomicAdd(mine + i, (u64)shared[i]);
        }
    }
}

// Processes numbers of 8 bits. Counts only the codes; all statistics follow from these counts.
extern "C" __global__ void __launch_bounds__(THREADS)
    stats_codes(u64 in_base, u64 in_stride, u32 in_slots, u32 in_first, u32 scalar, u32 parts, u64 points,
                u32 channels, u64 point_step, u64 channel_step, u64 total, u64 left, u64 each, u64 chunk, u32 pieces,
                double low, double high, u32 bins, u32 rounds, double bins_low, double bins_high, double per_unit,
                const double* edges, u32, u64* counts, u32 buffers, u32 buffer, Tally* partial) {
    __shared__ u32 codes[TABLES * 256];
    __shared__ Tally tallies[THREADS];
    Part part = part_of(Ring{in_base, in_stride, in_slots, in_first}, 1, parts, points, channels, point_step,
                        channel_step, chunk, pieces, Cut{total, left, each});
    Bins table = {bins, rounds, bins_low, bins_high, per_unit, edges};
    for (u32 i = threadIdx.x; i < TABLES * 256; i += THREADS) codes[i] = 0;
    __syncthreads();
    u32* own = codes + threadIdx.x / (THREADS / TABLES) * 256;
    walk<u8>(part, [&](u8 code) { atomicAdd(own + code, 1u); });
    __syncthreads();
    u32 code = threadIdx.x;
    u64 times = 0;
    for (u32 t = 0; t < TABLES; t++) times += codes[t * 256 + code];
    double x = scalar == INT8 ? (double)(signed char)code : (double)code;
    Tally tally;
    tally.clear();
    if (times != 0) {
        tally.count = times;
        tally.clip = x <= low || x >= high ? times : 0;
        tally.min = tally.max = x;
        tally.sum = x * (double)times;
        tally.squares = x * x * (double)times;
        if (bins != 0) {
            u32 bin = table.of(x);
            u64* mine = counts + ((buffer + part.output) % buffers * channels + part.channel) * bins;
            if (bin != bins) atomicAdd(mine + bin, times);
        }
    }
    gather(tallies, tally);
    if (threadIdx.x == 0) partial[blockIdx.x] = tallies[0];
}

// Adds up the parts of each output and the tallies kept from earlier bursts. Writes complete outputs and clears their
// tallies. Keeps the tallies of incomplete outputs.
// blocks: (output, channel), the channel varies fastest
extern "C" __global__ void __launch_bounds__(THREADS)
    stats_finish(const Tally* partial, u64 total, u64 left, u64 each, u32 pieces, u32 channels, u32 bins, u64* counts,
                 Tally* kept, u32 buffers, u32 buffer, u32 complete, u64 out_base, u64 out_stride, u32 out_slots,
                 u32 out_first) {
    __shared__ Tally tallies[THREADS];
    u32 channel = blockIdx.x % channels, o = blockIdx.x / channels;
    Cut cut = {total, left, each};
    u64 begin = cut.begin(o) * pieces, end = cut.end(o) * pieces;
    u64 place = (u64)((buffer + o) % buffers) * channels + channel;
    Tally tally;
    tally.clear();
    for (u64 i = begin + threadIdx.x; i < end; i += THREADS) tally.add(partial[i * channels + channel]);
    gather(tallies, tally);
    double* to = (double*)Ring{out_base, out_stride, out_slots, out_first}.frame(o) + channel * (u64)(bins + 6);
    if (threadIdx.x == 0) {
        tally = kept[place];
        tally.add(tallies[0]);
        if (o < complete) {
            double none = __longlong_as_double(0x7ff8000000000000LL);
            double numbers = (double)tally.count;
            bool some = tally.count != 0;
            to[0] = numbers;
            to[1] = some ? tally.min : none;
            to[2] = some ? tally.max : none;
            to[3] = some ? tally.sum / numbers : none;
            to[4] = some ? sqrt(tally.squares / numbers) : none;
            to[5] = (double)tally.clip;
            tally.clear();
        }
        kept[place] = tally;
    }
    if (o >= complete) return;
    for (u32 i = threadIdx.x; i < bins; i += THREADS) {
        to[6 + i] = (double)counts[place * bins + i];
        counts[place * bins + i] = 0;
    }
}
