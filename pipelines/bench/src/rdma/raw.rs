//! Measures a single queue pair that writes to memory. The results are the baseline for whole pipelines.

use super::control::{ControlConnection, Reply, Request};
use crate::BenchError;
use daq_core::gpu::driver::Device;
use daq_diagnostics::fixture::NicMemory;
use daq_diagnostics::fixture::failed;
use daq_rdma::connect::{Handshake, Link, Listener, tcp};
use daq_rdma::verbs::{
    MemoryRegion, Nic, Payload, QueuePair, QueuePairOptions, Service, Side, Status, Verb,
    VerbsError, WorkCompletion, WorkRequest,
};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum number of writes in flight.
pub(super) const WINDOW: u32 = 64;
/// Maximum time to wait until the other side connects or answers a write.
const LIMIT: Duration = Duration::from_secs(20);
/// Time for which the thread polls before it sleeps.
const SPIN: Duration = Duration::from_micros(20);

/// A connected queue pair, with memory on both sides. The order of the fields matters: the queue pair is dropped before
/// the memory region.
pub(super) struct Raw {
    link: Link,
    key: MemoryRegion,
    _shared: NicMemory,
    /// Address and remote key of the memory of the other side.
    there: (u64, u32),
}

fn options() -> QueuePairOptions {
    QueuePairOptions {
        service: Service::Rc,
        sends: 2 * WINDOW,
        receives: 2 * WINDOW,
        sges: 1,
        inline: 0,
        events: true,
    }
}

fn memory(
    nic: &dyn Nic,
    gpu: Option<&'static Device>,
    bytes: usize,
) -> Result<(MemoryRegion, NicMemory), BenchError> {
    let shared = NicMemory::new(gpu, bytes)?;
    let registered = shared.register(nic).map_err(failed)?;
    Ok((registered.region, shared))
}

fn greeting(key: &MemoryRegion) -> Vec<u8> {
    [&key.address().to_le_bytes()[..], &key.rkey().to_le_bytes()].concat()
}

fn greeted(greetings: &[Vec<u8>]) -> Result<(u64, u32), BenchError> {
    let read = greetings.first().and_then(|greeting| {
        let (address, key) = greeting.split_first_chunk()?;
        Some((
            u64::from_le_bytes(*address),
            u32::from_le_bytes(*key.first_chunk()?),
        ))
    });
    read.ok_or_else(|| {
        failed("cannot parse the other side's handshake; run the same daq version on both sides")
    })
}

/// Posts receive requests for the immediate values of the other side.
fn prepare(_: usize, queue: &mut dyn QueuePair) -> Result<(), VerbsError> {
    (0..WINDOW).try_for_each(|id| queue.post_receive(id.into(), &[]))
}

impl Raw {
    /// Connects to the listener at `address`.
    pub(super) fn connect(
        nic: &Arc<dyn Nic>,
        gpu: Option<&'static Device>,
        address: SocketAddr,
        size: usize,
    ) -> Result<Self, BenchError> {
        let (key, shared) = memory(&**nic, gpu, size)?;
        let handshake = Handshake {
            nics: std::slice::from_ref(nic),
            options: &options(),
            greetings: &[greeting(&key)],
            prepare: &mut prepare,
        };
        let link = tcp::connector(address)
            .connect(handshake, LIMIT)
            .map_err(|error| failed(format!("{address}: {error}")))?;
        let there = greeted(&link.greetings)?;
        Ok(Self {
            link,
            key,
            _shared: shared,
            there,
        })
    }

    fn accept(
        nic: &Arc<dyn Nic>,
        (key, shared): (MemoryRegion, NicMemory),
        listener: &mut Listener,
    ) -> Result<Self, BenchError> {
        let address = listener.address();
        let accepted = listener
            .accept(std::slice::from_ref(nic), LIMIT)
            .map_err(|error| failed(format!("{address}: {error}")))?;
        let incoming = accepted
            .connector()
            .map_err(|why| failed(format!("{address}: {why}")))?;
        let there = greeted(incoming.greetings())?;
        let peer = incoming.peer();
        let link = incoming
            .accept(&options(), &[greeting(&key)], &mut prepare)
            .map_err(|error| failed(format!("{peer}: {error}")))?;
        Ok(Self {
            link,
            key,
            _shared: shared,
            there,
        })
    }

