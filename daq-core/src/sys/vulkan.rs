//! Vulkan (`libvulkan.so.1`), loaded at run time: GPU memory behind its BAR.
//!
//! Instance and devices are created once and kept until the process ends, because creating them takes about 100 ms,
//! and so that the libraries are never unloaded in conflicting orders.

use ash::{khr, vk};
use std::collections::BTreeMap;
use std::os::fd::{FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

pub(crate) use ash::vk::Result as Answer;

/// Properties of memory that the CPU can store to directly.
const PROPERTIES: vk::MemoryPropertyFlags = vk::MemoryPropertyFlags::from_raw(
    vk::MemoryPropertyFlags::DEVICE_LOCAL.as_raw()
        | vk::MemoryPropertyFlags::HOST_VISIBLE.as_raw()
        | vk::MemoryPropertyFlags::HOST_COHERENT.as_raw(),
);
const KIND: vk::ExternalMemoryHandleTypeFlags = vk::ExternalMemoryHandleTypeFlags::OPAQUE_FD;

/// The error for a GPU or driver without memory that the CPU can store to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NoVulkan {
    /// The loader is missing.
    NoLibrary(String),
    /// A call failed.
    Call(&'static str, Answer),
    /// Vulkan does not list the GPU. Contains the names of the GPUs that Vulkan lists.
    NoGpu(Vec<String>),
    /// The GPU cannot export memory as a file descriptor.
    NoExport,
    /// The GPU exposes none of its memory to the CPU.
    NoMemory,
    /// The GPU exposes too little memory. Contains the number of exposed bytes.
    TooSmall(u64),
}

/// A GPU in Vulkan.
pub(crate) struct Gpu {
    device: ash::Device,
    external: khr::external_memory_fd::Device,
    memory: vk::PhysicalDeviceMemoryProperties,
}

/// GPU memory that is dedicated to one buffer. Dropping the value unmaps and frees the memory.
pub(crate) struct Memory {
    gpu: &'static Gpu,
    buffer: vk::Buffer,
    /// Null until the memory is allocated.
    handle: vk::DeviceMemory,
    bytes: usize,
}

struct Loader {
    _entry: ash::Entry,
    instance: ash::Instance,
}

fn failed(call: &'static str) -> impl Fn(Answer) -> NoVulkan {
    move |answer| NoVulkan::Call(call, answer)
}

/// Returns the GPU with this UUID.
pub(crate) fn gpu(uuid: [u8; 16]) -> Result<&'static Gpu, NoVulkan> {
    static GPUS: Mutex<BTreeMap<[u8; 16], &'static Gpu>> = Mutex::new(BTreeMap::new());
    let mut gpus = GPUS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(gpu) = gpus.get(&uuid) {
        return Ok(gpu);
    }
    let gpu: &'static Gpu = Box::leak(Box::new(open(&loader()?.instance, uuid)?));
    gpus.insert(uuid, gpu);
    Ok(gpu)
}

/// Returns the loader, which is opened on first use.
fn loader() -> Result<&'static Loader, NoVulkan> {
    static LOADER: Mutex<Option<&'static Loader>> = Mutex::new(None);
    let mut loader = LOADER.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(match *loader {
        Some(loader) => loader,
        None => loader.insert(Box::leak(Box::new(load()?))),
    })
}

fn load() -> Result<Loader, NoVulkan> {
    // SAFETY: the loader's initialisers have no requirements, and it is never closed.
    let entry =
        unsafe { ash::Entry::load() }.map_err(|error| NoVulkan::NoLibrary(error.to_string()))?;
    let about = vk::ApplicationInfo::default()
        .application_name(c"daq")
        .api_version(vk::API_VERSION_1_1);
    let wanted = vk::InstanceCreateInfo::default().application_info(&about);
    // SAFETY: the create info lives through the call and names no extension or layer.
    let instance =
        unsafe { entry.create_instance(&wanted, None) }.map_err(failed("vkCreateInstance"))?;
    Ok(Loader {
        _entry: entry,
        instance,
    })
}

