//! Images, named values and parts.

use super::*;
use daq_core::layout::{Image, Module};

#[test]
fn images_keep_their_rows_and_channels() {
    let samples = SampleKeys {
        scalar: Scalar::Uint8,
        rate: None,
        ..int16(1)
    };
    let (mut fixture, mut ring) = scoped(&samples, 6 * 4, 0);
    let pixels = || (0..24).collect::<Vec<u8>>();
    let message = reduced(&mut fixture, &ring, meta(0), pixels(), "row=6");
    assert_eq!(message.header["image"]["pixels"], serde_json::json!([4, 6]));
    assert_eq!(
        message.data["image"],
        pixels().into_iter().map(f32::from).collect::<Vec<_>>()
    );
    assert_eq!(message.header["histogram"]["low_limit"], Value::Null);
    // Two modules of two rows and six columns, the second one upside down below the first one.
    let turned = Module {
        x: 0,
        y: 3,
        rotate: 180,
    };
    let image = Image {
        width: 6,
        height: 2,
        colors: None,
        modules: vec![Module::default(), turned],
    };
    ring.layout.axis = Axis::Pixels(image.clone());
    let message = reduced(&mut fixture, &ring, meta(1), pixels(), "");
    assert_eq!(message.header["image"]["pixels"], serde_json::json!([5, 6]));
    let shown = &message.data["image"];
    let expected: Vec<f32> = (0_u8..12).chain((12..24).rev()).map(f32::from).collect();
    assert_eq!([&shown[..12], &shown[18..]].concat(), expected);
    assert!(shown[12..18].iter().all(|value| value.is_nan()));
    // A part is one module, at its place.
    ring.parts = vec!["upper".into(), "lower".into()];
    let message = reduced(&mut fixture, &ring, meta(1), pixels(), "part=1");
    assert_eq!(message.header["image"]["pixels"], serde_json::json!([5, 6]));
    let shown = &message.data["image"];
    assert!(shown[..18].iter().all(|value| value.is_nan()));
    assert_eq!(shown[18..], expected[12..]);
    ring.parts.clear();
    // A row in the address shows the rows as they are stored.
    let message = reduced(&mut fixture, &ring, meta(1), pixels(), "row=12");
    assert_eq!(
        message.header["image"]["pixels"],
        serde_json::json!([2, 12])
    );
    // Frees the slots.
    assert_eq!(fixture.read().len(), 4);
    // Four pixels of three colours.
    let colours = Layout {
        channels: 3,
        points: 8,
        axis: Axis::Pixels(Image {
            width: 4,
            modules: Vec::new(),
            ..image.clone()
        }),
        ..ring.layout.clone()
    };
    ring.layout = colours;
    let message = reduced(&mut fixture, &ring, meta(1), pixels(), "");
    assert_eq!(message.header["image"]["kind"], "colours");
    assert_eq!(
        message.data["image"],
        pixels().into_iter().map(f32::from).collect::<Vec<_>>()
    );
    // The second half of the pixels, which is a part.
    ring.parts = vec!["upper".into(), "lower".into()];
    let message = reduced(&mut fixture, &ring, meta(1), pixels(), "part=1");
    let shown = &message.data["image"];
    assert!(shown[..12].iter().all(|value| value.is_nan()));
    assert_eq!(shown[12..], (12_u8..24).map(f32::from).collect::<Vec<_>>());
    ring.parts.clear();
    // Three values for each pixel that are not red, green and blue.
    let declared = |colors: &str| {
        Axis::Pixels(Image {
            width: 4,
            colors: Some(colors.to_owned()),
            modules: Vec::new(),
            ..image.clone()
        })
    };
    ring.layout.axis = declared("YUV");
    let message = reduced(&mut fixture, &ring, meta(1), pixels(), "channel=2");
    assert_eq!(message.header["image"]["kind"], "pixels");
    assert_eq!(message.header["image"]["channel"], 2);
    assert_eq!(
        message.data["image"],
        [2.0, 5.0, 8.0, 11.0, 14.0, 17.0, 20.0, 23.0]
    );
    ring.layout.axis = declared("BGR");
    let message = reduced(&mut fixture, &ring, meta(1), pixels(), "");
    assert_eq!(message.header["image"]["kind"], "colours");
    assert_eq!(message.data["image"][..6], [2.0, 1.0, 0.0, 5.0, 4.0, 3.0]);
    // Three spectra of eight bins.
    ring.layout = Layout {
        channels: 3,
        points: 8,
        order: Order::Planar,
        axis: Axis::Frequency {
            start: Some(1.0),
            step: Some(2.0),
        },
        ..ring.layout
    };
    let message = reduced(&mut fixture, &ring, meta(2), pixels(), "channel=2");
    assert_eq!(message.header["image"]["kind"], "channels");
    assert_eq!(message.data["image"].len(), 24);
    assert_eq!(
        message.data["waterfall"],
        (16_u8..24).map(f32::from).collect::<Vec<_>>()[..]
    );
}

