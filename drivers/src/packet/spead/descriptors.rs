//! The descriptors of items, from which receivers learn names, types and shapes.
//!
//! Each descriptor is a SPEAD packet within the payload of a heap. Samples have a NumPy type (item `0x15`); the timestamp has
//! a SPEAD format (item `0x13`), because its value is in its item pointer. Source: SPEAD protocol document, and the packets
//! of PyPI's `spead2`.

use super::Spead;
use super::items::{IMMEDIATE, Item, WORD, build_packet, find_item, item};
use daq_core::layout::{ArrayType, Layout, Scalar};
use daq_core::outgoing::OutgoingFrames;

/// Identifiers of the items of a descriptor.
const NAME: u64 = 0x10;
const DESCRIPTION: u64 = 0x11;
const SHAPE: u64 = 0x12;
const FORMAT: u64 = 0x13;
const ID: u64 = 0x14;
const DTYPE: u64 = 0x15;

/// Returns the name and the identifier that a descriptor states, or `None` if it is not whole.
pub(super) fn read_name(descriptor: &[u8]) -> Option<(&str, u64)> {
    let bits = Spead::flavour(descriptor)?;
    let items = Spead::item_words(descriptor)?;
    let id = find_item(items, bits, ID)?;
    let length = usize::try_from(find_item(items, bits, item::HEAP_LENGTH)?).ok()?;
    let payload = descriptor.get(WORD + items.len()..)?.get(..length)?;
    let addresses = items.as_chunks::<WORD>().0.iter().filter_map(|word| {
        let word = u64::from_be_bytes(*word);
        let address = usize::try_from(word & ((1 << bits) - 1)).ok()?;
        (word & IMMEDIATE == 0).then_some((word >> bits, address))
    });
    let (_, start) = addresses.clone().find(|(id, _)| *id == NAME)?;
    let ends = addresses.filter(|(_, address)| *address > start);
    let end = ends.map(|(_, address)| address).min().unwrap_or(length);
    let name = std::str::from_utf8(payload.get(start..end)?).ok()?;
    Some((name, id))
}

/// Returns one packet with the heap of descriptors: the samples of `frames`, and the item `timestamp`.
///
/// Its heap counter is the middle of the number range, so that it differs from those of frames for as long as possible.
pub(super) fn build(address_bits: u32, timestamp: Option<u64>, frames: &OutgoingFrames) -> Vec<u8> {
    let array = array(&frames.layout, frames.frame_bytes);
    let samples = Descriptor {
        id: item::SAMPLES,
        name: "samples",
        description: "Samples of one frame",
        format: Vec::new(),
        shape: &array.shape,
        dtype: Some(array.description()),
    };
    let mut payload = Vec::new();
    let mut begins = vec![0];
    samples.build(address_bits, &mut payload);
    if let Some(id) = timestamp {
        begins.push(payload.len());
        let time = Descriptor {
            id,
            name: "timestamp",
            description: "Time of the first sample in ticks",
            format: field(b'u', address_bits, address_bits),
            shape: &[],
            dtype: None,
        };
        time.build(address_bits, &mut payload);
    }
    let length = payload.len() as u64;
    let mut items = position(1 << (address_bits - 1), length).to_vec();
    let begins = begins.into_iter();
    items.extend(begins.map(|begin| Item::addressed(item::DESCRIPTOR, begin as u64)));
    let mut packet = Vec::new();
    build_packet(address_bits, &items, &payload, &mut packet);
    packet
}

/// Returns the items of a heap of one packet.
fn position(counter: u64, length: u64) -> [Item; 4] {
    [
        Item::immediate(item::HEAP_COUNTER, counter),
        Item::immediate(item::HEAP_LENGTH, length),
        Item::immediate(item::HEAP_OFFSET, 0),
        Item::immediate(item::PAYLOAD_LENGTH, length),
    ]
}

/// The description of one item.
struct Descriptor<'a> {
    id: u64,
    name: &'a str,
    description: &'a str,
    format: Vec<u8>,
    shape: &'a [usize],
    dtype: Option<String>,
}

