//! daq with a source, a packet format, a DMA engine, a kernel and a sink of this crate.

mod engine;
mod format;
mod kernel;
mod sink;
mod source;

use std::process::ExitCode;

fn main() -> ExitCode {
    let registry = daq::registry()
        .with(&source::ENTRY)
        .with(&format::ENTRY)
        .with(&engine::ENTRY)
        .with(&engine::DEVICE)
        .with(&kernel::ENTRY)
        .with(&sink::ENTRY);
    daq::main_with(&registry)
}
