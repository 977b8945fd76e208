//! A device for tests that define what its registers do.

use super::device::{Device, DeviceError, GONE, Identity, Interrupt, Registers};
use super::engines::{NoKeys, Opening};
use super::transports::emulated::EmulatedDeviceEntry;
use super::{ENGINES, EngineEntry, FpgaEngine, FpgaSource};
use daq_core::dma::{
    ArmError, CompletionOrder, Completions, DmaDevice, DmaError, Engine, EngineError, EngineInfo,
    QuiesceTimeout, SlotLimits, Slots,
};
use daq_core::entry::Registry;
use daq_core::region::Region;
use rustix::event::{EventfdFlags, eventfd};
use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The built-in engines, and emulated devices for tests of the configuration: their names are valid, but `open` always
/// returns an error.
pub(super) fn registry() -> Registry {
    const DEVICES: &[EmulatedDeviceEntry] = &[named("xdma"), named("litepcie")];
    Registry::default().with_all(ENGINES).with_all(DEVICES)
}

const fn named(name: &'static str) -> EmulatedDeviceEntry {
    EmulatedDeviceEntry {
        name,
        summary: "a name",
        faults: &[],
        check_sequence: |_, _| Ok(()),
        build: |_| Err("not part of this test".to_owned()),
        open: |_| Err(DeviceError::new("emulated", "not part of this test")),
    }
}

/// Called for each register write. Returns whether the value is stored.
pub(super) type OnWrite = fn(&mut BTreeMap<u64, u32>, u64, u32) -> bool;

pub(super) struct MockRegisters {
    bytes: u64,
    on_write: OnWrite,
    values: Mutex<BTreeMap<u64, u32>>,
    writes: Mutex<Vec<(u64, u32)>>,
    /// A register with a fixed value.
    held: Mutex<Option<(u64, u32)>>,
}

impl MockRegisters {
    /// Sets the value of a register.
    pub(super) fn set(&self, offset: u64, value: u32) {
        self.values.lock().unwrap().insert(offset, value);
    }

    /// Fixes the value of a register, so that writes have no effect.
    pub(super) fn hold(&self, offset: u64, value: u32) {
        *self.held.lock().unwrap() = Some((offset, value));
    }

    pub(super) fn get(&self, offset: u64) -> u32 {
        if let Some((at, value)) = *self.held.lock().unwrap()
            && at == offset
        {
            return value;
        }
        *self.values.lock().unwrap().get(&offset).unwrap_or(&0)
    }

    /// Returns the register writes since the last call, in order.
    pub(super) fn writes(&self) -> Vec<(u64, u32)> {
        std::mem::take(&mut self.writes.lock().unwrap())
    }

    /// Makes every register read as all ones.
    pub(super) fn remove(&self) {
        self.set(u64::MAX, GONE);
    }
}

impl Registers for MockRegisters {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn read(&self, offset: u64) -> u32 {
        assert!(offset.is_multiple_of(4) && offset + 4 <= self.bytes);
        if self.get(u64::MAX) == GONE {
            return GONE;
        }
        self.get(offset)
    }

    fn write(&self, offset: u64, value: u32) {
        assert!(offset.is_multiple_of(4) && offset + 4 <= self.bytes);
        self.writes.lock().unwrap().push((offset, value));
        let mut values = self.values.lock().unwrap();
        if (self.on_write)(&mut values, offset, value) {
            values.insert(offset, value);
        }
    }
}

/// A device with one BAR.
pub(super) struct Mock {
    pub registers: Arc<MockRegisters>,
    identity: Identity,
    next: AtomicU64,
    pub mapped: AtomicUsize,
    pub disable_and_reset: AtomicUsize,
    /// The reason why the mappings of the device were revoked, or `None` if they are valid.
    pub lost: Mutex<Option<&'static str>>,
    /// The eventfds of the device's interrupts.
    pub events: Mutex<Vec<OwnedFd>>,
}

impl Mock {
    pub(super) fn new(bytes: u64, identity: Identity, on_write: OnWrite) -> Arc<Self> {
        Arc::new(Self {
            registers: Arc::new(MockRegisters {
                bytes,
                on_write,
                values: Mutex::default(),
                writes: Mutex::default(),
                held: Mutex::default(),
            }),
            identity,
            next: AtomicU64::new(0x1000_0000),
            mapped: AtomicUsize::new(0),
            disable_and_reset: AtomicUsize::new(0),
            lost: Mutex::default(),
            events: Mutex::default(),
        })
    }

    /// Opens an engine on this device with additional `keys`.
    pub(super) fn open<E: FpgaEngine>(
        self: &Arc<Self>,
        keys: &str,
        directory: &Path,
    ) -> Result<Driven<E>, EngineError> {
        let engine = source::<E>(keys).open(self.clone(), directory)?;
        Ok(Driven::new(Box::new(engine)))
    }

    /// Raises an interrupt.
    pub(super) fn interrupt(&self, vector: usize) {
        rustix::io::write(&self.events.lock().unwrap()[vector], &1_u64.to_ne_bytes()).unwrap();
    }
}

/// An engine whose methods are called in the right state, as [`Running`](daq_core::dma::Running) does, but with slots
/// of arbitrary addresses.
pub(super) struct Driven<E: Engine + ?Sized> {
    pub engine: Box<E>,
    is_running: bool,
}

impl<E: Engine + ?Sized> Driven<E> {
    pub(super) const fn new(engine: Box<E>) -> Self {
        Self {
            engine,
            is_running: false,
        }
    }

