//! A card accessed through Linux VFIO: mapped registers, interrupts as eventfds, DMA through the IOMMU.
//!
//! ```text
//!   VfioDevice ── OpenDevice (device in container) ◀── mapped registers keep the device open
//!       └──────── DeviceGuard, receives each mapping before it is made
//! ```
//! The container uses the type1v2 IOMMU. It maps host memory and the mapped memory of other devices, such as GPUs, at
//! addresses that daq chooses. So an engine with 32-bit addresses can access a BAR above 4 GiB.

mod binding;
mod descriptors;

use super::iova::IovaAllocator;
use crate::fpga::device::{Device, DeviceError, GONE, Identity, Interrupt, Registers, halves};
use crate::fpga::guard::{self, BUS_MASTER, DeviceGuard, PCI_COMMAND, read_config, set_bus_master};
use crate::sys::vfio as sys;
use crate::sys::vfio_bar::Bar;
use crate::sys::vfio_map::{Map, Memory};
use daq_core::dma::{DmaDevice, DmaError};
use daq_core::region::{Placement, Region};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use vfio_bindings::bindings::vfio as bindings;
use vfio_ioctls::{VfioContainer, VfioError, VfioRegionInfoCap};

/// Alignment of addresses and lengths of IOMMU mappings.
const PAGE: u64 = 4096;
/// Number of base address registers (BARs) of a PCI function.
const BARS: usize = 6;
/// The executable of this process, even if the file was replaced.
const THIS_PROGRAM: &str = "/proc/self/exe";
/// Maximum time to wait for a device that another process uses, and interval of the attempts.
const HANDOVER: Duration = Duration::from_secs(2);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// `PCI_COMMAND`: enables the memory space of the device.
const MEMORY: u16 = 1 << 1;

/// A device behind VFIO.
pub struct VfioDevice {
    name: String,
    identity: Identity,
    can_reset: bool,
    opened: Arc<OpenDevice>,
    state: Mutex<State>,
}

/// The mutable state of the device.
struct State {
    iovas: IovaAllocator,
    /// Mapped memory of regions and of other devices, by address.
    maps: BTreeMap<u64, Map>,
    /// The VFIO index of the enabled interrupt type.
    interrupts: Option<u32>,
    /// The guard process; `None` once the device is being closed.
    guard: Option<DeviceGuard>,
}

/// The descriptors of the device and its container.
struct OpenDevice {
    device: sys::OpenDevice,
    container: Arc<VfioContainer>,
}

impl OpenDevice {
    /// Opens the device with the given sysfs directory. Waits if another process uses it, because the guard of a killed
    /// daemon may still be stopping it.
    fn new(folder: &Path) -> Result<Arc<Self>, String> {
        let start = Instant::now();
        loop {
            let container = VfioContainer::new(None)
                .map(Arc::new)
                .map_err(|reason| container_error(&reason))?;
            match vfio_ioctls::VfioDevice::new(folder, container.clone(), false) {
                Ok(device) => {
                    let device = sys::OpenDevice::new(device);
                    return Ok(Arc::new(Self { device, container }));
                }
                Err(reason) if !is_busy(&reason) || start.elapsed() > HANDOVER => {
                    return Err(device_error(&reason));
                }
                Err(_) => std::thread::sleep(POLL_INTERVAL),
            }
        }
    }

    fn device(&self) -> BorrowedFd<'_> {
        sys::device_fd(&self.device)
    }

    fn container(&self) -> BorrowedFd<'_> {
        sys::container_fd(&self.container)
    }

    /// Returns the offset of the configuration space in the device descriptor.
    fn config(&self) -> u64 {
        self.device
            .get_region_offset(bindings::VFIO_PCI_CONFIG_REGION_INDEX)
    }
}

