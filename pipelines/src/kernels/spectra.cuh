// Shared by the device code of `power-spectrum`: complex numbers, transforms of few points, and the spectra that a block
// processes.

#include "samples.cuh"

struct alignas(8) Complex {
    float x, y;
};

__device__ inline Complex operator+(Complex a, Complex b) { return {a.x + b.x, a.y + b.y}; }
__device__ inline Complex operator-(Complex a, Complex b) { return {a.x - b.x, a.y - b.y}; }
__device__ inline Complex operator*(Complex a, Complex b) {
    return {a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x};
}
// Returns a * -i.
__device__ inline Complex turned(Complex a) { return {a.y, -a.x}; }

// A transform of R points, performed in place.
template <int R> struct Small {
    // Implementation for odd R. It combines pairs of points whose roots are complex conjugates.
    __device__ __forceinline__ static void run(Complex* v) {
        constexpr float COS[3][7] = {{1.0f, -0.5f, -0.5f},
                                     {1.0f, 0.30901699437494742f, -0.80901699437494742f, -0.80901699437494742f,
                                      0.30901699437494742f},
                                     {1.0f, 0.62348980185873353f, -0.22252093395631440f, -0.90096886790241913f,
                                      -0.90096886790241913f, -0.22252093395631440f, 0.62348980185873353f}};
        constexpr float SIN[3][7] = {{0.0f, 0.86602540378443865f, -0.86602540378443865f},
                                     {0.0f, 0.95105651629515357f, 0.58778525229247313f, -0.58778525229247313f,
                                      -0.95105651629515357f},
                                     {0.0f, 0.78183148246802981f, 0.97492791218182361f, 0.43388373911755812f,
                                      -0.43388373911755812f, -0.97492791218182361f, -0.78183148246802981f}};
        constexpr int H = R / 2, T = (R - 3) / 2;
        Complex sum[H], difference[H], zero = v[0];
#pragma unroll
        for (int i = 0; i < H; i++) {
            sum[i] = v[1 + i] + v[R - 1 - i];
            difference[i] = v[1 + i] - v[R - 1 - i];
            v[0] = v[0] + sum[i];
        }
#pragma unroll
        for (int k = 1; k <= H; k++) {
            Complex even = zero, odd = {0.0f, 0.0f};
#pragma unroll
            for (int i = 0; i < H; i++) {
                float c = COS[T][k * (i + 1) % R], s = SIN[T][k * (i + 1) % R];
                even = even + Complex{c * sum[i].x, c * sum[i].y};
                odd = odd + Complex{s * difference[i].x, s * difference[i].y};
            }
            v[k] = even + turned(odd);
            v[R - k] = even - turned(odd);
        }
    }
};

template <> struct Small<2> {
    __device__ __forceinline__ static void run(Complex* v) {
        Complex a = v[0];
        v[0] = a + v[1];
        v[1] = a - v[1];
    }
};

template <> struct Small<4> {
    __device__ __forceinline__ static void run(Complex* v) {
        Complex a = v[0] + v[2], b = v[0] - v[2], c = v[1] + v[3], d = turned(v[1] - v[3]);
        v[0] = a + c;
        v[1] = b + d;
        v[2] = a - c;
        v[3] = b - d;
    }
};

template <> struct Small<8> {
    __device__ __forceinline__ static void run(Complex* v) {
        constexpr float HALF = 0.70710678118654752f;
        Complex even[4] = {v[0], v[2], v[4], v[6]}, odd[4] = {v[1], v[3], v[5], v[7]};
        Small<4>::run(even);
        Small<4>::run(odd);
        odd[1] = Complex{HALF * (odd[1].x + odd[1].y), HALF * (odd[1].y - odd[1].x)};
        odd[2] = turned(odd[2]);
        odd[3] = Complex{HALF * (odd[3].y - odd[3].x), -HALF * (odd[3].x + odd[3].y)};
#pragma unroll
        for (int k = 0; k < 4; k++) {
            v[k] = even[k] + odd[k];
            v[k + 4] = even[k] - odd[k];
        }
    }
};

// Returns the size of a number in bytes.
__device__ inline u32 bytes_of(const Spectra& p) {
    return p.scalar == FLOAT64 ? 8 : p.scalar >= INT32 ? 4 : p.scalar >= INT16 ? 2 : 1;
}

// Returns the address of the first sample of spectrum `s` of the round.
__device__ inline const u8* start_of(const Spectra& p, u64 s, u32 channel) {
    u64 frame = (p.origin + s) / p.spectra, i = (p.origin + s) % p.spectra;
    return frame_of(p.from, frame) + (channel * p.channel_step + i * p.hop * p.point_step) * ((u64)bytes_of(p) << p.complex);
}

// The means to subtract from blocks; the mean of spectrum `s` of a channel is at `first[s * step]`.
struct Means {
    const Complex* first; // null if no mean is subtracted
    u32 step;

    __device__ Means of(u64 s, u32 channel) const {
        return {first == nullptr ? nullptr : first + s * step + channel, step};
    }
};

// Piece `index % pieces` of output `index / pieces`. It consists of the spectra `begin` to `end` of the round.
struct Piece {
    u64 begin, end;

    __device__ Piece(const Spectra& p, u32 index) {
        u64 o = index / p.pieces, q = index % p.pieces;
        u64 stop = end_of(p.cut, o);
        begin = begin_of(p.cut, o) + q * p.chunk;
        begin = begin < stop ? begin : stop;
        end = begin + p.chunk < stop ? begin + p.chunk : stop;
    }
};

// A float32 sum and the rounding error of its additions (Kahan). It is about as exact as a float64 sum, which many GPUs compute
// slowly.
struct Compensated {
    float sum = 0.0f, error = 0.0f;

    __device__ __forceinline__ void add(float x) {
        float y = x - error, next = sum + y;
        error = (next - sum) - y;
        sum = next;
    }
};

// Returns the index of the set of partial sums of piece `index % pieces` of output `index / pieces`. For medians, a piece is one
// spectrum, and the spectra of an output are in a space of their own until the output is complete.
__device__ inline u64 set_of(const Spectra& p, u32 index) {
    if (p.history == 0) return index;
    u32 o = index / p.pieces, q = index % p.pieces;
    return (u64)((p.space + o) % p.spaces) * p.history + (o == 0 ? p.pending : 0) + q;
}

// Writes a bin of output `o`. `sum` is the sum of the squared magnitudes of all spectra of the output.
__device__ inline void write_bin(const Spectra& p, u64 o, u32 channel, u32 k, double sum) {
    double power = sum * p.factor;
    if (k > 0 && k < p.doubled) power *= 2.0;
    // The negative frequencies of complex samples come first.
    u32 place = p.complex ? (k + p.bins / 2) % p.bins : k;
    float* to = (float*)frame_of(p.to, o);
    to[(u64)channel * p.bins + place] = (float)(p.db ? 10.0 * log10(power) : power);
}

// Writes a bin of a piece that consists of whole spectra: to the output, or to `partial`.
// blocks: (output, piece, channel), the channel varies fastest
__device__ inline void write_sum(const Spectra& p, u32 k, float sum) {
    if (p.direct) {
        write_bin(p, blockIdx.x / p.channels, blockIdx.x % p.channels, k, sum);
    } else {
        u64 set = set_of(p, blockIdx.x / p.channels) * p.channels + blockIdx.x % p.channels;
        p.partial[set * p.bins + k] = sum;
    }
}
