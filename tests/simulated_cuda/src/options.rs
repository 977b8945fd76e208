//! Properties and faults of the simulated machine, from `DAQ_SIMULATED_CUDA`.

use crate::code::{self, Code};
use std::path::PathBuf;
use std::time::Duration;

/// The options of `DAQ_SIMULATED_CUDA`, separated by commas:
///
/// | option | meaning |
/// |---|---|
/// | `version=12040` | return value of `cuDriverGetVersion`; older drivers reject newer PTX; default 13000 |
/// | `gpus=2` | number of devices; default 1 |
/// | `memory=64MiB` | memory of each device, in `KiB`, `MiB` or `GiB`; default 256 MiB |
/// | `bar=FILE` | file with the devices' memory: the BAR of a PCI device in sysfs, so that real devices can access it |
/// | `no-init=100` | `cuInit` returns this code |
/// | `no-peer=0:1` | the devices 0 and 1 cannot access each other's memory; may be given several times |
/// | `nvlink=0` | devices access each other's memory over PCIe, without native atomic operations |
/// | `vmm=0` | no virtual memory management |
/// | `rdma=0` | no `GPUDirect` RDMA |
/// | `posix-fd=0` | memory cannot be shared as a file descriptor |
/// | `dma-buf=map` | dma-bufs can be exported and mapped; `none`: not supported; default: exported but not mapped |
/// | `ordering=0` | the attribute `GPU_DIRECT_RDMA_WRITES_ORDERING`; default 100 |
/// | `latency=50` | minimum duration of each copy in µs |
/// | `gbps=20` | maximum rate of a copy engine in 10⁹ bytes per second |
/// | `timeout=1` | seconds that a call waits for a persistent kernel before it ends the process; default 20 |
/// | `fail=SYMBOL@N:CODE` | the N-th call of a function returns the code; so do later calls if it breaks a context |
/// | `fail-async=copy@N:CODE`, `peer@N`, `launch@N`, `persistent@N` | the N-th executed operation breaks its context with the code |
/// | `hang=copy@N`, `peer@N`, `launch@N`, `persistent@N` | the N-th executed operation never ends |
/// | `corrupt=peer@N` | the N-th executed copy between two devices writes wrong bytes |
///
/// `copy` counts all copies, `peer` only the copies between two devices. `persistent` counts the frames that persistent
/// kernels start. Counts begin at 1; options from `fail` on may be given
/// several times.
#[expect(
    clippy::struct_excessive_bools,
    reason = "each field is an independent option"
)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Return value of `cuDriverGetVersion`: 1000 × major + 10 × minor.
    pub version: i32,
    /// Number of devices.
    pub gpus: i32,
    /// Memory of each device in bytes.
    pub memory: usize,
    /// The file that contains the memory of all devices; `None` uses memory of this process.
    pub bar: Option<PathBuf>,
    /// Return value of `cuInit`; 0 for success.
    pub no_init: Code,
    /// Pairs of devices that cannot access each other's memory.
    pub no_peer: Vec<(i32, i32)>,
    /// True if devices access each other's memory over NVLink.
    pub nvlink: bool,
    /// True if virtual memory management is supported.
    pub vmm: bool,
    /// True if `GPUDirect` RDMA is supported.
    pub rdma: bool,
    /// True if memory can be shared as a file descriptor.
    pub posix_fd: bool,
    /// Support for dma-bufs.
    pub dma_buf: DmaBuf,
    /// The attribute `GPU_DIRECT_RDMA_WRITES_ORDERING`.
    pub ordering: i32,
    /// Minimum duration of each copy.
    pub latency: Duration,
    /// Maximum rate of a copy engine in 10⁹ bytes per second; 0 means no limit.
    pub gbps: u32,
    /// Time that a call waits for a persistent kernel before it ends the process. A real driver would wait without a
    /// limit.
    pub timeout: Duration,
    /// Calls that fail.
    pub fail: Vec<Failure>,
    /// Executed operations that fail.
    pub fail_async: Vec<Failure>,
    /// Executed operations that never end; the code is ignored.
    pub hang: Vec<Failure>,
    /// Executed copies between two devices that write wrong bytes; the code is ignored.
    pub corrupt: Vec<Failure>,
}

/// Support for dma-bufs of device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DmaBuf {
    /// Not supported.
    None,
    /// Dma-bufs can be exported, but the CPU cannot map them.
    Export,
    /// Dma-bufs can be exported, and the CPU can map them.
    Map,
}

/// An injected fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The name of the function, or `copy`, `peer`, `launch` or `persistent`.
    pub what: String,
    /// Number of the call or operation, starting at 1.
    pub nth: u64,
    /// The error code.
    pub code: Code,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            version: 13_000,
            gpus: 1,
            memory: 256 << 20,
            bar: None,
            no_init: 0,
            no_peer: Vec::new(),
            nvlink: true,
            vmm: true,
            rdma: true,
            posix_fd: true,
            dma_buf: DmaBuf::Export,
            ordering: 100,
            latency: Duration::ZERO,
            gbps: 0,
            timeout: Duration::from_secs(20),
            fail: Vec::new(),
            fail_async: Vec::new(),
            hang: Vec::new(),
            corrupt: Vec::new(),
        }
    }
}