impl VfioDevice {
    /// Opens the device at a PCI address (`0000:3b:00.0`), enables its memory space and bus mastering, and starts its
    /// guard. Linux resets the device if it can. `program` is the executable of the guard; default: this program.
    pub fn open(address: &str, program: Option<&Path>) -> Result<Arc<Self>, DeviceError> {
        let folder = binding::check(Path::new("/"), address)?;
        let error = |why: String| DeviceError::new(address, why);
        let opened = OpenDevice::new(&folder).map_err(error)?;
        let failed = |what: &str, reason: io::Error| error(format!("{what}: {reason}"));
        let valid = sys::valid_addresses(opened.container())
            .map_err(|reason| failed("cannot read the address ranges of the IOMMU", reason))?;
        let can_reset = sys::can_reset(opened.device())
            .map_err(|reason| failed("cannot read the device information", reason))?;
        let identity = identity(&opened)
            .map_err(|reason| failed("cannot read the configuration space", reason))?;
        if identity.vendor == u16::MAX {
            return Err(error(
                "the device does not respond: its configuration space reads all ones; check its PCIe link with lspci -vv".to_owned(),
            ));
        }
        let guard = DeviceGuard::start(
            program.unwrap_or(Path::new(THIS_PROGRAM)),
            address,
            opened.container(),
            opened.device(),
            opened.config(),
        )?;
        if let Err(reason) = enable(&opened) {
            let _ = guard.finish();
            return Err(failed(
                "cannot enable memory space and bus mastering",
                reason,
            ));
        }
        Ok(Arc::new(Self {
            name: address.to_owned(),
            identity,
            can_reset,
            opened,
            state: Mutex::new(State {
                iovas: IovaAllocator::new(valid),
                maps: BTreeMap::new(),
                interrupts: None,
                guard: Some(guard),
            }),
        }))
    }

    /// Maps the memory of another device for this device and returns the DMA address. The mapping exists until the memory is
    /// unmapped.
    pub fn map_bar(&self, bar: &Arc<Bar>) -> Result<u64, DmaError> {
        self.map_memory(Memory::bar(bar), "another device's memory", true)
    }

    /// Returns the process ID of the guard.
    pub fn guard(&self) -> Option<u32> {
        self.state().guard.as_ref().map(DeviceGuard::id)
    }

    fn map_memory(
        &self,
        memory: Memory,
        what: &str,
        is_device_memory: bool,
    ) -> Result<u64, DmaError> {
        let (begin, bytes) = (memory.address(), memory.bytes());
        let refused = |action: &str, why: String| DmaError::Refused {
            device: self.name.clone(),
            action: format!("{action} {bytes:#x} bytes of {what}"),
            why,
        };
        let length = bytes as u64;
        if !(begin.addr().get() as u64).is_multiple_of(PAGE) || !length.is_multiple_of(PAGE) {
            return Err(DmaError::Unreachable {
                device: self.name.clone(),
                memory: format!("{bytes:#x} bytes of {what} at {begin:p}"),
                why: format!(
                    "address and length must be multiples of the IOMMU page size of {PAGE} bytes"
                ),
            });
        }
        let mut state = self.state();
        let address = state.iovas.allocate(length).ok_or_else(|| {
            refused(
                "mapping",
                "no free IOMMU addresses are left; lower `slots` or `slot` of the ring".to_owned(),
            )
        })?;
        match self.map_at(&mut state, address, memory, is_device_memory) {
            Ok(map) => {
                state.maps.insert(address, map);
                Ok(address)
            }
            Err(why) => {
                state.iovas.free(address);
                Err(refused("mapping", why))
            }
        }
    }

