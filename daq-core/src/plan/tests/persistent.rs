//! Tests of persistent kernels, and of rings to which the CPU stores.

use super::*;
use crate::assert_contains;
use crate::assert_fields;

/// A kernel that supports persistent dispatch, on the CPU if `cpu` is set.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Staying {
    #[expect(
        dead_code,
        reason = "the test needs only the key that selects the kernel"
    )]
    file: String,
    #[serde(default)]
    cpu: bool,
}

impl KernelSpec for Staying {
    fn layout(&self, input: &Layout) -> Result<Layout, Problem> {
        Ok(input.clone())
    }

    fn facts(&self) -> KernelFacts {
        KernelFacts {
            persistent: Ok(()),
            ..KernelFacts::default()
        }
    }

    fn input_facts(&self, _: &Layout) -> InputFacts {
        InputFacts {
            runs_on_cpu: self.cpu,
            runs_on_gpu: !self.cpu,
            ..InputFacts::default()
        }
    }

    fn build(&self, _: &KernelContext) -> Result<Box<dyn Kernel>, KernelError> {
        Err(KernelError::Defect("is never built".to_owned()))
    }
}

const STAYING: KernelEntry = KernelEntry::of::<Staying>(FILE_KERNEL, "", "");

fn persistent() -> Registry {
    registry().with(&CARDED).with(&STAYING)
}

/// Returns the pipeline with a persistent kernel and `changes`.
fn staying(changes: &[(&str, &str)]) -> String {
    let file = "file = \"my.cu\"\ndispatch = \"persistent\"";
    let text = PIPELINE.replace("use = \"quarter\"", file);
    changes.iter().fold(text, |text, (from, to)| {
        assert!(text.contains(from), "{from}");
        text.replacen(from, to, 1)
    })
}

fn planned(changes: &[(&str, &str)], topology: &Topology) -> Plan {
    plan_with(&staying(changes), &persistent(), topology).unwrap()
}

fn error(changes: &[(&str, &str)], topology: &Topology) -> String {
    plan_with(&staying(changes), &persistent(), topology).unwrap_err()
}

/// Returns a GPU on which only the backends `works` work. The others fail with different reasons.
fn gpu(ordinal: u32, works: &[Backend]) -> Gpu {
    let tried = Backend::ALL.into_iter().map(|backend| {
        let refused = || Err(format!("no {backend} on {ordinal}"));
        let works = works.contains(&backend).then_some(Ok(()));
        (backend, works.unwrap_or_else(refused))
    });
    Gpu {
        mappings: Some(tried.collect()),
        ..Gpu::new(ordinal, "Test GPU")
    }
}

fn with(gpus: Vec<Gpu>) -> Topology {
    Topology { gpus, ..host() }
}

/// Returns a typical host, where the backends for Vulkan and host memory work.
fn typical() -> Topology {
    with(vec![gpu(0, &[Backend::Vulkan, Backend::Host])])
}

const REFUSED: &str = "gdrapi: no gdrapi on 0; dma-buf: no dma-buf on 0";

fn method<'a>(plan: &'a Plan, to: &str) -> (PlannedMethod, Option<&'a str>) {
    let copy = plan.copies.iter().find(|copy| copy.to == to).unwrap();
    (copy.method, copy.kernel_thread.as_deref())
}

fn doorbell(plan: &Plan) -> (Option<Backend>, &str) {
    let bell = plan.kernels[0].doorbell.as_ref().unwrap();
    (bell.backend, &bell.location)
}

