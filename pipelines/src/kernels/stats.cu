// Computes statistics of numbers. Each block processes a part of one channel of one frame. A second kernel combines the
// parts.

#include "samples.cuh"

constexpr u32 THREADS = 256;
// Number of tables in which a block counts codes. Groups of threads use different tables, to avoid contention.
constexpr u32 TABLES = 8;

// Returns a tally of no values.
__device__ inline Tally empty_tally() {
    double infinity = __longlong_as_double(0x7ff0000000000000LL);
    return {0, 0, infinity, -infinity, 0.0, 0.0};
}

__device__ inline void add(Tally& tally, double x, double low, double high) {
    // Comparisons with a NaN are false, so a NaN changes neither the minimum nor the maximum.
    tally.min = x < tally.min ? x : tally.min;
    tally.max = x > tally.max ? x : tally.max;
    bool number = x == x;
    double value = number ? x : 0.0;
    tally.sum += value;
    tally.squares += value * value;
    tally.count += number;
    tally.clip += x <= low || x >= high;
}

__device__ inline void add(Tally& tally, const Tally& other) {
    tally.count += other.count;
    tally.clip += other.clip;
    tally.min = other.min < tally.min ? other.min : tally.min;
    tally.max = other.max > tally.max ? other.max : tally.max;
    tally.sum += other.sum;
    tally.squares += other.squares;
}

// Adds the tallies of all threads to the tally of thread 0.
__device__ inline void gather(Tally* tallies, Tally mine) {
    tallies[threadIdx.x] = mine;
    __syncthreads();
    for (u32 half = THREADS / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) add(tallies[threadIdx.x], tallies[threadIdx.x + half]);
        __syncthreads();
    }
}

// Returns the bin of `x`; `count` if `x` is outside the range.
__device__ inline u32 bin_of(const Bins& bins, double x) {
    if (!(x >= bins.low && x <= bins.high)) return bins.count;
    u32 near = (u32)((x - bins.low) * bins.per_unit);
    near = near < bins.count - 1 ? near : bins.count - 1;
    if (bins.rounds) {
        if (x < bins.edges[near]) return near - 1;
        if (near + 1 < bins.count && x >= bins.edges[near + 1]) return near + 1;
    }
    return near;
}

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

// Returns the part of this block. `bytes`: size of a number.
// blocks: (frame, part, channel), the channel varies fastest
__device__ inline Part part_of(const Statistics& p, u32 bytes) {
    u32 channel = blockIdx.x % p.channels, piece = blockIdx.x / p.channels % p.pieces;
    u64 frame = blockIdx.x / p.channels / p.pieces;
    u64 begin = piece * p.chunk, numbers = p.points * p.parts;
    return Part{frame_of(p.from, frame) + channel * p.channel_step * p.parts * bytes,
                begin < numbers ? begin : numbers,
                begin + p.chunk < numbers ? begin + p.chunk : numbers,
                p.point_step * p.parts,
                p.parts,
                channel,
                output_of(p.cut, frame)};
}

