//! Rendering of the topology as text and as a diagram.

use super::nic::Nic;
use super::p2p::{P2pPath, PeerAccess};
use super::pci::Link;
use super::tree::{Iommu, PciDevice, PciTree};
use super::{Gpu, Topology};
use crate::units::ByteSize;
use std::collections::BTreeSet;
use std::fmt::Write as _;

/// A device, a GPU and the path between them.
#[derive(Clone, Debug)]
pub struct DevicePath {
    /// The component that uses the device, such as `source adc`; empty if no component uses the device.
    pub name: String,
    /// PCI address of the device.
    pub device: String,
    /// CUDA device ordinal of the GPU.
    pub gpu: u32,
    /// Direction of the access.
    pub direction: PeerAccess,
    /// The path.
    pub path: P2pPath,
}

impl Topology {
    /// Renders the PCIe tree as text: GPUs, devices that could be sources and the bridges above them; with `all`, every
    /// device.
    pub fn tree(&self, all: bool) -> String {
        let mut text = self.header();
        let shown = self.shown(all);
        for host in self.pci.hosts() {
            let on_host = self.pci.devices.iter().filter(|d| d.host == host);
            let on_host: Vec<&PciDevice> = on_host.collect();
            let here: Vec<&PciDevice> = on_host
                .iter()
                .filter(|device| shown.contains(device.address.as_str()))
                .copied()
                .collect();
            if here.is_empty() {
                continue;
            }
            let _ = write!(text, "{host}");
            if let Some(first) = self.pci.host(host) {
                let _ = write!(text, "  {}", first.id());
            }
            let hidden = on_host.len() - here.len();
            if hidden > 0 {
                let _ = write!(text, "  and {hidden} more");
            }
            text.push('\n');
            self.branch(&here, None, "", &mut text);
        }
        for number in self.groups(&shown) {
            let members = self.pci.members(number).map(|d| d.address.as_str());
            let members: Vec<_> = members.collect();
            if members.len() > 1 {
                let _ = writeln!(text, "IOMMU group {number}: {}", members.join(", "));
            }
        }
        for nic in self.nics.iter().filter(|nic| nic.pci.is_none()) {
            let _ = writeln!(text, "emulated RDMA card: {}", nic.describe());
        }
        for gpu in &self.gpus {
            let near = self.nics_by_distance(gpu.ordinal);
            let near: Vec<_> = near
                .iter()
                .map(|(nic, relation)| {
                    let idle = if nic.is_active() {
                        ""
                    } else {
                        ", no port active"
                    };
                    format!("{} ({relation}{idle})", nic.name)
                })
                .collect();
            if !near.is_empty() {
                let _ = writeln!(
                    text,
                    "RDMA cards for cuda:{}, nearest first: {}",
                    gpu.ordinal,
                    near.join(", ")
                );
            }
        }
        text.push_str(&self.peers());
        if self.gpus.is_empty() {
            let _ = writeln!(text, "no GPU: {}", self.no_gpu);
        }
        text
    }

    /// Returns the first line: processor, NUMA nodes and IOMMU.
    fn header(&self) -> String {
        let processor = &self.pci.processor;
        let name = processor.name.as_deref().unwrap_or("unknown processor");
        let family = processor
            .family
            .map_or_else(String::new, |family| format!(", family {family:#x}"));
        let is_virtual = if processor.is_virtual {
            ", a virtual machine"
        } else {
            ""
        };
        let nodes = match self.nodes.len() {
            0 => "NUMA nodes unknown".to_owned(),
            1 => "1 NUMA node".to_owned(),
            n => format!("{n} NUMA nodes"),
        };
        let iommu = match self.pci.iommu {
            Iommu::Unknown => "unknown",
            Iommu::Off => "off",
            Iommu::On => "on",
        };
        format!("{name}{family}{is_virtual}, {nodes}, IOMMU {iommu}\n")
    }

    /// Returns the addresses of the devices that are shown.
    fn shown(&self, all: bool) -> BTreeSet<&str> {
        let devices = self.pci.devices.iter();
        let mut shown = BTreeSet::new();
        let candidates = self.pci.candidates();
        for device in devices {
            let is_wanted = all
                || self.gpu(device).is_some()
                || device.is_display()
                || candidates.contains(&device);
            if is_wanted {
                shown.insert(device.address.as_str());
                shown.extend(device.upstream.iter().map(String::as_str));
            }
        }
        shown
    }

    /// Returns the IOMMU groups of the devices that are shown.
    fn groups(&self, shown: &BTreeSet<&str>) -> BTreeSet<u32> {
        let devices = self.pci.devices.iter();
        devices
            .filter(|device| !device.is_bridge() && shown.contains(device.address.as_str()))
            .filter_map(|device| Some(device.group.as_ref()?.number))
            .collect()
    }

