// Takes short, strong interference out of a signal: samples stronger than a limit are replaced by silence, and so are
// their neighbours. int16 in, float32 from -1 to 1 out; pairs (real, imaginary) of complex samples go together.

struct Params {
    float gain = 1;           // of what is kept
    float limit = 0.5f;       // strongest magnitude that is kept, as a part of full scale
    int guard = 0;            // neighbours on either side that go with a sample that is too strong
    bool complex = true;      // whether numbers come in pairs
    float silence[2] = {};    // what stands in the place of what is taken out
};

// Whether sample `i` of those in the frame is kept for what it is itself.
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
