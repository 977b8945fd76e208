//! `daq emulate hsb`: emulates a Holoscan Sensor Bridge.

use super::{address, stop_signals, wait_until};
use crate::cli::{exit, show};
use clap::{Args as ClapArgs, ValueEnum};
use daq_core::units::BitRate;
use daq_emulators::hsb::pattern::Pattern;
use daq_emulators::hsb::{
    ANNOUNCE, Board, CONTROL, Counts, FAULTS, FaultOption, Options, SensorError,
};
use daq_pipelines::console::print_error;
use std::fmt::Write;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::str::FromStr;

/// Arguments of `daq emulate hsb`.
#[derive(Debug, ClapArgs)]
#[command(after_long_help = faults())]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each field is a switch of the command line"
)]
pub(in crate::cli) struct Args {
    /// Address of the control plane and source address of the data. Each board needs its own address; on the loopback
    /// interface use 127.0.0.2, 127.0.0.3 and so on.
    #[arg(long, value_name = "ADDRESS[:PORT]", default_value = "127.0.0.1")]
    listen: Listen,
    /// Destination of the announcement that is sent once per second, or "off" [default: this machine if --listen is a
    /// loopback address, otherwise broadcast].
    #[arg(long, value_name = "ADDRESS[:PORT]")]
    announce: Option<Announce>,
    /// Number of sensors (virtual ports that a host can arm).
    #[arg(long, value_name = "N", default_value_t = 1)]
    sensors: usize,
    /// Number of data planes. Each data plane has a mask of the sensors whose frames it sends.
    #[arg(long, value_name = "N", default_value_t = 1)]
    planes: usize,
    /// Payload rate per sensor, for example `"5 Gbit/s"` [default: unlimited].
    #[arg(long)]
    rate: Option<BitRate>,
    /// Number of frames that each sensor sends. The host sets the size and the destination of the frames.
    #[arg(long, value_name = "N")]
    frames: Option<u64>,
    /// Payload pattern.
    #[arg(long, value_enum, default_value = "counter")]
    pattern: Words,
    /// Append metadata to the last data packet if the packet has room, instead of sending a separate packet.
    #[arg(long)]
    embedded: bool,
    /// Send only the low 20 bits of packet sequence numbers.
    #[arg(long)]
    psn20: bool,
    /// The first packet sequence number.
    #[arg(long, value_name = "N", default_value_t = 0)]
    psn: u32,
    /// Send each packet with its own system call. This is slower, and closer to a hardware board.
    #[arg(long)]
    no_offload: bool,
    /// Send the frames as RDMA writes from this network card, to a source with mode = "queue-pair". "emulated" selects
    /// an emulated card; the source connects to it as "emulated:ADDRESS", with the address of --listen. "mlx5_0"
    /// selects an RDMA card (tested with soft-RoCE only).
    #[arg(long, value_name = "NAME")]
    nic: Option<String>,
    /// Send control replies from this local address instead of the --listen address.
    #[arg(long, value_name = "ADDRESS")]
    answer_from: Option<Ipv4Addr>,
    /// Number of a sensor that can be armed but sends nothing. Can be repeated.
    #[arg(long, value_name = "SENSOR")]
    dead: Vec<usize>,
    /// Inject fault NAME at packet, frame or request N (counted from 0), COUNT times. Can be repeated; --help lists the
    /// faults.
    #[arg(long = "fault", value_name = "NAME@N[:COUNT]")]
    faults: Vec<FaultOption>,
    /// Exit when a host has armed sensors and disarmed all of them.
    #[arg(long)]
    once: bool,
    /// Print the final counts as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Words {
    /// 64-bit words of sensor, frame number and position in the frame.
    Counter,
    /// The words of `counter`, with all bits scrambled.
    Noise,
}

/// An address with an optional port. The default port is that of the control plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Listen(SocketAddrV4);

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        address(text, CONTROL).map(Self)
    }
}

/// An address with an optional port, or `off`. The default port is that of announcements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Announce(Option<SocketAddrV4>);

impl FromStr for Announce {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "off" {
            return Ok(Self(None));
        }
        address(text, ANNOUNCE).map(|address| Self(Some(address)))
    }
}

