//! `daq emulate` emulates devices for a source in another process.

mod card;
mod hsb;

use crate::cli::exit;
use clap::Subcommand;
use daq_core::entry::Registry;
use daq_pipelines::console::print_error;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::ffi::OsString;
use std::os::unix::net::UnixStream;

const XDMA: &str = "xdma";
const LITEPCIE: &str = "litepcie";

/// The device to emulate.
#[derive(Debug, Subcommand)]
pub(super) enum Device {
    /// Emulate an AMD/Xilinx XDMA card over a vfio-user socket.
    #[command(name = XDMA, after_long_help = card::faults(XDMA))]
    Xdma(card::Args),
    /// Emulate a LitePCIe card over a vfio-user socket.
    #[command(name = LITEPCIE, after_long_help = card::faults(LITEPCIE))]
    Litepcie(card::Args),
    /// Emulate a Holoscan Sensor Bridge.
    Hsb(hsb::Args),
    /// Emulate another device of this program: NAME, with the options of `xdma`.
    #[command(external_subcommand)]
    Other(Vec<OsString>),
}

/// Emulates a device until a signal arrives. Returns the exit code.
pub(super) fn emulate(device: &Device, registry: &Registry) -> u8 {
    match device {
        Device::Xdma(args) => card::emulate(registry, XDMA, args),
        Device::Litepcie(args) => card::emulate(registry, LITEPCIE, args),
        Device::Hsb(args) => hsb::emulate(args),
        Device::Other(words) => card::emulate_other(registry, words),
    }
}

/// Returns a socket that a signal to end makes readable, and the other end of the socket, to which the signal handler
/// writes. The error is the exit status.
fn stop_signals() -> Result<(UnixStream, UnixStream), u8> {
    let registered = UnixStream::pair().and_then(|(stop, signal)| {
        for number in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::low_level::pipe::register(number, signal.try_clone()?)?;
        }
        Ok((stop, signal))
    });
    registered.map_err(|error| {
        print_error!("error: cannot install signal handlers: {error}");
        exit::INTERNAL
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_exists_for_every_emulated_card() {
        let names: Vec<_> = daq_emulators::DEVICES
            .iter()
            .map(|card| card.name)
            .collect();
        assert_eq!(names, [XDMA, LITEPCIE]);
    }
}
