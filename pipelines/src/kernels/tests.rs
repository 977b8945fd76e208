use super::trial::{Outcome, run};
use super::*;
use daq_core::config::{Diagnostics, Document};
use daq_core::entry::Registry;
use daq_core::kernel::{KernelContext, KernelSpec, Side};
use daq_core::layout::{Samples, Scalar};
use daq_core::ledger::RingLedger;
use daq_core::region::{HostOptions, Region};
use daq_core::ring::{Ring, RingOptions};

/// Parses a kernel's section through its registry entry; errors are returned as text.
pub(super) fn parse(text: &str) -> Result<Box<dyn KernelSpec>, String> {
    let mut diagnostics = Diagnostics::new();
    let document = Document::from_text("test.toml", text, &mut diagnostics);
    let mut section = document.sections("kernel").remove(0);
    let mut spec = None;
    if let Some((name, _)) = section.take_string("use", &[], &mut diagnostics) {
        for ring in ["input", "output"] {
            section.take_string(ring, &[], &mut diagnostics);
        }
        let entry = KERNELS.iter().find(|entry| entry.name == name).unwrap();
        spec = (entry.parse)(&mut section, &Registry::default(), &mut diagnostics);
    }
    match spec {
        Some(spec) if diagnostics.is_empty() => Ok(spec),
        _ => Err(diagnostics.render(document.sources(), false)),
    }
}

/// Returns the numbers of consumed, accumulating and failed frames after all calls, counted as in the runtime.
pub(super) fn sums(outcome: &Outcome) -> [u64; 3] {
    let mut sums = [0; 3];
    for call in &outcome.calls {
        sums[0] += call.consumed + call.released;
        sums[1] = sums[1] + call.accumulating - call.released - call.dropped;
        sums[2] += call.failed + call.dropped;
    }
    sums
}

/// Prints the throughput of the kernel `spec` for frames with the layout `input` that fit into the CPU's cache.
pub(super) fn figure(what: &str, spec: &dyn KernelSpec, input: &Layout) {
    // No byte is all ones, so that no float is infinite or NaN.
    let byte = |i: usize| u8::try_from(i * 37 % 113).unwrap();
    let frame: Vec<u8> = (0..input.frame_bytes()).map(byte).collect();
    let given = trial::frames(vec![frame; 4]);
    let (mut bytes, mut busy) = (0, std::time::Duration::ZERO);
    while busy.as_secs_f64() < 0.5 {
        busy += run(spec, input, &given, &[4], None).busy;
        bytes += given.len() * input.frame_bytes();
    }
    println!(
        "{what}: {:.2} GB/s of input",
        bytes as f64 / 1e9 / busy.as_secs_f64()
    );
}

/// Returns samples of a type that a kernel accepts: complex samples for kernels of antennas.
fn accepted(entry: &KernelEntry, scalar: Scalar) -> Samples {
    Samples {
        scalar,
        complex: matches!(entry.name, "correlate" | "beamform"),
        ..Samples::default()
    }
}

/// Returns the kernels that do not need a user's file.
fn built_in() -> impl Iterator<Item = &'static KernelEntry> {
    KERNELS
        .iter()
        .filter(|entry| entry.name != daq_core::plan::FILE_KERNEL)
}

#[test]
fn kernel_examples_are_valid_and_show_every_key() {
    for entry in built_in() {
        let input = accepted(entry, Scalar::Int16).layout(8192).unwrap();
        let spec = parse(entry.example).unwrap_or_else(|errors| panic!("{}: {errors}", entry.name));
        spec.layout(&input)
            .unwrap_or_else(|problem| panic!("{}: {problem}", entry.name));
        let schema = (entry.schema)(&Registry::default());
        let keys = schema.as_value()["properties"].as_object().unwrap();
        for (key, about) in keys {
            assert!(
                entry.example.contains(&format!("# {key} = ")),
                "{}: `{key}` is not shown",
                entry.name
            );
            assert!(
                about["description"]
                    .as_str()
                    .is_some_and(|text| !text.is_empty()),
                "{key}"
            );
        }
    }
}