/// Returns the list of the faults for the help text.
fn faults() -> String {
    let mut text = "Faults, by packet, frame or request:\n".to_owned();
    for (name, unit, meaning) in FAULTS {
        let unit = format!("{unit:?}").to_lowercase();
        let _ = writeln!(text, "  {name:<16} {unit:<8} {meaning}");
    }
    text
}

fn options(args: &Args) -> Options {
    let listen = args.listen.0;
    let to = if listen.ip().is_loopback() {
        Ipv4Addr::LOCALHOST
    } else {
        Ipv4Addr::BROADCAST
    };
    let announce = args
        .announce
        .unwrap_or(Announce(Some(SocketAddrV4::new(to, ANNOUNCE))));
    Options {
        listen,
        announce: announce.0,
        sensors: args.sensors,
        planes: args.planes,
        rate: args.rate,
        frames: args.frames,
        pattern: match args.pattern {
            Words::Counter => Pattern::Counter,
            Words::Noise => Pattern::Noise,
        },
        embedded: args.embedded,
        psn20: args.psn20,
        psn: args.psn,
        offload: !args.no_offload,
        nic: args.nic.clone(),
        answer_from: args.answer_from,
        dead: args.dead.clone(),
        faults: args.faults.clone(),
    }
}

/// Formats the counts as text.
fn render(counts: &Counts) -> String {
    let Counts {
        requests,
        replies,
        refused,
        overlapped,
        announcements,
        order_errors,
        ..
    } = counts;
    let mut text = format!(
        "{requests} requests, {replies} replies, {refused} refused, {overlapped} sent before the previous reply; \
         {announcements} announcements\n"
    );
    for (sensor, counts) in counts.sensors.iter().enumerate() {
        let _ = writeln!(
            text,
            "sensor {sensor}: armed {} times; {} complete frames, {} truncated frames; {} packets, {} bytes of frames; \
             {} dropped, {} late, {} duplicates, {} damaged",
            counts.arms,
            counts.frames,
            counts.cut,
            counts.packets,
            counts.bytes,
            counts.dropped,
            counts.late,
            counts.duplicates,
            counts.damaged,
        );
    }
    let _ = writeln!(text, "{order_errors} protocol errors by the host");
    for mistake in &counts.mistakes {
        let _ = writeln!(text, "  {mistake}");
    }
    text
}

pub(super) fn emulate(args: &Args) -> u8 {
    crate::cli::log::start();
    let (stop, _signal) = match stop_signals() {
        Ok(stop) => stop,
        Err(code) => return code,
    };
    let board = match Board::start(&options(args)) {
        Ok(board) => board,
        Err(error) => {
            print_error!("error: {error}");
            return match error {
                SensorError::Options(_) => exit::USAGE,
                SensorError::Socket { .. } | SensorError::Nic(_) | SensorError::Thread(_) => {
                    exit::UNAVAILABLE
                }
            };
        }
    };
    let code = show(&format!("listening on {}\n", board.address()));
    if code != 0 {
        return code;
    }
    if let Err(code) = wait_until(&stop, || args.once && board.is_left()) {
        return code;
    }
    let counts = board.stop();
    if args.json {
        match serde_json::to_string(&counts) {
            Ok(text) => show(&(text + "\n")),
            Err(error) => {
                print_error!("error: cannot format the counts as JSON: {error}");
                exit::INTERNAL
            }
        }
    } else {
        show(&render(&counts))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn emulate_hsb_help_lists_every_fault() {
        let text = faults();
        for (name, ..) in FAULTS {
            assert!(text.contains(name), "{name}");
        }
    }

    #[test]
    fn address_without_port_gets_default_port() {
        let listen = |text: &str| text.parse::<Listen>().map(|listen| listen.0.to_string());
        assert_eq!(listen("127.0.0.2"), Ok("127.0.0.2:8192".to_owned()));
        assert_eq!(listen("127.0.0.2:1"), Ok("127.0.0.2:1".to_owned()));
        assert!(listen("board").unwrap_err().contains("127.0.0.2:8192"));
        let announce = |text: &str| text.parse::<Announce>().map(|announce| announce.0);
        assert_eq!(announce("off"), Ok(None));
        assert_eq!(
            announce("10.0.0.255"),
            Ok(Some("10.0.0.255:12267".parse().unwrap()))
        );
    }
}
