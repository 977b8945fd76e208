// Persistent kernels that answer a doorbell, to measure latency and to check CPU stores.
//
// The word at `bell` counts up; its highest bit stops the kernel. A kernel writes the value that it has read to the
// word at `reply`. It ends after `limit` nanoseconds without a change, so that a broken mapping leaves no kernel behind.

typedef unsigned int u32;
typedef unsigned long long u64;

constexpr u64 STOP = 1ull << 63;
// Looks at the bell between two looks at the clock.
constexpr u32 LOOKS = 4096;

__device__ inline u64 load_acquire(u64 address) {
    u64 value;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");
    return value;
}

__device__ inline u64 load_relaxed(u64 address) {
    u64 value;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");
    return value;
}

__device__ inline void store_release(u64 address, u64 value) {
    asm volatile("st.release.sys.global.u64 [%0], %1;" : : "l"(address), "l"(value) : "memory");
}

__device__ inline void store_relaxed(u64 address, u64 value) {
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" : : "l"(address), "l"(value) : "memory");
}

__device__ inline u64 nanoseconds() {
    u64 time;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
    return time;
}

// Waits until the bell has another value than `last`: that value, or STOP after the limit.
template <bool ACQUIRE>
__device__ inline u64 hear(u64 bell, u64 last, u64 limit) {
    u64 since = 0;
    for (;;) {
        for (u32 i = 0; i < LOOKS; i++) {
            u64 value = ACQUIRE ? load_acquire(bell) : load_relaxed(bell);
            if (value != last)
                return value;
        }
        u64 now = nanoseconds();
        if (since == 0)
            since = now;
        else if (now - since > limit)
            return STOP;
    }
}

template <bool ACQUIRE, bool RELEASE>
__device__ inline void echo(u64 bell, u64 reply, u64 limit) {
    for (u64 last = 0;;) {
        last = hear<ACQUIRE>(bell, last, limit);
        if (last & STOP)
            return;
        if (RELEASE)
            store_release(reply, last);
        else
            store_relaxed(reply, last);
    }
}

extern "C" __global__ void daq_echo_ordered(u64 bell, u64 reply, u64 limit) { echo<true, true>(bell, reply, limit); }

extern "C" __global__ void daq_echo_acquire(u64 bell, u64 reply, u64 limit) { echo<true, false>(bell, reply, limit); }

extern "C" __global__ void daq_echo_relaxed(u64 bell, u64 reply, u64 limit) { echo<false, false>(bell, reply, limit); }

// The first thread of each warp looks, so that the looks come closer together; the first to see a value answers.
extern "C" __global__ void daq_echo_warps(u64 bell, u64 reply, u64 limit) {
    __shared__ u64 answered;
    if (threadIdx.x == 0)
        answered = 0;
    __syncthreads();
    if (threadIdx.x % 32 != 0)
        return;
    for (u64 last = 0;;) {
        last = hear<false>(bell, last, limit);
        if (last & STOP)
            return;
        if (atomicMax(&answered, last) < last)
            store_relaxed(reply, last);
    }
}

extern "C" __global__ void daq_nothing() {}

// Frame n, of `bytes` bytes, lies at `input + n % slots * stride`. The threads of the one block, whole warps, read it
// once the bell says more than n; it is written to `output + n * stride`, where `output` is not 0.
extern "C" __global__ void daq_echo_frames(u64 bell, u64 reply, u64 limit, u64 input, u64 stride, u64 slots, u64 bytes,
                                           u64 output) {
    __shared__ u64 heard;
    for (u64 done = 0;;) {
        if (threadIdx.x == 0)
            heard = hear<true>(bell, done, limit);
        __syncthreads();
        u64 posted = heard;
        if (posted & STOP)
            return;
        // All threads read one frame; of several, each warp reads its own.
        u32 group = posted - done == 1 ? blockDim.x : 32;
        u32 lane = threadIdx.x % group;
        u32 mixed = 0;
        for (u64 n = done + threadIdx.x / group; n < posted; n += blockDim.x / group) {
            u64 from = input + n % slots * stride;
            u64 to = output + n * stride;
            u64 wide = (from | (output == 0 ? 0 : to)) % 16 == 0 ? bytes / 16 : 0;
            for (u64 i = lane; i < wide; i += group) {
                uint4 part;
                // As plain as a load can be, but never taken from a cache that is not kept up to date, nor left out.
                asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                             : "=r"(part.x), "=r"(part.y), "=r"(part.z), "=r"(part.w)
                             : "l"(from + i * 16)
                             : "memory");
                mixed ^= part.x ^ part.y ^ part.z ^ part.w;
                if (output != 0)
                    *(uint4*)(to + i * 16) = part;
            }
            for (u64 i = wide * 16 + lane; i < bytes; i += group) {
                unsigned char part = *(volatile unsigned char*)(from + i);
                mixed ^= part;
                if (output != 0)
                    *(unsigned char*)(to + i) = part;
            }
        }
        // The values are needed before the barrier, so that the slots have been read when their credit is given.
        asm volatile("" : : "r"(mixed) : "memory");
        __syncthreads();
        done = posted;
        if (threadIdx.x == 0)
            store_release(reply, done);
    }
}

// Counts the words of `words` words at `input` that are not those of the bell's value when it is seen: word i of
// value n is n * 0x9e3779b97f4a7c15 + i.
extern "C" __global__ void daq_echo_order(u64 bell, u64 reply, u64 limit, u64 input, u64 words, u64 wrong) {
    __shared__ u64 heard;
    for (u64 last = 0;;) {
        if (threadIdx.x == 0)
            heard = hear<true>(bell, last, limit);
        __syncthreads();
        last = heard;
        if (last & STOP)
            return;
        for (u64 i = threadIdx.x; i < words; i += blockDim.x) {
            if (load_relaxed(input + i * 8) != last * 0x9e3779b97f4a7c15ull + i)
                atomicAdd((u64*)wrong, 1ull);
        }
        __syncthreads();
        if (threadIdx.x == 0)
            store_release(reply, last);
    }
}
