// daq.cuh: the interface between daq and a kernel of your own. This file is the whole interface.
//
//   [kernel.clip]
//   file   = "clip.cu"
//   input  = "raw"
//   output = "clean"
//   params = { gain = 2.5, taps = [1, 2, 1, 0] }      # members of your struct Params
//   frame  = { type = "float32" }                     # format of an output frame; other keys as in the input
//
//   // clip.cu
//   struct Params {
//       float gain = 1;                               // members that the configuration does not set keep these defaults
//       int taps[4] = {1, 0, 0, 0};
//   };
//
//   __device__ void on_frame(const daq::Frame& in, daq::Out& out, const Params& p) {
//       const short* x = in.as<const short>();
//       float* y = out.as<float>();
//       for (daq::Size i = in.index(); i < in.count<short>(); i += in.stride())
//           y[i] = p.gain * x[i];
//   }
//
// daq calls on_frame once for every frame, in all threads of all blocks of that frame. The configuration declares the
// number of blocks (`blocks`) and the number of threads per block (`threads`). Each input frame gives one output frame
// of the declared length. The output frame has the sequence number, timestamp and flags of the input frame.
//
// With dispatch = "persistent", daq does not launch the kernel for each burst. The kernel runs on the GPU for the whole
// run and waits for frames. It starts work on a frame about two microseconds after the frame is committed. The function
// and its results are the same. The kernel processes `concurrent_frames` frames at a time, each with `blocks` blocks.
// All these blocks must fit on the GPU at the same time.
//
// Rules
// - Get this thread's part of the work from `in` (index and stride, or block and thread), never from blockIdx and
//   gridDim. The mapping of frames to the grid is internal to daq and may change.
// - Blocks must not synchronise with each other. __syncthreads() and warp-level functions are allowed. Synchronisation
//   of the whole grid and launches from the device are not allowed. Blocks run in any order, and frames run
//   concurrently.
// - Do not keep state between calls: do not write static or global variables.
// - The output slot initially contains undefined data, so write every byte of it. The input is read-only.
// - A persistent kernel reads new frames at the same addresses. Read the input with plain loads. Do not use __ldg or
//   pointers that are both const and __restrict__, because these may return stale data.
// - If a persistent kernel has frames but finishes none of them for 5 s, daq assumes that the kernel hangs and ends the
//   pipeline.
// - Input and output are aligned to 64 bytes. daq fills missing packets first, as the key `fill` of the ring declares.
// - on_frame is not called for frames shorter than the declared length of the input; daq counts them as failed.
// - Without parameters, declare the third argument as `const daq::NoParams&`.
//
// daq compiles a .cu file itself and includes this header. It finds other headers in the directory of the file.
// DAQ_THREADS is the declared number of threads per block; use it as the size of arrays in shared memory. The
// configuration declares the size of dynamic shared memory (extern __shared__ ...) as `shared`.
//
// To compile the file yourself, name the function and the members at the end of the file. daq ignores these lines when
// it compiles the file itself; then the function must be called on_frame and the struct must be called Params.
//
//   #include "daq.cuh"
//   ...
//   DAQ_KERNEL(on_frame, Params)
//   DAQ_PARAM(Params, gain)
//   DAQ_PARAM(Params, taps)
//
//   daq reference kernel-header > daq.cuh
//   nvcc -std=c++17 -cubin -arch=sm_90 clip.cu        # for one architecture, or
//   nvcc -std=c++17 -ptx -arch=compute_80 clip.cu     # for this one and newer; then file = "clip.ptx"
//
// The header needs C++17.

#ifndef DAQ_CUH
#define DAQ_CUH

// Number of threads per block. The default is the maximum.
#ifndef DAQ_THREADS
#define DAQ_THREADS 1024
#endif

