//! Tests of register steps, and of the source as the plan uses it.

use super::device::{Device, Identity};
use super::engines::xdma::Xdma;
use super::mock::{Driven, Idle, Mock, source};
use super::*;
use daq_core::config::Document;
use daq_core::dma::{EngineError, Slots};
use daq_core::region::Placement;
use daq_core::topology::P2pPreference;
use daq_testkit::assert_contains;
use daq_testkit::assert_fields;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// A card that has no engine.
fn card() -> Arc<Mock> {
    let identity = Identity {
        vendor: 0x1234,
        device: 0x11e8,
        class: 0x00_ff00,
    };
    Mock::new(0x10_0000, identity, |_, _, _| true)
}

fn slots() -> Slots {
    Slots {
        addresses: vec![0x1_0000, 0x2_0000],
        bytes: 2048 + 64,
        first: 1,
        doorbell: None,
        placement: Placement::Host,
    }
}

#[test]
fn device_of_other_engine_is_detected() {
    let mock = card();
    let error = mock.open::<Xdma>("", Path::new("")).err().unwrap();
    assert!(error.to_string().contains("1234:11e8"), "{error}");
    assert_eq!(engines::suggest_engine(ENGINES, &*mock, "litepcie"), None);
    // The identification of XDMA's interrupt block and configuration block.
    mock.registers.set(0x2000, 0x1fc2_0006);
    mock.registers.set(0x3000, 0x1fc3_0006);
    let hint = engines::suggest_engine(ENGINES, &*mock, "litepcie");
    let expected = "; the device looks like `engine = \"xdma\"`";
    assert_eq!(hint.as_deref(), Some(expected));
    assert_eq!(engines::suggest_engine(ENGINES, &*mock, "xdma"), None);
}

#[test]
fn free_running_engine_needs_slots_beyond_those_it_may_overwrite() {
    use super::engines::litepcie::Writer as LitePcie;
    let of = |spec: &dyn SourceSpec| spec.facts().engine.unwrap().min_slots;
    assert_eq!(of(&source::<LitePcie>("base = 0")), 4);
    assert_eq!(of(&source::<Xdma>("credits = false")), 3);
    assert_eq!(of(&source::<Xdma>("")), 1);
}

#[test]
fn narrow_sequence_number_is_noted() {
    let notes = |bytes: u32| {
        let sequence = format!("sequence = {{ offset = 0, bytes = {bytes} }}");
        source::<Xdma>(&sequence).notes().join("\n")
    };
    assert!(
        notes(1).contains("a loss of 127 or more frames"),
        "{}",
        notes(1)
    );
    assert!(notes(2).contains("32767"), "{}", notes(2));
    assert!(!notes(4).contains("repeats"), "{}", notes(4));
}

#[test]
fn files_of_cards_are_checked() {
    use super::engines::litepcie::Writer as LitePcie;
    let directory = tempfile::tempdir().unwrap();
    let check = |spec: &dyn SourceSpec| {
        let mut files = spec.facts().files;
        let file = files.pop().unwrap();
        file.check_file(directory.path())
            .err()
            .map(|problem| problem.to_string())
    };
    let text = "csr_register,pcie_dma0_writer_enable,0x2000,1,rw\n";
    for (text, keys, problem) in [
        ("junk", "", Some("pcie_dma0_writer_enable")),
        (text, "channel = 3", Some("correct `channel`")),
        (text, "completion = \"interrupt\"", Some("pcie_msi_enable")),
        (text, "", None),
    ] {
        std::fs::write(directory.path().join("csr.csv"), text).unwrap();
        let spec = source::<LitePcie>(&format!("csr = \"csr.csv\"\n{keys}"));
        let found = check(&spec);
        assert_eq!(found.is_some(), problem.is_some(), "{found:?}");
        assert!(
            found
                .unwrap_or_default()
                .contains(problem.unwrap_or_default())
        );
    }
}

