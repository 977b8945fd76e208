//! Options of the TCP connections of a stream.

use rustix::net::sockopt;
use std::io::{self, ErrorKind, Read};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

/// Idle time after which Linux starts to send keepalive probes: one per second, at most three.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(2);
/// Time without an acknowledgement by the peer's Linux after which Linux ends a connection that has data to send. The
/// keepalive probes cover only idle connections.
const USER_TIMEOUT_MS: u32 = 8000;

/// Prepares a connection: calls never block, data is sent immediately, and a peer that no longer answers is detected.
pub(crate) fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(stream, Duration::from_secs(1))?;
    sockopt::set_tcp_keepcnt(stream, 3)?;
    sockopt::set_tcp_user_timeout(stream, USER_TIMEOUT_MS)?;
    Ok(())
}

/// Ends the sending direction of a connection, and discards bytes that have arrived. Linux resets a connection that is
/// closed with unread bytes, and the peer would lose what it has not read yet. Returns true if the peer has ended its
/// direction, too.
pub(crate) fn close(mut stream: &TcpStream) -> bool {
    // An error is expected if the peer has closed the connection.
    let _ = stream.shutdown(Shutdown::Write);
    let mut unread = [0; 4096];
    for _ in 0..16 {
        match stream.read(&mut unread) {
            Ok(1..) => {}
            Ok(0) => return true,
            Err(error) => {
                return !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted);
            }
        }
    }
    false
}
