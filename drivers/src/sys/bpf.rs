//! BPF programs: load an XDP program, which Linux runs before its network stack, and attach it to an interface.
//!
//! Structures and numbers are from `linux/bpf.h`.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

const BPF_MAP_CREATE: i32 = 0;
const BPF_MAP_UPDATE_ELEM: i32 = 2;
const BPF_PROG_LOAD: i32 = 5;
#[cfg(test)]
const BPF_PROG_TEST_RUN: i32 = 10;
const BPF_LINK_CREATE: i32 = 28;

const BPF_MAP_TYPE_XSKMAP: u32 = 17;
const BPF_PROG_TYPE_XDP: u32 = 6;
/// The attach type `BPF_XDP`.
const BPF_XDP: u32 = 37;
/// Flag of a program that supports packets in several pieces.
const BPF_F_XDP_HAS_FRAGS: u32 = 1 << 5;
const XDP_FLAGS_SKB_MODE: u32 = 1 << 1;
const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;

/// One instruction, with the layout that Linux expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Instruction {
    /// Operation code.
    pub code: u8,
    /// Destination register in the low half, source register in the high half.
    pub registers: u8,
    /// Offset of a jump in instructions, or of a memory access in bytes.
    pub offset: i16,
    /// Constant operand.
    pub immediate: i32,
}

/// The point at which a program receives packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hook {
    /// In the interface's driver, before Linux creates its own packet structure.
    Driver,
    /// In the network stack, after the driver: works with every driver, but is slower.
    Generic,
}

/// `bpf(command, attributes)`.
///
/// # Safety
/// `attributes` must be the structure that `command` requires. Its pointers must be valid for all accesses of the
/// command.
unsafe fn bpf<T>(command: i32, attributes: &mut T) -> io::Result<i32> {
    // SAFETY: the structure is borrowed for the call, and its size is passed. The caller guarantees its contents.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            std::ptr::from_mut(attributes),
            size_of::<T>(),
        )
    };
    i32::try_from(result)
        .ok()
        .filter(|result| *result >= 0)
        .ok_or_else(io::Error::last_os_error)
}

/// Takes ownership of a file descriptor that a call has just returned.
fn owned(fd: i32) -> OwnedFd {
    // SAFETY: Linux has just created this descriptor (with close-on-exec), and nothing else owns it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

const fn name(text: &str) -> [u8; 16] {
    let (bytes, mut name, mut i) = (text.as_bytes(), [0; 16], 0);
    while i < bytes.len() && i < 15 {
        name[i] = bytes[i];
        i += 1;
    }
    name
}

/// Creates a map from queue numbers below `queues` to sockets.
pub(crate) fn socket_map(queues: u32) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Create {
        map_type: u32,
        key_size: u32,
        value_size: u32,
        max_entries: u32,
        map_flags: u32,
        inner_map_fd: u32,
        numa_node: u32,
        map_name: [u8; 16],
    }
    let mut create = Create {
        map_type: BPF_MAP_TYPE_XSKMAP,
        key_size: 4,
        value_size: 4,
        max_entries: queues,
        map_flags: 0,
        inner_map_fd: 0,
        numa_node: 0,
        map_name: name("daq_sockets"),
    };
    // SAFETY: the structure is a prefix of the one that `BPF_MAP_CREATE` reads. It contains no pointer, and Linux
    // treats the missing fields as zero.
    unsafe { bpf(BPF_MAP_CREATE, &mut create) }.map(owned)
}

/// Stores `socket` in `map` for `queue`.
pub(crate) fn map_socket(
    map: BorrowedFd<'_>,
    queue: u32,
    socket: BorrowedFd<'_>,
) -> io::Result<()> {
    #[repr(C)]
    struct Update {
        map_fd: u32,
        padding: u32,
        key: u64,
        value: u64,
        flags: u64,
    }
    let value = socket.as_raw_fd();
    let mut update = Update {
        map_fd: map.as_raw_fd().cast_unsigned(),
        padding: 0,
        key: (&raw const queue).expose_provenance() as u64,
        value: (&raw const value).expose_provenance() as u64,
        flags: 0,
    };
    // SAFETY: key and value point to 4 bytes each, which are the sizes that the map was created with. Both live until
    // the call returns, and Linux only reads them.
    unsafe { bpf(BPF_MAP_UPDATE_ELEM, &mut update) }.map(drop)
}

