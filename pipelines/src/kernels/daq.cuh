// daq.cuh: what a kernel of your own sees of daq. This file is the whole interface.
//
//   [kernel.clip]
//   file   = "clip.cu"
//   input  = "raw"
//   output = "clean"
//   params = { gain = 2.5, taps = [1, 2, 1, 0] }      # members of your struct Params
//   frame  = { type = "float32" }                     # what an output frame means; the rest as in the input
//
//   // clip.cu
//   struct Params {
//       float gain = 1;                               // what the configuration does not name keeps its default
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
// on_frame is called once for every frame, by all threads of all blocks of that frame: `blocks` blocks of `threads`
// threads, as the configuration declares them. Each input frame gives one output frame of the declared length, which
// keeps the sequence number, timestamp and flags of the input.
//
// With dispatch = "persistent" the kernel is not launched for each burst: it stays on the GPU and waits for frames, so
// that a frame is worked on about two microseconds after it came. The function is the same, and so are its results.
// `teams` frames are worked on at a time, each by `blocks` blocks, and all of these must fit on the GPU together.
//
// What holds
// - Which part is this thread's is told by `in` (index and stride, or block and thread), never by blockIdx and gridDim:
//   how frames lie in the grid is daq's business, and may change.
// - Blocks may meet at nothing: __syncthreads() and what it is made of are allowed, synchronisation of the whole grid
//   is not, nor are launches from the device. Blocks run in any order; frames run side by side.
// - Nothing may be kept from one call to the next: no static or global variable is written.
// - The output slot holds anything before: write every byte of it. The input is read only.
// - A kernel that stays finds other frames at the same addresses: read the input by plain loads, not by __ldg nor
//   through pointers that are both const and __restrict__, which may give what was there before.
// - A kernel that stays and is done with no frame for 5 s, although it has some, is taken for one that hangs: the
//   pipeline ends.
// - Both are aligned to 64 bytes. Missing packets were filled before, as the ring's `fill` says.
// - Frames shorter than the input's declared length are never seen here; daq counts them as failed.
// - Without parameters, take `const daq::NoParams&`.
//
// daq compiles a .cu file itself, with this header included already; other headers are found beside the file.
// DAQ_THREADS is the declared number of threads of a block, so that arrays in shared memory can be sized by it;
// dynamic shared memory (extern __shared__ ...) has the bytes declared as `shared`.
//
// To compile it yourself, name function and members at the end of the file (daq ignores these lines when it compiles
// the file, where the function must be on_frame and the struct Params):
//
//   #include "daq.cuh"
//   ...
//   DAQ_KERNEL(on_frame, Params)
//   DAQ_PARAM(Params, gain)
//   DAQ_PARAM(Params, taps)
//
//   daq reference kernel-header > daq.cuh
//   nvcc -std=c++17 -cubin -arch=sm_90 clip.cu        # for this architecture, or
//   nvcc -std=c++17 -ptx -arch=compute_80 clip.cu     # for it and newer ones; then file = "clip.ptx"
//
// Needs C++17.

#ifndef DAQ_CUH
#define DAQ_CUH

// Threads of a block; where nobody declares them, the most that there can be.
#ifndef DAQ_THREADS
#define DAQ_THREADS 1024
#endif

namespace daq {

using Size = unsigned long long;

// Flags of a frame, as bits.
enum Flags : unsigned {
    INCOMPLETE = 1,  // at least one place was missing and is filled
    EPOCH = 2,       // the first frame of an epoch: what came before is not continuous with it
    TRUNCATED = 4,   // the stream ended, or began, inside this frame
    SUSPECT = 8,     // payload whose check failed at the source is inside
};

// Who told a frame's time.
enum class Clock : unsigned {
    none = 0,
    host = 1,       // the host's UTC when daq handled the frame
    kernel = 2,     // the host's UTC when the operating system received its first packet
    sensor = 3,     // the sensor's own count
    simulated = 4,  // the nominal time of the first sample
    recorded = 5,   // taken from a recording
    sensor_utc = 6, // the sensor's own count, from a declared origin in UTC
};

// For kernels without parameters.
struct NoParams {};

namespace detail {

// A burst, as the host describes it.
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

// Words of a record before its bitmap: sequence, timestamp, epoch and flags, places and arrived, clock.
enum : unsigned { RECORD_WORDS = 5 };

// Bytes from the first slot of a ring to frame `i` of a burst that begins at slot `first`.
__device__ inline Size slot(Size stride, Size slots, Size first, unsigned i) {
    const Size at = first + i;
    return (at < slots ? at : at - slots) * stride;
}

}  // namespace detail

// One input frame, and which part of the work is this thread's.
class Frame {
  public:
    const Size length;        // bytes of payload
    const unsigned channels;  // as the input's layout says
    const Size points;        // of each channel

