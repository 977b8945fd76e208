use super::super::trial::{Noise, frames, layout, run};
use super::super::{beamform, correlate};
use super::*;
use daq_core::kernel::KernelSpec;
use daq_core::layout::Samples;

const ALL_AXES: [Axes; 6] = [
    Axes::TimeAntennaChannel,
    Axes::TimeChannelAntenna,
    Axes::AntennaChannelTime,
    Axes::AntennaTimeChannel,
    Axes::ChannelAntennaTime,
    Axes::ChannelTimeAntenna,
];

fn voltages(order: Order) -> Layout {
    let samples = Samples {
        scalar: Scalar::Int8,
        complex: true,
        channels: 12,
        rate: None,
        order,
        ..Samples::default()
    };
    layout(&samples, 10)
}

/// Returns the layout of half of the bytes of each frame.
fn half(whole: &Layout) -> Layout {
    let mut share = whole.clone();
    match whole.order {
        Order::Planar => share.channels /= 2,
        Order::Interleaved => share.points /= 2,
    }
    share
}

/// Every order of axes is either refused, or the outputs for both halves of a frame are the halves of the output.
fn check(spec: impl Fn(Axes) -> Box<dyn KernelSpec>) {
    for order in [Order::Planar, Order::Interleaved] {
        let whole = voltages(order);
        let share = half(&whole);
        let mut accepted = Vec::new();
        for axes in ALL_AXES {
            let spec = spec(axes);
            if let Err(why) = spec.supports_share(&whole, &share, Spread::Parts) {
                assert!(why.contains("a share"), "{axes:?}: {why}");
                continue;
            }
            let bytes = Noise(7).numbers(Scalar::Int8, whole.frame_bytes());
            let output = |layout: &Layout, bytes: &[u8]| {
                run(&*spec, layout, &frames([bytes.to_vec()]), &[1], None).outputs[0]
                    .1
                    .clone()
            };
            let (one, other) = bytes.split_at(share.frame_bytes());
            let halves = [output(&share, one), output(&share, other)].concat();
            assert_eq!(output(&whole, &bytes), halves, "{axes:?}");
            accepted.push(axes);
        }
        let expected = match order {
            Order::Planar => &ALL_AXES[4..],
            Order::Interleaved => &[],
        };
        assert_eq!(accepted, expected, "{order:?}");
    }
}

#[test]
fn correlate_accepts_only_shares_of_channels() {
    check(|axes| {
        Box::new(correlate::Correlate {
            antennas: Some(3),
            axes: Some(axes),
            ..correlate::Correlate::default()
        })
    });
}

#[test]
fn beamform_accepts_only_shares_of_channels() {
    check(|axes| {
        Box::new(beamform::Beamform {
            antennas: Some(3),
            axes: Some(axes),
            ..beamform::Beamform::default()
        })
    });
    let more = beamform::Beamform {
        beams: 2,
        antennas: Some(3),
        axes: Some(Axes::ChannelTimeAntenna),
        ..beamform::Beamform::default()
    };
    let whole = voltages(Order::Planar);
    let why = more.supports_share(&whole, &half(&whole), Spread::Parts);
    assert!(why.is_err_and(|why| why.contains("beams = 1")));
}

/// The first problem must be the one whose fix also works if the input has other problems.
#[test]
fn problems_of_input_are_named_in_order_of_their_fixes() {
    let message = |input: &Layout| complex_samples(input, "correlate", None).unwrap_err();
    let real = Layout {
        complex: false,
        scalar: Scalar::Uint8,
        ..voltages(Order::Planar)
    };
    let values = Layout {
        axis: Axis::Fields(Vec::new()),
        ..real.clone()
    };
    assert!(message(&values).message.contains("not samples over time"));
    let problem = message(&real);
    assert!(problem.message.contains("not complex samples"));
    assert!(problem.help.unwrap().contains("channelize"));
    let complex = Layout {
        complex: true,
        ..real
    };
    assert!(message(&complex).help.unwrap().contains("convert"));
}
