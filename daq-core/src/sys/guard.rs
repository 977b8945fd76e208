//! Guards for mappings whose memory can disappear. A guard makes forks and faults detectable.
//!
//! After two events, the CPU's next store to device memory would crash the process:
//! - The driver removed the pages of the mapping (SIGBUS). A signal handler replaces the mapping by zero pages and
//!   records the loss.
//! - The process is a fork, which does not inherit a device's mapping. A page that reads zero in a child detects this.

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::ffi::{c_int, c_void};
use std::fmt;
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering};

/// Maximum number of guarded mappings at a time.
const MAX_GUARDS: usize = 1024;
/// Page size in bytes.
const PAGE: usize = 4096;

/// An entry for one guarded range.
struct Slot {
    is_taken: AtomicBool,
    start: AtomicUsize,
    /// 0 if the entry has no range.
    bytes: AtomicUsize,
    is_lost: AtomicBool,
}

static SLOTS: [Slot; MAX_GUARDS] = [const {
    Slot {
        is_taken: AtomicBool::new(false),
        start: AtomicUsize::new(0),
        bytes: AtomicUsize::new(0),
        is_lost: AtomicBool::new(false),
    }
}; MAX_GUARDS];

/// The action for SIGBUS before the handler was installed; null until then. Never freed.
static BEFORE: AtomicPtr<libc::sigaction> = AtomicPtr::new(ptr::null_mut());

/// The error for a mapping that cannot be guarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GuardError {
    /// Linux lacks a required feature.
    #[error("cannot guard the mapping: {0}; Linux 4.14 or newer is required")]
    Kernel(Errno),
    /// All entries are in use.
    #[error("{MAX_GUARDS} mappings are guarded already, which is the maximum")]
    Full,
    /// This process is a fork of the process that prepared the guards.
    #[error(
        "this process is a fork of one that had mappings; create mappings in the process that uses them"
    )]
    Forked,
}

/// A guard for one mapping.
pub struct Guard {
    slot: &'static Slot,
    /// 1 in the process that created the guard, 0 in a child process.
    original: &'static AtomicU32,
}

impl Guard {
    /// Guards the mapping of `bytes` bytes at `address`, which must be whole pages. Child processes do not inherit the
    /// mapping. A fault inside the mapping replaces all of it by zero pages of this process.
    ///
    /// # Safety
    /// The range must be one mapping of the caller, which stays mapped until the guard is dropped. No code may
    /// rely on its content, because zero pages may replace it at any time. No reference to its bytes may exist.
    pub unsafe fn new(address: NonNull<u8>, bytes: usize) -> Result<Self, GuardError> {
        let original = original().map_err(GuardError::Kernel)?;
        if original.load(Ordering::Relaxed) == 0 {
            return Err(GuardError::Forked);
        }
        watch_faults().map_err(GuardError::Kernel)?;
        // SAFETY: the caller guarantees that the range is mapped. The advice changes only what child processes inherit.
        unsafe { rustix::mm::madvise(address.as_ptr().cast(), bytes, Advice::LinuxDontFork) }
            .map_err(GuardError::Kernel)?;
        let slot = SLOTS
            .iter()
            .find(|slot| !slot.is_taken.swap(true, Ordering::AcqRel))
            .ok_or(GuardError::Full)?;
        slot.is_lost.store(false, Ordering::Relaxed);
        slot.start.store(address.addr().get(), Ordering::Relaxed);
        slot.bytes.store(bytes, Ordering::Release);
        Ok(Self { slot, original })
    }

    /// Whether this process is a child of the process that created the mapping, so that it does not have the mapping.
    #[inline]
    pub(crate) fn is_forked(&self) -> bool {
        self.original.load(Ordering::Relaxed) == 0
    }

    /// Whether the memory was removed and replaced by zero pages.
    #[inline]
    pub fn is_lost(&self) -> bool {
        self.slot.is_lost.load(Ordering::Relaxed)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.slot.bytes.store(0, Ordering::Release);
        self.slot.is_taken.store(false, Ordering::Release);
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("is_forked", &self.is_forked())
            .field("is_lost", &self.is_lost())
            .finish()
    }
}

/// A word that is 1 in the process that created it and 0 in its children.
static ORIGINAL: OnceLock<Result<&'static AtomicU32, Errno>> = OnceLock::new();

