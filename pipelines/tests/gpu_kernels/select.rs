//! Checks that `select` gives the same bytes, metadata and counts on CPU and GPU.

use super::device;
use super::trial::{Noise, both, disturb, every_type, frames, layout};
use daq_core::layout::Scalar;
use daq_pipelines::kernels::Select;
use daq_pipelines::kernels::select::{Flag, Indices, Parts, Range};

#[test]
fn select_bytes_equal_cpu() {
    let Some(device) = device() else { return };
    let mut noise = Noise(1);
    let range = |first, count, step| Some(Indices::Range(Range { first, count, step }));
    let scalars = [
        Scalar::Uint8,
        Scalar::Uint16,
        Scalar::Float32,
        Scalar::Float64,
    ];
    for samples in every_type(&scalars, &[1, 2, 6, 40]) {
        for points in [24, 600] {
            let input = layout(&samples, points);
            let channels = input.channels as usize;
            let list = vec![channels - 1, 0];
            let selections = [
                Select::default(),
                Select {
                    points: range(8, Some(3), 5),
                    ..Select::default()
                },
                Select {
                    points: range(0, None, 2),
                    channels: range(channels / 2, None, 1),
                    every: 2,
                    ..Select::default()
                },
                Select {
                    channels: (channels > 1).then_some(Indices::List(list)),
                    drop: vec![Flag::Incomplete],
                    ..Select::default()
                },
                Select {
                    parts: Some(Parts {
                        count: 2,
                        keep: vec![1],
                    }),
                    ..Select::default()
                },
                Select {
                    parts: Some(Parts {
                        count: 2,
                        keep: vec![1, 0],
                    }),
                    points: Some(Indices::List(vec![7, 2, 3])),
                    drop: vec![Flag::Epoch, Flag::Suspect],
                    every: 3,
                    ..Select::default()
                },
            ];
            for spec in selections {
                let given = (0..12).map(|_| noise.numbers(samples.scalar, input.numbers()));
                let mut given = frames(given);
                disturb(&mut given, &mut noise);
                let what = format!("{samples:?} {points} points, {spec:?}");
                for (made, want) in both(&spec, &input, &given, &[2, 5], device, &what) {
                    assert!(made == want, "{what}: {made:?} {want:?}");
                }
            }
        }
    }
}
