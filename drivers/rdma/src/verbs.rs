//! The interface to RDMA NICs: a NIC, memory regions, queue pairs.
//!
//! The names follow the verbs API. Every queue pair has its own completion queue.

pub use crate::wait::Wakeup;
use daq_core::region::Region;
use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// How memory is registered with a NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RegistrationMethod {
    /// GPU memory, by its dma-buf (`ibv_reg_dmabuf_mr`).
    DmaBuf,
    /// GPU memory, by its address, which the module nvidia-peermem resolves (`ibv_reg_mr`).
    Peer,
    /// Host memory (`ibv_reg_mr`).
    Host,
}

impl RegistrationMethod {
    /// Returns the name of the method in plans, reports and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::DmaBuf => "dma-buf",
            Self::Peer => "nvidia-peermem",
            Self::Host => "host memory",
        }
    }
}

impl fmt::Display for RegistrationMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Access rights of a memory region; local reads are always allowed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// The NIC may write the memory for local receives.
    pub local_write: bool,
    /// The peer may write the memory.
    pub remote_write: bool,
    /// Writes may become visible in a different order (`IBV_ACCESS_RELAXED_ORDERING`). For payload only, never for
    /// words that announce payload.
    pub relaxed: bool,
}

impl Access {
    /// The peer and local receives may write the memory, in order.
    pub const WRITE: Self = Self {
        local_write: true,
        remote_write: true,
        relaxed: false,
    };
}

/// Error of a verbs call, or of its emulation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{nic}: {call}: {}{}{why}", describe_errno(*.errno), if .why.is_empty() { "" } else { "; " })]
pub struct VerbsError {
    /// The name of the NIC.
    pub nic: String,
    /// The call with its arguments, as in `ibv_reg_mr`.
    pub call: String,
    /// The positive errno; 0 if Linux did not return the error.
    pub errno: i32,
    /// Explanation of the error and a fix; may be empty.
    pub why: String,
}

fn describe_errno(errno: i32) -> String {
    if errno == 0 {
        return "refused".to_owned();
    }
    std::io::Error::from_raw_os_error(errno).to_string()
}

/// Limits of a NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of outstanding work requests per queue.
    pub max_work: u32,
    /// Maximum number of entries of a completion queue.
    pub max_completions: u32,
    /// Maximum number of scatter/gather elements per work request.
    pub max_sges: u32,
    /// Maximum size of a message in bytes.
    pub max_message: u64,
    /// Maximum number of bytes that a work request can carry inline.
    pub max_inline: u32,
}

/// The state of a NIC port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Port number, starting at 1.
    pub number: u8,
    /// True if the port is up (`IBV_PORT_ACTIVE`).
    pub is_active: bool,
    /// True for Ethernet (RoCE), false for InfiniBand.
    pub is_ethernet: bool,
    /// Active MTU in bytes.
    pub mtu: u32,
    /// Local identifier (LID) of the port; 0 on Ethernet.
    pub lid: u16,
    /// The selected index in the GID table.
    pub gid_index: u8,
    /// The GID at the selected index.
    pub gid: [u8; 16],
}

/// Parameters of a queue pair that the peer needs to connect to this queue pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Endpoint {
    /// The queue pair number, 24 bits.
    pub number: u32,
    /// The 24-bit packet sequence number (PSN) of the first packet that the queue pair sends.
    pub psn: u32,
    /// The port's LID; for an emulated NIC, its TCP port.
    pub lid: u16,
    /// The port's GID.
    pub gid: [u8; 16],
    /// MTU in bytes; both sides use the smaller of the two MTUs.
    pub mtu: u32,
    /// The Q_Key that datagrams must carry (UD); otherwise 0.
    pub qkey: u32,
}

/// Transport service of a queue pair.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Service {
    /// Reliable connection: messages arrive in order and are retransmitted until they are acknowledged.
    #[default]
    Rc,
    /// Unreliable connection: a message with a missing packet is lost.
    Uc,
    /// Unreliable datagrams: each message is a single packet and may be lost.
    Ud,
}

