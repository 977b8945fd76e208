//! Determines which signals this process ignores.

/// Returns whether `signal` is ignored, as under `nohup`.
pub(crate) fn is_ignored(signal: libc::c_int) -> bool {
    // SAFETY: all fields of `sigaction` are integers, nullable pointers or bit sets, so all-zero bytes are a valid
    // value.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: with a null new action, the call only writes the current action to `action`, which is valid and writable.
    let result = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut action) };
    result == 0 && action.sa_sigaction == libc::SIG_IGN
}
