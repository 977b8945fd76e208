//! The keys of the format `spead`, and the format built from them.

use super::super::checks::{Check, LARGEST_PACKET};
use super::super::keep::{Keep, KeptItemConfig};
use super::super::parts::{PartsConfig, Readable};
use super::super::{Format, PacketLayout};
use super::detect::SampleItem;
use super::numbers::HeapNumbers;
use super::{Given, Spead};
use daq_core::config::Problem;
use daq_core::units::{ByteSize, Frequency, Period, UtcTime};
use schemars::JsonSchema;
use serde::Deserialize;

/// Size in bytes of a SPEAD header with the four mandatory items.
const SPEAD_HEADER: usize = 40;

/// The time in an item of a `spead` heap. Set at most one of `tick` and `rate`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ItemConfig {
    /// Identifier of the item, as in `0x1600`; the item must be immediate, with its value in the item pointer.
    pub item: u64,
    /// Number of significant bits of the value, by default all: `address_bits`. A time that wraps is continued: it is the one
    /// nearest to the times before it, and the first is the one nearest to the host's clock if `origin` is set.
    pub bits: Option<u32>,
    /// Duration of one tick, such as `"8 ns"` or `"1 ps"`; default `"1 ns"` unless `rate` is set.
    pub tick: Option<Period>,
    /// Number of ticks per second, a whole number of Hz. Use it if a tick is not a whole number of nanoseconds.
    pub rate: Option<Frequency>,
    /// UTC time of tick 0: `"2026-11-22T10:00:00Z"` (RFC 3339), or the time since 1970-01-01T00:00:00Z such as `"10 s"`. If it
    /// is set, timestamps are UTC (clock `sensor-utc`) and files contain `core:datetime`; the ticks must not skip or repeat
    /// leap seconds. Otherwise, timestamps are the ticks in nanoseconds (clock `sensor`).
    pub origin: Option<UtcTime>,
}

/// The item of a `spead` heap that contains the number of its frame.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FrameItemConfig {
    /// Identifier of the item, as in `0x1600`; the item must be immediate, with its value in the item pointer.
    pub item: u64,
    /// Increment of the value from one frame to the next.
    #[serde(default = "one")]
    pub step: u64,
}

/// `kind = "spead"`: heaps of SPEAD version 4; one heap is one frame, or one part of a frame.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SpeadConfig {
    /// Number of payload bytes in a heap. By default, daq detects the number from the first heaps and then fixes it; the
    /// maximum is the `slot` of the ring. Heaps of another length are counted as `control` and logged once.
    pub heap: Option<ByteSize>,
    /// Number of payload bytes in the largest heap, if heaps differ in size. Each heap is then a frame of its own size. A heap
    /// that contains a descriptor, or that is larger, is counted as `control`. A heap of which no packet arrives counts with the
    /// packets of the largest heap. Excludes `heap`, `samples` and `part`.
    pub max_heap: Option<ByteSize>,
    /// Number of payload bytes in each packet except the first and the last of a heap. By default, daq detects the number from
    /// the first heaps.
    pub packet: Option<ByteSize>,
    /// Number of payload bytes in the first packet of a heap, if it is smaller than `packet`. Senders that do not repeat item
    /// pointers have 8 bytes less payload in this packet for each item of the heap. Default: `packet`, or detected if `heap` or
    /// `packet` is detected.
    pub first: Option<ByteSize>,
    /// The item that contains the samples: its identifier, or its name in the sender's descriptors. By default, the whole payload
    /// of a heap is the frame, or the item that contains nearly all of it.
    pub samples: Option<SampleItem>,
    /// The item that contains the number of the frame. By default, the heap counter is the number. It is needed if the counter
    /// does not grow by a constant from frame to frame, as in streams of several antennas.
    pub frame: Option<FrameItemConfig>,
    /// What distinguishes the parts of a frame, such as antennas or senders. Each part is one heap.
    pub part: Option<PartsConfig>,
    /// Increment of the heap counter from one heap to the next. Default: 1, or detected if `heap` or `packet` is detected.
    pub heap_step: Option<u64>,
    /// Number of bits of an address: 40 for SPEAD-64-40, 48 for SPEAD-64-48. Default: 40, or detected if `heap` or `packet` is
    /// detected.
    pub address_bits: Option<u32>,
    /// The item that contains the time of a heap's first sample.
    pub timestamp: Option<ItemConfig>,
    /// Items that travel with the frame to kernels, sinks and files, at most 8. A frame has the values of its first packet
    /// that arrives with the item. Senders that do not repeat items send them in the first packet of a heap only.
    #[serde(default)]
    pub keep: Vec<KeptItemConfig>,
}

