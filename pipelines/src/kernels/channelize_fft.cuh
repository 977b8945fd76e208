// Transforms for `channelize`, in shared memory. All distances are in points.

#include "spectra.cuh"

// Number of points of a transform that a thread keeps in registers.
constexpr u32 POINTS = 16;

// Two successive numbers of a frame: a complex sample or two real samples.
template <class N> struct alignas(2 * sizeof(N)) Two {
    N x, y;
};
template <class N> struct alignas(4 * sizeof(N)) Four {
    Two<N> first, second;
};

// cos(2 pi k / 16)
constexpr float C1 = 0.92387953251128676f, C2 = 0.70710678118654752f, C3 = 0.38268343236508977f;

// A transform of 16 points.
__device__ __forceinline__ void transform16(Complex (&v)[POINTS]) {
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

// Replaces `a` and `b` by a + root * b and a - root * b.
__device__ __forceinline__ void butterfly(Complex& a, Complex& b, Complex root) {
    const Complex sum = {a.x + root.x * b.x - root.y * b.y, a.y + root.x * b.y + root.y * b.x};
    b = Complex{fmaf(2.0f, a.x, -sum.x), fmaf(2.0f, a.y, -sum.y)};
    a = sum;
}

// Multiplies point `m` by root^m and transforms the 16 points. The twiddle factors of the four passes of radix 2 contain
// these powers, so that each butterfly consists of six fused operations. Computing all powers from one loaded root is faster
// than loading two; it doubles the error, which stays below 5e-6 of the RMS.
__device__ __forceinline__ void twiddle_and_transform16(Complex (&v)[POINTS], Complex root) {
    const Complex root2 = root * root, root4 = root2 * root2, root8 = root4 * root4;
    const Complex roots2[2] = {root2, root2 * Complex{C2, -C2}};
    const Complex roots1[4] = {root, root * Complex{C1, -C3}, root * Complex{C2, -C2}, root * Complex{C3, -C1}};
#pragma unroll
    for (u32 i = 0; i < 8; i++) butterfly(v[i], v[i + 8], root8);
    // The first bits of the index of a point are the last bits of its channel, in reverse order. `k` is their value.
#pragma unroll
    for (u32 i = 0; i < 8; i++) {
        const u32 k = i / 4, at = k * 8 + i % 4;
        butterfly(v[at], v[at + 4], k ? turned(root4) : root4);
    }
#pragma unroll
    for (u32 i = 0; i < 8; i++) {
        const u32 k = i / 4 + i / 2 % 2 * 2, at = i / 2 * 4 + i % 2;
        butterfly(v[at], v[at + 2], k / 2 ? turned(roots2[k % 2]) : roots2[k % 2]);
    }
    Complex channels[POINTS];
#pragma unroll
    for (u32 i = 0; i < 8; i++) {
        const u32 k = i / 4 + i / 2 % 2 * 2 + i % 2 * 4;
        butterfly(v[2 * i], v[2 * i + 1], k / 4 ? turned(roots1[k % 4]) : roots1[k % 4]);
        channels[k] = v[2 * i];
        channels[k + 8] = v[2 * i + 1];
    }
#pragma unroll
    for (u32 k = 0; k < POINTS; k++) v[k] = channels[k];
}

// Transforms of SIZE points in place. A pass reads and writes points whose numbers differ in one digit. The first digit
// has a radix of FIRST, the others have a radix of 16. At the end, the digits of the channels are in reverse order.
template <u32 SIZE> struct Fft {
    // Number of threads per transform.
    static constexpr u32 THREADS = SIZE / POINTS;
    static constexpr u32 FIRST = SIZE == 64 || SIZE == 1024    ? 4
                                 : SIZE == 128 || SIZE == 2048 ? 8
                                 : SIZE == 512 || SIZE == 8192 ? 2
                                                               : 16;

    // Returns the channel, modulo DONE, that belongs to the first digits of a point.
    template <u32 DONE> __device__ __forceinline__ static constexpr u32 channel_of(u32 prefix) {
        if constexpr (DONE <= FIRST) {
            return prefix;
        } else {
            return channel_of<DONE / 16>(prefix / 16) + prefix % 16 * (DONE / 16);
        }
    }
    // Returns the first digits of the points of a channel.
    template <u32 DONE> __device__ __forceinline__ static u32 prefix_of(u32 channel) {
        if constexpr (DONE <= FIRST) {
            return channel;
        } else {
            return prefix_of<DONE / 16>(channel % (DONE / 16)) * 16 + channel / (DONE / 16);
        }
    }

    // Returns what to change in the number of a point to get its place in shared memory, so that neighbouring threads access
    // different banks in every pass. Pairs of points remain neighbours. `mixed(a ^ b)` equals `mixed(a) ^ mixed(b)`.
    __device__ __forceinline__ static constexpr u32 mixed(u32 point) {
        constexpr u32 KNOWN = SIZE > 256 ? FIRST * 16 : FIRST;
        return (channel_of<KNOWN>(point / (SIZE / KNOWN)) & 7) << 1;
    }
    __device__ __forceinline__ static u32 place(u32 transform, u32 point) {
        u32 mix = mixed(point);
        if constexpr (SIZE == 64) mix ^= (transform & 1) << 3 | (transform & 2) << 1;
        if constexpr (SIZE == 128) mix ^= (transform & 1) << 3;
        return transform * SIZE + (point ^ mix);
    }
    // Returns the place of point + m * STEP from that of `point`, in which this digit is 0.
    template <u32 STEP> __device__ __forceinline__ static u32 moved(u32 place, u32 m) {
        const u32 mix = mixed(m * STEP);
        return STEP % 16 == 0 ? (place ^ mix) + m * STEP : place ^ (m * STEP ^ mix);
    }

    template <u32 STEP>
    __device__ __forceinline__ static void load(Complex (&v)[POINTS], const Complex* points, u32 place) {
#pragma unroll
        for (u32 m = 0; m < POINTS; m++) v[m] = points[moved<STEP>(place, m)];
    }
    template <u32 STEP>
    __device__ __forceinline__ static void save(const Complex (&v)[POINTS], Complex* points, u32 place) {
#pragma unroll
        for (u32 m = 0; m < POINTS; m++) points[moved<STEP>(place, m)] = v[m];
    }

    // Performs the first pass for points with a distance of THREADS.
    __device__ __forceinline__ static void first(Complex (&v)[POINTS]) {
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
    }

    // Performs a pass of radix 16 after passes whose radices have the product DONE. The points belong to channel `k`
    // modulo DONE.
    template <u32 DONE> __device__ __forceinline__ static void turn(Complex (&v)[POINTS], const Complex* roots, u32 k) {
        constexpr u32 STEP = 2 * SIZE / (DONE * POINTS);
        twiddle_and_transform16(v, roots[k * STEP]);
    }

    // Performs the passes between the first and the last one.
    template <u32 DONE> __device__ __forceinline__ static void proceed(Complex* points, const Complex* roots, u32 slices) {
        if constexpr (DONE * POINTS < SIZE) {
            constexpr u32 STEP = SIZE / (DONE * POINTS);
            for (u32 slice = threadIdx.x; slice < slices; slice += blockDim.x) {
                const u32 prefix = slice % THREADS / STEP, point = prefix * (SIZE / DONE) + slice % STEP;
                const u32 at = place(slice / THREADS, point);
                Complex v[POINTS];
                load<STEP>(v, points, at);
                turn<DONE>(v, roots, channel_of<DONE>(prefix));
                save<STEP>(v, points, at);
            }
            __syncthreads();
            proceed<DONE * POINTS>(points, roots, slices);
        }
    }

    // Performs all passes but the last one.
    __device__ __forceinline__ static void run(Complex* points, const Complex* roots, u32 slices) {
        for (u32 slice = threadIdx.x; slice < slices; slice += blockDim.x) {
            const u32 at = place(slice / THREADS, slice % THREADS);
            Complex v[POINTS];
            load<THREADS>(v, points, at);
            first(v);
            save<THREADS>(v, points, at);
        }
        __syncthreads();
        proceed<FIRST>(points, roots, slices);
    }

    // Performs the last pass. `v[m]` becomes channel k + m * THREADS.
    __device__ __forceinline__ static void last(Complex (&v)[POINTS], const Complex* points, const Complex* roots,
                                                u32 transform, u32 k) {
        const u32 at = place(transform, prefix_of<THREADS>(k) * POINTS);
#pragma unroll
        for (u32 m = 0; m < POINTS; m += 2) {
            const Four<float> pair = *(const Four<float>*)(points + (at ^ m));
            v[m] = Complex{pair.first.x, pair.first.y};
            v[m + 1] = Complex{pair.second.x, pair.second.y};
        }
        turn<THREADS>(v, roots, k);
    }
};

// A lane of a warp that makes channels of real samples. Lanes are assigned to channels so that the mirror images are in
// the same warp.
template <u32 SIZE> struct Mirror {
    static constexpr u32 THREADS = SIZE / POINTS;
    // First channel of the lane, and the lane that has the channels -k modulo THREADS.
    u32 k, partner;

    __device__ explicit Mirror(u32 i) {
        const u32 lane = threadIdx.x % 32;
        if constexpr (THREADS < 32) {
            k = i;
            partner = (lane & ~(THREADS - 1)) | ((THREADS - k) & (THREADS - 1));
        } else {
            const u32 warp = i / 32;
            const bool alone = warp == 0 && lane % 16 == 0;
            k = lane < 16 ? warp * 16 + lane : alone ? THREADS / 2 : THREADS + 16 - warp * 16 - lane;
            partner = alone ? lane : lane ^ 16;
        }
    }

    // Makes channels from the transform of pairs of samples: for m < 8, `v[m]` becomes channel k + m * THREADS, and
    // `v[15 - m]` channel SIZE - k - m * THREADS. Channel SIZE / 2 replaces channel SIZE. The coefficients contain a factor
    // of 0.5. All threads of a warp must call this function.
    __device__ __forceinline__ void unfold(Complex (&v)[POINTS], const Complex* roots) const {
        const Complex middle = v[POINTS / 2];
        Complex before = v[0];
#pragma unroll
        for (u32 m = 0; m < POINTS / 2; m++) {
            const Complex own = v[POINTS - 1 - m];
            Complex w = {__shfl_sync(~0u, own.x, partner), __shfl_sync(~0u, own.y, partner)};
            if (k == 0) w = before;
            before = own;
            const Complex even = {v[m].x + w.x, v[m].y - w.y};
            const Complex odd = Complex{v[m].y + w.y, w.x - v[m].x} * roots[k + m * THREADS];
            v[m] = even + odd;
            v[POINTS - 1 - m] = Complex{even.x - odd.x, odd.y - even.y};
        }
        if (k == 0) v[POINTS - 1] = Complex{2.0f * middle.x, -2.0f * middle.y};
    }
};
