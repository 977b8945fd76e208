//! The DMA engines of the source `fpga`, and shared functions.

mod entry;
mod external;
pub mod litepcie;
pub mod xdma;

pub use super::wait::{SlowWait, wait_until};
pub use entry::EngineEntry;
pub(super) use entry::{engine_keys, missing_engine, schema};

use super::device::{Device, DeviceError, GONE, Registers};
use super::keys::FpgaConfig;
use super::transports::{self, Open};
use daq_core::check::NamedFile;
use daq_core::config::Problem;
use daq_core::dma::{
    Caps, Completions, DmaDevice, Done, Engine, EngineError, EngineInfo, QuiesceTimeout, Slots,
};
use daq_core::frame::{Clock, Timestamp};
use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// The built-in engines.
pub const ENGINES: &[EngineEntry] = &[
    EngineEntry::of::<xdma::Xdma>(),
    EngineEntry::of::<litepcie::Writer>(),
    EngineEntry::of::<external::ExternalEngine>(),
];

/// An engine of the source `fpga`: its description, its keys, and how it is opened.
pub trait FpgaEngine: Engine + Sized + 'static {
    /// The description of the engine.
    const INFO: EngineInfo;

    /// The keys of the source that belong to this engine, in addition to [`FpgaConfig`] and
    /// [`SourceKeys`](daq_core::plan::SourceKeys), whose names they must not repeat. Their comments become the reference page.
    type Keys: DeserializeOwned + JsonSchema + Send + Sync + 'static;

    /// Checks the values of the keys.
    fn problems(config: &FpgaConfig, keys: &Self::Keys) -> Vec<Problem> {
        let _ = (config, keys);
        Vec::new()
    }

    /// Returns whether the engine supports backpressure with these keys.
    fn supports_backpressure(keys: &Self::Keys) -> bool {
        let _ = keys;
        Self::INFO.supports_backpressure
    }

    /// Returns the minimum number of slots with these keys. A free-running engine needs more slots than it may be
    /// overwriting.
    fn min_slots(keys: &Self::Keys) -> usize {
        let _ = keys;
        1
    }

    /// Returns whether the engine can write the number of finished transfers to a given address after each transfer.
    fn can_ring_doorbell(keys: &Self::Keys) -> bool {
        let _ = keys;
        false
    }

    /// Returns the files that the keys name.
    fn files(config: &FpgaConfig, keys: &Self::Keys) -> Vec<NamedFile> {
        let _ = (config, keys);
        Vec::new()
    }

    /// Returns whether the identity or the registers of the device show that it has this engine.
    fn recognises(device: &dyn Device) -> bool {
        let _ = device;
        false
    }

    /// Opens the device of the engine.
    fn open_device(
        config: &FpgaConfig,
        keys: &Self::Keys,
        open: &Open,
    ) -> Result<Arc<dyn Device>, DeviceError> {
        let _ = keys;
        transports::open(&config.device, open)
    }

    /// Opens the engine of a device without changing the state of the design.
    fn open(opening: &Opening<Self::Keys>) -> Result<Self, EngineError>;
}

/// The keys of an engine that has no keys of its own.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NoKeys {}

/// Context for opening an engine.
pub struct Opening<'a, K> {
    /// The device on which the engine is opened.
    pub device: Arc<dyn Device>,
    /// The keys of the source.
    pub config: &'a FpgaConfig,
    /// The keys of the engine.
    pub keys: &'a K,
    /// Base directory of relative paths.
    pub directory: &'a Path,
}

/// Suggests another of `engines` than `tried` that the device seems to have, as the end of a sentence.
pub fn suggest_engine(engines: &[EngineEntry], device: &dyn Device, tried: &str) -> Option<String> {
    let other = engines
        .iter()
        .find(|entry| entry.info.name != tried && (entry.recognises)(device))?;
    Some(format!(
        "; the device looks like `engine = \"{}\"`",
        other.info.name
    ))
}

/// Creates the error for a device that the engine cannot use.
pub fn unfit(device: &str, why: impl Into<String>) -> EngineError {
    EngineError::Unfit {
        device: device.to_owned(),
        why: why.into(),
    }
}

impl From<DeviceError> for EngineError {
    fn from(error: DeviceError) -> Self {
        unfit(&error.device, error.why)
    }
}

