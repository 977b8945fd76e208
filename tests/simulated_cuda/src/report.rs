//! Counters of driver calls, and the report file to which they are written.

use crate::code::{Code, NOT_READY, SUCCESS};
use crate::{faults, sys};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex, PoisonError};

/// Direction of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From host memory to device memory.
    HostToDevice,
    /// From device memory to host memory.
    DeviceToHost,
    /// Within the memory of a device.
    DeviceToDevice,
    /// From host memory to host memory.
    HostToHost,
    /// From the memory of a device to the memory of another device.
    Peer,
}

/// Resources that the program must free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Alive {
    /// Allocations of device memory, mapped or not.
    pub memory: usize,
    /// Bytes of device memory allocations.
    pub memory_bytes: usize,
    /// Reservations of device addresses.
    pub reservations: usize,
    /// Registrations of host memory.
    pub host: usize,
    /// Streams.
    pub streams: usize,
    /// Events.
    pub events: usize,
    /// Modules.
    pub modules: usize,
    /// Graphs and executable graphs.
    pub graphs: usize,
    /// Contexts retained but not released.
    pub contexts: usize,
}

/// Counters.
#[derive(Debug, Default)]
pub struct Counts {
    copied: [AtomicU64; 5],
    /// Operations that fill memory.
    pub fills: AtomicU64,
    /// Calls that waited for a persistent kernel.
    pub blocked: AtomicU64,
    unregistered: [AtomicU64; 2],
    calls: Mutex<BTreeMap<&'static str, u64>>,
    errors: Mutex<BTreeMap<Code, u64>>,
}

/// Counters of this process.
pub static COUNTS: LazyLock<Counts> = LazyLock::new(Counts::default);
static FILE: LazyLock<Option<PathBuf>> =
    LazyLock::new(|| std::env::var_os("DAQ_SIMULATED_CUDA_REPORT").map(PathBuf::from));

impl Counts {
    /// Counts a call. Returns its number among the calls of the same function, starting at 1.
    pub fn called(&self, symbol: &'static str) -> u64 {
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        let count = calls.entry(symbol).or_default();
        *count += 1;
        *count
    }

    /// Returns true if any call was made.
    pub fn any(&self) -> bool {
        let calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        !calls.is_empty()
    }

    /// Counts the return code of a call.
    pub fn returned(&self, code: Code) {
        if code != SUCCESS && code != NOT_READY {
            let mut errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
            *errors.entry(code).or_default() += 1;
        }
    }

    /// Counts bytes that were copied.
    pub fn copied(&self, direction: Direction, bytes: u64) {
        self.copied[direction as usize].fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts a copy from or to host memory that is not registered.
    pub fn unregistered(&self, bytes: u64) {
        self.unregistered[0].fetch_add(1, Ordering::Relaxed);
        self.unregistered[1].fetch_add(bytes, Ordering::Relaxed);
    }

    fn report(&self) -> Value {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        let errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        let calls: Map<_, _> = calls
            .iter()
            .map(|(name, n)| ((*name).to_owned(), json!(n)))
            .collect();
        let errors: Map<_, _> = errors
            .iter()
            .map(|(code, n)| (code.to_string(), json!(n)))
            .collect();
        json!({
            "calls": calls,
            "errors": errors,
            "copied": {
                "host_to_device": load(&self.copied[Direction::HostToDevice as usize]),
                "device_to_host": load(&self.copied[Direction::DeviceToHost as usize]),
                "device_to_device": load(&self.copied[Direction::DeviceToDevice as usize]),
                "peer": load(&self.copied[Direction::Peer as usize]),
                "host_to_host": load(&self.copied[Direction::HostToHost as usize]),
            },
            "copies": faults::COPIES.count(),
            "fills": load(&self.fills),
            "launches": faults::LAUNCHES.count(),
            "persistent": faults::PERSISTENT.count(),
            "blocked": load(&self.blocked),
            "unregistered": {"copies": load(&self.unregistered[0]), "bytes": load(&self.unregistered[1])},
            "leaks": sys::alive().json(),
        })
    }
}

impl Alive {
    fn json(self) -> Value {
        json!({
            "memory": self.memory,
            "memory_bytes": self.memory_bytes,
            "reservations": self.reservations,
            "host": self.host,
            "streams": self.streams,
            "events": self.events,
            "modules": self.modules,
            "graphs": self.graphs,
            "contexts": self.contexts,
        })
    }
}

/// Writes the report atomically to the file named by `DAQ_SIMULATED_CUDA_REPORT`, if set.
pub fn write() {
    static WRITING: Mutex<()> = Mutex::new(());
    let Some(path) = &*FILE else { return };
    let _writing = WRITING.lock().unwrap_or_else(PoisonError::into_inner);
    let mut beside = path.clone().into_os_string();
    beside.push(format!(".{}", std::process::id()));
    let written = std::fs::write(&beside, COUNTS.report().to_string())
        .and_then(|()| std::fs::rename(&beside, path));
    if let Err(error) = written {
        eprintln!("DAQ_SIMULATED_CUDA_REPORT: {}: {error}", path.display());
    }
}