#[test]
fn registers_are_written_before_start_and_after_stop() {
    let mock = card();
    let steps = "registers = [
        { bar = 0, offset = 0x200, value = 7 },
        { bar = 0, offset = 0x204, value = 0x30, mask = 0xf0 },
        { bar = 0, offset = 0x208, value = 1, mask = 1, wait = \"1 h\" },
        { bar = 0, offset = 0x210, value = 0, when = \"stopped\" },
        { bar = 0, offset = 0x200, value = 0, when = \"stop\" },
    ]";
    let wrap = |mock: &Arc<Mock>, keys: &str| {
        let engine = mock.open::<Idle>("", Path::new("")).unwrap().engine;
        let registers = source::<Xdma>(keys).config.registers;
        EngineWithRegisters::wrap(engine, &**mock, &registers).map(Driven::new)
    };
    let mut engine = wrap(&mock, steps).unwrap();
    mock.registers.set(0x204, 0xabcd);
    mock.registers.set(0x208, 0x11);
    engine.arm(&slots()).unwrap();
    assert_eq!(mock.registers.writes(), [(0x200, 7), (0x204, 0xab3d)]);
    engine.quiesce(Duration::ZERO).unwrap();
    engine.quiesce(Duration::ZERO).unwrap();
    assert_eq!(mock.registers.writes(), [(0x200, 0), (0x210, 0)]);
    // The wait times out, and the design is stopped again.
    mock.registers.set(0x208, 0x10);
    let mut engine = wrap(&mock, &steps.replace("1 h", "0 s")).unwrap();
    let error = engine.arm(&slots()).unwrap_err().to_string();
    assert!(error.contains("0x208") && error.contains("0x10"), "{error}");
    mock.registers.writes();
    engine.quiesce(Duration::ZERO).unwrap();
    assert_eq!(mock.registers.writes(), [(0x200, 0), (0x210, 0)]);
    // The pipeline stops during a wait, so the design is stopped again.
    let mut engine = wrap(&mock, steps).unwrap();
    engine.stop_when(Arc::new(|| true));
    let error = engine.arm(&slots()).unwrap_err();
    assert!(matches!(error, EngineError::Cancelled { .. }), "{error}");
    mock.registers.writes();
    engine.quiesce(Duration::ZERO).unwrap();
    assert_eq!(mock.registers.writes(), [(0x200, 0), (0x210, 0)]);
    // A removed card is not a register value.
    let mut engine = wrap(&mock, steps).unwrap();
    mock.registers.set(0x208, u32::MAX - 1);
    let gone = std::thread::scope(|scope| {
        let arming = scope.spawn(|| engine.arm(&slots()));
        mock.registers.remove();
        arming.join().unwrap()
    });
    assert!(matches!(gone, Err(EngineError::Gone { .. })), "{gone:?}");
    let error = wrap(
        &card(),
        "registers = [{ bar = 0, offset = 0x100000, value = 0 }]",
    );
    assert!(error.err().unwrap().to_string().contains("0x100000"));
    assert!(wrap(&card(), "registers = [{ bar = 1, offset = 0, value = 0 }]").is_err());
}

/// Parses a section into a source, or returns the diagnostics.
fn read(keys: &str) -> Result<Box<dyn SourceSpec>, String> {
    let mut diagnostics = Diagnostics::new();
    let text = format!("[source.adc]\n{keys}\n");
    let document = Document::from_text("daq.toml", &text, &mut diagnostics);
    let mut section = document.sections("source").remove(0);
    let spec = parse(&mut section, &mock::registry(), &mut diagnostics);
    let rendered = diagnostics.render(document.sources(), false);
    if rendered.is_empty() {
        Ok(spec.unwrap())
    } else {
        assert!(spec.is_none());
        Err(rendered)
    }
}

#[test]
fn plan_gets_engine_requirements() {
    let spec = read("device = \"3b:00.0\"\nengine = \"xdma\"\npath = \"staged\"").unwrap();
    let facts = spec.facts();
    let needs = facts.engine.unwrap();
    assert_eq!(needs.device.as_deref(), Some("0000:3b:00.0"));
    assert_fields!(needs =>
        preference: P2pPreference::Staged, can_ring_doorbell: true, host_only: None
    );
    assert!(facts.supports_backpressure);
    assert_eq!(facts.claims, [Claim::Device("0000:3b:00.0".into())]);
    assert_eq!(facts.frame_sequence, None);

    let keys = "device = \"vfio-user:card.sock\"\nengine = \"xdma\"\ncredits = false";
    let spec = read(keys).unwrap();
    let facts = spec.facts();
    let needs = facts.engine.unwrap();
    assert!(needs.device.is_none() && !needs.can_ring_doorbell && !facts.supports_backpressure);
    assert!(needs.host_only.unwrap().contains("another process"));
    assert!(facts.notes.iter().any(|note| note.contains("overrun")));

    let spec = read(
        "device = \"emulated:xdma\"\nsequence = { offset = 8, bytes = 4, endian = \"little\", step = 2 }\n\
         emulated = { packet = 16 }\nsamples = { type = \"int16\" }",
    )
    .unwrap();
    let facts = spec.facts();
    assert_eq!(facts.claims, []);
    let sequence = facts.frame_sequence.unwrap();
    assert_eq!(
        (sequence.extent(), sequence.bits, sequence.step),
        (8..12, 32, 2)
    );
    assert_eq!(sequence.max_gap, 1 << 16);
    let frames = spec.frames(4096).unwrap();
    assert_fields!(frames.geometry => packets_per_frame: 1, frame_bytes: 4096);
    assert_eq!(frames.layout.points, 2048);
    for (slot, key) in [(0, "engine"), (96, "engine"), (1 << 28, "engine")] {
        let problem = spec.frames(slot).unwrap_err();
        assert_eq!(problem.key.as_deref(), Some(key));
    }
    let far = read("device = \"emulated:xdma\"\nsequence = { offset = 60, bytes = 8 }").unwrap();
    let problem = far.frames(64).unwrap_err();
    assert_eq!(problem.key.as_deref(), Some("sequence.offset"));
}

#[test]
fn engine_is_declared_or_detected() {
    let engine = |keys: &str| read(keys).map(|spec| spec.facts().origins.remove(0));
    assert_eq!(
        engine("device = \"emulated:xdma\"").unwrap(),
        "xdma of emulated:xdma, channel 0"
    );
    let declared = engine("device = \"emulated:xdma\"\nengine = \"litepcie\"\nbase = 0").unwrap();
    assert!(declared.starts_with("litepcie of"), "{declared}");
    let error = engine("device = \"emulated:another\"").unwrap_err();
    assert!(error.contains("is not configured"), "{error}");
    assert!(error.contains("no emulated device `another`"), "{error}");
}

#[test]
fn config_errors_are_located() {
    let errors = |keys: &str| read(keys).err().unwrap();
    let error = errors("device = \"0000:3b:00\"\nengine = \"xdma\"");
    assert_contains!(error => "daq.toml:2:10", "lspci -D");
    let error = errors("device = \"3b:00.0\"\nengine = \"xmda\"");
    assert_contains!(error => "daq.toml:3:10", "xdma");
    let error = errors("device = \"3b:00.0\"");
    assert_contains!(error => "add `engine`", "litepcie");
    let error = errors(
        "device = \"3b:00.0\"\nengine = \"xdma\"\nregisters = [{ bar = 0, offset = 2, value = 1 }]",
    );
    assert!(error.contains("daq.toml:4:34"), "{error}");
}

#[test]
fn mock_implements_device() {
    // An engine reports a missing BAR.
    let mock = Mock::new(0x100, Identity::default(), |_, _, _| true);
    assert_eq!(mock.identity(), Identity::default());
    let error = mock.open::<Xdma>("", Path::new("")).err().unwrap();
    assert!(error.to_string().contains("only 0x100 bytes"), "{error}");
}
