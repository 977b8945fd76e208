//! `daq emulate xdma|litepcie`: emulates a PCIe card over a vfio-user socket.

use super::stop_signals;
use crate::cli::{exit, show};
use clap::{Args as ClapArgs, Command, FromArgMatches, ValueEnum};
use daq_core::entry::Registry;
use daq_core::units::{BitRate, ByteSize};
use daq_drivers::fpga::transports::emulated::{EmulatedOptions, FaultOption};
use daq_emulators::pattern::Pattern;
use daq_emulators::vfio_user::{Server, ServerError};
use daq_emulators::{DEVICES, EmulatedDevice, EmulatedDeviceEntry};
use daq_pipelines::console::print_error;
use std::ffi::OsString;
use std::fmt::Write;
use std::os::fd::AsFd;
use std::path::PathBuf;

/// Arguments of `daq emulate xdma` and `daq emulate litepcie`.
#[derive(Debug, ClapArgs)]
pub(in crate::cli) struct Args {
    /// Path of the socket. A source connects to this socket with `device = "vfio-user:PATH"`.
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
    /// Payload rate per channel, for example `"8 Gbit/s"` [default: unlimited].
    #[arg(long)]
    rate: Option<BitRate>,
    /// Packet size of the stream. Without this option, the stream is not divided into packets.
    #[arg(long, value_name = "SIZE")]
    packet: Option<ByteSize>,
    /// Payload pattern.
    #[arg(long, value_enum, default_value = "counter")]
    pattern: Words,
    /// End the stream after N packets. Without --packet a packet has 4 KiB.
    #[arg(long, value_name = "N")]
    packets: Option<u64>,
    /// FIFO size of a stream with --rate. While the engine is blocked, packets that do not fit into the FIFO are lost
    /// [default: 1 MiB].
    #[arg(long, value_name = "SIZE")]
    fifo: Option<ByteSize>,
    /// Inject fault NAME once, at transfer TRANSFER (counted from 0). Can be repeated; --help lists the faults.
    #[arg(long = "fault", value_name = "NAME@TRANSFER")]
    faults: Vec<FaultOption>,
    /// Exit after the first client disconnects.
    #[arg(long)]
    once: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Words {
    /// 64-bit words that count up from 0 over the whole stream.
    Counter,
    /// The words of `counter`, but the first word of each packet is the packet number.
    Sequence,
}

/// Returns the list of the faults of `card` for the help text of the command.
pub(super) fn faults(card: &str) -> String {
    let mut text = String::from("Faults:\n");
    let entry = DEVICES.iter().find(|entry| entry.name == card);
    for (name, meaning) in entry.map_or(&[][..], |entry| entry.faults) {
        let _ = writeln!(text, "  {name:<18} {meaning}");
    }
    text
}

/// Emulates a device that only the registry names. `words` are its name and its options.
pub(super) fn emulate_other(registry: &Registry, words: &[OsString]) -> u8 {
    let name = words[0].to_string_lossy().into_owned();
    let entry = match daq_emulators::find(registry, &name) {
        Ok(entry) => entry,
        Err(why) => {
            print_error!("error: {why}");
            return exit::USAGE;
        }
    };
    let command = Args::augment_args(Command::new(entry.name).about(entry.summary));
    let matches = command.try_get_matches_from(words);
    match matches.and_then(|matches| Args::from_arg_matches(&matches)) {
        Ok(args) => emulate(registry, &name, &args),
        Err(error) => {
            let _ = error.print();
            if error.use_stderr() { exit::USAGE } else { 0 }
        }
    }
}

/// Returns the text that the command prints at startup.
fn introduce(entry: &EmulatedDeviceEntry, args: &Args, card: &dyn EmulatedDevice) -> String {
    let (name, summary) = (entry.name, entry.summary);
    let [vendor, device, ..] = card.identity().ids;
    let rate = match args.rate {
        Some(rate) => format!("{rate} per channel"),
        None => "unlimited rate".to_owned(),
    };
    let packet = match args.packet {
        Some(packet) => format!("packets of {packet}"),
        None => "no packets".to_owned(),
    };
    format!(
        "{name} ({vendor:04x}:{device:04x}): {}; {rate}, {packet}\nlistening on {}\n",
        summary,
        args.socket.display()
    )
}

pub(super) fn emulate(registry: &Registry, name: &str, args: &Args) -> u8 {
    crate::cli::log::start();
    let options = EmulatedOptions {
        rate: args.rate,
        packet: args.packet,
        pattern: match args.pattern {
            Words::Counter => Pattern::Counter,
            Words::Sequence => Pattern::Sequence,
        },
        packets: args.packets,
        fifo: args.fifo,
        faults: args.faults.clone(),
    };
    let built =
        daq_emulators::find(registry, name).and_then(|entry| Ok((entry, (entry.build)(&options)?)));
    let (entry, card) = match built {
        Ok(built) => built,
        Err(why) => {
            print_error!("error: {why}");
            return exit::USAGE;
        }
    };
    let (stop, _signal) = match stop_signals() {
        Ok(stop) => stop,
        Err(code) => return code,
    };
    let server = match Server::bind(&args.socket) {
        Ok(server) => server,
        Err(error) => {
            print_error!("error: {error}");
            return match error {
                ServerError::Live(_) => exit::UNAVAILABLE,
                ServerError::NoSocket(_) | ServerError::System { .. } => exit::IO,
            };
        }
    };
    let code = show(&introduce(entry, args, &*card));
    if code != 0 {
        return code;
    }
    match server.serve(card, stop.as_fd(), args.once) {
        Ok(()) => 0,
        Err(error) => {
            print_error!("error: {error}");
            exit::IO
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn emulate_card_help_lists_every_fault() {
        for card in DEVICES {
            let text = faults(card.name);
            for (name, _) in card.faults {
                assert!(text.contains(name), "{name}");
            }
        }
    }
}