#[test]
fn persistent_input_is_stored_by_cpu_if_gpu_is_mappable() {
    let plan = planned(&[], &typical());
    assert_eq!(names(&plan), ["raw@host", "raw", "small", "small@host"]);
    let raw = plan.ring("raw").unwrap();
    assert_eq!(raw.mapping, Some(Backend::Vulkan));
    let why = "by vulkan: persistent kernel `quarter` reads the ring";
    assert_eq!(raw.mapping_reason, format!("{why}; {REFUSED}"));
    for ring in ["raw@host", "small", "small@host"] {
        let ring = plan.ring(ring).unwrap();
        assert_eq!((ring.mapping, ring.mapping_reason.as_str()), (None, ""));
    }
    assert_eq!(
        method(&plan, "raw"),
        (PlannedMethod::Stores, Some("quarter"))
    );
    assert_eq!(method(&plan, "small@host"), (PlannedMethod::Engine, None));
    assert_eq!(plan.sources[0].path, DataPath::Cpu);
    assert_eq!(
        doorbell(&plan),
        (
            Some(Backend::Vulkan),
            &*format!("in GPU memory (vulkan); {REFUSED}")
        )
    );
    // Threads of the source, the kernel, the sink, and the copy to host memory.
    assert_eq!((plan.threads, plan.untried.len()), (4, 0));
    insta::assert_snapshot!(plan.to_string());
}

#[test]
fn persistent_dispatch_is_shown_in_json_and_graph() {
    let plan = planned(&[], &typical());
    let json = serde_json::to_value(&plan).unwrap();
    assert_eq!(json["rings"][1]["mapping"], "vulkan");
    assert_eq!(json["rings"][0]["mapping"], serde_json::Value::Null);
    assert_eq!(json["copies"][0]["method"], "stores");
    assert_eq!(json["copies"][0]["kernel_thread"], "quarter");
    assert_eq!(json["kernels"][0]["dispatch"], "persistent");
    let bell = &json["kernels"][0]["doorbell"];
    assert_eq!(
        (&bell["initiator"], &bell["backend"]),
        (&"cpu".into(), &"vulkan".into())
    );
    assert!(json.get("untried").is_none());
    let graph = plan.graph(GraphFormat::Mermaid);
    assert_contains!(graph =>
        "raw @ cuda:0, mapped by vulkan<br/>4 × 5 KiB", "{{\"store<br/>by quarter\"}}",
        "{{\"copy\"}}", "quarter<br/>file, persistent"
    );
}

#[test]
fn persistent_without_mapping_uses_copy_engine_and_host_doorbell() {
    let plan = planned(&[], &with(vec![gpu(0, &[Backend::Host])]));
    let raw = plan.ring("raw").unwrap();
    let refused = format!("{REFUSED}; vulkan: no vulkan on 0");
    assert_eq!(raw.mapping, None);
    assert_eq!(
        raw.mapping_reason,
        format!("none, because the CPU cannot store to this memory; {refused}")
    );
    assert_eq!(method(&plan, "raw"), (PlannedMethod::Engine, None));
    let source = &plan.sources[0];
    assert_eq!(source.path, DataPath::Staged);
    assert_eq!(
        source.reason,
        format!(
            "the driver writes to host memory, but the ring is on cuda:0; the CPU cannot store to this memory; {refused}"
        )
    );
    assert_eq!(
        doorbell(&plan),
        (Some(Backend::Host), &*format!("in host memory; {refused}"))
    );
    assert_eq!((plan.threads, plan.unavailable.len()), (5, 0));
}

/// Tests each backend as the only one that works.
#[test]
fn first_working_backend_is_selected() {
    for (i, backend) in Backend::ALL.into_iter().enumerate() {
        let plan = planned(&[], &with(vec![gpu(0, &Backend::ALL[i..])]));
        let expected = (backend != Backend::Host).then_some(backend);
        assert_eq!(plan.ring("raw").unwrap().mapping, expected);
        let (bell, place) = doorbell(&plan);
        assert_eq!(bell, Some(backend));
        assert_eq!(place.matches("no ").count(), i, "{place}");
    }
}

