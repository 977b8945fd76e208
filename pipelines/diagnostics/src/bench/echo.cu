// Persistent kernels that answer a doorbell, to measure latency and to check CPU stores.
//
// The host increments the word at `bell`; its highest bit stops the kernel. A kernel writes each value that it reads to
// the word at `reply`. It ends after `limit` nanoseconds without a change, so that it does not run forever if the
// mapping does not work.

typedef unsigned int u32;
typedef unsigned long long u64;

constexpr u64 STOP = 1ull << 63;
// Number of polls of the doorbell between two reads of the clock.
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

// Waits until the doorbell differs from `last`. Returns its value, or STOP after `limit` nanoseconds.
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

// The first thread of each warp polls, so that polls follow each other more closely. The first thread that reads a new
// value replies.
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

// Reads frames. Frame n has `bytes` bytes and is stored at `input + n % slots * stride`. The grid has one block of
// whole warps, whose threads read frame n when the doorbell exceeds n. If `output` is not 0, they copy the frame to
// `output + n * stride`.
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
        // All threads read a single frame together. If there are several frames, each warp reads different frames.
        u32 group = posted - done == 1 ? blockDim.x : 32;
        u32 lane = threadIdx.x % group;
        u32 mixed = 0;
        for (u64 n = done + threadIdx.x / group; n < posted; n += blockDim.x / group) {
            u64 from = input + n % slots * stride;
            u64 to = output + n * stride;
            u64 wide = (from | (output == 0 ? 0 : to)) % 16 == 0 ? bytes / 16 : 0;
            for (u64 i = lane; i < wide; i += group) {
                uint4 part;
                // A relaxed system-scope load is as cheap as a plain load, but it never returns stale cached data and
                // is never optimised away.
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
        // Makes the compiler complete the loads before the barrier, so that the slots have been read before they are
        // credited.
        asm volatile("" : : "r"(mixed) : "memory");
        __syncthreads();
        done = posted;
        if (threadIdx.x == 0)
            store_release(reply, done);
    }
}

// Counts the words at `input` that differ from the expected words for the value of the doorbell. `words` words are
// checked; for doorbell value n, word i must be n * 0x9e3779b97f4a7c15 + i.
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
