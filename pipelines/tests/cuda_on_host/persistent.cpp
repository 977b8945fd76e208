// Runs a user kernel with both dispatch methods on the CPU, and checks that both give the same bytes. With dispatch
// "launch", the kernel runs once per burst. With dispatch "persistent", every block runs on its own CPU thread. Another
// thread has the role of the host: it submits frames, reads credits, changes shifts and stops the kernel.
//
// The host uses every freedom of the protocol: it overwrites an input as soon as the input's credits have arrived, and
// it checks the output immediately.
//
// With an odd seed, an emulated device also rings its doorbell, before the host submits the frames. The shifts then do
// not change.
//
//   persistent GROUPS BLOCKS THREADS INPUT_SLOTS OUTPUT_SLOTS RECORDS FRAMES SEED
//
// If SANITIZED is defined, blocks have one thread each, which is a plain CPU thread. ThreadSanitizer needs this.

#define BLOCKS_AT_ONCE
#include "block.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <sched.h>
#include <thread>
#include <unistd.h>

thread_local Dim threadIdx, blockIdx, blockDim, gridDim;

// Pseudo-random numbers that are reproducible for a seed (splitmix64).
struct Random {
    uint64_t state;
    uint64_t below(uint64_t end) {
        state += 0x9e3779b97f4a7c15;
        uint64_t z = state;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
        z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
        return (z ^ (z >> 31)) % end;
    }
};
static thread_local Random chance;

// Called when a thread polls a word. Randomly lets other threads run, so that the threads of a block diverge like
// warps.
static void look() {
    if (chance.below(2)) leave(State::ready);
#ifdef SANITIZED
    sched_yield();
#endif
}
#define __atomic_load_n(at, order) (look(), __atomic_load_n(at, order))
#include "unit.cu"
#undef __atomic_load_n

using daq::Size;

constexpr size_t GUARD = 256, BITMAP_WORDS = 2, RECORD_WORDS = 5 + BITMAP_WORDS, FREE = 0x5a, GONE = 0xe7;
constexpr uint64_t STOP = 1ull << 63;
constexpr unsigned GENERATION_BIT = 48;

// Memory surrounded by guard bytes.
struct Memory {
    std::vector<unsigned char> bytes;
    size_t length;
    explicit Memory(size_t length) : bytes(length + 2 * GUARD + 64, 0xa5), length(length) {}
    unsigned char* at() { return (unsigned char*)(((uintptr_t)bytes.data() + GUARD + 63) & ~(uintptr_t)63); }
    void check(const char* what) {
        for (unsigned char* byte = bytes.data(); byte < bytes.data() + bytes.size(); byte++) {
            if ((byte < at() || byte >= at() + length) && *byte != 0xa5) fail(what);
        }
    }
};

// The slots of one ring.
struct Slots {
    size_t count, stride, frame;
    Size shift = 0;
    Memory memory;
    Slots(size_t count, size_t frame) : count(count), stride(frame + 64), frame(frame), memory(count * stride) {}
    unsigned char* at(Size slot) { return memory.at() + slot % count * stride; }
};

constexpr size_t POINTS = 777, IN_BYTES = 2 * POINTS, OUT_POINTS = 1000, OUT_BYTES = 8 * OUT_POINTS;

static void make_input(unsigned char* to, Size frame) {
    Random random = {frame * 77 + 1};
    for (size_t i = 0; i < POINTS; i++) ((uint16_t*)to)[i] = (uint16_t)random.below(65536);
}

static void make_record(Size* to, Size frame) {
    const Size record[RECORD_WORDS] = {(1ull << 40) + frame,
                                       1700000000000000000ull + 5 * frame,
                                       3 | (frame % 3) << 32,
                                       70 | (70 - frame % 2) << 32,
                                       frame % 6,
                                       ~(frame % 2),
                                       0x3f};
    memcpy(to, record, sizeof record);
}