namespace daq {

using Size = unsigned long long;

// Flags of a frame, one bit each.
enum Flags : unsigned {
    INCOMPLETE = 1,  // at least one packet was missing and was filled
    EPOCH = 2,       // first frame of an epoch: the stream is not continuous with earlier frames
    TRUNCATED = 4,   // the stream started or ended inside this frame
    SUSPECT = 8,     // contains payload whose checksum failed at the source
};

// The clock of a frame's timestamp.
enum class Clock : unsigned {
    none = 0,
    host = 1,       // UTC of the host when daq processed the frame
    kernel = 2,     // UTC of the host when Linux received the frame's first packet
    sensor = 3,     // counter of the sensor
    simulated = 4,  // nominal time of the first sample
    recorded = 5,   // from a recording, not known to be UTC
    sensor_utc = 6, // counter of the sensor, with a declared origin in UTC
    hardware = 7,   // PTP clock of the network card (usually TAI) when the card received the frame's first packet
    recorded_utc = 8, // UTC from a recording
};

// Parameter type of a kernel without parameters.
struct NoParams {};

namespace detail {

// A burst of frames. The host fills this structure.
struct Burst {
    const unsigned char* input;
    Size input_stride, input_slots, input_first;
    unsigned char* output;
    Size output_stride, output_slots, output_first;
    const Size* records;
    Size record_words;
    Size in_bytes, in_channels, in_points;
    Size out_bytes, out_channels, out_points;
};

// Number of words in a record before its bitmap. The words are: sequence; timestamp; epoch and flags; packets per frame
// and arrived packets; clock in 32 bits, mask of the kept fields in 8 bits, index of the word of field 0 in 24 bits.
enum : unsigned { RECORD_WORDS = 5 };

// Offset in bytes, from the start of a ring, of frame `i` of a burst that begins at slot `first`.
__device__ inline Size slot(Size stride, Size slots, Size first, unsigned i) {
    const Size at = first + i;
    return (at < slots ? at : at - slots) * stride;
}

}  // namespace detail

// One input frame, and the part of the work of this thread.
class Frame {
  public:
    const Size length;        // payload in bytes
    const unsigned channels;  // number of channels in the layout of the input
    const Size points;        // number of points per channel

    // A kernel that reads a ring spread over several GPUs runs on each of them. Each GPU gets its share: whole frames in
    // turn, or the same channels or points of each frame. `channels` and `points` are those of the share.
    const unsigned share;          // number of this GPU's share, below `shares`
    const unsigned shares;         // number of shares; 1 if the ring is not spread
    const unsigned first_channel;  // channel 0 of the share in the whole frame
    const Size first_point;        // point 0 of the share in the whole frame

    const unsigned block = blockIdx.x;     // index of this block within the frame
    const unsigned blocks = gridDim.x;     // number of blocks of the frame
    const unsigned thread = threadIdx.x;   // index of this thread within its block
    const unsigned threads = blockDim.x;   // number of threads per block

    // Returns the payload as numbers of type T.
    template <class T>
    __device__ const T* as() const {
        return reinterpret_cast<const T*>(payload_);
    }

    // Returns how many numbers of type T the payload contains.
    template <class T>
    __device__ Size count() const {
        return length / sizeof(T);
    }

    // Index of this thread among all threads of the frame, and the number of these threads. Use both in loops over the
    // payload.
    __device__ Size index() const { return static_cast<Size>(block) * threads + thread; }
    __device__ Size stride() const { return static_cast<Size>(blocks) * threads; }

    // Metadata of the frame. Each call reads host memory, which takes about one microsecond, so call these functions
    // outside of loops. With doorbell = "device", only the sequence number and the epoch are valid, because the kernel
    // may work on a frame before the host has its metadata.
    __device__ Size sequence() const { return record_[0]; }
    __device__ Size timestamp() const { return record_[1]; }  // nanoseconds since the clock's epoch
    __device__ Clock clock() const { return static_cast<Clock>(record_[4]); }
    __device__ unsigned epoch() const { return static_cast<unsigned>(record_[2]); }
    __device__ unsigned flags() const { return static_cast<unsigned>(record_[2] >> 32); }
    __device__ bool incomplete() const { return flags() & INCOMPLETE; }

    // Returns the number of packets in a complete frame (0 if the source has no packets), the number of packets that
    // arrived, and whether packet `i` arrived.
    __device__ unsigned packets_per_frame() const { return static_cast<unsigned>(record_[3]); }
    __device__ unsigned arrived() const { return static_cast<unsigned>(record_[3] >> 32); }
    __device__ bool present(unsigned i) const {
        const unsigned all = packets_per_frame();
        return all == 0 || (i < all && (record_[detail::RECORD_WORDS + i / 64] >> (i % 64) & 1));
    }

    // Returns whether the frame has kept field `i`, and the value of the field (0 if the frame does not have it). Field `i`
    // is entry `i` of the list `keep` in the format of the source, counted from 0.
    __device__ bool has_field(unsigned i) const { return i < 8 && (record_[4] >> (32 + i) & 1); }
    __device__ Size field(unsigned i) const { return has_field(i) ? record_[(record_[4] >> 40) + i] : 0; }

