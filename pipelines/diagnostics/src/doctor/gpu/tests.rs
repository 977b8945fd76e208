//! Tests recorded machines with a GPU, and recorded answers of NVML and CUDA.

use super::nvml::Brakes;
use super::*;
use crate::doctor::Status::{self, Ok as Fine, Unknown, Warning};
use crate::doctor::root::tests::machine;
use crate::doctor::tests::{find, sound};
use daq_core::gpu::bar_mapping::{Costs, Refusal as RefusedBy};
use daq_core::topology::pci::{Lanes, Link};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

const ADDRESS: &str = "0000:3b:00.0";
const CARD: &str = "/sys/devices/pci0000:3a/0000:3a:01.0/0000:3b:00.0";
const PORT: &str = "/sys/devices/pci0000:3a/0000:3a:01.0";
const OPEN: &str = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.03  Release Build  (dvs-builder)\nGCC version:  gcc version 13.3.0\n";
const CLOSED: &str =
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024\n";
const WIDE: &str =
    "0xb0000000 0xb0ffffff 0x40200\n0x2000000000 0x3fffffffff 0x14220c\n0 0 0\n0 0 0\n0 0 0\n";
const NARROW: &str =
    "0xb0000000 0xb0ffffff 0x40200\n0xc0000000 0xcfffffff 0x14220c\n0 0 0\n0 0 0\n0 0 0\n";
const TINY: &str =
    "0xb0000000 0xb0ffffff 0x40200\n0xc0000000 0xc3ffffff 0x14220c\n0 0 0\n0 0 0\n0 0 0\n";

/// Returns a healthy server with one Gen5 x16 GPU on node 1. `change` replaces or adds files; `None` removes a file.
fn server(change: &[(&str, Option<&str>)]) -> (tempfile::TempDir, Root) {
    let (dir, root) = machine(&[
        (driver::VERSION, OPEN),
        (&format!("{CARD}/vendor"), "0x10de\n"),
        (&format!("{CARD}/device"), "0x2335\n"),
        (&format!("{CARD}/class"), "0x030200\n"),
        (&format!("{CARD}/numa_node"), "1\n"),
        (&format!("{CARD}/resource"), WIDE),
        (&format!("{CARD}/current_link_speed"), "2.5 GT/s PCIe\n"),
        (&format!("{CARD}/current_link_width"), "16\n"),
        (&format!("{CARD}/max_link_speed"), "32.0 GT/s PCIe\n"),
        (&format!("{CARD}/max_link_width"), "16\n"),
        (&format!("{PORT}/current_link_speed"), "2.5 GT/s PCIe\n"),
        (&format!("{PORT}/current_link_width"), "16\n"),
        (&format!("{PORT}/max_link_speed"), "32.0 GT/s PCIe\n"),
        (&format!("{PORT}/max_link_width"), "16\n"),
        ("/sys/devices/system/node/node0/cpulist", "0-7\n"),
        ("/sys/devices/system/node/node1/cpulist", "8-15\n"),
        ("/proc/self/status", "Cpus_allowed_list:\t0-15\n"),
    ]);
    link_to(&root, "/sys/bus/pci/devices", ADDRESS, CARD);
    for (path, text) in change {
        let path = root.at(path);
        match text {
            Some(text) => {
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, text).unwrap();
            }
            None => std::fs::remove_file(path).unwrap(),
        }
    }
    (dir, root)
}

fn link_to(root: &Root, directory: &str, name: &str, target: &str) {
    let directory = root.at(directory);
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::create_dir_all(root.at(target)).unwrap();
    symlink(root.at(target), directory.join(name)).unwrap();
}

fn of_files(root: &Root) -> Vec<Finding> {
    sound(judge(root, None, &Cuda::default()))
}

/// Checks the status and the value of the finding `name` of a server with changed files.
fn reads(change: &[(&str, Option<&str>)], name: &str, status: Status, read: &str) {
    let (_dir, root) = server(change);
    assert_eq!(find(&of_files(&root), name).summary(), (status, read));
}

/// Returns the status of the finding `name` of a server with changed files.
fn status(change: &[(&str, Option<&str>)], name: &str) -> Status {
    let (_dir, root) = server(change);
    find(&of_files(&root), name).status
}

fn lanes(generation: u32, width: u32) -> Lanes {
    Lanes { generation, width }
}

