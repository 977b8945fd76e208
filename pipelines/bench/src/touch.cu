// Sums the words of a frame, so that every byte is read. Threads load 16 bytes at a time where possible.

__device__ inline unsigned of_warp(unsigned sum) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    return __reduce_add_sync(~0u, sum);
#else
    for (unsigned step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    return sum;
#endif
}

__device__ void on_frame(const daq::Frame& in, daq::Out& out, const daq::NoParams&) {
    __shared__ unsigned sums[32];
    unsigned sum = 0;
    const uint4* wide = in.as<const uint4>();
    for (daq::Size i = in.thread; i < in.length / 16; i += in.threads) {
        const uint4 part = wide[i];
        sum += part.x + part.y + part.z + part.w;
    }
    sum = of_warp(sum);
    const unsigned warps = in.threads / 32;
    if (warps > 1) {
        if (in.thread % 32 == 0) sums[in.thread / 32] = sum;
        __syncthreads();
        if (in.thread < 32) sum = of_warp(in.thread < warps ? sums[in.thread] : 0);
    }
    if (in.thread == 0) out.as<unsigned>()[0] = sum;
}
