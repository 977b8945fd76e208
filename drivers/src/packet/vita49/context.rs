//! Context packets: values about a stream, such as its sample rate. They are read, and built to be sent.
//!
//! The indicator word after the prologue states which fields follow. Fields are in the order of its bits, from bit 31
//! down. Source: ANSI/VITA 49.2, section 7.1.5 and chapter 9.

use super::prologue::{WORD, long, word};
use daq_core::layout::{Layout, Scalar};
use std::fmt::{self, Display, Formatter};

/// Bits of the first indicator word (CIF0) that add further indicator words, in their order.
const MORE_INDICATORS: [u32; 4] = [1, 2, 3, 7];
/// Attributes (CIF7) repeat fields, so the position of fields is unknown.
const ATTRIBUTES: u32 = 7;

/// The values of the last context packets of a stream.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Context {
    values: [Option<f64>; FIELDS.len()],
    device: Option<(u32, u16)>,
    format: Option<PayloadFormat>,
}

/// A field whose value is a number.
struct Field {
    /// Bit in the indicator word.
    bit: u32,
    name: &'static str,
    unit: &'static str,
    /// Number of bits after the binary point.
    radix: i32,
    /// Number of words.
    words: usize,
}

const fn field(
    bit: u32,
    name: &'static str,
    unit: &'static str,
    radix: i32,
    words: usize,
) -> Field {
    Field {
        bit,
        name,
        unit,
        radix,
        words,
    }
}

/// The fields that are kept. A field of one word has its value in the lower 16 bits.
const FIELDS: [Field; 8] = [
    field(29, "bandwidth", "Hz", 20, 2),
    field(28, "IF frequency", "Hz", 20, 2),
    field(27, "RF frequency", "Hz", 20, 2),
    field(26, "RF frequency offset", "Hz", 20, 2),
    field(24, "reference level", "dBm", 7, 1),
    field(23, "gain", "dB", 7, 1),
    field(21, "sample rate", "Hz", 20, 2),
    field(18, "temperature", "°C", 6, 1),
];
/// Bits of the other fields with a fixed size, and their number of words.
const OTHERS: [(u32, usize); 11] = [
    (30, 1),
    (25, 2),
    (22, 1),
    (20, 2),
    (19, 1),
    (16, 1),
    (14, 11),
    (13, 11),
    (12, 13),
    (11, 13),
    (10, 1),
];
const DEVICE: u32 = 17;
const FORMAT: u32 = 15;
const REFERENCE_POINT: u32 = 30;
const BANDWIDTH: u32 = 29;
/// Bit of the sample rate in the indicator word.
pub(super) const SAMPLE_RATE: u32 = 21;
/// States that a field differs from the previous context packet.
const CHANGED: u32 = 1 << 31;
/// The fields of a context packet that is sent: those that are known.
const KNOWN: u32 = 1 << SAMPLE_RATE | 1 << FORMAT;
/// The fields of a context packet of DIFI (IEEE-ISTO 4900-2021, section 2.2.2), which must all be present.
const DIFI: u32 = 0x7bb9_8000;
/// The reference point in packets of DIFI.
const DIFI_POINT: u32 = 100;
/// Maximum size in bytes of what follows the prologue of a packet that is sent.
pub(super) const MAX_BODY: usize = 20 * WORD;

/// The type of the samples in the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PayloadFormat {
    is_complex: bool,
    /// Format code of the numbers.
    code: u8,
    /// Number of bits of each number, 1 to 64.
    item_bits: u32,
    /// Number of bits from one number to the next, 1 to 64.
    packing_bits: u32,
    /// Number of channels, 1 to 65,536.
    channels: u32,
}

