use super::*;

fn samples(scalar: Scalar, complex: bool, channels: u32) -> Samples {
    Samples {
        scalar,
        complex,
        channels,
        ..Samples::default()
    }
}

#[test]
fn scalar_names_equal_configuration() {
    for scalar in Scalar::ALL {
        assert_eq!(serde_json::to_value(scalar).unwrap(), scalar.name());
        assert_eq!(
            serde_json::from_value::<Scalar>(scalar.name().into()).unwrap(),
            scalar
        );
    }
}

#[test]
fn packing_agrees_with_name_size_and_range() {
    for scalar in Scalar::ALL {
        let name = scalar.name();
        let digits: String = name.chars().filter(char::is_ascii_digit).collect();
        assert_eq!(scalar.bits().to_string(), digits);
        assert_eq!(scalar.is_float(), name.contains("float"));
        let range = scalar.range();
        assert_eq!(
            range.is_some_and(|(low, _)| low == 0),
            name.starts_with('u')
        );
        if let Some((low, high)) = range {
            assert_eq!(i128::from(high) - i128::from(low) + 1, 1 << scalar.bits());
        }
        let Some(packing) = scalar.packing() else {
            assert_eq!(scalar.bytes(), Some(scalar.bits() / 8));
            continue;
        };
        assert_eq!(packing.bits as usize, scalar.bits());
        assert_eq!(packing.signed, name.starts_with("int"));
        assert_eq!(packing.msb_first, name.ends_with("pmsb"));
        assert_eq!(scalar.bytes(), None);
    }
    let groups = [Scalar::Int4p, Scalar::Uint10p, Scalar::Uint12pmsb]
        .map(|scalar| scalar.packing().unwrap().group());
    assert_eq!(groups, [(2, 1), (4, 5), (2, 3)]);
}

#[test]
fn frame_bytes_and_points_of_packed_types_are_exact() {
    for scalar in Scalar::ALL {
        for (complex, channels) in [(false, 1), (true, 1), (false, 3), (true, 5), (false, 8)] {
            let samples = samples(scalar, complex, channels);
            let step = samples.point_bytes();
            for bytes in 0..4 * step {
                match samples.layout(bytes) {
                    Ok(layout) => {
                        let bits = layout.points * layout.sample_bits() * channels as usize;
                        assert_eq!(bits, bytes * 8, "{samples:?}");
                        assert_eq!(layout.frame_bytes(), bytes, "{samples:?}");
                    }
                    Err(rest) => assert_eq!(rest, bytes % step, "{samples:?}"),
                }
            }
        }
    }
    assert_eq!(
        samples(Scalar::Uint12p, false, 1).layout(9).unwrap().points,
        6
    );
    assert_eq!(samples(Scalar::Uint12p, false, 1).layout(8192), Err(2));
    assert_eq!(samples(Scalar::Uint10p, false, 1).layout(8), Err(3));
    // A complex pair of nibbles is one byte.
    assert_eq!(
        samples(Scalar::Int4pmsb, true, 1).layout(7).unwrap().points,
        7
    );
    // Three channels of 12 bits: a frame holds an even number of points.
    assert_eq!(samples(Scalar::Uint12p, false, 3).layout(6), Err(6));
    assert_eq!(
        samples(Scalar::Uint12p, false, 3).layout(9).unwrap().points,
        2
    );
}

#[test]
fn rate_of_outputs_follows_the_time_of_a_frame() {
    let rate = Some(crate::units::Frequency(1e6));
    let samples = Samples {
        rate,
        ..samples(Scalar::Int8, false, 1)
    };
    let whole = samples.layout(1000).unwrap();
    assert_eq!(whole.rate_of_points(1000), Some(1e6));
    assert_eq!(whole.rate_of_points(100), Some(1e5));
    assert_eq!(whole.rate_of_points(1), Some(1e3));
    // Every fourth frame: the samples within a frame keep their rate.
    let fewer = Layout {
        frame_rate: Some(250.0),
        is_contiguous: false,
        ..whole.clone()
    };
    assert_eq!(fewer.rate_of_points(1000), Some(1e6));
    assert_eq!(fewer.rate_of_points(100), Some(1e5));
    // Single points are as far apart as the frames.
    assert_eq!(fewer.rate_of_points(1), Some(250.0));
    assert!(fewer.is_contiguous_in(1) && !fewer.is_contiguous_in(100));
    // Frames without a sample rate fill the time between their starts, if they continue each other.
    let axis = Axis::Time { rate: None };
    let unknown = Layout {
        axis: axis.clone(),
        ..whole
    };
    assert_eq!(unknown.rate_of_points(100), Some(1e5));
    assert_eq!(Layout { axis, ..fewer }.rate_of_points(100), None);
}

#[test]
fn impossible_samples_are_rejected() {
    let shaped = |change: &dyn Fn(&mut Samples)| {
        let mut samples = samples(Scalar::Int16, false, 1);
        change(&mut samples);
        samples.shaped(samples.layout(4096).unwrap())
    };
    assert!(shaped(&|_| ()).is_ok());
    let rate = |hertz| Some(crate::units::Frequency(hertz));
    type Change<'a> = &'a dyn Fn(&mut Samples);
    let cases: [(Change, &str, &str); 4] = [
        (
            &|samples| samples.channels = 0,
            "samples.channels",
            "at least 1",
        ),
        (
            &|samples| samples.rate = rate(0.0),
            "samples.rate",
            "above 0",
        ),
        (
            &|samples| samples.rate = rate(-1.0),
            "samples.rate",
            "above 0",
        ),
        (
            &|samples| (samples.width, samples.height) = (Some(3_000_000_000), Some(3_000_000_000)),
            "samples",
            "larger than any frame",
        ),
    ];
    for (change, key, message) in cases {
        let problem = shaped(change).unwrap_err();
        assert_eq!(problem.key.as_deref(), Some(key));
        assert!(problem.message.contains(message), "{}", problem.message);
    }
}

#[test]
fn shapes_that_no_image_has_are_errors() {
    let module = |x, rotate| Module { x, y: 0, rotate };
    let shaped = |change: fn(&mut Samples), modules: &[Module]| {
        let mut samples = Samples {
            scalar: Scalar::Uint8,
            width: Some(4),
            height: Some(2),
            modules: modules.to_vec(),
            ..Samples::default()
        };
        change(&mut samples);
        let layout = samples.layout(16).unwrap();
        samples
            .shaped(layout)
            .err()
            .map(|problem| problem.to_string())
    };
    let pair = [module(0, 0), module(4, 0)];
    assert_eq!(shaped(|_| {}, &pair), None);
    let colors = |samples: &mut Samples| samples.colors = Some("BayerRG".to_owned());
    assert_eq!(shaped(colors, &pair), None);
    for (change, modules, problem) in [
        (
            (|_| {}) as fn(&mut Samples),
            [module(0, 0), module(3, 0)],
            "the modules 0 and 1 overlap",
        ),
        (
            |_| {},
            [module(0, 0), module(4, 45)],
            "rotated by 45 degrees",
        ),
        (|samples| samples.height = None, pair, "size of the images"),
        (
            |samples| samples.height = Some(3),
            pair,
            "contains 16 pixels",
        ),
        (
            |samples| samples.colors = Some("RGGB".to_owned()),
            pair,
            "`colors = \"RGGB\"` is not the notation of GenICam",
        ),
    ] {
        let found = shaped(change, &modules).unwrap_or_default();
        assert!(found.contains(problem), "{found:?} without {problem:?}");
    }
}
