//! Checks that the external Python package `zarr` can read stores.
//!
//! Searches for a Python with this package: `DAQ_TEST_PYTHON`, then `.venv/bin/python` in the repository's root.

use crate::support::{Feed, Sent, context, layout, spec};
use daq_core::frame::{Clock, Flags, FrameMeta, Timestamp};
use daq_core::layout::{Axis, Layout, Order, Scalar};
use daq_testkit::python;
use serde_json::json;
use std::path::PathBuf;

const ROWS: u64 = 11;

fn frame(n: u64, bytes: usize, packets_per_frame: u32) -> Sent {
    // The last of every eight bytes is chosen so that no float is a NaN.
    let byte = |i: u64| {
        if i % 8 == 7 || i % 4 == 3 {
            0x3f
        } else {
            (i * 5 + n) % 120
        }
    };
    let present = if packets_per_frame == 0 {
        0
    } else {
        ((1_u64 << packets_per_frame) - 1) & !(1 << (n % u64::from(packets_per_frame)))
    };
    let meta = FrameMeta {
        sequence: n + n / 4,
        epoch: 1,
        flags: if packets_per_frame == 0 {
            Flags::default()
        } else {
            Flags::INCOMPLETE
        },
        timestamp: Timestamp {
            ns: 1_700_000_000_000_000_000 + n,
            clock: Clock::Host,
        },
        length: bytes,
        packets_per_frame,
        arrived: present.count_ones(),
        ..FrameMeta::default()
    };
    Sent {
        meta,
        bytes: (0..bytes as u64)
            .map(|i| u8::try_from(byte(i)).unwrap())
            .collect(),
        present: if packets_per_frame > 0 {
            vec![present]
        } else {
            Vec::new()
        },
    }
}