impl SpeadConfig {
    /// Returns the format, or every problem of the configuration.
    pub fn build(&self) -> Result<Format, Vec<Problem>> {
        let mut check = Check::default();
        let max = LARGEST_PACKET - SPEAD_HEADER;
        let mut size =
            |key, size: Option<ByteSize>, max| size.map(|size| check.size(key, size, 1, max));
        let packet = size("packet", self.packet, max);
        let first = size("first", self.first, max);
        // Packet indices have 32 bits. A heap of 1 TiB cannot exceed that at any realistic packet size.
        let heap = size("heap", self.heap, 1 << 40);
        let max_heap = size("max_heap", self.max_heap, 1 << 40);
        self.check_sized(&mut check);
        let address_bits = self.address_bits.unwrap_or(40);
        check.must(matches!(address_bits, 40 | 48), "address_bits", || {
            let message = format!("SPEAD-64-{address_bits} is not supported");
            (message, "set `address_bits` to 40 or 48".to_owned())
        });
        let step = self.heap_step.unwrap_or(1);
        check.step("heap_step", step, address_bits.clamp(1, 48));
        check.must(
            self.frame.is_none() || self.heap_step.is_none(),
            "heap_step",
            || {
                let message =
                    "frames are numbered by an item, so the heap counter is not used".to_owned();
                (
                    message,
                    "remove `heap_step`, and set `step` of `frame`".to_owned(),
                )
            },
        );
        let numbers = self.numbers(address_bits, &mut check);
        let parts = numbers
            .as_ref()
            .map_or(1, |numbers| numbers.parts.max_count() as usize);
        let step = self
            .frame
            .as_ref()
            .map_or(self.heap_step, |frame| Some(frame.step));
        check.must(parts == 1 || heap.is_some(), "heap", || {
            let message = "the size of a frame of several heaps is unknown".to_owned();
            (message, "set `heap` to the number of bytes of samples in one heap; the other sizes are detected".to_owned())
        });
        let heap = heap.or(max_heap);
        let mut spead = match (heap, packet) {
            (Some(heap), Some(packet)) if self.samples.is_none() => {
                check.must(
                    heap.div_ceil(packet.max(1)).saturating_mul(parts) < u32::MAX as usize,
                    "packet",
                    || {
                        (
                            format!(
                                "a frame with heaps of {heap} bytes has more packets of {packet} bytes than the maximum of {}",
                                u32::MAX - 1
                            ),
                            "set larger packets".to_owned(),
                        )
                    },
                );
                let layout = PacketLayout {
                    unit_bytes: heap,
                    first: first.unwrap_or(packet),
                    rest: packet,
                };
                Spead::new(address_bits, layout, step.unwrap_or(1))
            }
            _ => Spead::detecting(Given {
                heap,
                packet,
                first,
                step,
                address_bits: self.address_bits,
            }),
        };
        spead.keep = Keep::items(&mut check, &self.keep, end_of_items(address_bits));
        spead.samples.clone_from(&self.samples);
        spead.is_sized = max_heap.is_some();
        if let Some(numbers) = numbers {
            spead = spead.numbered(numbers);
        }
        if let Some(time) = &self.timestamp {
            check.item("timestamp.item", time.item, end_of_items(address_bits));
            let scale = check.scale(time.tick, time.rate, time.origin);
            let max = self.address_bits.unwrap_or(48).min(48);
            let is_valid = time.bits.is_none_or(|bits| (1..=max).contains(&bits));
            check.must(is_valid, "timestamp.bits", || {
                (
                    format!("an item has at most {max} bits"),
                    "set the number of bits that the sender uses, at least 1".to_owned(),
                )
            });
            let bits = time.bits.filter(|_| is_valid);
            spead = spead.timestamped(time.item, scale).with_time_bits(bits);
        }
        check.end(Format::Spead(spead))
    }

    /// Checks the keys that exclude `max_heap`.
    fn check_sized(&self, check: &mut Check) {
        let others = [
            ("heap", self.heap.is_some()),
            ("samples", self.samples.is_some()),
            ("part", self.part.is_some()),
        ];
        for (key, is_set) in others {
            check.must(self.max_heap.is_none() || !is_set, key, || {
                (
                    format!("`{key}` and `max_heap` exclude each other"),
                    format!("remove `{key}` if heaps differ in size, otherwise remove `max_heap`"),
                )
            });
        }
    }

    /// Returns how the frame and the part of a heap are found; `None` if the heap counter states them.
    fn numbers(&self, address_bits: u32, check: &mut Check) -> Option<HeapNumbers> {
        let end = end_of_items(address_bits);
        if let Some(frame) = &self.frame {
            check.item("frame.item", frame.item, end);
            check.step("frame.step", frame.step, address_bits.clamp(1, 48));
        }
        if let Some(SampleItem::Id(id)) = self.samples {
            check.item("samples", id, end);
        }
        let part = self.part.as_ref();
        let parts = part.map(|part| part.parts(Readable::Items(end), check));
        let is_numbered = self.frame.is_some() || parts.is_some();
        is_numbered.then(|| {
            let frame = self.frame.as_ref().map(|frame| frame.item);
            HeapNumbers::new(frame, parts.unwrap_or_default())
        })
    }
}

/// Returns the number after the highest identifier of an item.
fn end_of_items(address_bits: u32) -> u64 {
    1 << (63 - address_bits.clamp(8, 56))
}

fn one() -> u64 {
    1
}