// Returns the histogram of a part's output and channel.
__device__ inline u64* counts_of(const Statistics& p, const Part& part) {
    return p.counts + ((p.buffer + part.output) % p.buffers * p.channels + part.channel) * p.bins.count;
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
__device__ void count_numbers(const Statistics& p, const Part& part, u32* shared, u64* counts, Tally& tally) {
    walk<N>(part, [&](N number) {
        double x = (double)number;
        add(tally, x, p.low, p.high);
        if (p.bins.count == 0) return;
        u32 bin = bin_of(p.bins, x);
        if (bin == p.bins.count) return;
        if (shared != nullptr) {
            atomicAdd(shared + bin, 1u);
        } else {
            atomicAdd(counts + bin, (u64)1);
        }
    });
}

// Processes numbers of more than 8 bits.
extern "C" __global__ void __launch_bounds__(THREADS) stats_numbers(STATISTICS_PARAMETERS) {
    const Statistics p = STATISTICS_GIVEN;
    DYNAMIC_SHARED(u32, shared);
    __shared__ Tally tallies[THREADS];
    Part part = part_of(p, p.scalar == FLOAT64 ? 8 : p.scalar <= UINT16 ? 2 : 4);
    u64* mine = counts_of(p, part);
    u32* near = p.in_shared ? shared : nullptr;
    if (p.in_shared) {
        for (u32 i = threadIdx.x; i < p.bins.count; i += THREADS) shared[i] = 0;
        __syncthreads();
    }
    Tally tally = empty_tally();
    switch (p.scalar) {
    case INT16: count_numbers<short>(p, part, near, mine, tally); break;
    case UINT16: count_numbers<u16>(p, part, near, mine, tally); break;
    case INT32: count_numbers<int>(p, part, near, mine, tally); break;
    case FLOAT32: count_numbers<float>(p, part, near, mine, tally); break;
    default: count_numbers<double>(p, part, near, mine, tally); break;
    }
    gather(tallies, tally);
    if (threadIdx.x == 0) p.partial[blockIdx.x] = tallies[0];
    if (p.in_shared) {
        for (u32 i = threadIdx.x; i < p.bins.count; i += THREADS) {
            if (shared[i] != 0) atomicAdd(mine + i, (u64)shared[i]);
        }
    }
}

// Processes numbers of 8 bits. Counts only the codes; all statistics follow from these counts.
extern "C" __global__ void __launch_bounds__(THREADS) stats_codes(STATISTICS_PARAMETERS) {
    const Statistics p = STATISTICS_GIVEN;
    __shared__ u32 codes[TABLES * 256];
    __shared__ Tally tallies[THREADS];
    Part part = part_of(p, 1);
    for (u32 i = threadIdx.x; i < TABLES * 256; i += THREADS) codes[i] = 0;
    __syncthreads();
    u32* own = codes + threadIdx.x / (THREADS / TABLES) * 256;
    walk<u8>(part, [&](u8 code) { atomicAdd(own + code, 1u); });
    __syncthreads();
    u32 code = threadIdx.x;
    u64 times = 0;
    for (u32 t = 0; t < TABLES; t++) times += codes[t * 256 + code];
    double x = p.scalar == INT8 ? (double)(signed char)code : (double)code;
    Tally tally = empty_tally();
    if (times != 0) {
        tally.count = times;
        tally.clip = x <= p.low || x >= p.high ? times : 0;
        tally.min = tally.max = x;
        tally.sum = x * (double)times;
        tally.squares = x * x * (double)times;
        if (p.bins.count != 0) {
            u32 bin = bin_of(p.bins, x);
            if (bin != p.bins.count) atomicAdd(counts_of(p, part) + bin, times);
        }
    }
    gather(tallies, tally);
    if (threadIdx.x == 0) p.partial[blockIdx.x] = tallies[0];
}

// Adds up the parts of each output and the tallies kept from earlier bursts. Writes complete outputs and clears their
// tallies. Keeps the tallies of incomplete outputs.
// blocks: (output, channel), the channel varies fastest
extern "C" __global__ void __launch_bounds__(THREADS) stats_finish(STATISTICS_PARAMETERS) {
    const Statistics p = STATISTICS_GIVEN;
    __shared__ Tally tallies[THREADS];
    u32 channel = blockIdx.x % p.channels, o = blockIdx.x / p.channels, bins = p.bins.count;
    u64 begin = begin_of(p.cut, o) * p.pieces, end = end_of(p.cut, o) * p.pieces;
    u64 place = (u64)((p.buffer + o) % p.buffers) * p.channels + channel;
    Tally tally = empty_tally();
    for (u64 i = begin + threadIdx.x; i < end; i += THREADS) add(tally, p.partial[i * p.channels + channel]);
    gather(tallies, tally);
    double* to = (double*)frame_of(p.to, o) + channel * (u64)(bins + 6);
    if (threadIdx.x == 0) {
        tally = p.kept[place];
        add(tally, tallies[0]);
        if (o < p.complete) {
            double none = __longlong_as_double(0x7ff8000000000000LL);
            double numbers = (double)tally.count;
            bool some = tally.count != 0;
            to[0] = numbers;
            to[1] = some ? tally.min : none;
            to[2] = some ? tally.max : none;
            to[3] = some ? tally.sum / numbers : none;
            to[4] = some ? sqrt(tally.squares / numbers) : none;
            to[5] = (double)tally.clip;
            tally = empty_tally();
        }
        p.kept[place] = tally;
    }
    if (o >= p.complete) return;
    for (u32 i = threadIdx.x; i < bins; i += THREADS) {
        to[6 + i] = (double)p.counts[place * bins + i];
        p.counts[place * bins + i] = 0;
    }
}