impl Descriptor<'_> {
    fn build(&self, address_bits: u32, out: &mut Vec<u8>) {
        let address_bytes = address_bits as usize / 8;
        let shape = self.shape.iter().flat_map(|length| {
            let length = (*length as u64).to_be_bytes();
            // A zero byte marks a fixed length.
            std::iter::once(0).chain(length.into_iter().skip(8 - address_bytes))
        });
        let shape: Vec<u8> = shape.collect();
        let dtype = self.dtype.as_ref().map(String::as_bytes);
        let values = [
            (NAME, Some(self.name.as_bytes())),
            (DESCRIPTION, Some(self.description.as_bytes())),
            (FORMAT, Some(&self.format[..])),
            (SHAPE, Some(&shape[..])),
            (DTYPE, dtype),
        ];
        let mut payload = Vec::new();
        let mut items = Vec::new();
        for (id, value) in values {
            if let Some(value) = value {
                items.push(Item::addressed(id, payload.len() as u64));
                payload.extend_from_slice(value);
            }
        }
        let all: Vec<_> = position(1, payload.len() as u64)
            .into_iter()
            .chain([Item::immediate(ID, self.id)])
            .chain(items)
            .collect();
        build_packet(address_bits, &all, &payload, out);
    }
}

/// Returns the field of a SPEAD format: a type code, and a number of bits.
fn field(code: u8, bits: u32, address_bits: u32) -> Vec<u8> {
    let size = (64 - address_bits as usize) / 8;
    let bits = u64::from(bits).to_be_bytes();
    std::iter::once(code)
        .chain(bits.into_iter().skip(8 - size))
        .collect()
}

/// Returns the array that holds a frame. The dimension of a single channel is left out. Frames that are longer or shorter than
/// their layout, and types that NumPy does not have, are bytes.
fn array(layout: &Layout, frame_bytes: usize) -> ArrayType {
    // NumPy has no bfloat16.
    if layout.frame_bytes() != frame_bytes || layout.scalar == Scalar::Bfloat16 {
        return ArrayType::of_bytes(frame_bytes);
    }
    let mut array = ArrayType::of(layout);
    let channel = array.axes.iter().position(|axis| *axis == "channel");
    if let Some(dimension) = channel.filter(|_| layout.channels == 1) {
        array.shape.remove(dimension);
        array.axes.remove(dimension);
    }
    array
}

#[cfg(test)]
mod tests {
    use super::*;
    use daq_core::layout::Samples;

    fn layout(text: &str, frame_bytes: usize) -> Layout {
        let samples: Samples = toml::from_str(text).unwrap();
        samples.layout(frame_bytes).unwrap()
    }

    #[test]
    fn arrays_have_type_and_shape_of_samples() {
        for (text, element, shape) in [
            ("type = \"int8\"", "|i1", &[240][..]),
            ("type = \"float32\"\nchannels = 4", "<f4", &[15, 4]),
            (
                "type = \"float32\"\nchannels = 4\norder = \"planar\"",
                "<f4",
                &[4, 15],
            ),
            ("type = \"float32\"\ncomplex = true", "<c8", &[30]),
            ("type = \"bfloat16\"", "|u1", &[240]),
            (
                "type = \"int16\"\ncomplex = true\nchannels = 2",
                "<i2",
                &[30, 2, 2],
            ),
        ] {
            let array = array(&layout(text, 240), 240);
            assert_eq!((array.dtype, &array.shape[..]), (element, shape), "{text}");
        }
        let text = |text: &str, bytes: usize| array(&layout(text, 240), bytes).description();
        assert_eq!(
            text("type = \"int16\"", 239),
            "{'descr': '|u1', 'fortran_order': False, 'shape': (239,)}"
        );
        assert_eq!(
            text("type = \"int16\"\ncomplex = true\nchannels = 2", 240),
            "{'descr': '<i2', 'fortran_order': False, 'shape': (30,2,2,)}"
        );
    }

    #[test]
    fn descriptor_equals_that_of_spead2() {
        // spead2.send.ItemGroup(flavour=Flavour(4, 64, 40)), add_item(0x1600, "timestamp", "time", (), format=[("u", 40)]).
        let expected = "5304030500000009 8000010000000001 8000020000000011 8000030000000000 8000040000000011 \
                        8000140000001600 0000100000000000 0000110000000009 000013000000000d 0000120000000011 \
                        74696d657374616d7074696d6575000028";
        let time = Descriptor {
            id: 0x1600,
            name: "timestamp",
            description: "time",
            format: field(b'u', 40, 40),
            shape: &[],
            dtype: None,
        };
        let mut built = Vec::new();
        time.build(40, &mut built);
        let expected = expected.replace(' ', "");
        let digits = expected.as_bytes().chunks(2).map(str::from_utf8);
        let bytes = digits.map(|digits| u8::from_str_radix(digits.unwrap(), 16).unwrap());
        assert_eq!(built, bytes.collect::<Vec<_>>());
        assert_eq!(read_name(&built), Some(("timestamp", 0x1600)));
        assert!((0..built.len()).all(|end| read_name(&built[..end]).is_none()));
    }
}