#[test]
fn ring_with_second_reader_uses_staging_thread() {
    for other in [
        "[kernel.other]\nuse = \"quarter\"\ngpu = true\ninput = \"raw\"\noutput = \"more\"\n[ring.more]",
        "[kernel.other]\nfile = \"b.cu\"\ndispatch = \"persistent\"\ninput = \"raw\"\noutput = \"more\"\n[ring.more]",
    ] {
        let plan = planned(
            &[("[ring.small]", &format!("{other}\n[ring.small]"))],
            &typical(),
        );
        assert_eq!(plan.ring("raw").unwrap().readers, ["quarter", "other"]);
        assert_eq!(plan.ring("raw").unwrap().mapping, Some(Backend::Vulkan));
        assert_eq!(method(&plan, "raw"), (PlannedMethod::Either, None));
        assert_eq!(plan.sources[0].path, DataPath::Staged);
        let rendered = "small bursts through the GPU's BAR (vulkan); gdrapi: ";
        assert!(plan.sources[0].reason.contains(rendered), "{plan}");
        // Threads of the source, two kernels, the sink, and copies in both directions.
        assert_eq!(plan.threads, 6);
    }
    // A sink that reads the host ring is not a reader of the GPU ring.
    let sink = "[sink.raw]\ndriver = \"void\"\ninput = \"raw\"\n[ring.small]";
    let plan = planned(&[("[ring.small]", sink)], &typical());
    assert_eq!(
        plan.ring("raw@host").unwrap().readers,
        ["copy to raw", "raw"]
    );
    assert_eq!(
        method(&plan, "raw"),
        (PlannedMethod::Stores, Some("quarter"))
    );
}

#[test]
fn large_frames_use_copy_engine() {
    let at = ("slot = \"5 KiB\"", "slot = \"128 KiB\"");
    let above = ("slot = \"5 KiB\"", "slot = \"129 KiB\"");
    assert_eq!(
        method(&planned(&[at], &typical()), "raw"),
        (PlannedMethod::Stores, Some("quarter"))
    );
    let plan = planned(&[above], &typical());
    assert_eq!(plan.ring("raw").unwrap().mapping, Some(Backend::Vulkan));
    assert_eq!(method(&plan, "raw"), (PlannedMethod::Either, None));
    // Without a persistent kernel, the ring uses plain GPU memory.
    let launched = ("dispatch = \"persistent\"", "");
    let plan = planned(&[launched, above], &typical());
    let raw = plan.ring("raw").unwrap();
    assert_eq!(raw.mapping, None);
    assert_eq!(
        raw.mapping_reason,
        "none, because the copy engine copies frames of 129 KiB"
    );
    assert_eq!(method(&plan, "raw"), (PlannedMethod::Engine, None));
    assert_eq!(plan.kernels[0].doorbell, None);
    let plan = planned(&[launched, at], &typical());
    let raw = plan.ring("raw").unwrap();
    assert_eq!(raw.mapping, Some(Backend::Vulkan));
    let why = "by vulkan: the CPU can store frames of 128 KiB";
    assert_eq!(raw.mapping_reason, format!("{why}; {REFUSED}"));
    assert_eq!(method(&plan, "raw"), (PlannedMethod::Either, None));
}

#[test]
fn ring_filled_by_kernel_is_not_mapped() {
    let second = "[kernel.second]\nfile = \"b.cu\"\ndispatch = \"persistent\"\ninput = \"small\"\noutput = \"more\"\n\
                  [ring.more]\n[sink.more]\ndriver = \"void\"\ninput = \"more\"\n[ring.small]";
    let plan = planned(&[("[ring.small]", second)], &typical());
    let small = plan.ring("small").unwrap();
    assert_eq!((small.mapping, small.mapping_reason.as_str()), (None, ""));
    assert!(plan.kernels.iter().all(|kernel| kernel.doorbell.is_some()));
}

#[test]
fn host_ring_is_copied_to_mapped_ring() {
    let plan = planned(&[("slots = 4", "slots = 4\nmemory = \"host\"")], &typical());
    assert_eq!(plan.kernels[0].input, "raw@cuda:0");
    assert_eq!(
        plan.ring("raw@cuda:0").unwrap().mapping,
        Some(Backend::Vulkan)
    );
    assert_eq!(
        method(&plan, "raw@cuda:0"),
        (PlannedMethod::Stores, Some("quarter"))
    );
    // The declared ring is in host memory, to which the CPU writes.
    let reason = "the CPU writes packets to host memory";
    assert_eq!(plan.sources[0].reason, reason);
}