/// Returns the UUID and the name of a device.
fn identity(instance: &ash::Instance, physical: vk::PhysicalDevice) -> ([u8; 16], String) {
    let mut id = vk::PhysicalDeviceIDProperties::default();
    let mut properties = vk::PhysicalDeviceProperties2::default().push_next(&mut id);
    // SAFETY: the instance has version 1.1, which has this call, and owns the physical device; both structures live
    // through the call.
    unsafe { instance.get_physical_device_properties2(physical, &mut properties) };
    let name = properties
        .properties
        .device_name_as_c_str()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    (id.device_uuid, name)
}

fn open(instance: &ash::Instance, uuid: [u8; 16]) -> Result<Gpu, NoVulkan> {
    // SAFETY: the instance is alive.
    let found = unsafe { instance.enumerate_physical_devices() }
        .map_err(failed("vkEnumeratePhysicalDevices"))?;
    let mut others = Vec::new();
    let mut wanted = None;
    for physical in found {
        let (id, name) = identity(instance, physical);
        if id == uuid {
            wanted = Some(physical);
        } else {
            others.push(name);
        }
    }
    let physical = wanted.ok_or(NoVulkan::NoGpu(others))?;
    // SAFETY: the physical device belongs to the instance.
    let memory = unsafe { instance.get_physical_device_memory_properties(physical) };
    let priorities = [1.0];
    // Vulkan requires that a device has at least one queue. No work is ever submitted to this queue.
    let queues = [vk::DeviceQueueCreateInfo::default()
        .queue_family_index(0)
        .queue_priorities(&priorities)];
    let extensions = [khr::external_memory_fd::NAME.as_ptr()];
    let wanted = vk::DeviceCreateInfo::default()
        .queue_create_infos(&queues)
        .enabled_extension_names(&extensions);
    // SAFETY: the create info lives through the call; every physical device has a queue family.
    let device = match unsafe { instance.create_device(physical, &wanted, None) } {
        Ok(device) => device,
        Err(Answer::ERROR_EXTENSION_NOT_PRESENT) => return Err(NoVulkan::NoExport),
        Err(answer) => return Err(NoVulkan::Call("vkCreateDevice", answer)),
    };
    let external = khr::external_memory_fd::Device::new(instance, &device);
    Ok(Gpu {
        device,
        external,
        memory,
    })
}

impl Gpu {
    /// Allocates at least `bytes` bytes of GPU memory.
    pub(crate) fn allocate(&'static self, bytes: usize) -> Result<Memory, NoVulkan> {
        let mut external = vk::ExternalMemoryBufferCreateInfo::default().handle_types(KIND);
        let wanted = vk::BufferCreateInfo::default()
            .size(bytes as u64)
            .usage(vk::BufferUsageFlags::TRANSFER_SRC | vk::BufferUsageFlags::TRANSFER_DST)
            .sharing_mode(vk::SharingMode::EXCLUSIVE)
            .push_next(&mut external);
        // SAFETY: the device is alive; the create info lives through the call.
        let buffer = unsafe { self.device.create_buffer(&wanted, None) }
            .map_err(failed("vkCreateBuffer"))?;
        // SAFETY: the buffer was created just above.
        let needs = unsafe { self.device.get_buffer_memory_requirements(buffer) };
        let mut memory = Memory {
            gpu: self,
            buffer,
            handle: vk::DeviceMemory::null(),
            bytes: usize::try_from(needs.size).unwrap_or(usize::MAX),
        };
        let kind = self.kind(needs)?;
        let mut dedicated = vk::MemoryDedicatedAllocateInfo::default().buffer(buffer);
        let mut export = vk::ExportMemoryAllocateInfo::default().handle_types(KIND);
        let wanted = vk::MemoryAllocateInfo::default()
            .allocation_size(needs.size)
            .memory_type_index(kind)
            .push_next(&mut dedicated)
            .push_next(&mut export);
        // SAFETY: the device is alive, and the allocate info lives through the call. The buffer is never bound to the
        // memory, so the memory type need not be allowed for the buffer.
        memory.handle = unsafe { self.device.allocate_memory(&wanted, None) }
            .map_err(failed("vkAllocateMemory"))?;
        Ok(memory)
    }

