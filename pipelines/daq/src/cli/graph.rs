//! `daq graph` prints a diagram of the pipeline.

use super::load::{Hardware, Loaded, Sources};
use daq_core::entry::Registry;
use daq_core::plan::GraphFormat;

pub(super) fn graph(registry: &Registry, sources: &Sources, format: GraphFormat) -> u8 {
    match Loaded::read(registry, sources, Hardware::Probe) {
        Ok(loaded) => super::show(&loaded.plan.graph(format)),
        Err(code) => code,
    }
}