/// Returns the NVML data of a healthy H200.
fn healthy() -> NvmlCard {
    NvmlCard {
        address: ADDRESS.to_owned(),
        name: Some("NVIDIA H200".to_owned()),
        uuid: Some("GPU-5d5e".to_owned()),
        memory: Some(140 * GIB),
        bar1: Some((256 * GIB, 2 * MIB)),
        link: Some(Link {
            current: lanes(5, 16),
            max: lanes(5, 16),
        }),
        is_persistent: Some(true),
        uncorrected: Some(0),
        is_mig: Some(false),
        temperature: Some(34),
        brakes: Some(Brakes::default()),
    }
}

fn answer(card: NvmlCard) -> NvmlFacts {
    NvmlFacts {
        driver: Some("580.159.03".to_owned()),
        cuda: Some((13, 0)),
        cards: vec![card],
    }
}

/// Returns the server's findings with NVML's and CUDA's answers.
fn of_answers(asked: &Result<NvmlFacts, Refusal>, cuda: &Cuda) -> Vec<Finding> {
    let (_dir, root) = server(&[]);
    sound(judge(&root, Some(asked), cuda))
}

/// Checks the status and the value of the finding `name` if NVML reports a healthy card with a change.
fn nvml_reads(change: impl FnOnce(&mut NvmlCard), name: &str, status: Status, read: &str) {
    let mut card = healthy();
    change(&mut card);
    let findings = of_answers(&Ok(answer(card)), &Cuda::default());
    assert_eq!(find(&findings, name).summary(), (status, read));
}

/// Returns results in which exactly the backends `works` succeed. Each backend needs a different time.
fn tried(works: &[Backend]) -> Vec<(Backend, Result<Costs, RefusedBy>)> {
    let tried = Backend::ALL.into_iter().map(|backend| {
        let micros = |cost: u64| Duration::from_micros(cost);
        let costs = Costs {
            allocate: micros(480),
            pin: micros(60),
            map: micros(20),
        };
        let refused = || RefusedBy {
            backend,
            why: format!("{backend} is not there"),
        };
        let works = works.contains(&backend).then_some(costs);
        (backend, works.ok_or_else(refused))
    });
    tried.collect()
}

/// Returns the server's findings if the backends had the results `tried`.
fn of_stores(tried: Tried) -> Vec<Finding> {
    let (_dir, root) = server(&[]);
    let cuda = Cuda {
        stores: BTreeMap::from([(ADDRESS.to_owned(), tried)]),
        ..Cuda::default()
    };
    sound(judge(&root, None, &cuda))
}

#[test]
fn store_methods_are_reported_with_cost_or_refusal() {
    let findings = of_stores(Ok(tried(&[Backend::Vulkan, Backend::Host])));
    let best = find(&findings, "CPU stores");
    assert_eq!(best.summary(), (Fine, "by vulkan"));
    let vulkan = find(&findings, "by vulkan");
    assert_eq!(vulkan.read, "works");
    let costs = "setup time: allocate 480 us, pin 60 us, map 20 us";
    assert_eq!(vulkan.why.as_deref(), Some(costs));
    let gdrapi = find(&findings, "by gdrapi");
    assert_eq!(gdrapi.summary(), (Fine, "refused"));
    assert_eq!(gdrapi.why.as_deref(), Some("gdrapi is not there"));
    assert!(gdrapi.fix.as_ref().unwrap().contains("libgdrapi"));
    assert_eq!(find(&findings, "by dma-buf").fix, None);
    assert_eq!(find(&findings, "by host memory").read, "works");
}

#[test]
fn gpu_without_store_method_is_warning() {
    for works in [&[][..], &[Backend::Host]] {
        let findings = of_stores(Ok(tried(works)));
        let best = find(&findings, "CPU stores");
        assert_eq!(best.summary(), (Warning, "not possible"));
        assert!(best.fix.as_ref().unwrap().contains("libvulkan1"));
    }
}

#[test]
fn unopened_gpu_has_no_store_finding() {
    let findings = of_stores(Err("opening cuda:0: no memory".to_owned()));
    let stores = find(&findings, "CPU stores");
    assert_eq!(stores.status, Unknown);
    assert_eq!(stores.why.as_deref(), Some("opening cuda:0: no memory"));
    assert!(findings.iter().all(|finding| finding.name != "by vulkan"));
    // Without CUDA there are no findings.
    let (_dir, root) = server(&[]);
    assert!(
        of_files(&root)
            .iter()
            .all(|finding| finding.name != "CPU stores")
    );
}

