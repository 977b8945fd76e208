//! Which frames of the shares form the next batch.

use super::input::{Input, Take};
use super::{Gather, Joins, Overflow};

impl Gather {
    /// Chooses the frames of the next batch, at most `max`, and notes them in each input. Returns the number of frames of the
    /// batch and the number of the last one.
    pub(super) fn choose(&mut self, max: usize) -> Option<(usize, (u32, u64))> {
        for input in &mut self.inputs {
            input.take = Take::default();
            discard_late(input, self.last);
        }
        match self.joins {
            Joins::Frames => self.choose_frames(max),
            Joins::Tiles { .. } => self.choose_tiles(max),
        }
    }

    /// Whether the batch may contain a frame for which `inputs` may still get an earlier frame.
    fn goes_on(&self) -> bool {
        self.overflow == Overflow::Discard && self.inputs.iter().any(Input::is_flooded)
    }

    /// Chooses the frames with the smallest numbers. A frame whose number follows the last one needs no comparison with the
    /// next frames of the other shares.
    fn choose_frames(&mut self, max: usize) -> Option<(usize, (u32, u64))> {
        let goes_on = self.goes_on();
        let (mut taken, mut last) = (0, self.last);
        while taken < max {
            let mut next: Option<((u32, u64), usize)> = None;
            let mut is_waiting = false;
            for (i, input) in self.inputs.iter().enumerate() {
                let is_over = input.is_over(input.take.count);
                match input.head(input.take.count) {
                    Some(number) if next.is_none_or(|(first, _)| number < first) => {
                        next = Some((number, i));
                    }
                    Some(_) => {}
                    None => is_waiting |= !is_over,
                }
            }
            let Some((number, i)) = next else { break };
            let follows = last.is_some_and(|(epoch, frame)| number == (epoch, frame + 1));
            if is_waiting && !follows && !goes_on || !self.inputs[i].take.add(taken) {
                break;
            }
            last = Some(number);
            taken += 1;
        }
        last.filter(|_| taken > 0).map(|last| (taken, last))
    }

    /// Chooses the frames of which all shares are ready, or one frame of which shares are missing.
    fn choose_tiles(&mut self, max: usize) -> Option<(usize, (u32, u64))> {
        let is_over = self.inputs.iter().filter(|input| input.is_over(0)).count();
        let heads = self.inputs.iter().filter_map(|input| input.head(0));
        let first = heads.clone().min()?;
        if heads.count() + is_over < self.inputs.len() && !self.goes_on() {
            return None;
        }
        let has_first = |input: &&Input| input.head(0) == Some(first);
        let shares = self.inputs.iter().filter(has_first).count();
        // Shares that are missing now may have later frames.
        let max = if shares + is_over < self.inputs.len() {
            1
        } else {
            max
        };
        let (mut taken, mut last) = (1, first);
        while taken < max {
            let mut heads = self.inputs.iter().filter(has_first);
            let Some(number) = heads.next().and_then(|input| input.head(taken)) else {
                break;
            };
            if !heads.all(|input| input.head(taken) == Some(number)) {
                break;
            }
            last = number;
            taken += 1;
        }
        for input in &mut self.inputs {
            if input.head(0) == Some(first) {
                input.take = Take::consecutive(taken);
            }
        }
        Some((taken, last))
    }
}

/// Discards the frames of a share that are not newer than the last joined frame.
fn discard_late(input: &mut Input, last: Option<(u32, u64)>) {
    if input.is_lost {
        input.discard(input.reader.pending());
    }
    while let (Some(number), Some(last)) = (input.head(0), last)
        && number <= last
    {
        input.discard(1);
    }
}
