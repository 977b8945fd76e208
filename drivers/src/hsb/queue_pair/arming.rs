//! Registers the ring with the NIC, connects the queue pair and arms the sensor. Disarming reverses these steps.

use super::super::pages::{ALIGNMENT, Pages};
use super::{MAX_PAGES, MIN_PAGES, MIN_RECEIVES, QueuePair, Ring, tracker};
use daq_core::dma::{EngineError, Slots};
use daq_rdma::engine::{ReceiveQueue, RegisteredSlots};
use daq_rdma::verbs::{Endpoint, QueuePairOptions, Service, VerbsError};
use std::net::IpAddr;

impl QueuePair {
    /// Checks the ring, registers it with the NIC and arms the sensor.
    pub(super) fn begin(&mut self, slots: &Slots) -> Result<(), EngineError> {
        let min = Pages::page_bytes(self.pages.frame);
        let count = slots.addresses.len();
        if !(MIN_PAGES..=MAX_PAGES).contains(&count) {
            return Err(self.unfit(format!(
                "a sensor cannot use a ring of {count} slots: set {MIN_PAGES} to {MAX_PAGES} `slots`"
            )));
        }
        if slots.bytes < min {
            return Err(self.unfit(format!(
                "slots of {} bytes are too small for a frame and its metadata: set `slot = \"{min} B\"` in the ring's \
                 section",
                slots.bytes
            )));
        }
        let stride = slots.addresses[1].wrapping_sub(slots.addresses[0]);
        if !stride.is_multiple_of(ALIGNMENT as u64) {
            return Err(self.unfit(format!(
                "slots are {stride} bytes apart, but a sensor needs a multiple of {ALIGNMENT} bytes"
            )));
        }
        let slots =
            RegisteredSlots::find(&self.registrations, slots).map_err(|why| self.unfit(why))?;
        let keys = self.registrations.acquire(slots.memory)?;
        let key = keys.of(0);
        let pages = Pages {
            base: key.address() + slots.offset as u64,
            stride: slots.stride as u64,
            count: slots.count,
            rkey: key.rkey(),
            ..self.pages
        };
        if !pages.base.is_multiple_of(ALIGNMENT as u64) {
            let base = pages.base;
            return Err(self.unfit(format!(
                "pages start at {base:#x}, but a sensor needs a multiple of {ALIGNMENT} bytes"
            )));
        }
        let ring = Ring {
            region: key.region().clone(),
            slots,
        };
        if ring.region.cpu_address().is_none() {
            return Err(self.unfit(
                "the CPU cannot access the ring's memory, so missing packets cannot be detected: set path = \"staged\"",
            ));
        }
        let limits = self.nic.limits();
        let max = limits.max_work.min(limits.max_completions);
        self.receives = MIN_RECEIVES.max(2 * pages.count).min(max);
        if self.receives < 2 * pages.count {
            return Err(self.unfit(format!(
                "{count} slots exceed the NIC's limit: the NIC's queues hold at most {max} completions, and each slot \
                 needs two; set at most {} `slots`",
                max / 2
            )));
        }
        self.keys = Some(keys);
        self.reset(ring);
        self.connect(pages)
    }

    /// Resets the state for a new arming.
    pub(super) fn reset(&mut self, ring: Ring) {
        let pages = usize::try_from(ring.pages()).unwrap_or(0);
        self.tracker = tracker(&self.pages, pages);
        // Frames that were not reported are discarded: their pages now belong to the new arming.
        let gone = std::mem::take(&mut self.overrun) + self.ended.len() as u64;
        let missing = self.ended.iter().map(|ended| ended.missing).sum::<u64>();
        self.discarded.0 += gone;
        self.discarded.1 += missing + std::mem::take(&mut self.carried_over).1;
        (self.newest, self.last, self.old_ends) = (None, None, None);
        self.epoch += 1;
        self.ended.clear();
        self.ended.reserve(pages);
        self.marked = vec![None; pages];
        self.ends = vec![None; pages];
        (self.reported, self.ready, self.failure) = (0, 0, None);
        (self.idle, self.floor, self.has_stopped) = (0, 0, false);
        self.seen.begin();
        for transfer in 0..ring.pages() {
            self.marked[ring.page(transfer)] = self.mark(&ring, transfer).then_some(transfer);
        }
        self.ring = Some(ring);
    }

    /// Connects a queue pair and arms the sensor, once its device is known.
    pub(super) fn connect(&mut self, mut pages: Pages) -> Result<(), EngineError> {
        let Some((device, mut parameters)) = self.supervisor.sensor() else {
            self.deferred = Some(pages);
            self.supervisor.start();
            return Ok(());
        };
        let IpAddr::V4(address) = device.ip() else {
            return Err(self.unfit(format!("the device {device} has no IPv4 address")));
        };
        let options = QueuePairOptions {
            service: Service::Uc,
            sends: 1,
            receives: self.receives,
            sges: 1,
            inline: 0,
            events: true,
        };
        let refused = |error: VerbsError| EngineError::Unfit {
            device: error.nic.clone(),
            why: error.to_string(),
        };
        let mut queue = self.nic.create_queue_pair(&options).map_err(refused)?;
        for id in 0..self.receives {
            queue.post_receive(id.into(), &[]).map_err(refused)?;
        }
        let peer = Endpoint {
            gid: address.to_ipv6_mapped().octets(),
            mtu: self.nic.port().map_err(refused)?.mtu,
            ..Endpoint::default()
        };
        queue.connect(&peer).map_err(refused)?;
        let endpoint = queue.endpoint();
        pages.queue_pair = endpoint.number;
        self.queue = Some(ReceiveQueue::new(queue, self.receives.into()));
        parameters.pages = pages;
        if self.is_emulated_nic {
            parameters.host.set_port(endpoint.lid);
        }
        tracing::info!(
            "{}: sensor {} writes through queue pair {} of {} into {} pages on {}",
            self.name,
            parameters.sensor,
            pages.queue_pair,
            self.nic.name(),
            pages.count,
            self.keys
                .as_ref()
                .map_or_else(String::new, |keys| keys.methods())
        );
        self.supervisor.arm(parameters);
        Ok(())
    }

    /// Disarms the sensor, closes the queue pair and ends the registration.
    pub(super) fn end(&mut self) {
        self.supervisor.disarm();
        self.deferred = None;
        self.queue = None;
        self.keys = None;
    }
}