#[test]
fn disabled_backend_is_not_selected() {
    let allow = |list: &str| format!("[staging]\nbackends = {list}\n[ring.small]");
    let all = [Backend::Gdrapi, Backend::Vulkan, Backend::Host];
    let topology = with(vec![gpu(0, &all)]);
    let plan = planned(
        &[("[ring.small]", &allow("[\"host\", \"vulkan\"]"))],
        &topology,
    );
    let raw = plan.ring("raw").unwrap();
    assert_eq!(raw.mapping, Some(Backend::Vulkan));
    let forbidden = "gdrapi: not allowed, because `backends` of `[staging]` does not list this backend; dma-buf: not allowed, because `backends` of `[staging]` does not list this backend";
    assert!(
        raw.mapping_reason.ends_with(forbidden),
        "{}",
        raw.mapping_reason
    );
    let plan = planned(&[("[ring.small]", &allow("[\"host\"]"))], &topology);
    assert_eq!(plan.ring("raw").unwrap().mapping, None);
    assert_eq!(doorbell(&plan).0, Some(Backend::Host));
    // The result is known without probing the backends.
    let plan = planned(&[("[ring.small]", &allow("[\"host\"]"))], &with_gpu());
    assert!(
        plan.ring("raw")
            .unwrap()
            .mapping_reason
            .starts_with("none, because ")
    );
    // Without a backend for the doorbell, the persistent kernel is not possible.
    let topology = with(vec![gpu(0, &[Backend::Host])]);
    let plan = planned(&[("[ring.small]", &allow("[\"vulkan\"]"))], &topology);
    assert_eq!(plan.unavailable.len(), 1);
    let rendered = "persistent kernel `quarter` on cuda:0: no backend can allocate doorbell memory: gdrapi: not allowed";
    assert!(
        plan.unavailable[0].starts_with(rendered),
        "{:?}",
        plan.unavailable
    );
    let rendered = error(&[("[ring.small]", &allow("[]"))], &topology);
    only(
        &rendered,
        &[
            "persistent kernel `quarter` needs doorbell memory, but `backends` allows no method to allocate it",
        ],
    );
    assert_contains!(rendered => "backends = []", "help: add \"host\"");
    // Without a persistent kernel this is not an error.
    let launched = ("dispatch = \"persistent\"", "");
    let plan = planned(&[launched, ("[ring.small]", &allow("[]"))], &topology);
    assert!(
        plan.ring("raw")
            .unwrap()
            .mapping_reason
            .starts_with("none, because ")
    );
}

#[test]
fn misspelt_backend_yields_suggestion() {
    let rendered = error(
        &[(
            "[ring.small]",
            "[staging]\nbackends = [\"host\", \"vulcan\"]\n[ring.small]",
        )],
        &typical(),
    );
    only(&rendered, &["`backends[1]` cannot be \"vulcan\""]);
    assert!(rendered.contains("did you mean \"vulkan\"?"), "{rendered}");
}

#[test]
fn mappings_are_selected_per_gpu() {
    let topology = with(vec![
        gpu(0, &[Backend::Host]),
        gpu(1, &[Backend::Gdrapi, Backend::Host]),
        Gpu::new(2, "Not tried"),
    ]);
    let on = |ordinal| {
        let memory = format!("slots = 4\nmemory = \"cuda:{ordinal}\"");
        planned(&[("slots = 4", &memory)], &topology)
    };
    assert_eq!(on(0).ring("raw").unwrap().mapping, None);
    let plan = on(1);
    assert_eq!(plan.ring("raw").unwrap().mapping, Some(Backend::Gdrapi));
    assert_eq!(
        doorbell(&plan),
        (Some(Backend::Gdrapi), "in GPU memory (gdrapi)")
    );
    assert_eq!(on(2).untried, BTreeSet::from([2]));
}

