//! Registry entries: name, parser and schema of each driver, kernel and sink.
//!
//! A [`Registry`] is a list of entries. `daq list`, `daq new`, the JSON schema and the reference pages are derived from
//! it. A program with sources, kernels or sinks of its own adds their entries to the built-in ones.

mod facts;

pub use facts::{EngineRequirements, FrameFacts, SilenceHint, SourceFacts};

use crate::claim::Claim;
use crate::config::{Diagnostics, Problem, Section};
use crate::kernel::KernelSpec;
use crate::ledger::{Counts, Playback, Rejections};
use crate::outgoing::OutgoingFormatEntry;
use crate::recognise::Recogniser;
use crate::reorder::Geometry;
use crate::sink::SinkSpec;
use crate::source::{Obstacle, Producers, SourceError};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use std::any::Any;
use std::fmt;

/// The description of a driver, kernel or sink in the registry.
#[derive(Clone, Copy)]
pub struct Entry<S: ?Sized> {
    /// The name used in the configuration.
    pub name: &'static str,
    /// Description in one sentence, without a full stop.
    pub summary: &'static str,
    /// A valid example section with comments. The section's name is `NAME`; rings that it refers to are named `INPUT`
    /// and `OUTPUT`.
    pub example: &'static str,
    /// Returns the JSON schema of the section's own keys.
    pub schema: fn(&Registry) -> schemars::Schema,
    /// Reads the section's own keys, without accessing hardware. Returns `None` if errors were reported.
    pub parse: fn(&mut Section, &Registry, &mut Diagnostics) -> Option<Box<S>>,
    /// How `daq inspect` recognises the packets of a source; usually none.
    pub recognise: &'static [Recogniser],
}

impl<S: ?Sized> fmt::Debug for Entry<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl SourceEntry {
    /// Lets `daq inspect` recognise packets of the source with `recognise`.
    #[must_use]
    pub const fn recognised_by(self, recognise: &'static [Recogniser]) -> Self {
        Self { recognise, ..self }
    }
}

/// The registry entry of a source driver.
pub type SourceEntry = Entry<dyn SourceSpec>;
/// The registry entry of a kernel.
pub type KernelEntry = Entry<dyn KernelSpec>;
/// The registry entry of a sink driver.
pub type SinkEntry = Entry<dyn SinkSpec>;

/// Parameters for building a source.
#[derive(Clone, Debug)]
pub struct SourceContext {
    /// The source's name.
    pub name: String,
    /// The base directory of relative paths.
    pub directory: std::path::PathBuf,
    /// The frame geometry that [`SourceSpec::frames`] returned for the ring's slot size.
    pub geometry: Geometry,
    /// What the other sources of the pipeline claim ([`SourceFacts::claims`]).
    pub beside: Vec<Claim>,
    /// The network card that the plan selected for `auto` ([`EngineRequirements::device`]).
    pub nic: Option<String>,
    /// The counters that [`SourceFacts::counts`] declares.
    pub counts: Counts,
    /// Counters of rejected packets by reason.
    pub rejections: Rejections,
    /// The position in a recording, which a source that replays one sets.
    pub playback: Playback,
    /// Why no data can arrive, which a source that sets up its device sets.
    pub obstacle: Obstacle,
}

/// The checked configuration of a source.
pub trait SourceSpec: Send + Sync {
    /// Returns every problem of the keys that the types of their values do not exclude.
    fn problems(&self) -> Vec<Problem> {
        Vec::new()
    }

    /// Returns what follows from the keys alone, and for a recording from its files. Equal keys have equal facts on each
    /// machine.
    fn facts(&self) -> SourceFacts;

    /// Returns how packets are arranged in slots of `slot_bytes` bytes, or why such frames are not possible.
    fn frames(&self, slot_bytes: usize) -> Result<FrameFacts, Problem>;

    /// Returns the reason why this machine cannot run the source, as far as this can be determined without opening the
    /// device. Not called if the plan is made for another machine.
    fn unavailable(&self) -> Option<String> {
        None
    }

    /// Opens the source's sockets, files or devices.
    fn build(&self, context: &SourceContext) -> Result<Producers, SourceError>;
}

/// An entry of a [`Registry`]: a source, a kernel, a sink, or a part of a source such as a packet format.
pub trait Registered: Any + Send + Sync {
    /// The kind of the entry in the plural, as the heading in `daq list`.
    fn kind(&self) -> &'static str;

    /// The name of the entry in the configuration. Entries of one kind have different names.
    fn name(&self) -> &'static str;

    /// Description in one sentence, without a full stop.
    fn summary(&self) -> &'static str;

    /// Returns the mistake in the program that prevents the use of the entry, if there is one.
    fn mistake(&self) -> Option<String> {
        None
    }

