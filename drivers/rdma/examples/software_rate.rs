//! How fast two software cards of this process write to each other over loopback, for writes of several sizes.

use daq_core::region::{HostOptions, Region};
use daq_rdma::software::{Card, Faults};
use daq_rdma::verbs::{
    Access, MemoryKey, Nic, Payload, Queue, QueueOptions, Service, Side, Status, Verb, Way, Work,
    WorkDone,
};
use std::error::Error;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

const SLOTS: u32 = 32;

fn memory(nic: &dyn Nic, bytes: usize) -> Result<MemoryKey, Box<dyn Error>> {
    let region: Arc<Region> = Region::host(bytes, HostOptions::default())?;
    let access = Access {
        local_write: true,
        remote_write: true,
        relaxed: false,
    };
    Ok(nic.register(&region, Way::Host, access)?)
}

fn collect(queue: &mut dyn Queue) -> Result<(), Box<dyn Error>> {
    let mut done = [WorkDone {
        id: 0,
        side: Side::Sent,
        status: Status::Success,
        bytes: 0,
        immediate: None,
    }];
    while queue.poll(&mut done)? == 0 {
        queue.wait(Duration::from_secs(1))?;
    }
    match done[0].status {
        Status::Success => Ok(()),
        other => Err(other.name().into()),
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let [near, far] = [0, 1].map(|_| Card::new(Ipv4Addr::LOCALHOST.into(), Faults::none()));
    let (near, far) = (near?, far?);
    for bytes in [64, 4 << 10, 64 << 10, 1 << 20, 8 << 20] {
        let options = QueueOptions {
            service: Service::Rc,
            sends: SLOTS,
            receives: 1,
            pieces: 1,
            inline: 0,
            events: true,
        };
        let (mut from, mut to) = (near.queue(&options)?, far.queue(&options)?);
        from.connect(&to.endpoint())?;
        to.connect(&from.endpoint())?;
        let slots = SLOTS as usize;
        let (source, target) = (
            memory(&*near, bytes * slots)?,
            memory(&*far, bytes * slots)?,
        );
        let count = ((2 << 30) / bytes).min(200_000);
        let began = Instant::now();
        for i in 0..count + slots {
            if i >= slots {
                collect(&mut *from)?;
            }
            if i < count {
                let offset = i % slots * bytes;
                let verb = Verb::Write {
                    address: target.address() + offset as u64,
                    key: target.remote(),
                    immediate: None,
                };
                from.post(&Work {
                    id: i as u64,
                    verb,
                    payload: Payload::Memory(&[source.piece(offset, bytes)]),
                    signaled: true,
                })?;
            }
        }
        let seconds = began.elapsed().as_secs_f64();
        println!(
            "{bytes:>8} bytes a write: {:>8.0} MB/s, {:>8.0} writes/s",
            (count * bytes) as f64 / seconds / 1e6,
            count as f64 / seconds
        );
    }
    Ok(())
}
