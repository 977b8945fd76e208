//! Wrappers of the library's objects for a queue pair: channel, completion queue, queue pair, address handle. Each
//! wrapper destroys the library's object on drop, and keeps the NIC alive until then. A structure with several wrappers
//! must declare them in the order in which they must be destroyed.

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
pub(crate) struct Channel {
    /// The library's object.
    pub raw: NonNull<ib::ibv_comp_channel>,
    context: Arc<Context>,
}

impl Channel {
    /// Creates a non-blocking channel.
    pub(crate) fn new(context: &Arc<Context>) -> Result<Self, VerbsError> {
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
        context::nonblocking(parts.fd()).map_err(|errno| {
            refused(
                context.name(),
                Call::Make,
                "fcntl of the completion channel",
                errno,
            )
        })?;
        Ok(parts)
    }

    /// Returns the descriptor, which is readable when events are pending.
    pub(crate) fn fd(&self) -> c_int {
        // SAFETY: the channel exists as long as `self`, and its descriptor does not change.
        unsafe { (*self.raw.as_ptr()).fd }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: the completion queue that used the channel is destroyed already, because it is declared before. The
        // channel is destroyed only here.
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
pub(crate) struct CompletionQueue {
    /// The library's object.
    pub raw: NonNull<ib::ibv_cq>,
    /// True if the NIC has reported that the completion queue failed.
    pub failed: Arc<AtomicBool>,
    context: Arc<Context>,
}

impl CompletionQueue {
    /// Creates a completion queue for at least `depth` completions, which signals `channel`.
    pub(crate) fn new(
        context: &Arc<Context>,
        depth: u32,
        channel: Option<&Channel>,
    ) -> Result<Self, VerbsError> {
        let to = channel.map_or(null_mut(), |channel| channel.raw.as_ptr());
        let entries = c_int::try_from(depth).unwrap_or(c_int::MAX);
        // SAFETY: the context is open. The channel, if any, belongs to it and outlives the queue by the order of the
        // fields.
        let queue = unsafe { ib::ibv_create_cq(context.raw(), entries, null_mut(), to, 0) };
        let queue = NonNull::new(queue).ok_or_else(|| {
            let call = format!("ibv_create_cq of {depth}");
            refused(context.name(), Call::Make, call, last())
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
        // SAFETY: the queue pair that used the completion queue is destroyed already, because it is declared before.
        // All received events were acknowledged. The queue is destroyed only here.
        let errno = unsafe { ib::ibv_destroy_cq(self.raw.as_ptr()) };
        warn_of(errno, &self.context, "ibv_destroy_cq");
    }
}

/// A queue pair.
pub(crate) struct QueuePairHandle {
    /// The library's object.
    pub raw: NonNull<ib::ibv_qp>,
    /// The capacities that the NIC granted.
    pub cap: ib::ibv_qp_cap,
    /// The NIC's context.
    pub context: Arc<Context>,
}

impl QueuePairHandle {
    /// Creates a queue pair whose requests complete in `completions`.
    pub(crate) fn new(
        context: &Arc<Context>,
        completions: &CompletionQueue,
        service: Service,
        cap: ib::ibv_qp_cap,
        is_mlx5: bool,
    ) -> Result<Self, VerbsError> {
        // SAFETY: the structure consists only of integers and pointers, for which zero is a valid value.
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
            // SAFETY:
            // - The domain exists as long as the context.
            // - The completion queue belongs to the context and outlives the pair by the order of the fields.
            // - The structure is valid during the call.
            let pair = unsafe { ib::ibv_create_qp(context.domain(), &raw mut plain) };
            let pair = NonNull::new(pair).ok_or_else(|| {
                let call = format!(
                    "ibv_create_qp ({}) with {} sends and {} receives of {} scatter/gather elements",
                    service.name(),
                    cap.max_send_wr,
                    cap.max_recv_wr,
                    cap.max_recv_sge
                );
                refused(context.name(), Call::Make, call, last())
            })?;
            (pair, plain.cap)
        };
        Ok(Self {
            raw,
            cap,
            context: Arc::clone(context),
        })
    }

    /// Creates a queue pair of an mlx5 NIC that does not write received bytes into completions. Otherwise the library
    /// would copy these bytes with the CPU, which cannot access GPU memory. The environment variable
    /// `MLX5_SCATTER_TO_CQE=0` has the same effect for the whole process, but setting the variable here would be
    /// unsound while other threads may read the environment.
    fn without_scatter(
        context: &Arc<Context>,
        attributes_: &mut ib::ibv_qp_init_attr_ex,
    ) -> Option<NonNull<ib::ibv_qp>> {
        // SAFETY: the structure consists only of integers, for which zero is a valid value.
        let mut local_address: ib::mlx5dv_qp_init_attr =
            unsafe { MaybeUninit::zeroed().assume_init() };
        local_address.comp_mask =
            ib::mlx5dv_qp_init_attr_mask::MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS
                .0
                .into();
        local_address.create_flags =
            ib::mlx5dv_qp_create_flags::MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE.0;
        // SAFETY: the conditions for `ibv_create_qp` apply. The library checks that the context belongs to an mlx5 NIC.
        let pair = unsafe {
            ib::mlx5dv_create_qp(context.raw(), &raw mut *attributes_, &raw mut local_address)
        };
        let pair = NonNull::new(pair);
        if pair.is_none() {
            tracing::warn!(
                "{}: mlx5dv_create_qp failed: {}; if this queue pair receives short messages into GPU memory, set \
                 MLX5_SCATTER_TO_CQE=0 in the environment and restart",
                context.name(),
                std::io::Error::from_raw_os_error(last())
            );
        }
        pair
    }

    /// Returns the queue pair number.
    pub(crate) fn number(&self) -> u32 {
        // SAFETY: the pair exists as long as `self`, and its number does not change.
        unsafe { (*self.raw.as_ptr()).qp_num }
    }

    /// Performs one state transition. `to` is the name of the new state in error messages.
    pub(crate) fn transition(&self, mut step: Transition, to: &str) -> Result<(), VerbsError> {
        // SAFETY: the pair exists; the structure is valid during the call.
        let errno =
            unsafe { ib::ibv_modify_qp(self.raw.as_ptr(), &raw mut step.attributes, step.mask) };
        if errno == 0 {
            return Ok(());
        }
        let errno = if errno > 0 { errno } else { last() };
        let call = format!("ibv_modify_qp of {:#x} to {to}", self.number());
        Err(refused(self.context.name(), Call::Connect, call, errno))
    }
}

impl Drop for QueuePairHandle {
    fn drop(&mut self) {
        // SAFETY: the library created the pair, and it is destroyed only here. Afterwards the NIC no longer processes
        // its requests.
        let errno = unsafe { ib::ibv_destroy_qp(self.raw.as_ptr()) };
        warn_of(errno, &self.context, "ibv_destroy_qp");
    }
}

/// The destination of datagrams.
pub(crate) struct AddressHandle {
    /// The library's object.
    pub raw: NonNull<ib::ibv_ah>,
    /// The number of the peer's queue pair.
    pub number: u32,
    /// The Q_Key that the peer's queue pair expects.
    pub key: u32,
    context: Arc<Context>,
}

impl AddressHandle {
    /// Creates the address handle of `peer`.
    pub(crate) fn new(
        context: &Arc<Context>,
        port_ref: PortRef,
        peer: &Endpoint,
    ) -> Result<Self, VerbsError> {
        let mut route = modify::route(port_ref, peer);
        // SAFETY: the domain exists as long as the context; the structure is valid during the call.
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
        // SAFETY: the pair whose requests use the handle is destroyed already, because it is declared before. The
        // handle is destroyed only here.
        let errno = unsafe { ib::ibv_destroy_ah(self.raw.as_ptr()) };
        warn_of(errno, &self.context, "ibv_destroy_ah");
    }
}
