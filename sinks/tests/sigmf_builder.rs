//! The totals and spans of a segment's metadata equal what a plain list of every sample says.

#![allow(clippy::unwrap_used)]

use daq_core::sigmf::{Datatype, Meta, Number};
use daq_sinks::sigmf::{MetaBuilder, Record, Recording};
use proptest::collection::{btree_set, vec};
use proptest::prelude::*;
use std::collections::BTreeSet;

fn recording(number: Number, channels: u32, places: u32, place_bytes: u64) -> Recording {
    let frame_bytes = u64::from(places) * place_bytes;
    Recording {
        datatype: Datatype::little(number, false),
        channels,
        sample_rate: None,
        frame_bytes,
        places,
        first_bytes: place_bytes,
        place_bytes,
        source: "raw".into(),
        description: None,
        hardware: None,
        table: None,
    }
}

fn runs(places: &BTreeSet<u32>) -> Vec<(u32, u32)> {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for &place in places {
        match runs.last_mut() {
            Some((first, count)) if *first + *count == place => *count += 1,
            _ => runs.push((place, 1)),
        }
    }
    runs
}

proptest! {
    #[test]
    fn spans_cover_exactly_the_missing_samples(
        frames in vec((1_u64..4, any::<bool>(), btree_set(0_u32..6, 0..4)), 1..12),
        channels in 1_u32..4, wide: bool, place_bytes in 1_u64..9,
    ) {
        let number = if wide { Number::I16 } else { Number::I8 };
        let recording = recording(number, channels, 6, place_bytes);
        let group = number.bytes() as u64 * u64::from(channels);
        let mut builder = MetaBuilder::new(recording.clone());
        let bytes = builder.whole(recording.frame_bytes);
        let (mut sequence, mut epoch, mut sample, mut lost, mut breaks) = (0_u64, 0, 0, 0, 0_usize);
        let mut missing = BTreeSet::new();
        for (i, (step, restart, places)) in frames.iter().enumerate() {
            if *restart {
                epoch += 1;
                sequence = 0;
            } else {
                sequence += step;
                lost += if i > 0 { step - 1 } else { 0 };
            }
            breaks += usize::from(*restart || *step > 1 || i == 0 || bytes != recording.frame_bytes);
            builder.frame(&Record { sequence, epoch, bytes, restart: *restart, ..Record::default() }, runs(places));
            for place in places {
                let first = (u64::from(*place) * place_bytes).min(bytes);
                let last = (first + place_bytes).min(bytes);
                missing.extend((first..last).map(|byte| sample + byte / group));
            }
            sample += bytes / group;
        }
        let meta = builder.build();
        prop_assert_eq!(Meta::parse(&meta.to_json()).unwrap(), meta.clone());
        let told: Vec<u64> = meta.missing().flat_map(|(first, count)| first..first + count).collect();
        prop_assert_eq!(told, missing.iter().copied().collect::<Vec<_>>());
        let stream = meta.global.stream.as_ref().unwrap();
        prop_assert_eq!(stream.missing_samples, missing.len() as u64);
        prop_assert_eq!((stream.missing_frames, stream.frames, stream.bytes), (lost, frames.len() as u64, bytes * frames.len() as u64));
        prop_assert_eq!(meta.captures.len(), breaks);
        prop_assert_eq!(meta.captures.iter().filter_map(|c| c.frames).sum::<u64>(), frames.len() as u64);
        let starts: Vec<u64> = meta.annotations.iter().map(|a| a.sample_start).collect();
        prop_assert!(starts.is_sorted());
    }
}

#[test]
fn a_segment_starts_fresh_but_remembers_the_last_frame() {
    let mut builder = MetaBuilder::new(recording(Number::I8, 1, 1, 10));
    builder.frame(
        &Record {
            sequence: 4,
            bytes: 10,
            ..Record::default()
        },
        [(0, 1)],
    );
    builder.begin(7);
    assert_eq!((builder.frames(), builder.bytes()), (0, 0));
    builder.frame(
        &Record {
            sequence: 5,
            bytes: 10,
            ..Record::default()
        },
        [],
    );
    let meta = builder.build();
    let stream = meta.global.stream.unwrap();
    assert_eq!(
        (
            stream.segment,
            stream.frames,
            stream.missing_samples,
            stream.missing_frames
        ),
        (7, 1, 0, 0)
    );
    assert!(meta.annotations.is_empty());
    assert_eq!(
        (meta.captures.len(), meta.captures[0].sequence),
        (1, Some(5))
    );
}
