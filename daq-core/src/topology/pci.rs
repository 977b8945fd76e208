//! Facts from `/sys` about a GPU as a PCI device: links, BAR1, NUMA node.
//!
//! Everything is read from files, so a recorded tree does as well as the machine. What a virtual machine
//! leaves out or fills with zeros is unknown here, never bad.

use std::fmt;
use std::fs;
use std::path::Path;
use std::str::FromStr;

const NVIDIA: &str = "0x10de";
/// The first byte of the PCI class of display and 3D controllers.
const DISPLAY: &str = "0x03";
/// The kernel could not place the region at all (`IORESOURCE_UNSET`, `IORESOURCE_DISABLED` of linux/ioport.h).
const NOT_PLACED: u64 = 0x3000_0000;
/// The kernel's kind of a region that is memory (`IORESOURCE_MEM`).
const MEMORY: u64 = 0x200;
/// Lines of `resource` that are base address registers; those after are the ROM and bridge windows.
const REGISTERS: usize = 6;
/// PCIe has no wider link.
const WIDEST: u32 = 32;

/// Generation and width, as in `PCIe 5 x16`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lanes {
    /// PCIe generation, 1 to 6.
    pub generation: u32,
    /// Lanes, 1 to 32.
    pub width: u32,
}

impl Lanes {
    /// Bytes per second in one direction after line encoding, before packet headers; 0 for a generation
    /// that is not known.
    ///
    /// Transfers per second and encoding (8b/10b, 128b/130b, flits of 242 in 256) are those of the PCI Express
    /// Base Specification.
    ///
    /// ```
    /// use daq_core::topology::pci::Lanes;
    /// assert_eq!(Lanes { generation: 1, width: 4 }.rate(), 1_000_000_000);
    /// ```
    pub const fn rate(self) -> u64 {
        let lane = match self.generation {
            1 => 250_000_000,
            2 => 500_000_000,
            3 => 984_615_384,
            4 => 1_969_230_769,
            5 => 3_938_461_538,
            6 => 7_562_500_000,
            _ => 0,
        };
        lane * self.width as u64
    }
}

impl fmt::Display for Lanes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PCIe {} x{}", self.generation, self.width)
    }
}

/// A PCIe link, as the device at one of its ends reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// As it runs. An idle GPU lowers the generation to save power and raises it under load; the width stays.
    pub current: Lanes,
    /// What the device itself can do.
    pub max: Lanes,
}

/// A bridge between a device and the processor: the slot's port or a switch's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bridge {
    /// As in `0000:3a:01.0`.
    pub address: String,
    /// Its link; for a slot's port the link to the card.
    pub link: Option<Link>,
}

/// A PCI device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PciFacts {
    /// As in `0000:3b:00.0`.
    pub address: String,
    /// The vendor's number for the model.
    pub device: Option<u16>,
    /// The kernel's driver that holds it, as in `nvidia`.
    pub driver: Option<String>,
    /// Its NUMA node; `None` if the firmware does not say.
    pub node: Option<u32>,
    /// Bytes of the window through which others reach the memory of the GPU.
    pub bar1: Option<u64>,
    /// Its own link.
    pub link: Option<Link>,
    /// Bridges towards the processor, the slot's port first.
    pub bridges: Vec<Bridge>,
}

/// The facts of the device at `address` (see [`canonical`]) in a recorded or present `/sys`; what cannot be
/// read is `None`.
pub fn facts(sys: &Path, address: &str) -> PciFacts {
    let address = canonical(address).unwrap_or_else(|| address.to_owned());
    let at = sys.join("bus/pci/devices").join(&address);
    let base = sys.canonicalize().unwrap_or_else(|_| sys.to_owned());
    let bridges = at.canonicalize().map_or_else(
        |_| Vec::new(),
        |path| {
            path.ancestors()
                .skip(1)
                .take_while(|path| path.starts_with(&base))
                .filter_map(|path| {
                    Some(Bridge {
                        address: canonical(path.file_name()?.to_str()?)?,
                        link: link(path),
                    })
                })
                .collect()
        },
    );
    PciFacts {
        device: text(&at, "device")
            .and_then(|text| u16::from_str_radix(text.strip_prefix("0x")?, 16).ok()),
        driver: target(&at, "driver"),
        // The kernel writes -1 where the firmware does not say.
        node: value(&at, "numa_node"),
        bar1: text(&at, "resource").and_then(|text| bar1(&text)),
        link: link(&at),
        bridges,
        address,
    }
}

