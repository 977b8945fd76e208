//! The seam of network cards that do RDMA: a card, memory registered with it, queue pairs.
//!
//! Words are those of the verbs: a *key* names registered memory, locally or for the peer; a *queue* is a queue pair with
//! a completion queue of its own; *work* is what is posted to it.

use daq_core::region::Region;
use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Which way a card is told where memory lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RegistrationMethod {
    /// A GPU's memory by its dma-buf (`ibv_reg_dmabuf_mr`).
    DmaBuf,
    /// A GPU's memory by its address, which the module nvidia-peermem resolves (`ibv_reg_mr`).
    Peer,
    /// Host memory (`ibv_reg_mr`).
    Host,
}

impl RegistrationMethod {
    /// The name in plans, reports and metrics.
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

/// What may be done with registered memory beside reading it locally.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// The card may write it for work of this side (receives).
    pub local_write: bool,
    /// The peer may write it.
    pub remote_write: bool,
    /// Writes may become visible in another order than they came (`IBV_ACCESS_RELAXED_ORDERING`): for payload alone, never
    /// for words that tell of payload.
    pub relaxed: bool,
}

/// Why the verbs, or what stands for them, refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{nic}: {call}: {}{}{why}", describe_errno(*.errno), if .why.is_empty() { "" } else { "; " })]
pub struct VerbsError {
    /// The card.
    pub nic: String,
    /// The call, as in `ibv_reg_mr`, with what it was given.
    pub call: String,
    /// The kernel's answer, a positive errno; 0 where it is none of the kernel's.
    pub errno: i32,
    /// What it means and what helps; may be empty.
    pub why: String,
}

fn describe_errno(errno: i32) -> String {
    if errno == 0 {
        return "refused".to_owned();
    }
    std::io::Error::from_raw_os_error(errno).to_string()
}

/// What a card can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most work that waits in a queue.
    pub max_work: u32,
    /// Most completions that wait in a completion queue.
    pub max_completions: u32,
    /// Most pieces of one work.
    pub max_sges: u32,
    /// Most bytes of one registration.
    pub max_registered: u64,
    /// Most bytes of one message.
    pub max_message: u64,
    /// Most bytes that are sent inline, out of the posted work itself.
    pub max_inline: u32,
}

/// The state of a card's port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Its number, from 1 on.
    pub number: u8,
    /// Whether it is up (`IBV_PORT_ACTIVE`).
    pub is_active: bool,
    /// Whether it is Ethernet (RoCE); else InfiniBand.
    pub is_ethernet: bool,
    /// Bytes of payload of one packet in use.
    pub mtu: u32,
    /// Local identifier; 0 with Ethernet.
    pub lid: u16,
    /// The chosen entry of its table of addresses.
    pub gid_index: u8,
    /// That address.
    pub gid: [u8; 16],
}

/// What a peer must know of a queue to be connected with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Endpoint {
    /// The queue pair's number, 24 bits.
    pub number: u32,
    /// The number of the first packet that it sends, 24 bits.
    pub psn: u32,
    /// Its port's local identifier; of a software card, its TCP port.
    pub lid: u16,
    /// Its port's address.
    pub gid: [u8; 16],
    /// Bytes of payload of one packet, at most; both sides take the lesser.
    pub mtu: u32,
    /// What a datagram must carry to be taken (UD); 0 else.
    pub qkey: u32,
}

/// How a queue's packets go.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Service {
    /// Reliable connection: in order, repeated until they are acknowledged.
    #[default]
    Rc,
    /// Unreliable connection: a message of which a packet is missing is gone.
    Uc,
    /// Unreliable datagrams: messages of one packet.
    Ud,
}

impl Service {
    /// The name in configuration and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rc => "rc",
            Self::Uc => "uc",
            Self::Ud => "ud",
        }
    }
}

/// What a queue is to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePairOptions {
    /// Its service.
    pub service: Service,
    /// Most work to send at a time.
    pub sends: u32,
    /// Most receives at a time.
    pub receives: u32,
    /// Most pieces of one receive.
    pub sges: u32,
    /// Bytes that are to go inline; less where the card takes less.
    pub inline: u32,
    /// Whether it will be [waited](QueuePair::wait) for.
    pub events: bool,
}

