// Converts samples of any type to float32 or int16. Each product and each sum is rounded separately, exactly as on the CPU.
// Packed numbers become 16-bit integers first.

#include "samples.cuh"

// Number of samples in a tile. Tiles are used if the sample order changes.
constexpr u32 TILE = 1024;

// Numbers of the types float16 and bfloat16.
struct Float16 {
    u16 bits;
};
struct Bfloat16 {
    u16 bits;
};

// The types of the results. An int16 is rounded to the nearest integer, half to even, and limited to its range; a NaN becomes 0.
struct ToFloat32 {
    typedef float Number;
    __device__ static float of(float x) { return x; }
    __device__ static float of(double x) { return __double2float_rn(x); }
};
struct ToInt16 {
    typedef short Number;
    __device__ static short limited(int x) { return (short)min(max(x, -32768), 32767); }
    __device__ static short of(float x) { return limited(__float2int_rn(x)); }
    __device__ static short of(double x) { return x == x ? limited(__double2int_rn(x)) : 0; }
};

template <class T> struct Line {
    typedef typename T::Number Number;
    float factor32, offset32;
    double factor64, offset64;

    __device__ Line(double factor, double offset)
        : factor32((float)factor), offset32((float)offset), factor64(factor), offset64(offset) {}

    __device__ Number narrow(float x) const { return T::of(__fadd_rn(__fmul_rn(x, factor32), offset32)); }
    __device__ Number wide(double x) const { return T::of(__dadd_rn(__dmul_rn(x, factor64), offset64)); }
    __device__ Number of(signed char x) const { return narrow((float)x); }
    __device__ Number of(u8 x) const { return narrow((float)x); }
    __device__ Number of(short x) const { return narrow((float)x); }
    __device__ Number of(u16 x) const { return narrow((float)x); }
    __device__ Number of(int x) const { return wide((double)x); }
    __device__ Number of(u32 x) const { return wide((double)x); }
    __device__ Number of(long long x) const { return wide((double)x); }
    __device__ Number of(Float16 x) const {
        u32 bits = x.bits;
        // Multiplies by 2^112, the difference between the exponent offsets. Exact for denormal numbers too.
        u32 magnitude = __float_as_uint(__fmul_rn(__uint_as_float((bits & 0x7fffu) << 13), __uint_as_float(239u << 23)));
        u32 special = (bits & 0x7c00u) == 0x7c00u ? 0x7f800000u : 0u;
        return of(__uint_as_float((bits & 0x8000u) << 16 | special | magnitude));
    }
    __device__ Number of(Bfloat16 x) const { return of(__uint_as_float((u32)x.bits << 16)); }
    // Return a NaN unchanged. Arithmetic might not keep its sign and payload.
    __device__ Number of(float x) const {
        return x == x ? narrow(x) : T::of(__uint_as_float(__float_as_uint(x) | 0x00400000u));
    }
    __device__ Number of(double x) const {
        u64 bits = (u64)__double_as_longlong(x);
        u32 nan = (u32)(bits >> 32 & 0x80000000u) | 0x7fc00000u | (u32)(bits >> 29 & 0x003fffffu);
        return x == x ? wide(x) : T::of(__uint_as_float(nan));
    }
};

template <class N> struct alignas(4 * sizeof(N) > 16 ? 16 : 4 * sizeof(N)) Four {
    N x[4];
};

// Numbers of whole bytes. Slots are aligned to 64 bytes, so vector loads of four numbers are aligned.
template <class N> struct Whole {
    const N* from;

    __device__ Whole(const u8* from, u32) : from((const N*)from) {}
    __device__ N at(u64 i) const { return from[i]; }
    __device__ Four<N> four(u64 i) const { return ((const Four<N>*)from)[i]; }
};

__device__ inline u16 swap_bytes(u16 x) { return (u16)__byte_perm(x, 0, 0x4401); }
__device__ inline u32 swap_bytes(u32 x) { return __byte_perm(x, 0, 0x0123); }

// Big-endian numbers of the size of BITS.
template <class N, class BITS> struct BigEndian {
    Whole<BITS> source;

    __device__ BigEndian(const u8* from, u32 sign) : source(from, sign) {}
    __device__ static N number(BITS x) {
        x = swap_bytes(x);
        return *(const N*)&x;
    }
    __device__ N at(u64 i) const { return number(source.at(i)); }
    __device__ Four<N> four(u64 i) const {
        Four<BITS> x = source.four(i);
        return {number(x.x[0]), number(x.x[1]), number(x.x[2]), number(x.x[3])};
    }
};

