//! Copies between GPUs without rings, which are the upper limit of a corner turn.

use super::Shape;
use super::rings::Rings;
use crate::BenchError;
use crate::cores::joined;
use crate::sys::blocks::Blocks;
use daq_core::gpu::driver::{Block, Pitch};
use daq_core::ring::Completion;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Number of bytes that are started together for each pair of GPUs.
const TOGETHER: usize = 64 << 20;
/// Maximum number of such batches in flight for each pair of GPUs.
const DEPTH: usize = 4;

/// How the bytes of many frames are divided into copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Raw {
    /// The same number of bytes, but contiguous: what the links allow.
    Contiguous,
    /// A copy per frame.
    Frames,
    /// One copy of all frames.
    Slices,
    /// A copy of the same channel of all frames, per channel.
    Channels,
}

/// The copies from one GPU to another.
struct Pair {
    to: usize,
    blocks: Blocks,
    in_flight: VecDeque<Completion>,
}

impl Rings {
    /// Returns the rate of copies from every GPU to every other GPU, in bytes per second. Returns `None` if the frames have
    /// so many channels that copies per channel would be smaller than copies per frame.
    pub(super) fn raw(
        &self,
        shape: Shape,
        raw: Raw,
        window: Duration,
    ) -> Result<Option<f64>, BenchError> {
        let part = shape.share() / shape.gpus;
        let slots = self.bytes() / shape.share();
        let frames = (TOGETHER / part).clamp(1, (slots / 2).max(1));
        if raw == Raw::Channels && shape.channels() > frames {
            return Ok(None);
        }
        let sources = (0..shape.gpus).map(|from| self.pairs(from, shape.gpus));
        let sources = sources.collect::<Result<Vec<_>, _>>()?;
        let start = Instant::now();
        let copied = std::thread::scope(|scope| {
            let threads: Vec<_> = sources
                .into_iter()
                .enumerate()
                .map(|(from, pairs)| {
                    let batch = move |pair: &Pair, first| {
                        let end = first + frames < slots;
                        begin(shape, raw, (from, pair), (first, frames, end))
                    };
                    scope.spawn(move || copy(pairs, (frames, slots), start, window, batch))
                })
                .collect();
            threads.into_iter().map(joined).sum::<Result<usize, _>>()
        })?;
        let bytes = copied * frames * part;
        Ok(Some(bytes as f64 / start.elapsed().as_secs_f64()))
    }

    /// Returns the copies from GPU `from` to all others, beginning with the next one, so that no GPU is written by all others
    /// at first.
    fn pairs(&self, from: usize, gpus: usize) -> Result<Vec<Pair>, BenchError> {
        let others = (1..gpus).map(|i| (from + i) % gpus);
        let pairs = others.map(|to| {
            let blocks = Blocks::new(self.before(from), self.after(to), DEPTH + 1)?;
            let blocks = blocks.ok_or_else(|| {
                BenchError::Thread(format!("no method copies from GPU {from} to GPU {to}"))
            })?;
            Ok(Pair {
                to,
                blocks,
                in_flight: VecDeque::with_capacity(DEPTH),
            })
        });
        pairs.collect()
    }
}

/// Copies from one GPU at least once to each other GPU, and until the window ends. Returns the number of batches of `frames`
/// frames.
fn copy(
    mut pairs: Vec<Pair>,
    (frames, slots): (usize, usize),
    start: Instant,
    window: Duration,
    begin: impl Fn(&Pair, usize) -> Result<(), BenchError>,
) -> Result<usize, BenchError> {
    let (mut first, mut batches) = (0, 0);
    loop {
        for pair in &mut pairs {
            if pair.in_flight.len() == DEPTH
                && let Some(oldest) = pair.in_flight.pop_front()
            {
                wait(&oldest)?;
            }
            begin(pair, first)?;
            let end = pair.blocks.record_event()?;
            pair.in_flight.push_back(end);
            batches += 1;
        }
        first += frames;
        if first + frames > slots {
            first = 0;
        }
        if start.elapsed() >= window {
            break;
        }
    }
    let mut left = pairs.iter().flat_map(|pair| &pair.in_flight);
    left.try_for_each(wait)?;
    Ok(batches)
}

fn wait(end: &Completion) -> Result<(), BenchError> {
    while !end.is_done() {
        std::hint::spin_loop();
    }
    end.failure().map_or(Ok(()), |error| Err(error.into()))
}

/// Starts the copies of `frames` frames from slot `first` on. `is_followed` is whether these are not the last slots.
fn begin(
    shape: Shape,
    raw: Raw,
    (from, pair): (usize, &Pair),
    (first, frames, is_followed): (usize, usize, bool),
) -> Result<(), BenchError> {
    let (share, channels, row) = (shape.share(), shape.channels(), shape.row);
    let part = channels * row;
    let source = first * share + pair.to * part;
    let target = first * share + from * row;
    let pitch = |row| Pitch { row, slice: share };
    let whole = Block {
        width: row,
        rows: channels,
        slices: frames,
        from: pitch(row),
        to: pitch(row * shape.gpus),
        is_followed,
    };
    match raw {
        Raw::Contiguous => {
            let width = frames * part;
            let block = Block {
                width,
                rows: 1,
                slices: 1,
                from: pitch(width),
                to: pitch(width),
                is_followed,
            };
            let at = first * share;
            pair.blocks.begin(at, at, block)?;
        }
        Raw::Frames => {
            for i in 0..frames {
                let block = Block {
                    slices: 1,
                    is_followed: is_followed || i + 1 < frames,
                    ..whole
                };
                let at = i * share;
                pair.blocks.begin(target + at, source + at, block)?;
            }
        }
        Raw::Slices => pair.blocks.begin(target, source, whole)?,
        Raw::Channels => {
            for channel in 0..channels {
                let block = Block {
                    rows: frames,
                    slices: 1,
                    from: pitch(share),
                    to: pitch(share),
                    ..whole
                };
                let target = target + channel * row * shape.gpus;
                pair.blocks.begin(target, source + channel * row, block)?;
            }
        }
    }
    Ok(())
}
