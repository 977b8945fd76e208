//! Tests user kernels without a GPU: keys, frames, messages, and compiling the unit.

mod compile;
mod header;
mod message;
mod params;

use super::*;
use daq_core::config::{Diagnostics, Document};
use daq_core::entry::Registry;
use daq_core::layout::{Axis, Image, Order, Samples, Scalar};
use daq_core::units::Frequency;

/// Parses a kernel's section; errors are returned as text.
fn parse(keys: &str) -> Result<FileKernel, String> {
    let text = format!("[kernel.k]\ninput = \"a\"\noutput = \"b\"\n{keys}\n");
    let mut diagnostics = Diagnostics::new();
    let document = Document::from_text("test.toml", &text, &mut diagnostics);
    let mut section = document.sections("kernel").remove(0);
    for ring in ["input", "output"] {
        section.take_string(ring, &[], &mut diagnostics);
    }
    let mut again = section.clone();
    let spec = (ENTRY.parse)(&mut section, &Registry::default(), &mut diagnostics);
    if spec.is_none() || !diagnostics.is_empty() {
        return Err(diagnostics.render(document.sources(), false));
    }
    Ok(again.finish(&[], &mut diagnostics).unwrap())
}

fn input() -> Layout {
    Samples {
        scalar: Scalar::Int16,
        complex: true,
        channels: 2,
        rate: Some(Frequency(1e6)),
        ..Samples::default()
    }
    .layout(8000)
    .unwrap()
}

#[test]
fn file_example_is_valid_and_shows_common_keys() {
    let opened = ENTRY.example.replace("# ", "");
    let keys: Vec<&str> = opened
        .lines()
        .filter(|line| {
            line.split_once(" = ")
                .is_some_and(|(key, _)| !key.contains(' '))
        })
        .filter(|line| !line.starts_with("input") && !line.starts_with("output"))
        .collect();
    let kernel = parse(&keys.join("\n")).unwrap();
    assert_eq!(kernel.params.len(), 2);
    let schema = schemars::schema_for!(FileKernel);
    for (key, about) in schema.as_value()["properties"].as_object().unwrap() {
        let is_shown = keys
            .iter()
            .any(|line| line.starts_with(&format!("{key} = ")));
        assert!(is_shown || key == "entry", "{key}");
        assert!(
            !about["description"].as_str().unwrap_or("").is_empty(),
            "{key}"
        );
    }
}

#[test]
fn omitted_keys_have_defaults() {
    let kernel = parse("file = \"a/my.cu\"").unwrap();
    assert_eq!(kernel, FileKernel::new("a/my.cu"));
    assert_eq!((kernel.threads, kernel.blocks(&input())), (256, 1));
    let large = Layout {
        points: 1 << 20,
        ..input()
    };
    assert_eq!(kernel.blocks(&large), 256);
    assert_eq!(
        kernel.blocks(&Layout {
            points: 5000,
            ..input()
        }),
        3
    );
    assert_eq!(kernel.layout(&input()), Ok(input()));
    let facts = kernel.input_facts(&input());
    assert!(facts.runs_on(Side::Cuda(3)) && !facts.runs_on(Side::Cpu));
}

#[test]
fn parameters_of_every_type_are_parsed() {
    let kernel = parse(
        "file = \"my.cu\"\nparams = { a = 1, b = -2.5, c = true, d = [1, 2.0, false], e = inf, f = 0xFF }",
    )
    .unwrap();
    let array = vec![Value::Integer(1), Value::Float(2.0), Value::Boolean(false)];
    for (key, value) in [
        ("a", Value::Integer(1)),
        ("b", Value::Float(-2.5)),
        ("c", Value::Boolean(true)),
        ("d", Value::Array(array)),
        ("e", Value::Float(f64::INFINITY)),
        ("f", Value::Integer(255)),
    ] {
        assert_eq!(kernel.params[key], value, "{key}");
    }
    assert_eq!(kernel.params["d"].to_string(), "[1, 2.0, false]");
}