impl Service {
    /// Returns the service with this number in a message, which is its position in the enum.
    pub(crate) fn of_code(code: u8) -> Option<Self> {
        [Self::Rc, Self::Uc, Self::Ud]
            .get(usize::from(code))
            .copied()
    }

    /// Returns the name of the service in configuration and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rc => "rc",
            Self::Uc => "uc",
            Self::Ud => "ud",
        }
    }
}

/// Parameters of a new queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePairOptions {
    /// The transport service.
    pub service: Service,
    /// Maximum number of outstanding send requests.
    pub sends: u32,
    /// Maximum number of outstanding receives.
    pub receives: u32,
    /// Maximum number of scatter/gather elements of a receive.
    pub sges: u32,
    /// Requested number of inline bytes; the NIC may grant fewer.
    pub inline: u32,
    /// True if [`QueuePair::wait`] will be called.
    pub events: bool,
}

/// Memory registered with a NIC. Dropping this value deregisters the memory: later accesses by the peer or by posted
/// work requests fail. The value keeps the region alive.
pub struct MemoryRegion {
    /// Deregisters the memory on drop; declared before the region, so that it is dropped first.
    _handle: Box<dyn Send + Sync>,
    region: Arc<Region>,
    method: RegistrationMethod,
    lkey: u32,
    rkey: u32,
    address: u64,
}

impl MemoryRegion {
    /// Wraps a registration of a NIC: dropping `handle` deregisters the memory. `address` is the remote address of
    /// the first byte.
    pub fn new(
        handle: Box<dyn Send + Sync>,
        region: Arc<Region>,
        method: RegistrationMethod,
        (lkey, rkey): (u32, u32),
        address: u64,
    ) -> Self {
        Self {
            _handle: handle,
            region,
            method,
            lkey,
            rkey,
            address,
        }
    }

    /// Returns the local key.
    pub(crate) const fn lkey(&self) -> u32 {
        self.lkey
    }

    /// Returns the remote key, which changes with every registration.
    pub const fn rkey(&self) -> u32 {
        self.rkey
    }

    /// Returns the address of the first byte, as used by the NIC and the peer.
    pub const fn address(&self) -> u64 {
        self.address
    }

    /// Returns the registered memory.
    pub const fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Returns the registration method.
    pub const fn method(&self) -> RegistrationMethod {
        self.method
    }

    /// Returns the scatter/gather element of `bytes` bytes at `offset`.
    ///
    /// # Panics
    /// If the range exceeds the region.
    pub fn sge(&self, offset: usize, bytes: usize) -> Sge<'_> {
        let end = offset.checked_add(bytes);
        assert!(
            end.is_some_and(|end| end <= self.region.bytes()),
            "{bytes} bytes at offset {offset} exceed the region of {} bytes",
            self.region.bytes()
        );
        Sge {
            memory: self,
            offset,
            bytes,
        }
    }
}

impl fmt::Debug for MemoryRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryKey")
            .field("region", &self.region)
            .field("method", &self.method)
            .field("local", &format_args!("{:#x}", self.lkey))
            .field("remote", &format_args!("{:#x}", self.rkey))
            .finish_non_exhaustive()
    }
}

/// Scatter/gather element: a range of a memory region.
#[derive(Clone, Copy, Debug)]
pub struct Sge<'a> {
    memory: &'a MemoryRegion,
    offset: usize,
    bytes: usize,
}

impl Sge<'_> {
    /// Returns the memory region that contains the range.
    pub const fn memory(&self) -> &MemoryRegion {
        self.memory
    }

    /// Returns the offset of the range in the memory region, in bytes.
    pub const fn offset(&self) -> usize {
        self.offset
    }

    /// Returns the length of the range in bytes.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the address of the range, as used by the NIC.
    pub const fn address(&self) -> u64 {
        self.memory.address + self.offset as u64
    }
}

/// The payload of a send request.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// Registered memory, which must not change until the request completes.
    Memory(&'a [Sge<'a>]),
    /// Bytes that are copied when the request is posted; at most [`Limits::max_inline`].
    Inline(&'a [u8]),
}