/// Addresses of NVIDIA's display and 3D controllers, ascending; `None` if `/sys` has no PCI devices at all.
pub fn nvidia_gpus(sys: &Path) -> Option<Vec<String>> {
    let devices = sys.join("bus/pci/devices");
    let mut found: Vec<_> = fs::read_dir(devices)
        .ok()?
        .flatten()
        .filter(|device| {
            let is = |file, prefix| {
                text(&device.path(), file).is_some_and(|text: String| text.starts_with(prefix))
            };
            is("vendor", NVIDIA) && is("class", DISPLAY)
        })
        .filter_map(|device| canonical(device.file_name().to_str()?))
        .collect();
    found.sort();
    Some(found)
}

/// The address as `/sys` writes it, from that of CUDA, NVML or lspci; `None` if it is none.
///
/// ```
/// use daq_core::topology::pci::canonical;
/// assert_eq!(canonical("00000000:3B:00.0").as_deref(), Some("0000:3b:00.0"));
/// assert_eq!(canonical("3b:00.0").as_deref(), Some("0000:3b:00.0"));
/// assert_eq!(canonical("pci0000:3a"), None);
/// ```
pub fn canonical(address: &str) -> Option<String> {
    let hex = |text: &str, most: u32| {
        u32::from_str_radix(text, 16)
            .ok()
            .filter(|number| *number <= most && !text.starts_with('+'))
    };
    let (rest, function) = address.rsplit_once('.')?;
    let (rest, slot) = rest.rsplit_once(':')?;
    let (domain, bus) = rest.rsplit_once(':').unwrap_or(("0", rest));
    let (domain, bus) = (hex(domain, u32::MAX)?, hex(bus, 0xff)?);
    let (slot, function) = (hex(slot, 0x1f)?, hex(function, 7)?);
    Some(format!("{domain:04x}:{bus:02x}:{slot:02x}.{function}"))
}

pub(super) fn text(at: &Path, file: &str) -> Option<String> {
    Some(fs::read_to_string(at.join(file)).ok()?.trim().to_owned())
}

/// The name of what the link `file` in the directory `at` leads to, whether that is there or not.
pub(super) fn target(at: &Path, file: &str) -> Option<String> {
    let target = fs::read_link(at.join(file)).ok()?;
    Some(target.file_name()?.to_str()?.to_owned())
}

pub(super) fn value<T: FromStr>(at: &Path, file: &str) -> Option<T> {
    text(at, file)?.parse().ok()
}

/// The link of the device in the directory `at`; `None` where any part of it is missing, zero or `Unknown`.
pub(super) fn link(at: &Path) -> Option<Link> {
    let lanes = |speed: &str, width: &str| {
        Some(Lanes {
            generation: generation(&text(at, speed)?)?,
            width: value(at, width).filter(|width| (1..=WIDEST).contains(width))?,
        })
    };
    Some(Link {
        current: lanes("current_link_speed", "current_link_width")?,
        max: lanes("max_link_speed", "max_link_width")?,
    })
}

/// The generation of a speed such as `32.0 GT/s PCIe`.
fn generation(speed: &str) -> Option<u32> {
    Some(match speed.split_whitespace().next()? {
        "2.5" => 1,
        "5" | "5.0" => 2,
        "8" | "8.0" => 3,
        "16" | "16.0" => 4,
        "32" | "32.0" => 5,
        "64" | "64.0" => 6,
        _ => return None,
    })
}

/// Bytes of the window through which others reach the memory of an NVIDIA GPU: of its second memory region.
///
/// NVIDIA calls it BAR1. It is the second line where the first register is 32 bits wide, the third where that
/// takes two lines, as on newer cards.
fn bar1(resource: &str) -> Option<u64> {
    regions(resource).get(1).copied()
}

/// Bytes of the memory regions among a device's `resource` lines (start, end, flags), in order.
pub(super) fn regions(resource: &str) -> Vec<u64> {
    resource
        .lines()
        .take(REGISTERS)
        .filter_map(|line| {
            let mut numbers = line
                .split_whitespace()
                .map(|number| u64::from_str_radix(number.trim_start_matches("0x"), 16).ok());
            let (start, end, flags) = (numbers.next()??, numbers.next()??, numbers.next()??);
            let is_placed = flags & MEMORY != 0 && flags & NOT_PLACED == 0 && end > start;
            is_placed.then(|| (end - start).saturating_add(1))
        })
        .collect()
}

#[cfg(test)]
mod tests;