/// Memory registered with a card. Dropping it ends that: whatever the peer or posted work does then is refused by the card.
/// The region is kept until then.
pub struct MemoryRegion {
    /// Ends the registration; declared before the region, so undone before it is let go.
    handle: Box<dyn Send + Sync>,
    region: Arc<Region>,
    method: RegistrationMethod,
    lkey: u32,
    rkey: u32,
    address: u64,
}

impl MemoryRegion {
    /// What a card has made: `handle` ends the registration when it is dropped. `address` is that of the region's first
    /// byte, as the peer names it.
    pub fn new(
        handle: Box<dyn Send + Sync>,
        region: Arc<Region>,
        method: RegistrationMethod,
        (lkey, rkey): (u32, u32),
        address: u64,
    ) -> Self {
        Self {
            handle,
            region,
            method,
            lkey,
            rkey,
            address,
        }
    }

    /// What names it in work of this side.
    pub const fn lkey(&self) -> u32 {
        self.lkey
    }

    /// What names it for the peer; another one after it was registered anew.
    pub const fn rkey(&self) -> u32 {
        self.rkey
    }

    /// The address of its first byte, as the card and the peer name it.
    pub const fn address(&self) -> u64 {
        self.address
    }

    /// The memory.
    pub const fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// The way in which it was registered.
    pub const fn method(&self) -> RegistrationMethod {
        self.method
    }

    /// The card's own part.
    pub fn handle(&self) -> &(dyn Send + Sync) {
        &*self.handle
    }

    /// `bytes` bytes from `offset` on.
    ///
    /// # Panics
    /// If they are not all inside.
    pub fn sge(&self, offset: usize, bytes: usize) -> Sge<'_> {
        let end = offset.checked_add(bytes);
        assert!(
            end.is_some_and(|end| end <= self.region.bytes()),
            "{bytes} bytes at {offset} of a region of {}",
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
            .field("way", &self.method)
            .field("local", &format_args!("{:#x}", self.lkey))
            .field("remote", &format_args!("{:#x}", self.rkey))
            .finish_non_exhaustive()
    }
}

/// A part of registered memory; always inside.
#[derive(Clone, Copy, Debug)]
pub struct Sge<'a> {
    memory: &'a MemoryRegion,
    offset: usize,
    bytes: usize,
}

impl Sge<'_> {
    /// The memory.
    pub const fn memory(&self) -> &MemoryRegion {
        self.memory
    }

    /// Bytes before it.
    pub const fn offset(&self) -> usize {
        self.offset
    }

    /// Its bytes.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Its address, as the card names it.
    pub const fn address(&self) -> u64 {
        self.memory.address + self.offset as u64
    }
}

/// Bytes that are sent.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// Out of registered memory, which must stay as it is until the work is done.
    Memory(&'a [Sge<'a>]),
    /// Copied when it is posted; at most [`Limits::max_inline`] bytes.
    Inline(&'a [u8]),
}

impl Payload<'_> {
    /// Bytes of all of it.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Memory(sges) => sges.iter().map(Sge::bytes).sum(),
            Self::Inline(bytes) => bytes.len(),
        }
    }
}

/// What work does with its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Writes it to the peer's `address`, named by `key`; with an immediate the peer gets a completion, for which it must
    /// have posted a receive.
    Write {
        /// Where to.
        address: u64,
        /// What names the peer's memory.
        rkey: u32,
        /// What the peer's completion carries.
        immediate: Option<u32>,
    },
    /// Sends it into the peer's next posted receive.
    Send {
        /// What the peer's completion carries.
        immediate: Option<u32>,
    },
}

/// Work to be posted.
#[derive(Clone, Copy, Debug)]
pub struct WorkRequest<'a> {
    /// Comes back with its completion.
    pub id: u64,
    /// What is done.
    pub verb: Verb,
    /// With what.
    pub payload: Payload<'a>,
    /// Whether it completes visibly where it succeeds; failures always do.
    pub signaled: bool,
}

