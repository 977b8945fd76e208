//! What a refusal of the verbs means and what helps; what a completion's status means.

use super::ffi::ibv_wc_status as wc;
use crate::verbs::{Status, VerbsError};

/// The calls that refuse in ways of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Listing the devices.
    DeviceList,
    /// Opening one.
    Open,
    /// Asking one for its attributes.
    Query,
    /// Registering host memory.
    Host,
    /// Registering a GPU's memory by its address.
    Peer,
    /// Registering a GPU's memory by its dma-buf.
    DmaBuf,
    /// Making a completion queue, a channel, a queue pair, an address handle.
    Make,
    /// Connecting a queue pair.
    Connect,
    /// Posting work.
    Post,
    /// rdma_cm.
    Manager,
}

/// What `errno` means as the answer to `call`, and what helps; empty where nothing is known beyond its own words.
pub fn why(call: Call, errno: i32) -> &'static str {
    use Call::{Connect, DeviceList, DmaBuf, Host, Make, Manager, Open, Peer, Post, Query};
    match (call, errno) {
        (DeviceList | Open, libc::ENOSYS) => {
            "the kernel has no RDMA: load its part (modprobe ib_uverbs, and the card's: mlx5_ib, bnxt_re, irdma, rdma_rxe …)"
        }
        (DeviceList, libc::EOPNOTSUPP) => {
            "libibverbs is not installed, or too old: install rdma-core (Debian: libibverbs1 ibverbs-providers)"
        }
        (Manager, libc::EOPNOTSUPP) => {
            "librdmacm is not installed, or too old: install it (Debian: librdmacm1), or connect by TCP"
        }
        (Manager, libc::ENODEV | libc::ENOENT) => {
            "no card has this address, or rdma_cm is not loaded: see `rdma link` and `ip address`; modprobe rdma_ucm; or connect by TCP"
        }
        (Manager, libc::EADDRNOTAVAIL) => {
            "no card of this host has this address: see `rdma link` and `ip address`"
        }
        (Manager, libc::EADDRINUSE) => "another listener has this port",
        (Manager, libc::ENETUNREACH | libc::EHOSTUNREACH) => {
            "there is no route from the card to that address: see `ip route get`"
        }
        (Manager, libc::ETIMEDOUT) => {
            "nothing answers there: is the address right, the link up, UDP port 4791 let through?"
        }
        (DeviceList | Open | Manager, libc::EACCES | libc::EPERM) => {
            "this user may not open /dev/infiniband: give it the group that owns it, or run as root"
        }
        (Open | Query, libc::ENODEV | libc::EIO) => {
            "the card was removed or has failed: see dmesg; driver and firmware may need a restart"
        }
        (DmaBuf, libc::EOPNOTSUPP | libc::ENOSYS | libc::ENOTTY | libc::EPROTONOSUPPORT) => {
            "this card's driver takes no dma-buf: it needs Linux 5.12 and rdma-core 34 at least, with mlx5 on-demand paging \
             in the kernel (CONFIG_INFINIBAND_ON_DEMAND_PAGING); or load nvidia-peermem"
        }
        (DmaBuf, libc::EINVAL) => {
            "the dma-buf was refused: address and offset must lie alike in their pages, and the GPU's driver must be \
             NVIDIA's open kernel modules"
        }
        (DmaBuf, libc::EBADF) => "it is no dma-buf",
        (Peer, libc::EFAULT | libc::EINVAL | libc::EOPNOTSUPP) => {
            "the card's driver does not know this address as a GPU's: modprobe nvidia-peermem, which needs a kernel with the \
             peer-memory interface (MLNX_OFED, DOCA); or use dma-buf"
        }
        (DmaBuf, libc::ENOMEM | libc::ENOSPC) => {
            "the GPU has no room left through which cards reach its memory (BAR1, see `nvidia-smi -q`), or the card's table is \
             full: take fewer or smaller slots"
        }
        (Host, libc::EOPNOTSUPP) => {
            "libibverbs is older than relaxed ordering, or the card has none: turn it off"
        }
        (Host, libc::EFAULT) => {
            "this is no memory of this process that a card may reach, such as a device's BAR"
        }
        (Make, libc::ENOMEM) => {
            "the card makes no queue so large: lower `depth` or `inline` of the sink, or the slots of the source's ring"
        }
        (Host | Peer, libc::ENOMEM) | (Host | Peer | Make, libc::EAGAIN | libc::EPERM) => {
            "the limit of locked memory, or the card's own: raise it (ulimit -l unlimited, LimitMEMLOCK=infinity in the unit), \
             or take fewer or smaller slots"
        }
        (Host, libc::EINVAL) => "the card cannot register so much, or not with this access",
        (Make, libc::EINVAL) => "the card holds less: lower the number of slots or of pieces",
        (Make | Post, libc::EOPNOTSUPP) => "the card cannot do this",
        (Connect, libc::EINVAL) => {
            "an attribute was refused: do both ends use addresses of the same kind (RoCE v2), and is the port up?"
        }
        (Connect, libc::ETIMEDOUT | libc::ENETUNREACH | libc::EHOSTUNREACH | libc::ENOENT) => {
            "the peer's address is not to be reached from this port: see `ip neigh` and `ip route` of its network device"
        }
        (Post, libc::ENOMEM) => "the queue is full: collect completions first",
        (Post, libc::EINVAL) => {
            "the queue is not connected, or the work has too many pieces or bytes"
        }
        _ => "",
    }
}

