//! Tests of plans of small configurations, on hosts with and without a GPU.

mod claims;
mod dispatch;
mod file_kernel;
mod fill;
mod gpus;
mod memory;
mod nics;
mod nodes;
mod packets;
mod persistent;
mod spread;

use super::*;
use crate::assert_contains;
use crate::assert_fields;
use crate::claim::Claim;
use crate::config::{Diagnostics, Document, Problem};
use crate::entry::{
    EngineRequirements, FrameFacts, KernelEntry, Registry, SinkEntry, SourceContext, SourceEntry,
    SourceFacts, SourceSpec,
};
use crate::gpu::driver::PeerLink;
use crate::kernel::{InputFacts, Kernel, KernelContext, KernelError, KernelFacts, KernelSpec};
use crate::layout::Samples;
use crate::sink::{Placements, Sink, SinkContext, SinkError, SinkFacts, SinkSpec};
use crate::source::{Producers, SourceError};
use crate::topology::{Gpu, P2pPreference, Topology};
use crate::units::ByteSize;
use schemars::JsonSchema;
use serde::Deserialize;

/// Returns the layout of frames of `geometry` with default samples.
fn layout_of(geometry: &Geometry) -> Result<Layout, Problem> {
    Samples::default()
        .layout(geometry.frame_bytes)
        .map_err(|_| Problem::section("odd bytes"))
}

/// Returns the requirements of an engine without limits.
fn requirements(writer: Writer) -> EngineRequirements {
    EngineRequirements {
        device: None,
        writer,
        preference: P2pPreference::Auto,
        action: "the device writes",
        host_only: None,
        cpu_reads_memory: false,
        can_ring_doorbell: false,
        faults: &[],
        alignment: 1,
        max_slot: usize::MAX,
        min_slots: 1,
        max_slots: usize::MAX,
    }
}

/// A source with the engine of a NIC, or without `nic` with the engine of an FPGA that can ring a doorbell.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Carded {
    nic: Option<String>,
    #[serde(default)]
    path: P2pPreference,
    #[serde(default)]
    cpu_reads_memory: bool,
}

impl SourceSpec for Carded {
    fn facts(&self) -> SourceFacts {
        let writer = self.nic.as_ref().map_or(Writer::Fpga, |_| Writer::Nic);
        SourceFacts {
            supports_backpressure: true,
            engine: Some(EngineRequirements {
                device: self.nic.clone(),
                preference: self.path,
                cpu_reads_memory: self.cpu_reads_memory,
                can_ring_doorbell: self.nic.is_none(),
                ..requirements(writer)
            }),
            ..SourceFacts::default()
        }
    }

    fn frames(&self, _: usize) -> Result<FrameFacts, Problem> {
        let geometry = Geometry::new(4, 1024);
        let layout = layout_of(&geometry)?;
        Ok(FrameFacts::new(geometry, layout))
    }

    fn build(&self, _: &SourceContext) -> Result<Producers, SourceError> {
        Err(SourceError::new("carded", "is never built"))
    }
}

const CARDED: SourceEntry = SourceEntry::of::<Carded>("carded", "", "");

/// A source whose frames consist of four packets.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct FakeSource {
    packet: ByteSize,
    port: Option<u16>,
    #[serde(default)]
    cores: Vec<usize>,
    #[serde(default)]
    channels: Option<u32>,
}

impl SourceSpec for FakeSource {
    fn facts(&self) -> SourceFacts {
        let port = self.port.iter();
        SourceFacts {
            claims: port
                .map(|port| Claim::UdpPort(([0, 0, 0, 0], *port).into()))
                .collect(),
            cores: self.cores.clone(),
            ..SourceFacts::default()
        }
    }

