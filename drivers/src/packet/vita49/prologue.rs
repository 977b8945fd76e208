//! The words before the payload of a VITA 49 packet.
//!
//! ```text
//!   word 0   type (4) | class identifier | type-specific (3) | TSI (2) | TSF (2) | count (4) | size in words (16)
//!   1        stream identifier, except in types 0 and 2
//!   2        class identifier: padding (5), OUI (24), information class (16), packet class (16)
//!   1        integer seconds, if TSI is not 0
//!   2        fraction of the second, if TSF is not 0
//! ```
//! All words are big-endian. Source: ANSI/VITA 49.0, section 6.1, and ANSI/VITA 49.2, section 5.1.

/// Size of a word in bytes.
pub(super) const WORD: usize = 4;
/// Company identifier of the DIFI Consortium (IEEE-ISTO 4900-2021). In its packets, TSI 3 is POSIX time, and TSI 1 counts leap
/// seconds.
const DIFI: u32 = 0x6a_621e;
/// TSI of POSIX time in packets of DIFI.
const POSIX: u32 = 3;
/// Maximum size of a prologue in bytes.
pub(super) const MAX_PROLOGUE: usize = 7 * WORD;

/// The contents of a packet, from its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Samples: types 0 and 1.
    SignalData,
    /// Data of a format that only its class describes: types 2 and 3.
    ExtensionData,
    /// Values about a stream: type 4.
    Context,
    /// Extension context or a command: types 5 to 7.
    Message,
    /// A type that no standard defines.
    Unknown,
}

/// The reference of the integer seconds (TSI).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Seconds {
    /// There are no integer seconds.
    #[default]
    None,
    /// Since 1970-01-01T00:00:00Z, without leap seconds.
    Utc,
    /// Since 1980-01-06T00:00:00Z, with leap seconds.
    Gps,
    /// Since an unknown time.
    Other,
}

/// The unit of the fraction (TSF).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Fraction {
    /// There is no fraction.
    #[default]
    None,
    /// Samples since the last full second.
    Samples,
    /// Picoseconds since the last full second.
    Picoseconds,
    /// Samples since an unknown time.
    FreeRunning,
}

/// The timestamp of the first sample of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Stamp {
    pub(super) reference: Seconds,
    pub(super) unit: Fraction,
    pub(super) seconds: u32,
    pub(super) fraction: u64,
}

/// The words before the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Prologue {
    pub(super) kind: Kind,
    pub(super) stream: Option<u32>,
    pub(super) stamp: Stamp,
    /// The packet count, 0 to 15.
    pub(super) count: u8,
    /// Size of the prologue in bytes.
    pub(super) bytes: usize,
    /// Size of the whole packet in bytes.
    pub(super) packet: usize,
    /// Size of the trailer in bytes.
    pub(super) trailer: usize,
    /// Number of bytes at the end of the payload that are not data.
    pub(super) padding: usize,
}

/// Returns the word at byte `at`, or `None` if `bytes` ends before its end.
#[inline]
pub(super) fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let word = bytes.get(at..at.checked_add(WORD)?)?;
    Some(u32::from_be_bytes(word.try_into().ok()?))
}

/// Returns the two words at byte `at`, or `None` if `bytes` ends before their end.
#[inline]
pub(super) fn long(bytes: &[u8], at: usize) -> Option<u64> {
    let words = bytes.get(at..at.checked_add(2 * WORD)?)?;
    Some(u64::from_be_bytes(words.try_into().ok()?))
}

/// Returns whether the first word of a class identifier is that of DIFI.
const fn is_difi(class: u32) -> bool {
    class & 0xff_ffff == DIFI
}

/// The upper bits of the first word of a signal data packet, and of a context packet whose time is that of its values.
pub(super) const SIGNAL_DATA: u32 = 1 << 28;
pub(super) const CONTEXT: u32 = 4 << 28 | 1 << 24;

