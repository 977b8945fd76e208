//! An emulated device in this process, on its own thread.
//!
//! ```text
//!   register access ──▶ queue ──▶ the device's thread ──▶ memory of this process, including GPU memory
//!   read value ◀─────── reply ◀──────┘
//! ```
//! Register writes are posted. The caller of every other request waits for the reply, which the device sends after all
//! earlier writes were executed. Only the device's thread accesses mapped memory, so unmapped memory is not written
//! afterwards.

use crate::sys::memory::Piece;
use crate::{EmulatedDevice, Step, endpoint::Endpoint};
use daq_core::dma::{DmaDevice, DmaError};
use daq_core::region::Region;
use daq_drivers::fpga::device::{Device, DeviceError, GONE, Identity, Interrupt, Registers};
use daq_drivers::fpga::transports::iova::IovaAllocator;
use rustix::event::{EventfdFlags, eventfd};
use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;

/// Offset of the command register in the configuration space, and its bits for memory access and bus mastering.
const COMMAND: usize = 0x04;
const MEMORY_AND_MASTER: [u8; 2] = [0x06, 0x00];
const MEMORY_ALONE: [u8; 2] = [0x02, 0x00];

/// A function that the device's thread runs.
type Call = Box<dyn FnOnce(&mut Endpoint) + Send>;

/// A request to the device's thread.
enum Request {
    Write {
        bar: usize,
        offset: u64,
        value: u32,
    },
    Read {
        bar: usize,
        offset: u64,
        ticket: u64,
    },
    Call(Call),
}

/// State shared with the device's thread.
#[derive(Default)]
struct RequestQueue {
    state: Mutex<State>,
    /// True if requests are pending. A busy device checks this flag between two steps.
    has_requests: AtomicBool,
    arrived: Condvar,
    answered: Condvar,
}

#[derive(Default)]
struct State {
    requests: VecDeque<Request>,
    /// Values of registers that were read, with the ticket of the waiting caller.
    replies: Vec<(u64, u32)>,
    tickets: u64,
    /// True if the device is being closed.
    is_over: bool,
    /// True if the thread has ended. Requests are then no longer answered.
    is_gone: bool,
}

/// An emulated device in this process.
struct InProcess {
    name: String,
    identity: Identity,
    sizes: [u32; crate::BARS],
    vectors: usize,
    csr: Option<&'static str>,
    queue: Arc<RequestQueue>,
    iovas: Mutex<IovaAllocator>,
    thread: Option<JoinHandle<()>>,
}

/// A base address register (BAR).
struct Bar {
    queue: Arc<RequestQueue>,
    index: usize,
    bytes: u64,
}

/// Starts the thread of `card` in this process, with memory access and bus mastering enabled.
pub fn open(card: Box<dyn EmulatedDevice>) -> Result<Arc<dyn Device>, DeviceError> {
    let (emulated_identity, csr) = (card.identity(), card.csr());
    let name = format!(
        "emulated:{:04x}:{:04x}",
        emulated_identity.ids[0], emulated_identity.ids[1]
    );
    let mut endpoint = Endpoint::new(card);
    endpoint.config_write(COMMAND, &MEMORY_AND_MASTER);
    let sizes = *endpoint.sizes();
    let queue = Arc::new(RequestQueue::default());
    let thread = std::thread::Builder::new()
        .name("daq-card".to_owned())
        .spawn({
            let queue = queue.clone();
            move || queue.serve(endpoint)
        })
        .map_err(|error| {
            DeviceError::new(
                &*name,
                format!("cannot start the thread of the emulated device: {error}"),
            )
        })?;
    Ok(Arc::new(InProcess {
        name,
        identity: Identity {
            vendor: emulated_identity.ids[0],
            device: emulated_identity.ids[1],
            class: emulated_identity.class,
        },
        sizes,
        vectors: emulated_identity.vectors.into(),
        csr,
        queue,
        iovas: Mutex::default(),
        thread: Some(thread),
    }))
}

