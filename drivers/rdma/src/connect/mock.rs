//! Connectors for tests of listeners, without a network.

use super::access::Allows;
use super::exchange::{Frame, Rails};
use super::handshake::{Arrival, Listener, Port, Transport};
use super::{AbortHandle, ConnectError, PeerMonitor};
use crate::emulated::{EmulatedNic, Faults};
use crate::verbs::{self, Endpoint, Nic, Service};
use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Returns `count` emulated NICs.
pub(crate) fn nics(count: usize) -> Vec<Arc<dyn Nic>> {
    let card = || EmulatedNic::new(Ipv4Addr::LOCALHOST.into(), Faults::none()).unwrap();
    (0..count).map(|_| card()).collect()
}

/// A port that returns these connectors.
pub(crate) struct MockPort(pub(crate) VecDeque<Arrival>);

impl Port for MockPort {
    fn restrict(&mut self, _: Allows) {}

    fn next(&mut self, _: &[Arc<dyn Nic>], _: Instant) -> Result<Arrival, ConnectError> {
        std::thread::yield_now();
        Ok(self.0.pop_front().unwrap_or(Arrival::None))
    }
}

impl MockPort {
    pub(crate) fn listener(self) -> Listener {
        Listener::new(
            self,
            (Ipv4Addr::LOCALHOST, 1).into(),
            Duration::from_mins(1),
        )
    }
}

/// Returns the description of one rail with this greeting.
pub(crate) fn rail(greeting: Vec<u8>, service: Service) -> Rails {
    Rails {
        service,
        transport: verbs::Transport::Rdma,
        endpoints: vec![Endpoint::default()],
        greetings: vec![greeting],
    }
}

/// Returns a listener with one connector of one rail for each greeting, and the reasons of its rejections. An error is a
/// connector whose connection fails.
pub(crate) fn listener(
    greetings: impl Iterator<Item = Result<Vec<u8>, ConnectError>>,
) -> (Listener, Arc<Mutex<Vec<String>>>) {
    let rejections = Arc::<Mutex<Vec<String>>>::default();
    let arrivals = greetings.map(|greeting| match greeting {
        Ok(greeting) => {
            let transport = Box::new(RejectedTransport(rejections.clone()));
            Arrival::Connector(transport, rail(greeting, Service::Rc))
        }
        Err(error) => Arrival::Failed("10.0.0.66:4000".to_owned(), error),
    });
    let listener = MockPort(arrivals.collect()).listener();
    (listener, rejections)
}

/// Records the reasons of rejections.
struct RejectedTransport(Arc<Mutex<Vec<String>>>);

impl Transport for RejectedTransport {
    fn peer(&self) -> String {
        "10.0.0.66:4000".to_owned()
    }

    fn send(&mut self, message: &Frame, _: Instant) -> Result<(), ConnectError> {
        let Frame::Refusal(why) = message else {
            panic!("unexpected {}", message.kind());
        };
        self.0.lock().unwrap().push(why.clone());
        Ok(())
    }

    fn receive(&mut self, _: Instant) -> Result<Frame, ConnectError> {
        unreachable!("no test connects")
    }

    fn abort_handle(&self) -> AbortHandle {
        Box::new(|| {})
    }

    fn monitor(self: Box<Self>) -> Box<dyn PeerMonitor> {
        unreachable!("no test connects")
    }
}
