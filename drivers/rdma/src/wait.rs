//! Waits for several queue pairs at once.

use crate::verbs::{QueuePair, VerbsError};
use rustix::event::{PollFd, Timespec, poll};
use std::time::Duration;

/// Maximum number of files of one wait. A wait for more queue pairs ends after [`SHORT`].
const MAX_FILES: usize = 32;
/// Maximum time of a wait for a queue pair without a file.
const SHORT: Duration = Duration::from_millis(1);

/// What ends a wait for a queue pair.
#[derive(Debug)]
pub enum Wakeup<'a> {
    /// Nothing: the queue pair should be polled now.
    Now,
    /// Events of a file.
    Events(PollFd<'a>),
    /// A short time, because the queue pair has no open file.
    Time,
}

/// Waits until a completion may be available on one of `queue_pairs`, or `limit` has passed. Returns false if one of the
/// queue pairs [cannot wait together with others](QueuePair::wakeup).
pub(crate) fn wait_any<'a>(
    queue_pairs: impl Iterator<Item = &'a mut dyn QueuePair>,
    mut limit: Duration,
) -> Result<bool, VerbsError> {
    let mut files: Option<[PollFd<'a>; MAX_FILES]> = None;
    let mut count = 0;
    for queue_pair in queue_pairs {
        match queue_pair.wakeup() {
            None => return Ok(false),
            // The remaining queue pairs must send what they have stored, too.
            Some(Wakeup::Now) => limit = Duration::ZERO,
            Some(Wakeup::Events(file)) if count < MAX_FILES => {
                let files = files.get_or_insert_with(|| std::array::from_fn(|_| file.clone()));
                files[count] = file;
                count += 1;
            }
            Some(Wakeup::Events(_) | Wakeup::Time) => limit = limit.min(SHORT),
        }
    }
    if limit.is_zero() {
        return Ok(true);
    }
    let files = files
        .as_mut()
        .map_or(&mut [][..], |files| &mut files[..count]);
    match poll(files, Timespec::try_from(limit).ok().as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(true),
        Err(error) => Err(VerbsError {
            nic: "tcp".to_owned(),
            call: "waiting".to_owned(),
            errno: error.raw_os_error(),
            why: String::new(),
        }),
    }
}