/// Checks that every error is reported with its location and a remedy.
#[test]
fn wrong_keys_are_reported_with_location() {
    let whole = [
        ("threads = 32", "1:", "missing key `file`"),
        ("file = \"my.c\"", "4:8", "ends in .cu"),
        ("file = \"my.ptx\"\nentry = \"f()\"", "5:9", "DAQ_ENTRY"),
        (
            "file = \"my.ptx\"\noptions = [\"-G\"]",
            "5:11",
            "already compiled",
        ),
    ];
    let keys = [
        ("threads = 100", "5:11", "a multiple of 32"),
        ("threads = 2048", "5:11", "a multiple of 32"),
        ("threads = 0", "5:11", "a multiple of 32"),
        ("blocks = 0", "5:10", "1 to 65535"),
        ("shared = \"1 GiB\"", "5:10", "no GPU has 1 GiB"),
        ("entry = \"f\"", "5:9", "remove `entry`"),
        (
            "options = [\"-G\", \"-arch=sm_80\"]",
            "5:18",
            "remove this option",
        ),
        (
            "params = { \"a-b\" = 1 }",
            "5:20",
            "not a valid C++ member name",
        ),
        (
            "params = { a = \"x\" }",
            "5:16",
            "a number, a boolean or an array",
        ),
        ("params = { a = [1, [2]] }", "5:20", "in one list"),
        ("param = { a = 1 }", "5:1", "did you mean `params`?"),
        ("frame = { typ = \"int8\" }", "5:11", "did you mean `type`?"),
        ("frame = { type = \"int9\" }", "5:18", "int8"),
        ("frame = { points = 0 }", "5:20", "at least 1"),
        ("frame = { channels = 0 }", "5:22", "at least 1"),
        ("frame = { fields = [] }", "5:20", "at least 1"),
        (
            "frame = { points = 3, fields = [\"a\"] }",
            "5:20",
            "remove `points`",
        ),
        (
            "frame = { rate = \"1 Hz\", step = \"1 Hz\" }",
            "5:18",
            "either `rate`",
        ),
        (
            "frame = { axis = \"time\", start = \"1 Hz\" }",
            "5:34",
            "either `rate`",
        ),
        (
            "frame = { axis = \"time\", fields = [\"a\"] }",
            "5:35",
            "either `rate`",
        ),
    ];
    let whole = whole.map(|(text, place, says)| (text.to_owned(), place, says));
    let keys = keys.map(|(key, place, says)| (format!("file = \"my.cu\"\n{key}"), place, says));
    for (text, place, says) in whole.into_iter().chain(keys) {
        let message = parse(&text).unwrap_err();
        assert!(
            message.contains(&format!("test.toml:{place}")) && message.contains(says),
            "{text}\n{message}"
        );
        assert_eq!(message.matches("error: ").count(), 1, "{message}");
    }
}

fn framed(frame: &str, input: &Layout) -> Result<Layout, Problem> {
    parse(&format!("file = \"my.cu\"\nframe = {frame}"))
        .unwrap()
        .layout(input)
}

