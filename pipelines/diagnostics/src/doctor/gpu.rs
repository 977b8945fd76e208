//! Checks NVIDIA GPUs: driver, link, BAR1 window, memory, GPUDirect support and CPU stores.

mod direct;
mod driver;
mod health;
mod nvml;
mod slot;
mod stores;

pub use direct::CudaFacts;

use super::root::Root;
use super::{Finding, Verdict};
use daq_core::gpu::Backend;
use daq_core::gpu::bar_mapping::probe;
use daq_core::gpu::driver::{Device, Identity};
use daq_core::topology::pci::{self, PciFacts};
use daq_core::topology::{Bar1, Gpu};
use nvml::{NvmlCard, NvmlFacts, Refusal};
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
    group: String,
    address: &'a str,
    /// Data of the PCI device; `None` if `/sys` does not show the GPU, for example in some containers.
    pci: Option<PciFacts>,
    nvml: Option<&'a NvmlCard>,
    cuda: Option<&'a CudaFacts>,
    stores: Option<&'a Tried>,
}

/// CUDA's attributes of the GPUs, by PCI address (see [`pci::canonical`]). Empty if CUDA was not queried.
#[derive(Default)]
struct Cuda {
    facts: BTreeMap<String, CudaFacts>,
    stores: BTreeMap<String, Tried>,
}

impl Card<'_> {
    fn finding(&self, name: &'static str, from: impl Into<String>) -> Finding {
        Finding::new(self.group.clone(), name, from)
    }

    /// Returns the path of one of the GPU's files in `/sys`.
    fn file(&self, name: &str) -> String {
        format!("{PCI}/{}/{name}", self.address)
    }
}

/// Queries CUDA's attributes of each GPU, and tries every backend for CPU stores on each GPU.
fn ask_cuda() -> Cuda {
    let mut cuda = Cuda::default();
    for gpu in Identity::all().unwrap_or_default() {
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
        let none = Finding::new(GROUP, "GPU", PCI)
            .why("this machine has no NVIDIA GPU; rings are allocated in host memory");
        return vec![match on_bus {
            Some(_) => none.read(Verdict::Ok, "none"),
            None => none.why("this machine has no NVIDIA GPU; rings are allocated in host memory"),
        }];
    }
    let mut findings = driver::examine(root, module.as_ref(), asked, &cuda.facts);
    for address in addresses {
        let card = Card {
            group: format!("{GROUP} {address}"),
            address,
            pci: on_bus
                .iter()
                .flatten()
                .any(|gpu| gpu == address)
                .then(|| pci::facts(&root.at("/sys"), address)),
            nvml: nvml.and_then(|nvml| nvml.cards.iter().find(|card| card.address == address)),
            cuda: cuda.facts.get(address),
            stores: cuda.stores.get(address),
        };
        findings.push(identity(&card, nvml.is_some()));
        if nvml.is_some() && card.nvml.is_none() {
            // The GPU is bound to another driver or assigned to another container, so daq does not use it.
            continue;
        }
        findings.extend(slot::examine(root, &card));
        findings.extend(health::examine(&card));
        findings.extend(direct::examine(root, &card, module.as_ref()));
        findings.extend(stores::examine(&card));
    }
    findings
}

/// Reports the model of the card and the driver bound to it.
fn identity(card: &Card, has_answer: bool) -> Finding {
    let address = card.address;
    let holder = card.pci.as_ref().and_then(|pci| pci.driver.as_deref());
    if let Some(other) = holder.filter(|holder| *holder != "nvidia") {
        let finding = card
            .finding("card", card.file("driver"))
            .read(Verdict::Warn, format!("bound to {other}"))
            .why("CUDA cannot use this GPU; rings are allocated in host memory or on another GPU");
        return if other == "nouveau" {
            finding.fix(format!("{}  # then reboot", driver::INSTALL))
        } else {
            finding.fix(format!(
                "sudo driverctl unset-override {address}  # if no virtual machine needs the GPU"
            ))
        };
    }
    match (card.nvml, &card.pci) {
        (Some(nvml), _) => {
            let parts = [
                nvml.name.clone(),
                nvml.memory.map(|bytes| format!("{} GiB", bytes / GIB)),
                nvml.uuid.clone(),
            ];
            let read = parts.into_iter().flatten().collect::<Vec<_>>().join(", ");
            let finding = card.finding("card", nvml::SOURCE);
            if read.is_empty() {
                finding
            } else {
                finding.read(Verdict::Ok, read)
            }
        }
        (None, Some(pci)) => {
            let model = pci.device.map_or_else(
                || "NVIDIA".to_owned(),
                |device| format!("NVIDIA 10de:{device:04x}"),
            );
            let finding = card.finding("card", card.file("device"));
            if has_answer {
                finding
                    .read(Verdict::Unknown, model)
                    .why("NVML does not list this GPU, because the GPU was not passed to this container or the driver could not start the GPU (see `sudo dmesg | grep -i nvrm`)")
            } else {
                finding.read(Verdict::Ok, model)
            }
        }
        (None, None) => card.finding("card", PCI),
    }
}

/// Returns whether this is a virtual machine. The bridges of a virtual machine do not show the physical slots.
fn is_virtual(root: &Root) -> bool {
    root.field(CPUINFO, "flags")
        .is_some_and(|flags| flags.split_whitespace().any(|flag| flag == "hypervisor"))
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
