//! `daq inspect`: looks at real packets, and suggests a source that receives them.
//!
//! ```text
//!   capture file ─┐
//!   interface ────┼─▶ flows ─▶ recognisers ─▶ streams ─▶ report, [source.NAME]
//!   UDP socket ───┘
//! ```
//! A *flow* has one sender and one destination. A *stream* consists of the flows that one source can receive. The recognisers are
//! those of the packet formats and sources in the registry.

mod flow;
mod live;
mod section;
mod split;
mod streams;
mod text;

pub use live::{LiveError, LiveOptions, live};

use daq_core::entry::Registry;
use daq_drivers::packet::pcap::{Capture, PcapError, Skipped};
use daq_drivers::packet::recognise::Account;
use daq_pipelines::console::Progress;
use flow::{Flow, Flows};
use section::Origin;
use serde::Serialize;
use std::net::SocketAddr;
use std::path::Path;

/// What `daq inspect` found.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The capture or the interface.
    from: String,
    packets: u64,
    bytes: u64,
    seconds: Option<f64>,
    /// What was not examined, and why.
    notes: Vec<String>,
    /// What to check if there is no packet.
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<&'static str>,
    streams: Vec<Stream>,
}

/// Packets that one source can receive.
#[derive(Clone, Debug, Serialize)]
struct Stream {
    flows: Vec<FlowReport>,
    /// The format; `None` if no format was recognised.
    format: Option<Format>,
    /// The counts by the numbers of the packets.
    counts: Option<Account>,
    /// The name of the source in `section`; empty without a section.
    #[serde(skip_serializing_if = "String::is_empty")]
    name: String,
    /// The section of a source.
    #[serde(skip_serializing_if = "Option::is_none")]
    section: Option<String>,
    /// The reason why there is no section.
    #[serde(skip_serializing_if = "Option::is_none")]
    no_section: Option<String>,
}

impl Stream {
    fn packets(&self) -> u64 {
        self.flows.iter().map(|flow| flow.packets).sum()
    }
}

/// A recognised format.
#[derive(Clone, Debug, Serialize)]
struct Format {
    name: String,
    /// How well the packets match, in percent.
    confidence: u8,
    why: Vec<String>,
    ambiguous: Vec<String>,
}

/// The packets of one sender to one destination.
#[derive(Clone, Debug, Serialize)]
struct FlowReport {
    source: SocketAddr,
    destination: SocketAddr,
    packets: u64,
    bytes: u64,
    seconds: Option<f64>,
    packets_per_second: Option<f64>,
    bits_per_second: Option<f64>,
    /// The longest time between two packets in seconds.
    longest_gap: Option<f64>,
    /// Sizes in bytes and numbers of packets, most frequent first.
    sizes: Vec<(usize, u64)>,
}

impl FlowReport {
    fn new(flow: &Flow) -> Self {
        let seconds = flow.seconds();
        let mut sizes: Vec<(usize, u64)> = flow
            .sizes
            .iter()
            .map(|(size, count)| (*size, *count))
            .collect();
        sizes.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        let gaps = flow
            .stored
            .windows(2)
            .map(|pair| pair[1].ns.saturating_sub(pair[0].ns));
        Self {
            source: flow.source,
            destination: flow.destination,
            packets: flow.packets,
            bytes: flow.bytes,
            seconds,
            // The last packet ends the last interval, so it is not counted.
            packets_per_second: seconds.map(|seconds| (flow.packets - 1) as f64 / seconds),
            bits_per_second: seconds.map(|seconds| flow.bytes as f64 * 8.0 / seconds),
            longest_gap: seconds.and(gaps.max()).map(|ns| ns as f64 / 1e9),
            sizes,
        }
    }
}