    const unsigned block = blockIdx.x;     // this block among those of the frame
    const unsigned blocks = gridDim.x;     // blocks of the frame
    const unsigned thread = threadIdx.x;   // this thread in its block
    const unsigned threads = blockDim.x;   // threads of a block

    // The payload as numbers of type T.
    template <class T>
    __device__ const T* as() const {
        return reinterpret_cast<const T*>(payload_);
    }

    // Numbers of type T in the payload.
    template <class T>
    __device__ Size count() const {
        return length / sizeof(T);
    }

    // This thread among all threads of the frame, and their number: for loops over the payload.
    __device__ Size index() const { return static_cast<Size>(block) * threads + thread; }
    __device__ Size stride() const { return static_cast<Size>(blocks) * threads; }

    // What is known of the frame. It is read from the host's memory when it is asked for, which takes about a
    // microsecond: ask outside of loops. A kernel that a device rings is told number and epoch alone: it may be at work
    // before the host knows of the frame.
    __device__ Size sequence() const { return record_[0]; }
    __device__ Size timestamp() const { return record_[1]; }  // nanoseconds since the clock's epoch
    __device__ Clock clock() const { return static_cast<Clock>(record_[4]); }
    __device__ unsigned epoch() const { return static_cast<unsigned>(record_[2]); }
    __device__ unsigned flags() const { return static_cast<unsigned>(record_[2] >> 32); }
    __device__ bool incomplete() const { return flags() & INCOMPLETE; }

    // Places (packets) that make up the frame, 0 where it has none; how many arrived; and whether place `i` did.
    __device__ unsigned places() const { return static_cast<unsigned>(record_[3]); }
    __device__ unsigned arrived() const { return static_cast<unsigned>(record_[3] >> 32); }
    __device__ bool present(unsigned i) const {
        const unsigned all = places();
        return all == 0 || (i < all && (record_[detail::RECORD_WORDS + i / 64] >> (i % 64) & 1));
    }

    // daq's own: frame `i` of a burst.
    __device__ Frame(const detail::Burst& burst, unsigned i)
        : length(burst.in_bytes),
          channels(static_cast<unsigned>(burst.in_channels)),
          points(burst.in_points),
          payload_(burst.input + detail::slot(burst.input_stride, burst.input_slots, burst.input_first, i)),
          record_(burst.records + i * burst.record_words) {}

  private:
    const unsigned char* const payload_;
    const Size* const record_;
};

// The output frame.
class Out {
  public:
    const Size capacity;      // bytes, all of which make the frame
    const unsigned channels;  // as the output's layout says
    const Size points;        // of each channel

    // The payload as numbers of type T.
    template <class T>
    __device__ T* as() const {
        return reinterpret_cast<T*>(payload_);
    }

    // Numbers of type T in the payload.
    template <class T>
    __device__ Size count() const {
        return capacity / sizeof(T);
    }

    // daq's own: output `i` of a burst.
    __device__ Out(const detail::Burst& burst, unsigned i)
        : capacity(burst.out_bytes),
          channels(static_cast<unsigned>(burst.out_channels)),
          points(burst.out_points),
          payload_(burst.output + detail::slot(burst.output_stride, burst.output_slots, burst.output_first, i)) {}

