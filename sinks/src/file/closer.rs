//! Makes finished segments whole on a thread of its own, while the next one is written.

use super::sink_error;
use crate::finisher::Finisher;
use crate::segment::{SegmentError, SegmentWriter};
use daq_core::sigmf::Meta;
use daq_core::sink::SinkError;

/// A segment that takes no more frames.
struct Ending {
    writer: SegmentWriter,
    /// None while the writer is free.
    meta: Option<Box<Meta>>,
}

/// Why a segment was not closed.
pub(super) enum Trouble {
    /// There is no space for it yet; it is tried again.
    Full(SinkError),
    /// It was given up.
    Lost(Abandoned),
}

/// What became of a segment that was given up.
pub(super) struct Abandoned {
    /// Why, and what is left of it.
    pub(super) error: SinkError,
    /// Its frames that are not in the file, or not wholly.
    pub(super) frames: u64,
}

/// The second writer and the thread that closes segments.
pub(super) struct Closer(Finisher<Ending, SegmentError>);

impl Closer {
    /// Starts the thread; `writer` is the second one.
    pub(super) fn start(writer: SegmentWriter) -> Result<Self, SinkError> {
        let close = |ending: &mut Ending| {
            if let Some(meta) = &ending.meta {
                ending.writer.close(&meta.to_json())?;
                ending.meta = None;
            }
            Ok(())
        };
        let spare = Ending { writer, meta: None };
        Finisher::start("daq-close", spare, close).map(Self)
    }

    /// Whether [`swap`](Self::swap) can be called.
    pub(super) fn is_ready(&self) -> bool {
        self.0.is_ready()
    }

    /// Puts the free writer in place of `active`, whose segment is closed with `meta` from now on.
    pub(super) fn swap(&mut self, active: &mut SegmentWriter, meta: Meta) {
        let swapped = self.0.exchange(|spare| Ending {
            writer: std::mem::replace(active, spare.writer),
            meta: Some(Box::new(meta)),
        });
        debug_assert!(swapped, "the second writer is not free");
    }

    /// Looks after the segment being closed, to its end if `wait`, and says whether it is whole now. One that found no
    /// space before is tried again.
    pub(super) fn look(&mut self, wait: bool) -> Result<bool, Trouble> {
        match self.0.look(wait).map(|closed| closed.is_some()) {
            Ok(closed) => Ok(closed),
            Err(error @ SegmentError::Full { .. }) => Err(Trouble::Full(sink_error(error))),
            Err(error) => Err(Trouble::Lost(self.give_up(&error))),
        }
    }

    /// Closes what is left to close, and gives it up if that cannot be.
    pub(super) fn end(&mut self) -> Result<bool, Abandoned> {
        self.look(true).map_err(|trouble| match trouble {
            Trouble::Lost(lost) => lost,
            Trouble::Full(error) => self.give_up(&error),
        })
    }

    /// Gives up the segment that could not be closed.
    fn give_up(&mut self, why: &dyn std::error::Error) -> Abandoned {
        let abandon = |ending: &mut Ending| {
            let meta = ending.meta.take();
            abandon(&mut ending.writer, meta.as_deref(), why)
        };
        let lost = self.0.give_up(abandon);
        lost.expect("what could not be closed is stuck")
    }
}
/// Gives up the open segment of `writer`, for which `meta` would have been written.
pub(super) fn abandon(
    writer: &mut SegmentWriter,
    meta: Option<&Meta>,
    why: &dyn std::error::Error,
) -> Abandoned {
    let total = writer.len();
    let path = writer.abandon();
    let kept = path
        .as_ref()
        .and_then(|path| path.metadata().ok())
        .map_or(0, |file| file.len().min(total));
    let bytes = total - kept;
    let (frame_bytes, frames) = meta
        .and_then(|meta| meta.global.stream.as_ref())
        .map_or((1, 0), |s| (s.frame_bytes.max(1), s.frames));
    let frames = bytes.div_ceil(frame_bytes).min(frames);
    let what = path.map_or_else(|| "a segment".to_owned(), |path| path.display().to_string());
    let why = format!(
        "this segment could not be made whole: {why}. {kept} bytes are kept in it, {frames} frames are not"
    );
    Abandoned {
        error: SinkError::Failed { what, why },
        frames,
    }
}