    // Internal: creates frame `i` of a burst.
    __device__ Frame(const detail::Burst& burst, unsigned i)
        : length(burst.in_bytes),
          channels(static_cast<unsigned>(burst.in_channels)),
          points(burst.in_points),
          share(static_cast<unsigned>(burst.in_channels >> 32) & 0x3fff),
          shares(static_cast<unsigned>(burst.in_channels >> 46) & 0x3fff),
          first_channel(burst.in_channels >> 60 == 1 ? share * channels : 0),
          first_point(burst.in_channels >> 60 == 2 ? share * points : 0),
          payload_(burst.input + detail::slot(burst.input_stride, burst.input_slots, burst.input_first, i)),
          record_(burst.records + i * burst.record_words) {}

  private:
    const unsigned char* const payload_;
    const Size* const record_;
};

// One output frame.
class Out {
  public:
    const Size capacity;      // size of the frame in bytes
    const unsigned channels;  // number of channels in the layout of the output
    const Size points;        // number of points per channel

    // Returns the payload as numbers of type T.
    template <class T>
    __device__ T* as() const {
        return reinterpret_cast<T*>(payload_);
    }

    // Returns how many numbers of type T the payload can contain.
    template <class T>
    __device__ Size count() const {
        return capacity / sizeof(T);
    }

    // Internal: creates output `i` of a burst.
    __device__ Out(const detail::Burst& burst, unsigned i)
        : capacity(burst.out_bytes),
          channels(static_cast<unsigned>(burst.out_channels)),
          points(burst.out_points),
          payload_(burst.output + detail::slot(burst.output_stride, burst.output_slots, burst.output_first, i)) {}

  private:
    unsigned char* const payload_;
};

// Internal: how a persistent kernel receives frames and returns credits.
namespace detail {

// The doorbell word that the host stores contains the number of frames submitted so far, the generation of the shifts
// and a stop bit.
enum : unsigned { GENERATION_BIT = 48, SHIFTS_WORD = 8 };
constexpr Size SUBMITTED = (1ull << GENERATION_BIT) - 1, STOP = 1ull << 63;

// Returns the doorbell word. Everything that the host stored before the word is visible to all threads of the caller's
// warp.
__device__ inline Size load_bell(const Size* bell) {
#ifdef __CUDA_ARCH__
    Size value;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(bell) : "memory");
    return value;
#else
    return __atomic_load_n(bell, __ATOMIC_ACQUIRE);
#endif
}

// The doorbell of a device that writes frames itself: the number of its transfers. The device stores this number as the
// last write of each transfer. The word at BASE_WORD is the number of frames submitted when the device started to
// count; before that, all its bits are ones.
enum : unsigned { BASE_WORD = 8, RUNG = 0xffffff };  // RUNG: mask of the number's bits

// Returns the number of transfers. Everything that the device wrote before this number is visible to all threads of the
// caller's warp.
__device__ inline unsigned load_count(const Size* rung) {
#ifdef __CUDA_ARCH__
    unsigned value;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(rung) : "memory");
    return value;
#else
    return __atomic_load_n(reinterpret_cast<const unsigned*>(rung), __ATOMIC_ACQUIRE);
#endif
}

// Stores a credit in host memory, which reports that all earlier work is complete. The results remain in GPU memory,
// where copies and kernels that start after the host has seen the credit read them. Therefore a GPU-wide fence is
// sufficient. A system-wide fence would also wait until the host can see the results, which takes half a microsecond
// over the bus.
__device__ inline void store_credit(Size* credit, Size value) {
#ifdef __CUDA_ARCH__
    asm volatile("fence.acq_rel.gpu;\n\tst.relaxed.sys.global.u64 [%0], %1;" : : "l"(credit), "l"(value) : "memory");
#else
    __atomic_store_n(credit, value, __ATOMIC_RELEASE);
#endif
}

// Synchronises the threads of a warp.
__device__ inline void together() {
#ifdef __CUDA_ARCH__
    __syncwarp();
#endif
}

// The submitted frames of one group of blocks. The blocks of a group work on the same frames.
struct Submissions {
    const Size* const bell;
    const Size* const rung;  // doorbell of a device; null if only the host rings
    Size* const credit;      // credit of this block
    const Size* const records;
    const Size last_record;
    const Size groups;
    Burst burst;             // one frame: the next frame of the group
    Size next;               // number of that frame since the start of the kernel
    Size done;               // number of frames that the group has finished
    Size seen, generation;   // last doorbell word seen, and generation of the shifts in use

