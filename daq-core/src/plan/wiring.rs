//! Who fills and who reads which ring.

use super::config::at;
use super::{Config, KnownKeys};
use crate::config::{Diagnostic, Diagnostics, Section, nearest};
use std::collections::{BTreeMap, BTreeSet};

/// Who fills a ring.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Filler {
    Source(usize),
    Kernel(usize),
    /// A component that could not be read: nothing is known of the frames.
    Unread,
}

/// Who fills which ring, who reads it, and how far the configuration can be trusted to tell all of it.
///
/// A section whose ring is not written, or of a wrong name, is told once; what would follow from the missing
/// connection is not.
#[derive(Default)]
pub(super) struct Wiring {
    /// Who fills each ring, or most likely meant to.
    pub(super) fillers: BTreeMap<String, Filler>,
    /// Rings that somebody reads, or most likely meant to.
    pub(super) read: BTreeSet<String>,
    /// Somebody fills a ring, and it cannot be told which.
    pub(super) may_fill: bool,
    /// Somebody reads a ring, and it cannot be told which.
    pub(super) may_read: bool,
}

impl Wiring {
    /// Who fills each declared ring and who reads it; a second one who fills it, or a ring that does not exist,
    /// is an error.
    pub(super) fn of(config: &Config, diagnostics: &mut Diagnostics) -> Self {
        let mut fillers: BTreeMap<String, (Filler, &KnownKeys)> = BTreeMap::new();
        let mut meant_to_fill: Vec<(String, &KnownKeys)> = Vec::new();
        let mut wiring = Self::default();
        for known in &config.known_keys {
            let section = &known.section;
            if let Some(key) = known.output_key() {
                let filler = match (section.kind(), known.index) {
                    ("source", Some(index)) => Filler::Source(index),
                    (_, Some(index)) => Filler::Kernel(index),
                    (_, None) => Filler::Unread,
                };
                match named_ring(config, section, key, known.output.as_deref(), diagnostics) {
                    Named::Ring(ring) => match fillers.get(ring) {
                        None => {
                            fillers.insert(ring.to_owned(), (filler, known));
                        }
                        Some((_, first)) => {
                            let first = &first.section;
                            diagnostics.push(
                                Diagnostic::error(format!(
                                    "ring `{ring}` is filled by [{}] and [{}]",
                                    first.title(),
                                    section.title()
                                ))
                                .labelled(section.place_of(key), "filled here too")
                                .also(first.header(), "filled by this")
                                .help("a ring has one producer: declare a ring for each"),
                            );
                        }
                    },
                    Named::Meant(ring) => meant_to_fill.push((ring.to_owned(), known)),
                    Named::Nothing => wiring.may_fill = true,
                }
            }
            if let Some(key) = known.input_key() {
                match named_ring(config, section, key, known.input.as_deref(), diagnostics) {
                    Named::Ring(ring) | Named::Meant(ring) => {
                        wiring.read.insert(ring.to_owned());
                    }
                    Named::Nothing => wiring.may_read = true,
                }
            }
        }
        for (ring, known) in meant_to_fill {
            fillers.entry(ring).or_insert((Filler::Unread, known));
        }
        let fillers = fillers
            .into_iter()
            .map(|(ring, (filler, _))| (ring, filler));
        wiring.fillers = fillers.collect();
        wiring
    }
}

/// The ring behind a name in a section.
enum Named<'a> {
    Ring(&'a str),
    /// The name is wrong; this one was most likely meant.
    Meant(&'a str),
    /// It is not written, or is like none.
    Nothing,
}

fn named_ring<'a>(
    config: &'a Config,
    section: &Section,
    key: &str,
    ring: Option<&'a str>,
    diagnostics: &mut Diagnostics,
) -> Named<'a> {
    let Some(ring) = ring else {
        return Named::Nothing;
    };
    let names = config.rings.iter().map(|ring| ring.section.name());
    let names: Vec<_> = names.collect();
    if names.contains(&ring) {
        return Named::Ring(ring);
    }
    let meant = nearest(ring, &names);
    let meant = names.iter().copied().find(|name| Some(*name) == meant);
    let help = match meant {
        Some(meant) => format!("did you mean \"{meant}\"?"),
        None => format!("declare it: [ring.{ring}]"),
    };
    diagnostics.push(at(section, key, format!("there is no ring `{ring}`")).help(help));
    meant.map_or(Named::Nothing, Named::Meant)
}
