//! The state transitions of a queue pair from creation to connected, with the attributes of each transition.

use super::ffi::{self as ib, ibv_qp_attr_mask as mask};
use crate::verbs::{Endpoint, Service};
use std::ffi::c_int;
use std::mem::MaybeUninit;

/// Local acknowledge timeout: 4.096 µs · 2^14 = 67 ms. With [`RETRIES`], a dead peer is detected within one to a few
/// seconds, because NICs may wait up to four times as long.
const TIMEOUT: u8 = 14;
/// Number of retransmissions without an acknowledgement. The maximum is 7, but soft-RoCE retries without limit for 7.
const RETRIES: u8 = 6;
/// Number of retries if the peer has no receive posted. 7 would mean unlimited retries, so that a peer that hangs is
/// never reported. Credits ensure that a receive is always posted. A missing receive is therefore a fault, and a few
/// milliseconds suffice.
const NOT_READY_RETRIES: u8 = 6;
/// Time that the peer waits before a retry if no receive is posted: 1.28 ms.
const NOT_READY_WAIT: u8 = 14;
/// Maximum number of routers that a packet may pass.
const HOPS: u8 = 64;

/// The port that a queue pair uses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PortRef {
    /// The port's number.
    pub port: u8,
    /// The index of the used entry in the port's GID table.
    pub gid_index: u8,
    /// True for Ethernet, false for InfiniBand.
    pub is_ethernet: bool,
}

/// One state transition: attributes, and a mask of the attributes that are set.
pub(crate) struct Transition {
    /// The attributes of the transition.
    pub attributes: ib::ibv_qp_attr,
    /// Mask of the attributes that are set.
    pub mask: c_int,
}

impl Transition {
    /// Creates a transition to `state` without other attributes.
    fn to(state: ib::ibv_qp_state::Type) -> Self {
        // SAFETY: the structure consists only of integers, for which zero is a valid value.
        let mut attributes: ib::ibv_qp_attr = unsafe { MaybeUninit::zeroed().assume_init() };
        attributes.qp_state = state;
        Self {
            attributes,
            mask: 0,
        }
        .with(mask::IBV_QP_STATE)
    }

    fn with(mut self, which: mask) -> Self {
        self.mask |= which.0.cast_signed();
        self
    }
}

/// Returns the transition to the initialised state, in which receives may be posted.
pub(crate) fn init(service: Service, port_ref: PortRef, qkey: u32) -> Transition {
    let mut step = Transition::to(ib::ibv_qp_state::IBV_QPS_INIT)
        .with(mask::IBV_QP_PKEY_INDEX)
        .with(mask::IBV_QP_PORT);
    step.attributes.port_num = port_ref.port;
    if service == Service::Ud {
        step.attributes.qkey = qkey;
        step.with(mask::IBV_QP_QKEY)
    } else {
        use ib::ibv_access_flags as access;
        step.attributes.qp_access_flags =
            access::IBV_ACCESS_LOCAL_WRITE.0 | access::IBV_ACCESS_REMOTE_WRITE.0;
        step.with(mask::IBV_QP_ACCESS_FLAGS)
    }
}

/// Returns the transition to the ready-to-receive state.
pub(crate) fn receive(
    service: Service,
    port_ref: PortRef,
    own_mtu: u32,
    peer: &Endpoint,
) -> Transition {
    let mut step = Transition::to(ib::ibv_qp_state::IBV_QPS_RTR);
    if service == Service::Ud {
        return step;
    }
    let common = if peer.mtu == 0 {
        own_mtu
    } else {
        own_mtu.min(peer.mtu)
    };
    step.attributes.path_mtu = mtu_code(common);
    step.attributes.dest_qp_num = peer.number;
    step.attributes.rq_psn = peer.psn;
    step.attributes.ah_attr = route(port_ref, peer);
    let mut step = step
        .with(mask::IBV_QP_AV)
        .with(mask::IBV_QP_PATH_MTU)
        .with(mask::IBV_QP_DEST_QPN)
        .with(mask::IBV_QP_RQ_PSN);
    if service == Service::Rc {
        step.attributes.max_dest_rd_atomic = 1;
        step.attributes.min_rnr_timer = NOT_READY_WAIT;
        step = step
            .with(mask::IBV_QP_MAX_DEST_RD_ATOMIC)
            .with(mask::IBV_QP_MIN_RNR_TIMER);
    }
    step
}

/// Returns the transition to the ready-to-send state.
pub(crate) fn send(service: Service, psn: u32) -> Transition {
    let mut step = Transition::to(ib::ibv_qp_state::IBV_QPS_RTS).with(mask::IBV_QP_SQ_PSN);
    step.attributes.sq_psn = psn;
    if service == Service::Rc {
        step.attributes.max_rd_atomic = 1;
        step = set_timeouts(step)
            .with(mask::IBV_QP_TIMEOUT)
            .with(mask::IBV_QP_RETRY_CNT)
            .with(mask::IBV_QP_RNR_RETRY)
            .with(mask::IBV_QP_MAX_QP_RD_ATOMIC);
    }
    step
}

/// Returns the transition from any state to the error state, in which all posted requests are flushed.
pub(crate) fn error() -> Transition {
    Transition::to(ib::ibv_qp_state::IBV_QPS_ERR)
}

/// Sets the timeouts and retry counts, which are the same for every connection.
pub(crate) fn set_timeouts(mut step: Transition) -> Transition {
    step.attributes.timeout = TIMEOUT;
    step.attributes.retry_cnt = RETRIES;
    step.attributes.rnr_retry = NOT_READY_RETRIES;
    step.attributes.min_rnr_timer = NOT_READY_WAIT;
    step
}

