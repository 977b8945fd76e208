//! What a queue is made of: channel, completion queue, queue pair, address handle. Each ends what it stands for when it is
//! dropped, and keeps the card until then; who holds several declares them in the order in which they must end.

use super::context::{self, Context};
use super::errno::{Call, last, refused};
use super::ffi as ib;
use super::modify::{self, PortRef, Transition};
use crate::verbs::{Endpoint, Service, VerbsError};
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// A channel that signals new completions.
pub struct Channel {
    /// The library's.
    pub raw: NonNull<ib::ibv_comp_channel>,
    context: Arc<Context>,
}

impl Channel {
    /// A new one, which does not block.
    pub fn new(context: &Arc<Context>) -> Result<Self, VerbsError> {
        // SAFETY: the context is open.
        let channel = unsafe { ib::ibv_create_comp_channel(context.raw()) };
        let channel = NonNull::new(channel).ok_or_else(|| {
            refused(
                context.name(),
                Call::Make,
                "ibv_create_comp_channel",
                last(),
            )
        })?;
        let parts = Self {
            raw: channel,
            context: Arc::clone(context),
        };
        context::nonblocking(parts.fd())
            .map_err(|errno| refused(context.name(), Call::Make, "fcntl of a channel", errno))?;
        Ok(parts)
    }

    /// Its descriptor, readable when events are there.
    pub fn fd(&self) -> c_int {
        // SAFETY: the channel lives as long as `self`; its descriptor does not change.
        unsafe { (*self.raw.as_ptr()).fd }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: the completion queue that used it is gone: it is declared before. Ended this once.
        let errno = unsafe { ib::ibv_destroy_comp_channel(self.raw.as_ptr()) };
        warn_of(errno, &self.context, "ibv_destroy_comp_channel");
    }
}

fn warn_of(errno: c_int, context: &Context, call: &str) {
    if errno != 0 {
        tracing::warn!(
            "{}: {call}: {}",
            context.name(),
            std::io::Error::from_raw_os_error(errno)
        );
    }
}

/// A completion queue.
pub struct CompletionQueue {
    /// The library's.
    pub raw: NonNull<ib::ibv_cq>,
    /// Whether the card has said that it has failed.
    pub failed: Arc<AtomicBool>,
    context: Arc<Context>,
}

impl CompletionQueue {
    /// Creates one for at least `depth` completions, which signals `channel`.
    pub fn new(
        context: &Arc<Context>,
        depth: u32,
        channel: Option<&Channel>,
    ) -> Result<Self, VerbsError> {
        let to = channel.map_or(null_mut(), |channel| channel.raw.as_ptr());
        let entries = c_int::try_from(depth).unwrap_or(c_int::MAX);
        // SAFETY: the context is open; the channel, if there is one, is of it and outlives the queue, as fields are declared.
        let queue = unsafe { ib::ibv_create_cq(context.raw(), entries, null_mut(), to, 0) };
        let queue = NonNull::new(queue).ok_or_else(|| {
            let said = format!("ibv_create_cq of {depth}");
            refused(context.name(), Call::Make, said, last())
        })?;
        let failed = Arc::new(AtomicBool::new(false));
        context.register_cq(queue.as_ptr().addr(), Arc::clone(&failed));
        Ok(Self {
            raw: queue,
            failed,
            context: Arc::clone(context),
        })
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        self.context.unregister_cq(self.raw.as_ptr().addr());
        // SAFETY: the queue pair that used it is gone: it is declared before. All events got were acknowledged. Ended once.
        let errno = unsafe { ib::ibv_destroy_cq(self.raw.as_ptr()) };
        warn_of(errno, &self.context, "ibv_destroy_cq");
    }
}

/// A queue pair.
pub struct QueuePairHandle {
    /// The library's.
    pub raw: NonNull<ib::ibv_qp>,
    /// What the card made of the wishes.
    pub cap: ib::ibv_qp_cap,
    /// Its card.
    pub context: Arc<Context>,
}

