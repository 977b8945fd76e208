//! Which components fill and read which ring.

use super::config::at;
use super::{Config, KnownKeys};
use crate::config::{Diagnostic, Diagnostics, Section, nearest};
use std::collections::{BTreeMap, BTreeSet};

/// The component that fills a ring.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Filler {
    Source(usize),
    Kernel(usize),
    /// A component whose section has errors, so that its frames are unknown.
    Unread,
}

/// Which components fill and read each ring, and whether connections are missing because of errors.
///
/// A missing or wrong ring name is reported once; errors that only follow from the missing connection are suppressed.
#[derive(Default)]
pub(super) struct Wiring {
    /// The component that fills each ring; a misspelt ring name counts as the nearest ring.
    pub(super) fillers: BTreeMap<String, Filler>,
    /// Rings that a component reads; a misspelt ring name counts as the nearest ring.
    pub(super) read: BTreeSet<String>,
    /// Whether a component's output ring cannot be determined: the key is missing, or its value does not resemble any
    /// ring name.
    pub(super) may_fill: bool,
    /// Whether a component's input ring cannot be determined: the key is missing, or its value does not resemble any
    /// ring name.
    pub(super) may_read: bool,
}

impl Wiring {
    /// Connects components and declared rings. Reports rings that do not exist and rings with two producers.
    pub(super) fn of(config: &Config, diagnostics: &mut Diagnostics) -> Self {
        let mut fillers: BTreeMap<String, (Filler, &KnownKeys)> = BTreeMap::new();
        let mut misspelt: Vec<(String, &KnownKeys)> = Vec::new();
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
                                .help("a ring can have only one producer; declare one ring per producer"),
                            );
                        }
                    },
                    Named::Nearest(ring) => misspelt.push((ring.to_owned(), known)),
                    Named::Unknown => wiring.may_fill = true,
                }
            }
            if let Some(key) = known.input_key() {
                match named_ring(config, section, key, known.input.as_deref(), diagnostics) {
                    Named::Ring(ring) | Named::Nearest(ring) => {
                        wiring.read.insert(ring.to_owned());
                    }
                    Named::Unknown => wiring.may_read = true,
                }
            }
        }
        for (ring, known) in misspelt {
            fillers.entry(ring).or_insert((Filler::Unread, known));
        }
        let fillers = fillers
            .into_iter()
            .map(|(ring, (filler, _))| (ring, filler));
        wiring.fillers = fillers.collect();
        wiring
    }
}

/// The result of looking up the ring that a key names.
enum Named<'a> {
    Ring(&'a str),
    /// No ring has this name; the value is the ring with the nearest name.
    Nearest(&'a str),
    /// The key is missing, or its value is not similar to the name of any ring.
    Unknown,
}

fn named_ring<'a>(
    config: &'a Config,
    section: &Section,
    key: &str,
    ring: Option<&'a str>,
    diagnostics: &mut Diagnostics,
) -> Named<'a> {
    let Some(ring) = ring else {
        return Named::Unknown;
    };
    let names = config.rings.iter().map(|ring| ring.section.name());
    let names: Vec<_> = names.collect();
    if names.contains(&ring) {
        return Named::Ring(ring);
    }
    let suggestion = nearest(ring, &names);
    let suggestion = names.iter().copied().find(|name| Some(*name) == suggestion);
    let help = match suggestion {
        Some(name) => format!("did you mean \"{name}\"?"),
        None => format!("declare it: [ring.{ring}]"),
    };
    diagnostics.push(at(section, key, format!("there is no ring `{ring}`")).help(help));
    suggestion.map_or(Named::Unknown, Named::Nearest)
}