    fn map_at(
        &self,
        state: &mut State,
        address: u64,
        memory: Memory,
        is_device_memory: bool,
    ) -> Result<Map, String> {
        let held: Vec<OwnedFd> = if is_device_memory {
            let held = descriptors::gpu_descriptors().map_err(|error| {
                format!("cannot list the descriptors that keep the memory allocated: {error}")
            })?;
            if descriptors::lacks_descriptor(&held) {
                return Err(
                    "no descriptor of this process keeps the memory allocated (/dev/nvidia*, /dev/gdrdrv, dmabuf), so the \
                     device could write to freed memory if daq is killed: make /proc/self/fd readable, or use host \
                     memory with `path = \"staged\"`"
                        .to_owned(),
                );
            }
            held
        } else {
            Vec::new()
        };
        let Some(guard) = &mut state.guard else {
            return Err("the device is being closed".to_owned());
        };
        let bytes = memory.bytes() as u64;
        guard.map(address, bytes, &held).map_err(|error| {
            format!(
                "cannot report the mapping to the guard process {}: {error}",
                guard.id()
            )
        })?;
        Map::new(&self.name, &self.opened.container, address, memory).map_err(|error| {
            if let Err(error) = guard.unmap(address) {
                tracing::warn!(
                    "{}: cannot report the unmapping to the guard process: {error}",
                    self.name
                );
            }
            map_error(&error)
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_gone(&self) -> bool {
        !read_config(self.opened.device(), self.opened.config()).is_ok_and(|id| id != u16::MAX)
    }

    fn gone(&self) -> DmaError {
        DmaError::Gone {
            device: self.name.clone(),
        }
    }
}

impl DmaDevice for VfioDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn map(&self, region: &Arc<Region>) -> Result<u64, DmaError> {
        let placement = region.placement();
        let Some(memory) = Memory::region(region) else {
            return Err(DmaError::Unreachable {
                device: self.name.clone(),
                memory: format!("memory of {placement}"),
                why: "VFIO can map only memory that the CPU can access, and this memory has no BAR mapping; run `daq doctor`"
                    .to_owned(),
            });
        };
        let what = format!("memory of {placement}");
        let is_device_memory = placement != Placement::Host;
        self.map_memory(memory, &what, is_device_memory)
    }

    fn unmap(&self, address: u64, bytes: usize) -> Result<(), DmaError> {
        let refused = |why: String| DmaError::Refused {
            device: self.name.clone(),
            action: format!("unmapping {bytes:#x} bytes at {address:#x}"),
            why,
        };
        let mut state = self.state();
        let map = match state.maps.entry(address) {
            Entry::Occupied(map) if map.get().bytes() == bytes => map.remove(),
            Entry::Occupied(map) => {
                let mapped = map.get().bytes();
                return Err(refused(format!(
                    "the mapping at this address has {mapped:#x} bytes"
                )));
            }
            Entry::Vacant(_) => {
                return Err(refused("nothing is mapped at this address".to_owned()));
            }
        };
        if let Err((map, error)) = map.unmap() {
            state.maps.insert(address, map);
            return Err(refused(error.to_string()));
        }
        state.iovas.free(address);
        if let Some(guard) = &mut state.guard
            && let Err(error) = guard.unmap(address)
        {
            tracing::warn!(
                "{}: cannot report the unmapping to the guard process: {error}",
                self.name
            );
        }
        Ok(())
    }

    fn disable_and_reset(&self) -> Result<(), DmaError> {
        guard::disable_and_reset(self.opened.device(), self.opened.config()).map_err(|why| {
            if self.is_gone() {
                return self.gone();
            }
            DmaError::Refused {
                device: self.name.clone(),
                action: "disabling bus mastering and resetting the device".to_owned(),
                why,
            }
        })
    }
}

impl Device for VfioDevice {
    fn identity(&self) -> Identity {
        self.identity
    }

    fn registers(&self, bar: usize) -> Result<Arc<dyn Registers>, DeviceError> {
        let error = |why: String| DeviceError::new(&self.name, format!("BAR {bar}: {why}"));
        let device = &self.opened.device;
        let index = u32::try_from(bar).unwrap_or(u32::MAX);
        if bar >= BARS || device.get_region_size(index) == 0 {
            let present: Vec<_> = (0u32..)
                .take(BARS)
                .filter(|&n| device.get_region_size(n) > 0)
                .collect();
            return Err(error(format!(
                "not present; the device has BARs {present:?}"
            )));
        }
        let bytes = device.get_region_size(index);
        let flags = device.get_region_flags(index);
        // Old Linux versions do not map the page that contains the MSI-X table.
        let is_whole = device
            .get_region_caps(index)
            .iter()
            .all(|cap| !matches!(cap, VfioRegionInfoCap::SparseMmap(_)));
        let bar = if flags & bindings::VFIO_REGION_INFO_FLAG_MMAP != 0 && is_whole {
            let length = usize::try_from(bytes).map_err(|_| {
                error(format!(
                    "{bytes:#x} bytes exceed the address space of this process"
                ))
            })?;
            let bar = Bar::map(
                self.opened.device(),
                device.get_region_offset(index),
                length,
            )
            .map_err(|reason| error(format!("cannot map {bytes:#x} bytes: {reason}")))?;
            Some(bar)
        } else {
            None
        };
        Ok(Arc::new(DeviceRegisters {
            bar,
            bytes,
            offset: device.get_region_offset(index),
            opened: self.opened.clone(),
        }))
    }

    fn write_combined(&self, bar: usize) -> Result<Arc<dyn Registers>, DeviceError> {
        let path = Path::new("/sys/bus/pci/devices")
            .join(&self.name)
            .join(format!("resource{bar}_wc"));
        match Bar::open(&path) {
            Ok(mapped) => Ok(Arc::new(DeviceRegisters {
                bytes: mapped.bytes() as u64,
                bar: Some(mapped),
                offset: 0,
                opened: self.opened.clone(),
            })),
            // Linux combines writes only to a prefetchable BAR.
            Err(error) => {
                tracing::warn!(
                    "{}: writes to BAR {bar} are not combined: {}: {error}; make the BAR prefetchable in the design",
                    self.name,
                    path.display()
                );
                self.registers(bar)
            }
        }
    }

    fn interrupts(&self, count: usize) -> Result<Vec<Interrupt>, DeviceError> {
        let error = |why: String| DeviceError::new(&self.name, why);
        let device = &self.opened.device;
        let vectors = |kind| {
            device
                .get_irq_info(kind)
                .map_or(0, |irq| irq.count as usize)
        };
        let kinds = [
            bindings::VFIO_PCI_MSIX_IRQ_INDEX,
            bindings::VFIO_PCI_MSI_IRQ_INDEX,
        ];
        let Some(kind) = kinds
            .into_iter()
            .find(|&kind| vectors(kind) >= count.max(1))
        else {
            return Err(error(format!(
                "the device has {} MSI-X and {} MSI vectors, but {count} are needed; use completion = \"poll\"",
                vectors(kinds[0]),
                vectors(kinds[1])
            )));
        };
        let events: Vec<_> = (0..count)
            .map(|_| sys::event())
            .collect::<io::Result<_>>()
            .map_err(|reason| {
                error(format!(
                    "cannot create an eventfd for an interrupt: {reason}"
                ))
            })?;
        let mut state = self.state();
        if let Some(kind) = state.interrupts.take() {
            device
                .disable_irq(kind)
                .map_err(|reason| error(format!("cannot disable interrupts: {reason}")))?;
        }
        device
            .enable_irq(kind, events.iter().map(|(given, _)| given).collect())
            .map_err(|reason| error(format!("cannot enable {count} interrupts: {reason}")))?;
        state.interrupts = Some(kind);
        Ok(events
            .into_iter()
            .map(|(_, waited)| Interrupt::new(waited))
            .collect())
    }

    fn reset(&self) -> Result<(), DeviceError> {
        let error = |why: String| DeviceError::new(&self.name, why);
        if !self.can_reset {
            return Err(error(
                "Linux cannot reset this device alone: it has neither FLR nor a power-state reset, and other devices share its bus".to_owned(),
            ));
        }
        sys::reset(self.opened.device())
            .and_then(|()| enable(&self.opened))
            .map_err(|reason| error(format!("reset: {reason}")))
    }

    fn as_dma(self: Arc<Self>) -> Arc<dyn DmaDevice> {
        self
    }
}

impl Drop for VfioDevice {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let device = self.opened.device();
        if let Err(error) = set_bus_master(device, self.opened.config(), false) {
            tracing::warn!("{}: cannot disable bus mastering: {error}", self.name);
        }
        if let Some(kind) = state.interrupts.take() {
            let _ = self.opened.device.disable_irq(kind);
        }
        // Only BARs and regions that could not be unmapped are left: every other mapping keeps a reference to the device.
        state.maps.clear();
        if let Some(Err(error)) = state.guard.take().map(DeviceGuard::finish) {
            tracing::warn!("{}: the guard process does not exit: {error}", self.name);
        }
    }
}

impl fmt::Debug for VfioDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VfioDevice")
            .field("name", &self.name)
            .field("identity", &self.identity)
            .finish_non_exhaustive()
    }
}