typedef BigEndian<short, u16> Int16Be;
typedef BigEndian<u16, u16> Uint16Be;
typedef BigEndian<int, u32> Int32Be;
typedef BigEndian<u32, u32> Uint32Be;
typedef BigEndian<float, u32> Float32Be;

// Packed numbers of BITS bits, with the first number in the low bits or, if MSB, in the high bits. `sign` is the sign bit
// of signed numbers, otherwise 0.
template <u32 BITS, bool MSB> struct Packed {
    const u8* from;
    u32 sign;

    __device__ Packed(const u8* from, u32 sign) : from(from), sign(sign) {}

    __device__ short number(u32 bits) const { return (short)(((bits & ((1u << BITS) - 1)) ^ sign) - sign); }

    // A number of 4 bits is in one byte, other numbers are in two.
    __device__ short at(u64 i) const {
        const u8* bytes = from + i * BITS / 8;
        u32 offset = (u32)(i * BITS % 8);
        if (BITS == 4) return number(bytes[0] >> (MSB ? 4 - offset : offset));
        if (MSB) return number(((u32)bytes[0] << 8 | bytes[1]) >> (16 - BITS - offset));
        return number((bytes[0] | (u32)bytes[1] << 8) >> offset);
    }

    // Four numbers fill whole bytes, which are in one aligned word (4 bits) or in two. Neighbouring threads read
    // neighbouring words. Only words that contain bytes of these numbers are read.
    __device__ Four<short> four(u64 i) const {
        u64 byte = i * (BITS / 2);
        u32 offset = (u32)byte % 4;
        const u32* words = (const u32*)(from + (byte - offset));
        u32 low = words[0], high = BITS == 4 ? 0 : words[1];
        // The selectors move the first byte to the lowest or, if MSB, to the highest place.
        u32 order = (MSB ? 0x0123u : 0x3210u) + offset * 0x1111u;
        u32 first = __byte_perm(low, high, order), second = __byte_perm(low, high, order + 0x4444u);
        u64 all = MSB ? (u64)first << 32 | second : (u64)second << 32 | first;
        Four<short> numbers;
        for (u32 k = 0; k < 4; k++) numbers.x[k] = number((u32)(all >> (MSB ? 64 - BITS * (k + 1) : BITS * k)));
        return numbers;
    }
};

typedef Packed<4, false> Packed4;
typedef Packed<10, false> Packed10;
typedef Packed<12, false> Packed12;
typedef Packed<4, true> Packed4Msb;
typedef Packed<10, true> Packed10Msb;
typedef Packed<12, true> Packed12Msb;

// Calls CALL(S) with the class that reads numbers of the type.
#define FOR_ANY_TYPE(scalar, CALL)               \
    switch (scalar) {                            \
    case INT8: CALL(Whole<signed char>); break;  \
    case UINT8: CALL(Whole<u8>); break;          \
    case INT16: CALL(Whole<short>); break;       \
    case UINT16: CALL(Whole<u16>); break;        \
    case INT32: CALL(Whole<int>); break;         \
    case FLOAT32: CALL(Whole<float>); break;     \
    case FLOAT64: CALL(Whole<double>); break;    \
    case UINT32: CALL(Whole<u32>); break;        \
    case INT64: CALL(Whole<long long>); break;   \
    case FLOAT16: CALL(Whole<Float16>); break;   \
    case BFLOAT16: CALL(Whole<Bfloat16>); break; \
    case PACKED4: CALL(Packed4); break;          \
    case PACKED10: CALL(Packed10); break;        \
    case PACKED12: CALL(Packed12); break;        \
    case PACKED4_MSB: CALL(Packed4Msb); break;   \
    case PACKED10_MSB: CALL(Packed10Msb); break; \
    case INT16_BE: CALL(Int16Be); break;         \
    case UINT16_BE: CALL(Uint16Be); break;       \
    case INT32_BE: CALL(Int32Be); break;         \
    case UINT32_BE: CALL(Uint32Be); break;       \
    case FLOAT32_BE: CALL(Float32Be); break;     \
    default: CALL(Packed12Msb); break;           \
    }

