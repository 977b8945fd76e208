//! The sockets of several threads, which begin and end to accept packets together. Otherwise the first and the last frames would
//! lack the packets that arrive meanwhile at the other sockets.

use super::filler::Receiver;
use crate::sender::Allowed;
use crate::sys::socket::UdpSocket;
use std::io;
use std::sync::Arc;

/// The sockets of a source.
#[derive(Debug)]
pub(super) struct SocketGroup(Box<[Arc<UdpSocket>]>);

impl SocketGroup {
    /// Makes the closed sockets of `receivers` accept packets of the senders `allowed`, or of every sender if there are none.
    pub(super) fn begin(receivers: &mut [Receiver], allowed: &[Allowed]) -> io::Result<()> {
        let sockets = receivers.iter().map(|receiver| receiver.socket().clone());
        let group = Arc::new(Self(sockets.collect()));
        // One socket immediately after the other.
        let dropped = group.0.iter().map(|socket| socket.accept_packets(allowed));
        let dropped = dropped.collect::<io::Result<Vec<_>>>()?;
        for (receiver, dropped) in receivers.iter_mut().zip(dropped) {
            receiver.socket().coalesce()?;
            receiver.join(group.clone(), dropped);
        }
        Ok(())
    }

    /// Makes all sockets drop the packets that arrive from now on.
    pub(super) fn end(&self) -> io::Result<()> {
        self.0.iter().try_for_each(|socket| socket.drop_packets())
    }
}
