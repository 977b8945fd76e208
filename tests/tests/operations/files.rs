//! Recorded files: read by third-party packages, replayed, with incomplete frames, and removed.

mod foreign_readers;
mod incomplete_frames;
mod removed;
mod replay;