  private:
    unsigned char* const payload_;
};

// daq's own: how a kernel that stays on its GPU is told of frames, and tells that it is done with them.
namespace detail {

// The word that the host stores: frames posted so far, how often the shifts have changed, whether to stop.
enum : unsigned { GENERATION_BIT = 48, SHIFTS_WORD = 8 };
constexpr Size POSTED = (1ull << GENERATION_BIT) - 1, STOP = 1ull << 63;

// The word as it is now; what the host stored before it is there for all threads of the caller's warp.
__device__ inline Size load_bell(const Size* bell) {
#ifdef __CUDA_ARCH__
    Size value;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(bell) : "memory");
    return value;
#else
    return __atomic_load_n(bell, __ATOMIC_ACQUIRE);
#endif
}

// Where a device that writes frames by itself rings: the count of its transfers, which it stores as the last write of each,
// and two lines behind it the frames that had been posted when it began to count, all ones until then.
enum : unsigned { BASE_WORD = 8, RUNG = 0xffffff };  // the bits of the count

// The count as it is now; what the device wrote before it is there for all threads of the caller's warp.
__device__ inline unsigned load_count(const Size* rung) {
#ifdef __CUDA_ARCH__
    unsigned value;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(rung) : "memory");
    return value;
#else
    return __atomic_load_n(reinterpret_cast<const unsigned*>(rung), __ATOMIC_ACQUIRE);
#endif
}

// Says in the host's memory that everything before is done. What was written lies in the GPU's memory, where whoever
// the host tells of it reads it (copies and kernels that begin after this was seen): it must have arrived there, not at
// the host, which a fence for the whole system would wait for as well, half a microsecond over the bus.
__device__ inline void store_credit(Size* credit, Size value) {
#ifdef __CUDA_ARCH__
    asm volatile("fence.acq_rel.gpu;\n\tst.relaxed.sys.global.u64 [%0], %1;" : : "l"(credit), "l"(value) : "memory");
#else
    __atomic_store_n(credit, value, __ATOMIC_RELEASE);
#endif
}

// Brings the threads of a warp together.
__device__ inline void together() {
#ifdef __CUDA_ARCH__
    __syncwarp();
#endif
}

// Frames as they are posted, those of one team: the blocks that work on the same frames.
struct Post {
    const Size* const bell;
    const Size* const rung;  // what a device rings; null where the host alone does
    Size* const credit;      // of this block
    const Size* const records;
    const Size last_record;
    const Size teams;
    Burst burst;             // of one frame: the team's next
    Size next;               // its number, counted from the kernel's start
    Size done;               // the team's frames before it
    Size seen, generation;   // the word of the host, and the shifts that are in use

    __device__ Post(const Size* bell_word, const Size* rung_word, Size* credits, const Burst& rings, Size record_count)
        : bell(bell_word),
          rung(rung_word),
          credit(credits + static_cast<Size>(blockIdx.y) * gridDim.x + blockIdx.x),
          records(rings.records),
          last_record(record_count - 1),
          teams(gridDim.y),
          burst(rings),
          next(blockIdx.y),
          done(0),
          seen(0),
          generation(~0ull) {}

    __device__ bool is_posted() const { return next < (seen & POSTED); }

    // Whether the device has written the team's next frame: its count is ahead of the frames before.
    __device__ bool is_rung() const {
        if (rung == nullptr) return false;
        const Size base = load_bell(rung + BASE_WORD);
        if (base == ~0ull) return false;
        const unsigned ahead = (load_count(rung) - static_cast<unsigned>(next - base)) & RUNG;
        // Never more than the device's ring holds.
        return ahead != 0 && ahead <= burst.input_slots;
    }

    // Waits for the team's next frame; false where there will be none. Each warp looks for itself, which saves a
    // barrier between the host's store and the first byte that is read.
    __device__ bool wait() {
        if (!is_posted()) {
            for (;;) {
                seen = load_bell(bell);
                if (is_posted()) break;
                if (seen & STOP) return false;
                if (is_rung()) break;
            }
        }
        // Threads of a warp may have seen it one look apart.
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

    // The frame in hand is done by this thread. Once all threads of the block are there the host is told: after the
    // last of the frames that are known to be posted, and after every eighth.
    __device__ void finish() {
        ++done;
        next += teams;
        __syncthreads();
        if (threadIdx.x == 0 && (!is_posted() || done % 8 == 0)) store_credit(credit, done);
        burst.input_first = after(burst.input_first, burst.input_slots);
        burst.output_first = after(burst.output_first, burst.output_slots);
        burst.records = records + (next & last_record) * burst.record_words;
    }

    // The slot that the team takes after `slot`.
    __device__ Size after(Size slot, Size slots) const {
        slot += teams;
        return slot < slots ? slot : slot % slots;
    }
};

}  // namespace detail

