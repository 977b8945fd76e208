//! Queue pairs: requests, completions, and waiting for completions.

use super::context::{self, Context};
use super::errno::{self, Call, found, last, refused};
use super::ffi::{self as ib, ibv_wr_opcode as opcode};
use super::modify::{self, PortRef, Transition};
use super::objects::{AddressHandle, Channel, CompletionQueue, QueuePairHandle};
use crate::verbs::{
    Endpoint, MemoryRegion, Payload, QueuePair, QueuePairOptions, Service, Sge, Side, Status, Verb,
    VerbsError, WorkCompletion, WorkRequest,
};
use std::ffi::c_int;
use std::hash::{BuildHasher, RandomState};
use std::mem::MaybeUninit;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Maximum number of scatter/gather elements per request.
pub(crate) const MAX_SGES: usize = 16;
/// Number of bytes before each received datagram, reserved for the global route header.
pub(crate) const GRH_BYTES: u32 = 40;
/// Maximum number of completions that one call of the library collects.
const BATCH: usize = 64;
/// Number of empty polls after which the NIC's events are checked by one system call. Many NICs report the overrun of a
/// completion queue only by an event, and the queue then returns no completions.
const EMPTY_POLLS: u32 = 1 << 12;

/// The NIC's properties from which a queue pair is created.
pub(crate) struct QueuePairParts<'a> {
    /// The NIC's context.
    pub context: &'a Arc<Context>,
    /// The NIC's port.
    pub port_ref: PortRef,
    /// The port's parameters for the peer.
    pub endpoint: Endpoint,
    /// True if the NIC uses the driver mlx5.
    pub is_mlx5: bool,
    /// Buffer for the header of datagrams.
    pub header: Option<MemoryRegion>,
}

/// A queue pair of a hardware NIC. Its fields are dropped in the order of their declaration.
pub(crate) struct VerbsQueuePair {
    pair: QueuePairHandle,
    destination: Option<AddressHandle>,
    completions: CompletionQueue,
    channel: Option<Channel>,
    /// Buffer for the header of every datagram; the content of the header is not used.
    header: Option<MemoryRegion>,
    service: Service,
    port_ref: PortRef,
    endpoint: Endpoint,
    is_connected: bool,
    /// True if the next completion raises an event.
    is_armed: bool,
    /// Number of consecutive empty polls.
    empty_polls: u32,
    /// True if the last poll collected completions and then failed; the next poll reports the error.
    has_failed: bool,
    scratch: Box<[ib::ibv_wc]>,
}

// SAFETY: libibverbs binds none of its objects to a thread, and only the owner of the queue pair uses the pointers.
unsafe impl Send for VerbsQueuePair {}

impl VerbsQueuePair {
    /// Creates a queue pair. Receives may be posted immediately.
    pub(crate) fn new(
        parts: QueuePairParts<'_>,
        options: &QueuePairOptions,
    ) -> Result<Self, VerbsError> {
        let context = parts.context;
        let channel = options.events.then(|| Channel::new(context)).transpose()?;
        // Each request completes at most once, so this depth suffices if the NIC frees a queue entry when its
        // completion is collected. Soft-RoCE frees the entry earlier.
        let depth = options.sends.saturating_add(options.receives).max(1);
        let completions = CompletionQueue::new(context, depth, channel.as_ref())?;
        let sges = options.sges.max(1);
        let cap = ib::ibv_qp_cap {
            max_send_wr: options.sends.max(1),
            max_recv_wr: options.receives.max(1),
            // A message consists of a record and its payload.
            max_send_sge: sges.max(2),
            max_recv_sge: sges + u32::from(parts.header.is_some()),
            max_inline_data: options.inline,
        };
        let pair =
            QueuePairHandle::new(context, &completions, options.service, cap, parts.is_mlx5)?;
        let endpoint = Endpoint {
            number: pair.number(),
            psn: any(0xff_ffff),
            // With the top bit set, the NIC would use the receiving queue pair's Q_Key, which requires a privilege.
            qkey: if options.service == Service::Ud {
                any(0x7fff_ffff)
            } else {
                0
            },
            ..parts.endpoint
        };
        pair.transition(
            modify::init(options.service, parts.port_ref, endpoint.qkey),
            "INIT",
        )?;
        // SAFETY: the structure consists only of integers, for which zero is a valid value.
        let empty: ib::ibv_wc = unsafe { MaybeUninit::zeroed().assume_init() };
        Ok(Self {
            pair,
            destination: None,
            completions,
            channel,
            header: parts.header,
            service: options.service,
            port_ref: parts.port_ref,
            endpoint,
            is_connected: false,
            is_armed: false,
            empty_polls: 0,
            has_failed: false,
            scratch: vec![empty; BATCH].into_boxed_slice(),
        })
    }