/// Returns [`ORIGINAL`], which is created on first use.
fn original() -> Result<&'static AtomicU32, Errno> {
    *ORIGINAL.get_or_init(|| {
        // SAFETY: with a null hint Linux chooses an address, so no existing mapping is replaced.
        let page = unsafe {
            rustix::mm::mmap_anonymous(
                ptr::null_mut(),
                PAGE,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        }?;
        // SAFETY: the page was mapped just above. The advice changes only what child processes read in it.
        unsafe { rustix::mm::madvise(page, PAGE, Advice::LinuxWipeOnFork) }?;
        // SAFETY: the page is never unmapped, starts with an aligned word, and is only used as this word.
        let word = unsafe { &*page.cast::<AtomicU32>() };
        word.store(1, Ordering::Relaxed);
        Ok(word)
    })
}

/// Installs the SIGBUS handler, once per process.
fn watch_faults() -> Result<(), Errno> {
    static DONE: OnceLock<Result<(), Errno>> = OnceLock::new();
    *DONE.get_or_init(|| {
        let failed =
            || Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL);
        let mut before = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: the result pointer refers to one writable action. With a null action, the call changes nothing else.
        if unsafe { libc::sigaction(libc::SIGBUS, ptr::null(), before.as_mut_ptr()) } != 0 {
            return Err(failed());
        }
        // SAFETY: the call has initialised the action.
        let before = Box::leak(Box::new(unsafe { before.assume_init() }));
        BEFORE.store(before, Ordering::Release);
        // SAFETY: all zeros is a valid action: the default, an empty mask and no flags.
        let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
        action.sa_sigaction = on_fault as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: the handler has the type that SA_SIGINFO requires, and calls only what a signal handler may: system
        // calls, atomics, and the previously installed handler.
        if unsafe { libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut()) } != 0 {
            return Err(failed());
        }
        Ok(())
    })
}

extern "C" fn on_fault(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: Linux passes a valid pointer to a handler that is installed with SA_SIGINFO. Only faults, which have
    // positive codes, have an address.
    let fault = unsafe {
        let is_fault = (*info).si_code > 0;
        is_fault.then(|| (*info).si_addr().addr())
    };
    if !fault.is_some_and(replace) {
        pass_on(signal, info, context, fault.is_some());
    }
}

/// Whether this process is a child of the process that has the guarded mappings.
fn is_child() -> bool {
    !matches!(ORIGINAL.get(), Some(Ok(word)) if word.load(Ordering::Relaxed) == 1)
}

