//! Tests of engines of NICs: names, the nearest NIC, and emulated NICs.

use super::*;
use crate::assert_contains;
use crate::staging::{Profile, Sending};
use crate::topology::nic::{Nic, NicPort};
use crate::topology::tree::{Acs, PciDevice, PciTree};

fn carded() -> Registry {
    registry().with(&CARDED)
}

/// Returns a device that is connected through the bridges `bridges`, or without them to a separate host bridge.
fn device(address: &str, class: u32, bridges: &[&str]) -> PciDevice {
    let host = if bridges.is_empty() && class >> 16 != 6 {
        "pci0000:80"
    } else {
        "pci0000:00"
    };
    PciDevice {
        address: address.to_owned(),
        vendor: None,
        device: None,
        class: Some(class),
        driver: Some("own".to_owned()),
        node: Some(u32::from(host == "pci0000:80")),
        link: None,
        regions: Vec::new(),
        group: None,
        acs: Acs::Control(0),
        host: host.to_owned(),
        upstream: bridges.iter().map(|&bridge| bridge.to_owned()).collect(),
    }
}

fn nic(name: &str, pci: Option<&str>) -> Nic {
    let port = NicPort {
        number: 1,
        state: Some("ACTIVE".to_owned()),
        physical: None,
        layer: None,
        rate: Some(100_000_000_000),
        lanes: None,
        netdevs: Vec::new(),
        gids: Vec::new(),
    };
    Nic {
        name: name.to_owned(),
        pci: pci.map(str::to_owned),
        node: None,
        model: None,
        firmware: None,
        ports: vec![port],
    }
}

/// Returns a host with a GPU, a NIC below the same root port, and a NIC on the other socket.
fn machine(gpu: Gpu) -> Topology {
    let port = "0000:00:01.0";
    Topology {
        gpus: vec![Gpu {
            pci: Some("0000:01:00.0".to_owned()),
            rdma: Some(true),
            ..gpu
        }],
        pci: PciTree {
            devices: vec![
                device(port, 0x06_0400, &[]),
                device("0000:01:00.0", 0x03_0200, &[port]),
                device("0000:02:00.0", 0x02_0000, &[port]),
                device("0000:81:00.0", 0x02_0000, &[]),
            ],
            ..PciTree::default()
        },
        nics: vec![
            nic("mlx5_0", Some("0000:81:00.0")),
            nic("mlx5_1", Some("0000:02:00.0")),
            nic("rxe0", None),
        ],
        ..host()
    }
}

fn gpu(dma_buf: bool, maps: bool) -> Gpu {
    let made = if maps { Ok(()) } else { Err("no".to_owned()) };
    Gpu {
        dma_buf: Some(dma_buf),
        mappings: Some(vec![(Backend::Vulkan, made)]),
        ..Gpu::new(0, "Test GPU")
    }
}

fn plan(keys: &str, topology: &Topology) -> Plan {
    let text = PIPELINE
        .replace(
            "driver = \"fake\"\npacket = \"1 KiB\"",
            &format!("driver = \"carded\"\n{keys}"),
        )
        .replace("use = \"quarter\"", "use = \"quarter\"\ngpu = true");
    plan_with(&text, &carded(), topology).unwrap()
}

fn path_of(plan: &Plan) -> (DataPath, &str, Option<Writer>) {
    let source = &plan.sources[0];
    (
        source.path,
        &source.reason,
        plan.ring(&source.ring).and_then(|ring| ring.writer),
    )
}

#[test]
fn nic_by_name_is_found_and_auto_selects_nearest() {
    let machine = machine(gpu(true, false));
    for name in ["mlx5_1", "auto"] {
        let plan = plan(&format!("nic = \"{name}\""), &machine);
        let (path, reason, writer) = path_of(&plan);
        assert_eq!(
            (path, writer),
            (DataPath::Direct, Some(Writer::Nic)),
            "{reason}"
        );
        assert!(reason.contains("mlx5_1 at 0000:02:00.0: "), "{reason}");
        assert!(plan.unavailable.is_empty(), "{:?}", plan.unavailable);
        let chosen = (name == "auto").then_some("mlx5_1");
        assert_eq!(
            plan.sources[0].nic.as_deref(),
            chosen,
            "the selected card must be the card of the judged path"
        );
    }
    let far = plan("nic = \"mlx5_0\"", &machine);
    let (path, reason, _) = path_of(&far);
    assert_eq!(path, DataPath::Staged);
    assert!(reason.contains("different NUMA nodes"), "{reason}");
}

#[test]
fn nic_to_gpu_needs_dma_buf_or_peermem() {
    let without = machine(gpu(false, true));
    let refused = plan("nic = \"mlx5_1\"", &without);
    let (path, reason, _) = path_of(&refused);
    assert_eq!(path, DataPath::Staged);
    assert!(reason.contains("sudo modprobe nvidia-peermem"), "{reason}");
    let preferred = plan("nic = \"mlx5_1\"\npath = \"direct\"", &without);
    assert!(
        preferred.unavailable[0].contains("nvidia-peermem"),
        "{:?}",
        preferred.unavailable
    );
    let loaded = Topology {
        peer_memory: true,
        ..without
    };
    let taken = plan("nic = \"mlx5_1\"", &loaded);
    assert_eq!(path_of(&taken).0, DataPath::Direct);
    assert!(
        taken.sources[0]
            .notes
            .iter()
            .any(|note| note.contains("nvidia-peermem"))
    );
}

