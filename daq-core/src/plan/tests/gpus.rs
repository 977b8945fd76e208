//! Tests of plans for machines with several GPUs.

use super::*;
use crate::topology::tree::PciDevice;

/// A source whose ring is read by two kernels.
const FAN_OUT: &str = r#"
[source.adc]
driver = "fake"
packet = "1 KiB"
ring = "raw"

[ring.raw]
slot = "256 KiB"
slots = 8

[kernel.near]
use = "quarter"
gpu = true
input = "raw"
output = "left"

[ring.left]
attach = true

[kernel.far]
use = "quarter"
gpu = true
device = "cuda:1"
input = "raw"
output = "right"

[ring.right]

[sink.disk]
driver = "void"
input = "right"
"#;

fn device(address: &str) -> PciDevice {
    PciDevice {
        address: address.to_owned(),
        vendor: None,
        device: None,
        class: None,
        driver: None,
        node: None,
        link: None,
        regions: Vec::new(),
        group: None,
        acs: crate::topology::tree::Acs::default(),
        host: "pci0000:00".to_owned(),
        upstream: Vec::new(),
    }
}

/// Returns the same machine with both GPUs below one switch.
fn below_switch(link: Option<PeerLink>) -> Topology {
    let mut topology = two_gpus(link);
    for (gpu, address) in topology
        .gpus
        .iter_mut()
        .zip(["0000:02:00.0", "0000:03:00.0"])
    {
        gpu.pci = Some(address.to_owned());
        topology.pci.devices.push(PciDevice {
            upstream: vec!["0000:01:00.0".to_owned(), "0000:00:01.0".to_owned()],
            ..device(address)
        });
    }
    topology
}

/// Returns the rings with their memories, and the copies with their routes.
fn paths(plan: &Plan) -> (Vec<String>, Vec<String>) {
    let rings = plan.rings.iter();
    let copies = plan.copies.iter();
    (
        rings
            .map(|ring| format!("{} @ {}", ring.name, ring.placement))
            .collect(),
        copies
            .map(|copy| format!("{} → {}: {}", copy.from, copy.to, copy.route))
            .collect(),
    )
}

fn copies(text: &str, topology: &Topology) -> Vec<String> {
    paths(&plan_of(text, topology).unwrap()).1
}

/// Asserts that each ring has the producer and readers that the plan's components and copies name, and that no copy needs
/// a missing ring.
fn is_connected(plan: &Plan) {
    for copy in &plan.copies {
        let (from, to) = (plan.ring(&copy.from).unwrap(), plan.ring(&copy.to).unwrap());
        assert_eq!(
            Some(copy.route),
            crate::staging::Route::between(from.placement, to.placement)
        );
        assert!(
            from.readers.contains(&copy.name),
            "{} of {:?}",
            copy.name,
            from.readers
        );
        assert_eq!(to.producer, copy.name);
        assert!(to.supports_backpressure);
    }
    for ring in &plan.rings {
        for reader in &ring.readers {
            let copies = plan.copies.iter();
            let kernels = plan.kernels.iter();
            let sinks = plan.sinks.iter();
            let reads = copies
                .map(|copy| (&copy.name, &copy.from))
                .chain(kernels.map(|kernel| (&kernel.name, &kernel.input)))
                .chain(sinks.map(|sink| (&sink.name, &sink.input)));
            let reads: Vec<_> = reads.filter(|(name, _)| *name == reader).collect();
            assert_eq!(reads, [(reader, &ring.name)]);
        }
    }
    for kernel in &plan.kernels {
        let place = match kernel.side {
            Side::Cpu => Placement::Host,
            Side::Cuda(gpu) => Placement::Cuda(gpu),
        };
        assert_eq!(plan.ring(&kernel.input).unwrap().placement, place);
        assert_eq!(plan.ring(&kernel.output).unwrap().placement, place);
    }
}

#[test]
fn host_ring_is_staged_to_each_gpu() {
    let plan = plan_of(FAN_OUT, &two_gpus(Some(PeerLink::NvLink))).unwrap();
    is_connected(&plan);
    insta::assert_snapshot!(plan);
}