template <class T, class S> __device__ void straight(const S& source, u8* to, u64 numbers, const Line<T>& line) {
    typedef typename T::Number Number;
    Number* target = (Number*)to;
    u64 step = (u64)gridDim.x * blockDim.x;
    u64 first = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    u64 fours = numbers / 4;
#pragma unroll 4
    for (u64 i = first; i < fours; i += step) {
        auto x = source.four(i);
        Four<Number> y;
        for (int k = 0; k < 4; k++) y.x[k] = line.of(x.x[k]);
        ((Four<Number>*)target)[i] = y;
    }
    for (u64 i = fours * 4 + first; i < numbers; i += step) target[i] = line.of(source.at(i));
}

// Converts samples into the other order. `parts` is 2 for complex samples, otherwise 1. A tile consists of
// `tile_points` points of `wide` channels.
template <class T, class S>
__device__ void tiles(const S& source, u8* to, typename T::Number* tile, u64 points, u32 channels, u32 parts,
                      u32 tile_points, u32 wide, bool planar, const Line<T>& line) {
    typename T::Number* target = (typename T::Number*)to;
    u64 point = (u64)blockIdx.x * tile_points;
    u32 channel = blockIdx.z * wide;
    u32 across = channels - channel < wide ? channels - channel : wide;
    u32 along = points - point < tile_points ? (u32)(points - point) : tile_points;
    // The pitch is odd, so that the elements of a column are in different shared memory banks.
    u32 pitch = along * parts | 1;
    Divider rows(along * parts), columns(across * parts);
    for (u32 i = threadIdx.x; i < along * across * parts; i += blockDim.x) {
        u32 c, k;
        u64 at;
        if (planar) {
            u32 p = columns.of(i), rest = i - p * columns.by;
            c = rest / parts;
            k = p * parts + rest % parts;
            at = ((point + p) * channels + channel) * parts + rest;
        } else {
            c = rows.of(i);
            k = i - c * rows.by;
            at = ((channel + c) * points + point) * parts + k;
        }
        tile[c * pitch + k] = line.of(source.at(at));
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < along * across * parts; i += blockDim.x) {
        if (planar) {
            u32 c = rows.of(i), k = i - c * rows.by;
            target[((channel + c) * points + point) * parts + k] = tile[c * pitch + k];
        } else {
            u32 p = columns.of(i), rest = i - p * columns.by;
            target[((point + p) * channels + channel) * parts + rest] =
                tile[rest / parts * pitch + p * parts + rest % parts];
        }
    }
}

template <class T> __device__ void run_straight(const Conversion& p) {
    const u8* from = frame_of(p.from, blockIdx.y);
    u8* to = frame_of(p.to, blockIdx.y);
    u64 numbers = p.points * p.channels * p.parts;
    Line<T> line(p.factor, p.offset);
#define STRAIGHT(S) straight(S(from, p.sign), to, numbers, line)
    FOR_ANY_TYPE(p.scalar, STRAIGHT)
}

template <class T> __device__ void run_tiles(const Conversion& p, typename T::Number* tile) {
    const u8* from = frame_of(p.from, blockIdx.y);
    u8* to = frame_of(p.to, blockIdx.y);
    Line<T> line(p.factor, p.offset);
#define TILES(S)                                                                                                  \
    tiles(S(from, p.sign), to, tile, p.points, p.channels, p.parts, p.tile_points, p.wide, p.planar != 0, line)
    FOR_ANY_TYPE(p.scalar, TILES)
}

// The pitch adds at most one element per row, and a tile has at most 32 rows.
constexpr u32 TILE_NUMBERS = TILE * 2 + 32;

// blocks: x is the part of a frame, y the frame
extern "C" __global__ void __launch_bounds__(256) convert_straight(CONVERSION_PARAMETERS) {
    const Conversion p = CONVERSION_GIVEN;
    run_straight<ToFloat32>(p);
}

extern "C" __global__ void __launch_bounds__(256) convert_straight_int16(CONVERSION_PARAMETERS) {
    const Conversion p = CONVERSION_GIVEN;
    run_straight<ToInt16>(p);
}

// blocks: x is the range of points, y the frame, z the range of channels
extern "C" __global__ void __launch_bounds__(256) convert_tiles(CONVERSION_PARAMETERS) {
    const Conversion p = CONVERSION_GIVEN;
    __shared__ float tile[TILE_NUMBERS];
    run_tiles<ToFloat32>(p, tile);
}

extern "C" __global__ void __launch_bounds__(256) convert_tiles_int16(CONVERSION_PARAMETERS) {
    const Conversion p = CONVERSION_GIVEN;
    __shared__ short tile[TILE_NUMBERS];
    run_tiles<ToInt16>(p, tile);
}
