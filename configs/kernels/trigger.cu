// The trigger of a small particle detector: is there in this frame an event that is worth keeping?
//
// A frame has int16 samples of a few channels, one channel after the other. In each channel the baseline is the median
// of the means of 16 parts of the frame, so a pulse does not move it. A channel is over where it lies at least
// `threshold` over its baseline, and crosses where it begins to be over; one that is over at the first sample crosses
// there. Coincidence: `coincidence` channels cross within `window` samples. Veto: a channel of `veto` is over at most
// `veto_window` samples before or after the coincidence. The first coincidence without veto is the event.
//
// The output is one record of 32-bit numbers, in the order of `Field`. All arithmetic is of integers, and nothing
// depends on the order of threads, so every GPU and every number of threads decides the same.

struct Params {
    int threshold = 1500;    // in units of a sample
    int coincidence = 3;     // channels
    int window = 8;          // samples
    unsigned veto = 0;       // channels, as bits: 0x80 is channel 7. They do not take part in coincidences
    int veto_window = 16;    // samples
};

// What a frame is; of those that hold, the last.
enum Outcome {
    TOO_LARGE = -1,  // not decided: the frame does not fit the arrays below, or is not of int16
    QUIET,           // no channel crosses
    ALONE,           // some cross, but too few together
    VETOED,          // all coincidences are vetoed
    TRIGGERED,       // an event
};

// The numbers of a record.
enum Field {
    SEQUENCE_LOW,   // the frame's sequence number
    SEQUENCE_HIGH,
    OUTCOME,
    TIME,           // sample of the event, or of the first coincidence where all are vetoed; else -1
    CHANNELS,       // channels in this coincidence, as bits
    VETO,           // channels that veto it, as bits
    CROSSED,        // channels that cross anywhere in the frame, as bits
    FLAGS,          // of the frame, see daq::Flags
    PEAKS,          // from here on: the height of each channel's largest sample over its baseline
};

constexpr int MOST_CHANNELS = 32, MOST_POINTS = 2048, MOST_SAMPLES = 8192;
constexpr int PARTS = 16;
constexpr int NEVER = MOST_POINTS;

// The channels that are in `masks` anywhere from sample `from` to sample `to`, as far as there are such.
__device__ unsigned seen(const unsigned* masks, int points, int from, int to) {
    unsigned all = 0;
    for (int t = max(from, 0); t <= min(to, points - 1); t++) all |= masks[t];
    return all;
}

// The largest integer that is not above a / b.
__device__ int floor_of(int a, int b) { return a / b - (a % b < 0); }

__device__ void on_frame(const daq::Frame& in, daq::Out& out, const Params& p) {
    __shared__ short samples[MOST_SAMPLES];
    __shared__ int sums[MOST_CHANNELS * PARTS], tops[MOST_CHANNELS * PARTS], baselines[MOST_CHANNELS];
    __shared__ unsigned crossing[MOST_POINTS], vetoing[MOST_POINTS];  // channels, by time
    __shared__ int triggered, vetoed;                                 // when first
    __shared__ unsigned crossed;

    // A decision needs all channels: one block makes it.
    if (in.block != 0) return;
    const int thread = in.thread, threads = in.threads;
    int* record = out.as<int>();
    const int numbers = out.count<int>();
    const bool fits = in.channels <= MOST_CHANNELS && in.points <= MOST_POINTS &&
                      in.channels * in.points <= MOST_SAMPLES && in.count<short>() == in.channels * in.points;
    if (!fits) {
        for (int i = thread; i < numbers; i += threads) record[i] = i == OUTCOME ? TOO_LARGE : 0;
        return;
    }
    const int channels = in.channels, points = in.points;

    const short* x = in.as<const short>();
    for (int i = thread; i < channels * points; i += threads) samples[i] = x[i];
    if (thread == 0) {
        triggered = vetoed = NEVER;
        crossed = 0;
    }
    __syncthreads();

    // Sum and largest sample of each part. Samples behind the last whole part count for the largest only.
    const int parts = min(PARTS, points), length = points / parts;
    for (int i = thread; i < channels * parts; i += threads) {
        const int part = i % parts;
        const short* row = samples + i / parts * points;
        const int begin = part * length, end = begin + length;
        int sum = 0, top = row[begin];
        for (int t = begin; t < end; t++) {
            sum += row[t];
            top = max(top, static_cast<int>(row[t]));
        }
        for (int t = end; part == parts - 1 && t < points; t++) top = max(top, static_cast<int>(row[t]));
        sums[i] = sum;
        tops[i] = top;
    }
    __syncthreads();

    // Median: the part that as many others are below of as there is room for. Of equal ones the first is the lower.
    for (int i = thread; i < channels * parts; i += threads) {
        const int channel = i / parts, part = i % parts;
        const int* others = sums + channel * parts;
        int below = 0;
        for (int j = 0; j < parts; j++) below += others[j] < sums[i] || (others[j] == sums[i] && j < part);
        if (below == (parts - 1) / 2) baselines[channel] = floor_of(sums[i], length);
    }
    __syncthreads();

    for (int t = thread; t < points; t += threads) {
        unsigned now = 0, before = 0;
        for (int channel = 0; channel < channels; channel++) {
            const short* row = samples + channel * points;
            const unsigned bit = 1u << channel;
            if (row[t] - baselines[channel] >= p.threshold) now |= bit;
            if (t > 0 && row[t - 1] - baselines[channel] >= p.threshold) before |= bit;
        }
        crossing[t] = now & ~before & ~p.veto;
        vetoing[t] = now & p.veto;
        if (now & ~before) atomicOr(&crossed, now & ~before);
    }
    __syncthreads();

    for (int t = thread; t < points; t += threads) {
        if (crossing[t] == 0 || __popc(seen(crossing, points, t, t + p.window)) < p.coincidence) continue;
        const bool veto = seen(vetoing, points, t - p.veto_window, t + p.veto_window) != 0;
        atomicMin(veto ? &vetoed : &triggered, t);
    }
    __syncthreads();

    const int outcome = triggered < NEVER ? TRIGGERED : vetoed < NEVER ? VETOED : crossed != 0 ? ALONE : QUIET;
    const int time = outcome == TRIGGERED ? triggered : outcome == VETOED ? vetoed : -1;
    for (int i = thread; i < numbers; i += threads) {
        int value = 0;
        switch (i) {
            case SEQUENCE_LOW: value = static_cast<int>(in.sequence()); break;
            case SEQUENCE_HIGH: value = static_cast<int>(in.sequence() >> 32); break;
            case OUTCOME: value = outcome; break;
            case TIME: value = time; break;
            case CHANNELS: value = time < 0 ? 0 : seen(crossing, points, time, time + p.window); break;
            case VETO:
                value = time < 0 ? 0 : seen(vetoing, points, time - p.veto_window, time + p.veto_window);
                break;
            case CROSSED: value = crossed; break;
            case FLAGS: value = in.flags(); break;
            default:
                if (i - PEAKS < channels) {
                    const int channel = i - PEAKS;
                    int top = tops[channel * parts];
                    for (int part = 1; part < parts; part++) top = max(top, tops[channel * parts + part]);
                    value = top - baselines[channel];
                }
        }
        record[i] = value;
    }
}
