//! `daq graph`.

use super::load::{Loaded, Look, Sources};
use daq_core::plan::GraphFormat;

pub(super) fn graph(sources: &Sources, format: GraphFormat) -> u8 {
    match Loaded::read(sources, Look::Into) {
        Ok(loaded) => super::show(&loaded.plan.graph(format)),
        Err(code) => code,
    }
}