const GOOD: CudaFacts = CudaFacts {
    rdma: true,
    write_ordering: 100,
    flush: true,
    dma_buf: true,
    vmm: true,
    posix_fd: true,
};

fn of_cuda(change: &[(&str, Option<&str>)], facts: CudaFacts, name: &str) -> Finding {
    let (_dir, root) = server(change);
    let cuda = Cuda {
        facts: BTreeMap::from([(ADDRESS.to_owned(), facts)]),
        ..Cuda::default()
    };
    find(&sound(judge(&root, None, &cuda)), name).clone()
}

#[test]
fn well_configured_server_has_no_warning() {
    let cuda = Cuda {
        facts: BTreeMap::from([(ADDRESS.to_owned(), GOOD)]),
        stores: BTreeMap::from([(ADDRESS.to_owned(), Ok(tried(&Backend::ALL)))]),
        ..Cuda::default()
    };
    let findings = of_answers(&Ok(answer(healthy())), &cuda);
    for finding in &findings {
        assert_eq!(finding.status, Fine, "{finding:?}");
    }
    let read = |name| find(&findings, name).read.as_str();
    assert_eq!(read("driver"), "580.159.03");
    assert_eq!(read("kernel module"), "open");
    assert_eq!(read("CUDA"), "13.0");
    assert_eq!(read("card"), "NVIDIA H200, 140 GiB, GPU-5d5e");
    // An idle GPU reduces its link speed, which is not a fault.
    assert_eq!(read("link"), "PCIe 1 x16 of PCIe 5 x16");
    assert_eq!(read("slot"), "PCIe 5 x16");
    assert_eq!(read("BAR1"), "256 GiB");
    assert_eq!(read("NUMA node"), "1: cores 8-15");
    assert_eq!(find(&findings, "BAR1").group, "gpu 0000:3b:00.0");
}

#[test]
fn missing_gpu_is_one_finding() {
    let (_dir, root) = machine(&[("/sys/bus/pci/devices/0000:00:1f.0/vendor", "0x8086\n")]);
    let findings = of_files(&root);
    assert_eq!(findings.len(), 1);
    assert_eq!(
        (findings[0].status, findings[0].read.as_str()),
        (Fine, "none")
    );
    assert_eq!(
        findings[0].why.as_deref(),
        Some("this machine has no NVIDIA GPU; rings are allocated in host memory")
    );
    let (_dir, root) = machine(&[]);
    let findings = of_files(&root);
    assert_eq!((findings.len(), findings[0].status), (1, Unknown));
}

#[test]
fn kernel_module_is_open_closed_or_missing() {
    let version = |text| [(driver::VERSION, text)];
    reads(&version(Some(CLOSED)), "driver", Fine, "535.183.01");
    reads(&version(Some(CLOSED)), "kernel module", Fine, "closed");
    reads(&version(None), "driver", Warning, "not loaded");
    let old = CLOSED.replace("535.183.01", "470.256.02");
    reads(&version(Some(&old)), "driver", Warning, "470.256.02");
    assert_eq!(
        status(&version(Some("something else\n")), "driver"),
        Unknown
    );
}

#[test]
fn gpu_bound_to_other_driver_is_ignored() {
    for (holder, status) in [
        ("nvidia", Fine),
        ("vfio-pci", Warning),
        ("nouveau", Warning),
    ] {
        let (_dir, root) = server(&[]);
        link_to(
            &root,
            CARD,
            "driver",
            &format!("/sys/bus/pci/drivers/{holder}"),
        );
        assert_eq!(find(&of_files(&root), "card").status, status, "{holder}");
    }
}

#[test]
fn link_below_width_is_warning_and_narrow_slot_is_separate_finding() {
    let width = format!("{CARD}/current_link_width");
    let half = [(width.as_str(), Some("8\n"))];
    reads(&half, "link", Warning, "PCIe 1 x8 of PCIe 5 x16");
    assert_eq!(status(&half, "slot"), Fine);
    let slot = format!("{PORT}/max_link_width");
    let narrow = [half[0], (&slot, Some("8\n"))];
    assert_eq!(status(&narrow, "link"), Fine);
    reads(&narrow, "slot", Warning, "PCIe 5 x8 for PCIe 5 x16");
    let slow = format!("{PORT}/max_link_speed");
    let slow = [(slow.as_str(), Some("16.0 GT/s PCIe\n"))];
    reads(&slow, "slot", Warning, "PCIe 4 x16 for PCIe 5 x16");
}

