//! `daq inspect` recognises the format of packets and suggests a source that receives them.

use super::{exit, show};
use daq_core::entry::Registry;
use daq_core::units::Span;
use daq_diagnostics::inspect::{self, LiveOptions, Report};
use daq_pipelines::console::{Progress, print_error};
use std::net::IpAddr;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("packets").args(["capture", "interface", "port"]).required(true).multiple(true)))]
pub(super) struct Args {
    /// The capture to examine (pcap or pcapng).
    #[arg(value_name = "CAPTURE", conflicts_with_all = ["interface", "groups", "time"])]
    capture: Option<PathBuf>,
    /// Interface to capture on, such as `eth1`. Needs root or CAP_NET_RAW; without it, a UDP socket receives the packets to
    /// `--port`.
    #[arg(long, value_name = "NAME")]
    interface: Option<String>,
    /// Examine only packets to this UDP port.
    #[arg(long)]
    port: Option<u16>,
    /// Multicast groups to join.
    #[arg(
        long = "group",
        value_name = "ADDRESS",
        value_delimiter = ',',
        requires = "port"
    )]
    groups: Vec<IpAddr>,
    /// How long to receive packets.
    #[arg(long = "for", value_name = "TIME", default_value = "2 s")]
    time: Span,
    /// Print only a configuration with the suggested sources.
    #[arg(long, conflicts_with = "json")]
    toml: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Prints what the packets are. Returns 1 if nothing was recognised.
pub(super) fn inspect(registry: &Registry, args: &Args) -> u8 {
    let progress = Progress::start("inspect");
    let report = if let Some(path) = &args.capture {
        inspect::capture(path, args.port, registry, &progress)
            .map_err(|error| (error.to_string(), exit::IO))
    } else {
        let options = LiveOptions {
            interface: args.interface.clone(),
            port: args.port,
            groups: args.groups.clone(),
            time: args.time.0,
        };
        inspect::live(&options, registry, &progress)
            .map_err(|error| (error.to_string(), exit::UNAVAILABLE))
    };
    progress.end();
    match report {
        Ok(report) => show(&render(args, &report)).max(u8::from(!report.has_recognised())),
        Err((error, code)) => {
            print_error!("error: {error}");
            code
        }
    }
}

fn render(args: &Args, report: &Report) -> String {
    if args.json {
        serde_json::to_string_pretty(report).unwrap_or_default() + "\n"
    } else if args.toml {
        report.config()
    } else {
        report.to_string()
    }
}