    fn frames(&self, slot_bytes: usize) -> Result<FrameFacts, Problem> {
        let packet = usize::try_from(self.packet.0).unwrap();
        if packet * 4 > slot_bytes {
            return Err(Problem::at(
                "packet",
                format!("4 packets of {} do not fit the slot", self.packet),
            ));
        }
        let geometry = Geometry {
            window: 8,
            ..Geometry::new(4, packet)
        };
        let layout = layout_of(&geometry)?;
        let channels = self.channels.unwrap_or(layout.channels);
        let planar = self.channels.map(|_| crate::layout::Order::Planar);
        let layout = Layout {
            channels,
            points: layout.points * layout.channels as usize / channels as usize,
            order: planar.unwrap_or(layout.order),
            ..layout
        };
        Ok(FrameFacts::new(geometry, layout))
    }

    fn build(&self, _: &SourceContext) -> Result<Producers, SourceError> {
        Err(SourceError::new("fake", "is never built"))
    }
}

/// A kernel that outputs a quarter of the points as floats, which have the same number of bytes.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct FakeKernel {
    #[serde(default)]
    gpu: bool,
    /// Whether the output has one channel, the sum of all channels.
    #[serde(default)]
    sums: bool,
    #[serde(default)]
    has_history: bool,
    #[serde(default = "one")]
    max_outputs: usize,
}

fn one() -> usize {
    1
}

impl KernelSpec for FakeKernel {
    fn layout(&self, input: &Layout) -> Result<Layout, Problem> {
        Ok(Layout {
            scalar: crate::layout::Scalar::Float32,
            points: input.points / 4,
            channels: if self.sums { 1 } else { input.channels },
            ..input.clone()
        })
    }

    fn facts(&self) -> KernelFacts {
        let before = "it needs the frame before".to_owned();
        KernelFacts {
            spread_frames: if self.has_history {
                Err(before)
            } else {
                Ok(())
            },
            ..KernelFacts::default()
        }
    }

    fn input_facts(&self, _: &Layout) -> InputFacts {
        InputFacts {
            runs_on_gpu: self.gpu,
            max_outputs: self.max_outputs,
            memory: 1000,
            device_memory: 1000,
            ..InputFacts::default()
        }
    }