/// Replaces the guarded mapping that contains `address` by zero pages. Returns false if no guarded mapping contains it.
fn replace(address: usize) -> bool {
    // A child inherits the table but none of the mappings, so it may map something else at the same addresses.
    if is_child() {
        return false;
    }
    for slot in &SLOTS {
        let bytes = slot.bytes.load(Ordering::Acquire);
        let start = slot.start.load(Ordering::Acquire);
        // Another thread may be changing this entry. The entry of the mapping that faulted does not change, because the
        // mapping is in use.
        let is_settled = slot.bytes.load(Ordering::Relaxed) == bytes;
        if !is_settled || address.wrapping_sub(start) >= bytes {
            continue;
        }
        // Set before the zero pages are mapped, so that another thread whose store hits them detects it.
        slot.is_lost.store(true, Ordering::Release);
        // SAFETY: the call has no requirements. The thread's error number is saved because the interrupted code may be
        // about to read it.
        let errno = unsafe { libc::__errno_location() };
        // SAFETY: the pointer refers to the calling thread's error number.
        let before = unsafe { *errno };
        // SAFETY: the range is one guarded mapping, whose owner has agreed to its replacement. The owner cannot have
        // unmapped it, because a store to it is in progress. MAP_FIXED replaces exactly this range, in one step.
        let replaced = unsafe {
            libc::mmap(
                ptr::without_provenance_mut(start),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        // SAFETY: the pointer refers to the calling thread's error number.
        unsafe { *errno = before };
        return replaced != libc::MAP_FAILED;
    }
    false
}

/// Handles a signal that does not concern a guarded mapping as the previous action would.
fn pass_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void, is_fault: bool) {
    // SAFETY: the pointer was stored before the handler was installed, and the action is never freed.
    let before = unsafe { BEFORE.load(Ordering::Acquire).as_ref() };
    let (action, flags) = before.map_or((libc::SIG_DFL, 0), |before| {
        (before.sa_sigaction, before.sa_flags)
    });
    match action {
        // Linux does not let a process ignore a fault.
        libc::SIG_IGN if !is_fault => {}
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: a signal handler may call both functions. A fault repeats after the handler has returned. A
            // signal that another process sent is raised again.
            unsafe {
                libc::signal(signal, libc::SIG_DFL);
                if !is_fault {
                    libc::raise(signal);
                }
            }
        }
        action if flags & libc::SA_SIGINFO != 0 => {
            type Handler = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);
            // SAFETY: the previous handler was installed with SA_SIGINFO, so it has this type.
            let handler = unsafe { std::mem::transmute::<usize, Handler>(action) };
            handler(signal, info, context);
        }
        action => {
            type Handler = extern "C" fn(c_int);
            // SAFETY: the previous handler was installed without SA_SIGINFO, so it has this type.
            let handler = unsafe { std::mem::transmute::<usize, Handler>(action) };
            handler(signal);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::memory::Mapping;
    use std::num::NonZero;
    use std::sync::{Mutex, MutexGuard};

    /// Locks the guard table for the calling test, because all tests of this process share the table.
    fn lock_table() -> MutexGuard<'static, ()> {
        static TABLE: Mutex<()> = Mutex::new(());
        TABLE
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    #[test]
    fn guard_table_is_limited_and_entries_are_reused() {
        let _table = lock_table();
        let mapping = Mapping::anonymous(PAGE, false).unwrap();
        let page = mapping.address();
        // SAFETY: the page is this test's own, and nothing refers to it.
        let guard = || unsafe { Guard::new(page, PAGE) };
        let mut guards: Vec<_> = (0..MAX_GUARDS).map(|_| guard().unwrap()).collect();
        assert_eq!(guard().unwrap_err(), GuardError::Full);
        guards.pop();
        guards.push(guard().unwrap());
        assert_eq!(guard().unwrap_err(), GuardError::Full);
        drop(guards);
        assert!(!guard().unwrap().is_lost());
    }

    /// Maps an empty file at the unused `address` and stores beyond its end. Returns only if the file cannot be mapped
    /// or if the signal handler ignores the fault.
    fn fault_at(address: NonNull<u8>) {
        // SAFETY: the name ends with NUL, and Linux rejects an address that is in use. The store beyond the end of the
        // file raises SIGBUS.
        unsafe {
            let file = libc::memfd_create(c"empty".as_ptr(), 0);
            let base = libc::mmap(
                address.as_ptr().cast(),
                PAGE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_FIXED_NOREPLACE,
                file,
                0,
            );
            if base != libc::MAP_FAILED {
                base.cast::<u8>().write_volatile(1);
            }
        }
    }

    #[test]
    fn fault_in_child_at_reused_address_terminates_child() {
        let _table = lock_table();
        let mapping = Mapping::anonymous(PAGE, false).unwrap();
        let page = mapping.address();
        // SAFETY: the page is this test's own, and nothing refers to it.
        let guard = unsafe { Guard::new(page, PAGE) }.unwrap();
        // SAFETY: the child only makes system calls, and ends without running exit handlers of its parent.
        let child = unsafe { libc::fork() };
        if child == 0 {
            fault_at(page);
            // SAFETY: the call ends only the child process.
            unsafe { libc::_exit(0) };
        }
        assert!(child > 0, "fork: {}", std::io::Error::last_os_error());
        let mut status = 0;
        // SAFETY: the result pointer refers to one writable status, and the child belongs to this test.
        let ended = unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(ended, child);
        assert!(
            libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGBUS,
            "{status:#x}"
        );
        assert!(!guard.is_lost());
    }

    #[test]
    fn unmapped_range_is_not_guarded() {
        let _table = lock_table();
        // The address is below the minimum that Linux allows to be mapped (`vm.mmap_min_addr`), so that no other thread
        // maps it meanwhile.
        let page = NonNull::without_provenance(NonZero::new(PAGE).unwrap());
        // SAFETY: the call must detect that the range is not mapped. Nothing refers to the range.
        let refused = unsafe { Guard::new(page, PAGE) };
        assert_eq!(refused.unwrap_err(), GuardError::Kernel(Errno::NOMEM));
    }
}
