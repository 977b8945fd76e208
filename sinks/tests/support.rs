//! The fixtures of the sinks' tests.

pub use daq_testkit::sink::*;

use daq_core::sink::SinkSpec;

/// Reads the section `[sink.NAME]` of `driver` with `keys`. Returns errors as text.
pub fn spec(driver: &str, name: &str, keys: &str) -> Result<Box<dyn SinkSpec>, String> {
    daq_testkit::sink::spec(daq_sinks::SINKS, driver, name, keys)
}
