//! daq with an engine for QEMU's DMA device `edu`, for cases that run whole pipelines in the guest.

mod edu;

use daq_drivers::fpga::EngineEntry;
use std::process::ExitCode;

/// The registry entry of the engine, for `engine = "edu"`.
const ENTRY: EngineEntry = EngineEntry::of::<edu::Edu>();

fn main() -> ExitCode {
    daq::main_with(&daq::registry().with(&ENTRY))
}
