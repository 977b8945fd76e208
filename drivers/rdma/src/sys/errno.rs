//! Explains errors of verbs calls, and translates completion statuses.

use super::ffi::ibv_wc_status as wc;
use crate::verbs::{Status, VerbsError};

/// Kinds of calls whose errors have different explanations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    /// Listing the devices.
    DeviceList,
    /// Opening a device.
    Open,
    /// Querying a device.
    Query,
    /// Registering host memory.
    Host,
    /// Registering GPU memory by its address.
    Peer,
    /// Registering GPU memory by its dma-buf.
    DmaBuf,
    /// Creating a completion queue, a channel, a queue pair or an address handle.
    Make,
    /// Connecting a queue pair.
    Connect,
    /// Posting a request.
    Post,
    /// A call of rdma_cm.
    Manager,
}

/// Explains `errno` of `call` and names a fix. Empty if the system's error message is sufficient.
pub(crate) fn why(call: Call, errno: i32) -> &'static str {
    use Call::{Connect, DeviceList, DmaBuf, Host, Make, Manager, Open, Peer, Post, Query};
    match (call, errno) {
        (DeviceList | Open, libc::ENOSYS) => {
            "the RDMA modules of Linux are not loaded: run modprobe ib_uverbs, and load the NIC's module (mlx5_ib, bnxt_re, irdma, rdma_rxe …)"
        }
        (DeviceList, libc::EOPNOTSUPP) => {
            "libibverbs is not installed, or too old: install rdma-core (Debian: libibverbs1 ibverbs-providers)"
        }
        (Manager, libc::EOPNOTSUPP) => {
            "librdmacm is not installed, or too old: install it (Debian: librdmacm1), or use connection = \"tcp\""
        }
        (Manager, libc::ENODEV | libc::ENOENT) => {
            "no NIC has this address, or rdma_cm is not loaded: check `rdma link` and `ip address`; run modprobe rdma_ucm; or use connection = \"tcp\""
        }
        (Manager, libc::EADDRNOTAVAIL) => {
            "no NIC of this host has this address: check `rdma link` and `ip address`"
        }
        (Manager, libc::EADDRINUSE) => "the port is in use by another listener",
        (Manager, libc::ENETUNREACH | libc::EHOSTUNREACH) => {
            "there is no route from the NIC to that address: check `ip route get`"
        }
        (Manager, libc::ETIMEDOUT) => {
            "no answer: check the address, the link state and that no firewall blocks UDP port 4791"
        }
        (DeviceList | Open | Manager, libc::EACCES | libc::EPERM) => {
            "this user is not allowed to open /dev/infiniband: add the user to the group that owns it, or run as root"
        }
        (Open | Query, libc::ENODEV | libc::EIO) => {
            "the NIC was removed or has failed: check dmesg; the driver or firmware may need a restart"
        }
        (DmaBuf, libc::EOPNOTSUPP | libc::ENOSYS | libc::ENOTTY | libc::EPROTONOSUPPORT) => {
            "the NIC driver does not support dma-bufs: use Linux 5.12 and rdma-core 34 or newer, for mlx5 with CONFIG_INFINIBAND_ON_DEMAND_PAGING; or load nvidia-peermem"
        }
        (DmaBuf, libc::EINVAL) => {
            "the dma-buf was rejected: address and offset must have the same alignment, and the GPU driver must be NVIDIA's open kernel modules"
        }
        (DmaBuf, libc::EBADF) => "the file descriptor is not a dma-buf",
        (Peer, libc::EFAULT | libc::EINVAL | libc::EOPNOTSUPP) => {
            "the NIC driver cannot resolve this GPU address: run modprobe nvidia-peermem, which needs a Linux version with the peer-memory interface (MLNX_OFED, DOCA); or use dma-buf"
        }
        (DmaBuf, libc::ENOMEM | libc::ENOSPC) => {
            "the GPU's BAR1 (see `nvidia-smi -q`) or the NIC's translation table is full: use fewer or smaller slots"
        }
        (Host, libc::EOPNOTSUPP) => {
            "libibverbs or the NIC does not support relaxed ordering: turn relaxed ordering off"
        }
        (Host, libc::EFAULT) => {
            "a NIC cannot access this memory of the process; the memory may be the BAR of a device"
        }
        (Make, libc::ENOMEM) => {
            "the NIC cannot create a queue pair of this size: lower `depth` or `inline` of the sink, or the number of slots of the source's ring"
        }
        (Host | Peer, libc::ENOMEM) | (Host | Peer | Make, libc::EAGAIN | libc::EPERM) => {
            "the limit of locked memory or of the NIC is reached: raise the memory limit (ulimit -l unlimited, LimitMEMLOCK=infinity in the systemd unit), or use fewer or smaller slots"
        }
        (Host, libc::EINVAL) => {
            "the NIC cannot register a region of this size, or does not support these access rights"
        }
        (Make, libc::EINVAL) => {
            "the request exceeds the NIC's limits: lower the number of slots or of scatter/gather elements"
        }
        (Make | Post, libc::EOPNOTSUPP) => "the NIC does not support this operation",
        (Connect, libc::EINVAL) => {
            "an attribute was rejected: check that both hosts use addresses of the same kind (RoCE v2) and that the port is up"
        }
        (Connect, libc::ETIMEDOUT | libc::ENETUNREACH | libc::EHOSTUNREACH | libc::ENOENT) => {
            "the peer's address is not reachable from this port: check `ip neigh` and `ip route` of its network device"
        }
        (Post, libc::ENOMEM) => "the queue pair is full: collect completions first",
        (Post, libc::EINVAL) => {
            "the queue pair is not connected, or the request has too many bytes or scatter/gather elements"
        }
        _ => "",
    }
}

/// Creates the error of a failed `call`; `output` is the text that names the call.
pub(crate) fn refused(nic: &str, call: Call, output: impl Into<String>, errno: i32) -> VerbsError {
    VerbsError {
        nic: nic.to_owned(),
        call: output.into(),
        errno,
        why: why(call, errno).to_owned(),
    }
}

/// Creates an error that daq itself detected. Such an error has no errno.
pub(crate) fn found(nic: &str, output: impl Into<String>, why: impl Into<String>) -> VerbsError {
    VerbsError {
        nic: nic.to_owned(),
        call: output.into(),
        errno: 0,
        why: why.into(),
    }
}

/// Returns the errno of the last call; never 0.
pub(crate) fn last() -> i32 {
    match std::io::Error::last_os_error().raw_os_error() {
        Some(errno) if errno > 0 => errno,
        _ => libc::EIO,
    }
}

/// Translates a value of `enum ibv_wc_status`.
pub(crate) const fn status(code: u32) -> Status {
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

    /// The texts for common errors must name a command or setting as the fix.
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