/// Returns the current host time, for completions.
pub fn now() -> Timestamp {
    let since = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    Timestamp {
        ns: u64::try_from(since.as_nanos()).unwrap_or(u64::MAX),
        clock: Clock::Host,
    }
}

/// Reads a register that never reads as [`GONE`] while the device is present. The error reports that the device was
/// removed.
pub fn read_present(
    device: &dyn DmaDevice,
    registers: &dyn Registers,
    offset: u64,
) -> Result<u32, EngineError> {
    match registers.read(offset) {
        GONE => Err(EngineError::Gone {
            device: device.name().to_owned(),
        }),
        value => Ok(value),
    }
}

/// Returns the error of an engine that did not stop within `waited`.
pub fn quiesce_timeout(engine: &dyn Engine, waited: Duration) -> QuiesceTimeout {
    QuiesceTimeout {
        engine: format!("{} of {}", engine.info().name, engine.device().name()),
        waited,
    }
}

/// Reports the transfers in `intact` that were not reported yet, each with `length` bytes, and counts the transfers before
/// them as overwritten. `reported` is the number of transfers that were reported or counted.
pub fn report_full_slots(
    reported: &mut u64,
    intact: Range<u64>,
    length: usize,
    done: &mut Completions,
) {
    if *reported < intact.start {
        done.skip(intact.start - *reported);
        *reported = intact.start;
    }
    if *reported < intact.end {
        let finished = Done {
            length,
            timestamp: now(),
            ..Done::default()
        };
        while *reported < intact.end && done.push(finished) {
            *reported += 1;
        }
    }
}

/// Returns the error of a free-running engine that may be overwriting all `count` slots of the ring, because it is up to
/// `ahead` slots ahead of its completions.
pub fn too_few_slots(device: &str, count: usize, ahead: u64) -> EngineError {
    let min = ahead + 1;
    unfit(
        device,
        format!(
            "the ring has {count} slots, all of which the engine may be overwriting: give the ring at least {min} `slots`"
        ),
    )
}

/// Number of empty polls between two checks of an idle engine.
pub(super) const POLLS_PER_CHECK: u32 = 1024;
/// Maximum time between two checks of an idle engine, and number of empty polls between two reads of the clock.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
const POLLS_PER_CLOCK_READ: u32 = 16;

/// Decides when an engine without finished transfers reads its registers, to detect errors, a stop, and a removed card.
#[derive(Clone, Copy, Debug)]
pub struct IdleCheck {
    /// Number of empty polls since the last transfer.
    polls: u32,
    checked_at: Instant,
}

impl IdleCheck {
    /// Begins to count empty polls.
    pub fn start() -> Self {
        Self {
            polls: 0,
            checked_at: Instant::now(),
        }
    }

    /// Records a finished transfer. The time of the last check stays, so that this function does not read the clock.
    pub const fn restart(&mut self) {
        self.polls = 0;
    }

    /// Makes the check due at the next empty poll.
    pub const fn demand(&mut self) {
        self.polls = POLLS_PER_CHECK - 1;
    }

    /// Counts an empty poll. Returns whether the engine must check its registers now.
    pub fn is_due(&mut self) -> bool {
        self.polls = self.polls.wrapping_add(1);
        let is_due = self.polls.is_multiple_of(POLLS_PER_CHECK)
            || self.polls.is_multiple_of(POLLS_PER_CLOCK_READ)
                && self.checked_at.elapsed() >= CHECK_INTERVAL;
        if is_due {
            self.checked_at = Instant::now();
        }
        is_due
    }
}

/// Extends the value of a wrapping device counter to 64 bits.
#[derive(Clone, Copy, Debug)]
pub struct Count {
    total: u64,
    modulus: u64,
}

impl Count {
    /// Creates a counter with the value 0 that wraps at `modulus`, which must be at least 1.
    pub const fn new(modulus: u64) -> Self {
        Self { total: 0, modulus }
    }

    /// Returns the last extended value.
    pub const fn total(&self) -> u64 {
        self.total
    }

    /// Returns the extended value of `raw`. The counter must have advanced by less than the modulus since the last
    /// value.
    pub const fn peek(&self, raw: u64) -> u64 {
        let known = self.total % self.modulus;
        let raw = raw % self.modulus;
        let grown = if raw >= known {
            raw - known
        } else {
            self.modulus - known + raw
        };
        self.total + grown
    }

