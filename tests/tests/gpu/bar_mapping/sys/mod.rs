//! What these tests do that needs `unsafe`: forking, and copies of the device's own.

use daq_core::gpu::bar_mapping::Mapped;
use daq_core::gpu::driver::Stream;
use std::sync::Arc;

/// Runs `work` in a fork of this process; what it answers, or the signal that ended it as a negative number.
///
/// The child has the forking thread alone, so `work` must not print, nor wait for a lock that another may hold.
pub fn in_fork(work: impl FnOnce() -> u8) -> i32 {
    // SAFETY: the child calls `work`, which keeps to what a child of several threads may do, and ends without running
    // anything of its parent's.
    match unsafe { libc::fork() } {
        -1 => panic!("no fork: {}", std::io::Error::last_os_error()),
        0 => {
            let code = work();
            // SAFETY: ends this process alone.
            unsafe { libc::_exit(code.into()) }
        }
        child => {
            let mut status = 0;
            // SAFETY: a place for one status; the child is this process's.
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

/// What the device has at `offset`.
pub fn device_reads(mapped: &Arc<Mapped>, offset: usize, bytes: usize) -> Vec<u8> {
    assert!(offset + bytes <= mapped.bytes());
    let stream = Stream::new(mapped.device(), 1).unwrap();
    let mut read = vec![0x5a; bytes];
    let from = mapped.address() + offset as u64;
    // SAFETY: both ranges are as long as is said and live until the stream is done, which is waited for.
    unsafe { stream.copy_out(read.as_mut_ptr(), from, bytes) }.unwrap();
    stream.synchronize().unwrap();
    read
}

/// Lets the device write `bytes` at `offset`.
pub fn device_writes(mapped: &Arc<Mapped>, offset: usize, bytes: &[u8]) {
    assert!(offset + bytes.len() <= mapped.bytes());
    let stream = Stream::new(mapped.device(), 1).unwrap();
    let to = mapped.address() + offset as u64;
    // SAFETY: as above.
    unsafe { stream.copy_in(to, bytes.as_ptr(), bytes.len()) }.unwrap();
    stream.synchronize().unwrap();
}

/// Meets a file's end in a mapping of nobody's concern.
pub fn fault() -> u8 {
    // SAFETY: the name is a text that ends with a zero; a new mapping takes nobody's memory. The store behind the end of
    // the empty file is what this is about: it ends the process.
    unsafe {
        let file = libc::memfd_create(c"empty".as_ptr(), 0);
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED;
        let base = libc::mmap(std::ptr::null_mut(), 4096, protection, flags, file, 0);
        base.cast::<u8>().write_volatile(1);
    }
    0
}

/// Sends this process the signal of such a fault, twice: the standard library's handler takes it for a fault of its own
/// that comes again, and steps aside.
pub fn send_bus_errors() -> u8 {
    for _ in 0..2 {
        // SAFETY: a signal to the calling thread.
        unsafe { libc::raise(libc::SIGBUS) };
    }
    0
}
