//! The section `[source.NAME]` that receives the packets, and a whole configuration.

use super::Report;
use super::flow::Flow;
use daq_core::config::{Diagnostics, Document, Section};
use daq_core::entry::{Registry, SourceEntry, SourceSpec};
use daq_core::plan::SourceKeys;
use daq_core::recognise::Key;
use daq_drivers::packet::recognise::{WIDTH, wrapped};
use std::collections::BTreeSet;
use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

/// Reason why there is no source for a format that needs other keys.
const UNSUPPORTED: &str = "the packet formats of this daq cannot receive these numbers";
/// Size of a slot in bytes if the source prefers none.
const DEFAULT_SLOT: usize = 1 << 20;

/// Where the packets come from.
#[derive(Clone, Copy, Debug)]
pub(super) enum Origin<'a> {
    /// A capture file; only packets to `port`, if it is set.
    Capture { path: &'a Path, port: Option<u16> },
    /// An interface, or the interface that the routing table selects.
    Live { interface: Option<&'a str> },
}

/// Returns the section of a source for `flows`.
pub(super) fn section(
    name: &str,
    kind: &str,
    keys: &[Key],
    samples: Option<&str>,
    flows: &[&Flow],
    origin: &Origin<'_>,
) -> String {
    let destinations: BTreeSet<SocketAddr> = flows.iter().map(|flow| flow.destination).collect();
    let mut text = format!("[source.{name}]\n");
    let live = live_keys(&destinations, origin);
    match origin {
        Origin::Capture { path, port } => {
            comment(
                &mut text,
                "Replays the capture. For the instrument itself, use these lines instead:",
            );
            for line in live {
                let _ = writeln!(text, "# {line}");
            }
            let _ = writeln!(text, "driver = \"replay\"");
            let _ = writeln!(text, "path   = {}", quoted(&path.display().to_string()));
            let ports: BTreeSet<u16> = destinations.iter().map(SocketAddr::port).collect();
            let one = ports.first().filter(|_| ports.len() == 1);
            if let Some(port) = one.or(port.as_ref()) {
                let _ = writeln!(text, "port   = {port}");
            }
            let _ = writeln!(text, "speed  = \"free\"");
        }
        Origin::Live { .. } => live.iter().for_each(|line| {
            let _ = writeln!(text, "{line}");
        }),
    }
    let _ = writeln!(text, "ring   = \"{name}\"");
    match samples {
        Some(keys) => {
            let _ = writeln!(text, "samples = {{ {keys} }}");
        }
        None => comment(
            &mut text,
            "Packets do not show the type of their samples. Without this key, it is int8:\n\
             samples = { type = \"int16\", complex = true, channels = 1, rate = \"1 MHz\" }",
        ),
    }
    let _ = writeln!(text, "\n[source.{name}.format]\nkind = \"{kind}\"");
    for key in keys {
        if !key.why.is_empty() {
            comment(&mut text, &key.why);
        }
        if !key.line.is_empty() {
            let _ = writeln!(text, "{}", key.line);
        }
    }
    text
}

/// Checks `section` as `daq check` does: its keys, and whether its samples fill frames of the source. Returns the reason if the
/// source cannot receive packets.
pub(super) fn check(section: &str, registry: &Registry) -> Result<(), String> {
    let mut diagnostics = Diagnostics::new();
    let document = Document::from_text("daq.toml", section, &mut diagnostics);
    let source = document.sections("source").into_iter().next();
    let source = source.and_then(|section| source_of(section, registry, &mut diagnostics));
    let Some(source) = source else {
        return Err(UNSUPPORTED.to_owned());
    };
    let slot = source.facts().preferred_slot.unwrap_or(DEFAULT_SLOT);
    let frames = source.frames(slot);
    frames.map(|_| ()).map_err(|problem| problem.message)
}

/// Returns the source that `section` describes.
fn source_of(
    mut section: Section,
    registry: &Registry,
    diagnostics: &mut Diagnostics,
) -> Option<Box<dyn SourceSpec>> {
    let drivers = registry.names::<SourceEntry>();
    let (driver, _) = section.take_string("driver", &drivers, diagnostics)?;
    let common = section.detach(&["ring"]);
    let entry = registry.find::<SourceEntry>(&driver)?;
    let source = (entry.parse)(&mut section, registry, diagnostics)?;
    let _: SourceKeys = section.read(common, diagnostics)?;
    Some(source)
}

/// Returns the keys of a source `udp` that receives packets to `destinations`.
fn live_keys(destinations: &BTreeSet<SocketAddr>, origin: &Origin<'_>) -> Vec<String> {
    let groups: BTreeSet<IpAddr> = destinations
        .iter()
        .map(SocketAddr::ip)
        .filter(IpAddr::is_multicast)
        .collect();
    let is_four = destinations.first().is_none_or(SocketAddr::is_ipv4);
    let any = if is_four { "0.0.0.0" } else { "[::]" };
    let ports: BTreeSet<u16> = destinations.iter().map(SocketAddr::port).collect();
    let listen: Vec<String> = match destinations.first() {
        Some(only) if destinations.len() == 1 && only.ip().is_multicast() => {
            vec![quoted(&only.to_string())]
        }
        _ => ports
            .iter()
            .map(|port| format!("\"{any}:{port}\""))
            .collect(),
    };
    let list = |values: &[String]| match values {
        [one] => one.clone(),
        several => format!("[{}]", several.join(", ")),
    };
    let mut lines = vec![
        "driver = \"udp\"".to_owned(),
        format!("listen = {}", list(&listen)),
    ];
    if destinations.len() > 1 && !groups.is_empty() {
        let groups: Vec<String> = groups
            .iter()
            .map(|group| quoted(&group.to_string()))
            .collect();
        lines.push(format!("groups = [{}]", groups.join(", ")));
    }
    if !groups.is_empty() {
        lines.push(match origin {
            Origin::Live {
                interface: Some(interface),
            } => format!("interface = {}", quoted(interface)),
            Origin::Live { interface: None } => {
                "# interface = \"eth1\"   # the interface that joins the group".to_owned()
            }
            Origin::Capture { .. } => {
                "interface = \"eth1\"   # the interface that joins the group".to_owned()
            }
        });
    }
    lines
}

/// Returns `text` as a TOML string.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            character if character.is_control() => {
                let _ = write!(quoted, "\\u{:04X}", u32::from(character));
            }
            character => quoted.push(character),
        }
    }
    quoted + "\""
}

/// Appends comment lines.
fn comment(text: &mut String, words: &str) {
    for line in words.lines() {
        for line in wrapped(line, WIDTH - 2) {
            let _ = writeln!(text, "# {line}");
        }
    }
}

/// Returns a configuration of all suggested sources.
pub(super) fn config(report: &Report) -> String {
    let mut text = String::new();
    comment(
        &mut text,
        &format!("Suggested by daq inspect from {}.", report.from),
    );
    for stream in &report.streams {
        let name = &stream.name;
        match (&stream.section, &stream.no_section) {
            (Some(section), _) => {
                let _ = write!(
                    text,
                    "\n{section}\n[ring.{name}]\n\n[sink.{name}-null]\ndriver = \"null\"   # or \"file\", \"zarr\"\n\
                     input  = \"{name}\"\n"
                );
            }
            (None, reason) => {
                let to: Vec<String> = stream
                    .flows
                    .iter()
                    .take(4)
                    .map(|flow| flow.destination.to_string())
                    .collect();
                text.push('\n');
                let reason = reason.as_deref().unwrap_or_default();
                comment(
                    &mut text,
                    &format!("No source for {}: {reason}.", to.join(", ")),
                );
            }
        }
    }
    text
}
