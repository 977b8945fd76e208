//! What is known about one stream, for one thread.

use super::context::{Context, SAMPLE_RATE};
use super::grid::{Grids, Samples};
use super::prologue::{Prologue, Stamp};
use super::rate::RateWatch;
use super::{LOG_PERIOD, Notes};
use std::time::Instant;

/// One stream of packets.
#[derive(Clone, Debug, Default)]
pub(super) struct Stream {
    /// The numbering by timestamps, if the sample rate is known.
    grids: Option<Box<Grids>>,
    /// Detects another sample rate, if the sample rate is known.
    watch: Option<Box<RateWatch>>,
    /// Number of the last packet.
    pub(super) last: Option<u64>,
    /// The values of the last context packets.
    pub(super) context: Context,
    /// The values that were logged last, and when.
    logged: Option<(Context, Instant)>,
}

impl Stream {
    /// Numbers the packets of all `streams` by their timestamps. Equal times have equal numbers.
    pub(super) fn number_by_time(streams: &mut [Self], samples: Samples) {
        let grids = Grids::new(samples);
        for stream in streams {
            stream.grids = Some(Box::new(grids.clone()));
            stream.watch = Some(Box::new(RateWatch::new(samples)));
        }
    }

    /// Removes all values of context packets.
    pub(super) fn forget_context(&mut self) {
        (self.context, self.logged) = (Context::default(), None);
    }

    /// Returns whether the packet continues a stream of another sample rate.
    #[inline]
    pub(super) fn is_other_rate(&mut self, stamp: &Stamp, count: u8) -> bool {
        let Some(watch) = self.watch.as_mut().filter(|watch| watch.is_other()) else {
            return false;
        };
        watch.observe(stamp, count);
        watch.is_other()
    }

    /// Returns whether the packets so far show another sample rate.
    #[inline]
    pub(super) fn has_other_rate(&self) -> bool {
        self.watch.as_ref().is_some_and(|watch| watch.is_other())
    }

    /// Returns the number of the packet with `stamp` and `count`.
    #[inline]
    pub(super) fn number(&mut self, stamp: &Stamp, count: u8, notes: &mut Notes) -> u64 {
        let Some(grids) = &mut self.grids else {
            return u64::from(count);
        };
        let Some(numbered) = grids.number(stamp, count) else {
            return self.number_by_count(count, notes);
        };
        if (!numbered.agrees || numbered.is_off_grid)
            && let Some(watch) = &mut self.watch
        {
            watch.observe(stamp, count);
        }
        if !numbered.agrees {
            notes.counts.count_mismatch.add_shared(1);
        }
        if numbered.is_off_grid {
            notes.count_off_grid(stamp);
        }
        numbered.number
    }

    /// Returns the number with `count` that is nearest to the last number, because the packet has no usable timestamp.
    #[cold]
    fn number_by_count(&self, count: u8, notes: &mut Notes) -> u64 {
        let last = self.last.unwrap_or(u64::from(count));
        let ahead = u64::from(count).wrapping_sub(last) & 0xf;
        let number = last.wrapping_add(ahead);
        let number = if ahead < 8 {
            number
        } else {
            number.wrapping_sub(16)
        };
        if self.last != Some(number) {
            notes.count_untimed();
        }
        number
    }

    /// Keeps the values of a context packet, and logs changes for the source `source`.
    pub(super) fn read_context(&mut self, packet: &[u8], prologue: &Prologue, source: &str) {
        let before = self.context.value(SAMPLE_RATE);
        self.context.read(packet, prologue.bytes);
        if let Some(watch) = &self.watch {
            watch.state(before, self.context.value(SAMPLE_RATE));
        }
        self.log_context(prologue.stream, source);
    }

    /// Logs values that have changed, at most once per second.
    fn log_context(&mut self, stream: Option<u32>, source: &str) {
        let now = Instant::now();
        let unknown = Context::default();
        let before = match &self.logged {
            Some((before, _)) if *before == self.context => return,
            Some((_, when)) if now.saturating_duration_since(*when) < LOG_PERIOD => return,
            Some((before, _)) => before,
            None => &unknown,
        };
        let changes = self.context.changes(before);
        if !changes.is_empty() {
            let stream = stream.unwrap_or(0);
            tracing::info!("source {source}: context of stream {stream:#x}: {changes}");
            self.logged = Some((self.context.clone(), now));
        }
    }
}