impl Report {
    fn new(
        from: String,
        origin: &Origin<'_>,
        registry: &Registry,
        flows: &Flows,
        skipped: Skipped,
        mut notes: Vec<String>,
    ) -> Self {
        notes.extend(skipped_notes(skipped));
        if flows.split > 0 {
            notes.push(format!(
                "{} contained several datagrams (segmentation offload) and were split",
                daq_core::units::counted(flows.split, "record")
            ));
        }
        if flows.omitted > 0 {
            notes.push(format!(
                "{} packets of further flows were not examined",
                flows.omitted
            ));
        }
        if let Some((port, most)) = flows.others.iter().max_by_key(|(_, count)| **count) {
            let all = daq_core::units::counted(flows.others.values().sum::<u64>(), "packet");
            notes.push(format!(
                "{all} to other ports were not examined, {most} of them to port {port}"
            ));
        }
        let is_examined = !flows.list.is_empty();
        let hint = (!is_examined).then(|| hint(origin, skipped));
        let sum = |of: fn(&Flow) -> u64| flows.list.iter().map(of).sum::<u64>();
        let first = flows.list.iter().map(|flow| flow.first_ns).min();
        let last = flows.list.iter().map(|flow| flow.last_ns).max();
        let span = first
            .zip(last)
            .and_then(|(first, last)| last.checked_sub(first));
        let streams = streams::of(flows, origin, registry);
        Self {
            from,
            packets: sum(|flow| flow.packets),
            bytes: sum(|flow| flow.bytes),
            seconds: span
                .filter(|ns| *ns > 0 && first > Some(0))
                .map(|ns| ns as f64 / 1e9),
            notes,
            hint,
            streams,
        }
    }

    /// Returns whether a format was recognised.
    pub fn has_recognised(&self) -> bool {
        self.streams.iter().any(|stream| stream.format.is_some())
    }

    /// Returns a configuration with the suggested sources, whose frames are discarded.
    pub fn config(&self) -> String {
        section::config(self)
    }
}

/// Examines the datagrams of a capture (pcap or pcapng), only those to `port` if it is set. The entries of `registry` recognise
/// them.
pub fn capture(
    path: &Path,
    port: Option<u16>,
    registry: &Registry,
    progress: &Progress,
) -> Result<Report, PcapError> {
    let mut capture = Capture::open(path)?;
    // The size of a pipe is 0, so its progress is unknown.
    progress.amount(std::fs::metadata(path).map_or(0, |file| file.len()));
    let mut flows = Flows::new(registry.recognisers());
    let mut notes = Vec::new();
    loop {
        match capture.next() {
            Ok(Some(record)) if port.is_none_or(|port| port == record.destination.port()) => {
                flows.add(&record);
            }
            Ok(Some(record)) => flows.skip(&record),
            Ok(None) => break,
            // The packets before the damage are examined.
            Err(error @ PcapError::Damaged { .. }) if !flows.list.is_empty() => {
                notes.push(error.to_string());
                break;
            }
            Err(error) => return Err(error),
        }
        progress.set_done(capture.position());
    }
    if capture.is_torn() {
        notes.push(
            "the capture ends within a record, for example because tcpdump was killed".to_owned(),
        );
    }
    let origin = Origin::Capture { path, port };
    Ok(Report::new(
        path.display().to_string(),
        &origin,
        registry,
        &flows,
        capture.skipped(),
        notes,
    ))
}

/// Returns what to check if there is no datagram.
const fn hint(origin: &Origin<'_>, skipped: Skipped) -> &'static str {
    match origin {
        Origin::Capture { .. } => "the capture contains no UDP packets to examine",
        Origin::Live { .. } if skipped.fragment > 0 => {
            "no whole datagram arrived, only IP fragments of which others are missing. `nstat -az IpReasmFails` counts datagrams \
             that Linux cannot assemble either. Use an MTU that holds the instrument's packets on the whole path, such as \
             `ip link set IFACE mtu 9000`"
        }
        Origin::Live { .. } => {
            "no UDP packets arrived. `ip -s link` shows whether the interface receives packets. A switch sends packets of a \
             multicast group only to hosts that joined it: name the group with --group and its port with --port"
        }
    }
}

/// Returns a line for each reason for which frames were skipped.
fn skipped_notes(skipped: Skipped) -> impl Iterator<Item = String> {
    let reasons = [
        (skipped.not_udp, "contain another protocol than UDP"),
        (
            skipped.fragment,
            "are fragments of datagrams of which other fragments are missing",
        ),
        (
            skipped.cut_short,
            "are cut short: capture with `tcpdump -s 0`",
        ),
        (
            skipped.unknown_link,
            "have a link layer that is not supported",
        ),
        (skipped.malformed, "have contradicting lengths"),
    ];
    let reasons = reasons.into_iter().filter(|(count, _)| *count > 0);
    reasons.map(|(count, what)| format!("{count} frames {what}"))
}
