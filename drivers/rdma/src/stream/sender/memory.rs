//! The memory that is sent from: the ring's, registered once; else copies; records that do not go inline.

use super::rail::{PayloadSource, RecordSource};
use super::{LinkError, Options, SenderError};
use crate::registration::{self, PeerFacts, Registered, UnregistrableError};
use crate::stream::sys::shared_words::SharedWords;
use crate::stream::wire::{Mode, Record};
use crate::verbs::{Access, MemoryRegion, Nic};
use daq_core::region::{Placement, Region};
use daq_core::ring::Lease;
use std::sync::Arc;

/// Most bytes that frames are copied to which cannot be read where they lie, one frame at least.
const BOUNCE_BYTES: usize = 16 << 20;

/// The keys of one region, one a rail: a card that stands there several times has one.
type RailRegions = Vec<Arc<MemoryRegion>>;

/// Registers `region` with every card, for reading.
fn register_on_each(
    nics: &[Arc<dyn Nic>],
    region: &Arc<Region>,
) -> Result<RailRegions, UnregistrableError> {
    let facts = PeerFacts::of(region.placement());
    let mut keys = RailRegions::with_capacity(nics.len());
    for (i, nic) in nics.iter().enumerate() {
        let known = nics[..i].iter().position(|other| Arc::ptr_eq(other, nic));
        if let Some(known) = known {
            keys.push(keys[known].clone());
            continue;
        }
        let Registered {
            region: memory,
            refused,
        } = registration::register_region(&**nic, region, Access::default(), &facts)?;
        for refusal in refused {
            tracing::info!("{}: {refusal}", nic.name());
        }
        keys.push(Arc::new(memory));
    }
    Ok(keys)
}

/// Where payloads are read.
pub(super) struct Memory {
    ring: Arc<Region>,
    /// Why the ring is not registered, where it is not.
    keys: Result<RailRegions, UnregistrableError>,
    /// Where frames are copied to that no card reads where they lie.
    bounce: Option<(SharedWords, RailRegions)>,
    /// Frames that fit into it.
    places: usize,
    stride: usize,
}

impl Memory {
    pub(super) fn new(
        nics: &[Arc<dyn Nic>],
        ring: &Arc<Region>,
        options: &Options,
        window: usize,
    ) -> Result<Self, SenderError> {
        let keys = register_on_each(nics, ring);
        if let (Err(error), Placement::Cuda(_)) = (&keys, ring.placement()) {
            return Err(SenderError::Registering(error.clone()));
        }
        let stride = options.slot.next_multiple_of(64).max(64);
        let places = (BOUNCE_BYTES / stride).clamp(1, window);
        let bounce = (options.copied || keys.is_err()).then(|| {
            let area = SharedWords::new(places * stride)?;
            let keys = register_on_each(nics, area.region())?;
            Ok::<_, SenderError>((area, keys))
        });
        Ok(Self {
            ring: ring.clone(),
            keys,
            bounce: bounce.transpose()?,
            places,
            stride,
        })
    }

    pub(super) fn path(&self) -> String {
        match &self.keys {
            Ok(keys) => format!(
                "the NIC reads {} by {}",
                self.ring.placement(),
                keys[0].method()
            ),
            Err(why) => format!("frames are copied to registered memory because {why}"),
        }
    }

    /// Most frames that may be under way.
    pub(super) fn window(&self) -> u64 {
        self.bounce
            .as_ref()
            .map_or(u64::MAX, |_| self.places as u64)
    }

    /// Where frame `i` of `lease`, of number `n`, is read by the card of `rail`; in the posted work itself, where the CPU
    /// reads it and it has at most `inline` bytes.
    pub(super) fn source<'a>(
        &'a mut self,
        lease: &'a Lease<'_>,
        (i, n, rail): (usize, u64, usize),
        inline: usize,
    ) -> Result<PayloadSource<'a>, LinkError> {
        let bytes = lease.frame(i).bytes();
        let length = bytes.map_or_else(|| lease.length(i), <[u8]>::len);
        if length == 0 {
            return Ok(PayloadSource::Inline(&[]));
        }
        if let Some(bytes) = bytes.filter(|_| length <= inline) {
            return Ok(PayloadSource::Inline(bytes));
        }
        if let (Ok(keys), Some(slots)) = (&self.keys, lease.slice()) {
            let offset = slots.address(i) - self.ring.address().as_ptr() as u64;
            let offset = usize::try_from(offset).unwrap_or(usize::MAX);
            return Ok(PayloadSource::Memory(&keys[rail], offset, length));
        }
        let (Some((area, keys)), Some(bytes)) = (&mut self.bounce, bytes) else {
            return Err(LinkError::Reason(
                "the NIC cannot read the memory of the frames, and no copy buffer is allocated; this is a defect of the plan"
                    .to_owned(),
            ));
        };
        let at = usize::try_from(n % self.places as u64).unwrap_or(0) * self.stride;
        area.write(at, bytes);
        Ok(PayloadSource::Memory(&keys[rail], at, length))
    }
}

/// Where records are read, and messages that go inline are put together.
pub(super) struct Records {
    /// Where records lie that do not go inline, one for each frame under way.
    area: Option<(SharedWords, RailRegions)>,
    window: usize,
    inline: usize,
    /// Most bytes of a record.
    stride: usize,
    buffer: Vec<u8>,
}

impl Records {
    /// For records of frames with up to `places` places.
    pub(super) fn new(
        nics: &[Arc<dyn Nic>],
        options: &Options,
        window: usize,
        places: u32,
    ) -> Result<Self, String> {
        let (stride, inline) = (Record::bytes(places), options.inline as usize);
        // A message's record goes inline only together with its payload.
        let is_needed = options.mode == Mode::Send || stride > inline;
        let area = is_needed.then(|| {
            let area = SharedWords::new(window * stride).map_err(|error| error.to_string())?;
            let keys = register_on_each(nics, area.region()).map_err(|error| error.to_string())?;
            Ok::<_, String>((area, keys))
        });
        Ok(Self {
            area: area.transpose()?,
            window,
            inline,
            stride,
            buffer: vec![0; stride + inline],
        })
    }

    /// Puts a record down, of exactly `bytes` bytes where the receiver's next piece begins behind it, and the payload
    /// behind it where both go inline: then they are the second part of the answer.
    pub(super) fn store_record<'a>(
        &'a mut self,
        record: &Record,
        words: &[u64],
        padded: Option<usize>,
        payload: Option<&[u8]>,
        rail: usize,
    ) -> (RecordSource<'a>, Option<&'a [u8]>) {
        let used = Record::HEAD + words.len() * 8;
        let bytes = padded.unwrap_or(used);
        let Self {
            area,
            window,
            inline,
            stride,
            buffer,
            ..
        } = self;
        buffer[used.min(bytes)..bytes].fill(0);
        record.encode(words.iter().copied(), &mut buffer[..used]);
        if let Some(payload) = payload.filter(|payload| bytes + payload.len() <= *inline) {
            buffer[bytes..bytes + payload.len()].copy_from_slice(payload);
            let whole = &buffer[..bytes + payload.len()];
            return (RecordSource::Inline(&whole[..bytes]), Some(whole));
        }
        match area {
            Some((area, keys)) if bytes > *inline || padded.is_some() => {
                let at = usize::try_from(record.number % *window as u64).unwrap_or(0) * *stride;
                area.write(at, &buffer[..bytes]);
                (RecordSource::Memory(&keys[rail], at, bytes), None)
            }
            _ => (RecordSource::Inline(&buffer[..bytes]), None),
        }
    }
}
