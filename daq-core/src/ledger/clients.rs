//! The ledger of a ring's clients: readers in other processes.

use super::Counter;
use super::ReaderReport;
use super::stored::{Balanced, Stored};

ledger! {
    /// The counters of a ring's clients that have left. Clients that are attached have a
    /// [`ReaderLedger`](super::ReaderLedger) each.
    ledger ClientsLedger {}
    /// A snapshot of the ledger of a ring's clients, attached or not.
    report ClientsReport ["ring"] {
        /// Clients attached now.
        attached: u64, gauge "daq_ring_clients" {
            meaning: "Processes that read the ring's memory; `report.readers` of `/status` lists them.",
            cause: "Programs that use the Python package `daq` or another client.",
        },
        /// Clients attached since startup.
        total: u64 = Counter, counter "daq_ring_clients_total" {
            cause: "A high rate: a program attaches for each frame instead of once.",
            remedy: "Attach once, and iterate over the frames.",
        },
        /// Clients that were disconnected because they broke a rule.
        revoked: u64 = Counter, counter "daq_ring_clients_revoked_total" {
            meaning: "The log names the client and the rule.",
            cause: "A client with a guarantee held a frame for longer than `hold` of the ring, or reported impossible \
                    counts.",
            remedy: "Process frames faster, copy them, attach without a guarantee, or increase `hold` of the ring.",
        },
        /// Frames published while clients were attached, counted for each client.
        published: u64 = Counter, counter "daq_ring_client_published_frames_total" {
            meaning: "Always the sum of read, overrun, discarded, unread and pending.",
        },
        /// Frames that clients have finished.
        read: u64 = Counter, counter "daq_ring_client_read_frames_total" {
            meaning: "As reported by the clients, about ten times a second.",
        },
        /// Frames overwritten before a client read them.
        overrun: u64 = Counter, counter "daq_ring_client_overrun_frames_total" {
            meaning: "Loss of that client only.",
            cause: "The client is slower than the producer.",
            remedy: "Increase `slots`, read only every n-th frame, or attach with a guarantee.",
        },
        /// Frames that clients skipped on purpose, or that changed while a client read them.
        discarded: u64 = Counter, counter "daq_ring_client_discarded_frames_total" {
            meaning: "Frames that were not used.",
            cause: "The client reads only the newest or every n-th frame, or its frames were overwritten while it read \
                    them.",
            remedy: "None needed if the client skips frames on purpose; otherwise increase `slots`.",
        },
        /// Frames that clients had not reported when they left.
        unread: u64 = Counter, counter "daq_ring_client_unread_frames_total" {
            meaning: "Includes frames that a killed client had read but not reported.",
            cause: "Clients were stopped while frames were waiting.",
        },
        /// Frames that attached clients have not reported yet.
        pending: u64, gauge "daq_ring_client_pending_frames" {
            meaning: "Near 0: the clients keep up.",
            cause: "A client pauses, or is too slow.",
            remedy: "See daq_ring_client_overrun_frames_total.",
        },
    }
    equation published = read + overrun + discarded + unread, pending;
}

impl ClientsLedger {
    /// Adds the counts of a client that leaves.
    pub fn add(&self, client: &ReaderReport) {
        self.published.add(client.published);
        self.read.add(client.read);
        self.overrun.add(client.overrun);
        self.discarded.add(client.discarded);
        self.unread.add(client.pending);
    }
}

impl ClientsReport {
    /// Returns the sum of the clients that have left and those that are attached.
    pub fn of<'a>(
        left: &ClientsLedger,
        attached: impl IntoIterator<Item = &'a ReaderReport>,
    ) -> Self {
        let mut report = left.read();
        for client in attached {
            report.attached += 1;
            report.published += client.published;
            report.read += client.read;
            report.overrun += client.overrun;
            report.discarded += client.discarded;
        }
        report.settle();
        report
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_that_leave_keep_the_equation() {
        let left = ClientsLedger::default();
        let client = ReaderReport {
            published: 10,
            read: 4,
            overrun: 3,
            discarded: 1,
            pending: 2,
            ..ReaderReport::default()
        };
        let both = ClientsReport::of(&left, [&client, &client]);
        assert_eq!((both.attached, both.pending), (2, 4));
        left.add(&client);
        let one = ClientsReport::of(&left, [&client]);
        assert_eq!(
            (one.published, one.read, one.unread, one.pending),
            (20, 8, 2, 2)
        );
        for (published, parts) in one.terms() {
            assert_eq!(published, parts.iter().sum::<u64>());
        }
    }
}
