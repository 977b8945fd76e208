//! A source whose frames pass through a user's kernel on the simulated driver.

use daq_testkit::{Daq, Outcome, Simulated};

/// The simulated driver's compiler turns this source into a kernel that copies each frame unchanged.
const SOURCE: &str = "__device__ void on_frame(const daq::Frame& in, daq::Out& out, const daq::NoParams&) {\n    \
                      for (daq::Size i = in.index(); i < out.capacity; i += in.stride())\n        \
                      out.as<char>()[i] = in.as<const char>()[i];\n}\n";

/// Bytes per frame.
pub const FRAME: u64 = 16_384;

/// Returns a source whose frames pass through a user's kernel to a file in `there/`.
pub fn pipeline(frames: Option<u64>, kernel: &str) -> String {
    let frames = frames.map_or(String::new(), |frames| format!("frames = {frames}\n"));
    format!(
        "[source.adc]\ndriver = \"sim\"\nring = \"raw\"\npattern = \"counter\"\npacket = \"4 KiB\"\n{frames}\
         samples = {{ type = \"int16\" }}\n\
         [ring.raw]\nslot = {FRAME}\nslots = 32\nfill = 165\n\
         [kernel.same]\nfile = \"same.cu\"\ninput = \"raw\"\noutput = \"back\"\nburst = 5\n{kernel}\n\
         [ring.back]\nslots = 12\n\
         [sink.there]\ndriver = \"file\"\ninput = \"back\"\npath = \"there/\"\n"
    )
}

/// The key that makes the kernel persistent.
pub const STAYS: &str = "dispatch = \"persistent\"";
/// Returns a run with the simulated driver and its compiler. Hides Vulkan, because an installed loader might find a GPU
/// that is not simulated.
pub fn daq(simulated: &Simulated, text: &str) -> Daq {
    let daq = simulated
        .on(Daq::new(text))
        .env("VK_DRIVER_FILES", "/dev/null");
    daq.write("same.cu", SOURCE);
    daq
}

/// Returns a simulated driver with a compiler.
pub fn simulated(options: &str) -> Simulated {
    Simulated::new(options).with_compiler()
}

/// Checks that every frame that the kernel accepted has reached the sink.
pub fn assert_whole(outcome: &Outcome, frames: u64, case: &str) {
    for path in [
        "kernels.same.in",
        "kernels.same.consumed",
        "kernels.same.produced",
        "rings.back.published",
        "sinks.there.frames",
    ] {
        assert_eq!(
            outcome.count(path),
            frames,
            "{case} {path}: {:#}",
            outcome.report
        );
    }
}