#[test]
fn frames_cross_nvlink_if_gpus_share_link_to_host() {
    let route = |topology| copies(FAN_OUT, &topology)[1].clone();
    let from_host = "raw@host → raw@cuda:1: host → cuda:1";
    let shared = below_switch(Some(PeerLink::NvLink));
    assert_eq!(route(shared.clone()), "raw → raw@cuda:1: cuda:0 → cuda:1");
    let plan = plan_of(FAN_OUT, &shared).unwrap();
    is_connected(&plan);
    assert_contains!(plan.copies[1].reason => "over NVLink", "share the PCIe link of 0000:01:00.0");
    assert_eq!(route(below_switch(Some(PeerLink::Pcie))), from_host);
    assert_eq!(route(below_switch(None)), from_host);
    assert_eq!(route(two_gpus(None)), from_host);
}

#[test]
fn auto_ring_is_on_gpu_of_its_readers() {
    let only = FAN_OUT.replacen("gpu = true", "gpu = true\ndevice = \"cuda:1\"", 1);
    let plan = plan_of(&only, &two_gpus(Some(PeerLink::NvLink))).unwrap();
    is_connected(&plan);
    let (rings, copies) = paths(&plan);
    assert_eq!(
        rings,
        [
            "raw@host @ host",
            "raw @ cuda:1",
            "left @ cuda:1",
            "right @ cuda:1",
            "right@host @ host"
        ]
    );
    assert_eq!(
        copies,
        [
            "raw@host → raw: host → cuda:1",
            "right → right@host: cuda:1 → host"
        ]
    );
    assert_eq!(
        plan.ring("raw").unwrap().reason,
        "kernel `near` runs on cuda:1"
    );
}

#[test]
fn declared_ring_without_other_reader_is_passed_on_by_its_gpu() {
    let text = FAN_OUT
        .replace("slots = 8", "slots = 8\nmemory = \"cuda:0\"")
        .replacen("gpu = true", "gpu = true\ndevice = \"cuda:1\"", 1);
    let copies = copies(&text, &two_gpus(Some(PeerLink::Pcie)));
    assert_eq!(
        copies[..2],
        [
            "raw@host → raw: host → cuda:0",
            "raw → raw@cuda:1: cuda:0 → cuda:1"
        ]
    );
}

/// A source with a DMA engine that writes directly to a GPU.
fn engine(text: &str, topology: &Topology) -> Plan {
    let text = text.replace(
        "driver = \"fake\"\npacket = \"1 KiB\"",
        "driver = \"carded\"",
    );
    let plan = plan_with(&text, &registry().with(&CARDED), topology).unwrap();
    is_connected(&plan);
    plan
}

#[test]
fn gpu_ring_written_by_device_is_copied_between_gpus() {
    let plan = engine(FAN_OUT, &two_gpus(Some(PeerLink::NvLink)));
    let (rings, copies) = paths(&plan);
    assert_eq!(rings[..2], ["raw @ cuda:0", "left @ cuda:0"]);
    assert_eq!(copies[0], "raw → raw@cuda:1: cuda:0 → cuda:1");
    assert_eq!(plan.copies[0].reason, "cuda:0 writes cuda:1 over NVLink");
    assert_eq!(plan.sources[0].path, DataPath::Direct);
    assert_eq!(
        plan.source_of("raw@cuda:1").map(|source| &*source.name),
        Some("adc")
    );
    // Without access between the GPUs, the frames are needed in host memory, so the device writes them there.
    let plan = engine(FAN_OUT, &two_gpus(None));
    assert_eq!(paths(&plan).1[1], "raw@host → raw@cuda:1: host → cuda:1");
    assert_contains!(plan.sources[0].reason => "because copy to raw@cuda:1 read them from host memory");
}