impl Payload<'_> {
    /// Returns the total number of bytes.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Memory(sges) => sges.iter().map(Sge::bytes).sum(),
            Self::Inline(bytes) => bytes.len(),
        }
    }
}

/// The operation of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Writes the payload to the peer's `address`. With immediate data, the peer gets a completion and the write uses
    /// one of its posted receives.
    Write {
        /// Remote address of the first written byte.
        address: u64,
        /// Remote key of the peer's memory region.
        rkey: u32,
        /// Immediate data for the peer's completion.
        immediate: Option<u32>,
    },
    /// Sends the payload into the peer's next posted receive.
    Send {
        /// Immediate data for the peer's completion.
        immediate: Option<u32>,
    },
}

impl Verb {
    /// Returns a write to the peer's `address` with the remote key `rkey`.
    pub const fn write(address: u64, rkey: u32, immediate: Option<u32>) -> Self {
        Self::Write {
            address,
            rkey,
            immediate,
        }
    }
}

/// A work request.
#[derive(Clone, Copy, Debug)]
pub struct WorkRequest<'a> {
    /// Number that is returned in the completion.
    pub id: u64,
    /// The operation.
    pub verb: Verb,
    /// The payload.
    pub payload: Payload<'a>,
    /// True if success creates a completion. A failure always creates a completion.
    pub signaled: bool,
}

/// Completion status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Status {
    /// The request was executed.
    #[default]
    Success,
    /// The request was not executed because the queue pair had already failed.
    Flushed,
    /// The peer did not answer (`RETRY_EXC_ERR`): its process ended or the link is down.
    Unanswered,
    /// The peer had no receive posted in any retry (`RNR_RETRY_EXC_ERR`).
    NotReady,
    /// The peer rejected the remote key or address (`REM_ACCESS_ERR`).
    RemoteAccess,
    /// The local memory or length was rejected (`LOC_PROT_ERR`, `LOC_LEN_ERR`).
    Local,
    /// The peer failed during the operation (`REM_OP_ERR`, `REM_INV_REQ_ERR`).
    RemoteOperation,
    /// Another status, as in `enum ibv_wc_status`.
    Other(u32),
}

impl Status {
    /// Returns the name of the status in reports and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Flushed => "flushed",
            Self::Unanswered => "unanswered",
            Self::NotReady => "receiver-not-ready",
            Self::RemoteAccess => "remote-access",
            Self::Local => "local",
            Self::RemoteOperation => "remote-operation",
            Self::Other(_) => "other",
        }
    }
}

/// The queue that a completion belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Side {
    /// The send queue: the completion belongs to a send request.
    #[default]
    Sent,
    /// The receive queue: a message, or a write with immediate data, has used a posted receive.
    Received,
}

/// A completion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkCompletion {
    /// The id of the work request.
    pub id: u64,
    /// The queue of the work request. Valid only on success.
    pub side: Side,
    /// The status of the work request.
    pub status: Status,
    /// Number of received bytes. Undefined for sends.
    pub bytes: u32,
    /// The peer's immediate data.
    pub immediate: Option<u32>,
}

/// A queue pair with its completion queue. A new queue pair is not connected; receives may be posted before it is
/// connected.
///
/// `post_send`, `post_receive` and `poll` are the data path: they do not allocate, do not take a lock that another data
/// thread holds, and make no system calls. An emulated NIC does make system calls. Dropping a queue pair destroys it,
/// and no memory is written for it afterwards.
///
/// `Any` allows a downcast to the hardware type, which rdma_cm needs.
pub trait QueuePair: Any + Send {
    /// Returns the parameters for the peer.
    fn endpoint(&self) -> Endpoint;

    /// Connects the queue pair to the peer's queue pair.
    fn connect(&mut self, peer: &Endpoint) -> Result<(), VerbsError>;