    /// Returns the GPU with the address of `device`, if any.
    fn gpu(&self, device: &PciDevice) -> Option<&Gpu> {
        let mut gpus = self.gpus.iter();
        gpus.find(|gpu| gpu.pci.as_deref() == Some(device.address.as_str()))
    }

    /// Returns the network cards with the address of `device`.
    fn nics_of<'a>(&'a self, device: &'a PciDevice) -> impl Iterator<Item = &'a Nic> {
        let nics = self.nics.iter();
        nics.filter(|nic| nic.pci.as_deref() == Some(device.address.as_str()))
    }

    /// Appends the devices directly below `parent`, and recursively the devices below them.
    fn branch(&self, here: &[&PciDevice], parent: Option<&str>, indent: &str, text: &mut String) {
        let below: Vec<_> = here
            .iter()
            .filter(|device| device.upstream.first().map(String::as_str) == parent)
            .collect();
        for (i, device) in below.iter().enumerate() {
            let (knee, deeper) = if i + 1 == below.len() {
                ("└─ ", "   ")
            } else {
                ("├─ ", "│  ")
            };
            let _ = writeln!(
                text,
                "{indent}{knee}{}  {}",
                device.address,
                self.describe(device).join(", ")
            );
            let address = Some(device.address.as_str());
            self.branch(here, address, &format!("{indent}{deeper}"), text);
        }
    }

    /// Describes a device and its known properties.
    fn describe(&self, device: &PciDevice) -> Vec<String> {
        let maker = device
            .maker()
            .map_or_else(String::new, |maker| format!(" {maker}"));
        let gpu = self.gpu(device);
        let what = match gpu {
            Some(gpu) => format!("cuda:{} {}", gpu.ordinal, gpu.name),
            None if device.is_bridge() && device.upstream.is_empty() => "root port".to_owned(),
            None if device.is_bridge() => "switch port".to_owned(),
            None if device.is_display() => format!("display{maker}"),
            None if device.is_network() => format!("network{maker}"),
            None if device.is_card() => format!("card{maker}"),
            None => device.class.map_or_else(
                || "device".to_owned(),
                |class| format!("class {class:06x}{maker}"),
            ),
        };
        let mut parts = vec![format!("{what} {}", device.id())];
        parts.extend(device.link.map(link));
        if device.is_bridge() {
            let acs = match device.acs.redirects() {
                None => "ACS unknown".to_owned(),
                Some(false) => "ACS passes".to_owned(),
                Some(true) => format!("ACS redirects ({})", device.acs.bits()),
            };
            parts.push(acs);
        } else if !device.regions.is_empty() {
            let regions = device.regions.iter();
            let regions: Vec<_> = regions
                .map(|bytes| ByteSize(*bytes).rounded().to_string())
                .collect();
            parts.push(format!("regions {}", regions.join(" ")));
        }
        if let Some(window) = gpu.and_then(|gpu| gpu.window) {
            let free = window.free.map_or_else(String::new, |free| {
                format!(", {} free", ByteSize(free).rounded())
            });
            parts.push(format!("BAR1 {}{free}", ByteSize(window.bytes).rounded()));
        }
        if let Some(false) = gpu.and_then(|gpu| gpu.rdma) {
            parts.push("no GPUDirect".to_owned());
        }
        parts.extend(device.node.map(|node| format!("node {node}")));
        if let Some(group) = &device.group {
            let kind = group.kind.as_ref();
            let kind = kind.map_or_else(String::new, |kind| format!(" {kind}"));
            parts.push(format!("group {}{kind}", group.number));
        }
        if !device.is_bridge() {
            parts.push(
                device
                    .driver
                    .clone()
                    .unwrap_or_else(|| "no driver".to_owned()),
            );
        }
        parts.extend(self.nics_of(device).map(Nic::describe));
        parts
    }