// What the host must know of a member of Params to set it.
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

// A pointer to a member is its offset in bytes.
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

// daq's own: the parameters, a member's description, the entry.
#define DAQ_DETAIL_PARAMS(PARAMS)                                                                                     \
    static_assert(sizeof(PARAMS) <= 61440, "Params has more than the 60 KiB that it may have");                       \
    extern "C" {                                                                                                      \
    __constant__ PARAMS daq_params = PARAMS{};                                                                        \
    __constant__ unsigned daq_header = 1;                                                                             \
    }
#define DAQ_DETAIL_PARAM(PARAMS, MEMBER)                                                                              \
    extern "C" {                                                                                                      \
    __constant__ auto daq_param_##MEMBER = daq::detail::member<PARAMS>(&PARAMS::MEMBER);                              \
    }
#define DAQ_DETAIL_ENTRY(NAME, FUNCTION)                                                                              \
    extern "C" __global__ void __launch_bounds__(DAQ_THREADS) NAME(                                                   \
        const unsigned char* input, daq::Size input_stride, daq::Size input_slots, daq::Size input_first,             \
        unsigned char* output, daq::Size output_stride, daq::Size output_slots, daq::Size output_first,               \
        const daq::Size* records, daq::Size record_words, daq::Size in_bytes, daq::Size in_channels,                  \
        daq::Size in_points, daq::Size out_bytes, daq::Size out_channels, daq::Size out_points) {                     \
        const daq::detail::Burst burst = {input, input_stride, input_slots, input_first,                              \
                                          output, output_stride, output_slots, output_first,                          \
                                          records, record_words, in_bytes, in_channels,                               \
                                          in_points, out_bytes, out_channels, out_points};                            \
        const daq::Frame in(burst, blockIdx.y);                                                                       \
        daq::Out out(burst, blockIdx.y);                                                                              \
        FUNCTION(in, out, daq_params);                                                                                \
    }

#define DAQ_DETAIL_RESIDENT(NAME, FUNCTION)                                                                           \
    extern "C" __global__ void __launch_bounds__(DAQ_THREADS) NAME(                                                   \
        const daq::Size* bell, const daq::Size* rung, daq::Size* credits, const unsigned char* input,                 \
        daq::Size input_stride, daq::Size input_slots, unsigned char* output, daq::Size output_stride, daq::Size output_slots,                \
        const daq::Size* records, daq::Size record_words, daq::Size record_count, daq::Size in_bytes,                 \
        daq::Size in_channels, daq::Size in_points, daq::Size out_bytes, daq::Size out_channels,                      \
        daq::Size out_points) {                                                                                       \
        const daq::detail::Burst rings = {input, input_stride, input_slots, 0,                                        \
                                          output, output_stride, output_slots, 0,                                     \
                                          records, record_words, in_bytes, in_channels,                               \
                                          in_points, out_bytes, out_channels, out_points};                            \
        daq::detail::Post post(bell, rung, credits, rings, record_count);                                             \
        while (post.wait()) {                                                                                         \
            const daq::Frame in(post.burst, 0);                                                                       \
            daq::Out out(post.burst, 0);                                                                              \
            FUNCTION(in, out, daq_params);                                                                            \
            post.finish();                                                                                            \
        }                                                                                                             \
    }

#ifdef DAQ_UNIT
#define DAQ_KERNEL(FUNCTION, PARAMS)
#define DAQ_ENTRY(NAME, FUNCTION)
#define DAQ_PARAM(PARAMS, MEMBER)
#else
// Makes FUNCTION the kernel of a file that is compiled outside of daq, with parameters of type PARAMS.
#define DAQ_KERNEL(FUNCTION, PARAMS) DAQ_DETAIL_PARAMS(PARAMS) DAQ_DETAIL_ENTRY(daq_burst, FUNCTION)
// A further kernel of the same file and parameters, which `entry = "NAME"` in the configuration chooses.
#define DAQ_ENTRY(NAME, FUNCTION) DAQ_DETAIL_ENTRY(NAME, FUNCTION)
// Lets the configuration set MEMBER.
#define DAQ_PARAM(PARAMS, MEMBER) DAQ_DETAIL_PARAM(PARAMS, MEMBER)
#endif

#endif