    /// Posts a send request. If this fails, nothing is posted.
    fn post_send(&mut self, work: &WorkRequest<'_>) -> Result<(), VerbsError>;

    /// Posts a receive. `into` may be empty for writes with immediate data.
    fn post_receive(&mut self, id: u64, into: &[Sge<'_>]) -> Result<(), VerbsError>;

    /// Collects completions without waiting. Returns an error only if the completion queue itself has failed, for
    /// example because of an overrun.
    fn poll(&mut self, done: &mut [WorkCompletion]) -> Result<usize, VerbsError>;

    /// Stops the queue pair permanently: it accepts and acknowledges no further messages. All posted requests
    /// complete soon, [flushed](Status::Flushed) if they were not executed. Once all receives have completed, the
    /// successful receives include every message that was acknowledged to the peer.
    fn stop(&mut self) -> Result<(), VerbsError>;

    /// Returns true if posted requests wait for space in a buffer of Linux, which makes space in large steps. A thread
    /// should then sleep in [`wait`](Self::wait) instead of polling.
    fn is_blocked(&self) -> bool {
        false
    }

    /// Sends requests and acknowledgements that the queue pair would send later, together with others. Should be called
    /// before the thread waits for another queue pair.
    fn flush(&mut self) {}

    /// Sets the number of posted requests after which a queue pair over TCP requests an acknowledgement at once.
    fn set_acknowledgement_interval(&mut self, _requests: u64) {}

    /// Prepares a wait for several queue pairs: [flushes](Self::flush) the queue pair, and returns what ends the wait;
    /// `None` if the queue pair cannot wait together with others.
    fn wakeup(&mut self) -> Option<Wakeup<'_>> {
        None
    }

    /// Waits until a completion may be available or `limit` has passed. Returns false if waiting is not supported.
    fn wait(&mut self, limit: Duration) -> Result<bool, VerbsError>;
}

/// An event of a NIC that does not belong to one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NicEvent {
    /// The port came up.
    PortUp,
    /// The port went down.
    PortDown,
    /// The NIC failed or was removed.
    Fatal,
    /// A completion queue was overrun.
    CompletionOverrun,
    /// Another event, with its name in the verbs API.
    Other(String),
}

/// How frames get from one host to the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// RDMA: network cards write frames to the memory of the other host.
    #[default]
    Rdma,
    /// Plain TCP: Linux copies frames to sockets and out of sockets. Needs no special network card.
    Tcp,
}

impl Transport {
    /// Returns the transport with this number in a message, which is its position in the enum.
    pub(crate) fn of_code(code: u8) -> Option<Self> {
        [Self::Rdma, Self::Tcp].get(usize::from(code)).copied()
    }

    /// Returns the name of the transport in configuration and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rdma => "rdma",
            Self::Tcp => "tcp",
        }
    }

    /// Returns the configuration keys that set the number of rails.
    pub const fn rails_keys(self) -> &'static str {
        match self {
            Self::Rdma => "the same number of NICs in `nics`",
            Self::Tcp => "the same number of `connections`",
        }
    }
}

/// An opened NIC.
pub trait Nic: Send + Sync + fmt::Debug {
    /// Returns the NIC's name, as in `mlx5_0`.
    fn name(&self) -> &str;

    /// Returns the transport of the NIC's queue pairs.
    fn transport(&self) -> Transport {
        Transport::Rdma
    }

    /// Returns the NIC's limits.
    fn limits(&self) -> Limits;

    /// Returns the current state of the NIC's port.
    fn port(&self) -> Result<Port, VerbsError>;

    /// Registers all of `region` with `method`. The [`registration`](crate::registration) module chooses the method.
    fn register(
        &self,
        region: &Arc<Region>,
        method: RegistrationMethod,
        access: Access,
    ) -> Result<MemoryRegion, VerbsError>;

    /// Creates a queue pair.
    fn create_queue_pair(
        &self,
        options: &QueuePairOptions,
    ) -> Result<Box<dyn QueuePair>, VerbsError>;

    /// Returns the next event without waiting.
    fn event(&self) -> Option<NicEvent>;
}