    pub(super) fn arm(&mut self, slots: &Slots) -> Result<(), EngineError> {
        // SAFETY: the mock device writes nothing.
        let armed = unsafe { self.engine.arm(slots) };
        self.is_running = !matches!(armed, Err(ArmError::Stopped(_)));
        armed.map_err(ArmError::into_reason)
    }

    pub(super) fn poll(&mut self, done: &mut Completions) -> Result<(), EngineError> {
        if self.is_running {
            self.engine.poll(done)
        } else {
            self.engine.poll_stopped(done)
        }
    }

    pub(super) fn overwritten(&mut self) -> Result<u64, EngineError> {
        if self.is_running {
            self.engine.overwritten()
        } else {
            self.engine.overwritten_stopped()
        }
    }

    pub(super) fn quiesce(&mut self, timeout: Duration) -> Result<(), QuiesceTimeout> {
        if std::mem::take(&mut self.is_running) {
            self.engine.quiesce(timeout)
        } else {
            Ok(())
        }
    }
}

impl<E: Engine + ?Sized> Deref for Driven<E> {
    type Target = E;

    fn deref(&self) -> &E {
        &self.engine
    }
}

impl<E: Engine + ?Sized> DerefMut for Driven<E> {
    fn deref_mut(&mut self) -> &mut E {
        &mut self.engine
    }
}

/// An engine that accesses no register and fills no slot.
pub(super) struct Idle(Arc<dyn DmaDevice>);

impl FpgaEngine for Idle {
    const INFO: EngineInfo = EngineInfo {
        name: "idle",
        summary: "no transfers",
        limits: SlotLimits {
            alignment: 64,
            max_slot: 1 << 20,
            max_slots: 16,
            preferred: 4096,
        },
        faults: &[],
        supports_backpressure: true,
        order: CompletionOrder::AfterPayload,
    };

    type Keys = NoKeys;

    fn open(opening: &Opening<NoKeys>) -> Result<Self, EngineError> {
        Ok(Self(opening.device.clone().as_dma()))
    }
}

// SAFETY: no write ever starts.
unsafe impl Engine for Idle {
    fn info(&self) -> &'static EngineInfo {
        &Self::INFO
    }

    fn device(&self) -> &Arc<dyn DmaDevice> {
        &self.0
    }

    unsafe fn arm(&mut self, _: &Slots) -> Result<(), ArmError> {
        Ok(())
    }

    fn credit(&mut self, _: u32) {}

    fn poll(&mut self, _: &mut Completions) -> Result<(), EngineError> {
        Ok(())
    }

    fn poll_stopped(&mut self, _: &mut Completions) -> Result<(), EngineError> {
        Ok(())
    }

    fn quiesce(&mut self, _: Duration) -> Result<(), QuiesceTimeout> {
        Ok(())
    }
}

/// A source with an engine.
pub(super) fn source<E: FpgaEngine>(keys: &str) -> FpgaSource<E> {
    let text = format!(
        "device = \"3b:00.0\"\nengine = \"{}\"\n{keys}",
        E::INFO.name
    );
    FpgaSource::from_text(&text, &registry()).unwrap()
}

/// Returns the keys of `text` that have problems.
pub(super) fn problem_keys<E: FpgaEngine>(text: &str) -> Vec<String> {
    let mut common: toml::Table = toml::from_str(text).unwrap();
    let (mut own, mut foreign) = (toml::Table::new(), Vec::new());
    let registry = registry();
    let known = EngineEntry::of::<E>().keys();
    for key in super::engines::engine_keys(ENGINES) {
        match common.remove(&key) {
            Some(value) if known.contains(&key) => _ = own.insert(key, value),
            Some(_) => foreign.push(key),
            None => {}
        }
    }
    let (config, keys) = (common.try_into().unwrap(), own.try_into().unwrap());
    let foreign: Vec<&str> = foreign.iter().map(String::as_str).collect();
    let problems = FpgaSource::<E>::problems(&config, Some(&keys), &foreign, &registry);
    let keys = problems.into_iter().filter_map(|problem| problem.key);
    keys.collect()
}

impl DmaDevice for Mock {
    fn name(&self) -> &'static str {
        "mock"
    }

    fn map(&self, region: &Arc<Region>) -> Result<u64, DmaError> {
        self.mapped.fetch_add(1, Ordering::SeqCst);
        let bytes = region.bytes() as u64;
        Ok(self.next.fetch_add(bytes + 0x1000, Ordering::SeqCst))
    }

    fn unmap(&self, _: u64, _: usize) -> Result<(), DmaError> {
        self.mapped.fetch_sub(1, Ordering::SeqCst);
        Ok(())
    }

    fn disable_and_reset(&self) -> Result<(), DmaError> {
        self.disable_and_reset.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

impl Device for Mock {
    fn identity(&self) -> Identity {
        self.identity
    }

    fn registers(&self, bar: usize) -> Result<Arc<dyn Registers>, DeviceError> {
        if bar == 0 {
            Ok(self.registers.clone())
        } else {
            Err(DeviceError::new(
                "mock",
                format!("the device has no BAR {bar}"),
            ))
        }
    }

    fn interrupts(&self, count: usize) -> Result<Vec<Interrupt>, DeviceError> {
        let mut events = self.events.lock().unwrap();
        Ok((0..count)
            .map(|_| {
                let event = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap();
                events.push(event.try_clone().unwrap());
                Interrupt::new(event)
            })
            .collect())
    }

    fn reset(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn check(&self) -> Result<(), DeviceError> {
        self.lost
            .lock()
            .unwrap()
            .map_or(Ok(()), |why| Err(DeviceError::new("mock", why)))
    }

    fn as_dma(self: Arc<Self>) -> Arc<dyn DmaDevice> {
        self
    }
}