#[test]
fn gpu_ring_accessed_by_cpu_must_be_mapped() {
    let mapped = |made: Result<(), String>| {
        machine(Gpu {
            mappings: Some(vec![(Backend::Gdrapi, made)]),
            ..gpu(true, false)
        })
    };
    let (with, without) = (mapped(Ok(())), mapped(Err("no gdrdrv".to_owned())));
    let keys = "nic = \"mlx5_1\"\npath = \"direct\"\n";
    let looks = format!("{keys}cpu_reads_memory = true");
    for (keys, machine) in [(keys, &without), (&looks, &with)] {
        let plan = plan(keys, machine);
        assert_eq!(path_of(&plan).0, DataPath::Direct);
        assert!(plan.unavailable.is_empty(), "{:?}", plan.unavailable);
    }
    let refused = plan(&looks, &without);
    assert_eq!(path_of(&refused).0, DataPath::Staged);
    let why = "no backend can map GPU memory for the CPU, which must read the received data: gdrapi: no gdrdrv";
    assert!(
        refused.unavailable[0].contains(why),
        "{:?}",
        refused.unavailable
    );
}

#[test]
fn unknown_nic_error_lists_available_nics() {
    for memory in ["", "memory = \"host\"\n"] {
        let topology = machine(gpu(true, true));
        let changed = PIPELINE.replace("[ring.raw]\n", &format!("[ring.raw]\n{memory}"));
        let changed = changed.replace(
            "driver = \"fake\"\npacket = \"1 KiB\"",
            "driver = \"carded\"\nnic = \"mlx5_7\"",
        );
        let plan = plan_with(&changed, &carded(), &topology).unwrap();
        assert_eq!(
            plan.unavailable,
            [
                "source `adc`: there is no RDMA network card `mlx5_7`; available: mlx5_0, mlx5_1, rxe0 (`emulated` needs no hardware)"
            ],
            "{memory}"
        );
        let blind = plan_with(&changed, &carded(), &Topology::unknown()).unwrap();
        assert!(blind.unavailable.is_empty(), "planned without hardware");
    }
    let none = plan("nic = \"auto\"", &host());
    let described = &none.unavailable[0];
    assert_contains!(described => "no RDMA network card", "nics = [\"emulated\"]");
    assert_eq!(none.sources[0].nic, None);
}

#[test]
fn emulated_nic_writes_cpu_accessible_memory() {
    for name in ["emulated", "emulated:127.0.0.2"] {
        let keys = format!("nic = \"{name}\"");
        let mapped = plan(&keys, &machine(gpu(false, true)));
        let (path, reason, writer) = path_of(&mapped);
        assert_eq!(
            (path, writer),
            (DataPath::Direct, Some(Writer::Cpu)),
            "{reason}"
        );
        let unmapped = plan(&keys, &machine(gpu(true, false)));
        let (path, reason, _) = path_of(&unmapped);
        assert_eq!(path, DataPath::Staged);
        assert!(reason.contains("vulkan: no"), "{reason}");
        let plain = plan(&keys, &host());
        assert_eq!(path_of(&plain).0, DataPath::Direct, "host memory");
        for plan in [&mapped, &unmapped, &plain] {
            assert!(plan.unavailable.is_empty(), "{:?}", plan.unavailable);
        }
    }
    let kernel = plan("nic = \"rxe0\"", &machine(gpu(true, true)));
    let (path, reason, _) = path_of(&kernel);
    assert_eq!(path, DataPath::Staged);
    assert!(reason.contains("only to host memory"), "{reason}");
}

#[test]
fn nic_for_staged_ring_and_for_sink_is_selected() {
    let machine = machine(gpu(false, false));
    let staged = plan("nic = \"auto\"", &machine);
    assert_eq!(path_of(&staged).0, DataPath::Staged);
    assert_eq!(staged.sources[0].nic.as_deref(), Some("mlx5_1"));
    let sinks = |nic: &str, topology: &Topology| {
        let sink = "[sink.disk]\ndriver = \"void\"\n";
        assert!(
            PIPELINE.contains(sink),
            "PIPELINE must contain the section that this test changes"
        );
        let text = PIPELINE.replace(sink, &format!("{sink}nic = \"{nic}\"\n"));
        plan_with(&text, &registry(), topology).unwrap()
    };
    let found = sinks("auto", &machine);
    assert_eq!(found.sinks[0].nic.as_deref(), Some("mlx5_0"), "of equals");
    assert_eq!(sinks("mlx5_1", &machine).sinks[0].nic, None);
    let unknown = sinks("mlx5_7", &machine);
    assert!(unknown.unavailable[0].starts_with("sink `disk`: there is no"));
    assert_eq!(sinks("auto", &host()).unavailable.len(), 1);
    for nic in ["auto", "emulated"] {
        let blind = sinks(nic, &Topology::unknown());
        assert_eq!((&blind.sinks[0].nic, blind.unavailable.len()), (&None, 0));
    }
}

