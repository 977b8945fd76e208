//! A client that is attached to a ring.

use super::OfferedRing;
use super::claims::Claims;
use super::clients::{Clients, Membership};
use super::protocol::{At, Attach, Progress};
use super::relay::Served;
use super::socket::Peer;
use daq_core::ledger::ReaderLedger;
use daq_core::ring::{Reader, Ring};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// An attached client. Dropping this value detaches it.
#[derive(Debug)]
pub(super) struct Attachment {
    ring: Ring,
    claims: Claims,
    ledger: ReaderLedger,
    /// Dropped before the reader, because a detached reader no longer protects its frames.
    member: Membership,
    guarantee: Option<Guarantee>,
    #[expect(dead_code, reason = "the client is woken until this value is dropped")]
    served: Served,
}

/// The reader that protects the frames of a client.
#[derive(Debug)]
struct Guarantee {
    reader: Reader,
    hold: Duration,
    ages: Ages,
}

/// The ages of published frames that a client has not retired.
#[derive(Debug, Default)]
struct Ages {
    /// Numbers of published frames and the times at which they were seen, in ascending order.
    seen: VecDeque<(u64, Instant)>,
}

impl Ages {
    /// Number of times that are remembered during `hold`.
    const RESOLUTION: u32 = 32;

    /// Returns how long the oldest frame waits that was published, but not `retired`. The result can be too small by
    /// 1/32 of `hold`.
    fn oldest(&mut self, published: u64, retired: u64, hold: Duration, now: Instant) -> Duration {
        while self
            .seen
            .front()
            .is_some_and(|(frames, _)| *frames <= retired)
        {
            self.seen.pop_front();
        }
        let last = self.seen.back();
        let is_due = last.is_none_or(|(frames, at)| {
            *frames < published && now.saturating_duration_since(*at) >= hold / Self::RESOLUTION
        });
        // A client that exceeds `hold` is revoked, so the number of entries is bounded.
        if published > retired && is_due {
            self.seen.push_back((published, now));
        }
        let oldest = self.seen.front();
        oldest.map_or(Duration::ZERO, |(_, at)| now.saturating_duration_since(*at))
    }
}

impl Attachment {
    /// Attaches the process `peer` to a ring.
    pub(super) fn new(
        offered: &OfferedRing,
        clients: &Arc<Clients>,
        peer: &Peer,
        request: &Attach,
        served: Served,
    ) -> Result<Self, String> {
        let (ring, name) = (&offered.ring, &request.ring);
        let ledger = ReaderLedger::default();
        let allowed = offered.planned.attach.filter(|attach| attach.guarantee);
        let (claims, guarantee) = match (request.guarantee, allowed) {
            (true, None) => {
                return Err(format!(
                    "ring `{name}` allows no client with a guarantee; set `attach = {{ guarantee = true }}` in \
                     [ring.{name}], or attach without a guarantee"
                ));
            }
            (true, Some(_)) if request.at != At::Next => {
                return Err(
                    "a client with a guarantee begins with the next frame; remove `at`, or attach without a guarantee"
                        .to_owned(),
                );
            }
            (true, Some(attach)) => {
                let reader = ring
                    .attach(true, 1, ledger.clone())
                    .map_err(|error| error.to_string())?;
                let guarantee = Guarantee {
                    hold: attach.hold.0,
                    ages: Ages::default(),
                    reader,
                };
                (Claims::new(guarantee.reader.position()), Some(guarantee))
            }
            (false, _) => {
                let first = request
                    .at
                    .first(ring.published(), ring.options().slots as u64);
                let claims = Claims::new(first);
                claims.store(&ledger);
                (claims, None)
            }
        };
        let member = clients.add(name, offered.ledger.clone(), peer, ledger.clone());
        Ok(Self {
            ring: ring.clone(),
            claims,
            ledger,
            member,
            guarantee,
            served,
        })
    }

