//! PCI properties of a GPU from `/sys`: links, BAR1, NUMA node.
//!
//! Everything is read from files, so a recorded tree works like a real machine. Values that a virtual machine omits or
//! fills with zeros are treated as unknown, not as faults.

use std::fmt;
use std::fs;
use std::path::Path;
use std::str::FromStr;

const NVIDIA: &str = "0x10de";
/// First byte of the PCI class of display and 3D controllers.
const DISPLAY: &str = "0x03";
/// Flags of a region to which Linux could not assign an address (`IORESOURCE_UNSET`, `IORESOURCE_DISABLED` of
/// linux/ioport.h).
const NOT_PLACED: u64 = 0x3000_0000;
/// Flag of a memory region (`IORESOURCE_MEM`).
const MEMORY: u64 = 0x200;
/// Number of lines of `resource` that describe base address registers. Later lines describe the ROM and bridge windows.
const REGISTERS: usize = 6;
/// Maximum number of lanes of a PCIe link.
const WIDEST: u32 = 32;

/// Generation and width of a PCIe link, such as `PCIe 5 x16`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lanes {
    /// PCIe generation, 1 to 6.
    pub generation: u32,
    /// Number of lanes, 1 to 32.
    pub width: u32,
}

impl Lanes {
    /// Returns the data rate in one direction in bytes per second, after line encoding and before packet headers; 0 for
    /// an unknown generation.
    ///
    /// Transfers per second and encoding (8b/10b, 128b/130b, flits with 242 of 256 bytes) are those of the PCI Express
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
    /// Current generation and width. An idle GPU lowers the generation to save power and raises it under load. The
    /// width does not change.
    pub current: Lanes,
    /// Maximum generation and width that the device supports.
    pub max: Lanes,
}

/// A bridge between a device and the processor: a root port or a port of a switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bridge {
    /// PCI address, such as `0000:3a:01.0`.
    pub address: String,
    /// PCIe link of the bridge; for the port of a slot, the link to the card.
    pub link: Option<Link>,
}

/// PCI properties of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PciFacts {
    /// PCI address, such as `0000:3b:00.0`.
    pub address: String,
    /// PCI device identifier.
    pub device: Option<u16>,
    /// The Linux driver that the device is bound to, such as `nvidia`.
    pub driver: Option<String>,
    /// NUMA node; `None` if the firmware does not report it.
    pub node: Option<u32>,
    /// Size in bytes of BAR1, through which the CPU and other devices access the GPU's memory.
    pub bar1: Option<u64>,
    /// The device's own PCIe link.
    pub link: Option<Link>,
    /// Bridges between the device and the processor, the nearest to the device first.
    pub bridges: Vec<Bridge>,
}

/// Reads the properties of the device at `address` (see [`canonical`]) from this machine's `/sys` or from a recorded
/// one. Values that cannot be read are `None`.
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
        // Linux writes -1 if the firmware does not report the node.
        node: value(&at, "numa_node"),
        bar1: text(&at, "resource").and_then(|text| bar1(&text)),
        link: link(&at),
        bridges,
        address,
    }
}

/// Returns the addresses of NVIDIA's display and 3D controllers in ascending order; `None` if `/sys` lists no PCI
/// devices.
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

/// Converts a PCI address as written by CUDA, NVML or lspci to the form used in `/sys`; `None` if it is not a PCI
/// address.
///
/// ```
/// use daq_core::topology::pci::canonical;
/// assert_eq!(canonical("00000000:3B:00.0").as_deref(), Some("0000:3b:00.0"));
/// assert_eq!(canonical("3b:00.0").as_deref(), Some("0000:3b:00.0"));
/// assert_eq!(canonical("pci0000:3a"), None);
/// ```
pub fn canonical(address: &str) -> Option<String> {
    let hex = |text: &str, max: u32| {
        u32::from_str_radix(text, 16)
            .ok()
            .filter(|number| *number <= max && !text.starts_with('+'))
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

/// Returns the last component of the target of the symbolic link `file` in the directory `at`. The target need not
/// exist.
pub(super) fn target(at: &Path, file: &str) -> Option<String> {
    let target = fs::read_link(at.join(file)).ok()?;
    Some(target.file_name()?.to_str()?.to_owned())
}

pub(super) fn value<T: FromStr>(at: &Path, file: &str) -> Option<T> {
    text(at, file)?.parse().ok()
}

/// Reads the PCIe link of the device in the directory `at`; `None` if a value is missing, zero or `Unknown`.
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

/// Returns the PCIe generation of a speed such as `32.0 GT/s PCIe`.
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

/// Returns the size of an NVIDIA GPU's BAR1 in bytes, through which the CPU and other devices access the GPU's memory.
///
/// BAR1 is the second memory region. It is on the second line of `resource` if the first base address register is 32
/// bits wide. On newer cards the first register is 64 bits wide, and BAR1 is on the third line.
fn bar1(resource: &str) -> Option<u64> {
    regions(resource).get(1).copied()
}

/// Returns the sizes in bytes of the memory regions in a device's `resource` file, whose lines contain start, end and
/// flags.
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
