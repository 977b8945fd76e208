//! Checks rdma_cm in both roles.

use crate::ends::{Outcome, TIMEOUT, memory, next, options, succeeded, telling, that, write};
use daq_rdma::connect::cm;
use daq_rdma::connect::{Accepted, ConnectError, Connector, Handshake, Link};
use daq_rdma::sys::{self, device};
use daq_rdma::verbs::{MemoryRegion, Nic, Payload, Service, Side, Verb, WorkRequest};
use daq_rdma::wire::Hello;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Returns the address with which rdma_cm reaches the card.
pub fn address(nic: &Arc<dyn Nic>) -> Outcome<SocketAddr> {
    let ip = device::ip(nic.port()?.gid).ok_or("skip: the card has only a link-local address")?;
    Ok(SocketAddr::new(ip, 18_515))
}

/// Connects the card to itself. Returns the two links, the connector's first, and their memory regions.
pub fn linked(nic: &Arc<dyn Nic>) -> Outcome<(Link, Link, MemoryRegion, MemoryRegion)> {
    let address = address(nic)?;
    let mut listener = cm::listener(address)?;
    let (theirs, ours) = (memory(nic)?, memory(nic)?);
    let answer = [
        theirs.address().to_le_bytes(),
        u64::from(theirs.rkey()).to_le_bytes(),
    ]
    .concat();
    let connecting = connect(nic, address);
    let incoming = listener.accept(&[Arc::clone(nic)], TIMEOUT)?.connector()?;
    let output = &incoming.greetings()[0];
    that(output.starts_with(b"hello"), format!("{output:?}"))?;
    let mut prepared = 0;
    let accepted = incoming.accept(
        &options(Service::Rc),
        std::slice::from_ref(&answer),
        &mut |_, queue| {
            prepared += 1;
            queue.post_receive(5, &[])
        },
    )?;
    that(
        prepared == 1,
        format!("the queue pair was prepared {prepared} times, expected once"),
    )?;
    let connected = joined(connecting)??;
    that(
        connected.greetings[0].starts_with(&answer),
        format!("{:?}", connected.greetings),
    )?;
    Ok((connected, accepted, ours, theirs))
}

/// Waits until the link reports that the other side has disconnected.
pub fn gone(link: &mut Link) -> Outcome<String> {
    let begin = Instant::now();
    while begin.elapsed() < TIMEOUT {
        if let Some(why) = link.monitor.poll_disconnect() {
            return Ok(why.to_string());
        }
        std::thread::yield_now();
    }
    Err("the link did not report that the other side disconnected".into())
}

pub fn managed(nic: &Arc<dyn Nic>) -> Outcome<String> {
    let (mut connected, mut accepted, ours, theirs) = linked(nic)?;
    that(
        connected.monitor.poll_disconnect().is_none(),
        "the link must not report a disconnection yet",
    )?;
    let sges = [ours.sge(0, 16)];
    let work = write(&theirs, 32, Payload::Memory(&sges));
    connected.rails[0].post_send(&telling(work, 3))?;
    let done = next(&mut *accepted.rails[0])?;
    succeeded(&done, 5, Side::Received)?;
    that(done.immediate == Some(3), format!("{done:?}"))?;
    // Also write in the other direction.
    let sges = [theirs.sge(0, 8)];
    accepted.rails[0].post_send(&write(&ours, 0, Payload::Memory(&sges)))?;
    succeeded(&next(&mut *accepted.rails[0])?, 1, Side::Sent)?;
    connected.monitor.close(0);
    gone(&mut accepted)
}

pub fn vanished(nic: &Arc<dyn Nic>) -> Outcome<String> {
    let (mut connected, accepted, _ours, _theirs) = linked(nic)?;
    drop(accepted);
    gone(&mut connected)
}

pub fn refused(nic: &Arc<dyn Nic>) -> Outcome<String> {
    let address = address(nic)?;
    let mut listener = cm::listener(address)?;
    let connecting = connect(nic, address);
    let incoming = listener.accept(&[Arc::clone(nic)], TIMEOUT)?.connector()?;
    incoming.refuse("the rings have different slot sizes");
    match joined(connecting)? {
        Err(ConnectError::Refused { why, .. }) if why == "the rings have different slot sizes" => {
            Ok(why)
        }
        Err(error) => Err(error.into()),
        Ok(_) => Err("the connection must be rejected, but was accepted".into()),
    }
}