impl RequestQueue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn post(&self, state: &mut State, request: Request) {
        state.requests.push_back(request);
        self.has_requests.store(true, Ordering::Release);
        self.arrived.notify_one();
    }

    fn read(&self, bar: usize, offset: u64) -> u32 {
        let mut state = self.lock();
        let ticket = state.tickets;
        state.tickets += 1;
        self.post(
            &mut state,
            Request::Read {
                bar,
                offset,
                ticket,
            },
        );
        loop {
            if let Some(place) = state.replies.iter().position(|(of, _)| *of == ticket) {
                return state.replies.swap_remove(place).1;
            }
            if state.is_gone {
                return GONE;
            }
            state = self
                .answered
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn write(&self, bar: usize, offset: u64, value: u32) {
        let mut state = self.lock();
        if !state.is_gone {
            self.post(&mut state, Request::Write { bar, offset, value });
        }
    }

    /// Runs `work` on the device's thread and returns its result; `None` if the thread has ended.
    fn call_thread<R: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Endpoint) -> R + Send + 'static,
    ) -> Option<R> {
        let (reply, result) = mpsc::sync_channel(1);
        let call: Call = Box::new(move |endpoint| {
            // The send cannot fail because the caller waits for the result below.
            let _ = reply.send(work(endpoint));
        });
        {
            let mut state = self.lock();
            if state.is_gone {
                return None;
            }
            self.post(&mut state, Request::Call(call));
        }
        // A thread that ends drops its requests, and the sender with them, so this cannot block.
        result.recv().ok()
    }

    /// The main function of the device's thread.
    fn serve(&self, mut endpoint: Endpoint) {
        let _end = End(self);
        let mut step = Step::Idle;
        let mut requests = VecDeque::new();
        loop {
            if step != Step::Busy || self.has_requests.load(Ordering::Acquire) {
                let mut state = self.lock();
                if state.requests.is_empty() && !state.is_over {
                    state = match step {
                        Step::Busy => state,
                        Step::After(time) => {
                            self.arrived
                                .wait_timeout(state, time)
                                .unwrap_or_else(PoisonError::into_inner)
                                .0
                        }
                        Step::Idle | Step::Removed => self
                            .arrived
                            .wait(state)
                            .unwrap_or_else(PoisonError::into_inner),
                    };
                }
                if state.is_over {
                    return;
                }
                std::mem::swap(&mut requests, &mut state.requests);
                self.has_requests.store(false, Ordering::Relaxed);
            }
            for request in requests.drain(..) {
                match request {
                    Request::Write { bar, offset, value } => endpoint.write(bar, offset, value),
                    Request::Read {
                        bar,
                        offset,
                        ticket,
                    } => {
                        let value = endpoint.read(bar, offset);
                        self.lock().replies.push((ticket, value));
                        self.answered.notify_all();
                    }
                    Request::Call(call) => call(&mut endpoint),
                }
            }
            step = endpoint.step();
        }
    }
}

/// Wakes all waiting callers when the device's thread ends, also after a panic.
struct End<'a>(&'a RequestQueue);

impl Drop for End<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.is_gone = true;
        state.requests.clear();
        self.0.answered.notify_all();
    }
}

impl InProcess {
    fn gone(&self) -> DmaError {
        DmaError::Gone {
            device: self.name.clone(),
        }
    }

    fn iovas(&self) -> MutexGuard<'_, IovaAllocator> {
        self.iovas.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reset_to(&self, command: [u8; 2]) -> Option<()> {
        self.queue.call_thread(move |endpoint| {
            endpoint.reset();
            endpoint.config_write(COMMAND, &command);
        })
    }
}

impl DmaDevice for InProcess {
    fn name(&self) -> &str {
        &self.name
    }