impl Options {
    /// Parses `DAQ_SIMULATED_CUDA`. The error names the invalid option.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut options = Self::default();
        for option in text.split(',').map(str::trim).filter(|o| !o.is_empty()) {
            options.set(option).ok_or_else(|| {
                format!("DAQ_SIMULATED_CUDA: option \"{option}\" is not understood")
            })?;
        }
        Ok(options)
    }

    fn set(&mut self, option: &str) -> Option<()> {
        let (name, value) = option.split_once('=')?;
        match name {
            "version" => self.version = value.parse().ok()?,
            "gpus" => self.gpus = value.parse().ok().filter(|gpus| (0..=16).contains(gpus))?,
            "memory" => self.memory = bytes(value)?,
            "bar" => self.bar = Some(PathBuf::from(Some(value).filter(|path| !path.is_empty())?)),
            "no-init" => self.no_init = value.parse().ok().filter(|code| is_error(*code))?,
            "no-peer" => self.no_peer.push(pair(value)?),
            "nvlink" => self.nvlink = flag(value)?,
            "vmm" => self.vmm = flag(value)?,
            "rdma" => self.rdma = flag(value)?,
            "posix-fd" => self.posix_fd = flag(value)?,
            "dma-buf" => {
                self.dma_buf = match value {
                    "none" => DmaBuf::None,
                    "map" => DmaBuf::Map,
                    _ => return None,
                }
            }
            "ordering" => self.ordering = value.parse().ok()?,
            "latency" => self.latency = Duration::from_micros(value.parse().ok()?),
            "gbps" => self.gbps = value.parse().ok()?,
            "timeout" => self.timeout = Duration::from_secs(value.parse().ok()?),
            "fail" => self.fail.push(failure(value, true)?),
            "fail-async" => self.fail_async.push(operation(failure(value, true)?)?),
            "hang" => self.hang.push(operation(failure(value, false)?)?),
            "corrupt" => self
                .corrupt
                .push(operation(failure(value, false)?).filter(|failure| failure.what == "peer")?),
            _ => return None,
        }
        Some(())
    }
}

fn flag(value: &str) -> Option<bool> {
    match value {
        "0" => Some(false),
        "1" => Some(true),
        _ => None,
    }
}

/// Parses `A:B`.
fn pair(value: &str) -> Option<(i32, i32)> {
    let (one, other) = value.split_once(':')?;
    Some((one.parse().ok()?, other.parse().ok()?))
}

fn bytes(value: &str) -> Option<usize> {
    let units = [("KiB", 10), ("MiB", 20), ("GiB", 30)];
    let (number, shift) = units
        .iter()
        .find_map(|(unit, shift)| Some((value.strip_suffix(unit)?, *shift)))?;
    number.trim().parse::<usize>().ok()?.checked_mul(1 << shift)
}

/// Parses `WHAT@N:CODE` or `WHAT@N`.
fn failure(value: &str, with_code: bool) -> Option<Failure> {
    let (what, rest) = value.split_once('@')?;
    let (nth, code) = if with_code {
        let (nth, code) = rest.split_once(':')?;
        (nth, code.parse().ok().filter(|code| is_error(*code))?)
    } else {
        (rest, 0)
    };
    Some(Failure {
        what: what.to_owned(),
        nth: nth.parse().ok().filter(|nth| *nth > 0)?,
        code,
    })
}

/// Returns true if the number is an error code. Codes that exist only in newer drivers are included.
const fn is_error(code: Code) -> bool {
    code != code::SUCCESS
}

fn operation(mut failure: Failure) -> Option<Failure> {
    failure.what.make_ascii_lowercase();
    let known = ["copy", "peer", "launch", "persistent"];
    known.contains(&failure.what.as_str()).then_some(failure)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_all_given_are_parsed() {
        let options = Options::parse(
            "version=12040, gpus=2,memory=64MiB,bar=/a:b/c,no-peer=0:1,nvlink=0,vmm=0,rdma=0,posix-fd=0,dma-buf=map,ordering=0,latency=50,gbps=20,\
             timeout=3,no-init=100,fail=cuMemAlloc_v2@3:2,fail-async=COPY@1:700,hang=copy@9,hang=PERSISTENT@2,\
             corrupt=peer@4",
        )
        .unwrap();
        let failure = |what: &str, nth, code| Failure {
            what: what.into(),
            nth,
            code,
        };
        assert_eq!(
            options,
            Options {
                version: 12_040,
                gpus: 2,
                memory: 64 << 20,
                bar: Some("/a:b/c".into()),
                no_init: 100,
                no_peer: vec![(0, 1)],
                nvlink: false,
                vmm: false,
                rdma: false,
                posix_fd: false,
                dma_buf: DmaBuf::Map,
                ordering: 0,
                latency: Duration::from_micros(50),
                gbps: 20,
                timeout: Duration::from_secs(3),
                fail: vec![failure("cuMemAlloc_v2", 3, 2)],
                fail_async: vec![failure("copy", 1, 700)],
                hang: vec![failure("copy", 9, 0), failure("persistent", 2, 0)],
                corrupt: vec![failure("peer", 4, 0)],
            }
        );
    }

    #[test]
    fn options_invalid_are_named_in_error() {
        for wrong in [
            "vmm",
            "vmm=2",
            "memory=64",
            "bar=",
            "dma-buf=1",
            "fail=cuInit@0:1",
            "fail=cuInit@1",
            "hang=fill@1",
            "corrupt=copy@1",
            "no-peer=0",
            "no-init=0",
            "fail=cuInit@1:0",
            "gpu=1",
        ] {
            let error = Options::parse(wrong).unwrap_err();
            assert!(error.contains(wrong), "{error}");
        }
    }
}
