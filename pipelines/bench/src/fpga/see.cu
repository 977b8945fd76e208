// Checks that a frame is complete. Reads the first word, which is the packet's number, and the last word, which is
// derived from this number. If they do not match, the frame is incomplete, and the kernel ends with a trap.

__device__ void on_frame(const daq::Frame& in, daq::Out& out, const daq::NoParams&) {
    if (in.index() != 0) return;
    const daq::Size* words = in.as<const daq::Size>();
    const daq::Size count = in.count<daq::Size>();
    const daq::Size number = words[0];
    if (words[count - 1] != (number + 1) * count - 1) __trap();
    out.as<unsigned>()[0] = static_cast<unsigned>(number);
}