#[test]
fn output_frame_is_declared_or_equal_to_input() {
    let input = input();
    assert_eq!((input.points, input.frame_rate), (1000, Some(1000.0)));
    let floats = framed(
        "{ type = \"float32\", complex = false, order = \"planar\" }",
        &input,
    );
    assert_eq!(
        floats,
        Ok(Layout {
            scalar: Scalar::Float32,
            complex: false,
            order: Order::Planar,
            ..input.clone()
        })
    );
    // With a tenth of the points, the default rate is a tenth of the input's rate.
    let thinned = framed("{ points = 100 }", &input).unwrap();
    assert_eq!(
        (thinned.axis, thinned.frame_rate),
        (Axis::Time { rate: Some(1e5) }, Some(1000.0))
    );
    // Behind `select` with `every`, the points within a frame keep their rate.
    let fewer = Layout {
        frame_rate: Some(250.0),
        is_contiguous: false,
        ..input.clone()
    };
    let thinned = framed("{ points = 100 }", &fewer).unwrap();
    assert_eq!(thinned.axis, Axis::Time { rate: Some(1e5) });
    assert!(!thinned.is_contiguous);
    let one = framed("{ points = 1 }", &fewer).unwrap();
    assert_eq!(one.axis, Axis::Time { rate: Some(250.0) });
    assert!(one.is_contiguous);
    // A kernel that computes colours from those behind a filter.
    let image = |colors: Option<&str>| {
        Axis::Pixels(Image {
            width: 50,
            height: 20,
            colors: colors.map(str::to_owned),
            modules: Vec::new(),
        })
    };
    let pixels = Layout {
        axis: image(Some("BayerRG")),
        ..input.clone()
    };
    let colours = framed("{ channels = 3 }", &pixels).unwrap();
    assert_eq!(colours.axis, image(None));
    assert_eq!(
        framed("{ type = \"float32\" }", &pixels).unwrap().axis,
        pixels.axis
    );
    let output = framed("{ points = 100, rate = \"5 Hz\" }", &input).unwrap();
    assert_eq!(output.axis, Axis::Time { rate: Some(5.0) });
    let spectrum = framed("{ points = 8, step = \"2 kHz\" }", &input).unwrap();
    let axis = Axis::Frequency {
        start: None,
        step: Some(2000.0),
    };
    assert_eq!(spectrum.axis, axis);
    // The frequencies of a spectrum with another number of points are unknown.
    let again = framed("{ type = \"int8\" }", &spectrum).unwrap();
    assert_eq!(again.axis, axis);
    let fewer = framed("{ points = 4 }", &spectrum).unwrap();
    assert_eq!(
        fewer.axis,
        Axis::Frequency {
            start: None,
            step: None
        }
    );
    let named = framed("{ fields = [\"mean\", \"rms\"], channels = 1 }", &input).unwrap();
    assert_eq!((named.points, named.channels), (2, 1));
    assert_eq!(framed("{ type = \"int8\" }", &named).unwrap().points, 2);
    let error = framed("{ points = 3 }", &named).unwrap_err();
    assert_eq!(error.key.as_deref(), Some("frame.points"));
    assert_eq!(
        framed("{ points = 3, axis = \"time\" }", &named)
            .unwrap()
            .axis,
        Axis::Time { rate: Some(3000.0) }
    );
    let error = framed("{ points = 1000000000000 }", &input).unwrap_err();
    assert!(error.message.contains("larger than 1 TiB"), "{error}");
}

#[test]
fn missing_file_is_reported_with_searched_path() {
    let directory = tempfile::tempdir().unwrap();
    let message = FileKernel::new("none.cu")
        .image(directory.path(), (9, 0), unit::Entry::Burst)
        .unwrap_err();
    let message = format!("{message}");
    assert!(
        message.contains("none.cu") && message.contains(directory.path().to_str().unwrap()),
        "{message}"
    );
    std::fs::write(directory.path().join("bad.cu"), b"ab\xff").unwrap();
    let message = FileKernel::new("bad.cu").image(directory.path(), (9, 0), unit::Entry::Burst);
    let message = message.unwrap_err().to_string();
    assert!(
        message.contains("byte 2 of") && message.contains("UTF-8"),
        "{message}"
    );
    // Files that are already compiled are not checked further.
    std::fs::write(directory.path().join("a.ptx"), b"\x00\xff").unwrap();
    let image = FileKernel::new("a.ptx").image(directory.path(), (9, 0), unit::Entry::Burst);
    assert_eq!(image.unwrap(), b"\x00\xff");
}

#[test]
fn file_kernel_without_gpu_is_rejected() {
    let context = KernelContext::alone(&input(), Side::Cpu);
    let error = FileKernel::new("my.cu").build(&context).err().unwrap();
    assert!(error.to_string().contains("GPU code"), "{error}");
}
