//! Recorded files: read by third-party packages, replayed, and with incomplete frames.

mod foreign_readers;
mod incomplete_frames;
mod replay;