/// The error for `call`, which answered with `errno`; `said` is the call as it is shown.
pub fn refused(nic: &str, call: Call, said: impl Into<String>, errno: i32) -> VerbsError {
    VerbsError {
        nic: nic.to_owned(),
        call: said.into(),
        errno,
        why: why(call, errno).to_owned(),
    }
}

/// An error that is this side's own finding, without an answer of the kernel's.
pub fn found(nic: &str, said: impl Into<String>, why: impl Into<String>) -> VerbsError {
    VerbsError {
        nic: nic.to_owned(),
        call: said.into(),
        errno: 0,
        why: why.into(),
    }
}

/// The errno that the last call has left behind; never 0.
pub fn last() -> i32 {
    match std::io::Error::last_os_error().raw_os_error() {
        Some(errno) if errno > 0 => errno,
        _ => libc::EIO,
    }
}

/// How work ended, of `enum ibv_wc_status`.
pub const fn status(code: u32) -> Status {
    match code {
        wc::IBV_WC_SUCCESS => Status::Success,
        wc::IBV_WC_WR_FLUSH_ERR => Status::Flushed,
        wc::IBV_WC_RETRY_EXC_ERR => Status::Unanswered,
        wc::IBV_WC_RNR_RETRY_EXC_ERR => Status::NotReady,
        wc::IBV_WC_REM_ACCESS_ERR => Status::RemoteAccess,
        wc::IBV_WC_LOC_LEN_ERR | wc::IBV_WC_LOC_PROT_ERR | wc::IBV_WC_LOC_ACCESS_ERR => {
            Status::Local
        }
        wc::IBV_WC_REM_OP_ERR | wc::IBV_WC_REM_INV_REQ_ERR => Status::RemoteOperation,
        other => Status::Other(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_completion_status_is_distinct() {
        let expected = [
            (0, Status::Success),
            (1, Status::Local),
            (2, Status::Other(2)),
            (4, Status::Local),
            (5, Status::Flushed),
            (8, Status::Local),
            (9, Status::RemoteOperation),
            (10, Status::RemoteAccess),
            (11, Status::RemoteOperation),
            (12, Status::Unanswered),
            (13, Status::NotReady),
            (21, Status::Other(21)),
            (99, Status::Other(99)),
        ];
        for (code, status) in expected {
            assert_eq!(super::status(code), status, "{code}");
        }
    }

    /// What a user meets first has a remedy; the words are those that he can type.
    #[test]
    fn errors_name_fix() {
        let expected = [
            (Call::DeviceList, libc::ENOSYS, "modprobe ib_uverbs"),
            (Call::DeviceList, libc::EOPNOTSUPP, "install rdma-core"),
            (Call::Open, libc::EACCES, "/dev/infiniband"),
            (Call::Host, libc::ENOMEM, "ulimit -l"),
            (Call::Host, libc::EAGAIN, "LimitMEMLOCK"),
            (Call::Host, libc::EFAULT, "BAR"),
            (Call::Peer, libc::EFAULT, "modprobe nvidia-peermem"),
            (Call::Peer, libc::ENOMEM, "ulimit -l"),
            (Call::DmaBuf, libc::EOPNOTSUPP, "ON_DEMAND_PAGING"),
            (Call::DmaBuf, libc::EINVAL, "open kernel modules"),
            (Call::DmaBuf, libc::ENOMEM, "nvidia-smi -q"),
            (Call::Host, libc::EOPNOTSUPP, "relaxed"),
            (Call::Make, libc::EINVAL, "slots"),
            (Call::Make, libc::ENOMEM, "`depth`"),
            (Call::Connect, libc::EINVAL, "RoCE v2"),
            (Call::Connect, libc::ETIMEDOUT, "ip neigh"),
            (Call::Post, libc::ENOMEM, "full"),
            (Call::Manager, libc::ENODEV, "modprobe rdma_ucm"),
            (Call::Manager, libc::EOPNOTSUPP, "librdmacm"),
            (Call::Manager, libc::ETIMEDOUT, "4791"),
        ];
        for (call, errno, word) in expected {
            let error = refused("mlx5_0", call, "the call", errno).to_string();
            assert!(error.contains(word), "{call:?} {errno}: {error}");
            assert!(error.starts_with("mlx5_0: the call: "), "{error}");
        }
        let unknown = refused("mlx5_0", Call::Query, "ibv_query_port", libc::EBUSY);
        assert_eq!((unknown.errno, unknown.why.as_str()), (libc::EBUSY, ""));
    }
}