/// The measurement of `daq bench rdma --keep` decides, depending on the frame size.
#[test]
fn sink_reads_gpu_if_measured_faster() {
    let sent = PIPELINE
        .replace("use = \"quarter\"", "use = \"quarter\"\ngpu = true")
        .replace("input = \"small\"", "input = \"small\"\nmeasured = true");
    let machine = machine(gpu(true, true));
    let planned = |text: &str, keys: &str, known: &[(&str, Option<usize>)]| {
        let cards = known.iter().map(|(card, staged_from)| {
            let sending = Sending {
                staged_from: *staged_from,
                max_bytes: 8192,
                basis: machine.measurement_basis(card),
            };
            ((*card).to_owned(), sending)
        });
        let profile = Profile {
            cards: cards.collect(),
            ..Profile::assumed()
        };
        let context = PlanContext {
            profiles: [(0, profile)].into(),
            ..PlanContext::default()
        };
        plan_in(&format!("{text}{keys}"), &registry(), &machine, &context).unwrap()
    };
    let (auto, far, software) = ("nic = \"auto\"", "nic = \"mlx5_0\"", "");
    for (keys, known, is_direct) in [
        (auto, [("mlx5_1", Some(4097))], true),
        (auto, [("mlx5_1", Some(4096))], false),
        (auto, [("mlx5_1", Some(0))], false),
        (auto, [("mlx5_1", None)], true),
        (auto, [("mlx5_0", None)], false),
        (far, [("mlx5_0", None)], true),
        (software, [("emulated", Some(8192))], true),
        (software, [("mlx5_1", None)], false),
    ] {
        let plan = planned(&sent, keys, &known);
        let sink = &plan.sinks[0];
        let (input, notes) = (sink.input.as_str(), sink.notes.join("\n"));
        let described = format!("{keys} {known:?}: {input}, {notes:?}");
        assert_eq!(input == "small", is_direct, "{described}");
        assert_eq!(
            notes.contains(
                "reads cuda:0 directly, because sending through host memory was measured"
            ),
            is_direct,
            "{described}"
        );
        assert_eq!(
            plan.copies.len(),
            1 + usize::from(!is_direct),
            "{described}"
        );
        if keys == auto {
            let chosen = if is_direct { "mlx5_1" } else { "mlx5_0" };
            assert_eq!(sink.nic.as_deref(), Some(chosen), "{described}");
        }
    }
    let unknown = planned(&sent, auto, &[]);
    let copied = unknown.ring("small@host").unwrap().inserted.as_deref();
    assert_eq!(
        copied.unwrap(),
        "sink `disk` reads host memory, because direct reads of cuda:0 by mlx5_1 were not measured; to measure, run: \
         daq bench rdma --keep --nics mlx5_1 --device 0"
    );
    // Frames of a source are in host memory first, so the sink reads them there.
    let stored = sent.replace("input = \"small\"", "input = \"raw\"");
    let stored = planned(&stored, software, &[("emulated", None)]);
    assert_eq!(stored.sinks[0].input, "raw@host");
    // The same applies if another sink, before or after this one, needs a copy in host memory.
    let sink = &sent[sent.find("[sink.disk]").unwrap()..];
    let other = "[sink.other]\ndriver = \"void\"\ninput = \"small\"\n";
    let never = [("emulated", None)];
    let before = sent.replace(sink, &format!("{other}{sink}"));
    for (text, at) in [(before, 1), (format!("{sent}{other}"), 0)] {
        let plan = planned(&text, software, &never);
        assert_eq!(plan.sinks[at].name, "disk");
        assert_eq!(plan.sinks[at].input, "small@host");
    }
    let larger = sent.replace("slot = \"5 KiB\"", "slot = \"64 KiB\"");
    let larger = larger.replace("packet = \"1 KiB\"", "packet = \"16 KiB\"");
    let unknown = planned(&larger, software, &never);
    let why = unknown.ring("small@host").unwrap().inserted.as_deref();
    assert!(
        why.unwrap().contains("for frames larger than 8 KiB"),
        "{why:?}"
    );
}

/// A measurement is no longer valid after a module was unloaded, or the NIC was moved or got new firmware.
#[test]
fn nic_measurement_is_valid_until_nic_changes() {
    let before = machine(gpu(true, true));
    let basis = before.measurement_basis("mlx5_1");
    let loaded = Topology {
        peer_memory: !before.peer_memory,
        ..before.clone()
    };
    assert_ne!(loaded.measurement_basis("mlx5_1"), basis);
    let mut moved = before.clone();
    moved.nics[1].pci = Some("0000:03:00.0".to_owned());
    assert_ne!(moved.measurement_basis("mlx5_1"), basis);
    let mut newer = before;
    newer.nics[1].firmware = Some("28.43".to_owned());
    assert_ne!(newer.measurement_basis("mlx5_1"), basis);
}
