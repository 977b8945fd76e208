//! Queries NVIDIA's management library (NVML), which is loaded at run time. daq only reads from NVML.

use daq_core::topology::pci::{Lanes, Link, canonical};
use nvml_wrapper::Device;
use nvml_wrapper::Nvml;
use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::{EccCounter, MemoryError, TemperatureSensor};
use nvml_wrapper::error::NvmlError;
use std::ffi::OsStr;
use std::sync::mpsc;
use std::time::Duration;

/// File name of the library in the driver's packages.
const LIBRARY: &str = "libnvidia-ml.so.1";
/// Origin of the values, as shown in findings.
pub(super) const SOURCE: &str = "NVML";
/// Timeout of the query. A driver that initialises eight GPUs without persistence mode needs about 20 s. A hung driver
/// never answers.
const QUERY_TIMEOUT: Duration = Duration::from_mins(1);

/// Data of NVML about the driver and every GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct NvmlFacts {
    /// Version of the driver, for example `580.95.05`.
    pub(super) driver: Option<String>,
    /// Newest CUDA version that the driver supports, as (major, minor).
    pub(super) cuda: Option<(u32, u32)>,
    pub(super) cards: Vec<NvmlCard>,
}

/// Data of NVML about one GPU. A value is `None` if NVML does not report the value for this GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct NvmlCard {
    /// PCI address, for example `0000:3b:00.0`.
    pub(super) address: String,
    pub(super) name: Option<String>,
    pub(super) uuid: Option<String>,
    /// Size of the GPU's memory in bytes.
    pub(super) memory: Option<u64>,
    /// Total size of the BAR1 window, and size of the used part of the window, in bytes.
    pub(super) bar1: Option<(u64, u64)>,
    /// The PCIe link. The maximum rate and width are those that both the GPU and the slot support.
    pub(super) link: Option<Link>,
    pub(super) is_persistent: Option<bool>,
    /// Number of uncorrectable memory errors since the driver was loaded.
    pub(super) uncorrected: Option<u64>,
    pub(super) is_mig: Option<bool>,
    /// Temperature in degrees Celsius.
    pub(super) temperature: Option<u32>,
    pub(super) brakes: Option<Brakes>,
}

/// Reasons for which the clocks are currently reduced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Brakes {
    /// The power limit, or the power brake signal of the power supply.
    pub(super) power: bool,
    /// The temperature of the chip or of its memory.
    pub(super) heat: bool,
    /// A hardware slowdown for which NVML reports no other reason.
    pub(super) unnamed: bool,
}

/// Reasons why NVML returned no facts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The library is not installed.
    NoLibrary,
    /// The library and the loaded kernel module have different versions.
    Mismatch,
    /// NVML did not answer within the given time.
    Silent(Duration),
    Other(String),
}

/// Loads the library and queries it. Waits at most one minute, because a faulty driver may never answer.
pub(super) fn ask() -> Result<NvmlFacts, Refusal> {
    let (sender, receiver) = mpsc::channel();
    // If the caller has already timed out, the result is discarded.
    let asked = std::thread::Builder::new()
        .name("nvml".to_owned())
        .spawn(move || drop(sender.send(read(LIBRARY.as_ref()))));
    match asked {
        Ok(_) => receiver
            .recv_timeout(QUERY_TIMEOUT)
            .unwrap_or(Err(Refusal::Silent(QUERY_TIMEOUT))),
        Err(error) => Err(Refusal::Other(format!(
            "cannot start a thread for the query: {error}"
        ))),
    }
}

fn read(library: &OsStr) -> Result<NvmlFacts, Refusal> {
    let nvml = Nvml::builder()
        .lib_path(library)
        .init()
        .map_err(|error| match error {
            NvmlError::LibloadingError(_) | NvmlError::LibraryNotFound => Refusal::NoLibrary,
            NvmlError::LibRmVersionMismatch => Refusal::Mismatch,
            error => Refusal::Other(error.to_string()),
        })?;
    let count = nvml
        .device_count()
        .map_err(|error| Refusal::Other(error.to_string()))?;
    Ok(NvmlFacts {
        driver: nvml.sys_driver_version().ok(),
        cuda: nvml
            .sys_cuda_driver_version()
            .ok()
            .and_then(|version| u32::try_from(version).ok())
            .map(|version| (version / 1000, version % 1000 / 10)),
        // NVML has no handle for a GPU that has failed on the PCIe bus. The findings from files still show it.
        cards: (0..count)
            .filter_map(|index| card(&nvml.device_by_index(index).ok()?))
            .collect(),
    })
}

fn card(device: &Device) -> Option<NvmlCard> {
    Some(NvmlCard {
        address: canonical(&device.pci_info().ok()?.bus_id)?,
        name: device.name().ok(),
        uuid: device.uuid().ok(),
        memory: device.memory_info().ok().map(|memory| memory.total),
        bar1: device
            .bar1_memory_info()
            .ok()
            .map(|bar1| (bar1.total, bar1.used)),
        link: link(device),
        is_persistent: device.is_in_persistent_mode().ok(),
        uncorrected: device
            .total_ecc_errors(MemoryError::Uncorrected, EccCounter::Volatile)
            .ok(),
        is_mig: device.mig_mode().ok().map(|mode| mode.current != 0),
        temperature: device.temperature(TemperatureSensor::Gpu).ok(),
        brakes: device.current_throttle_reasons().ok().map(brakes),
    })
}

fn link(device: &Device) -> Option<Link> {
    let lanes = |generation: u32, width: u32| {
        (generation > 0 && width > 0).then_some(Lanes { generation, width })
    };
    Some(Link {
        current: lanes(
            device.current_pcie_link_gen().ok()?,
            device.current_pcie_link_width().ok()?,
        )?,
        max: lanes(
            device.max_pcie_link_gen().ok()?,
            device.max_pcie_link_width().ok()?,
        )?,
    })
}