impl QueuePairHandle {
    /// One whose work completes in `completions`.
    pub fn new(
        context: &Arc<Context>,
        completions: &CompletionQueue,
        service: Service,
        cap: ib::ibv_qp_cap,
        is_mlx5: bool,
    ) -> Result<Self, VerbsError> {
        // SAFETY: the structure is of integers and pointers alone, for which 0 is a value.
        let mut attributes_: ib::ibv_qp_init_attr_ex =
            unsafe { MaybeUninit::zeroed().assume_init() };
        attributes_.send_cq = completions.raw.as_ptr();
        attributes_.recv_cq = completions.raw.as_ptr();
        attributes_.cap = cap;
        attributes_.qp_type = match service {
            Service::Rc => ib::ibv_qp_type::IBV_QPT_RC,
            Service::Uc => ib::ibv_qp_type::IBV_QPT_UC,
            Service::Ud => ib::ibv_qp_type::IBV_QPT_UD,
        };
        attributes_.comp_mask = ib::ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD.0;
        attributes_.pd = context.domain();
        let parts = if is_mlx5 {
            Self::without_scatter(context, &mut attributes_)
        } else {
            None
        };
        let (raw, cap) = if let Some(pair) = parts {
            (pair, attributes_.cap)
        } else {
            let mut plain = ib::ibv_qp_init_attr {
                qp_context: null_mut(),
                send_cq: attributes_.send_cq,
                recv_cq: attributes_.recv_cq,
                srq: null_mut(),
                cap,
                qp_type: attributes_.qp_type,
                sq_sig_all: 0,
            };
            // SAFETY: the domain lives as long as the context; the completion queue is of it and outlives the pair, as
            // fields are declared; the structure lives through the call.
            let pair = unsafe { ib::ibv_create_qp(context.domain(), &raw mut plain) };
            let pair = NonNull::new(pair).ok_or_else(|| {
                let said = format!(
                    "ibv_create_qp ({}) of {} sends and {} receives of {} pieces",
                    service.name(),
                    cap.max_send_wr,
                    cap.max_recv_wr,
                    cap.max_recv_sge
                );
                refused(context.name(), Call::Make, said, last())
            })?;
            (pair, plain.cap)
        };
        Ok(Self {
            raw,
            cap,
            context: Arc::clone(context),
        })
    }

    /// A queue pair of an mlx5 card that puts no received bytes into completions: the library would copy them on by the
    /// CPU, which does not reach a GPU's memory. `MLX5_SCATTER_TO_CQE=0` does the same for all of a process; but setting it
    /// from here would not be sound while other threads may read the environment.
    fn without_scatter(
        context: &Arc<Context>,
        attributes_: &mut ib::ibv_qp_init_attr_ex,
    ) -> Option<NonNull<ib::ibv_qp>> {
        // SAFETY: as above.
        let mut local_address: ib::mlx5dv_qp_init_attr =
            unsafe { MaybeUninit::zeroed().assume_init() };
        local_address.comp_mask =
            ib::mlx5dv_qp_init_attr_mask::MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS
                .0
                .into();
        local_address.create_flags =
            ib::mlx5dv_qp_create_flags::MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE.0;
        // SAFETY: as for ibv_create_qp; the library checks that the context is of an mlx5 card.
        let pair = unsafe {
            ib::mlx5dv_create_qp(context.raw(), &raw mut *attributes_, &raw mut local_address)
        };
        let pair = NonNull::new(pair);
        if pair.is_none() {
            tracing::warn!(
                "{}: mlx5dv_create_qp: {}; set MLX5_SCATTER_TO_CQE=0 in the environment before short messages are received \
                 into a GPU's memory",
                context.name(),
                std::io::Error::from_raw_os_error(last())
            );
        }
        pair
    }

    /// Its number.
    pub fn number(&self) -> u32 {
        // SAFETY: the pair lives as long as `self`; its number does not change.
        unsafe { (*self.raw.as_ptr()).qp_num }
    }

    /// Goes one step, which errors call `to`.
    pub fn transition(&self, mut step: Transition, to: &str) -> Result<(), VerbsError> {
        // SAFETY: the pair lives; the structure lives through the call.
        let errno =
            unsafe { ib::ibv_modify_qp(self.raw.as_ptr(), &raw mut step.attributes, step.mask) };
        if errno == 0 {
            return Ok(());
        }
        let errno = if errno > 0 { errno } else { last() };
        let said = format!("ibv_modify_qp of {:#x} to {to}", self.number());
        Err(refused(self.context.name(), Call::Connect, said, errno))
    }
}

impl Drop for QueuePairHandle {
    fn drop(&mut self) {
        // SAFETY: made by the library, ended this once. After it the card does nothing for the pair any more.
        let errno = unsafe { ib::ibv_destroy_qp(self.raw.as_ptr()) };
        warn_of(errno, &self.context, "ibv_destroy_qp");
    }
}

/// Where datagrams go.
pub struct AddressHandle {
    /// The library's.
    pub raw: NonNull<ib::ibv_ah>,
    /// The queue pair's number there.
    pub number: u32,
    /// What it takes datagrams by.
    pub key: u32,
    context: Arc<Context>,
}

impl AddressHandle {
    /// The way to `peer`.
    pub fn new(
        context: &Arc<Context>,
        port_ref: PortRef,
        peer: &Endpoint,
    ) -> Result<Self, VerbsError> {
        let mut route = modify::route(port_ref, peer);
        // SAFETY: the domain lives as long as the context; the structure lives through the call.
        let handle = unsafe { ib::ibv_create_ah(context.domain(), &raw mut route) };
        let handle = NonNull::new(handle)
            .ok_or_else(|| refused(context.name(), Call::Connect, "ibv_create_ah", last()))?;
        Ok(Self {
            raw: handle,
            number: peer.number,
            key: peer.qkey,
            context: Arc::clone(context),
        })
    }
}

impl Drop for AddressHandle {
    fn drop(&mut self) {
        // SAFETY: the pair whose work names it is gone: it is declared before. Ended this once.
        let errno = unsafe { ib::ibv_destroy_ah(self.raw.as_ptr()) };
        warn_of(errno, &self.context, "ibv_destroy_ah");
    }
}