#[test]
fn kernel_examples_uncommented_are_valid() {
    for entry in built_in() {
        let input = Samples {
            rate: Some(daq_core::units::Frequency(1e6)),
            // The example of `power-spectrum` has pairs of channels.
            channels: if entry.name == "power-spectrum" { 4 } else { 1 },
            ..accepted(entry, Scalar::Int16)
        };
        let is_key = |line: &str| {
            line.split_once(" = ")
                .is_some_and(|(key, _)| !key.contains(' '))
        };
        let opened: String = entry
            .example
            .lines()
            .map(|line| {
                line.strip_prefix("# ")
                    .filter(|rest| is_key(rest))
                    .unwrap_or(line)
            })
            .fold(String::new(), |text, line| text + line + "\n");
        let spec = parse(&opened).unwrap_or_else(|errors| panic!("{}: {errors}", entry.name));
        spec.layout(&input.layout(65_536).unwrap()).unwrap();
    }
}

#[test]
fn config_errors_locate_value_and_name_correction() {
    let says = |keys: &str| {
        let text = keys.split_once('\n').unwrap();
        let text = format!(
            "[kernel.k]\nuse = \"{}\"\ninput = \"a\"\noutput = \"b\"\n{}\n",
            text.0, text.1
        );
        parse(&text).map(|_| ()).unwrap_err()
    };
    let unknown = says("convert\nscala = 2");
    assert!(
        unknown.contains("test.toml:5:1") && unknown.contains("did you mean `scale`?"),
        "{unknown}"
    );
    let wrong = says("convert\nscale = \"half\"");
    assert!(
        wrong.contains("a number or \"full\"") && wrong.contains("test.toml:5:9"),
        "{wrong}"
    );
    assert!(says("convert\nscale = 0").contains("destroys the samples"));
    for (keys, key) in [
        ("convert\nscale = 1e-60", "`scale` cannot be 1e-60"),
        ("convert\nscale = 1e60", "`scale` cannot be 1e60"),
        ("convert\noffset = 1e308", "`offset` cannot be 1e308"),
        ("correlate\nscale = 1e-60", "`scale` cannot be 1e-60"),
        ("beamform\nscale = 1e60", "`scale` cannot be 1e60"),
        ("channelize\nscale = 1e-40", "`scale` cannot be 1e-40"),
        (
            "power-spectrum\nwindow = { kind = \"gaussian\", std = 1e-60 }",
            "at least 0.1",
        ),
    ] {
        let error = says(keys);
        assert!(error.contains(key), "{error}");
    }
    assert!(says("power-spectrum\nsize = 1").contains("at least 2"));
    assert!(says("power-spectrum\nintegrate = 0").contains("at least 1"));
    assert!(says("power-spectrum\noverlap = 0.95").contains("0.9"));
    assert!(says("power-spectrum\nwindow = \"han\"").contains("hann"));
    assert!(says("stats\nrange = [1.0, 1.0]").contains("range"));
    assert!(says("stats\nevery = 0").contains("at least 1"));
}

/// Each kernel supports a type on both sides, or rejects it with an error that names the type and the fix.
#[test]
fn kernels_accept_types_or_name_the_fix() {
    for entry in built_in() {
        let spec = parse(entry.example).unwrap();
        let mut count = 0;
        for scalar in Scalar::ALL {
            let input = trial::layout(&accepted(entry, scalar), 4096);
            match spec.layout(&input) {
                Ok(_) => {
                    count += 1;
                    let context = KernelContext::alone(&input, Side::Cpu);
                    assert!(spec.build(&context).is_ok(), "{} {scalar}", entry.name);
                }
                Err(problem) => {
                    let (message, help) = (&problem.message, problem.help.as_deref());
                    assert!(message.contains(scalar.name()), "{message}");
                    assert!(message.contains(entry.name), "{message}");
                    assert!(
                        help.is_some_and(|help| help.contains("convert")),
                        "{help:?}"
                    );
                    let context = KernelContext::alone(&input, Side::Cpu);
                    assert!(spec.build(&context).is_err(), "{} {scalar}", entry.name);
                }
            }
        }
        let want = match entry.name {
            "convert" | "select" => Scalar::ALL.len(),
            "correlate" | "beamform" => 4,
            _ => 7,
        };
        assert_eq!(count, want, "{}", entry.name);
    }
}

