//! Checks NVIDIA GPUs: driver, link, BAR1 window, memory, GPUDirect support and CPU stores.

mod direct;
mod driver;
mod health;
mod nvml;
mod slot;
mod stores;

use direct::CudaFacts;

use super::check::{Finding, Judgement, check, finding, ok, table, unknown, unreadable, warn};
use super::root::Root;
use daq_core::gpu::Backend;
use daq_core::gpu::bar_mapping::probe;
use daq_core::gpu::driver::{Device, Identity, PeerLink};
use daq_core::topology::pci::{self, PciFacts};
use daq_core::topology::{Bar1, Gpu};
use driver::Driver;
use nvml::{NvmlCard, NvmlFacts, Refusal, SOURCE};
use std::collections::{BTreeMap, BTreeSet};
use stores::Tried;

const GROUP: &str = "gpu";
const PCI: &str = "/sys/bus/pci/devices";
const INFINIBAND: &str = "/sys/class/infiniband";
const CPUINFO: &str = "/proc/cpuinfo";
/// Device file that every program opens before it uses a GPU. This file exists even in containers whose `/sys` shows no
/// PCI devices.
const CONTROL: &str = "/dev/nvidiactl";
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// One GPU, with the data from files, NVML and CUDA.
struct Card<'a> {
    root: &'a Root,
    address: &'a str,
    /// The NVIDIA kernel module; `None` if it is not loaded.
    module: Option<&'a driver::Module>,
    /// Data of the PCI device; `None` if `/sys` does not show the GPU, for example in some containers.
    pci: Option<PciFacts>,
    /// Whether NVML answered. An answer need not contain this GPU.
    has_nvml: bool,
    nvml: Option<&'a NvmlCard>,
    cuda: Option<&'a CudaFacts>,
    stores: Option<&'a Tried>,
    peers: Option<&'a [(String, Option<PeerLink>)]>,
}

/// CUDA's attributes of the GPUs, by PCI address (see [`pci::canonical`]). Empty if CUDA was not queried.
#[derive(Default)]
struct Cuda {
    facts: BTreeMap<String, CudaFacts>,
    stores: BTreeMap<String, Tried>,
    /// The other GPUs, by name, and the link over which the GPU writes the memory of each; `None` if it cannot.
    peers: BTreeMap<String, Vec<(String, Option<PeerLink>)>>,
}

/// Queries CUDA's attributes of each GPU, and tries every backend for CPU stores on each GPU.
fn ask_cuda() -> Cuda {
    let mut cuda = Cuda::default();
    let gpus = Identity::all().unwrap_or_default();
    for gpu in &gpus {
        let Some(address) = pci::canonical(&gpu.pci) else {
            continue;
        };
        let attributes = &gpu.attributes;
        let facts = CudaFacts {
            rdma: attributes.rdma,
            write_ordering: attributes.write_ordering,
            flush: attributes.flush,
            dma_buf: attributes.dma_buf,
            vmm: attributes.vmm,
            posix_fd: attributes.posix_fd,
        };
        let tried = Device::open(gpu.ordinal).map(|device| probe(device, &Backend::ALL));
        let tried = tried.map_err(|error| error.to_string());
        let peers = gpus.iter().filter(|peer| peer.ordinal != gpu.ordinal);
        let peers = peers.map(|peer| (format!("cuda:{}", peer.ordinal), gpu.link_to(peer)));
        cuda.peers.insert(address.clone(), peers.collect());
        cuda.facts.insert(address.clone(), facts);
        cuda.stores.insert(address, tried);
    }
    cuda
}

/// Queries NVML for the total and the free size of each GPU's BAR1 window. Keeps the present value if NVML does not
/// report a size.
pub fn read_bar1_sizes(gpus: &mut [Gpu]) {
    if gpus.is_empty() {
        return;
    }
    let Ok(facts) = nvml::ask() else {
        return;
    };
    for gpu in gpus {
        let cards = facts.cards.iter();
        let mut of_gpu = cards.filter(|card| gpu.pci.as_ref() == Some(&card.address));
        if let Some((bytes, used)) = of_gpu.next().and_then(|card| card.bar1) {
            gpu.window = Some(Bar1 {
                bytes,
                free: Some(bytes.saturating_sub(used)),
            });
        }
    }
}

pub(super) fn examine(root: &Root) -> Vec<Finding> {
    let shows = pci::nvidia_gpus(&root.at("/sys")).is_some_and(|gpus| !gpus.is_empty())
        || root.exists(driver::VERSION)
        || root.exists(CONTROL);
    if root.is_real() && shows {
        judge(root, Some(&nvml::ask()), &ask_cuda())
    } else {
        judge(root, None, &Cuda::default())
    }
}

