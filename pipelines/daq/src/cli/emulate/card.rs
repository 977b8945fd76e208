//! `daq sim-card`: a card of software behind a vfio-user socket, for a source in another process.

use crate::cli::{exit, show};
use clap::builder::PossibleValuesParser;
use clap::{Args as ClapArgs, ValueEnum};
use daq_core::units::{BitRate, ByteSize};
use daq_drivers::fpga::transports::emulated::{CardOptions, FaultOption};
use daq_emulators::pattern::Pattern;
use daq_emulators::vfio_user::{Server, ServerError};
use daq_emulators::{CARDS, Card};
use daq_pipelines::console::print_error;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::fmt::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

/// What `daq sim-card` is told.
#[derive(Debug, ClapArgs)]
#[command(after_long_help = faults())]
pub(in crate::cli) struct Args {
    /// Which card.
    #[arg(value_parser = PossibleValuesParser::new(CARDS.iter().map(|card| card.name)))]
    card: String,
    /// Where it is served: `device = "vfio-user:PATH"` in a source.
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
    /// Payload of each channel, as in `"8 Gbit/s"`; without it, as fast as it goes.
    #[arg(long)]
    rate: Option<BitRate>,
    /// Bytes of a packet of the stream; without it, the stream has no packets.
    #[arg(long, value_name = "SIZE")]
    packet: Option<ByteSize>,
    /// What the payload is.
    #[arg(long, value_enum, default_value = "counter")]
    pattern: Words,
    /// End the stream after so many packets, of 4 KiB without --packet.
    #[arg(long, value_name = "N")]
    packets: Option<u64>,
    /// What a stream with a rate keeps while its engine is held back; beyond that packets are lost [default: 1 MiB].
    #[arg(long, value_name = "SIZE")]
    fifo: Option<ByteSize>,
    /// What goes wrong, and at which transfer, counted from 0; once. May be given often; --help lists the names.
    #[arg(long = "fault", value_name = "NAME@TRANSFER")]
    faults: Vec<FaultOption>,
    /// End after one user.
    #[arg(long)]
    once: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Words {
    /// 64-bit words that count from 0 over the whole stream.
    Counter,
    /// The same, and the first word of each packet is its number.
    Sequence,
}

/// The faults of every card.
fn faults() -> String {
    let mut text = String::new();
    for card in CARDS {
        let _ = writeln!(text, "Faults of {}:", card.name);
        for (name, meaning) in card.faults {
            let _ = writeln!(text, "  {name:<18} {meaning}");
        }
    }
    text
}

/// What is said at the start.
fn introduce(args: &Args, card: &dyn Card) -> String {
    let summary = CARDS.iter().find(|entry| entry.name == args.card);
    let [vendor, device, ..] = card.identity().ids;
    let rate = match args.rate {
        Some(rate) => format!("{rate} a channel"),
        None => "as fast as it goes".to_owned(),
    };
    let packet = match args.packet {
        Some(packet) => format!("packets of {packet}"),
        None => "no packets".to_owned(),
    };
    format!(
        "{} ({vendor:04x}:{device:04x}): {}; {rate}, {packet}\nlistening on {}\n",
        args.card,
        summary.map_or("", |entry| entry.summary),
        args.socket.display()
    )
}

pub(in crate::cli) fn emulate(args: &Args) -> u8 {
    crate::cli::run::log();
    let options = CardOptions {
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
    let card = match daq_emulators::build(&args.card, &options) {
        Ok(card) => card,
        Err(why) => {
            print_error!("error: {why}");
            return exit::USAGE;
        }
    };
    // A byte comes through when it is to end.
    let stop = UnixStream::pair().and_then(|(stop, signal)| {
        for number in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::low_level::pipe::register(number, signal.try_clone()?)?;
        }
        Ok((stop, signal))
    });
    let (stop, _signal) = match stop {
        Ok(stop) => stop,
        Err(error) => {
            print_error!("error: signals cannot be caught: {error}");
            return exit::INTERNAL;
        }
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
    let code = show(&introduce(args, &*card));
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
    fn the_help_names_every_fault() {
        let text = faults();
        for card in CARDS {
            for (name, _) in card.faults {
                assert!(text.contains(name), "{name}");
            }
        }
    }
}
