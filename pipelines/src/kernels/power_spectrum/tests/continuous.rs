//! Spectra of samples that continue across frames.

use super::*;

/// Returns frames of 10 real int16 points that count up, and a kernel with continuous blocks of 8 points, 4 points apart.
fn continuous(count: i16) -> (Layout, PowerSpectrum, Vec<Record>) {
    let samples = Samples {
        scalar: Scalar::Int16,
        rate: Some(Frequency(1e6)),
        ..Samples::default()
    };
    let frame = |i: i16| {
        (0..10)
            .flat_map(|n| (n * n * 3 + i * 7).to_le_bytes())
            .collect()
    };
    let spec = PowerSpectrum {
        continuous: true,
        overlap: 0.5,
        ..keys(2)
    };
    (layout(&samples, 10), spec, frames((0..count).map(frame)))
}

#[test]
fn continuous_blocks_cross_frames_and_restart_after_gaps() {
    let (input, spec, given) = continuous(9);
    // Frames 0 to 3 and 4 to 8 are a series each. The frame numbers of the second series start at 1004.
    let mut gapped = given.clone();
    for (meta, _) in &mut gapped[4..] {
        meta.sequence += 1000;
    }
    let whole = run(&spec, &input, &gapped, &[2], None);
    let first = run(&spec, &input, &given[..4], &[4], None);
    let second = run(&spec, &input, &gapped[4..], &[5], None);
    let powers = |outcomes: &[&crate::kernels::trial::Outcome]| -> Vec<Vec<u8>> {
        let all = outcomes.iter().flat_map(|outcome| &outcome.outputs);
        all.map(|(_, bytes)| bytes.clone()).collect()
    };
    assert_eq!(powers(&[&whole]), powers(&[&first, &second]));
    // 9 blocks in 40 points, and 11 in 50 points: each series ends with an integration that is not finished.
    assert_eq!((first.outputs.len(), second.outputs.len()), (4, 5));
    let places: Vec<_> = whole
        .outputs
        .iter()
        .map(|(meta, _)| (meta.sequence, meta.flags))
        .collect();
    let numbers = [0, 1, 2, 3]
        .into_iter()
        .chain((0..5).map(|i| 10_040 / 4 / 2 + i));
    assert_eq!(
        places,
        numbers
            .map(|number| (number, Flags::default()))
            .collect::<Vec<_>>()
    );
    // Output 1 starts with block 2, at point 8: 8 µs after the first sample. Output 2 starts at point 16, in frame 1.
    let times: Vec<_> = whole
        .outputs
        .iter()
        .take(3)
        .map(|(meta, _)| meta.timestamp.ns)
        .collect();
    let frame_ns = given[1].0.timestamp.ns - given[0].0.timestamp.ns;
    assert_eq!(
        times,
        [0, 8000, frame_ns + 6000].map(|ns| given[0].0.timestamp.ns + ns)
    );
    // The frames of the first series that the last integration contains are dropped at the gap.
    let [consumed, accumulating, failed] = sums(&whole);
    assert_eq!(consumed + accumulating + failed, 9);
    assert!(failed > 0 && accumulating > 0, "{failed} {accumulating}");
}

#[test]
fn output_has_the_flags_of_all_frames_of_its_continuous_blocks() {
    let (input, spec, mut given) = continuous(4);
    // Point 10 to 19: in blocks 1 to 4, which are outputs 0 to 2 of two blocks each.
    given[1].0.flags = Flags::INCOMPLETE;
    let outcome = run(&spec, &input, &given, &[1], None);
    let flags: Vec<_> = outcome.outputs.iter().map(|(meta, _)| meta.flags).collect();
    let (bad, good) = (Flags::INCOMPLETE, Flags::default());
    assert_eq!(flags, [bad, bad, bad, good]);
    // Without the frame, the blocks of frames 2 and 3 are a series of their own.
    let skipped = PowerSpectrum {
        partial: Partial::Skip,
        ..spec
    };
    let outcome = run(&skipped, &input, &given, &[1], None);
    let flags: Vec<_> = outcome.outputs.iter().map(|(meta, _)| meta.flags).collect();
    assert_eq!(flags, [bad, good]);
    assert_eq!(sums(&outcome)[2], 1);
}

#[test]
fn continuous_blocks_are_longer_than_frames() {
    let (input, spec, given) = continuous(12);
    let spec = PowerSpectrum {
        size: Some(64),
        integrate: Some(1),
        ..spec
    };
    // Blocks start 32 points apart: the first ends in frame 6, the second in frame 9.
    let outcome = run(&spec, &input, &given, &[1], None);
    let made: Vec<u64> = outcome.calls.iter().map(|call| call.consumed).collect();
    assert_eq!(outcome.outputs.len(), 2);
    assert_eq!(
        made.iter().position(|frames| *frames > 0),
        None,
        "each frame is part of a later block: {made:?}"
    );
    assert_eq!(sums(&outcome), [9, 3, 0]);
    let error = PowerSpectrum {
        continuous: false,
        ..spec
    }
    .layout(&input)
    .unwrap_err();
    assert!(error.help.unwrap().contains("continuous"));
}

/// The plan compares the slots of the output ring with `max_outputs`. A kernel that needs more slots would never run.
#[test]
fn outputs_of_one_frame_do_not_exceed_the_maximum_of_the_plan() {
    for (points, size, overlap, integrate) in [
        (93 * 16, 16, 0.0, 1),
        (94 * 16, 16, 0.0, 1),
        (100, 16, 0.5, 1),
        (100, 16, 0.75, 3),
        (7, 16, 0.0, 1),
        (10, 8, 0.5, 2),
    ] {
        for continuous in [false, true] {
            if !continuous && size > points {
                continue;
            }
            let spec = PowerSpectrum {
                size: Some(size),
                overlap,
                continuous,
                integrate: Some(integrate),
                ..PowerSpectrum::default()
            };
            let input = layout(&Samples::default(), points);
            // `run` compares the maximum before each call.
            run(
                &spec,
                &input,
                &frames((0..9).map(|_| vec![1; points])),
                &[1],
                None,
            );
        }
    }
    let spec = PowerSpectrum {
        size: Some(16),
        continuous: true,
        integrate: Some(1),
        ..PowerSpectrum::default()
    };
    let max = |points| {
        let facts = spec.input_facts(&layout(&Samples::default(), points));
        facts.max_outputs
    };
    assert_eq!([93 * 16, 93 * 16 + 1, 1].map(max), [93, 94, 1]);
}
