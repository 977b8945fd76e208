//! `daq sim-hsb`: a Holoscan Sensor Bridge of software, for a source in another process.

use crate::cli::{exit, show};
use clap::{Args as ClapArgs, ValueEnum};
use daq_core::units::BitRate;
use daq_emulators::hsb::pattern::Pattern;
use daq_emulators::hsb::{
    ANNOUNCE, Board, CONTROL, Counts, FAULTS, FaultOption, Options, SensorError,
};
use daq_pipelines::console::print_error;
use rustix::event::{PollFd, PollFlags, Timespec};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::fmt::Write;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::unix::net::UnixStream;
use std::str::FromStr;

/// What `daq sim-hsb` is told.
#[derive(Debug, ClapArgs)]
#[command(after_long_help = faults())]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a switch of the command line"
)]
pub(in crate::cli) struct Args {
    /// Where its control plane listens; data comes from the same address. Each board takes an address of its own; on
    /// the loopback interface 127.0.0.2, 127.0.0.3 and so on.
    #[arg(long, value_name = "ADDRESS[:PORT]", default_value = "127.0.0.1")]
    listen: Listen,
    /// Where it announces itself once a second, or "off" [default: this machine where it listens on the loopback
    /// interface, else everyone on its network].
    #[arg(long, value_name = "ADDRESS[:PORT]")]
    announce: Option<Announce>,
    /// Sensors: virtual ports that a host can arm.
    #[arg(long, value_name = "N", default_value_t = 1)]
    sensors: usize,
    /// Planes: each has a mask of the sensors that it sends for.
    #[arg(long, value_name = "N", default_value_t = 1)]
    planes: usize,
    /// Payload of each sensor, as in `"5 Gbit/s"`; without it, as fast as it goes.
    #[arg(long)]
    rate: Option<BitRate>,
    /// Each sensor falls silent after so many frames; how large they are and where they go, the host says.
    #[arg(long, value_name = "N")]
    frames: Option<u64>,
    /// What the payload is.
    #[arg(long, value_enum, default_value = "counter")]
    pattern: Words,
    /// Put metadata into the last data packet where there is room, instead of always into a packet of its own.
    #[arg(long)]
    embedded: bool,
    /// Keep only the low 20 bits of packet sequence numbers.
    #[arg(long)]
    psn20: bool,
    /// The first packet sequence number.
    #[arg(long, value_name = "N", default_value_t = 0)]
    psn: u32,
    /// Send each packet with a call of its own: slower, and more like what a board sends.
    #[arg(long)]
    no_offload: bool,
    /// Write by queue pairs of this network card instead of sending packets, to a source with mode = "queue-pair": a card
    /// made of software as "software", at the address of --listen as "software:ADDRESS", or one that does RDMA, as in
    /// "mlx5_0" (run with soft-RoCE alone).
    #[arg(long, value_name = "NAME")]
    nic: Option<String>,
    /// Answer control requests from this address of the machine instead of the one of --listen.
    #[arg(long, value_name = "ADDRESS")]
    answer_from: Option<Ipv4Addr>,
    /// A sensor that can be armed and sends nothing. May be given often.
    #[arg(long, value_name = "SENSOR")]
    dead: Vec<usize>,
    /// What goes wrong, and which packet of a sensor, frame or request meets it, counted from 0; :COUNT is how many. May
    /// be given often; --help lists the names.
    #[arg(long = "fault", value_name = "NAME@N[:COUNT]")]
    faults: Vec<FaultOption>,
    /// End when a host has armed it and has disarmed all of it.
    #[arg(long)]
    once: bool,
    /// Print what has happened as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Words {
    /// 64-bit words of sensor, frame number and place in the frame.
    Counter,
    /// The same, scattered over all bits.
    Noise,
}

/// An address with the control plane's port where none is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Listen(SocketAddrV4);

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        address(text, CONTROL).map(Self)
    }
}

/// An address with the announcements' port where none is given, or none.
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

fn address(text: &str, port: u16) -> Result<SocketAddrV4, String> {
    let address = text
        .parse()
        .or_else(|_| text.parse().map(|ip| SocketAddrV4::new(ip, port)));
    address.map_err(|_| format!("{text:?} is no IPv4 address; try \"127.0.0.2:{port}\""))
}

/// The faults, for the help.
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

/// What has happened, for people.
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
        "{requests} requests, {replies} replies, {refused} refused, {overlapped} before the reply to the one before; \
         {announcements} announcements\n"
    );
    for (sensor, counts) in counts.sensors.iter().enumerate() {
        let _ = writeln!(
            text,
            "sensor {sensor}: armed {} times; {} frames whole, {} cut short; {} packets, {} bytes of frames; {} dropped, \
             {} late, {} duplicates, {} damaged",
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
    let _ = writeln!(text, "{order_errors} mistakes of the host");
    for mistake in &counts.mistakes {
        let _ = writeln!(text, "  {mistake}");
    }
    text
}

pub(in crate::cli) fn emulate(args: &Args) -> u8 {
    crate::cli::run::log();
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
    let look = Timespec {
        tv_sec: 0,
        tv_nsec: 20_000_000,
    };
    loop {
        let mut fds = [PollFd::new(&stop, PollFlags::IN)];
        let ended = match rustix::event::poll(&mut fds, Some(&look)) {
            Ok(ready) => ready > 0,
            Err(rustix::io::Errno::INTR) => false,
            Err(error) => {
                print_error!("error: waiting failed: {error}");
                return exit::INTERNAL;
            }
        };
        if ended || (args.once && board.is_left()) {
            break;
        }
    }
    let counts = board.stop();
    if args.json {
        match serde_json::to_string(&counts) {
            Ok(text) => show(&(text + "\n")),
            Err(error) => {
                print_error!("error: the counts cannot be printed as JSON: {error}");
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
    fn the_help_names_every_fault() {
        let text = faults();
        for (name, ..) in FAULTS {
            assert!(text.contains(name), "{name}");
        }
    }

    #[test]
    fn addresses_have_their_ports() {
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