#[test]
fn zarr_python_reads_every_layout() {
    let python = python!("zarr", "numpy");
    let dir = tempfile::tempdir().unwrap();
    let mut written = Vec::new();
    for (scalar, real, pair) in [
        (Scalar::Int8, "|i1", "|i1"),
        (Scalar::Uint8, "|u1", "|u1"),
        (Scalar::Int16, "<i2", "<i2"),
        (Scalar::Uint16, "<u2", "<u2"),
        (Scalar::Int32, "<i4", "<i4"),
        (Scalar::Uint32, "<u4", "<u4"),
        (Scalar::Int64, "<i8", "<i8"),
        (Scalar::Float16, "<f2", "<f2"),
        (Scalar::Float32, "<f4", "<c8"),
        (Scalar::Float64, "<f8", "<c16"),
        (Scalar::Int16be, ">i2", ">i2"),
        (Scalar::Uint32be, ">u4", ">u4"),
        (Scalar::Float32be, ">f4", ">c8"),
    ] {
        for (complex, channels, order, packets_per_frame) in [
            (false, 2, Order::Planar, 0),
            (true, 3, Order::Interleaved, 5),
            (true, 1, Order::Interleaved, 0),
        ] {
            let axis = Axis::Frequency {
                start: Some(-5e5),
                step: Some(31_250.0),
            };
            let axis = if complex {
                Axis::Time { rate: Some(1e6) }
            } else {
                axis
            };
            let layout = Layout {
                order,
                axis,
                ..layout(scalar, complex, channels, 32)
            };
            let bytes = layout.frame_bytes();
            let name = format!("{scalar}-{complex}-{channels}");
            let context = context(
                dir.path(),
                &name,
                layout.clone(),
                packets_per_frame,
                bytes.div_ceil(packets_per_frame.max(1) as usize),
            );
            let keys = format!("path = \".\"\nchunk = {}\ndescription = \"a µ\"", bytes * 4);
            let mut sink = spec("zarr", &name, &keys).unwrap().build(context).unwrap();
            let sent: Vec<_> = (0..ROWS)
                .map(|n| frame(n, bytes, packets_per_frame))
                .collect();
            Feed::new(8, bytes, packets_per_frame).give(&mut *sink, &sent);
            sink.finish().unwrap();
            let store = dir.path().join(format!("{name}-000000.zarr"));
            written.push((store, layout, sent, if complex { pair } else { real }));
        }
    }
    let stores: Vec<PathBuf> = written.iter().map(|w| w.0.clone()).collect();
    let seen = python.json_lines(include_str!("zarr_check.py"), &stores);
    assert_eq!(seen.len(), written.len());
    for (seen, (store, layout, sent, dtype)) in seen.iter().zip(&written) {
        let values = |name: &str| std::fs::read(format!("{}.{name}.bin", store.display())).unwrap();
        let frames = &seen["arrays"]["frames"];
        assert_eq!(frames["dtype"], json!(dtype), "{}", store.display());
        let (points, channels) = (layout.points as u64, u64::from(layout.channels));
        let (mut shape, mut names) = match layout.order {
            Order::Interleaved => (
                vec![ROWS, points, channels],
                vec!["frame", "point", "channel"],
            ),
            Order::Planar => (
                vec![ROWS, channels, points],
                vec!["frame", "channel", "point"],
            ),
        };
        if layout.complex && !dtype.contains('c') {
            shape.push(2);
            names.push("part");
        }
        assert_eq!(
            (&frames["shape"], &frames["dimensions"]),
            (&json!(shape), &json!(names))
        );
        shape[0] = 4;
        assert_eq!(frames["chunks"], json!(shape));
        let payload: Vec<u8> = sent.iter().flat_map(|frame| frame.bytes.clone()).collect();
        assert!(
            values("frames") == payload,
            "{}: python read other values",
            store.display()
        );
        let attributes = &frames["attributes"];
        assert_eq!(attributes["complex"], json!(u8::from(layout.complex)));
        let axis = match layout.axis {
            Axis::Time { .. } => json!({"axis": "time", "axis_rate": 1e6}),
            _ => json!({"axis": "frequency", "axis_start": -5e5, "axis_step": 31_250.0}),
        };
        for (key, value) in axis.as_object().unwrap() {
            assert_eq!(&attributes[key], value, "{key}");
        }
        // All frames have the time of the host, which xarray decodes.
        let units = &seen["arrays"]["timestamp_ns"]["attributes"]["units"];
        assert_eq!(*units, json!("nanoseconds since 1970-01-01"));
        // Other formats, such as netCDF, have no attributes that are objects or truth values.
        for array in seen["arrays"].as_object().unwrap().values() {
            let attributes = array["attributes"].as_object().unwrap();
            assert!(
                attributes
                    .values()
                    .all(|value| !value.is_object() && !value.is_boolean())
            );
        }
        let column = |of: fn(&FrameMeta) -> u64| -> Vec<u8> {
            sent.iter()
                .flat_map(|frame| of(&frame.meta).to_le_bytes())
                .collect()
        };
        assert_eq!(seen["arrays"]["sequence"]["dtype"], json!("<u8"));
        assert_eq!(values("sequence"), column(|meta| meta.sequence));
        assert_eq!(values("timestamp_ns"), column(|meta| meta.timestamp.ns));
        assert_eq!(values("length"), column(|meta| meta.length as u64));
        assert_eq!(values("clock"), [Clock::Host as u8].repeat(sent.len()));
        assert_eq!(
            seen["arrays"]["clock"]["attributes"]["flag_meanings"],
            json!("none host kernel sensor simulated recorded sensor-utc hardware recorded-utc")
        );
        if sent[0].meta.packets_per_frame > 0 {
            assert_eq!(seen["arrays"]["present"]["dtype"], json!("|b1"));
            let wanted: Vec<u8> = sent
                .iter()
                .flat_map(|frame| {
                    (0..5).map(|packet| u8::try_from(frame.present[0] >> packet & 1).unwrap())
                })
                .collect();
            assert_eq!(values("present"), wanted);
        }
        let group = &seen["attributes"];
        assert_eq!(
            (&group["state"], &group["description"]),
            (&json!("complete"), &json!("a µ"))
        );
        assert_eq!(group["source"], json!("raw"));
    }
}