    /// Renders the tree as a Mermaid flowchart. Solid arrows are direct paths, dotted arrows are staged paths.
    pub fn mermaid(&self, device_paths: &[DevicePath], all: bool) -> String {
        let mut text = "flowchart TD\n".to_owned();
        let shown = self.shown(all);
        let devices = self.pci.devices.iter();
        let shown: Vec<_> = devices
            .filter(|device| shown.contains(device.address.as_str()))
            .collect();
        let hosts: BTreeSet<_> = shown.iter().map(|device| device.host.as_str()).collect();
        for host in hosts {
            let _ = writeln!(text, "    {}[[\"{host}\"]]", plain(host));
        }
        for device in &shown {
            let parts = self.describe(device);
            let (open, close) = match () {
                () if self.gpu(device).is_some() => ("[(", ")]"),
                () if device.is_bridge() => ("(", ")"),
                () => ("[", "]"),
            };
            let label: Vec<_> = std::iter::once(device.address.as_str())
                .chain(parts.iter().take(2).map(String::as_str))
                .chain(self.nics_of(device).map(|nic| nic.name.as_str()))
                .map(quoted)
                .collect();
            let (id, label) = (plain(&device.address), label.join("<br/>"));
            let _ = writeln!(text, "    {id}{open}\"{label}\"{close}");
            let above = device.upstream.first().unwrap_or(&device.host);
            let _ = writeln!(text, "    {} --- {id}", plain(above));
        }
        for device_path in device_paths {
            let gpu = self.gpus.iter().find(|gpu| gpu.ordinal == device_path.gpu);
            let to = gpu.and_then(|gpu| gpu.pci.as_deref());
            let (Some(from), Some(to)) = (
                self.pci
                    .device(self.address_of(&device_path.device, device_path.gpu)),
                to,
            ) else {
                continue;
            };
            let (from, to) = match device_path.direction {
                PeerAccess::Write => (from.address.as_str(), to),
                PeerAccess::Read => (to, from.address.as_str()),
            };
            let arrow = if device_path.path.direct {
                "==>"
            } else {
                "-.->"
            };
            let label = [
                &device_path.name,
                device_path.path.data_path().name(),
                device_path.path.relation.name(),
            ];
            let label: Vec<_> = label
                .iter()
                .filter(|part| !part.is_empty())
                .copied()
                .collect();
            let _ = writeln!(
                text,
                "    {} {arrow}|\"{}\"| {}",
                plain(from),
                quoted(&label.join(" ")),
                plain(to)
            );
        }
        text
    }
}

impl DevicePath {
    /// Renders the path as lines of text.
    pub fn text(&self) -> String {
        let Self {
            name,
            device,
            gpu,
            direction,
            path,
        } = self;
        let name = if name.is_empty() {
            String::new()
        } else {
            format!("{name}: ")
        };
        let data_path = path.data_path().name();
        let ends = match direction {
            PeerAccess::Write => format!("{device} → cuda:{gpu}"),
            PeerAccess::Read => format!("cuda:{gpu} → {device}"),
        };
        let mut text = format!(
            "{name}{ends}  {data_path} {}s: {}\n",
            direction.name(),
            path.reason
        );
        let _ = writeln!(text, "    relation {}", path.relation);
        if let Some(hop) = &path.bottleneck {
            let above = hop.above.as_deref().unwrap_or("the processor");
            let rate = hop.effective.rate() as f64 / 1e9;
            let _ = writeln!(
                text,
                "    slowest  {} to {above}, {}, {rate:.1} GB/s",
                hop.below, hop.effective
            );
        }
        for warning in &path.warnings {
            let _ = writeln!(text, "    note     {warning}");
        }
        let last = match (path.direct, path.forbidden) {
            (true, _) if *direction == PeerAccess::Read => {
                "measure  to find the faster path, run: daq bench rdma --keep"
            }
            (false, false) if *direction == PeerAccess::Read => {
                "else     direct if a measurement shows that direct reads work; run: daq bench rdma --keep"
            }
            (true, _) => "verified at startup, before a frame is published",
            (false, true) => "else     a direct path is impossible",
            (false, false) => {
                "else     direct if requested (path = \"direct\") and verified at startup"
            }
        };
        let _ = writeln!(text, "    {last}");
        text
    }
}

impl PciTree {
    /// Returns the pairs that `daq topo` shows without a configuration: every candidate device with every GPU.
    pub fn pairs<'a>(&'a self, gpus: &'a [Gpu]) -> impl Iterator<Item = (&'a PciDevice, &'a Gpu)> {
        let candidates = self.candidates().into_iter();
        candidates.flat_map(move |device| gpus.iter().map(move |gpu| (device, gpu)))
    }
}

/// Formats the current speed of a link, and the maximum of the device if it is higher.
fn link(link: Link) -> String {
    if link.current == link.max {
        link.current.to_string()
    } else {
        format!("{} of {}", link.current, link.max)
    }
}

/// Converts `id` to a Mermaid identifier, which must begin with a letter and cannot contain `:` or `.`.
fn plain(id: &str) -> String {
    let letters = id.chars();
    let letters = letters.map(|c| if c.is_ascii_alphanumeric() { c } else { '_' });
    std::iter::once('n').chain(letters).collect()
}

/// Escapes the text of a quoted label.
fn quoted(text: &str) -> String {
    text.replace('"', "#quot;")
}