    /// Updates the counter with the raw value `raw`, and returns the extended value.
    pub const fn advance(&mut self, raw: u64) -> u64 {
        self.total = self.peek(raw);
        self.total
    }
}

/// Checks that an engine with `caps` and addresses of `address_bits` bits can use `slots`.
pub fn check_slots(
    device: &str,
    slots: &Slots,
    caps: &Caps,
    address_bits: u32,
) -> Result<(), EngineError> {
    let Slots {
        addresses,
        bytes,
        first,
        doorbell,
        ..
    } = slots;
    let (count, alignment) = (addresses.len(), caps.alignment as u64);
    let refuse = |why: String| Err(unfit(device, why));
    if count == 0 || count > caps.max_slots {
        return refuse(format!(
            "the ring has {count} slots, but this engine supports 1 to {}: change `slots` of the ring",
            caps.max_slots
        ));
    }
    if *first >= count {
        return refuse(format!(
            "slot {first} cannot be the first slot, because the ring has {count} slots"
        ));
    }
    if *bytes == 0 || *bytes > caps.max_transfer || !(*bytes as u64).is_multiple_of(alignment) {
        return refuse(format!(
            "slots of {bytes} bytes are not supported; this engine needs multiples of {alignment} bytes, up to {} bytes: change \
             `slot` of the ring",
            caps.max_transfer
        ));
    }
    if doorbell.is_some() && caps.doorbell_bits == 0 {
        return refuse("this engine cannot write to a doorbell".to_owned());
    }
    let limit = u64::MAX >> (64 - address_bits.clamp(1, 64));
    for address in addresses {
        if !address.is_multiple_of(alignment) {
            return refuse(format!(
                "the slot address {address:#x} is not aligned; this engine needs multiples of {alignment} bytes"
            ));
        }
        if address
            .checked_add(*bytes as u64 - 1)
            .is_none_or(|last| last > limit)
        {
            return refuse(format!(
                "the slot at {address:#x} exceeds the engine's {address_bits}-bit addresses: reduce the size of the \
                 ring, or build the design with wider DMA addresses"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use daq_core::region::Placement;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn narrow_counter_is_extended(modulus in 1_u64..1 << 40, grown in proptest::collection::vec(0_u64..1 << 40, 0..50)) {
            let mut count = Count::new(modulus);
            let mut truth = 0;
            for by in grown {
                truth += by % modulus;
                prop_assert_eq!(count.peek(truth % modulus), truth);
                prop_assert_eq!(count.advance(truth % modulus), truth);
                prop_assert_eq!(count.total(), truth);
            }
        }
    }

    #[test]
    fn invalid_slots_are_rejected() {
        let caps = Caps {
            supports_backpressure: true,
            doorbell_bits: 0,
            alignment: 64,
            max_transfer: 4096,
            max_slots: 4,
            writes_past_length: false,
            packet_bytes: 0,
        };
        let good = Slots {
            addresses: vec![0xffff_f000, 0x40],
            bytes: 4096,
            first: 1,
            doorbell: None,
            placement: Placement::Host,
        };
        let check = |change: &dyn Fn(&mut Slots)| {
            let mut slots = good.clone();
            change(&mut slots);
            check_slots("card", &slots, &caps, 32).map_err(|error| error.to_string())
        };
        assert_eq!(check(&|_| ()), Ok(()));
        type Change<'a> = &'a dyn Fn(&mut Slots);
        let bad: [(Change, &str); 8] = [
            (&|slots| slots.addresses.clear(), "0 slots"),
            (&|slots| slots.addresses = vec![0; 5], "5 slots"),
            (&|slots| slots.first = 2, "cannot be the first"),
            (&|slots| slots.bytes = 0, "slots of 0 bytes"),
            (&|slots| slots.bytes = 4160, "up to 4096"),
            (&|slots| slots.bytes = 96, "multiples of 64"),
            (&|slots| slots.doorbell = Some(0), "doorbell"),
            (&|slots| slots.addresses[0] += 64, "32-bit addresses"),
        ];
        for (change, expected) in bad {
            let error = check(change).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
        let error = check(&|slots| slots.addresses[1] = 0x20).unwrap_err();
        assert!(error.contains("multiples of 64"), "{error}");
    }
}
