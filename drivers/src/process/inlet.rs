//! Hands connections of producing processes to the thread of the source.

use crate::sys::inbox::{Inbox, InboxError};
use daq_core::source::Inlet;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};

/// Distance between two slots of an inbox is a multiple of this number of bytes.
const ALIGNMENT: usize = 64;
/// Maximum number of slots of an inbox.
pub(super) const MAX_SLOTS: usize = 1024;

/// A process that produces frames.
#[derive(Debug)]
pub(super) struct Connected {
    pub(super) socket: OwnedFd,
    pub(super) inbox: Inbox,
    pub(super) slots: usize,
}

/// The connection of the source, which at most one process at a time has.
#[derive(Debug, Default)]
pub(super) struct Connections {
    /// Where connections are sent; `None` until the source is built.
    sender: Mutex<Option<SyncSender<Connected>>>,
    is_taken: AtomicBool,
}

/// Returns the distance between two slots of an inbox with frames of `frame_bytes` bytes.
pub(super) const fn stride(frame_bytes: usize) -> usize {
    frame_bytes.next_multiple_of(ALIGNMENT)
}

impl Connections {
    /// Returns the receiver of connections, the first time.
    pub(super) fn open(&self) -> Option<Receiver<Connected>> {
        let mut place = self.sender.lock().unwrap_or_else(PoisonError::into_inner);
        if place.is_some() {
            return None;
        }
        let (sender, receiver) = sync_channel(1);
        *place = Some(sender);
        Some(receiver)
    }

    /// Allows the next process to connect.
    pub(super) fn release(&self) {
        self.is_taken.store(false, Ordering::Release);
    }
}

impl Inlet for Connections {
    fn connect(
        &self,
        socket: OwnedFd,
        inbox: OwnedFd,
        frame_bytes: usize,
    ) -> Result<usize, String> {
        let opened = Inbox::open(&inbox).and_then(|inbox| {
            let slots = inbox.bytes() / stride(frame_bytes);
            if (1..=MAX_SLOTS).contains(&slots) {
                Ok((inbox, slots))
            } else {
                Err(InboxError::Size {
                    bytes: inbox.bytes(),
                    stride: stride(frame_bytes),
                    max: MAX_SLOTS,
                })
            }
        });
        let (inbox, slots) = match opened {
            Ok(opened) => opened,
            Err(error) => return Err(error.to_string()),
        };
        if self.is_taken.swap(true, Ordering::AcqRel) {
            return Err(
                "another process produces frames for this source; stop it first".to_owned(),
            );
        }
        let connected = Connected {
            socket,
            inbox,
            slots,
        };
        let sender = self.sender.lock().unwrap_or_else(PoisonError::into_inner);
        let sent = sender.as_ref().map(|sender| sender.try_send(connected));
        if let Some(Ok(())) = sent {
            return Ok(slots);
        }
        self.release();
        Err(
            "the source does not run; connect after the pipeline has started, and before it stops"
                .to_owned(),
        )
    }
}