// Runs the kernel's blocks one after another for bursts of frames. Returns all outputs.
static std::vector<unsigned char> launched(unsigned blocks, unsigned threads, size_t frames) {
    constexpr size_t SLOTS = 5;
    Slots input(SLOTS, IN_BYTES), output(SLOTS, OUT_BYTES);
    std::vector<unsigned char> all;
    Size records[SLOTS * RECORD_WORDS];
    for (size_t first = 0; first < frames;) {
        size_t count = std::min(frames - first, (size_t)(1 + chance.below(SLOTS)));
        for (size_t i = 0; i < count; i++) {
            make_input(input.at(first + i), first + i);
            make_record(records + i * RECORD_WORDS, first + i);
            memset(output.at(first + i), FREE, output.stride);
        }
        gridDim = {blocks, (unsigned)count, 1};
        blockDim = {threads, 1, 1};
        auto run = [&] {
            daq_burst(input.at(0), input.stride, SLOTS, first % SLOTS, output.at(0), output.stride, SLOTS,
                      first % SLOTS, records, RECORD_WORDS, IN_BYTES, 1, POINTS, OUT_BYTES, 1, OUT_POINTS);
        };
        for (unsigned y = 0; y < count; y++) {
            for (unsigned x = 0; x < blocks; x++) {
                blockIdx = {x, y, 0};
#ifdef SANITIZED
                run();
#else
                run_block(run, [](size_t) { return chance.below(2) != 0; });
#endif
            }
        }
        for (size_t i = 0; i < count; i++) {
            unsigned char* slot = output.at(first + i);
            all.insert(all.end(), slot, slot + OUT_BYTES);
        }
        first += count;
    }
    return all;
}

// Initial value of the device's count. It is close to the maximum, so that the count wraps around.
constexpr Size BASE = 0ull - 0xfffff0;

struct Host {
    unsigned groups, blocks;
    Slots input, output;
    size_t record_count;
    Memory bell, rung, credits, records;
    const bool is_rung;
    const std::vector<unsigned char>& expected;
    Size posted = 0, taken = 0, generation = 0;

    Host(unsigned groups, unsigned blocks, size_t in_slots, size_t out_slots, size_t record_count,
         bool is_rung, const std::vector<unsigned char>& expected)
        : groups(groups), blocks(blocks), input(in_slots, IN_BYTES), output(out_slots, OUT_BYTES),
          record_count(record_count), bell(128), rung(128), credits(8 * (size_t)groups * blocks),
          records(8 * RECORD_WORDS * record_count), is_rung(is_rung), expected(expected) {
        memset(bell.at(), 0, 128);
        memset(rung.at(), 0, 128);
        ((Size*)rung.at())[8] = BASE;
        count();
        memset(credits.at(), 0, credits.length);
        memset(input.at(0), GONE, input.memory.length);
    }

    Size* word(size_t at) { return (Size*)bell.at() + at; }

    // Returns the number of frames before the first frame that is not done.
    Size done() {
        Size first = ~0ull;
        for (unsigned n = 0; n < groups * blocks; n++) {
            Size group = n / blocks, done = __atomic_load_n((Size*)credits.at() + n, __ATOMIC_ACQUIRE);
            if (done > (posted + groups - 1 - group) / groups) fail("a credit for a frame that was not submitted");
            first = std::min(first, done * groups + group);
        }
        return first;
    }

    size_t room() { return std::min({input.count, output.count, record_count}) - (posted - taken); }

    void ring(Size stop) {
        __atomic_store_n(word(0), posted | generation << GENERATION_BIT | stop, __ATOMIC_RELEASE);
    }

    // Stores the device's transfer count, which is the last write of each transfer. The count has only 24 bits, so it
    // wraps around.
    void count() {
        __atomic_store_n((unsigned*)rung.at(), (unsigned)(posted - BASE) & 0xffffff, __ATOMIC_RELEASE);
    }

    void post(size_t frames, Size stop) {
        for (size_t i = 0; i < frames; i++, posted++) {
            make_input(input.at(posted + input.shift), posted);
            make_record((Size*)records.at() + posted % record_count * RECORD_WORDS, posted);
            memset(output.at(posted + output.shift), FREE, output.stride);
        }
        if (is_rung) {
            count();
            // At random, the host submits these frames immediately, later, or only after all of them are done.
            while (chance.below(2) && done() < posted) sched_yield();
        }
        ring(stop);
    }

