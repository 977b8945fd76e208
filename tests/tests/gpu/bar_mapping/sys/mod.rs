//! The `unsafe` parts of these tests: forks, and copies by the device.

use daq_core::gpu::bar_mapping::BarMapping;
use daq_core::gpu::driver::Stream;
use std::sync::Arc;

/// Runs `work` in a forked child. Returns its exit code, or the signal that ended it as a negative number. The child
/// has only the forking thread, so `work` must not print and must not wait for a lock of another thread.
pub fn in_fork(work: impl FnOnce() -> u8) -> i32 {
    // SAFETY: the child calls only `work`, which is limited to what the child of a multi-threaded process may do. Then
    // it exits without running other code of its parent.
    match unsafe { libc::fork() } {
        -1 => panic!("no fork: {}", std::io::Error::last_os_error()),
        0 => {
            let code = work();
            // SAFETY: `_exit` has no preconditions and ends only this process.
            unsafe { libc::_exit(code.into()) }
        }
        child => {
            let mut status = 0;
            // SAFETY: the pointer is valid for one status, and `child` is a child of this process.
            let ended = unsafe { libc::waitpid(child, &raw mut status, 0) };
            assert_eq!(ended, child, "the child ends");
            if libc::WIFEXITED(status) {
                libc::WEXITSTATUS(status)
            } else {
                -libc::WTERMSIG(status)
            }
        }
    }
}

/// Returns the data at `offset` as the device sees it.
pub fn device_reads(mapped: &Arc<BarMapping>, offset: usize, bytes: usize) -> Vec<u8> {
    assert!(offset + bytes <= mapped.bytes());
    let stream = Stream::new(mapped.device(), 1).unwrap();
    let mut read = vec![0x5a; bytes];
    let from = mapped.address() + offset as u64;
    // SAFETY: both ranges have the given length. They live until the stream has finished, for which this function
    // waits.
    unsafe { stream.copy_out(read.as_mut_ptr(), from, bytes) }.unwrap();
    stream.synchronize().unwrap();
    read
}

/// Makes the device write `bytes` at `offset`.
pub fn device_writes(mapped: &Arc<BarMapping>, offset: usize, bytes: &[u8]) {
    assert!(offset + bytes.len() <= mapped.bytes());
    let stream = Stream::new(mapped.device(), 1).unwrap();
    let to = mapped.address() + offset as u64;
    // SAFETY: both ranges have the given length. They live until the stream has finished, for which this function
    // waits.
    unsafe { stream.copy_in(to, bytes.as_ptr(), bytes.len()) }.unwrap();
    stream.synchronize().unwrap();
}

/// Stores to a mapping beyond the end of its file. No guard covers this mapping.
pub fn fault() -> u8 {
    // SAFETY: the name ends with a zero, and the new mapping overlaps no other memory. The store beyond the end of the
    // empty file causes the intended signal, which ends the process.
    unsafe {
        let file = libc::memfd_create(c"empty".as_ptr(), 0);
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED;
        let base = libc::mmap(std::ptr::null_mut(), 4096, protection, flags, file, 0);
        base.cast::<u8>().write_volatile(1);
    }
    0
}

/// Sends SIGBUS to this process twice. The standard library's handler treats it as a repeated fault and restores the
/// default action.
pub fn send_bus_errors() -> u8 {
    for _ in 0..2 {
        // SAFETY: the call only sends a signal to the calling thread.
        unsafe { libc::raise(libc::SIGBUS) };
    }
    0
}
