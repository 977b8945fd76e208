// Runs the kernel of configs/kernels/trigger.cu without a GPU. Reads frames from a file and writes records to another.
//
//   trigger launch|persistent CHANNELS POINTS THREADS BLOCKS SAMPLES RECORDS [NAME=VALUE ...]

#include "block.h"

#include <string>

#define DAQ_UNIT
#include "daq.cuh"

#include "trigger.cu"

DAQ_DETAIL_PARAMS(::Params)
DAQ_DETAIL_ENTRY(daq_burst, ::on_frame)
DAQ_DETAIL_PERSISTENT(daq_persistent, ::on_frame)

Dim threadIdx, blockIdx, blockDim, gridDim;

using Word = unsigned long long;

static std::vector<unsigned char> input, output;
static std::vector<Word> records;
static Word frames, in_bytes, out_bytes, channels, points;

constexpr Word RECORD = daq::detail::RECORD_WORDS;
constexpr Word LINE = 64;

static Word stride(Word bytes) { return (bytes + LINE - 1) / LINE * LINE; }

static void burst() {
    daq_burst(input.data(), stride(in_bytes), frames, 0, output.data(), stride(out_bytes), frames, 0, records.data(),
              RECORD, in_bytes, channels, points, out_bytes, 1, out_bytes / 4);
}

// The doorbell word as the host stores it (the number of submitted frames), followed by the shifts of the rings from
// word 8 on.
static Word bell[10] = {};
static std::vector<Word> credits;

static void resident() {
    daq_persistent(bell, nullptr, credits.data(), input.data(), stride(in_bytes), frames, output.data(), stride(out_bytes), frames,
                 records.data(), RECORD, records.size() / RECORD, in_bytes, channels, points, out_bytes, 1,
                 out_bytes / 4);
}

static bool set(const std::string& name, long long value) {
    if (name == "threshold") return daq_params.threshold = value, true;
    if (name == "coincidence") return daq_params.coincidence = value, true;
    if (name == "window") return daq_params.window = value, true;
    if (name == "veto") return daq_params.veto = value, true;
    if (name == "veto_window") return daq_params.veto_window = value, true;
    return false;
}

int main(int count, char** arguments) {
    if (count < 8) fail("too few arguments");
    const std::string dispatch = arguments[1];
    channels = strtoull(arguments[2], nullptr, 0);
    points = strtoull(arguments[3], nullptr, 0);
    blockDim = {(unsigned)strtoul(arguments[4], nullptr, 0), 1, 1};
    const unsigned blocks = strtoul(arguments[5], nullptr, 0);
    for (int i = 8; i < count; i++) {
        const std::string text = arguments[i];
        const size_t sign = text.find('=');
        if (sign == text.npos) fail("a parameter without a value");
        char* end;
        const long long value = strtoll(&text[sign + 1], &end, 0);
        if (*end != 0 || !set(text.substr(0, sign), value)) fail("a parameter that cannot be set");
    }

    in_bytes = 2 * channels * points;
    out_bytes = 4 * (PEAKS + channels);
    FILE* file = fopen(arguments[6], "rb");
    if (file == nullptr) fail("cannot read the samples");
    std::vector<unsigned char> frame(in_bytes);
    while (fread(frame.data(), 1, in_bytes, file) == in_bytes) {
        input.insert(input.end(), frame.begin(), frame.end());
        input.resize(++frames * stride(in_bytes));
    }
    fclose(file);
    // Unwritten bytes keep this pattern and are detected.
    output.assign(frames * stride(out_bytes), 0xa5);
    // Records of a persistent kernel are stored in a table whose length is a power of two.
    Word table = 1;
    while (table < frames) table *= 2;
    records.assign(table * RECORD, 0);
    for (Word i = 0; i < frames; i++) records[i * RECORD] = i;

    bool backwards = false;
    auto run = [&](unsigned rows, void (*entry)()) {
        gridDim = {blocks, rows, 1};
        for (unsigned j = 0; j < rows; j++) {
            for (unsigned i = 0; i < blocks; i++) {
                blockIdx = {i, j, 0};
                run_block(entry, [backwards](size_t) { return backwards; });
                backwards = !backwards;
            }
        }
    };
    if (dispatch == "launch") {
        run((unsigned)frames, burst);
    } else {
        // All frames are submitted before the kernel starts, and the stop bit is set.
        const Word groups = 3;
        bell[0] = frames | 1ull << 63;
        credits.assign(groups * blocks, 0);
        run((unsigned)groups, resident);
        for (Word i = 0; i < credits.size(); i++) {
            const Word group = i / blocks;
            if (credits[i] != (frames + groups - 1 - group) / groups) fail("the credit of a frame is missing");
        }
    }

    file = fopen(arguments[7], "wb");
    if (file == nullptr) fail("cannot write the records");
    for (Word i = 0; i < frames; i++) fwrite(output.data() + i * stride(out_bytes), 1, out_bytes, file);
    return fclose(file) == 0 ? 0 : 1;
}