    fn map(&self, region: &Arc<Region>) -> Result<u64, DmaError> {
        let refused = |why: String| DmaError::Refused {
            device: self.name.clone(),
            action: format!(
                "mapping {} bytes of {} memory",
                region.bytes(),
                region.placement()
            ),
            why,
        };
        let address = self
            .iovas()
            .allocate(region.bytes() as u64)
            .ok_or_else(|| {
                refused(
                    "no free device addresses are left; lower `slots` or `slot` of the ring"
                        .to_owned(),
                )
            })?;
        let piece = Piece::of(region);
        let given = match piece {
            Ok(piece) => self
                .queue
                .call_thread(move |endpoint| endpoint.memory().map(address, piece))
                .ok_or_else(|| self.gone()),
            Err(error) => Ok(Err(error)),
        };
        match given {
            Ok(Ok(())) => Ok(address),
            Ok(Err(error)) => {
                self.iovas().free(address);
                Err(refused(error.to_string()))
            }
            Err(gone) => Err(gone),
        }
    }

    fn unmap(&self, address: u64, bytes: usize) -> Result<(), DmaError> {
        let taken = self
            .queue
            .call_thread(move |endpoint| endpoint.memory().unmap(address, bytes as u64));
        match taken {
            // If the thread has ended, the device no longer writes memory.
            None => Ok(()),
            Some(true) => {
                self.iovas().free(address);
                Ok(())
            }
            Some(false) => Err(DmaError::Refused {
                device: self.name.clone(),
                action: format!("unmapping {bytes} bytes at {address:#x}"),
                why: "this range is not mapped".to_owned(),
            }),
        }
    }

    fn disable_and_reset(&self) -> Result<(), DmaError> {
        // If the thread has ended, the device no longer writes memory.
        let _ = self.reset_to(MEMORY_ALONE);
        Ok(())
    }
}

impl Device for InProcess {
    fn identity(&self) -> Identity {
        self.identity
    }

    fn registers(&self, bar: usize) -> Result<Arc<dyn Registers>, DeviceError> {
        match self.sizes.get(bar).copied().unwrap_or(0) {
            0 => Err(DeviceError::new(
                &*self.name,
                format!("the device has no BAR {bar}"),
            )),
            bytes => Ok(Arc::new(Bar {
                queue: self.queue.clone(),
                index: bar,
                bytes: bytes.into(),
            })),
        }
    }

    fn interrupts(&self, count: usize) -> Result<Vec<Interrupt>, DeviceError> {
        let error = |why| DeviceError::new(&*self.name, why);
        if count > self.vectors {
            return Err(error(format!(
                "{count} interrupt vectors are needed, but the device has {}",
                self.vectors
            )));
        }
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..count {
            let event = eventfd(0, flags).and_then(|event| Ok((rustix::io::dup(&event)?, event)));
            let (copy, event) = event.map_err(|errno| {
                error(format!(
                    "cannot create an eventfd for an interrupt: {errno}"
                ))
            })?;
            ours.push(Interrupt::new(event));
            theirs.push(copy);
        }
        let connected = self.queue.call_thread(move |endpoint| {
            for (vector, event) in theirs.into_iter().enumerate() {
                endpoint.connect(vector, Some(event));
            }
        });
        connected
            .map(|()| ours)
            .ok_or_else(|| error("the thread of the emulated device has ended".to_owned()))
    }

    fn reset(&self) -> Result<(), DeviceError> {
        self.reset_to(MEMORY_AND_MASTER).ok_or_else(|| {
            DeviceError::new(&*self.name, "the thread of the emulated device has ended")
        })
    }

    fn csr(&self) -> Option<&str> {
        self.csr
    }

    fn as_dma(self: Arc<Self>) -> Arc<dyn DmaDevice> {
        self
    }
}

impl Drop for InProcess {
    fn drop(&mut self) {
        {
            let mut state = self.queue.lock();
            state.is_over = true;
            // A busy device checks only this flag for new requests.
            self.queue.has_requests.store(true, Ordering::Release);
        }
        self.queue.arrived.notify_one();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!(
                "{}: the thread of the emulated device panicked; this is a bug in daq",
                self.name
            );
        }
    }
}

impl Registers for Bar {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn read(&self, offset: u64) -> u32 {
        self.queue.read(self.index, offset)
    }

    fn write(&self, offset: u64, value: u32) {
        self.queue.write(self.index, offset, value);
    }
}

impl fmt::Debug for InProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InProcess")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}
