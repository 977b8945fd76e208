//! Vulkan memory behind the GPU's BAR, imported into CUDA.

use super::pieces::{self, Pieces, Refused, Stopwatch};
use super::{Costs, MAPPED};
use crate::gpu::driver::{Device, External};
use crate::sys::vulkan::{self, Answer, NoVulkan};
use crate::units::ByteSize;

/// Granularity of sizes in bytes.
const PAGE: usize = 64 << 10;

/// Vulkan memory with a CUDA address.
pub(super) struct Mapping {
    // Dropped first, because the import must end before the memory is freed.
    external: External,
    _memory: vulkan::Memory,
}

pub(super) fn make(device: &'static Device, bytes: usize) -> Result<Pieces<Mapping>, Refused> {
    let bytes = pieces::whole_pages(bytes, PAGE)?;
    let uuid = device.uuid().map_err(|error| error.to_string())?;
    let gpu = vulkan::gpu(uuid)?;
    let mut stopwatch = Stopwatch::new();
    let mut memory = gpu.allocate(bytes)?;
    let allocate = stopwatch.lap();
    let cpu = memory.map()?;
    let map = stopwatch.lap();
    let fd = memory.export()?;
    // SAFETY: the descriptor belongs to the memory that was allocated just above. This memory is dedicated to its
    // buffer, has `memory.bytes()` bytes, and is freed after the import ends.
    let external =
        unsafe { External::new(device, fd, memory.bytes(), bytes) }.map_err(|error| {
            format!("{error}; CUDA and Vulkan must belong to the same driver: reinstall the driver")
        })?;
    let mut mapping = Mapping {
        external,
        _memory: memory,
    };
    if let Err(error) = mapping.external.clear() {
        // Freeing waits for persistent kernels. A persistent kernel may also be the reason why the memory cannot be
        // cleared.
        device.free(MAPPED, move || drop(mapping));
        return Err(error.to_string().into());
    }
    let mut pieces = Pieces::new((cpu, mapping.external.address(), bytes), mapping);
    pieces.costs = Costs {
        allocate,
        pin: stopwatch.lap(),
        map,
    };
    Ok(pieces)
}

impl From<NoVulkan> for Refused {
    fn from(missing: NoVulkan) -> Self {
        refusal(&missing)
    }
}

/// Describes an error, with a remedy.
fn refusal(missing: &NoVulkan) -> Refused {
    Refused(match missing {
        NoVulkan::NoLibrary(why) => format!(
            "the Vulkan loader cannot be opened ({why}); install the packages libvulkan1 and libegl1, and the driver's libnvidia-gl"
        ),
        NoVulkan::Call("vkCreateInstance", Answer::ERROR_INCOMPATIBLE_DRIVER) => {
            "vkCreateInstance finds no driver (-9); NVIDIA's driver needs libglvnd: install the packages libvulkan1, libegl1 and libnvidia-gl; in a container add the capability `graphics`".to_owned()
        }
        NoVulkan::Call(call, answer) => {
            let helps = match *answer {
                Answer::ERROR_OUT_OF_DEVICE_MEMORY | Answer::ERROR_OUT_OF_HOST_MEMORY => {
                    "lower `slots` or `slot` of the rings on this GPU, or free memory of other processes (nvidia-smi shows them)"
                }
                Answer::ERROR_DEVICE_LOST | Answer::ERROR_INITIALIZATION_FAILED => {
                    "check whether the GPU is still present: nvidia-smi; dmesg | grep -i xid"
                }
                _ => "check whether vulkaninfo lists the GPU",
            };
            format!("{call}: {answer} ({}); {helps}", answer.as_raw())
        }
        NoVulkan::NoGpu(others) if others.is_empty() => {
            "Vulkan finds no GPU; check whether vulkaninfo finds one, and whether this user may open /dev/nvidia*".to_owned()
        }
        NoVulkan::NoGpu(others) => format!(
            "Vulkan lists only other GPUs ({}); Vulkan does not support MIG partitions, and VK_ICD_FILENAMES or VK_DRIVER_FILES may hide the GPU",
            others.join(", ")
        ),
        NoVulkan::NoExport => {
            "the GPU's Vulkan driver cannot export memory (VK_KHR_external_memory_fd); update the driver".to_owned()
        }
        NoVulkan::NoMemory => {
            "the GPU exposes none of its memory to the CPU; enable \"Above 4G decoding\" and \"Resizable BAR\" in the firmware".to_owned()
        }
        NoVulkan::TooSmall(bytes) => format!(
            "the GPU exposes only {} of its memory to the CPU, less than requested; enable \"Above 4G decoding\" and \"Resizable BAR\" in the firmware, or lower `slots` or `slot` of the ring",
            ByteSize(*bytes)
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_obstacle_names_its_fix() {
        for (missing, words) in [
            (NoVulkan::NoLibrary("no file".into()), "libvulkan1"),
            (
                NoVulkan::Call("vkCreateInstance", Answer::ERROR_INCOMPATIBLE_DRIVER),
                "libegl1",
            ),
            (
                NoVulkan::Call("vkAllocateMemory", Answer::ERROR_OUT_OF_DEVICE_MEMORY),
                "`slots`",
            ),
            (
                NoVulkan::Call("vkCreateDevice", Answer::ERROR_INITIALIZATION_FAILED),
                "(-3)",
            ),
            (NoVulkan::NoGpu(Vec::new()), "/dev/nvidia"),
            (NoVulkan::NoGpu(vec!["llvmpipe".into()]), "(llvmpipe)"),
            (NoVulkan::NoExport, "VK_KHR_external_memory_fd"),
            (NoVulkan::NoMemory, "Resizable BAR"),
            (NoVulkan::TooSmall(256 << 20), "256 MiB"),
        ] {
            let message = refusal(&missing).0;
            assert!(
                message.contains(words) && message.contains(';'),
                "{message}"
            );
        }
    }
}
