//! A kernel: the highest number of each frame. It runs on the CPU; a kernel whose `input_facts` state `runs_on_gpu`
//! also runs on a GPU and launches its work on the stream that `run` receives.

use daq_core::config::Problem;
use daq_core::entry::KernelEntry;
use daq_core::kernel::{Kernel, KernelContext, KernelError, KernelSpec, Stream, Submitted};
use daq_core::layout::{Axis, Layout, Scalar};
use daq_core::ring::{Lease, SlotsMut};
use schemars::JsonSchema;
use serde::Deserialize;

/// The registry entry of the kernel.
pub const ENTRY: KernelEntry = KernelEntry::of::<Peak>(
    "peak",
    "The highest number of each frame",
    "\
[kernel.NAME]
use    = \"peak\"
input  = \"INPUT\"
output = \"OUTPUT\"
",
);

/// The kernel has no keys of its own.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Peak {}

impl KernelSpec for Peak {
    fn layout(&self, input: &Layout) -> Result<Layout, Problem> {
        if (input.scalar, input.complex, input.channels) != (Scalar::Int16, false, 1) {
            return Err(Problem::at("input", "`peak` needs one channel of real int16 samples"));
        }
        let axis = Axis::Fields(vec!["peak".to_owned()]);
        Ok(Layout { points: 1, axis, ..input.clone() })
    }

    fn build(&self, _: &KernelContext) -> Result<Box<dyn Kernel>, KernelError> {
        Ok(Box::new(Self {}))
    }
}

impl Kernel for Peak {
    fn run(
        &mut self,
        burst: &Lease<'_>,
        out: &mut SlotsMut<'_>,
        _: Stream<'_>,
    ) -> Result<Submitted, KernelError> {
        for frame in burst.iter() {
            let numbers = frame.bytes().unwrap_or_default().as_chunks().0.iter();
            let peak = numbers.map(|bytes| i16::from_le_bytes(*bytes)).max().unwrap_or(0);
            if let Some(slot) = out.bytes_mut() {
                slot[..2].copy_from_slice(&peak.to_le_bytes());
            }
            let mut meta = *frame.meta();
            (meta.length, meta.packets_per_frame) = (2, 0);
            out.finish(meta);
        }
        Ok(Submitted::done(burst.len() as u64))
    }
}
