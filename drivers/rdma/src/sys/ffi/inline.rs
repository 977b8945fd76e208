//! The functions that `verbs.h` defines inline: they call the driver through the context's table of operations.

use super::{
    _compat_ibv_port_attr, ibv_context, ibv_cq, ibv_port_attr, ibv_qp, ibv_query_port, ibv_recv_wr,
    ibv_send_wr, ibv_wc,
};
use std::ffi::c_int;

/// Posts `request` and those behind it to the send queue. Returns 0 or an errno.
///
/// # Safety
/// `pair` is a live queue pair that no other thread uses; the list of requests and their elements is valid through the
/// call; `bad` can be written.
#[inline]
pub unsafe fn ibv_post_send(
    pair: *mut ibv_qp,
    request: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: a live queue pair has a live context, whose table does not change.
    match unsafe { (*(*pair).context).ops.post_send } {
        // SAFETY: the caller upholds the driver's contract, which is that of this function.
        Some(post) => unsafe { post(pair, request, bad) },
        None => libc::EOPNOTSUPP,
    }
}

/// Posts `request` and those behind it to the receive queue. Returns 0 or an errno.
///
/// # Safety
/// As for [`ibv_post_send`].
#[inline]
pub unsafe fn ibv_post_recv(
    pair: *mut ibv_qp,
    request: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: as in `ibv_post_send`.
    match unsafe { (*(*pair).context).ops.post_recv } {
        // SAFETY: as in `ibv_post_send`.
        Some(post) => unsafe { post(pair, request, bad) },
        None => libc::EOPNOTSUPP,
    }
}

/// Moves at most `count` completions to `completed`. Returns their number, or a negative value on failure.
///
/// # Safety
/// `queue` is a live completion queue that no other thread polls; `completed` has room for `count` entries.
#[inline]
pub unsafe fn ibv_poll_cq(queue: *mut ibv_cq, count: c_int, completed: *mut ibv_wc) -> c_int {
    // SAFETY: a live completion queue has a live context, whose table does not change.
    match unsafe { (*(*queue).context).ops.poll_cq } {
        // SAFETY: the caller upholds the driver's contract, which is that of this function.
        Some(poll) => unsafe { poll(queue, count, completed) },
        None => -libc::EOPNOTSUPP,
    }
}

/// Requests an event for the next completion. Returns 0 or an errno.
///
/// # Safety
/// `queue` is a live completion queue.
#[inline]
pub unsafe fn ibv_req_notify_cq(queue: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: as in `ibv_poll_cq`.
    match unsafe { (*(*queue).context).ops.req_notify_cq } {
        // SAFETY: as in `ibv_poll_cq`.
        Some(notify) => unsafe { notify(queue, solicited_only) },
        None => libc::EOPNOTSUPP,
    }
}

/// Queries the state of port `number`. Fills the fields up to `flags`; `port_cap_flags2` stays as it is.
/// Returns 0, an errno, or -1 with `errno` set.
///
/// # Safety
/// `context` is open; `attributes` can be written.
pub unsafe fn query_port(
    context: *mut ibv_context,
    number: u8,
    attributes: *mut ibv_port_attr,
) -> c_int {
    // SAFETY: the library's function writes the first part of `ibv_port_attr`, which has had the same layout since its
    // first version. The header's own fallback makes the same call.
    unsafe { ibv_query_port(context, number, attributes.cast::<_compat_ibv_port_attr>()) }
}