    // Checks and then overwrites the outputs, inputs and records of all frames that are done.
    void take() {
        for (Size end = done(); taken < end && taken < posted; taken++) {
            unsigned char* slot = output.at(taken + output.shift);
            if (memcmp(slot, expected.data() + taken * OUT_BYTES, OUT_BYTES) != 0) {
                fprintf(stderr, "frame %llu: ", taken);
                fail("the output differs from the output of a launch");
            }
            for (size_t i = OUT_BYTES; i < output.stride; i++) {
                if (slot[i] != FREE) fail("a write after the end of an output");
            }
            memset(slot, GONE, output.stride);
            memset(input.at(taken + input.shift), GONE, input.stride);
            memset((Size*)records.at() + taken % record_count * RECORD_WORDS, GONE, 8 * RECORD_WORDS);
        }
    }

    void settle() {
        for (; taken < posted; sched_yield()) take();
    }

    void shift() {
        if (is_rung) return;
        settle();
        *word(8) = input.shift = chance.below(input.count);
        *word(9) = output.shift = chance.below(output.count);
        generation = (generation + 1) % (1 << 15);
    }
};

int main(int count, char** given) {
    if (count != 9) fail("the program needs eight numbers as arguments");
    // A hang ends the process with a signal, so the test fails.
    alarm(300);
    size_t number[9];
    for (int i = 1; i < 9; i++) number[i] = strtoul(given[i], nullptr, 10);
    unsigned groups = (unsigned)number[1], blocks = (unsigned)number[2], threads = (unsigned)number[3];
    size_t frames = number[7], seed = number[8];
    chance = {seed};
    const std::vector<unsigned char> expected = launched(blocks, threads, frames);

    Host host(groups, blocks, number[4], number[5], number[6], seed % 2 != 0, expected);
    std::atomic<unsigned> left(groups * blocks);
    std::vector<std::thread> running;
    for (unsigned n = 0; n < groups * blocks; n++) {
        running.emplace_back([&, n] {
            chance = {seed * 1000 + n};
            blockIdx = {n % blocks, n / blocks, 0};
            gridDim = {blocks, groups, 1};
            blockDim = {threads, 1, 1};
            auto run = [&] {
                daq_persistent(host.word(0), host.is_rung ? (Size*)host.rung.at() : nullptr, (Size*)host.credits.at(),
                             host.input.at(0), host.input.stride, host.input.count, host.output.at(0), host.output.stride, host.output.count,
                             (Size*)host.records.at(), RECORD_WORDS, host.record_count, IN_BYTES, 1, POINTS, OUT_BYTES,
                             1, OUT_POINTS);
            };
#ifdef SANITIZED
            run();
#else
            run_block(run, [](size_t) {
                sched_yield();
                return chance.below(2) != 0;
            });
#endif
            left--;
        });
    }
    while (host.posted < frames) {
        if (chance.below(20) == 0) host.shift();
        size_t most = std::min((size_t)(frames - host.posted), host.room());
        // The burst has a random size, or fills all free slots.
        size_t burst = most == 0 || chance.below(2) ? most : 1 + chance.below(most);
        if (left != groups * blocks) fail("a block has ended without a stop request");
        if (burst > 0) host.post(burst, host.posted + burst == frames ? STOP : 0);
        // At random, waits until all frames are done.
        if (chance.below(3) == 0) host.settle();
        host.take();
        sched_yield();
    }
    if (frames == 0) host.ring(STOP);
    for (std::thread& thread : running) thread.join();
    host.take();
    if (host.taken != frames || host.done() < frames) fail("the kernel ended before all frames were done");
    host.bell.check("a write beside the bell");
    host.rung.check("a write beside what the device rings");
    host.credits.check("a write beside the credits");
    host.input.memory.check("a write beside the input");
    host.output.memory.check("a write beside the output");
    host.records.check("a write beside the records");
    printf("%zu frames\n", frames);
}