    /// Returns how `daq inspect` recognises the packets that the entry can parse.
    fn recognisers(&self) -> &'static [Recogniser] {
        &[]
    }

    /// Returns the entry as a packet format that can be sent, if it is one.
    fn outgoing_format(&self) -> Option<&dyn OutgoingFormatEntry> {
        None
    }
}

macro_rules! registered {
    ($($entry:ty, $spec:path, $kind:literal;)*) => {$(
        impl $entry {
            /// Creates an entry whose keys are `K`.
            pub const fn of<K>(
                name: &'static str,
                summary: &'static str,
                example: &'static str,
            ) -> Self
            where
                K: $spec + DeserializeOwned + JsonSchema + 'static,
            {
                Self {
                    name,
                    summary,
                    example,
                    schema: |_| schemars::schema_for!(K),
                    parse: |section, _, diagnostics| {
                        Some(Box::new(section.finish_checked(&[], diagnostics, K::problems)?))
                    },
                    recognise: &[],
                }
            }
        }

        impl Registered for $entry {
            fn kind(&self) -> &'static str {
                $kind
            }

            fn name(&self) -> &'static str {
                self.name
            }

            fn summary(&self) -> &'static str {
                self.summary
            }

            fn recognisers(&self) -> &'static [Recogniser] {
                self.recognise
            }
        }
    )*};
}

registered! {
    SourceEntry, SourceSpec, "sources";
    KernelEntry, KernelSpec, "kernels";
    SinkEntry, SinkSpec, "sinks";
}

/// Everything that a configuration can name.
#[derive(Clone, Default)]
pub struct Registry {
    entries: Vec<&'static dyn Registered>,
}

impl Registry {
    /// Adds `entry`. It replaces an entry of the same kind and name.
    ///
    /// # Panics
    ///
    /// Panics if the program that defines the entry must be corrected, with the reason of [`Registered::mistake`].
    #[must_use]
    pub fn with(mut self, entry: &'static dyn Registered) -> Self {
        if let Some(mistake) = entry.mistake() {
            panic!("`{}` of {}: {mistake}", entry.name(), entry.kind());
        }
        let is_same = |known: &&mut &'static dyn Registered| {
            (known.kind(), known.name()) == (entry.kind(), entry.name())
        };
        match self.entries.iter_mut().find(is_same) {
            Some(known) => *known = entry,
            None => self.entries.push(entry),
        }
        self
    }

    /// Adds all `entries`.
    #[must_use]
    pub fn with_all<E: Registered>(self, entries: &'static [E]) -> Self {
        entries
            .iter()
            .fold(self, |registry, entry| registry.with(entry))
    }

    /// Returns the entries of type `E`, in the order in which they were added.
    pub fn all<E: Registered>(&self) -> impl Iterator<Item = &'static E> {
        let entries = self.entries.iter();
        entries.filter_map(|entry| (*entry as &dyn Any).downcast_ref())
    }

    /// Returns the entry of type `E` with the name `name`.
    pub fn find<E: Registered>(&self, name: &str) -> Option<&'static E> {
        self.all::<E>().find(|entry| entry.name() == name)
    }

    /// Returns the names of all entries of type `E`.
    pub fn names<E: Registered>(&self) -> Vec<&'static str> {
        self.all::<E>().map(Registered::name).collect()
    }

    /// Returns the packet formats that can be sent, with their names.
    pub fn outgoing_formats(
        &self,
    ) -> impl Iterator<Item = (&'static str, &'static dyn OutgoingFormatEntry)> {
        let entries = self.entries.iter().copied();
        entries.filter_map(|entry| Some((entry.name(), entry.outgoing_format()?)))
    }

    /// Returns the recognisers of all entries, in the order in which they were added.
    pub fn recognisers(&self) -> Vec<Recogniser> {
        let entries = self.entries.iter();
        entries
            .flat_map(|entry| entry.recognisers())
            .copied()
            .collect()
    }

    /// Returns all entries, in the order in which they were added.
    pub fn entries(&self) -> impl Iterator<Item = &'static dyn Registered> {
        self.entries.iter().copied()
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self
            .entries
            .iter()
            .map(|entry| (entry.kind(), entry.name()));
        f.debug_set().entries(names).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Part(&'static str, &'static str);

    impl Registered for Part {
        fn kind(&self) -> &'static str {
            "parts"
        }

        fn name(&self) -> &'static str {
            self.0
        }

        fn summary(&self) -> &'static str {
            self.1
        }
    }

    #[test]
    fn entry_replaces_entry_of_same_kind_and_name() {
        static PARTS: [Part; 2] = [Part("a", "first"), Part("b", "second")];
        let registry = Registry::default().with_all(&PARTS);
        assert_eq!(registry.names::<Part>(), ["a", "b"]);
        let registry = registry.with(&Part("a", "third"));
        assert_eq!(registry.names::<Part>(), ["a", "b"]);
        assert_eq!(registry.find::<Part>("a").map(|part| part.1), Some("third"));
        assert!(registry.all::<SinkEntry>().next().is_none());
    }
}