/// How work ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// It is done.
    Success,
    /// The queue has failed before; this was not done.
    Flushed,
    /// The peer did not answer (`RETRY_EXC_ERR`): it is gone, or the link is cut.
    Unanswered,
    /// The peer had no receive posted, again and again (`RNR_RETRY_EXC_ERR`).
    NotReady,
    /// The peer refused the key or the address (`REM_ACCESS_ERR`).
    RemoteAccess,
    /// This side's memory or length was refused (`LOC_PROT_ERR`, `LOC_LEN_ERR`).
    Local,
    /// The peer failed while it did the work (`REM_OP_ERR`, `REM_INV_REQ_ERR`).
    RemoteOperation,
    /// Anything else, by its number in the verbs (`ibv_wc_status`).
    Other(u32),
}

impl Status {
    /// The name in reports and metrics.
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

/// Which side of a queue a completion is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Work that was posted to send.
    Sent,
    /// A posted receive that was used up: by a message, or by a write with an immediate.
    Received,
}

/// A completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkCompletion {
    /// The work's id.
    pub id: u64,
    /// Which side. Meaningless where it did not succeed.
    pub side: Side,
    /// How it ended.
    pub status: Status,
    /// Bytes received. Meaningless for what was sent.
    pub bytes: u32,
    /// What the peer sent along.
    pub immediate: Option<u32>,
}

/// A queue pair with a completion queue. It starts unconnected; receives may be posted before it is connected.
///
/// `post`, `receive` and `poll` are the data path: no allocation, no lock that another data thread holds, no system call
/// (a software card makes some). Dropping a queue destroys it: nothing is written for it afterwards.
///
/// A queue of a card can be told from one of software ([`Any`]), for what rdma_cm says of its connection is for the former.
pub trait QueuePair: Any + Send {
    /// What the peer must know.
    fn endpoint(&self) -> Endpoint;

    /// Connects it with the peer's queue.
    fn connect(&mut self, peer: &Endpoint) -> Result<(), VerbsError>;

    /// Posts work to send. An error leaves nothing posted.
    fn post_send(&mut self, work: &WorkRequest<'_>) -> Result<(), VerbsError>;

    /// Posts a receive; without pieces for writes with immediates.
    fn post_receive(&mut self, id: u64, into: &[Sge<'_>]) -> Result<(), VerbsError>;

    /// Collects completions; never waits. An error is one of the completion queue itself, as when it was overrun.
    fn poll(&mut self, done: &mut [WorkCompletion]) -> Result<usize, VerbsError>;

    /// Ends all that it does, for good: it takes no message and acknowledges none any more. Whatever was posted
    /// completes soon, [flushed](Status::Flushed) where it was not done; so once all receives have completed, those
    /// that succeeded are all messages of which the peer can have been told that they came.
    fn stop(&mut self) -> Result<(), VerbsError>;

    /// Waits until a completion may be there or `limit` has passed; false where it cannot wait.
    fn wait(&mut self, limit: Duration) -> Result<bool, VerbsError>;
}

/// Something that happened to a card, not to one work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NicEvent {
    /// Its port came up.
    PortUp,
    /// Its port went down.
    PortDown,
    /// It failed, or was removed.
    Fatal,
    /// A completion queue was overrun.
    CompletionOverrun,
    /// Another one, by its name in the verbs.
    Other(String),
}

/// A network card, opened.
pub trait Nic: Send + Sync + fmt::Debug {
    /// Its name, as in `mlx5_0`.
    fn name(&self) -> &str;

    /// What it can do.
    fn limits(&self) -> Limits;

    /// Its port as it is now.
    fn port(&self) -> Result<Port, VerbsError>;

    /// Registers all of `region` in one `method`. Which one is [`register`](crate::register)'s business.
    fn register(
        &self,
        region: &Arc<Region>,
        method: RegistrationMethod,
        access: Access,
    ) -> Result<MemoryRegion, VerbsError>;

    /// Makes a queue.
    fn create_queue_pair(
        &self,
        options: &QueuePairOptions,
    ) -> Result<Box<dyn QueuePair>, VerbsError>;

    /// What has happened to it since the last call; never waits.
    fn event(&self) -> Option<NicEvent>;
}