/// The registers in a BAR of a [`VfioDevice`]. This value keeps the device open.
struct DeviceRegisters {
    /// The mapped BAR. It is the first field, so that it is dropped before the device is closed. `None` if Linux maps
    /// only parts of the BAR; each access is then a system call.
    bar: Option<Bar>,
    bytes: u64,
    offset: u64,
    opened: Arc<OpenDevice>,
}

impl DeviceRegisters {
    /// Returns the offset of a register in the mapping.
    ///
    /// # Panics
    /// If `offset` is not below the size or not a multiple of 4.
    fn checked_offset(&self, offset: u64) -> usize {
        assert!(
            offset.is_multiple_of(4) && offset < self.bytes,
            "register offset {offset:#x} is not a multiple of 4, or not below the BAR size of {:#x} bytes",
            self.bytes
        );
        usize::try_from(offset)
            .expect("the offset is less than the size of the mapping, which fits into a usize")
    }
}

impl Registers for DeviceRegisters {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn read(&self, offset: u64) -> u32 {
        let checked_offset = self.checked_offset(offset);
        if let Some(bar) = &self.bar {
            return bar.read(checked_offset);
        }
        let mut word = [0; 4];
        match rustix::io::pread(self.opened.device(), &mut word, self.offset + offset) {
            Ok(4) => u32::from_le_bytes(word),
            _ => GONE,
        }
    }

