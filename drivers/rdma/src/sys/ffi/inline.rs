//! The functions that `verbs.h` defines as inline functions: they call the driver through the context's operation
//! table.

use super::{
    _compat_ibv_port_attr, ibv_context, ibv_cq, ibv_port_attr, ibv_qp, ibv_query_port, ibv_recv_wr,
    ibv_send_wr, ibv_wc,
};
use std::ffi::c_int;

/// Posts `request` and the requests linked after it to the send queue. Returns 0 or an errno.
///
/// # Safety
/// `pair` must be a live queue pair that no other thread uses. The list of requests and their elements must be valid
/// during the call. `bad` must be writable.
#[inline]
pub(crate) unsafe fn ibv_post_send(
    pair: *mut ibv_qp,
    request: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: a live queue pair has a live context, whose operation table does not change.
    match unsafe { (*(*pair).context).ops.post_send } {
        // SAFETY: the driver's function has the same requirements as this one, which the caller upholds.
        Some(post) => unsafe { post(pair, request, bad) },
        None => libc::EOPNOTSUPP,
    }
}

/// Posts `request` and the requests linked after it to the receive queue. Returns 0 or an errno.
///
/// # Safety
/// The requirements are those of [`ibv_post_send`].
#[inline]
pub(crate) unsafe fn ibv_post_recv(
    pair: *mut ibv_qp,
    request: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: a live queue pair has a live context, whose operation table does not change.
    match unsafe { (*(*pair).context).ops.post_recv } {
        // SAFETY: the driver's function has the same requirements as this one, which the caller upholds.
        Some(post) => unsafe { post(pair, request, bad) },
        None => libc::EOPNOTSUPP,
    }
}

/// Moves at most `count` completions to `completed`. Returns the number of completions, or a negative value on failure.
///
/// # Safety
/// `queue` must be a live completion queue that no other thread polls. `completed` must have room for `count` entries.
#[inline]
pub(crate) unsafe fn ibv_poll_cq(
    queue: *mut ibv_cq,
    count: c_int,
    completed: *mut ibv_wc,
) -> c_int {
    // SAFETY: a live completion queue has a live context, whose operation table does not change.
    match unsafe { (*(*queue).context).ops.poll_cq } {
        // SAFETY: the driver's function has the same requirements as this one, which the caller upholds.
        Some(poll) => unsafe { poll(queue, count, completed) },
        None => -libc::EOPNOTSUPP,
    }
}

/// Requests an event for the next completion. Returns 0 or an errno.
///
/// # Safety
/// `queue` must be a live completion queue.
#[inline]
pub(crate) unsafe fn ibv_req_notify_cq(queue: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: a live completion queue has a live context, whose operation table does not change.
    match unsafe { (*(*queue).context).ops.req_notify_cq } {
        // SAFETY: the driver's function has the same requirements as this one, which the caller upholds.
        Some(notify) => unsafe { notify(queue, solicited_only) },
        None => libc::EOPNOTSUPP,
    }
}

/// Queries the state of port `number`. Fills all fields up to `flags`, but leaves `port_cap_flags2` unchanged.
/// Returns 0, an errno, or -1 with `errno` set.
///
/// # Safety
/// `context` must be open, and `attributes` must be writable.
pub(crate) unsafe fn query_port(
    context: *mut ibv_context,
    number: u8,
    attributes: *mut ibv_port_attr,
) -> c_int {
    // SAFETY: the library's function writes the first part of `ibv_port_attr`, whose layout has not changed since the
    // first version. The fallback in the header makes the same call.
    unsafe { ibv_query_port(context, number, attributes.cast::<_compat_ibv_port_attr>()) }
}
