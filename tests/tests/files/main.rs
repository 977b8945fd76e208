//! Recorded files: read by third-party packages, replayed, and with incomplete frames.

#![allow(clippy::unwrap_used, reason = "panicking is how tests report")]

mod foreign_readers;
mod incomplete_frames;
mod replay;