    /// Returns the number of the frame with which reading begins.
    pub(super) const fn first(&self) -> u64 {
        self.claims.first()
    }

    /// Returns the name of the client in reports.
    pub(super) fn name(&self) -> &str {
        self.member.name()
    }

    /// Returns the name of the ring.
    pub(super) fn ring(&self) -> &str {
        &self.ring.options().name
    }

    /// Counts the client as revoked.
    pub(super) fn count_revoked(&self) {
        self.member.count_revoked();
    }

    /// Returns the maximum time for which the client may hold a frame; `None` without a guarantee.
    pub(super) fn hold(&self) -> Option<Duration> {
        Some(self.guarantee.as_ref()?.hold)
    }

    /// Accepts the counts of the client, or returns the rule that they break.
    pub(super) fn progress(&mut self, progress: &Progress) -> Result<(), String> {
        let published = self.ring.published();
        let Some(guarantee) = &mut self.guarantee else {
            self.claims.accept(progress, published)?;
            self.claims.store(&self.ledger);
            return Ok(());
        };
        let (read, discarded) = self.claims.accept_guaranteed(progress, published)?;
        guarantee.retire(read, discarded);
        Ok(())
    }

    /// Returns an error if the client has not retired a frame for too long, also if it retires older frames meanwhile.
    pub(super) fn check(&mut self) -> Result<(), String> {
        let Some(guarantee) = &mut self.guarantee else {
            return Ok(());
        };
        let (published, retired) = (self.ring.published(), self.claims.retired());
        let hold = guarantee.hold;
        if guarantee
            .ages
            .oldest(published, retired, hold, Instant::now())
            <= hold
        {
            return Ok(());
        }
        Err(format!(
            "it has not retired frame {} for {}, the `hold` of the ring",
            self.claims.retired(),
            daq_core::units::Span(guarantee.hold)
        ))
    }
}

impl Guarantee {
    /// Retires frames: first `read` frames that the client has read, then `discarded` frames.
    fn retire(&mut self, read: u64, discarded: u64) {
        let (mut read, mut frames) = (read, read + discarded);
        while frames > 0
            && let Some(lease) = self
                .reader
                .poll(usize::try_from(frames).unwrap_or(usize::MAX))
        {
            let count = lease.len() as u64;
            frames -= count;
            let of_read = read.min(count);
            read -= of_read;
            lease.discard_after(usize::try_from(of_read).unwrap_or(usize::MAX));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_slower_than_the_stream_exceeds_hold_although_it_retires_frames() {
        let (start, hold) = (Instant::now(), Duration::from_secs(2));
        let mut ages = Ages::default();
        // 100 frames per second are published, and 50 are retired.
        let exceeded = (0..200_u64).find(|tick| {
            let now = start + Duration::from_millis(50 * tick);
            ages.oldest(5 * tick, 5 * tick / 2, hold, now) > hold
        });
        // Frame n is published after n/100 s and retired after n/50 s.
        assert!((80..=86).contains(&exceeded.unwrap()), "{exceeded:?}");
        assert!(ages.seen.len() <= 2 * Ages::RESOLUTION as usize);
    }

    #[test]
    fn client_that_keeps_up_never_exceeds_hold() {
        let (start, hold) = (Instant::now(), Duration::from_millis(300));
        let mut ages = Ages::default();
        for tick in 0..1000_u64 {
            let now = start + Duration::from_millis(50 * tick);
            // The client is two ticks behind.
            let age = ages.oldest(5 * tick, 5 * tick.saturating_sub(2), hold, now);
            assert!(age <= Duration::from_millis(150), "{age:?}");
        }
        let idle = start + Duration::from_hours(1);
        assert_eq!(ages.oldest(5000, 5000, hold, idle), Duration::ZERO);
        assert_eq!(ages.oldest(5001, 5000, hold, idle), Duration::ZERO);
        let later = idle + 2 * hold;
        assert_eq!(ages.oldest(5001, 5000, hold, later), 2 * hold);
    }
}
