//! Handles completions of frame ends, and tracks which pages the sensor may have overwritten.

use super::steps::Step;
use super::{End, Ended, Fault, PAGE_BITS, QueuePair, Ring, UNREPORTED};
use daq_rdma::verbs::{Side, Status, WorkCompletion};

impl QueuePair {
    /// Returns the bound below which the pages of transfers may have been, or are being, overwritten.
    pub(super) fn bound(&self) -> u64 {
        let pages = self.ring.as_ref().map_or(0, Ring::pages);
        let begun = self.newest.map_or(0, |(newest, _)| newest + 2 + UNREPORTED);
        begun.saturating_sub(pages).max(self.floor)
    }

    /// Writes markers to the pages whose frames were copied since the last poll.
    pub(super) fn make_ready(&mut self) {
        if self.queue.is_none() {
            // Without a connection, the sensor does not write any more.
            return;
        }
        let before = self.bound();
        let Some(ring) = self.ring.take() else {
            return;
        };
        let from = self.ready.max(self.reported.saturating_sub(ring.pages()));
        if from < self.reported {
            for transfer in from..self.reported {
                let is_marked = transfer >= before && self.mark(&ring, transfer);
                self.marked[ring.page(transfer)] = is_marked.then_some(transfer + ring.pages());
            }
            self.ready = self.reported;
            self.ring = Some(ring);
            self.collect();
            let after = self.bound();
            let Some(ring) = &self.ring else {
                return;
            };
            for transfer in from..self.reported.min(after) {
                self.marked[ring.page(transfer)] = None;
            }
        } else {
            self.ring = Some(ring);
        }
    }

    /// Handles all available completions and updates the packet statistics. Returns the number of completions.
    pub(super) fn collect(&mut self) -> usize {
        let count = self.poll_completions();
        if count > 0 {
            self.accepted += count as u64;
            self.supervisor.link().set_accepted(self.accepted);
        }
        if self.queue.is_some() && count >= self.receives as usize {
            // More frames may have ended without a posted receive and thus without a completion.
            self.discard_all();
        }
        count
    }

    /// Polls and handles completions. Returns the number of handled completions.
    fn poll_completions(&mut self) -> usize {
        let mut all = 0;
        while self.failure.is_none() {
            let Some(queue) = &mut self.queue else {
                break;
            };
            let count = match queue.poll(&mut self.collected) {
                Ok(count) => count,
                Err(error) => {
                    self.fail(Fault::Queue, &error.to_string());
                    break;
                }
            };
            for i in 0..count {
                self.completed(self.collected[i]);
            }
            all += count;
            if self.has_stopped {
                break;
            }
            self.post();
            if count < self.collected.len() {
                break;
            }
        }
        all
    }

    /// Posts the consumed receives again.
    pub(super) fn post(&mut self) {
        let Some(queue) = &mut self.queue else {
            return;
        };
        if let Err(error) = queue.post_again() {
            self.fail(Fault::Queue, &error.to_string());
        }
    }

    pub(super) fn completed(&mut self, done: WorkCompletion) {
        if done.status != Status::Success {
            let why = format!("the queue pair failed: {}", done.status.name());
            self.has_stopped = true;
            return self.halt(Fault::Queue, &why);
        }
        if done.side != Side::Received {
            return;
        }
        if let Some(queue) = &mut self.queue {
            queue.completed();
            queue.free();
        }
        let Some(ring) = &self.ring else {
            return;
        };
        let page = done
            .immediate
            .map(|immediate| u64::from(immediate) & ((1 << PAGE_BITS) - 1));
        let (Some(immediate), Some(page)) =
            (done.immediate, page.filter(|page| *page < ring.pages()))
        else {
            return self.count(Fault::Immediate);
        };
        let psn = immediate >> PAGE_BITS;
        let end = self.frame_end(page, psn, done.bytes as usize);
        let Some((newest, frame)) = self.newest else {
            let transfer = (page + ring.pages() - u64::from(ring.slots.first)) % ring.pages();
            self.restart_count(&end);
            return self.push_ended(&end, (transfer, 0), transfer, 0);
        };
        let next = ring.ahead(newest, page);
        match self.step(&end, frame) {
            Step::Old => {}
            Step::Frame(next) => {
                let ahead = next - frame;
                self.follow(&end, next);
                self.push_ended(&end, (newest + ahead, next), ahead - 1, ahead - 1);
            }
            // The number of frames lost before the restart is unknown.
            Step::Restarted(passed) => {
                if next != passed + 1 {
                    self.discard_all();
                }
                self.restart_count(&end);
                self.seen.begin();
                self.epoch += 1;
                self.count(Fault::Order);
                self.push_ended(&end, (newest + next, 0), next - 1, passed);
            }
        }
    }

    /// Appends the frame of `end`, with transfer and frame number `newest`, to the frames that ended.
    fn push_ended(&mut self, end: &End, newest: (u64, u64), passed: u64, missing: u64) {
        self.newest = Some(newest);
        if self.ended.len() == self.marked.len()
            && let Some(oldest) = self.ended.pop_front()
        {
            self.overrun += 1;
            self.carried_over.0 += oldest.passed;
            self.carried_over.1 += oldest.missing;
        }
        self.ended.push_back(Ended {
            transfer: newest.0,
            frame: newest.1,
            epoch: self.epoch,
            metadata: end.metadata,
            is_overwritten: end.is_overwritten,
            is_short: end.is_short,
            passed,
            missing,
        });
    }
}