pub fn no_listener(nic: &Arc<dyn Nic>) -> Outcome<String> {
    match joined(connect(nic, address(nic)?))? {
        Err(error @ ConnectError::Refused { .. }) => Ok(error.to_string()),
        Err(error) => Err(error.into()),
        Ok(_) => Err("the connection must be rejected, but was accepted".into()),
    }
}

pub type Connecting = std::thread::JoinHandle<Result<Link, ConnectError>>;

/// Connects the card to `address` on another thread.
pub fn connect(nic: &Arc<dyn Nic>, address: SocketAddr) -> Connecting {
    connect_rails(
        cm::connector(vec![address]),
        &[Arc::clone(nic)],
        &[b"hello".to_vec()],
    )
}

fn connect_rails(
    mut connector: Connector,
    nics: &[Arc<dyn Nic>],
    greetings: &[Vec<u8>],
) -> Connecting {
    let (nics, greetings) = (nics.to_vec(), greetings.to_vec());
    std::thread::spawn(move || {
        let handshake = Handshake {
            nics: &nics,
            options: &options(Service::Rc),
            greetings: &greetings,
            prepare: &mut |_, _| Ok(()),
        };
        connector.connect(handshake, TIMEOUT)
    })
}

/// Waits until the thread has connected or failed.
fn joined(connecting: Connecting) -> Outcome<Result<Link, ConnectError>> {
    Ok(connecting
        .join()
        .map_err(|_| "the connecting thread panicked")?)
}

/// The listener has declared another card than the one to which the address belongs, so it must reject the connection.
pub fn undeclared(one: &str, other: &str) -> Outcome<String> {
    let (one, other) = (sys::open(one, 1, None)?, sys::open(other, 1, None)?);
    let address = address(&one)?;
    let mut listener = cm::listener(address)?;
    let connecting = connect(&one, address);
    let come = listener.accept(&[other], Duration::from_secs(3))?;
    that(
        matches!(come, Accepted::None),
        "the listener accepted an undeclared card",
    )?;
    match joined(connecting)? {
        Err(ConnectError::Refused { why, .. }) if why.contains("`nics` names") => Ok(why),
        Err(error) => Err(error.into()),
        Ok(_) => Err("the connection must be rejected, but was accepted".into()),
    }
}

/// Connects a stream of two rails. Each rail must use the card that was declared for it.
pub fn two_rails(one: &str, other: &str) -> Outcome<String> {
    let nics = [sys::open(one, 1, None)?, sys::open(other, 1, None)?];
    let (first, second) = (address(&nics[0])?, address(&nics[1])?);
    let mut listener = cm::listener(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), first.port()))?;
    let greetings: Vec<Vec<u8>> = (0..2)
        .map(|rail| {
            Hello {
                rail,
                rails: 2,
                stream: 4711,
                ..Hello::default()
            }
            .encode()
        })
        .collect();
    let connecting = connect_rails(cm::connector(vec![first, second]), &nics, &greetings);
    let incoming = listener.accept(&nics, TIMEOUT)?.connector()?;
    for (output, greeting) in incoming.greetings().iter().zip(&greetings) {
        that(output.starts_with(greeting), format!("{output:?}"))?;
    }
    let answers = [b"rail 0".to_vec(), b"rail 1".to_vec()];
    let mut accepted = incoming.accept(&options(Service::Rc), &answers, &mut |rail, queue| {
        queue.post_receive(rail as u64, &[])
    })?;
    let mut connected = joined(connecting)??;
    for (output, answer) in connected.greetings.iter().zip(&answers) {
        that(output.starts_with(answer), format!("{output:?}"))?;
    }
    for (rail, queue) in connected.rails.iter_mut().enumerate() {
        queue.post_send(&WorkRequest {
            id: 1,
            verb: Verb::Send {
                immediate: Some(u32::try_from(rail)?),
            },
            payload: Payload::Inline(&[]),
            signaled: true,
        })?;
        let done = next(&mut *accepted.rails[rail])?;
        succeeded(&done, rail as u64, Side::Received)?;
    }
    accepted.monitor.close(0);
    gone(&mut connected)
}
