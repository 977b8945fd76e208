//! The keys of source and sink `stream` that depend on the transport.

use crate::nics::{self, NicNames};
use crate::tcp::TcpNic;
use crate::verbs::{Nic, Transport, VerbsError};
use daq_core::topology::nic::AUTO;
use std::sync::Arc;

/// Maximum number of connections of a stream over TCP.
const MAX_CONNECTIONS: usize = 32;
/// Maximum number of queue pairs of a stream.
const MAX_RAILS: usize = crate::wire::MAX_RAILS as usize;

/// A problem of a configuration: the key, what is wrong with it, and how to fix it.
pub type KeyProblem = (&'static str, String, String);

/// The rails of a stream, as source and sink configure them.
#[derive(Clone, Copy, Debug)]
pub struct RailKeys<'a> {
    /// The key `transport`.
    pub transport: Transport,
    /// The key `nics`; `None` stands for `"auto"`.
    pub nics: Option<&'a NicNames>,
    /// The key `queue_pairs`.
    pub queue_pairs: Option<usize>,
    /// The key `connections`.
    pub connections: Option<usize>,
}

impl RailKeys<'_> {
    /// Returns the names of the NICs; none for TCP.
    pub fn nics(&self) -> NicNames {
        match (self.transport, self.nics) {
            (Transport::Tcp, _) => NicNames::Several(Vec::new()),
            (Transport::Rdma, Some(nics)) => nics.clone(),
            (Transport::Rdma, None) => NicNames::One(AUTO.to_owned()),
        }
    }

    /// Returns the number of rails.
    pub fn count(&self) -> usize {
        match self.transport {
            Transport::Tcp => self.connections.unwrap_or(1),
            Transport::Rdma => {
                let queue_pairs = self.queue_pairs.unwrap_or(1);
                self.nics().all().len().saturating_mul(queue_pairs)
            }
        }
    }

    /// Opens one NIC per rail. `chosen` is the NIC that the plan has selected for `"auto"`.
    pub fn open(&self, chosen: Option<&str>) -> Result<Vec<Arc<dyn Nic>>, VerbsError> {
        match self.transport {
            Transport::Tcp => Ok(TcpNic::rails(self.count())),
            Transport::Rdma => {
                let names = self.nics().resolved(chosen);
                nics::open_rails(&names, self.queue_pairs.unwrap_or(1))
            }
        }
    }

    /// Returns what carries the frames, for messages: the names of the NICs, or `tcp`.
    pub fn names(&self) -> String {
        match self.transport {
            Transport::Tcp => self.transport.name().to_owned(),
            Transport::Rdma => self.nics().all().join(", "),
        }
    }

    /// Returns every problem of the keys. `set` names those further keys of the section that are set and have a meaning
    /// only with RDMA.
    pub fn problems(&self, set: &[&'static str]) -> Vec<KeyProblem> {
        let mut found = Vec::new();
        let mut report = |key, message: String, help: String| found.push((key, message, help));
        if self.transport == Transport::Tcp {
            let remove = |key| format!("remove `{key}`, or set transport = \"rdma\" on both hosts");
            let useless = |key| format!("`{key}` has no meaning with transport = \"tcp\"");
            if self.nics.is_some() {
                report("nics", useless("nics"), remove("nics"));
            }
            if self.queue_pairs.is_some() {
                let help = "set `connections`, the number of TCP connections, instead".to_owned();
                report("queue_pairs", useless("queue_pairs"), help);
            }
            for key in set {
                report(key, useless(key), remove(key));
            }
            let connections = self.count();
            if !(1..=MAX_CONNECTIONS).contains(&connections) {
                let message =
                    format!("`connections` must be 1 to {MAX_CONNECTIONS}, not {connections}");
                report("connections", message, "try 1".to_owned());
            }
            return found;
        }
        if self.connections.is_some() {
            let message = "`connections` has no meaning with transport = \"rdma\"".to_owned();
            let help = "set `queue_pairs`, the number of queue pairs per NIC, instead".to_owned();
            report("connections", message, help);
        }
        let (nics, rails) = (self.nics(), self.count());
        if nics.all().is_empty() {
            let help = "name at least one NIC, as in [\"mlx5_0\"]; `rdma link` lists the NICs of this host";
            report("nics", "no NIC is named".to_owned(), help.to_owned());
        } else if rails == 0 || rails > MAX_RAILS {
            let message =
                format!("the total number of queue pairs is {rails}; it must be 1 to {MAX_RAILS}");
            report("queue_pairs", message, "try 1".to_owned());
        }
        if nics.is_mixed() {
            let message = "`auto` cannot be combined with other NICs".to_owned();
            let help = "set only nics = \"auto\", or name each NIC".to_owned();
            report("nics", message, help);
        }
        found
    }
}

impl Transport {
    /// Returns the name of a rail in messages.
    pub const fn rail(self) -> &'static str {
        match self {
            Self::Rdma => "queue pair",
            Self::Tcp => "connection",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_other_transport_are_reported_with_fix() {
        let nics = NicNames::One("mlx5_0".to_owned());
        let tcp = RailKeys {
            transport: Transport::Tcp,
            nics: None,
            queue_pairs: None,
            connections: Some(4),
        };
        assert_eq!((tcp.problems(&[]), tcp.count()), (Vec::new(), 4));
        assert_eq!(tcp.names(), "tcp");
        assert_eq!(tcp.open(None).unwrap().len(), 4);
        let wrong = RailKeys {
            nics: Some(&nics),
            queue_pairs: Some(2),
            connections: Some(33),
            ..tcp
        };
        let found = wrong.problems(&["mode", "service"]);
        let keys: Vec<_> = found.iter().map(|(key, ..)| *key).collect();
        assert_eq!(
            keys,
            ["nics", "queue_pairs", "mode", "service", "connections"]
        );
        assert!(found[1].2.contains("`connections`") && found[4].1.contains("1 to 32, not 33"));

        let rdma = RailKeys {
            transport: Transport::Rdma,
            ..wrong
        };
        let found = rdma.problems(&["mode"]);
        assert!(found.len() == 1 && found[0].2.contains("`queue_pairs`"));
        let auto = RailKeys {
            nics: None,
            connections: None,
            ..rdma
        };
        assert_eq!((auto.problems(&[]), auto.count()), (Vec::new(), 2));
        assert!(auto.nics().is_auto());
        assert_eq!(auto.open(Some("emulated")).unwrap().len(), 2);
    }
}