/// Derives the findings from the files below `root` and, if NVML and CUDA were queried, from their answers.
fn judge(root: &Root, asked: Option<&Result<NvmlFacts, Refusal>>, cuda: &Cuda) -> Vec<Finding> {
    let on_bus = pci::nvidia_gpus(&root.at("/sys"));
    let nvml = asked.and_then(|asked| asked.as_ref().ok());
    let known: BTreeSet<&str> = nvml
        .into_iter()
        .flat_map(|nvml| &nvml.cards)
        .map(|card| card.address.as_str())
        .collect();
    let addresses: BTreeSet<&str> = on_bus
        .iter()
        .flatten()
        .map(String::as_str)
        .chain(known.iter().copied())
        .collect();
    let module = driver::Module::read(root);
    if addresses.is_empty() && module.is_none() {
        let why = "this machine has no NVIDIA GPU; rings are allocated in host memory";
        let none = match on_bus {
            Some(_) => ok("none").why(why),
            None => unreadable().why(why),
        };
        return finding(GROUP, "GPU", PCI, Some(none)).into_iter().collect();
    }
    let driver = Driver {
        root,
        module: module.as_ref(),
        asked,
        cuda: &cuda.facts,
    };
    let mut findings = driver.examine();
    for address in addresses {
        let pci = on_bus.iter().flatten().any(|gpu| gpu == address);
        let card = Card {
            root,
            address,
            module: module.as_ref(),
            pci: pci.then(|| pci::facts(&root.at("/sys"), address)),
            has_nvml: nvml.is_some(),
            nvml: nvml.and_then(|nvml| nvml.cards.iter().find(|card| card.address == address)),
            cuda: cuda.facts.get(address),
            stores: cuda.stores.get(address),
            peers: cuda.peers.get(address).map(Vec::as_slice),
        };
        findings.extend(card.examine());
    }
    findings
}

impl Card<'_> {
    fn group(&self) -> String {
        format!("{GROUP} {}", self.address)
    }

    /// Returns the path of one of the GPU's files in `/sys`.
    fn file(&self, name: &str) -> String {
        format!("{PCI}/{}/{name}", self.address)
    }

    fn examine(&self) -> Vec<Finding> {
        let directory = format!("{PCI}/{}", self.address);
        let table = |checks: &[_]| table(self.group(), &directory, self, checks);
        let mut findings = table(&[check("card", PCI, identity)]);
        if self.has_nvml && self.nvml.is_none() {
            // The GPU is bound to another driver or assigned to another container, so daq does not use it.
            return findings;
        }
        findings.extend(table(&[
            check("link", "./{current,max}_link_{speed,width}", slot::link),
            check("slot", "./../max_link_{speed,width}", slot::slot),
            check("BAR1", "./resource", slot::window),
            check("NUMA node", "./numa_node, /proc/self/status", slot::node),
            check("persistence mode", SOURCE, health::persistence),
            check("memory errors", SOURCE, health::memory_errors),
            check("MIG", SOURCE, health::slices),
            check("clocks", SOURCE, health::clocks),
            check("GPUDirect RDMA", "CUDA attribute 116", direct::rdma),
            check("dma-buf", "CUDA attribute 124", direct::dma_buf),
            check(
                "write ordering",
                "CUDA attribute 117, 118",
                direct::ordering,
            ),
            check(
                "shareable memory",
                "CUDA attribute 102, 103",
                direct::shared,
            ),
            check("peer access", "cuDeviceCanAccessPeer", direct::peers),
            check("CPU stores", "test with a small allocation", stores::best),
        ]));
        findings.extend(stores::each(self));
        findings
    }

    /// Returns whether this is a virtual machine. The bridges of a virtual machine do not show the physical slots.
    fn is_virtual(&self) -> bool {
        self.root
            .field(CPUINFO, "flags")
            .is_some_and(|flags| flags.split_whitespace().any(|flag| flag == "hypervisor"))
    }
}

/// Reports the model of the card and the driver bound to it.
fn identity(card: &Card<'_>) -> Option<Judgement> {
    let holder = card.pci.as_ref().and_then(|pci| pci.driver.as_deref());
    if let Some(other) = holder.filter(|holder| *holder != "nvidia") {
        let fix = if other == "nouveau" {
            format!("{}  # then reboot", driver::INSTALL)
        } else {
            format!(
                "sudo driverctl unset-override {}  # if no virtual machine needs the GPU",
                card.address
            )
        };
        let why = "CUDA cannot use this GPU; rings are allocated in host memory or on another GPU";
        let judged = warn(format!("bound to {other}"), why, fix);
        return Some(judged.from(card.file("driver")));
    }
    if let Some(nvml) = card.nvml {
        let memory = nvml.memory.map(|bytes| format!("{} GiB", bytes / GIB));
        let parts = [nvml.name.clone(), memory, nvml.uuid.clone()];
        let read = parts.into_iter().flatten().collect::<Vec<_>>().join(", ");
        let judged = if read.is_empty() {
            unreadable()
        } else {
            ok(read)
        };
        return Some(judged.from(SOURCE));
    }
    let model = match card.pci.as_ref()?.device {
        Some(device) => format!("NVIDIA 10de:{device:04x}"),
        None => "NVIDIA".to_owned(),
    };
    let judged = if card.has_nvml {
        let why = "NVML does not list this GPU, because the GPU was not passed to this container or the driver could not start the GPU (see `sudo dmesg | grep -i nvrm`)";
        unknown(model, why)
    } else {
        ok(model)
    };
    Some(judged.from(card.file("device")))
}

/// Returns whether this machine has a network card that can write GPU memory by RDMA.
fn has_rdma(root: &Root) -> bool {
    !root.names(INFINIBAND).is_empty()
}

/// Formats a number of bytes with a suitable unit.
fn size(bytes: u64) -> String {
    if bytes >= GIB && bytes.is_multiple_of(GIB) {
        format!("{} GiB", bytes / GIB)
    } else if bytes >= 10 * GIB {
        format!("{:.1} GiB", bytes as f64 / GIB as f64)
    } else {
        format!("{} MiB", bytes / MIB)
    }
}

#[cfg(test)]
mod tests;
