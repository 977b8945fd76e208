//! `daq emulate` emulates devices for a source in another process.

mod card;
mod gige;
mod hsb;

use crate::cli::exit;
use clap::Subcommand;
use daq_core::entry::Registry;
use daq_pipelines::console::print_error;
use rustix::event::{PollFd, PollFlags, Timespec};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::ffi::OsString;
use std::net::SocketAddrV4;
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
    /// Emulate a camera with GigE Vision.
    Gige(gige::Args),
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
        Device::Gige(args) => gige::emulate(args),
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

/// Waits until `stop` is readable or `is_done` returns true, which is called 50 times per second. The error is the exit status.
fn wait_until(stop: &UnixStream, is_done: impl Fn() -> bool) -> Result<(), u8> {
    let look = Timespec {
        tv_sec: 0,
        tv_nsec: 20_000_000,
    };
    loop {
        let mut fds = [PollFd::new(stop, PollFlags::IN)];
        let ended = match rustix::event::poll(&mut fds, Some(&look)) {
            Ok(ready) => ready > 0,
            Err(rustix::io::Errno::INTR) => false,
            Err(error) => {
                print_error!("error: poll failed: {error}");
                return Err(exit::INTERNAL);
            }
        };
        if ended || is_done() {
            return Ok(());
        }
    }
}

/// Parses an address with an optional port.
fn address(text: &str, port: u16) -> Result<SocketAddrV4, String> {
    let address = text
        .parse()
        .or_else(|_| text.parse().map(|ip| SocketAddrV4::new(ip, port)));
    address.map_err(|_| {
        format!("{text:?} is not an IPv4 address; write for example \"127.0.0.2:{port}\"")
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