#[test]
fn output_ring_on_other_gpu_is_filled_by_copy() {
    let text = FAN_OUT.replace("[ring.right]", "[ring.right]\nmemory = \"cuda:0\"");
    let plan = plan_of(&text, &two_gpus(Some(PeerLink::Pcie))).unwrap();
    is_connected(&plan);
    let (rings, copies) = paths(&plan);
    assert_eq!(
        rings[4..],
        [
            "right@cuda:1 @ cuda:1",
            "right @ cuda:0",
            "right@host @ host"
        ]
    );
    // The sink reads a copy from the GPU that computes the frames.
    assert_eq!(
        copies[2..],
        [
            "right@cuda:1 → right: cuda:1 → cuda:0",
            "right@cuda:1 → right@host: cuda:1 → host"
        ]
    );
    assert_eq!(plan.copies[2].reason, "cuda:1 writes cuda:0 over PCIe");
}

#[test]
fn gpus_without_access_exchange_frames_through_host_memory() {
    let text = FAN_OUT.replace("[ring.right]", "[ring.right]\nmemory = \"cuda:0\"");
    let plan = plan_of(&text, &two_gpus(None)).unwrap();
    is_connected(&plan);
    assert_eq!(
        paths(&plan).1[2..],
        [
            "right@cuda:1 → right@host: cuda:1 → host",
            "right@host → right: host → cuda:0"
        ]
    );
    assert_eq!(
        plan.copies[3].reason,
        "through host memory, because cuda:1 cannot access the memory of cuda:0"
    );
    assert_eq!(plan.sinks[0].input, "right@host");
    let declared = format!("{text}\n[staging]\npeer_access = false\n");
    let plan = plan_of(&declared, &two_gpus(Some(PeerLink::NvLink))).unwrap();
    assert_contains!(plan.copies[3].reason => "`peer_access = false` is declared in [staging]");
}

#[test]
fn chain_of_kernels_on_two_gpus_needs_one_copy() {
    let text = FAN_OUT.replace(
        "input = \"raw\"\noutput = \"right\"",
        "input = \"left\"\noutput = \"right\"",
    );
    let plan = plan_of(&text, &two_gpus(Some(PeerLink::NvLink))).unwrap();
    is_connected(&plan);
    assert_eq!(
        paths(&plan).1,
        [
            "raw@host → raw: host → cuda:0",
            "left → left@cuda:1: cuda:0 → cuda:1",
            "right → right@host: cuda:1 → host"
        ]
    );
    assert_contains!(plan.graph(GraphFormat::Mermaid) => "copy, GPU to GPU");
    // One thread each for the source, two kernels, the sink and three copies.
    assert_eq!(plan.threads, 7);
    let unknown = plan_of(&text, &Topology::unknown()).unwrap();
    assert!(unknown.unavailable.is_empty(), "{:?}", unknown.unavailable);
}

#[test]
fn kernel_declared_on_cpu_reads_host_memory() {
    let text = FAN_OUT.replacen("gpu = true", "gpu = true\ndevice = \"cpu\"", 1);
    let plan = plan_of(&text, &two_gpus(Some(PeerLink::NvLink))).unwrap();
    is_connected(&plan);
    assert_eq!(plan.kernels[0].side, Side::Cpu);
    assert_eq!(plan.kernels[0].input, "raw@host");
}

#[test]
fn missing_gpu_of_kernel_is_named() {
    let plan = plan_of(&FAN_OUT.replace("cuda:1", "cuda:5"), &two_gpus(None)).unwrap();
    assert_eq!(
        plan.unavailable,
        [
            "kernel `far` needs cuda:5: this machine has cuda:0 (Test GPU), cuda:1 (Test GPU); name a GPU of this machine in `device`, or remove `device`"
        ]
    );
}

#[test]
fn unsuitable_device_is_rejected() {
    let on_cpu_only = FAN_OUT.replacen("gpu = true\ndevice", "device", 1);
    let error = plan_of(&on_cpu_only, &two_gpus(None)).unwrap_err();
    only(
        &error,
        &["kernel `far` cannot process these frames on a GPU"],
    );
    let unknown = FAN_OUT.replace("\"cuda:1\"", "\"gpu1\"");
    let error = plan_of(&unknown, &two_gpus(None)).unwrap_err();
    assert_contains!(error => "unknown device \"gpu1\"; write \"cpu\" or a GPU such as \"cuda:0\"");
}