#[test]
fn kernel_processors_match_capabilities() {
    for entry in built_in() {
        let samples = accepted(entry, Scalar::Int8);
        let (short, long) = (
            samples.layout(4096).unwrap(),
            samples.layout(1 << 31).unwrap(),
        );
        let spec = parse(entry.example).unwrap();
        for (input, gpu) in [(&short, true), (&long, false)] {
            let facts = spec.input_facts(input);
            let has = (facts.runs_on_cpu, facts.runs_on_gpu);
            assert_eq!(has, (true, gpu), "{}", entry.name);
        }
    }
    let samples = Samples::default();
    let short = samples.layout(4096).unwrap();
    let spectrum = |size| PowerSpectrum {
        size: Some(size),
        ..PowerSpectrum::default()
    };
    for (size, gpu) in [
        (2, true),
        (2520, true),
        (4095, false),
        (4096, true),
        (11, false),
    ] {
        let facts = spectrum(size).input_facts(&short);
        assert_eq!(facts.runs_on_gpu, gpu, "{size}");
        assert!(facts.runs_on_cpu);
    }
    let input = samples.layout(1 << 21).unwrap();
    assert!(spectrum(1 << 20).input_facts(&input).runs_on_gpu);
    assert!(!spectrum(1 << 21).input_facts(&input).runs_on_gpu);
}

#[test]
fn missing_gpu_is_reported() {
    let absent = daq_core::gpu::driver::probe().map_or(0, |found| found.devices);
    for entry in built_in() {
        let input = accepted(entry, Scalar::Int8).layout(4096).unwrap();
        let spec = parse(entry.example).unwrap();
        let context = KernelContext::alone(&input, Side::Cuda(absent));
        let error = spec.build(&context).err().unwrap().to_string();
        assert!(error.contains(&format!("cuda:{absent}")), "{error}");
    }
}

#[test]
fn short_frames_fail_and_later_frames_are_processed() {
    for entry in built_in() {
        let input = accepted(entry, Scalar::Int8).layout(64).unwrap();
        let spec = parse(entry.example).unwrap();
        let frames = trial::frames([vec![1; 64], vec![1; 63], vec![1; 64]]);
        let outcome = run(&*spec, &input, &frames, &[3], None);
        assert_eq!(sums(&outcome), [2, 0, 1], "{}", entry.name);
        let sequences: Vec<_> = outcome
            .outputs
            .iter()
            .map(|(meta, _)| meta.sequence)
            .collect();
        assert_eq!(sequences, [0, 2], "{}", entry.name);
    }
}

#[test]
fn small_slot_is_reported() {
    let meta = FrameMeta::whole(0, 4);
    let options = RingOptions::new("out", 2, 8);
    let region = Region::host(options.region_bytes(), HostOptions::default()).unwrap();
    let (_ring, mut producer) = Ring::new(region, options, RingLedger::default()).unwrap();
    let mut slots = producer.reserve(1);
    let error = emit(&mut slots, 9, meta, |_| ()).unwrap_err().to_string();
    assert!(
        error.contains("9 bytes") && error.contains("raise `slot` of the output ring"),
        "{error}"
    );
    emit(&mut slots, 8, meta, |slot| slot.fill(1)).unwrap();
    assert!(
        emit(&mut slots, 8, meta, |_| ()).is_err(),
        "no slot is left"
    );
}