#[test]
fn images_behind_a_colour_filter_are_shown_in_colours() {
    let samples = SampleKeys {
        scalar: Scalar::Uint8,
        rate: None,
        ..int16(1)
    };
    let (mut fixture, mut ring) = scoped(&samples, 5 * 5, 0);
    ring.layout.axis = Axis::Pixels(Image {
        width: 5,
        height: 5,
        colors: Some("BayerRG".to_owned()),
        modules: Vec::new(),
    });
    // R G R G R    The last row and the last column belong to the cells before them.
    // G B G B G
    let pixels = || (0..25).collect::<Vec<u8>>();
    let message = reduced(&mut fixture, &ring, meta(0), pixels(), "");
    assert_eq!(message.header["image"]["kind"], "colours");
    assert_eq!(message.header["image"]["pixels"], serde_json::json!([5, 5]));
    let cells = [
        [0.0, 3.0, 6.0],
        [3.0, (3.0 + 7.0 + 9.0) / 3.0, 8.0],
        [15.0, (11.0 + 15.0 + 21.0) / 3.0, 16.0],
        [
            (12.0 + 14.0 + 22.0 + 24.0) / 4.0,
            (13.0 + 17.0 + 19.0 + 23.0) / 4.0,
            18.0,
        ],
    ];
    let cell = |row: usize, column: usize| cells[row.min(2) / 2 * 2 + column.min(2) / 2];
    for row in 0..5 {
        for column in 0..5 {
            let shown = &message.data["image"][(5 * row + column) * 3..][..3];
            assert_eq!(shown, cell(row, column), "row {row}, column {column}");
        }
    }
    // A row in the address shows the values as they are stored.
    let message = reduced(&mut fixture, &ring, meta(1), pixels(), "row=5");
    assert_eq!(message.header["image"]["kind"], "rows");
    let expected: Vec<f32> = pixels().into_iter().map(f32::from).collect();
    assert_eq!(message.data["image"], expected);
}

#[test]
fn modules_behind_a_colour_filter_have_cells_of_their_own() {
    let samples = SampleKeys {
        scalar: Scalar::Uint8,
        rate: None,
        ..int16(1)
    };
    let (mut fixture, mut ring) = scoped(&samples, 8, 0);
    // Beside a gap of one column, the second module is upside down.
    let turned = Module {
        x: 3,
        y: 0,
        rotate: 180,
    };
    ring.layout.axis = Axis::Pixels(Image {
        width: 2,
        height: 2,
        colors: Some("BayerGR".to_owned()),
        modules: vec![Module::default(), turned],
    });
    let equal = |a: &[f32], row: [[f32; 3]; 5]| {
        let b = [row, row];
        let pairs = a.iter().zip(b.as_flattened().as_flattened());
        a.len() == 30
            && pairs
                .into_iter()
                .all(|(a, b)| a == b || a.is_nan() && b.is_nan())
    };
    // G R    1 2    5 6
    // B G    3 4    7 8
    let message = reduced(&mut fixture, &ring, meta(0), (1..=8).collect(), "");
    assert_eq!(message.header["image"]["pixels"], serde_json::json!([2, 5]));
    let (first, none, second) = ([2.0, 2.5, 3.0], [f32::NAN; 3], [6.0, 6.5, 7.0]);
    let shown = &message.data["image"];
    assert!(
        equal(shown, [first, first, none, second, second]),
        "{shown:?}"
    );
    ring.parts = vec!["first".into(), "second".into()];
    let message = reduced(&mut fixture, &ring, meta(1), (1..=8).collect(), "part=1");
    let shown = &message.data["image"];
    assert!(
        equal(shown, [none, none, none, second, second]),
        "{shown:?}"
    );
}