    __device__ Submissions(const Size* bell_word, const Size* rung_word, Size* credits, const Burst& rings,
                           Size record_count)
        : bell(bell_word),
          rung(rung_word),
          credit(credits + static_cast<Size>(blockIdx.y) * gridDim.x + blockIdx.x),
          records(rings.records),
          last_record(record_count - 1),
          groups(gridDim.y),
          burst(rings),
          next(blockIdx.y),
          done(0),
          seen(0),
          generation(~0ull) {}

    __device__ bool is_submitted() const { return next < (seen & SUBMITTED); }

    // Returns whether the device has written the group's next frame: the device has completed more transfers than there
    // are earlier frames.
    __device__ bool is_rung() const {
        if (rung == nullptr) return false;
        const Size base = load_bell(rung + BASE_WORD);
        if (base == ~0ull) return false;
        const unsigned ahead = (load_count(rung) - static_cast<unsigned>(next - base)) & RUNG;
        // A larger difference is stale, because the device is never further ahead than the number of slots of its ring.
        return ahead != 0 && ahead <= burst.input_slots;
    }

    // Waits for the group's next frame; returns false if the kernel must stop. Each warp polls the doorbell itself,
    // which saves a barrier between the host's store and the first read of the frame.
    __device__ bool wait() {
        if (!is_submitted()) {
            for (;;) {
                seen = load_bell(bell);
                if (is_submitted()) break;
                if (seen & STOP) return false;
                if (is_rung()) break;
            }
        }
        // The threads of a warp may see a new word in different iterations, so synchronise them.
        together();
        const Size now = (seen & ~STOP) >> GENERATION_BIT;
        if (now != generation) {
            generation = now;
            burst.input_first = (next + load_bell(bell + SHIFTS_WORD)) % burst.input_slots;
            burst.output_first = (next + load_bell(bell + SHIFTS_WORD + 1)) % burst.output_slots;
            burst.records = records + (next & last_record) * burst.record_words;
        }
        return true;
    }

    // Marks the current frame as finished by this thread. When all threads of the block have finished, stores the
    // credit if this is the last frame known to be submitted, and after every eighth frame.
    __device__ void finish() {
        ++done;
        next += groups;
        __syncthreads();
        if (threadIdx.x == 0 && (!is_submitted() || done % 8 == 0)) store_credit(credit, done);
        burst.input_first = after(burst.input_first, burst.input_slots);
        burst.output_first = after(burst.output_first, burst.output_slots);
        burst.records = records + (next & last_record) * burst.record_words;
    }

    // Returns the slot of the group's next frame after `slot`.
    __device__ Size after(Size slot, Size slots) const {
        slot += groups;
        return slot < slots ? slot : slot % slots;
    }
};

}  // namespace detail

// Description of a member of Params. The host uses it to set the member.
namespace detail {

template <class T> struct Kind { enum : unsigned { value = 0 }; };
template <> struct Kind<char> { enum : unsigned { value = static_cast<char>(-1) < 0 ? 1 : 2 }; };
template <> struct Kind<signed char> { enum : unsigned { value = 1 }; };
template <> struct Kind<short> { enum : unsigned { value = 1 }; };
template <> struct Kind<int> { enum : unsigned { value = 1 }; };
template <> struct Kind<long> { enum : unsigned { value = 1 }; };
template <> struct Kind<long long> { enum : unsigned { value = 1 }; };
template <> struct Kind<unsigned char> { enum : unsigned { value = 2 }; };
template <> struct Kind<unsigned short> { enum : unsigned { value = 2 }; };
template <> struct Kind<unsigned> { enum : unsigned { value = 2 }; };
template <> struct Kind<unsigned long> { enum : unsigned { value = 2 }; };
template <> struct Kind<unsigned long long> { enum : unsigned { value = 2 }; };
template <> struct Kind<float> { enum : unsigned { value = 3 }; };
template <> struct Kind<double> { enum : unsigned { value = 3 }; };
template <> struct Kind<bool> { enum : unsigned { value = 4 }; };

template <class T> struct Shape {
    enum : unsigned { bytes = sizeof(T), count = 0, kind = Kind<T>::value };
};
template <class T> struct Shape<const T> : Shape<T> {};
template <class T, decltype(sizeof(0)) N> struct Shape<T[N]> {
    enum : unsigned { bytes = sizeof(T), count = N, kind = Kind<T>::value };
};
template <class T, decltype(sizeof(0)) N> struct Shape<const T[N]> : Shape<T[N]> {};

// Computes the offset of a member in bytes, which a pointer to a member contains.
template <class P, class T> struct Member {
    T P::*offset;
    unsigned bytes, count, kind, reserved;
};
template <class P, class Base, class T> __host__ __device__ constexpr Member<P, T> member(T Base::*offset) {
    static_assert(sizeof(offset) == 8, "a pointer to a member is expected to have 8 bytes");
    return {offset, Shape<T>::bytes, Shape<T>::count, Shape<T>::kind, 0};
}

}  // namespace detail
}  // namespace daq