#[test]
fn untested_backend_is_probed_at_startup() {
    for topology in [with_gpu(), Topology::unknown()] {
        let plan = planned(
            &[("slots = 4", "slots = 4\nmemory = \"cuda:0\"")],
            &topology,
        );
        let raw = plan.ring("raw").unwrap();
        let rendered = (None, "probed at startup");
        assert_eq!((raw.mapping, raw.mapping_reason.as_str()), rendered);
        assert_eq!(doorbell(&plan), rendered);
        assert_eq!(method(&plan, "raw"), (PlannedMethod::Engine, None));
        assert_eq!(plan.untried, BTreeSet::from([0]));
    }
    // If frames are large and kernels are launched, no decision depends on the backends.
    let changes = [
        ("dispatch = \"persistent\"", ""),
        ("slot = \"5 KiB\"", "slot = \"1 MiB\""),
    ];
    assert!(planned(&changes, &with_gpu()).untried.is_empty());
}

#[test]
fn doorbell_by_device_without_capable_engine_is_rejected() {
    let persistent = "dispatch = \"persistent\"";
    let by = |who: &str| format!("{persistent}\ndoorbell = \"{who}\"");
    let plan = planned(&[(persistent, &by("cpu"))], &typical());
    assert_eq!(
        plan.kernels[0].doorbell.as_ref().unwrap().initiator,
        DoorbellInitiator::Cpu
    );
    let rendered = error(&[(persistent, &by("device"))], &typical());
    let why = "source `adc` (fake) fills ring `raw`, but has no engine that can ring a doorbell";
    only(
        &rendered,
        &[&format!(
            "no device can ring the doorbell of kernel `quarter`: {why}"
        )],
    );
    assert_contains!(rendered => "doorbell = \"device\"", "set it to \"cpu\"");
    let ringing = (
        "driver = \"fake\"\npacket = \"1 KiB\"",
        "driver = \"carded\"",
    );
    let plan = planned(&[(persistent, &by("device")), ringing], &typical());
    let bell = plan.kernels[0].doorbell.as_ref().unwrap();
    assert_fields!(bell => initiator: DoorbellInitiator::Device, backend: Some(Backend::Vulkan));
    assert!(
        plan.to_string()
            .contains("rung by the device that writes the frames, in GPU memory (vulkan)")
    );
    // A device cannot ring a doorbell in memory of the backend `host`.
    let plan = planned(
        &[(persistent, &by("device")), ringing],
        &with(vec![gpu(0, &[Backend::Host])]),
    );
    assert_eq!(plan.unavailable.len(), 1, "{:?}", plan.unavailable);
    let rendered = error(&[(persistent, "doorbell = \"cpu\"")], &typical());
    only(
        &rendered,
        &[
            "`doorbell` has no effect on kernel `quarter`, because this kernel is launched for each burst",
        ],
    );
    let rendered = error(&[(persistent, &by("devcie"))], &typical());
    only(&rendered, &["`doorbell` cannot be \"devcie\""]);
    // A kernel that fills the ring has no doorbell; a producer with an invalid section is not reported again.
    let second = format!(
        "[kernel.second]\nfile = \"b.cu\"\n{}\ninput = \"small\"\noutput = \"more\"\n[ring.more]\n[ring.small]",
        by("device")
    );
    let rendered = error(&[("[ring.small]", &second)], &typical());
    assert_contains!(rendered => "kernel `second`: kernel `quarter` fills ring `small`");
    let rendered = error(
        &[(persistent, &by("device")), ("\"fake\"", "\"fkae\"")],
        &typical(),
    );
    only(&rendered, &["unknown driver \"fkae\""]);
}

#[test]
fn cpu_kernel_with_persistent_dispatch_is_rejected() {
    let rendered = error(
        &[("file = \"my.cu\"", "file = \"my.cu\"\ncpu = true")],
        &typical(),
    );
    only(
        &rendered,
        &["kernel `quarter` cannot be persistent, because it runs on the CPU"],
    );
    assert_contains!(rendered => "help: remove `dispatch`, or put");
}