/// Appends the words before `body` bytes of the packet with the type `kind` and the number `count` of `stream`.
pub(super) fn append(
    kind: u32,
    stream: u32,
    class: Option<u64>,
    stamp: &Stamp,
    count: u8,
    body: usize,
    out: &mut Vec<u8>,
) {
    let (has_seconds, has_fraction) = (
        stamp.reference != Seconds::None,
        stamp.unit != Fraction::None,
    );
    let words = 2
        + 2 * usize::from(class.is_some())
        + usize::from(has_seconds)
        + 2 * usize::from(has_fraction)
        + body.div_ceil(WORD);
    #[expect(clippy::cast_possible_truncation, reason = "16 bits are used")]
    let size = words as u32 & 0xffff;
    let is_difi = class.is_some_and(|class| is_difi((class >> 32) as u32));
    let reference = match stamp.reference {
        Seconds::Utc if is_difi => POSIX,
        reference => reference as u32,
    };
    let first = kind
        | u32::from(class.is_some()) << 27
        | reference << 22
        | (stamp.unit as u32) << 20
        | u32::from(count & 0xf) << 16
        | size;
    out.extend(first.to_be_bytes());
    out.extend(stream.to_be_bytes());
    out.extend(class.into_iter().flat_map(u64::to_be_bytes));
    if has_seconds {
        out.extend(stamp.seconds.to_be_bytes());
    }
    if has_fraction {
        out.extend(stamp.fraction.to_be_bytes());
    }
}

/// Returns the size in bytes of the packet that begins with `bytes`, or `None` if `bytes` ends before its first word.
pub(super) fn packet_len(bytes: &[u8]) -> Option<usize> {
    Some((word(bytes, 0)? & 0xffff) as usize * WORD)
}

impl Prologue {
    /// Parses the start of a packet. Fails with the number of bytes that are required if `bytes` is shorter.
    #[inline]
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, usize> {
        let first = word(bytes, 0).ok_or(WORD)?;
        let kind = first >> 28;
        let has_stream = kind != 0 && kind != 2;
        let has_class = first & 1 << 27 != 0;
        let after_stream = WORD + usize::from(has_stream) * WORD;
        let class = if has_class {
            word(bytes, after_stream).unwrap_or(0)
        } else {
            0
        };
        let reference = match first >> 22 & 3 {
            0 => Seconds::None,
            1 => Seconds::Utc,
            2 => Seconds::Gps,
            POSIX if is_difi(class) => Seconds::Utc,
            _ => Seconds::Other,
        };
        let unit = match first >> 20 & 3 {
            0 => Fraction::None,
            1 => Fraction::Samples,
            2 => Fraction::Picoseconds,
            _ => Fraction::FreeRunning,
        };
        let after_class = after_stream + usize::from(has_class) * 2 * WORD;
        let after_seconds = after_class + usize::from(reference != Seconds::None) * WORD;
        let end = after_seconds + usize::from(unit != Fraction::None) * 2 * WORD;
        if bytes.len() < end {
            return Err(end);
        }
        let is_data = kind < 4;
        Ok(Self {
            kind: match kind {
                0 | 1 => Kind::SignalData,
                2 | 3 => Kind::ExtensionData,
                4 => Kind::Context,
                5..=7 => Kind::Message,
                _ => Kind::Unknown,
            },
            stream: has_stream.then(|| word(bytes, WORD).unwrap_or(0)),
            stamp: Stamp {
                reference,
                unit,
                seconds: match reference {
                    Seconds::None => 0,
                    _ => word(bytes, after_class).unwrap_or(0),
                },
                fraction: match unit {
                    Fraction::None => 0,
                    _ => long(bytes, after_seconds).unwrap_or(0),
                },
            },
            count: (first >> 16 & 0xf) as u8,
            bytes: end,
            packet: (first & 0xffff) as usize * WORD,
            trailer: if is_data && first & 1 << 26 != 0 {
                WORD
            } else {
                0
            },
            // VITA 49.2 counts padding in bits. A part of a byte belongs to the last sample.
            padding: (class >> 27) as usize / 8,
        })
    }
}