/// Returns the retry count and the receiver-not-ready retry count for rdma_cm.
pub(crate) const fn cm_retries() -> (u8, u8) {
    (RETRIES, NOT_READY_RETRIES)
}

/// Returns the address vector for packets to `peer`.
pub(crate) fn route(port_ref: PortRef, peer: &Endpoint) -> ib::ibv_ah_attr {
    // Ethernet uses only global addresses (GIDs). Within an InfiniBand subnet the LID is sufficient.
    let by_address = port_ref.is_ethernet || peer.lid == 0;
    ib::ibv_ah_attr {
        grh: ib::ibv_global_route {
            dgid: ib::ibv_gid { raw: peer.gid },
            flow_label: 0,
            sgid_index: port_ref.gid_index,
            hop_limit: HOPS,
            traffic_class: 0,
        },
        dlid: if port_ref.is_ethernet { 0 } else { peer.lid },
        sl: 0,
        src_path_bits: 0,
        static_rate: 0,
        is_global: by_address.into(),
        port_num: port_ref.port,
    }
}

/// Returns the number of bytes for a value of `enum ibv_mtu`.
pub(crate) const fn mtu_bytes(code: ib::ibv_mtu::Type) -> u32 {
    match code {
        1..=5 => 128 << code,
        _ => 256,
    }
}

/// Returns the largest value of `enum ibv_mtu` that does not exceed `bytes`.
pub(crate) const fn mtu_code(bytes: u32) -> ib::ibv_mtu::Type {
    match bytes {
        0..512 => ib::ibv_mtu::IBV_MTU_256,
        512..1024 => ib::ibv_mtu::IBV_MTU_512,
        1024..2048 => ib::ibv_mtu::IBV_MTU_1024,
        2048..4096 => ib::ibv_mtu::IBV_MTU_2048,
        4096.. => ib::ibv_mtu::IBV_MTU_4096,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ETHERNET: PortRef = PortRef {
        port: 1,
        gid_index: 3,
        is_ethernet: true,
    };

    fn peer() -> Endpoint {
        Endpoint {
            number: 17,
            psn: 99,
            lid: 7,
            gid: [9; 16],
            mtu: 1024,
            qkey: 0,
        }
    }

    #[test]
    fn path_mtu_is_minimum_of_both() {
        for (bytes, code) in [(256, 1), (512, 2), (1024, 3), (2048, 4), (4096, 5)] {
            assert_eq!((mtu_code(bytes), mtu_bytes(code)), (code, bytes));
        }
        assert_eq!(mtu_code(1500), ib::ibv_mtu::IBV_MTU_1024);
        assert_eq!(mtu_code(9000), ib::ibv_mtu::IBV_MTU_4096);
        let mtu = |local_address, peer: &Endpoint| {
            receive(Service::Rc, ETHERNET, local_address, peer)
                .attributes
                .path_mtu
        };
        assert_eq!(
            mtu(4096, &peer()),
            ib::ibv_mtu::IBV_MTU_1024,
            "the peer's MTU is smaller"
        );
        assert_eq!(
            mtu(512, &peer()),
            ib::ibv_mtu::IBV_MTU_512,
            "the local MTU is smaller"
        );
        let empty_polls = Endpoint { mtu: 0, ..peer() };
        assert_eq!(mtu(2048, &empty_polls), ib::ibv_mtu::IBV_MTU_2048);
    }

    /// Each service must set exactly the required attributes, because Linux rejects attributes that a transition does
    /// not use.
    #[test]
    fn each_service_sets_required_attributes() {
        let masks = |service| {
            (
                init(service, ETHERNET, 5).mask,
                receive(service, ETHERNET, 1024, &peer()).mask,
                send(service, 1).mask,
            )
        };
        let (state, key, psn) = (1, 64, 65536);
        assert_eq!(
            masks(Service::Rc),
            (
                state | 8 | 16 | 32,
                state | 128 | 256 | 4096 | 32768 | 131_072 | 1_048_576,
                state | psn | 512 | 1024 | 2048 | 8192
            )
        );
        assert_eq!(
            masks(Service::Uc),
            (
                state | 8 | 16 | 32,
                state | 128 | 256 | 4096 | 1_048_576,
                state | psn
            )
        );
        assert_eq!(
            masks(Service::Ud),
            (state | 16 | 32 | key, state, state | psn)
        );
    }

    /// The retry counts must be below 7. 7 means unlimited retries: of not-ready receivers on every NIC, and of missing
    /// acknowledgements on soft-RoCE.
    #[test]
    fn receiver_not_ready_retries_are_limited() {
        let step = send(Service::Rc, 1).attributes;
        assert!(step.rnr_retry < 7, "{}", step.rnr_retry);
        assert!(step.retry_cnt < 7, "{}", step.retry_cnt);
        assert!(cm_retries().0 < 7 && cm_retries().1 < 7);
        assert_ne!(step.timeout, 0, "0 means no timeout");
    }

    #[test]
    fn ethernet_uses_gid_and_infiniband_uses_lid() {
        let there = route(ETHERNET, &peer());
        assert_eq!((there.is_global, there.dlid), (1, 0));
        assert_eq!((there.grh.sgid_index, there.grh.hop_limit), (3, 64));
        let infiniband = PortRef {
            is_ethernet: false,
            ..ETHERNET
        };
        let there = route(infiniband, &peer());
        assert_eq!((there.is_global, there.dlid), (0, 7));
        let beyond = Endpoint { lid: 0, ..peer() };
        assert_eq!(route(infiniband, &beyond).is_global, 1);
    }
}