    fn post(&mut self, size: usize, immediate: Option<u32>) -> Result<(), BenchError> {
        let (address, key) = self.there;
        let sge = [self.key.sge(0, size)];
        let posted = self.link.rails[0].post_send(&WorkRequest {
            id: 0,
            verb: Verb::write(address, key, immediate),
            payload: Payload::Memory(&sge),
            signaled: true,
        });
        posted.map_err(failed)
    }

    /// Waits for at least one completion. Returns the number of completed sends, then the number of received writes.
    fn collect(&mut self) -> Result<[u64; 2], BenchError> {
        let queue = &mut *self.link.rails[0];
        let mut done = [WorkCompletion::default(); 16];
        let start = Instant::now();
        loop {
            let count = queue.poll(&mut done).map_err(failed)?;
            if count > 0 {
                let mut sides = [0; 2];
                for done in &done[..count] {
                    if done.status != Status::Success {
                        return Err(failed(format!(
                            "an RDMA write failed: {}",
                            done.status.name()
                        )));
                    }
                    if done.side == Side::Received {
                        queue.post_receive(done.id, &[]).map_err(failed)?;
                    }
                    sides[usize::from(done.side == Side::Received)] += 1;
                }
                return Ok(sides);
            }
            let waited = start.elapsed();
            if waited > LIMIT {
                return Err(failed(format!(
                    "no RDMA write completed within {} s",
                    LIMIT.as_secs()
                )));
            }
            if waited < SPIN {
                std::hint::spin_loop();
            } else {
                queue.wait(Duration::from_millis(1)).map_err(failed)?;
            }
        }
    }

    /// Measures writes of `size` bytes, with up to `WINDOW` writes in flight. Returns the bytes per second.
    pub(super) fn bandwidth(&mut self, size: usize, time: Duration) -> Result<f64, BenchError> {
        let (start, mut posted, mut done) = (Instant::now(), 0_u64, 0_u64);
        loop {
            let is_open = start.elapsed() < time;
            while is_open && posted - done < WINDOW.into() {
                self.post(size, None)?;
                posted += 1;
            }
            if done == posted {
                break;
            }
            done += self.collect()?[0];
        }
        Ok((posted * size as u64) as f64 / start.elapsed().as_secs_f64())
    }

    /// Returns half of the round-trip time, in µs, for each of `round_trips` round trips.
    pub(super) fn round_trips(
        &mut self,
        size: usize,
        round_trips: usize,
    ) -> Result<Vec<f64>, BenchError> {
        let mut times = Vec::with_capacity(round_trips);
        for _ in 0..round_trips {
            let start = Instant::now();
            self.post(size, Some(1))?;
            while self.collect()?[1] == 0 {}
            times.push(start.elapsed().as_secs_f64() * 1e6 / 2.0);
        }
        Ok(times)
    }

    fn answer(&mut self, size: usize, round_trips: usize) -> Result<(), BenchError> {
        for _ in 0..round_trips {
            while self.collect()?[1] == 0 {}
            self.post(size, Some(1))?;
        }
        Ok(())
    }
}

/// Serves the listening side: provides memory and a queue pair, then answers the given number of writes.
pub(super) fn serve(
    wire: &mut ControlConnection,
    nic: &Arc<dyn Nic>,
    gpu: Option<&'static Device>,
    here: IpAddr,
    (size, round_trips): (usize, usize),
) -> Result<(), BenchError> {
    let memory = memory(&**nic, gpu, size)?;
    let mut listener =
        tcp::listener((here, 0).into()).map_err(|error| failed(format!("{here}: {error}")))?;
    let port = listener.address().port();
    wire.send(&Reply::Ready { port })?;
    let served = Raw::accept(nic, memory, &mut listener).and_then(|mut raw| {
        raw.answer(size, round_trips)?;
        Ok(raw)
    });
    // The queue pair must stay open until the other side has finished.
    let end: Request = wire.receive()?;
    if !matches!(end, Request::End) {
        return Err(failed("the other side did not send the end of its request"));
    }
    served.map(drop)
}
