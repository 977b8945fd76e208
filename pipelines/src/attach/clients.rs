//! The clients of all rings: readers in other processes, and their ledgers.

use super::socket::Peer;
use daq_core::ledger::{
    ClientsLedger, ClientsReport, ReaderLedger, ReaderReport, Report, RingLedger,
};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The clients of all rings. The server adds and removes clients; any thread can add their counts to a report.
#[derive(Debug, Default)]
pub struct Clients(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// For each ring that had a client: the counts of its clients that have left.
    left: BTreeMap<String, ClientsLedger>,
    /// The attached clients by name.
    attached: BTreeMap<String, Client>,
}

#[derive(Debug)]
struct Client {
    ring: String,
    process: u32,
    ledger: ReaderLedger,
    ring_ledger: RingLedger,
}

impl Client {
    fn report(&self) -> ReaderReport {
        ReaderReport {
            process: Some(self.process),
            ..ReaderReport::of(&self.ledger, &self.ring, &self.ring_ledger)
        }
    }
}

impl Clients {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the process `peer` to the clients of `ring`, until the returned value is dropped. The name of the client is
    /// that of its program with its process ID, such as `python3[4711]`. If a process attaches several times, the other
    /// names end in ` 2` and so on.
    pub(super) fn add(
        self: &Arc<Self>,
        ring: &str,
        ring_ledger: RingLedger,
        peer: &Peer,
        ledger: ReaderLedger,
    ) -> Membership {
        let base = format!("{}[{}]", peer.program, peer.process);
        let mut state = self.lock();
        let mut name = base.clone();
        let mut number = 1;
        while state.attached.contains_key(&name) {
            number += 1;
            name = format!("{base} {number}");
        }
        let client = Client {
            ring: ring.to_owned(),
            process: peer.process,
            ledger,
            ring_ledger,
        };
        state.attached.insert(name.clone(), client);
        state.left.entry(ring.to_owned()).or_default().total.add(1);
        drop(state);
        Membership {
            clients: self.clone(),
            name,
        }
    }

    /// Returns the number of clients that are attached to `ring`.
    pub(super) fn count(&self, ring: &str) -> usize {
        let state = self.lock();
        let clients = state.attached.values();
        clients.filter(|client| client.ring == ring).count()
    }

    /// Adds the clients to a report.
    pub fn add_to(&self, report: &mut Report) {
        let state = self.lock();
        let attached: BTreeMap<_, _> = state
            .attached
            .iter()
            .map(|(name, client)| (name, client.report()))
            .collect();
        for (ring, left) in &state.left {
            let clients = attached.values().filter(|client| client.ring == *ring);
            let clients = ClientsReport::of(left, clients);
            report.clients.insert(ring.clone(), clients);
        }
        for (name, client) in attached {
            report.readers.insert(name.clone(), client);
        }
    }
}

/// An attached client. Dropping this value removes the client and adds its counts to those of the clients that have left.
#[derive(Debug)]
pub(super) struct Membership {
    clients: Arc<Clients>,
    name: String,
}

impl Membership {
    /// Returns the name of the client in reports.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Counts the client as revoked.
    pub(super) fn count_revoked(&self) {
        let state = self.clients.lock();
        if let Some(client) = state.attached.get(&self.name)
            && let Some(left) = state.left.get(&client.ring)
        {
            left.revoked.add(1);
        }
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        let mut state = self.clients.lock();
        if let Some(client) = state.attached.remove(&self.name)
            && let Some(left) = state.left.get(&client.ring)
        {
            left.add(&client.report());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::claims::Claims;
    use super::super::protocol::Progress;
    use super::*;

    #[test]
    fn counts_remain_after_clients_leave() {
        let clients = Arc::new(Clients::default());
        let ring = RingLedger::default();
        ring.capacity.set(8);
        ring.published.set(20);
        let peer = Peer {
            process: 4711,
            program: "python3".to_owned(),
        };
        let attach = || {
            let ledger = ReaderLedger::default();
            let claims = Claims::new(20);
            claims.store(&ledger);
            let member = clients.add("raw", ring.clone(), &peer, ledger.clone());
            (member, claims, ledger)
        };
        let (first, mut claims, ledger) = attach();
        let (second, ..) = attach();
        assert_eq!(
            (first.name(), second.name()),
            ("python3[4711]", "python3[4711] 2")
        );
        ring.published.set(50);
        let progress = Progress {
            position: 45,
            read: 20,
            overrun: 4,
            discarded: 1,
            retired: None,
        };
        claims.accept(&progress, 50).unwrap();
        claims.store(&ledger);
        let report = || {
            let mut report = Report::default();
            clients.add_to(&mut report);
            assert_eq!(report.violations(), []);
            report
        };
        let both = report();
        assert_eq!(both.readers["python3[4711]"].pending, 5);
        assert_eq!(both.readers["python3[4711]"].process, Some(4711));
        assert_eq!(
            (both.clients["raw"].attached, both.clients["raw"].published),
            (2, 60)
        );
        first.count_revoked();
        drop(first);
        drop(second);
        let none = report();
        assert!(none.readers.is_empty());
        let of_ring = &none.clients["raw"];
        assert_eq!(
            (of_ring.attached, of_ring.total, of_ring.revoked),
            (0, 2, 1)
        );
        assert_eq!(
            (of_ring.published, of_ring.read, of_ring.unread),
            (60, 20, 35)
        );
    }
}