// Internal: defines the parameters, the description of a member, and the entry points.
#define DAQ_DETAIL_PARAMS(PARAMS)                                                                                     \
    static_assert(sizeof(PARAMS) <= 61440, "struct Params is larger than the limit of 60 KiB");                       \
    extern "C" {                                                                                                      \
    __constant__ PARAMS daq_params = PARAMS{};                                                                        \
    __constant__ unsigned daq_header = 2;                                                                             \
    }
#define DAQ_DETAIL_PARAM(PARAMS, MEMBER)                                                                              \
    extern "C" {                                                                                                      \
    __constant__ auto daq_param_##MEMBER = daq::detail::member<PARAMS>(&PARAMS::MEMBER);                              \
    }
#define DAQ_DETAIL_ENTRY(NAME, FUNCTION)                                                                              \
    /* Without words in records, the kernel has no work: the driver then only allocates the memory of the code. */     \
    extern "C" __global__ void __launch_bounds__(DAQ_THREADS) NAME(                                                   \
        const unsigned char* input, daq::Size input_stride, daq::Size input_slots, daq::Size input_first,             \
        unsigned char* output, daq::Size output_stride, daq::Size output_slots, daq::Size output_first,               \
        const daq::Size* records, daq::Size record_words, daq::Size in_bytes, daq::Size in_channels,                  \
        daq::Size in_points, daq::Size out_bytes, daq::Size out_channels, daq::Size out_points) {                     \
        if (record_words == 0) return;                                                                                \
        const daq::detail::Burst burst = {input, input_stride, input_slots, input_first,                              \
                                          output, output_stride, output_slots, output_first,                          \
                                          records, record_words, in_bytes, in_channels,                               \
                                          in_points, out_bytes, out_channels, out_points};                            \
        const daq::Frame in(burst, blockIdx.y);                                                                       \
        daq::Out out(burst, blockIdx.y);                                                                              \
        FUNCTION(in, out, daq_params);                                                                                \
    }

#define DAQ_DETAIL_PERSISTENT(NAME, FUNCTION)                                                                           \
    extern "C" __global__ void __launch_bounds__(DAQ_THREADS) NAME(                                                   \
        const daq::Size* bell, const daq::Size* rung, daq::Size* credits, const unsigned char* input,                 \
        daq::Size input_stride, daq::Size input_slots, unsigned char* output, daq::Size output_stride,                \
        daq::Size output_slots, const daq::Size* records, daq::Size record_words, daq::Size record_count,             \
        daq::Size in_bytes, daq::Size in_channels, daq::Size in_points, daq::Size out_bytes,                          \
        daq::Size out_channels, daq::Size out_points) {                                                               \
        const daq::detail::Burst rings = {input, input_stride, input_slots, 0,                                        \
                                          output, output_stride, output_slots, 0,                                     \
                                          records, record_words, in_bytes, in_channels,                               \
                                          in_points, out_bytes, out_channels, out_points};                            \
        daq::detail::Submissions submissions(bell, rung, credits, rings, record_count);                               \
        while (submissions.wait()) {                                                                                  \
            const daq::Frame in(submissions.burst, 0);                                                                \
            daq::Out out(submissions.burst, 0);                                                                       \
            FUNCTION(in, out, daq_params);                                                                            \
            submissions.finish();                                                                                     \
        }                                                                                                             \
    }

#ifdef DAQ_UNIT
#define DAQ_KERNEL(FUNCTION, PARAMS)
#define DAQ_ENTRY(NAME, FUNCTION)
#define DAQ_PARAM(PARAMS, MEMBER)
#else
// Makes FUNCTION the kernel of a file that is compiled outside of daq. PARAMS is the type of its parameters.
#define DAQ_KERNEL(FUNCTION, PARAMS) DAQ_DETAIL_PARAMS(PARAMS) DAQ_DETAIL_ENTRY(daq_burst, FUNCTION)
// Adds another kernel to the same file, with the same parameters. `entry = "NAME"` in the configuration selects it.
#define DAQ_ENTRY(NAME, FUNCTION) DAQ_DETAIL_ENTRY(NAME, FUNCTION)
// Makes MEMBER settable in the configuration.
#define DAQ_PARAM(PARAMS, MEMBER) DAQ_DETAIL_PARAM(PARAMS, MEMBER)
#endif

#endif