    /// Returns the maximum number of inline bytes.
    pub(crate) const fn inline(&self) -> u32 {
        self.pair.cap.max_inline_data
    }

    /// Connects the queue pair by the transitions that rdma_cm has prepared.
    pub(crate) fn connect_with(
        &mut self,
        receive: Transition,
        send: Transition,
    ) -> Result<(), VerbsError> {
        self.pair.transition(modify::set_timeouts(receive), "RTR")?;
        self.pair.transition(modify::set_timeouts(send), "RTS")?;
        self.is_connected = true;
        Ok(())
    }

    fn nic(&self) -> &str {
        self.pair.context.name()
    }

    /// Returns the error for a request that is invalid and was not posted.
    fn invalid(&self, call: String) -> VerbsError {
        VerbsError {
            nic: self.nic().to_owned(),
            call,
            errno: libc::EINVAL,
            why: String::new(),
        }
    }

    /// Requests an event for the next completion.
    fn arm(&mut self) -> Result<(), VerbsError> {
        // SAFETY: the completion queue exists, and its context's operation table belongs to the driver.
        let errno = unsafe { ib::ibv_req_notify_cq(self.completions.raw.as_ptr(), 0) };
        if errno != 0 {
            let errno = if errno > 0 { errno } else { last() };
            return Err(refused(self.nic(), Call::Query, "ibv_req_notify_cq", errno));
        }
        self.is_armed = true;
        Ok(())
    }

    /// Reads and acknowledges pending events.
    fn take_events(&mut self, channel: NonNull<ib::ibv_comp_channel>) {
        let mut count = 0;
        loop {
            let (mut queue, mut context) = (null_mut(), null_mut());
            // SAFETY: the channel exists and does not block; the pointers are valid during the call.
            let answer =
                unsafe { ib::ibv_get_cq_event(channel.as_ptr(), &raw mut queue, &raw mut context) };
            if answer != 0 {
                break;
            }
            count += 1;
        }
        if count > 0 {
            // SAFETY: `count` events were received and not yet acknowledged. All belong to this queue, the only one of
            // the channel.
            unsafe { ib::ibv_ack_cq_events(self.completions.raw.as_ptr(), count) };
            self.is_armed = false;
        }
    }

    fn overrun(&self) -> VerbsError {
        found(
            self.nic(),
            "ibv_poll_cq",
            "the completion queue was overrun or has failed, so completions are lost; reconnect",
        )
    }
}

/// Fills `completed` by repeated calls of `poll`, which returns the number of entries or a negative error. Returns the
/// number of completions and whether a call failed. Completions collected before the failure are returned, because the
/// NIC reports each completion only once.
fn collect(
    completed: &mut [WorkCompletion],
    scratch: &mut [ib::ibv_wc],
    header: u32,
    mut poll: impl FnMut(&mut [ib::ibv_wc]) -> c_int,
) -> (usize, bool) {
    let mut count = 0;
    while count < completed.len() {
        let room = (completed.len() - count).min(scratch.len());
        let Ok(found) = usize::try_from(poll(&mut scratch[..room])) else {
            return (count, true);
        };
        let found = found.min(room);
        for (to, wc) in completed[count..].iter_mut().zip(&scratch[..found]) {
            *to = done(wc, header);
        }
        count += found;
        if found < room {
            break;
        }
    }
    (count, false)
}

/// Returns a random number within the bits of `mask`. Random values prevent that packets of an earlier connection are
/// accepted.
fn any(mask: u32) -> u32 {
    let word = RandomState::new().hash_one(std::process::id());
    u32::try_from(word & u64::from(mask)).unwrap_or(0)
}

