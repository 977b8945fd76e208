//! A client that is attached to a ring.

use super::OfferedRing;
use super::claims::Claims;
use super::clients::{Clients, Membership};
use super::protocol::{At, Attach, Progress};
use super::relay::Served;
use super::socket::Peer;
use daq_core::ledger::ReaderLedger;
use daq_core::ring::{Reader, Ring};
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
    /// Time since which the oldest frame that the client has not retired waits; `None` if no frame waits.
    since: Option<Instant>,
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
                    since: None,
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

    /// Returns an error if the client holds a frame for too long.
    pub(super) fn check(&mut self) -> Result<(), String> {
        let Some(guarantee) = &mut self.guarantee else {
            return Ok(());
        };
        if self.ring.published() <= self.claims.retired() {
            guarantee.since = None;
            return Ok(());
        }
        let since = *guarantee.since.get_or_insert_with(Instant::now);
        if since.elapsed() <= guarantee.hold {
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
        if frames > 0 {
            self.since = None;
        }
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