    /// Returns the index of a suitable memory type: preferably one that the driver reports for the buffer, otherwise
    /// any.
    ///
    /// For buffers with exported memory NVIDIA's driver (580) does not report the type behind the BAR, but allocates,
    /// maps and exports it. A driver that cannot do this returns an error later.
    fn kind(&self, needs: vk::MemoryRequirements) -> Result<u32, NoVulkan> {
        let kinds = self.memory.memory_types_as_slice();
        let visible = (0_u32..)
            .zip(kinds)
            .filter(|(_, kind)| kind.property_flags.contains(PROPERTIES));
        let heap = |kind: &vk::MemoryType| self.memory.memory_heaps[kind.heap_index as usize].size;
        let max = visible.clone().map(|(_, kind)| heap(kind)).max();
        let fits = visible.filter(|(_, kind)| heap(kind) >= needs.size);
        let best = fits.max_by_key(|(index, kind)| {
            let is_named = needs.memory_type_bits & 1 << index != 0;
            (is_named, heap(kind))
        });
        match (best, max) {
            (Some((index, _)), _) => Ok(index),
            (None, Some(max)) => Err(NoVulkan::TooSmall(max)),
            (None, None) => Err(NoVulkan::NoMemory),
        }
    }
}

impl Memory {
    /// Returns the size in bytes, which is at least the requested size.
    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Maps the memory and returns the CPU's address, which is valid until `self` is dropped. Call this only once.
    pub(crate) fn map(&mut self) -> Result<NonNull<u8>, NoVulkan> {
        let flags = vk::MemoryMapFlags::empty();
        // SAFETY: memory of this type can be mapped. Nothing else maps it at the same time, and the driver rejects a
        // second mapping.
        let address = unsafe {
            self.gpu
                .device
                .map_memory(self.handle, 0, vk::WHOLE_SIZE, flags)
        }
        .map_err(failed("vkMapMemory"))?;
        NonNull::new(address.cast()).ok_or(NoVulkan::Call(
            "vkMapMemory",
            Answer::ERROR_MEMORY_MAP_FAILED,
        ))
    }

    /// Exports the memory as an opaque file descriptor.
    pub(crate) fn export(&self) -> Result<OwnedFd, NoVulkan> {
        let wanted = vk::MemoryGetFdInfoKHR::default()
            .memory(self.handle)
            .handle_type(KIND);
        // SAFETY: the memory was allocated for this kind of handle.
        let fd = unsafe { self.gpu.external.get_memory_fd(&wanted) }
            .map_err(failed("vkGetMemoryFdKHR"))?;
        // SAFETY: the descriptor was just created, and nothing else owns it.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: this value owns the memory and the buffer; a null memory handle is allowed. No work was ever
        // submitted to a queue, so Vulkan does not use them.
        unsafe {
            self.gpu.device.free_memory(self.handle, None);
            self.gpu.device.destroy_buffer(self.buffer, None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests every Vulkan device of this machine, including software devices on the CPU.
    #[test]
    fn vulkan_memory_is_mapped_exported_and_freed() {
        let instance = match loader() {
            Ok(loader) => &loader.instance,
            Err(why) => {
                eprintln!("skipped: no Vulkan: {why:?}");
                return;
            }
        };
        // SAFETY: the instance is alive.
        let found = unsafe { instance.enumerate_physical_devices() }.unwrap();
        let mut count = 0;
        for physical in found {
            let (uuid, name) = identity(instance, physical);
            let gpu = match gpu(uuid) {
                Ok(gpu) => gpu,
                Err(why) => {
                    eprintln!("skipped: {name}: {why:?}");
                    continue;
                }
            };
            for bytes in [1, 65_536, 3 << 20] {
                let mut memory = match gpu.allocate(bytes) {
                    Ok(memory) => memory,
                    Err(why) => {
                        eprintln!("skipped: {bytes} bytes of {name}: {why:?}");
                        continue;
                    }
                };
                assert!(memory.bytes() >= bytes);
                let address = memory.map().unwrap();
                memory.export().unwrap();
                let last = memory.bytes() - 1;
                // SAFETY: the address is inside the mapping, which only this test uses.
                unsafe {
                    address.add(last).write_volatile(7);
                    assert_eq!(address.add(last).read_volatile(), 7);
                }
                count += 1;
            }
            let too_much = usize::MAX / 4096;
            assert!(gpu.allocate(too_much).is_err());
        }
        eprintln!("{count} allocations");
        assert!(matches!(gpu([0xab; 16]), Err(NoVulkan::NoGpu(_))));
    }
}