/// Returns the list of `first`, if given, and `sges` in the library's format. Returns `None` if the list would have too
/// many elements, or if an element is too long.
fn sge_list(
    first: Option<ib::ibv_sge>,
    sges: &[Sge<'_>],
) -> Option<([ib::ibv_sge; MAX_SGES], usize)> {
    let mut list = [ib::ibv_sge {
        addr: 0,
        length: 0,
        lkey: 0,
    }; MAX_SGES];
    let mut count = 0;
    let given = sges.iter().map(|sge| {
        Some(ib::ibv_sge {
            addr: sge.address(),
            length: u32::try_from(sge.bytes()).ok()?,
            lkey: sge.memory().lkey(),
        })
    });
    for element in first.map(Some).into_iter().chain(given) {
        *list.get_mut(count)? = element?;
        count += 1;
    }
    Some((list, count))
}

/// Converts a completion from the library's format.
fn done(wc: &ib::ibv_wc, header: u32) -> WorkCompletion {
    let side = if wc.opcode & ib::ibv_wc_opcode::IBV_WC_RECV == 0 {
        Side::Sent
    } else {
        Side::Received
    };
    let has_immediate = wc.wc_flags & ib::ibv_wc_flags::IBV_WC_WITH_IMM.0 != 0;
    let status = errno::status(wc.status);
    WorkCompletion {
        id: wc.wr_id,
        side,
        status,
        bytes: wc.byte_len.saturating_sub(header),
        immediate: (status == Status::Success && has_immediate && side == Side::Received).then(
            || {
                // SAFETY: both variants of the union are 32-bit integers, for which every bit pattern is valid.
                u32::from_be(unsafe { wc.__bindgen_anon_1.imm_data })
            },
        ),
    }
}

impl QueuePair for VerbsQueuePair {
    fn endpoint(&self) -> Endpoint {
        self.endpoint
    }

    fn connect(&mut self, peer: &Endpoint) -> Result<(), VerbsError> {
        if self.service == Service::Ud {
            let to = AddressHandle::new(&self.pair.context, self.port_ref, peer)?;
            self.destination = Some(to);
        }
        let receive = modify::receive(self.service, self.port_ref, self.endpoint.mtu, peer);
        self.pair.transition(receive, "RTR")?;
        self.pair
            .transition(modify::send(self.service, self.endpoint.psn), "RTS")?;
        self.is_connected = true;
        Ok(())
    }

    fn post_send(&mut self, work: &WorkRequest<'_>) -> Result<(), VerbsError> {
        let bytes = work.payload.bytes();
        if !self.is_connected {
            return Err(self.invalid("ibv_post_send: the queue pair is not connected".to_owned()));
        }
        if self.service == Service::Ud && bytes > self.endpoint.mtu as usize {
            let mtu = self.endpoint.mtu;
            return Err(self.invalid(format!(
                "ibv_post_send: a datagram of {bytes} bytes exceeds the MTU of {mtu} bytes"
            )));
        }
        let (mut list, count, inline) = match work.payload {
            Payload::Memory(sges) => {
                let max = self.pair.cap.max_send_sge as usize;
                match sge_list(None, sges) {
                    Some((list, count)) if count <= max => (list, count, 0),
                    _ => {
                        let sges = sges.len();
                        return Err(self.invalid(format!(
                            "ibv_post_send of {bytes} bytes: {sges} scatter/gather elements exceed the maximum of {max}"
                        )));
                    }
                }
            }
            Payload::Inline(data) => {
                let max = self.inline();
                let length = u32::try_from(data.len()).unwrap_or(u32::MAX);
                if length > max {
                    return Err(self.invalid(format!(
                        "ibv_post_send: {bytes} inline bytes exceed the maximum of {max}"
                    )));
                }
                let mut list = [ib::ibv_sge {
                    addr: 0,
                    length: 0,
                    lkey: 0,
                }; MAX_SGES];
                list[0].addr = data.as_ptr().expose_provenance() as u64;
                list[0].length = length;
                (
                    list,
                    usize::from(length > 0),
                    ib::ibv_send_flags::IBV_SEND_INLINE.0,
                )
            }
        };
        // SAFETY: the structure consists of integers, pointers and unions of these, for which zero is a valid value.
        let mut request: ib::ibv_send_wr = unsafe { MaybeUninit::zeroed().assume_init() };
        request.wr_id = work.id;
        request.sg_list = list.as_mut_ptr();
        request.num_sge = c_int::try_from(count).unwrap_or(0);
        request.send_flags = inline;
        if work.signaled {
            request.send_flags |= ib::ibv_send_flags::IBV_SEND_SIGNALED.0;
        }
        let immediate = match work.verb {
            Verb::Write {
                address,
                rkey: key,
                immediate,
            } => {
                if self.service == Service::Ud {
                    return Err(self.invalid(
                        "ibv_post_send: a datagram queue pair (ud) does not support RDMA writes"
                            .to_owned(),
                    ));
                }
                request.wr.rdma = ib::ibv_send_wr__bindgen_ty_2__bindgen_ty_1 {
                    remote_addr: address,
                    rkey: key,
                };
                request.opcode = if immediate.is_some() {
                    opcode::IBV_WR_RDMA_WRITE_WITH_IMM
                } else {
                    opcode::IBV_WR_RDMA_WRITE
                };
                immediate
            }
            Verb::Send { immediate } => {
                if let Some(to) = &self.destination {
                    request.wr.ud = ib::ibv_send_wr__bindgen_ty_2__bindgen_ty_3 {
                        ah: to.raw.as_ptr(),
                        remote_qpn: to.number,
                        remote_qkey: to.key,
                    };
                }
                request.opcode = if immediate.is_some() {
                    opcode::IBV_WR_SEND_WITH_IMM
                } else {
                    opcode::IBV_WR_SEND
                };
                immediate
            }
        };
        if let Some(immediate) = immediate {
            request.__bindgen_anon_1.imm_data = immediate.to_be();
        }
        let mut bad = null_mut();
        // SAFETY:
        // - The pair exists and is connected.
        // - The request and its list are valid during the call, which copies them and the inline bytes.
        // - Elements are in registered memory. If a registration ends while the request is pending, the NIC rejects the
        //   access.
        let errno =
            unsafe { ib::ibv_post_send(self.pair.raw.as_ptr(), &raw mut request, &raw mut bad) };
        if errno == 0 {
            return Ok(());
        }
        let errno = if errno > 0 { errno } else { last() };
        let call = format!("ibv_post_send of {bytes} bytes");
        Err(refused(self.nic(), Call::Post, call, errno))
    }

    fn post_receive(&mut self, id: u64, into: &[Sge<'_>]) -> Result<(), VerbsError> {
        let header = self.header.as_ref().map(|key| ib::ibv_sge {
            addr: key.address(),
            length: GRH_BYTES,
            lkey: key.lkey(),
        });
        let max = self.pair.cap.max_recv_sge as usize;
        let Some((mut list, count)) = sge_list(header, into).filter(|(_, count)| *count <= max)
        else {
            let sges = into.len();
            return Err(self.invalid(format!(
                "ibv_post_recv: {sges} scatter/gather elements exceed the maximum of {}",
                max - usize::from(header.is_some())
            )));
        };
        let mut request = ib::ibv_recv_wr {
            wr_id: id,
            next: null_mut(),
            sg_list: list.as_mut_ptr(),
            num_sge: c_int::try_from(count).unwrap_or(0),
        };
        let mut bad = null_mut();
        // SAFETY:
        // - The pair exists and left the RESET state when it was created.
        // - The request and its list are valid during the call, which copies them.
        // - Elements are in registered memory. If a registration ends while the request is pending, the NIC rejects the
        //   access.
        let errno =
            unsafe { ib::ibv_post_recv(self.pair.raw.as_ptr(), &raw mut request, &raw mut bad) };
        if errno == 0 {
            return Ok(());
        }
        let errno = if errno > 0 { errno } else { last() };
        Err(refused(self.nic(), Call::Post, "ibv_post_recv", errno))
    }

    fn poll(&mut self, completed: &mut [WorkCompletion]) -> Result<usize, VerbsError> {
        if self.has_failed {
            return Err(self.overrun());
        }
        let header = self.header.as_ref().map_or(0, |_| GRH_BYTES);
        let queue = self.completions.raw.as_ptr();
        let (count, has_failed) = collect(completed, &mut self.scratch, header, |scratch| {
            let max = c_int::try_from(scratch.len()).unwrap_or(c_int::MAX);
            // SAFETY: the completion queue exists, and `scratch` has room for the requested number of entries.
            unsafe { ib::ibv_poll_cq(queue, max, scratch.as_mut_ptr()) }
        });
        self.has_failed = has_failed;
        if has_failed && count == 0 {
            return Err(self.overrun());
        }
        if count > 0 {
            self.empty_polls = 0;
            return Ok(count);
        }
        self.empty_polls += 1;
        if self.empty_polls >= EMPTY_POLLS {
            self.empty_polls = 0;
            self.pair.context.poll_events();
        }
        if self.completions.failed.load(Ordering::Acquire) {
            return Err(self.overrun());
        }
        Ok(0)
    }

    fn stop(&mut self) -> Result<(), VerbsError> {
        self.pair.transition(modify::error(), "ERR")
    }

    fn wait(&mut self, limit: Duration) -> Result<bool, VerbsError> {
        let Some(channel) = &self.channel else {
            return Ok(false);
        };
        let (fd, channel) = (channel.fd(), channel.raw);
        if !self.is_armed {
            // Completions that arrived before the queue was armed raise no event, so the caller must poll once more
            // before it blocks.
            self.arm()?;
            return Ok(true);
        }
        context::wait(fd, limit).map_err(|errno| {
            refused(
                self.nic(),
                Call::Query,
                "poll of the completion channel",
                errno,
            )
        })?;
        self.take_events(channel);
        self.pair.context.poll_events();
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use daq_core::region::{HostOptions, Region};

    fn wc(opcode: u32, flags: u32, immediate: u32) -> ib::ibv_wc {
        ib::ibv_wc {
            wr_id: 7,
            status: 0,
            opcode,
            vendor_err: 0,
            byte_len: 140,
            __bindgen_anon_1: ib::ibv_wc__bindgen_ty_1 {
                imm_data: immediate.to_be(),
            },
            qp_num: 1,
            src_qp: 2,
            wc_flags: flags,
            pkey_index: 0,
            slid: 0,
            sl: 0,
            dlid_path_bits: 0,
        }
    }

    #[test]
    fn completion_has_direction_bytes_and_immediate() {
        use ib::ibv_wc_opcode as is;
        let sent = done(&wc(is::IBV_WC_RDMA_WRITE, 0, 5), 0);
        assert_eq!((sent.id, sent.side, sent.immediate), (7, Side::Sent, None));
        let written = done(&wc(is::IBV_WC_RECV_RDMA_WITH_IMM, 2, 0x0102_0304), 0);
        assert_eq!(written.side, Side::Received);
        assert_eq!((written.bytes, written.immediate), (140, Some(0x0102_0304)));
        let datagram = done(&wc(is::IBV_WC_RECV, 1, 5), GRH_BYTES);
        assert_eq!(
            (datagram.bytes, datagram.immediate),
            (100, None),
            "the length must exclude the header"
        );
        let mut failed = wc(is::IBV_WC_RECV, 2, 5);
        failed.status = ib::ibv_wc_status::IBV_WC_WR_FLUSH_ERR;
        let failed = done(&failed, 0);
        assert_eq!((failed.status, failed.immediate), (Status::Flushed, None));
    }

    /// Completions that were collected before a poll failed must not be lost.
    #[test]
    fn poll_failure_keeps_earlier_completions() {
        let mut completed = [done(&wc(0, 0, 0), 0); 5];
        let mut scratch = vec![wc(0, 0, 0); 2];
        let mut answers = [2, 2, -1].into_iter();
        let mut id = 0;
        let (count, has_failed) = collect(&mut completed, &mut scratch, 0, |scratch| {
            for to in scratch.iter_mut() {
                id += 1;
                to.wr_id = id;
            }
            answers.next().unwrap_or(0)
        });
        assert_eq!((count, has_failed), (4, true));
        assert_eq!(completed[..4].iter().map(|done| done.id).max(), Some(4));
        let (count, has_failed) = collect(&mut completed, &mut scratch, 0, |_| 1);
        assert_eq!((count, has_failed), (1, false));
    }

    #[test]
    fn scatter_list_is_limited() {
        let header = ib::ibv_sge {
            addr: 1,
            length: GRH_BYTES,
            lkey: 3,
        };
        let (list, count) = sge_list(Some(header), &[]).unwrap();
        assert_eq!((count, list[0].length, list[0].lkey), (1, GRH_BYTES, 3));
        assert_eq!(sge_list(None, &[]).unwrap().1, 0);
        let region = Region::host(4096, HostOptions::default()).unwrap();
        let key = MemoryRegion::new(
            Box::new(()),
            region,
            crate::verbs::RegistrationMethod::Host,
            (5, 6),
            0x1000,
        );
        let sges = [key.sge(16, 32); MAX_SGES];
        let (list, count) = sge_list(None, &sges).unwrap();
        assert_eq!(
            (count, list[3].addr, list[3].length),
            (MAX_SGES, 0x1010, 32)
        );
        assert_eq!(list[3].lkey, 5);
        assert!(sge_list(Some(header), &sges).is_none());
    }
}