#[test]
fn switch_narrower_than_gpu_is_named() {
    let (_dir, root) = server(&[]);
    let below = "/sys/devices/pci0000:3a/0000:3a:01.0/0000:3c:00.0/0000:3d:00.0/0000:3e:00.0";
    let files = [
        ("current_link_speed", "16.0 GT/s PCIe"),
        ("current_link_width", "16"),
        ("max_link_speed", "16.0 GT/s PCIe"),
        ("max_link_width", "16"),
        ("vendor", "0x10de"),
        ("class", "0x030200"),
    ];
    let at = Path::new(below);
    std::fs::create_dir_all(root.at(below)).unwrap();
    for directory in [
        at,
        at.parent().unwrap(),
        at.parent().unwrap().parent().unwrap(),
    ] {
        for (file, text) in files {
            let path = directory.join(file);
            std::fs::write(root.at(path.to_str().unwrap()), text).unwrap();
        }
    }
    // The link above the switch works at half its width.
    let up = "/sys/devices/pci0000:3a/0000:3a:01.0/0000:3c:00.0/current_link_width";
    std::fs::write(root.at(up), "4").unwrap();
    link_to(&root, "/sys/bus/pci/devices", "0000:3e:00.0", below);
    let findings = of_files(&root);
    let slot = findings
        .iter()
        .find(|finding| finding.name == "slot" && finding.group.ends_with("3e:00.0"))
        .unwrap();
    assert_eq!(slot.summary(), (Warning, "PCIe 4 x4 for PCIe 4 x16"));
    assert!(slot.from.contains("0000:3c:00.0"), "{slot:?}");
}

#[test]
fn small_bar_of_large_gpu_is_warning() {
    let resource = format!("{CARD}/resource");
    for (text, status, read) in [
        (TINY, Warning, "64 MiB"),
        (NARROW, Unknown, "256 MiB"),
        (WIDE, Fine, "128 GiB"),
    ] {
        reads(&[(&resource, Some(text))], "BAR1", status, read);
    }
    for (total, used, memory, status, read) in [
        (256 * MIB, 0, 24 * GIB, Warning, "256 MiB"),
        (256 * MIB, 0, 8 * GIB, Fine, "256 MiB"),
        (32 * GIB, 31 * GIB, 24 * GIB, Warning, "32 GiB, 1 GiB free"),
    ] {
        let change = |card: &mut NvmlCard| {
            (card.bar1, card.memory) = (Some((total, used)), Some(memory));
        };
        nvml_reads(change, "BAR1", status, read);
    }
}

#[test]
fn driver_option_to_resize_bar_is_suggested() {
    let resource = format!("{CARD}/resource");
    let (_dir, root) = server(&[
        (&resource, Some(TINY)),
        (
            "/proc/driver/nvidia/params",
            Some("ResmanDebugLevel: 4294967295\nEnableResizableBar: 0\n"),
        ),
    ]);
    let findings = of_files(&root);
    let fix = find(&findings, "BAR1").fix.as_deref().unwrap();
    assert!(fix.contains("NVreg_EnableResizableBar=1"), "{fix}");
}

#[test]
fn cores_of_remote_numa_node_are_warning() {
    let allowed = |list: &str| format!("Cpus_allowed_list:\t{list}\n");
    let (_dir, root) = server(&[("/proc/self/status", Some(&allowed("0-3")))]);
    let findings = of_files(&root);
    let found = find(&findings, "NUMA node");
    assert_eq!(found.status, Warning);
    let fix = found.fix.as_deref().unwrap();
    assert!(
        fix.contains("taskset -c 8-15 ") && fix.contains("CPUAffinity=8-15"),
        "{fix}"
    );
    for list in ["7-8", "8-15"] {
        let text = allowed(list);
        let change = [("/proc/self/status", Some(text.as_str()))];
        assert_eq!(status(&change, "NUMA node"), Fine, "{list}");
    }
    let hidden = [("/proc/self/status", None)];
    assert_eq!(status(&hidden, "NUMA node"), Unknown);
}