#[test]
fn large_images_are_reduced_by_the_rule_of_the_page() {
    let samples = SampleKeys {
        scalar: Scalar::Uint8,
        rate: None,
        ..int16(1)
    };
    let rows = 500;
    let (mut fixture, mut ring) = scoped(&samples, rows, 0);
    ring.layout.axis = Axis::Pixels(Image {
        width: 1,
        height: u32::try_from(rows).unwrap(),
        colors: None,
        modules: Vec::new(),
    });
    let pixels = (0..rows).map(|row| (row % 251) as u8).collect();
    let message = reduced(&mut fixture, &ring, meta(0), pixels, "");
    let shown = &message.data["image"];
    assert_eq!(shown.len(), reduce::IMAGE.0);
    for row in 0..rows {
        let cell = points::column_of(row, shown.len(), rows);
        let difference = (shown[cell] - (row % 251) as f32).abs();
        assert!(
            difference <= 0.5 || row % 251 < 2 || row % 251 > 249,
            "row {row}"
        );
    }
}

#[test]
fn named_values_and_parts_are_selected() {
    let samples = SampleKeys {
        scalar: Scalar::Uint8,
        rate: None,
        ..int16(1)
    };
    let (mut fixture, mut ring) = scoped(&samples, 12, 0);
    ring.parts = vec!["50000".into(), "50001".into(), "50002".into()];
    let message = reduced(&mut fixture, &ring, meta(0), (0..12).collect(), "part=1");
    assert_eq!(message.data["min"], [4.0, 5.0, 6.0, 7.0]);
    assert_eq!(message.header["parts"][2], "50002");
    ring.layout = Layout {
        channels: 2,
        points: 6,
        axis: Axis::Fields((0..6).map(|i| format!("f{i}")).collect()),
        ..ring.layout
    };
    let message = reduced(&mut fixture, &ring, meta(1), (0..12).collect(), "channel=1");
    assert_eq!(message.data["values"], [1.0, 3.0, 5.0, 7.0, 9.0, 11.0]);
    assert_eq!(message.header["axis"]["names"][5], "f5");
}

#[test]
fn frames_of_several_blocks_are_reduced_as_a_whole() {
    let points = 3 * points::BLOCK + 1000;
    let (mut fixture, ring) = scoped(&int16(1), 2 * points, 0);
    let values = || (0..points).map(|i| i16::try_from(i % 1000).unwrap());
    let query = "width=16&row=500&size=65536";
    let message = reduced(&mut fixture, &ring, meta(0), bytes_of(values()), query);
    assert_eq!(message.data["min"], [0.0; 16]);
    assert_eq!(message.data["max"], [999.0; 16]);
    assert_eq!(message.header["histogram"]["count"], points);
    assert_eq!(message.data["histogram"].iter().sum::<f32>(), points as f32);
    assert_eq!(message.data["waterfall"].len(), 3 * (32768 + 1));
    // Rows of 500 points contain the numbers 0 to 499 and 500 to 999 in turn; one row of the image is the mean of 1 or 2 rows.
    let image = &message.data["image"];
    assert_eq!(image.len(), 384 * 500);
    for cell in [0, 383 * 500] {
        assert!(
            [0.0, 250.0, 500.0].contains(&image[cell]),
            "{}",
            image[cell]
        );
    }
    // The curve of a part of the frame across the border of two blocks.
    let query = format!("first={}&points=16&width=16", points::BLOCK - 8);
    let message = reduced(&mut fixture, &ring, meta(1), bytes_of(values()), &query);
    let expected = (points::BLOCK - 8..points::BLOCK + 8).map(|i| (i % 1000) as f32);
    assert_eq!(message.data["max"], expected.collect::<Vec<_>>());
}
