//! Frames that consist of several heaps: the items that number frames, and their parts such as antennas and bands.

use crate::packet::recognise::{Key, MIN_SHARE, mode, percent, wrapped};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

/// Maximum number of values of an item that numbers parts.
pub(super) const MAX_PARTS: usize = 1024;
/// Minimum number of frames from which their item is recognised.
const MIN_FRAMES: usize = 3;

/// What distinguishes heaps: the sender and the heap counter.
pub(super) type HeapKey = (SocketAddr, u64);
/// The values of the items of each heap.
pub(super) type Heaps = BTreeMap<HeapKey, BTreeMap<u64, u64>>;

/// An item and its values in ascending order.
type Values = (u64, Vec<u64>);

/// The items that number frames and parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FrameItems {
    /// The item that contains the number of the frame.
    frame: u64,
    pub(super) step: u64,
    /// The items that number parts. The last one changes fastest.
    parts: Vec<Values>,
}

impl FrameItems {
    /// Finds the items of frames that consist of several heaps; `None` if each heap may be a frame.
    pub(super) fn find(heaps: &Heaps) -> Option<Self> {
        let values = values(heaps);
        let frames = values
            .iter()
            .filter(|(_, values)| values.len() >= MIN_FRAMES && values.len() * 2 <= heaps.len());
        let mut frames: Vec<(&Values, u64)> = frames
            .filter_map(|frame| Some((frame, regular_step(&frame.1)?)))
            .collect();
        frames.sort_by_key(|((_, values), _)| std::cmp::Reverse(values.len()));
        frames.into_iter().find_map(|((frame, numbers), step)| {
            let parts: Vec<&Values> = values
                .iter()
                .filter(|(id, values)| id != frame && values.len() <= MAX_PARTS)
                .collect();
            let one = (0..parts.len()).map(|i| vec![i]);
            let two = (0..parts.len()).flat_map(|i| (i + 1..parts.len()).map(move |k| vec![i, k]));
            one.chain(two)
                .map(|chosen| Self {
                    frame: *frame,
                    step,
                    parts: chosen.iter().map(|i| parts[*i].clone()).collect(),
                })
                .find(|items| items.fits(heaps, numbers.len()))
        })
    }

    /// Returns whether nearly every heap has a place of its own, and nearly every place has a heap.
    fn fits(&self, heaps: &Heaps, frames: usize) -> bool {
        let parts: usize = self.parts.iter().map(|(_, values)| values.len()).product();
        let places: BTreeSet<(u64, usize)> =
            heaps.values().filter_map(|heap| self.place(heap)).collect();
        percent(places.len(), heaps.len()) >= MIN_SHARE
            && percent(places.len(), frames * parts) >= MIN_SHARE
    }

    /// Returns the frame number and the part of a heap with these items.
    pub(super) fn place(&self, heap: &BTreeMap<u64, u64>) -> Option<(u64, usize)> {
        let part = self.parts.iter().try_fold(0, |part, (id, values)| {
            let value = values.binary_search(heap.get(id)?).ok()?;
            Some(part * values.len() + value)
        })?;
        Some((*heap.get(&self.frame)?, part))
    }

    /// Returns the observation in words.
    pub(super) fn words(&self) -> String {
        let parts: Vec<String> = self
            .parts
            .iter()
            .map(|(id, values)| format!("{id:#06x} ({} values)", values.len()))
            .collect();
        format!(
            "item {:#06x} numbers frames of several heaps and grows by {}; the parts differ in item {}",
            self.frame,
            self.step,
            parts.join(" and ")
        )
    }

    /// Returns the keys `frame` and `part` of the format.
    pub(super) fn keys(&self) -> [Key; 2] {
        let frame = format!(
            "frame  = {{ item = {:#06x}, step = {} }}",
            self.frame, self.step
        );
        let tables: Vec<String> = self.parts.iter().map(part).collect();
        let part = match tables.as_slice() {
            [one] => format!("part   = {one}"),
            several => format!("part   = [\n    {},\n]", several.join(",\n    ")),
        };
        let why = "a frame consists of one heap for each part:";
        [Key::new(frame, why), Key::new(part, "")]
    }
}

/// Returns the table of one number that distinguishes parts.
fn part((id, values): &Values) -> String {
    let is_count = values.iter().copied().eq(0..values.len() as u64);
    if is_count {
        return format!("{{ item = {id:#06x}, count = {} }}", values.len());
    }
    let values: Vec<String> = values.iter().map(u64::to_string).collect();
    let lines = wrapped(&values.join(", "), 60).join("\n        ");
    format!("{{ item = {id:#06x}, values = [{lines}] }}")
}

/// Returns the items that nearly every heap has, with their values, if there are several.
fn values(heaps: &Heaps) -> Vec<Values> {
    let mut values: BTreeMap<u64, (usize, BTreeSet<u64>)> = BTreeMap::new();
    for (id, value) in heaps.values().flatten() {
        let (count, values) = values.entry(*id).or_default();
        *count += 1;
        values.insert(*value);
    }
    values
        .into_iter()
        .filter(|(_, (count, values))| {
            percent(*count, heaps.len()) >= MIN_SHARE && values.len() > 1
        })
        .map(|(id, (_, values))| (id, values.into_iter().collect()))
        .collect()
}

/// Returns the most frequent difference of subsequent values if most of the differences are equal.
fn regular_step(values: &[u64]) -> Option<u64> {
    let steps = values.windows(2).map(|pair| pair[1] - pair[0]);
    let (step, count) = mode(steps)?;
    (count * 2 >= values.len() - 1).then_some(step)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heaps(items: impl Iterator<Item = Vec<(u64, u64)>>) -> Heaps {
        let heaps = items.map(|items| items.into_iter().collect());
        let sender = ([10, 0, 0, 1], 9).into();
        (0..).map(|counter| (sender, counter)).zip(heaps).collect()
    }

    #[test]
    fn frame_of_antennas_and_bands_is_found() {
        let all = (0..10_u64).flat_map(|n| {
            (0..4).flat_map(move |antenna| {
                [0, 512].map(|band| {
                    vec![
                        (0x1600, 7 + n * 4096),
                        (0x4101, antenna),
                        (0x4103, band),
                        (0x4200, 5),
                    ]
                })
            })
        });
        let found = FrameItems::find(&heaps(all)).unwrap();
        assert_eq!((found.frame, found.step), (0x1600, 4096));
        let [frame, part] = found.keys().map(|key| key.line);
        assert_eq!(frame, "frame  = { item = 0x1600, step = 4096 }");
        let lines: Vec<&str> = part.lines().collect();
        assert_eq!(
            lines,
            [
                "part   = [",
                "    { item = 0x4101, count = 4 },",
                "    { item = 0x4103, values = [0, 512] },",
                "]"
            ]
        );
        let heap = [(0x1600, 4103), (0x4101, 2), (0x4103, 512)].into();
        assert_eq!(found.place(&heap), Some((4103, 5)));
    }

    #[test]
    fn heaps_with_a_time_of_their_own_are_frames() {
        let times = (0..40_u64).map(|n| vec![(0x1600, n * 4096), (0x4101, n % 4)]);
        assert_eq!(FrameItems::find(&heaps(times)), None);
        let constant = (0..40_u64).map(|_| vec![(0x1600, 1)]);
        assert_eq!(FrameItems::find(&heaps(constant)), None);
        assert_eq!(FrameItems::find(&Heaps::new()), None);
    }
}