/// Loads an XDP program, which Linux verifies first. If `pieces` is true, the program may receive packets in several
/// pieces.
///
/// If Linux rejects the program, `log` contains the verifier's message, terminated by a zero byte.
pub(crate) fn load(program: &[Instruction], pieces: bool, log: &mut [u8]) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Load {
        prog_type: u32,
        insn_cnt: u32,
        insns: u64,
        license: u64,
        log_level: u32,
        log_size: u32,
        log_buf: u64,
        kern_version: u32,
        prog_flags: u32,
        prog_name: [u8; 16],
        prog_ifindex: u32,
        expected_attach_type: u32,
    }
    let license = c"MIT";
    let mut load = Load {
        prog_type: BPF_PROG_TYPE_XDP,
        insn_cnt: u32::try_from(program.len()).unwrap_or(u32::MAX),
        insns: program.as_ptr().expose_provenance() as u64,
        license: license.as_ptr().expose_provenance() as u64,
        log_level: 0,
        log_size: 0,
        log_buf: 0,
        kern_version: 0,
        prog_flags: if pieces { BPF_F_XDP_HAS_FRAGS } else { 0 },
        prog_name: name("daq_xdp"),
        prog_ifindex: 0,
        expected_attach_type: BPF_XDP,
    };
    // SAFETY:
    // - `insns` points to `insn_cnt` instructions, and `license` points to a zero-terminated string.
    // - Both live until the call returns, and Linux only reads them.
    // - No log buffer is passed.
    let refused = match unsafe { bpf(BPF_PROG_LOAD, &mut load) } {
        Ok(fd) => return Ok(owned(fd)),
        Err(refused) => refused,
    };
    if refused.kind() != io::ErrorKind::PermissionDenied || log.len() < 128 {
        return Err(refused);
    }
    // The log is requested only after a failure, because a log that does not fit into the buffer is itself an error.
    load.log_level = 1;
    load.log_size = u32::try_from(log.len()).unwrap_or(u32::MAX);
    load.log_buf = log.as_mut_ptr().expose_provenance() as u64;
    // SAFETY: as above. In addition, Linux writes at most `log_size` bytes to `log`, which is mutably borrowed.
    unsafe { bpf(BPF_PROG_LOAD, &mut load) }
        .map(owned)
        .map_err(|_| refused)
}

/// Attaches a program to the interface with number `interface`. The program stays attached until the returned
/// descriptor is closed, also if the process is killed.
pub(crate) fn attach(program: BorrowedFd<'_>, interface: u32, hook: Hook) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Link {
        prog_fd: u32,
        target_ifindex: u32,
        attach_type: u32,
        flags: u32,
    }
    let mut link = Link {
        prog_fd: program.as_raw_fd().cast_unsigned(),
        target_ifindex: interface,
        attach_type: BPF_XDP,
        flags: match hook {
            Hook::Driver => XDP_FLAGS_DRV_MODE,
            Hook::Generic => XDP_FLAGS_SKB_MODE,
        },
    };
    // SAFETY: the structure is a prefix of the one that `BPF_LINK_CREATE` reads. It contains no pointer, and Linux
    // treats the missing fields as zero.
    unsafe { bpf(BPF_LINK_CREATE, &mut link) }.map(owned)
}

/// Runs a program on `packet`, as if the packet had arrived in queue 0 of the loopback interface, and returns the
/// program's result.
#[cfg(test)]
pub(crate) fn try_out(program: BorrowedFd<'_>, packet: &[u8]) -> io::Result<u32> {
    #[repr(C)]
    struct Run {
        prog_fd: u32,
        retval: u32,
        data_size_in: u32,
        data_size_out: u32,
        data_in: u64,
        data_out: u64,
        repeat: u32,
        duration: u32,
    }
    let mut run = Run {
        prog_fd: program.as_raw_fd().cast_unsigned(),
        retval: 0,
        data_size_in: u32::try_from(packet.len()).unwrap_or(u32::MAX),
        data_size_out: 0,
        data_in: packet.as_ptr().expose_provenance() as u64,
        data_out: 0,
        repeat: 1,
        duration: 0,
    };
    // SAFETY: `data_in` points to `data_size_in` bytes, which live until the call returns and are only read. No output
    // buffer is passed.
    unsafe { bpf(BPF_PROG_TEST_RUN, &mut run) }?;
    Ok(run.retval)
}