    fn write(&self, offset: u64, value: u32) {
        let checked_offset = self.checked_offset(offset);
        if let Some(bar) = &self.bar {
            return bar.write(checked_offset, value);
        }
        // A write to a removed device has no effect.
        let _ = rustix::io::pwrite(
            self.opened.device(),
            &value.to_le_bytes(),
            self.offset + offset,
        );
    }

    fn read64(&self, offset: u64) -> u64 {
        match &self.bar {
            Some(bar) => bar.read64(self.checked_offset(offset)),
            None => u64::from(self.read(offset)) | u64::from(self.read(offset + 4)) << 32,
        }
    }

    fn write64(&self, offset: u64, value: u64) {
        if let Some(bar) = &self.bar {
            return bar.write64(self.checked_offset(offset), value);
        }
        let (low, high) = halves(value);
        self.write(offset, low);
        self.write(offset + 4, high);
    }
}

/// Enables memory space and bus mastering of a device.
fn enable(opened: &OpenDevice) -> io::Result<()> {
    let (device, at) = (opened.device(), opened.config() + PCI_COMMAND);
    let command = read_config(device, at)? | MEMORY | BUS_MASTER;
    rustix::io::pwrite(device, &command.to_le_bytes(), at)?;
    set_bus_master(device, opened.config(), true)
}

fn identity(opened: &OpenDevice) -> io::Result<Identity> {
    let read = |offset| read_config(opened.device(), opened.config() + offset);
    // The class has three bytes, starting at offset 0x09.
    let class = u32::from(read(0x08)? >> 8) | u32::from(read(0x0a)?) << 8;
    Ok(Identity {
        vendor: read(0)?,
        device: read(2)?,
        class,
    })
}

fn container_error(error: &VfioError) -> String {
    match error {
        VfioError::OpenContainer(reason) => format!(
            "cannot open /dev/vfio/vfio: {reason}; run modprobe vfio_iommu_type1 and give this user access to this file"
        ),
        error => format!("unsupported VFIO version: {error}; the type1v2 IOMMU is required"),
    }
}

/// Returns true if the error means that another process uses the device.
fn is_busy(error: &VfioError) -> bool {
    match error {
        VfioError::OpenGroup(reason, _) => reason.kind() == io::ErrorKind::ResourceBusy,
        VfioError::GroupSetContainer => true,
        _ => false,
    }
}

fn device_error(error: &VfioError) -> String {
    match error {
        VfioError::OpenGroup(reason, group) => format!(
            "cannot open /dev/vfio/{group}: {reason}; check for another program with fuser -v /dev/vfio/{group}"
        ),
        VfioError::GroupViable => {
            "the IOMMU group is in use by another program, or a driver was bound to one of its devices; \
             see fuser -v /dev/vfio/* and dmesg | tail"
                .to_owned()
        }
        VfioError::GroupSetContainer => {
            "the IOMMU group is in use by another program; see fuser -v /dev/vfio/*".to_owned()
        }
        error => format!("VFIO cannot open the device: {error}; see dmesg | tail"),
    }
}

fn map_error(error: &VfioError) -> String {
    match error {
        VfioError::IommuDmaMap(reason) if reason.errno() == libc::ENOMEM => format!(
            "{reason}; DMA memory must be locked: raise the limit of locked memory (ulimit -l, LimitMEMLOCK= in the systemd unit)"
        ),
        VfioError::IommuDmaMap(reason) if reason.errno() == libc::EFAULT => {
            format!("{reason}; Linux cannot map this kind of memory for devices")
        }
        error => error.to_string(),
    }
}
