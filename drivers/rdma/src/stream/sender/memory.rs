//! The memory from which frames are sent: the ring, which is registered once, or copies of frames; and records that are
//! too large to be sent inline.

use super::rail::Source;
use super::{LinkError, Options, SenderError};
use crate::registration::UnregistrableError;
use crate::registration::set::RailRegions;
use crate::verbs::{Access, Nic, Transport};
use crate::wire::{Mode, Record};
use daq_core::region::{Placement, Region, SharedWords};
use daq_core::ring::Lease;
use std::sync::Arc;

/// Maximum size in bytes of the buffer for copies of frames that the NIC cannot read directly. The buffer always has
/// room for at least one frame.
const BOUNCE_BYTES: usize = 16 << 20;

/// The memory from which payloads are read.
pub(super) struct Memory {
    ring: Arc<Region>,
    /// The memory regions of the ring, or the reason why the ring is not registered.
    keys: Result<RailRegions, UnregistrableError>,
    /// The buffer for copies of frames that the NICs cannot read directly.
    bounce: Option<(SharedWords, RailRegions)>,
    /// Number of frames that fit into the buffer `bounce`.
    bounce_frames: usize,
    stride: usize,
    transport: Transport,
}

impl Memory {
    pub(super) fn new(
        nics: &[Arc<dyn Nic>],
        ring: &Arc<Region>,
        options: &Options,
        window: usize,
    ) -> Result<Self, SenderError> {
        let keys = RailRegions::register(nics, ring, Access::default());
        if let (Err(error), Placement::Cuda(_)) = (&keys, ring.placement()) {
            return Err(SenderError::Registering(error.clone()));
        }
        let stride = options.slot.next_multiple_of(64).max(64);
        let bounce_frames = (BOUNCE_BYTES / stride).clamp(1, window);
        let bounce = (options.copied || keys.is_err()).then(|| {
            let area = SharedWords::new(bounce_frames * stride)?;
            let keys = RailRegions::register(nics, area.region(), Access::default())?;
            Ok::<_, SenderError>((area, keys))
        });
        Ok(Self {
            ring: ring.clone(),
            keys,
            bounce: bounce.transpose()?,
            bounce_frames,
            stride,
            transport: nics[0].transport(),
        })
    }

    pub(super) fn path(&self) -> String {
        match &self.keys {
            Ok(_) if self.transport == Transport::Tcp => {
                format!(
                    "Linux sends frames from memory on {}",
                    self.ring.placement()
                )
            }
            Ok(keys) => format!(
                "the NIC reads memory on {}, registered as {}",
                self.ring.placement(),
                keys.of(0).method()
            ),
            Err(why) => format!("frames are copied to registered memory because {why}"),
        }
    }

    pub(super) const fn transport(&self) -> Transport {
        self.transport
    }

    /// Returns the maximum number of frames in flight.
    pub(super) fn window(&self) -> u64 {
        self.bounce
            .as_ref()
            .map_or(u64::MAX, |_| self.bounce_frames as u64)
    }

    /// Returns the source of the payload of frame `i` of `lease`, which has number `n` in the stream, for the NIC of
    /// `rail`. A payload of at most `inline` bytes that the CPU can read is sent inline.
    pub(super) fn source<'a>(
        &'a mut self,
        lease: &'a Lease<'_>,
        (i, n, rail): (usize, u64, usize),
        inline: usize,
    ) -> Result<Source<'a>, LinkError> {
        let bytes = lease.frame(i).bytes();
        let length = bytes.map_or_else(|| lease.length(i), <[u8]>::len);
        if length == 0 {
            return Ok(Source::Inline(&[]));
        }
        if let Some(bytes) = bytes.filter(|_| length <= inline) {
            return Ok(Source::Inline(bytes));
        }
        if let (Ok(keys), Some(slots)) = (&self.keys, lease.slice()) {
            let offset = slots.address(i) - self.ring.address().as_ptr() as u64;
            let offset = usize::try_from(offset).unwrap_or(usize::MAX);
            return Ok(Source::Memory(keys.of(rail), offset, length));
        }
        let (Some((area, keys)), Some(bytes)) = (&mut self.bounce, bytes) else {
            return Err(LinkError::Reason(
                "the NIC cannot read the memory of the frames, and no copy buffer is allocated; this is a defect of the plan"
                    .to_owned(),
            ));
        };
        let at = usize::try_from(n % self.bounce_frames as u64).unwrap_or(0) * self.stride;
        area.write(at, bytes);
        Ok(Source::Memory(keys.of(rail), at, length))
    }
}

/// The memory from which records are read, and the buffer in which inline messages are assembled.
pub(super) struct Records {
    /// Records that are too large to be sent inline, one for each frame in flight.
    area: Option<(SharedWords, RailRegions)>,
    window: usize,
    inline: usize,
    /// Maximum size of a record in bytes.
    stride: usize,
    buffer: Vec<u8>,
}

impl Records {
    /// Creates a buffer for records of frames with up to `packets_per_frame` packets and `kept` fields.
    pub(super) fn new(
        nics: &[Arc<dyn Nic>],
        options: &Options,
        window: usize,
        (packets_per_frame, kept): (u32, u8),
    ) -> Result<Self, String> {
        let (stride, inline) = (
            Record::bytes(packets_per_frame, kept),
            options.inline as usize,
        );
        // The record of a message is sent inline only together with its payload.
        let is_needed = options.mode == Mode::Send || stride > inline;
        let area = is_needed.then(|| {
            let area = SharedWords::new(window * stride).map_err(|error| error.to_string())?;
            let keys = RailRegions::register(nics, area.region(), Access::default())
                .map_err(|error| error.to_string())?;
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

    /// Stores a record. `words` are its bitmap and the values of its kept fields. `padded` is the size of the record in
    /// bytes if the receiver expects a fixed size. If record and payload together can be sent inline, the payload is
    /// stored after the record, and the second result contains both.
    pub(super) fn store_record<'a>(
        &'a mut self,
        record: &Record,
        words: (&[u64], &[u64]),
        padded: Option<usize>,
        payload: Option<&[u8]>,
        rail: usize,
    ) -> (Source<'a>, Option<&'a [u8]>) {
        let (present, kept) = words;
        let used = Record::HEAD + (present.len() + kept.len()) * 8;
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
        record.encode(present.iter().chain(kept).copied(), &mut buffer[..used]);
        if let Some(payload) = payload.filter(|payload| bytes + payload.len() <= *inline) {
            buffer[bytes..bytes + payload.len()].copy_from_slice(payload);
            let whole = &buffer[..bytes + payload.len()];
            return (Source::Inline(&whole[..bytes]), Some(whole));
        }
        match area {
            Some((area, keys)) if bytes > *inline || padded.is_some() => {
                let at = usize::try_from(record.number % *window as u64).unwrap_or(0) * *stride;
                area.write(at, &buffer[..bytes]);
                (Source::Memory(keys.of(rail), at, bytes), None)
            }
            _ => (Source::Inline(&buffer[..bytes]), None),
        }
    }
}
