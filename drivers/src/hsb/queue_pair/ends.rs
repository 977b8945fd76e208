//! Takes the ends of frames from the card, and keeps count of where the sensor may be.

use super::super::metadata;
use super::super::order::Course;
use super::super::pages::Spot;
use super::{Ended, Fault, PAGE_BITS, QueuePair, REPEATS, UNHEARD};
use daq_rdma::verbs::{Side, Status, WorkDone};

impl QueuePair {
    /// Transfers that may be, or be being, overwritten by now.
    pub(super) fn bound(&self) -> u64 {
        let pages = self.ring.as_ref().map_or(0, |ring| ring.pages);
        let begun = self.newest.map_or(0, |(newest, _)| newest + 2 + UNHEARD);
        begun.saturating_sub(pages)
    }

    /// Makes the pages ready whose frames were copied since the last poll.
    pub(super) fn make_ready(&mut self) {
        if self.queue.is_none() {
            // Nothing is written any more.
            return;
        }
        let before = self.bound();
        let Some(ring) = self.ring.take() else {
            return;
        };
        let from = self.ready.max(self.told.saturating_sub(ring.pages));
        if from < self.told {
            for transfer in from..self.told {
                let is_marked = transfer >= before && self.mark(&ring, transfer);
                self.marked[ring.page(transfer)] = is_marked.then_some(transfer + ring.pages);
            }
            self.ready = self.told;
            self.ring = Some(ring);
            self.collect();
            let after = self.bound();
            let Some(ring) = &self.ring else {
                return;
            };
            for transfer in from..self.told.min(after) {
                self.marked[ring.page(transfer)] = None;
            }
        } else {
            self.ring = Some(ring);
        }
    }

    /// Takes all completions that there are.
    pub(super) fn collect(&mut self) {
        while self.failure.is_none() {
            let Some(queue) = &mut self.queue else {
                return;
            };
            let count = match queue.poll(&mut self.collected) {
                Ok(count) => count,
                Err(error) => return self.fail(Fault::Queue, &error.to_string()),
            };
            for i in 0..count {
                self.completed(self.collected[i]);
            }
            self.post();
            if count < self.collected.len() {
                return;
            }
        }
    }

    /// Posts the receives that were used up.
    pub(super) fn post(&mut self) {
        let Some(queue) = &mut self.queue else {
            return;
        };
        while self.unposted > 0 {
            if let Err(error) = queue.receive(self.unposted.into(), &[]) {
                return self.fail(Fault::Queue, &error.to_string());
            }
            self.unposted -= 1;
        }
    }

    pub(super) fn completed(&mut self, done: WorkDone) {
        if done.status != Status::Success {
            let why = format!("its queue failed: {}", done.status.name());
            return self.fail(Fault::Queue, &why);
        }
        if done.side != Side::Received {
            return;
        }
        self.unposted += 1;
        let Some(ring) = &self.ring else {
            return;
        };
        let page = done
            .immediate
            .map(|immediate| u64::from(immediate) & ((1 << PAGE_BITS) - 1));
        let (Some(immediate), Some(page)) =
            (done.immediate, page.filter(|page| *page < ring.pages))
        else {
            return self.count(Fault::Immediate);
        };
        let psn = immediate >> PAGE_BITS;
        let spot = Spot {
            page: immediate & ((1 << PAGE_BITS) - 1),
            index: u32::try_from(self.orders.pages.packets()).unwrap_or(u32::MAX),
            bytes: 0,
            metadata: Some(0),
        };
        let Some((newest, frame)) = self.newest else {
            let transfer = (page + ring.pages - ring.first) % ring.pages;
            self.order.begin(psn, &spot);
            self.order.ends(done.bytes as usize == metadata::BYTES);
            self.newest = Some((transfer, 0));
            self.owed.0 += transfer + 1;
            self.told = self.told.max(transfer + 1);
            return;
        };
        let course = self.order.find(psn, &spot);
        let is_past = match course {
            Course::Frame(next) => next <= frame,
            Course::Past => true,
            Course::Astray | Course::Anew => false,
        };
        self.past = if is_past { self.past + 1 } else { 0 };
        if (1..=REPEATS).contains(&self.past) {
            return self.count(Fault::Repeated);
        }
        let (ahead, frame, missing) = match course {
            Course::Frame(next) if !is_past => {
                self.order.follow(next, psn, &spot);
                (next - frame, next, next - frame - 1)
            }
            // The sensor counts anew. How many frames it did not end before is not known.
            _ => {
                let ahead = ring.ahead(newest, page);
                self.order.begin(psn, &spot);
                self.seen.begin();
                (self.epoch, self.past) = (self.epoch + 1, 0);
                self.count(Fault::Order);
                (ahead, 0, 0)
            }
        };
        self.newest = Some((newest + ahead, frame));
        if self.ended.len() == self.marked.len()
            && let Some(oldest) = self.ended.pop_front()
        {
            self.overrun += 1;
            self.owed.0 += oldest.passed;
            self.owed.1 += oldest.missing;
        }
        self.ended.push_back(Ended {
            transfer: newest + ahead,
            frame,
            epoch: self.epoch,
            psn,
            passed: ahead - 1,
            missing,
        });
    }
}
