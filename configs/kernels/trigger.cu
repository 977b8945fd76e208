// The trigger of a small particle detector: decides whether a frame contains an event that is worth keeping.
//
// A frame has int16 samples of several channels, one channel after the other. The rules:
// - Baseline: for each channel, the median of the means of 16 parts of the frame. A pulse does not change it.
// - Over: a channel is over at a sample that is at least `threshold` above the channel's baseline.
// - Crossing: a channel crosses at the first sample at which it is over. A channel that is over at the first sample of
//   the frame crosses at that sample.
// - Coincidence: at least `coincidence` channels cross within `window` samples.
// - Veto: a channel of `veto` is over at most `veto_window` samples before or after the coincidence.
// - Event: the first coincidence without a veto.
//
// The output is one record of 32-bit numbers, in the order of `Field`. All arithmetic uses integers, and no result
// depends on the order of threads. Therefore every GPU and every number of threads gives the same decisions.

struct Params {
    int threshold = 1500;    // in units of the samples
    int coincidence = 3;     // channels
    int window = 8;          // samples
    unsigned veto = 0;       // channels, as bits (0x80 is channel 7); they are not counted in coincidences
    int veto_window = 16;    // samples
};

// The outcome of a frame. If several apply, the last one is used.
enum Outcome {
    TOO_LARGE = -1,  // no decision: the frame does not fit the arrays below, or its samples are not int16
    QUIET,           // no channel crosses
    ALONE,           // some channels cross, but there is no coincidence
    VETOED,          // all coincidences are vetoed
    TRIGGERED,       // an event
};

// The numbers of a record.
enum Field {
    SEQUENCE_LOW,   // the frame's sequence number
    SEQUENCE_HIGH,
    OUTCOME,
    TIME,           // sample of the event, or of the first coincidence if all are vetoed; else -1
    CHANNELS,       // channels in this coincidence, as bits
    VETO,           // channels that veto it, as bits
    CROSSED,        // channels that cross anywhere in the frame, as bits
    FLAGS,          // flags of the frame, see daq::Flags
    PEAKS,          // first of the channels' peaks: height of the largest sample above the baseline
};

constexpr int MAX_CHANNELS = 32, MAX_POINTS = 2048, MAX_SAMPLES = 8192;
constexpr int PARTS = 16;
constexpr int NEVER = MAX_POINTS;

// Returns the channels that are in any of `masks` from sample `from` to sample `to`; samples outside the frame are ignored.
__device__ unsigned seen(const unsigned* masks, int points, int from, int to) {
    unsigned all = 0;
    for (int t = max(from, 0); t <= min(to, points - 1); t++) all |= masks[t];
    return all;
}

// Returns a / b, rounded down.
__device__ int floor_of(int a, int b) { return a / b - (a % b < 0); }

__device__ void on_frame(const daq::Frame& in, daq::Out& out, const Params& p) {
    __shared__ short samples[MAX_SAMPLES];
    __shared__ int sums[MAX_CHANNELS * PARTS], tops[MAX_CHANNELS * PARTS], baselines[MAX_CHANNELS];
    __shared__ unsigned crossing[MAX_POINTS], vetoing[MAX_POINTS];  // channels as bits, per sample
    __shared__ int triggered, vetoed;                                 // earliest sample
    __shared__ unsigned crossed;

    // A decision needs all channels, so one block makes it.
    if (in.block != 0) return;
    const int thread = in.thread, threads = in.threads;
    int* record = out.as<int>();
    const int numbers = out.count<int>();
    const bool fits = in.channels <= MAX_CHANNELS && in.points <= MAX_POINTS &&
                      in.channels * in.points <= MAX_SAMPLES && in.count<short>() == in.channels * in.points;
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

    // Sum and largest sample of each part. Samples after the last whole part are used for the largest sample only.
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

    // Median: the part with exactly (parts - 1) / 2 parts below it. Of equal sums the first counts as the lower.
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