#[test]
fn virtual_machine_missing_facts_are_unknown() {
    let file = |name| format!("{CARD}/{name}");
    let (numa, resource) = (file("numa_node"), file("resource"));
    let (speed, width) = (file("max_link_speed"), file("current_link_width"));
    let port = format!("{PORT}/max_link_width");
    let change = [
        (numa.as_str(), Some("-1\n")),
        (&resource, None),
        (&speed, Some("Unknown\n")),
        (&width, Some("0\n")),
        (&port, Some("1\n")),
        ("/proc/cpuinfo", Some("flags\t\t: fpu hypervisor lm\n")),
    ];
    for name in ["link", "slot", "BAR1", "NUMA node"] {
        assert_eq!(status(&change, name), Unknown, "{name}");
    }
    // The emulated port with one lane is ignored. On hardware, such a port would limit copies.
    let port = (port.as_str(), Some("1\n"));
    let guest = ("/proc/cpuinfo", Some("flags\t\t: fpu hypervisor lm\n"));
    assert_eq!(status(&[port, guest], "slot"), Unknown);
    assert_eq!(status(&[port], "slot"), Warning);
    let one_node = [
        (numa.as_str(), Some("-1\n")),
        ("/sys/devices/system/node/node1/cpulist", None),
    ];
    assert_eq!(status(&one_node, "NUMA node"), Fine);
}

#[test]
fn gpu_absent_from_sysfs_is_described_by_nvml() {
    let (_dir, root) = machine(&[("/proc/self/status", "Cpus_allowed_list:\t0-3\n")]);
    let findings = sound(judge(&root, Some(&Ok(answer(healthy()))), &Cuda::default()));
    let read = |name| find(&findings, name).read.as_str();
    assert_eq!(
        (read("driver"), read("link"), read("BAR1")),
        ("580.159.03", "PCIe 5 x16", "256 GiB")
    );
}

#[test]
fn gpu_absent_from_nvml_is_not_judged() {
    let elsewhere = NvmlCard {
        address: "0000:99:00.0".to_owned(),
        ..healthy()
    };
    let findings = of_answers(&Ok(answer(elsewhere)), &Cuda::default());
    let of = |group: &str| findings.iter().filter(|found| found.group == group).count();
    assert_eq!(of("gpu 0000:3b:00.0"), 1);
    assert!(of("gpu 0000:99:00.0") > 4);
}

#[test]
fn gpu_health_is_judged() {
    let off = |card: &mut NvmlCard| card.is_persistent = Some(false);
    nvml_reads(off, "persistence mode", Warning, "off");
    let errors = |card: &mut NvmlCard| card.uncorrected = Some(3);
    nvml_reads(errors, "memory errors", Warning, "3 uncorrected");
    let mig = |card: &mut NvmlCard| card.is_mig = Some(true);
    nvml_reads(mig, "MIG", Fine, "on");
    for ([power, heat, unnamed], status, read) in [
        ([false; 3], Fine, "free, 34 °C"),
        ([false, true, false], Warning, "slowed down by heat, 34 °C"),
        ([true, false, false], Warning, "slowed down by power, 34 °C"),
        (
            [false, false, true],
            Warning,
            "slowed down by the hardware, 34 °C",
        ),
    ] {
        let brakes = Brakes {
            power,
            heat,
            unnamed,
        };
        nvml_reads(|card| card.brakes = Some(brakes), "clocks", status, read);
    }
}

#[test]
fn gpu_unsupported_fact_is_unknown_or_omitted() {
    let minimal = NvmlCard {
        address: ADDRESS.to_owned(),
        ..NvmlCard::default()
    };
    let findings = of_answers(&Ok(answer(minimal)), &Cuda::default());
    for name in ["card", "persistence mode", "clocks"] {
        assert_eq!(find(&findings, name).status, Unknown, "{name}");
    }
    assert!(
        !findings
            .iter()
            .any(|finding| ["MIG", "memory errors"].contains(&finding.name))
    );
}

#[test]
fn old_cuda_driver_is_warning() {
    for (cuda, status) in [
        (Some((11, 8)), Warning),
        (Some((12, 0)), Fine),
        (None, Unknown),
    ] {
        let facts = NvmlFacts {
            cuda,
            ..answer(healthy())
        };
        let findings = of_answers(&Ok(facts), &Cuda::default());
        assert_eq!(find(&findings, "CUDA").status, status, "{cuda:?}");
    }
}

#[test]
fn cuda_refusal_is_reported_with_reason() {
    for (refusal, status) in [
        (Refusal::NoLibrary, Unknown),
        (Refusal::Mismatch, Warning),
        (Refusal::Silent(Duration::from_mins(1)), Warning),
        (Refusal::Other("no permission".to_owned()), Unknown),
    ] {
        let findings = of_answers(&Err(refusal.clone()), &Cuda::default());
        assert_eq!(find(&findings, "NVML").status, status, "{refusal:?}");
    }
}