impl Context {
    /// Adds the values of a context packet whose prologue has `prologue` bytes.
    pub(super) fn read(&mut self, packet: &[u8], prologue: usize) {
        let Some(indicators) = word(packet, prologue) else {
            return;
        };
        let has = |bit: u32| indicators & 1 << bit != 0;
        if has(ATTRIBUTES) {
            return;
        }
        let more = MORE_INDICATORS.iter().filter(|bit| has(**bit)).count();
        let mut at = prologue + (1 + more) * WORD;
        for bit in bits(indicators) {
            match bit {
                DEVICE => self.device = device(packet, at).or(self.device),
                FORMAT => self.format = PayloadFormat::read(packet, at).or(self.format),
                _ => {
                    if let Some(i) = FIELDS.iter().position(|field| field.bit == bit) {
                        self.values[i] = FIELDS[i].read(packet, at).or(self.values[i]);
                    }
                }
            }
            at += words_of(bit) * WORD;
        }
    }

    /// Returns the values that differ from `before`, as text; empty if none does.
    pub(super) fn changes(&self, before: &Self) -> String {
        let mut changes = Vec::new();
        for ((field, value), old) in FIELDS.iter().zip(self.values).zip(before.values) {
            if let Some(value) = value
                && Some(value) != old
            {
                changes.push(format!("{} {value} {}", field.name, field.unit));
            }
        }
        if let Some((oui, code)) = self.device
            && self.device != before.device
        {
            changes.push(format!("device {oui:06x}-{code:04x}"));
        }
        if let Some(format) = &self.format
            && self.format != before.format
        {
            changes.push(format!("payload {format}"));
        }
        changes.join(", ")
    }

    /// Returns the value of the field with bit `bit` of the indicator word.
    pub(super) fn value(&self, bit: u32) -> Option<f64> {
        let i = FIELDS.iter().position(|field| field.bit == bit)?;
        self.values[i]
    }

    /// Returns the type of the samples.
    pub(super) const fn payload_format(&self) -> Option<PayloadFormat> {
        self.format
    }
}

impl Field {
    fn read(&self, packet: &[u8], at: usize) -> Option<f64> {
        let value = match self.words {
            1 => {
                let [_, _, low @ ..] = word(packet, at)?.to_be_bytes();
                f64::from(i16::from_be_bytes(low))
            }
            _ => long(packet, at)?.cast_signed() as f64,
        };
        Some(value / f64::from(1 << self.radix))
    }
}

/// Returns the number of words of the field with bit `bit` of the indicator word.
fn words_of(bit: u32) -> usize {
    let mut fields = FIELDS.iter().map(|field| (field.bit, field.words));
    let mut others = OTHERS.into_iter().chain([(DEVICE, 2), (FORMAT, 2)]);
    let found = fields.find(|(field, _)| *field == bit);
    found
        .or_else(|| others.find(|(other, _)| *other == bit))
        .map_or(0, |(_, words)| words)
}

/// Returns the bits of `fields`, a word that states which fields a packet contains, in the order of the fields.
fn bits(fields: u32) -> impl Iterator<Item = u32> {
    (10..=30).rev().filter(move |bit| fields & 1 << bit != 0)
}

/// Returns the indicator word of a context packet that is sent.
pub(super) const fn fields(is_difi: bool, is_changed: bool) -> u32 {
    let fields = if is_difi { DIFI } else { KNOWN };
    if is_changed { fields | CHANGED } else { fields }
}

/// Returns the number of bytes of the indicator word `fields` and its fields.
pub(super) fn body_len(fields: u32) -> usize {
    (1 + bits(fields).map(words_of).sum::<usize>()) * WORD
}

/// Appends the indicator word `fields` and its fields: the sample rate in samples per 1,000,000 s, the same bandwidth, and the type
/// of the samples. Values that daq does not know, such as the RF frequency, are 0.
pub(super) fn append(
    fields: u32,
    per_million_seconds: u64,
    format: PayloadFormat,
    out: &mut Vec<u8>,
) {
    let hertz = (u128::from(per_million_seconds) << 20) / 1_000_000;
    let hertz = u64::try_from(hertz).unwrap_or(u64::MAX);
    out.extend(fields.to_be_bytes());
    for bit in bits(fields) {
        match bit {
            REFERENCE_POINT => out.extend(DIFI_POINT.to_be_bytes()),
            BANDWIDTH | SAMPLE_RATE => out.extend(hertz.to_be_bytes()),
            FORMAT => out.extend(format.to_bits().to_be_bytes()),
            _ => out.resize(out.len() + words_of(bit) * WORD, 0),
        }
    }
}