fn brakes(reasons: ThrottleReasons) -> Brakes {
    let power = reasons
        .intersects(ThrottleReasons::SW_POWER_CAP | ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN);
    let heat = reasons
        .intersects(ThrottleReasons::SW_THERMAL_SLOWDOWN | ThrottleReasons::HW_THERMAL_SLOWDOWN);
    Brakes {
        power,
        heat,
        unnamed: reasons.contains(ThrottleReasons::HW_SLOWDOWN) && !power && !heat,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;
    use std::process::Command;

    /// Source code of a library that behaves like the library of an old driver: it reports one GPU, and most functions
    /// are missing. If the macro `STATUS` is defined, initialisation fails with this status.
    const OLD: &str = r#"
        #include <string.h>
        typedef struct { char old[16]; unsigned domain, bus, device, id, sub; char address[32]; } pci;
        typedef struct { unsigned long long total, free, used; } bar1;
        int nvmlInit_v2(void) { return STATUS; }
        int nvmlShutdown(void) { return 0; }
        int nvmlSystemGetDriverVersion(char *text, unsigned n) { strncpy(text, "470.256.02", n); return 0; }
        int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 11040; return 0; }
        int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return 0; }
        int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **card) { *card = card; return i ? 15 : 0; }
        int nvmlDeviceGetPciInfo_v3(void *card, pci *p) {
            memset(p, 0, sizeof *p);
            strcpy(p->address, "00000000:3B:00.0");
            return 0;
        }
        int nvmlDeviceGetBAR1MemoryInfo(void *card, bar1 *b) { b->free = 5; b->total = 7; b->used = 2; return 0; }
        int nvmlDeviceGetPersistenceMode(void *card, int *mode) { *mode = 0; return 0; }
        int nvmlDeviceGetTotalEccErrors(void *card, int kind, int since, unsigned long long *count) {
            *count = 10 * kind + since;
            return 0;
        }
        int nvmlDeviceGetMigMode(void *card, unsigned *now, unsigned *then) { return 3; }
        int nvmlDeviceGetMaxPcieLinkGeneration(void *card, unsigned *n) { *n = 4; return 0; }
        int nvmlDeviceGetMaxPcieLinkWidth(void *card, unsigned *n) { *n = 16; return 0; }
        int nvmlDeviceGetCurrPcieLinkGeneration(void *card, unsigned *n) { *n = 1; return 0; }
        int nvmlDeviceGetCurrPcieLinkWidth(void *card, unsigned *n) { *n = 8; return 0; }
    "#;

    /// Builds a library whose initialisation returns `status`. Without a C compiler, prints the reason and returns
    /// `None`.
    fn library(status: u32) -> Option<(tempfile::TempDir, PathBuf)> {
        let dir = tempfile::tempdir().unwrap();
        let (source, library) = (dir.path().join("old.c"), dir.path().join("old.so"));
        std::fs::write(&source, OLD).unwrap();
        let done = Command::new("cc")
            .args(["-shared", "-fPIC", &format!("-DSTATUS={status}"), "-o"])
            .args([&library, &source])
            .status();
        match done {
            Ok(status) => assert!(status.success(), "cc: {status}"),
            Err(error) => {
                println!("skipped: no C compiler for a stand-in of the library: {error}");
                return None;
            }
        }
        Some((dir, library))
    }

    #[test]
    fn nvml_function_missing_is_unknown() {
        let Some((_dir, library)) = library(0) else {
            return;
        };
        let lanes = |generation, width| Lanes { generation, width };
        let card = NvmlCard {
            address: "0000:3b:00.0".to_owned(),
            bar1: Some((7, 2)),
            link: Some(Link {
                current: lanes(1, 8),
                max: lanes(4, 16),
            }),
            is_persistent: Some(false),
            uncorrected: Some(10),
            ..NvmlCard::default()
        };
        let expected = NvmlFacts {
            driver: Some("470.256.02".to_owned()),
            cuda: Some((11, 4)),
            cards: vec![card],
        };
        assert_eq!(read(library.as_os_str()), Ok(expected));
    }

    #[test]
    fn nvml_init_failure_is_reported_with_reason() {
        assert_eq!(
            read("libnvidia-ml-absent.so.1".as_ref()),
            Err(Refusal::NoLibrary)
        );
        // 18 and 4 are NVML_ERROR_LIB_RM_VERSION_MISMATCH and NVML_ERROR_NO_PERMISSION of nvml.h.
        if let Some((_dir, library)) = library(18) {
            assert_eq!(read(library.as_os_str()), Err(Refusal::Mismatch));
        }
        if let Some((_dir, library)) = library(4) {
            let refusal = read(library.as_os_str()).unwrap_err();
            assert!(
                matches!(&refusal, Refusal::Other(text) if text.contains("permission")),
                "{refusal:?}"
            );
        }
    }

    #[test]
    fn throttle_reasons_are_named() {
        let none = Brakes::default();
        for (reasons, expected) in [
            (ThrottleReasons::GPU_IDLE, none),
            (ThrottleReasons::APPLICATIONS_CLOCKS_SETTING, none),
            (
                ThrottleReasons::SW_POWER_CAP,
                Brakes {
                    power: true,
                    ..none
                },
            ),
            (
                ThrottleReasons::HW_SLOWDOWN | ThrottleReasons::HW_THERMAL_SLOWDOWN,
                Brakes { heat: true, ..none },
            ),
            (
                ThrottleReasons::HW_SLOWDOWN,
                Brakes {
                    unnamed: true,
                    ..none
                },
            ),
        ] {
            assert_eq!(brakes(reasons), expected, "{reasons:?}");
        }
    }
}
