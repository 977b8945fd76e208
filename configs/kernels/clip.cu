// Removes short, strong interference from a signal: replaces samples stronger than a limit, and their neighbours, with
// silence. Input: int16. Output: float32 from -1 to 1. The two numbers of a complex sample (real, imaginary) are kept or
// replaced together.

struct Params {
    float gain = 1;           // factor for samples that are kept
    float limit = 0.5f;       // maximum magnitude that is kept, as a fraction of full scale
    int guard = 0;            // number of neighbours on each side that are replaced together with a strong sample
    bool complex = true;      // true: a sample is a pair of numbers
    float silence[2] = {};    // value that replaces a removed sample
};

// Returns whether sample `i` of the frame is below the limit.
__device__ bool is_quiet(const short* x, daq::Size i, float limit, bool complex) {
    if (!complex) return fabsf(x[i]) <= limit;
    const float re = x[2 * i], im = x[2 * i + 1];
    return re * re + im * im <= limit * limit;
}

__device__ void on_frame(const daq::Frame& in, daq::Out& out, const Params& p) {
    const float full = 32768;
    const short* x = in.as<const short>();
    float* y = out.as<float>();
    const int numbers = p.complex ? 2 : 1;
    const long long samples = in.count<short>() / numbers;
    for (long long i = in.index(); i < samples; i += in.stride()) {
        bool keep = true;
        for (long long j = max(i - p.guard, 0LL); keep && j <= min(i + p.guard, samples - 1); j++)
            keep = is_quiet(x, j, p.limit * full, p.complex);
        for (int part = 0; part < numbers; part++)
            y[numbers * i + part] = keep ? p.gain / full * x[numbers * i + part] : p.silence[part];
    }
}