#[test]
fn cuda_attributes_are_judged() {
    let closed = [(driver::VERSION, Some(CLOSED))];
    let rdma = ("/sys/class/infiniband/mlx5_0/node_type", Some("1: CA"));
    let no_dma_buf = CudaFacts {
        dma_buf: false,
        ..GOOD
    };
    let found = of_cuda(&closed, no_dma_buf, "dma-buf");
    assert_eq!(found.status, Warning);
    let fix = found.fix.unwrap();
    assert!(fix.starts_with("sudo apt install nvidia-open"));
    let both = [closed[0], rdma];
    assert_eq!(of_cuda(&both, GOOD, "nvidia_peermem").status, Fine);
    assert_eq!(
        of_cuda(&[rdma], no_dma_buf, "nvidia_peermem").status,
        Warning
    );
    assert_eq!(of_cuda(&[], no_dma_buf, "dma-buf").status, Warning);

    let no_rdma = CudaFacts {
        rdma: false,
        ..GOOD
    };
    assert_eq!(of_cuda(&[], no_rdma, "GPUDirect RDMA").status, Fine);
    assert_eq!(of_cuda(&[rdma], no_rdma, "GPUDirect RDMA").status, Warning);

    for (write_ordering, flush, status, read) in [
        (200, false, Fine, "all devices"),
        (100, false, Fine, "owner"),
        (0, true, Fine, "none"),
        (0, false, Warning, "none"),
    ] {
        let facts = CudaFacts {
            write_ordering,
            flush,
            ..GOOD
        };
        let found = of_cuda(&[], facts, "write ordering");
        assert_eq!(found.summary(), (status, read));
    }
    let plain = CudaFacts {
        posix_fd: false,
        ..GOOD
    };
    assert_eq!(
        of_cuda(&[], plain, "shareable memory").read,
        "not supported"
    );
}

#[test]
fn nic_needs_peermem_only_without_dma_buf() {
    let rdma = ("/sys/class/infiniband/mlx5_0/node_type", Some("1: CA"));
    let closed = (driver::VERSION, Some(CLOSED));
    let loaded = ("/sys/module/nvidia_peermem/refcnt", Some("0"));
    let name = "nvidia_peermem";
    assert_eq!(status(&[rdma], name), Fine);
    assert_eq!(status(&[closed], name), Fine);
    assert_eq!(status(&[rdma, closed], name), Warning);
    reads(&[rdma, closed, loaded], name, Fine, "loaded");
    let gdrdrv = [("/sys/module/gdrdrv/refcnt", Some("0"))];
    reads(&gdrdrv, "gdrdrv", Fine, "loaded");
}

#[test]
fn sizes_are_printed_in_natural_unit() {
    assert_eq!(size(256 * GIB), "256 GiB");
    assert_eq!(size(GIB), "1 GiB");
    assert_eq!(size(GIB + GIB / 2), "1536 MiB");
    assert_eq!(size(31 * GIB + GIB / 2), "31.5 GiB");
    assert_eq!(size(64 * MIB), "64 MiB");
}

#[test]
fn peers_are_listed_with_their_links() {
    let judged = |peers: &[(&str, Option<PeerLink>)]| {
        let peers = peers.iter().map(|(name, link)| ((*name).to_owned(), *link));
        let (_dir, root) = server(&[]);
        let cuda = Cuda {
            peers: BTreeMap::from([(ADDRESS.to_owned(), peers.collect())]),
            ..Cuda::default()
        };
        let mut found = sound(judge(&root, None, &cuda)).into_iter();
        found.find(|finding| finding.name == "peer access")
    };
    assert_eq!(judged(&[]), None, "the machine has one GPU");
    let all = judged(&[
        ("cuda:1", Some(PeerLink::NvLink)),
        ("cuda:2", Some(PeerLink::Pcie)),
    ]);
    let all = all.unwrap();
    assert_eq!(
        (all.read.as_str(), all.why),
        ("cuda:1 (NVLink), cuda:2 (PCIe)", None)
    );
    let none = judged(&[("cuda:1", None)]).unwrap();
    assert_eq!((none.read.as_str(), none.status), ("none", Fine));
    assert_eq!(
        none.why.as_deref(),
        Some("frames for cuda:1 are copied through host memory")
    );
}