fn device(packet: &[u8], at: usize) -> Option<(u32, u16)> {
    let [_, _, code @ ..] = word(packet, at + WORD)?.to_be_bytes();
    Some((word(packet, at)? & 0xff_ffff, u16::from_be_bytes(code)))
}

impl PayloadFormat {
    /// Returns the type of the samples of `layout`, or `None` if VITA 49 does not define it. Its numbers are big-endian.
    pub(super) fn of(layout: &Layout) -> Option<Self> {
        let scalar = layout.scalar;
        if scalar.bits() > 8 && !scalar.is_big_endian() {
            return None;
        }
        let code = match scalar.little_endian() {
            Scalar::Float32 => 0x0e,
            _ if scalar.is_float() || scalar.packing().is_some() => return None,
            _ if scalar.name().starts_with('u') => 0x10,
            _ => 0,
        };
        let bits = u32::try_from(scalar.bits()).ok()?;
        Some(Self {
            is_complex: layout.complex,
            code,
            item_bits: bits,
            packing_bits: bits,
            channels: Some(layout.channels).filter(|channels| *channels <= 1 << 16)?,
        })
    }

    /// Returns the field: numbers follow each other without unused bits, and a sample of each channel follows another.
    fn to_bits(self) -> u64 {
        let first = 1 << 31
            | u32::from(self.is_complex) << 29
            | u32::from(self.code) << 24
            | (self.packing_bits - 1) << 6
            | (self.item_bits - 1);
        u64::from(first) << 32 | u64::from(self.channels - 1)
    }

    fn read(packet: &[u8], at: usize) -> Option<Self> {
        let first = word(packet, at)?;
        Some(Self {
            is_complex: first >> 29 & 3 != 0,
            code: (first >> 24 & 0x1f) as u8,
            packing_bits: (first >> 6 & 0x3f) + 1,
            item_bits: (first & 0x3f) + 1,
            channels: (word(packet, at + WORD)? & 0xffff) + 1,
        })
    }

    /// Returns the name of the number type in daq, such as `int16`, without a check whether daq supports it.
    fn scalar(&self) -> String {
        let kind = match self.code {
            0 => "int",
            0x0d..=0x0f => "float",
            0x10 => "uint",
            code => return format!("type code {code:#04x}"),
        };
        // Numbers that are not whole bytes follow each other without unused bits, from the most significant bit.
        let order = match self.packing_bits {
            8 => "",
            bits if bits.is_multiple_of(8) => "be",
            _ => "pmsb",
        };
        format!("{kind}{}{order}", self.packing_bits)
    }

    /// Returns whether the payload contains samples of the type in `layout`, whose numbers have `bits` bits.
    pub(super) fn agrees(&self, layout: &Layout, bits: usize) -> bool {
        let is_type = match self.code {
            0 | 0x0d..=0x10 => layout.scalar.name().starts_with(match self.code {
                0 => "int",
                0x10 => "uint",
                _ => "float",
            }),
            _ => true,
        };
        let is_order =
            bits <= 8 || layout.scalar.bytes().is_none() || layout.scalar.is_big_endian();
        self.is_complex == layout.complex
            && is_type
            && is_order
            && self.packing_bits as usize == bits
    }

    /// Returns the TOML text that declares the samples.
    pub(super) fn toml(&self) -> String {
        format!(
            "type = \"{}\", complex = {}",
            self.scalar(),
            self.is_complex
        )
    }
}

impl Display for PayloadFormat {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let complex = if self.is_complex { "complex " } else { "" };
        write!(f, "{complex}{}", self.scalar())?;
        if self.item_bits != self.packing_bits {
            write!(f, " with {} significant bits", self.item_bits)?;
        }
        Ok(())
    }
}