    fn build(&self, _: &KernelContext) -> Result<Box<dyn Kernel>, KernelError> {
        Err(KernelError::Defect("is never built".to_owned()))
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct FakeSink {
    path: Option<String>,
    nic: Option<String>,
    #[serde(default)]
    measured: bool,
}

impl SinkSpec for FakeSink {
    fn facts(&self) -> SinkFacts {
        let paths = self.path.iter();
        SinkFacts {
            claims: paths.map(|path| Claim::Path(path.into())).collect(),
            accepts: if self.measured {
                Placements::Measured
            } else {
                Placements::Host
            },
            nic: self.nic.clone(),
            ..SinkFacts::default()
        }
    }

    fn build(&self, _: SinkContext) -> Result<Box<dyn Sink>, SinkError> {
        Err(SinkError::Failed {
            what: "fake".to_owned(),
            why: "is never built".to_owned(),
        })
    }
}

const QUARTER: KernelEntry = KernelEntry::of::<FakeKernel>("quarter", "", "");

const FAKE: SourceEntry = SourceEntry::of::<FakeSource>("fake", "", "");

const VOID: SinkEntry = SinkEntry::of::<FakeSink>("void", "", "");

fn registry() -> Registry {
    Registry::default().with(&FAKE).with(&QUARTER).with(&VOID)
}

const PIPELINE: &str = r#"
[source.adc]
driver = "fake"
packet = "1 KiB"
ring = "raw"

[ring.raw]
slot = "5 KiB"
slots = 4

[kernel.quarter]
use = "quarter"
input = "raw"
output = "small"

[ring.small]

[sink.disk]
driver = "void"
input = "small"
"#;

fn plan_of(text: &str, topology: &Topology) -> Result<Plan, String> {
    plan_with(text, &registry(), topology)
}

fn plan_with(text: &str, registry: &Registry, topology: &Topology) -> Result<Plan, String> {
    let context = PlanContext {
        directory: "/data".into(),
        ..PlanContext::default()
    };
    plan_in(text, registry, topology, &context)
}

fn plan_in(
    text: &str,
    registry: &Registry,
    topology: &Topology,
    context: &PlanContext,
) -> Result<Plan, String> {
    let mut diagnostics = Diagnostics::new();
    let document = Document::from_text("daq.toml", text, &mut diagnostics);
    let config = Config::read(&document, registry, "test", &mut diagnostics);
    let plan = resolve(&config, topology, context, &mut diagnostics);
    plan.filter(|_| !diagnostics.has_errors())
        .ok_or_else(|| diagnostics.render(document.sources(), false))
}

/// Returns the plan, and all diagnostics as text.
fn plan_and_diagnostics(text: &str, topology: &Topology) -> (Option<Plan>, String) {
    let mut diagnostics = Diagnostics::new();
    let document = Document::from_text("daq.toml", text, &mut diagnostics);
    let config = Config::read(&document, &registry(), "test", &mut diagnostics);
    let plan = resolve(&config, topology, &PlanContext::default(), &mut diagnostics);
    (plan, diagnostics.render(document.sources(), false))
}

fn host() -> Topology {
    Topology {
        is_real: true,
        cores: vec![0, 1],
        no_gpu: "there is none".to_owned(),
        ..Topology::unknown()
    }
}

fn with_gpu() -> Topology {
    Topology {
        gpus: vec![Gpu::new(0, "Test GPU")],
        ..host()
    }
}

/// Returns a machine with two GPUs that access each other over `link`.
fn two_gpus(link: Option<PeerLink>) -> Topology {
    let gpu = |ordinal: u32| Gpu {
        peers: Some(link.map(|link| (1 - ordinal, link)).into_iter().collect()),
        ..Gpu::new(ordinal, "Test GPU")
    };
    Topology {
        gpus: vec![gpu(0), gpu(1)],
        ..host()
    }
}

fn names(plan: &Plan) -> Vec<&str> {
    plan.rings.iter().map(|ring| ring.name.as_str()).collect()
}

#[test]
fn plan_without_gpu_uses_host_rings_only() {
    let plan = plan_of(PIPELINE, &host()).unwrap();
    assert_eq!(names(&plan), ["raw", "small"]);
    assert!(
        plan.rings
            .iter()
            .all(|ring| ring.placement == Placement::Host && ring.reason == "there is none")
    );
    assert_eq!((plan.copies.len(), plan.threads), (0, 3));
    let raw = plan.ring("raw").unwrap();
    assert_fields!(raw =>
        slot_bytes: 5120, slots: 4, packets_per_frame: 4, supports_backpressure: false
    );
    assert_eq!(raw.readers, ["quarter"]);
    let small = plan.ring("small").unwrap();
    assert_fields!(small => slot_bytes: 4096, slots: 64, supports_backpressure: true);
    assert_eq!(
        plan.memory,
        4 * 5120 + 64 * 4096 + raw.metadata_bytes + small.metadata_bytes + 1000
    );
    // The window must leave one slot of the ring to readers.
    assert_eq!(plan.sources[0].geometry.window, 3);
    assert!(
        plan.sources[0].notes[0].contains("window reduced to 3"),
        "{:?}",
        plan.sources[0].notes
    );
}

#[test]
fn plan_with_gpu_inserts_staging_rings() {
    let text = PIPELINE.replace("use = \"quarter\"", "use = \"quarter\"\ngpu = true");
    let plan = plan_of(&text, &with_gpu()).unwrap();
    assert_eq!(names(&plan), ["raw@host", "raw", "small", "small@host"]);
    let copies: Vec<_> = plan
        .copies
        .iter()
        .map(|copy| (copy.from.as_str(), copy.to.as_str()))
        .collect();
    assert_eq!(copies, [("raw@host", "raw"), ("small", "small@host")]);
    assert_eq!(plan.sources[0].path, DataPath::Staged);
    assert_eq!(plan.sources[0].ring, "raw@host");
    for ring in ["raw@host", "raw"] {
        let source = plan.source_of(ring).map(|source| &source.name);
        assert_eq!(source, Some(&plan.sources[0].name));
    }
    assert!(plan.source_of("small").is_none());
    assert_eq!(plan.kernels[0].side, Side::Cuda(0));
    assert_eq!(plan.sinks[0].input, "small@host");
    let inserted: Vec<_> = plan
        .rings
        .iter()
        .map(|ring| ring.inserted.is_some())
        .collect();
    assert_eq!(inserted, [true, false, false, true]);
}

#[test]
fn plan_without_gpu_reader_copies_nothing_to_gpu() {
    let plan = plan_of(PIPELINE, &with_gpu()).unwrap();
    assert_eq!(names(&plan), ["raw", "small"]);
    assert_eq!(plan.copies, []);
    let raw = plan.ring("raw").unwrap();
    assert_fields!(raw => placement: Placement::Host, supports_backpressure: false);
    assert_eq!(raw.reason, "no GPU kernel reads the ring");
    assert_eq!(plan.sources[0].path, DataPath::Cpu);
    assert_eq!(
        (
            plan.sources[0].ring.as_str(),
            plan.kernels[0].input.as_str()
        ),
        ("raw", "raw")
    );
    assert_eq!(
        plan.ring("small").unwrap().reason,
        "kernel `quarter` runs on the CPU"
    );
    assert_eq!((plan.device_memory, plan.threads), (0, 3));
}

#[test]
fn cpu_kernel_reads_host_ring_of_staging_pair() {
    let text = PIPELINE.replace("slot = \"5 KiB\"", "slot = \"5 KiB\"\nmemory = \"cuda:0\"");
    let plan = plan_of(&text, &with_gpu()).unwrap();
    assert_eq!(names(&plan), ["raw@host", "raw", "small"]);
    assert_eq!(
        (plan.kernels[0].side, plan.kernels[0].input.as_str()),
        (Side::Cpu, "raw@host")
    );
    assert_eq!(plan.ring("small").unwrap().placement, Placement::Host);
    let raw = plan.ring("raw").unwrap();
    assert_eq!(
        (plan.device_memory, raw.region_bytes),
        (raw.region_bytes, 4 * 5120)
    );
    // Threads of the source, the kernel, the sink and the copy.
    assert_eq!(plan.threads, 4);
}

#[test]
fn missing_gpu_memory_is_not_config_error() {
    let text = PIPELINE.replace("slot = \"5 KiB\"", "slot = \"5 KiB\"\nmemory = \"cuda:1\"");
    let plan = plan_of(&text, &with_gpu()).unwrap();
    assert_eq!(plan.unavailable.len(), 1, "{:?}", plan.unavailable);
    assert!(
        plan_of(&text, &Topology::unknown())
            .unwrap()
            .unavailable
            .is_empty()
    );
}

#[test]
fn missing_gpu_error_lists_available_gpus() {
    let text = PIPELINE.replace("slot = \"5 KiB\"", "slot = \"5 KiB\"\nmemory = \"cuda:7\"");
    let plan = plan_of(&text, &with_gpu()).unwrap();
    assert_eq!(
        plan.unavailable,
        [
            "ring `raw` needs cuda:7: this machine has cuda:0 (Test GPU); set memory = \"auto\" or \"host\""
        ]
    );
    let plan = plan_of(&text, &host()).unwrap();
    assert!(
        plan.unavailable[0].contains("there is none"),
        "{:?}",
        plan.unavailable
    );
}

#[test]
fn staging_core_outside_affinity_is_rejected() {
    let error = plan_of(
        &format!("{PIPELINE}\n[staging]\ncores = [1, 99]\n"),
        &host(),
    )
    .unwrap_err();
    only(&error, &["core 99 is not among the cores of this process"]);
}

fn error_of(change: (&str, &str)) -> String {
    errors_of(&[change])
}

fn errors_of(changes: &[(&str, &str)]) -> String {
    let mut text = PIPELINE.to_owned();
    for (from, to) in changes {
        assert!(text.contains(from), "{from}");
        text = text.replacen(from, to, 1);
    }
    plan_of(&text, &host()).unwrap_err()
}

/// Asserts that `rendered` contains exactly these errors and no warning.
fn only(rendered: &str, errors: &[&str]) {
    for error in errors {
        assert_contains!(rendered => &format!("error: {error}"); "{error}");
    }
    assert_eq!(
        rendered.matches("error: ").count(),
        errors.len(),
        "{rendered}"
    );
    assert!(!rendered.contains("warning: "), "{rendered}");
}

#[test]
fn unknown_ring_yields_suggestion() {
    let error = error_of(("input = \"raw\"", "input = \"rwa\""));
    assert_contains!(error => "there is no ring `rwa`", "did you mean \"raw\"?", "daq.toml:13:9");
}

#[test]
fn single_mistake_is_reported_once() {
    let error = error_of(("packet = \"1 KiB\"", "packet = \"1 KiB\"\nport = true"));
    assert_eq!(error.matches("error:").count(), 1, "{error}");
    assert!(!error.contains("warning:"), "{error}");
}

#[test]
fn ring_with_wrong_key_counts_as_declared() {
    let error = error_of(("[ring.small]", "[ring.small]\nslotz = 3"));
    assert_eq!(error.matches("error:").count(), 1, "{error}");
}

#[test]
fn wrong_key_and_wrong_ring_are_both_reported() {
    let error = error_of((
        "packet = \"1 KiB\"\nring = \"raw\"",
        "packet = \"1 KiB\"\nprot = 3\nring = \"rwa\"",
    ));
    assert_contains!(error => "unknown key `prot`", "there is no ring `rwa`");
}

/// Errors that do not depend on the driver must be reported even if the driver is unknown.
#[test]
fn wrong_driver_and_other_errors_are_all_reported() {
    let rendered = error_of((
        "driver = \"fake\"",
        "driver = \"fkae\"\nwait = \"bussy\"\ncores = [0, 9]\nprot = 3",
    ));
    only(
        &rendered,
        &[
            "unknown driver \"fkae\" in [source.adc]",
            "`wait` cannot be \"bussy\"",
            "core 9 is not among the cores of this process",
            "unknown key `prot` in [source.adc]",
        ],
    );
    assert!(rendered.contains("did you mean `port`?"), "{rendered}");
    let rendered = error_of((
        "use = \"quarter\"",
        "use = \"half\"\nburst = 0\ncore = 9\nguarantee = 1\ngpuu = true",
    ));
    only(
        &rendered,
        &[
            "unknown use \"half\" in [kernel.quarter]",
            "`burst` is 0, but must be 1 to 4096",
            "core 9 is not among the cores of this process",
            "`guarantee` is an integer, but a boolean is expected",
            "unknown key `gpuu` in [kernel.quarter]",
        ],
    );
    let rendered = errors_of(&[
        (
            "[sink.disk]\ndriver = \"void\"",
            "[sink.quarter]\ndriver = \"vod\"\nburst = 9999",
        ),
        ("input = \"small\"", "input = \"smal\""),
    ]);
    only(
        &rendered,
        &[
            "unknown driver \"vod\" in [sink.quarter]",
            "`burst` is 9999, but must be 1 to 4096",
            "there is no ring `smal`",
            "a kernel and a sink are both called `quarter`",
        ],
    );
}

#[test]
fn invalid_component_still_connects_its_rings() {
    let two = "[source.twin]\ndriver = \"fkae\"\nring = \"raw\"\n[ring.raw]";
    only(
        &error_of(("[ring.raw]", two)),
        &[
            "unknown driver \"fkae\" in [source.twin]",
            "ring `raw` is filled by [source.adc] and [source.twin]",
        ],
    );
    // A section with any error must not cause errors in other sections.
    for (from, to, error) in [
        ("driver = \"fake\"", "driver = \"fkae\"", "unknown driver"),
        ("driver = \"fake\"", "", "missing key `driver`"),
        (
            "driver = \"fake\"",
            "drvier = \"fake\"",
            "missing key `driver`",
        ),
        ("driver = \"fake\"", "driver = 3", "`driver` is an integer"),
        ("packet = \"1 KiB\"", "packet = 1.5", "`packet` is"),
        ("ring = \"raw\"", "ring = \"raw\"\nwait = 3", "`wait` is"),
        ("ring = \"raw\"", "rng = \"raw\"", "unknown key `rng`"),
        ("ring = \"raw\"", "ring = \"rwa\"", "there is no ring `rwa`"),
        (
            "ring = \"raw\"",
            "ring = \"voltages\"",
            "there is no ring `voltages`",
        ),
        ("ring = \"raw\"", "ring = [\"raw\"]", "`ring` is an array"),
        ("ring = \"raw\"", "", "missing key `ring`"),
        ("slots = 4", "slots = \"4\"", "`slots` is a string"),
        ("use = \"quarter\"", "use = \"qarter\"", "unknown use"),
        ("use = \"quarter\"", "", "missing key `use`"),
        (
            "input = \"raw\"",
            "input = \"rwa\"",
            "there is no ring `rwa`",
        ),
        (
            "input = \"raw\"",
            "input = \"voltages\"",
            "there is no ring `voltages`",
        ),
        (
            "input = \"raw\"",
            "input = \"raw\"\nburst = true",
            "`burst` is a boolean",
        ),
        ("input = \"raw\"", "", "missing key `input`"),
        (
            "output = \"small\"",
            "output = \"smal\"",
            "there is no ring `smal`",
        ),
        ("output = \"small\"", "", "missing key `output`"),
        ("[ring.small]", "[ring.small]\nslot = \"1 MBi\"", "`slot`"),
        ("driver = \"void\"", "driver = \"viod\"", "unknown driver"),
        (
            "driver = \"void\"",
            "driver = \"void\"\npath = 1",
            "`path` is",
        ),
        (
            "input = \"small\"",
            "input = \"smal\"",
            "there is no ring `smal`",
        ),
        ("input = \"small\"", "", "missing key `input`"),
    ] {
        only(&error_of((from, to)), &[error]);
    }
}

#[test]
fn ring_with_two_producers_is_rejected() {
    let error = error_of(("output = \"small\"", "output = \"raw\""));
    assert_contains!(error => "ring `raw` is filled by [source.adc] and [kernel.quarter]");
}

#[test]
fn cycle_of_rings_is_rejected() {
    let circle = "[kernel.back]\nuse = \"quarter\"\ninput = \"b\"\noutput = \"a\"\n[kernel.forth]\nuse = \"quarter\"\n\
                  input = \"a\"\noutput = \"b\"\n[ring.a]\n[ring.b]\n";
    let error = plan_of(&format!("{PIPELINE}\n{circle}"), &host()).unwrap_err();
    assert_eq!(error.matches("feeds itself").count(), 2, "{error}");
    let below = "[kernel.below]\nuse = \"quarter\"\ninput = \"a\"\noutput = \"c\"\n[ring.c]\n\
                 [sink.c]\ndriver = \"void\"\ninput = \"c\"\n";
    let rendered = plan_of(&format!("{PIPELINE}\n{circle}\n{below}"), &host()).unwrap_err();
    let feeds = |ring| format!("ring `{ring}` feeds itself through this kernel");
    only(&rendered, &[&feeds("a"), &feeds("b")]);
    // A kernel that reads the output of a kernel without input is not part of a cycle.
    let dry = below.replace("\"a\"", "\"small\"");
    let text = format!("{PIPELINE}\n{dry}").replacen("input = \"raw\"", "input = \"rew\"", 1);
    only(
        &plan_of(&text, &host()).unwrap_err(),
        &["there is no ring `rew`"],
    );
}

#[test]
fn ring_without_producer_is_rejected() {
    let error = error_of(("input = \"small\"", "input = \"dry\"\n[ring.dry]"));
    assert_contains!(error => "no source or kernel fills ring `dry`");
}

#[test]
fn frame_larger_than_slot_is_rejected() {
    let error = error_of(("slot = \"5 KiB\"", "slot = \"3 KiB\""));
    assert_contains!(error => "4 packets of 1 KiB do not fit the slot");
    let error = error_of(("[ring.small]", "[ring.small]\nslot = \"1 KiB\""));
    assert_contains!(error => "a slot of 1 KiB is too small for frames of 4 KiB");
    let error = error_of(("slots = 4", "slots = 1"));
    assert!(error.contains("must be at least 2"), "{error}");
}

#[test]
fn ring_too_small_for_kernel_outputs_is_rejected() {
    let error = error_of(("use = \"quarter\"", "use = \"quarter\"\nmax_outputs = 100"));
    assert_contains!(error => "64 slots are too few, because kernel `quarter` produces up to 100", "set slots = 200 or more");
    assert!(
        plan_of(
            &PIPELINE.replace("use = \"quarter\"", "use = \"quarter\"\nmax_outputs = 50"),
            &host()
        )
        .is_ok()
    );
}

#[test]
fn kernel_and_sink_with_same_name_are_rejected() {
    let error = error_of(("[sink.disk]", "[sink.quarter]"));
    assert_contains!(error => "a kernel and a sink are both called `quarter`");
}

#[test]
fn ring_without_reader_is_a_warning_unless_other_processes_read_it() {
    let (without_sink, _) = PIPELINE.split_once("[sink").unwrap();
    let rendered = |key: &str| {
        let (plan, rendered) = plan_and_diagnostics(&format!("{without_sink}{key}"), &host());
        assert!(plan.is_some(), "{rendered}");
        rendered
    };
    for key in ["", "attach = false"] {
        assert_contains!(rendered(key) =>
            "warning: no kernel or sink reads ring `small`", "write `attach = true` in [ring.small]"; "{key}"
        );
    }
    assert_eq!(rendered("attach = true"), "");
    assert_eq!(rendered("attach = { guarantee = true }"), "");
}

#[test]
fn core_outside_affinity_is_rejected() {
    let error = error_of(("input = \"raw\"", "input = \"raw\"\ncore = 7"));
    assert_contains!(error => "core 7 is not among the cores of this process");
}

#[test]
fn plan_is_printed_as_text() {
    let text = PIPELINE
        .replace("use = \"quarter\"", "use = \"quarter\"\ngpu = true")
        .replace("driver = \"fake\"", "driver = \"fake\"\nport = 4950")
        .replace("driver = \"void\"", "driver = \"void\"\npath = \"out\"");
    let mut plan = plan_of(&text, &with_gpu()).unwrap();
    plan.others.push(PlannedOther {
        name: "http".to_owned(),
        claims: vec!["TCP 127.0.0.1:9464".to_owned()],
        notes: vec!["reads 10 frames/s of ring raw".into()],
    });
    insta::assert_snapshot!(plan.to_string());
}

#[test]
fn plan_is_printed_as_graph() {
    let plan = plan_of(PIPELINE, &host()).unwrap();
    insta::assert_snapshot!(plan.graph(GraphFormat::Mermaid));
    insta::assert_snapshot!(plan.graph(GraphFormat::Dot));
}
