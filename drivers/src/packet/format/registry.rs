//! The registry of packet formats, and the built-in ones as one type.

use super::{PacketClock, PacketFormat, Parse as _};
use crate::packet::outgoing::Outgoing;
use crate::packet::{Control, Flow, Parsed, Reject, Split, TimeScale, raw, spead, vdif, vita49};
use daq_core::config::{Diagnostics, Section};
use daq_core::entry::Registered;
use daq_core::frame::Timestamp;
use daq_core::outgoing::{OutgoingFormat, OutgoingFormatEntry};
use daq_core::recognise::Recogniser;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::DeserializeOwned;
use std::ops::{Deref, DerefMut};

/// Defines [`Format`] with a variant for each built-in format, and [`FORMATS`].
///
/// The variants exist because each packet is parsed, and a call through a trait object costs more than a predicted
/// branch.
macro_rules! formats {
    ($($(#[$comment:meta])* $name:ident: $module:ident,)*) => {
        /// A packet format that is ready to parse. Each receiving thread needs its own clone.
        ///
        /// A format of another crate needs no variant of its own.
        #[derive(Debug)]
        pub enum Format {
            $($(#[$comment])* $name($module::$name),)*
            /// Any other format.
            Other(Box<dyn PacketFormat>),
        }

        /// The built-in formats.
        pub const FORMATS: &[FormatEntry] = &[$($module::ENTRY),*];

        impl Clone for Format {
            fn clone(&self) -> Self {
                match self {
                    $(Self::$name(format) => Self::$name(format.clone()),)*
                    Self::Other(format) => Self::Other(format.boxed_clone()),
                }
            }
        }

        impl Deref for Format {
            type Target = dyn PacketFormat;

            fn deref(&self) -> &Self::Target {
                match self {
                    $(Self::$name(format) => format,)*
                    Self::Other(format) => &**format,
                }
            }
        }

        impl DerefMut for Format {
            fn deref_mut(&mut self) -> &mut Self::Target {
                match self {
                    $(Self::$name(format) => format,)*
                    Self::Other(format) => &mut **format,
                }
            }
        }

        impl Format {
            /// Parses one whole datagram, see [`Parse::parse`](super::Parse::parse). An empty datagram contains no data, so it is a control packet.
            #[inline]
            pub fn parse(&mut self, packet: &[u8]) -> Result<Parsed, Reject> {
                if packet.is_empty() {
                    return Ok(Parsed::Control(Control::Beside));
                }
                match self {
                    $(Self::$name(format) => format.parse(packet),)*
                    Self::Other(format) => format.parse(packet),
                }
            }

            /// Selects the flow of the packets that follow, see [`Parse::use_flow`](super::Parse::use_flow).
            pub fn use_flow(&mut self, flow: &Flow) -> Result<(), Reject> {
                match self {
                    $(Self::$name(format) => format.use_flow(flow),)*
                    Self::Other(format) => format.use_flow(flow),
                }
            }

            /// Parses the start of a datagram, see [`Parse::parse_split`](super::Parse::parse_split). An empty datagram contains no data, so it is a control
            /// packet.
            #[inline]
            pub fn parse_split(&mut self, header: &[u8], rest: usize) -> Result<Split, Reject> {
                if header.is_empty() && rest == 0 {
                    return Ok(Split::Whole(Parsed::Control(Control::Beside)));
                }
                match self {
                    $(Self::$name(format) => format.parse_split(header, rest),)*
                    Self::Other(format) => format.parse_split(header, rest),
                }
            }

            /// Returns the expected header size of packet `sub`, see [`Parse::header_len`](super::Parse::header_len).
            #[inline]
            pub fn header_len(&self, sub: u32) -> usize {
                match self {
                    $(Self::$name(format) => format.header_len(sub),)*
                    Self::Other(format) => format.header_len(sub),
                }
            }

            /// Returns the clock of packet timestamps, see [`Parse::clock`](super::Parse::clock).
            #[inline]
            pub fn clock(&self) -> Option<PacketClock<'_>> {
                match self {
                    $(Self::$name(format) => format.clock(),)*
                    Self::Other(format) => format.clock(),
                }
            }
        }
    };
}

formats! {
    /// Packets with a fixed header and a sequence number at a configured offset.
    Raw: raw,
    /// SPEAD heaps.
    Spead: spead,
    /// Signal data packets of VITA 49.
    Vita49: vita49,
    /// Data frames of VDIF.
    Vdif: vdif,
}

impl Format {
    /// Returns the timestamp of a packet that contains `ticks` and was received at `received`.
    ///
    /// If the format contains timestamps, the receive time is only used to find how often their field has wrapped.
    #[inline]
    pub fn time(&self, ticks: Option<u64>, received: Timestamp) -> Timestamp {
        match (self.clock(), ticks) {
            (None, _) => received,
            (Some(PacketClock { scale, wrap }), Some(ticks)) => Timestamp {
                ns: match wrap {
                    None => scale.ns(ticks),
                    Some(wrap) => wrap.ns(&scale, ticks, received),
                },
                clock: scale.clock(),
            },
            (Some(_), None) => Timestamp::default(),
        }
    }

    /// Returns the mask of the bits that the sequence number of a unit can have.
    pub fn unit_mask(&self) -> u64 {
        u64::MAX >> (64 - self.facts().numbering.width.clamp(1, 64))
    }

    /// Returns the time scale of packet timestamps, or `None` if packets have no timestamps.
    pub fn time_scale(&self) -> Option<TimeScale> {
        self.clock().map(|clock| clock.scale)
    }
}

#[cfg(test)]
impl Format {
    /// Uses the samples of a source that names no addresses.
    pub(crate) fn use_samples(
        &mut self,
        samples: &daq_core::layout::Samples,
    ) -> Result<(), daq_core::config::Problem> {
        self.use_source(&super::SourceOfFormat {
            origins: &crate::packet::Origins::default(),
            samples,
        })
    }
}

/// One entry of the format registry.
#[derive(Clone, Copy, Debug)]
pub struct FormatEntry {
    /// The value of `format.kind`.
    pub name: &'static str,
    /// A one-line description.
    pub summary: &'static str,
    /// Example keys of a `[source.NAME.format]` section, without its heading.
    pub example: &'static str,
    /// Returns the JSON schema of the keys, without `kind`.
    pub schema: fn(&mut SchemaGenerator) -> Schema,
    /// Reads the keys, without `kind`. Returns `None` after reporting an error.
    pub parse: fn(&mut Section, &mut Diagnostics) -> Option<Format>,
    /// How `daq inspect` recognises packets of the format; by default not at all.
    pub recognise: &'static [Recogniser],
}

impl FormatEntry {
    /// Creates the entry of a format whose keys are the fields of the type `F`.
    pub const fn of<F>(name: &'static str, summary: &'static str, example: &'static str) -> Self
    where
        F: PacketFormat + DeserializeOwned + JsonSchema + 'static,
    {
        Self {
            name,
            summary,
            example,
            schema: F::json_schema,
            parse: |table, diagnostics| {
                let format = table.finish::<F>(&[], diagnostics)?;
                Some(Format::Other(Box::new(format)))
            },
            recognise: &[],
        }
    }

    /// Lets `daq inspect` recognise packets of the format with `recognise`.
    #[must_use]
    pub const fn recognised_by(self, recognise: &'static [Recogniser]) -> Self {
        Self { recognise, ..self }
    }
}

impl Registered for FormatEntry {
    fn kind(&self) -> &'static str {
        "packet formats"
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

    fn outgoing_format(&self) -> Option<&dyn OutgoingFormatEntry> {
        Some(self)
    }
}

impl OutgoingFormatEntry for FormatEntry {
    fn schema(&self, generator: &mut SchemaGenerator) -> Schema {
        (self.schema)(generator)
    }

    fn parse(
        &self,
        table: &mut Section,
        diagnostics: &mut Diagnostics,
    ) -> Option<Box<dyn OutgoingFormat>> {
        let format = (self.parse)(table, diagnostics)?;
        Some(Box::new(Outgoing(format)))
    }
}
