//! The thread that serves all connections.

use super::connection::{CHECK_INTERVAL, Connection, Outcome, Serving};
use super::protocol::refusal;
use super::socket::{self, Group, MAX_PACKET, SocketFile};
use super::{AttachError, Offer};
use daq_core::log_limit::LogLimit;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io::Errno;
use rustix::net::SocketFlags;
use rustix::process::{Resource, getrlimit, setpriority_process};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Maximum number of connections, also if the process may open very many files.
const MAX_CONNECTIONS: usize = 1024;
/// The server uses at most `1 / DESCRIPTOR_SHARE` of the file descriptors that the process may open.
const DESCRIPTOR_SHARE: u64 = 4;
/// Maximum number of packets that one client sends before other clients are served.
const PACKETS_PER_TURN: usize = 16;
/// Maximum number of connections that are accepted before clients are served.
const ACCEPTS_PER_TURN: usize = 16;
/// Pause after a failed `accept`, which usually fails because no file descriptor is free.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Nice value of the thread: data threads have priority.
const NICE: i32 = 10;

/// Tokens of the listening socket, of the request to stop, and of copies of frames; connections have larger tokens.
const LISTENER: u64 = 0;
const STOP: u64 = 1;
const TAPPED: u64 = 2;
/// Events of a connection that is not suspended.
const CONNECTION_EVENTS: EventFlags = EventFlags::IN.union(EventFlags::RDHUP);

/// A running server. The server stops when this value is dropped, and its socket is removed.
#[derive(Debug)]
pub struct Server {
    path: PathBuf,
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Serves `offer` on a socket in the first of `directories` in which its path is not too long.
    ///
    /// # Errors
    /// If the socket cannot be created, or another process serves a pipeline with this name.
    pub fn start(offer: Offer, directories: &[PathBuf]) -> Result<Self, AttachError> {
        let fail = |error: Errno| AttachError::Thread(error.into());
        let path = socket::path(directories, &offer.pipeline)?;
        let group = offer.group.as_deref().map(Group::find).transpose()?;
        let event = || {
            let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
            eventfd(0, flags).map(Arc::new).map_err(fail)
        };
        let (stop, tapped) = (event()?, event()?);
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(fail)?;
        let (listener, file) = socket::listen(&path, group.as_ref())?;
        for (descriptor, token) in [
            (listener.as_fd(), LISTENER),
            (stop.as_fd(), STOP),
            (tapped.as_fd(), TAPPED),
        ] {
            epoll::add(
                &epoll,
                descriptor,
                EventData::new_u64(token),
                EventFlags::IN,
            )
            .map_err(fail)?;
        }
        let mut work = Work {
            epoll,
            listener,
            stop: stop.clone(),
            file,
            group,
            serving: Serving::new(offer, tapped),
            connections: BTreeMap::new(),
            next_token: TAPPED + 1,
            max_connections: max_connections(),
            buffer: vec![0; MAX_PACKET],
            paused_until: None,
            next_check: Instant::now(),
            rejections: LogLimit::new(),
        };
        let thread = std::thread::Builder::new()
            .name("daq-attach".to_owned())
            .spawn(move || work.run())
            .map_err(AttachError::Thread)?;
        Ok(Self {
            path,
            stop,
            thread: Some(thread),
        })
    }

    /// Returns the path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Stops the server. Clients are disconnected, and the socket is removed when this function returns.
    pub fn stop(self) {
        drop(self);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The counter of a new eventfd has room for one.
        let _ = rustix::io::write(&self.stop, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the attach server's thread panicked; this is a defect in daq");
        }
    }
}

fn max_connections() -> usize {
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let share = usize::try_from(descriptors / DESCRIPTOR_SHARE).unwrap_or(usize::MAX);
    share.clamp(2, MAX_CONNECTIONS)
}

/// The state of the server's thread.
struct Work {
    epoll: OwnedFd,
    listener: OwnedFd,
    #[expect(
        dead_code,
        reason = "the descriptor must stay open while the thread waits for it"
    )]
    stop: Arc<OwnedFd>,
    #[expect(
        dead_code,
        reason = "the socket's file is removed when this value is dropped"
    )]
    file: SocketFile,
    /// Group whose members may attach.
    group: Option<Group>,
    serving: Serving,
    /// The connections by token; older connections have smaller tokens.
    connections: BTreeMap<u64, Connection>,
    next_token: u64,
    max_connections: usize,
    buffer: Vec<u8>,
    /// End of a pause in accepting connections.
    paused_until: Option<Instant>,
    /// Earliest time of the next check of what depends on time.
    next_check: Instant,
    rejections: LogLimit,
}

impl Work {
    fn run(&mut self) {
        // Without permission to change it, the priority stays that of the process.
        let _ = setpriority_process(None, NICE);
        let mut events = Vec::with_capacity(64);
        loop {
            let timeout = self
                .timeout()
                .and_then(|time| Timespec::try_from(time).ok());
            events.clear();
            let buffer = rustix::buffer::spare_capacity(&mut events);
            match epoll::wait(&self.epoll, buffer, timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => {
                    tracing::error!(
                        "attach: cannot wait for clients: {error}; no process can attach until daq is restarted"
                    );
                    return;
                }
            }
            for event in &events {
                match event.data.u64() {
                    STOP => return self.end(),
                    LISTENER => self.accept(),
                    TAPPED => self.finish_taps(),
                    token => self.serve(token),
                }
            }
            if self
                .paused_until
                .is_some_and(|until| until <= Instant::now())
            {
                self.paused_until = None;
                self.listen(EventFlags::IN);
            }
            self.check();
        }
    }

    /// Returns how long the thread can wait without an event.
    fn timeout(&self) -> Option<Duration> {
        let pause = self.paused_until.map(|_| ACCEPT_PAUSE);
        let clients = self.connections.values().filter_map(Connection::interval);
        pause.into_iter().chain(clients).min()
    }

    /// Selects the events of the listening socket.
    fn listen(&self, events: EventFlags) {
        let token = EventData::new_u64(LISTENER);
        if let Err(error) = epoll::modify(&self.epoll, &self.listener, token, events) {
            tracing::error!("attach: cannot accept connections: {error}; this is a defect in daq");
        }
    }

    fn accept(&mut self) {
        for _ in 0..ACCEPTS_PER_TURN {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match rustix::net::accept_with(&self.listener, flags) {
                Ok(socket) => self.admit(socket),
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(error) => {
                    self.rejections.run(|suppressed| {
                        tracing::warn!(
                            "attach: cannot accept a connection: {error}; raise the limit on open files (ulimit -n, \
                             LimitNOFILE=){suppressed}"
                        );
                    });
                    self.paused_until = Some(Instant::now() + ACCEPT_PAUSE);
                    return self.listen(EventFlags::empty());
                }
            }
        }
    }

    /// Adds a connection if its process may attach.
    fn admit(&mut self, socket: OwnedFd) {
        let peer = match socket::peer(&socket, self.group.as_ref()) {
            Ok(peer) => peer,
            Err(user) => {
                self.rejections.run(|suppressed| {
                    tracing::warn!(
                        "attach: rejected a connection of user {user}; only the user of this process and root can \
                         attach, and members of the group that `attach` in [daq] names{suppressed}"
                    );
                });
                let error = "only the user who runs the pipeline, and root, can attach; run the program as this user, or set \
                             attach = { group = \"GROUP\" } in [daq]";
                return reject(&socket, error);
            }
        };
        if self.connections.len() >= self.max_connections {
            let oldest = self
                .connections
                .iter()
                .find(|(_, connection)| connection.is_idle());
            let Some(oldest) = oldest.map(|(token, _)| *token) else {
                let error = format!(
                    "{} processes are attached, which is the maximum; detach one of them, or raise the limit on open \
                     files (LimitNOFILE=)",
                    self.connections.len()
                );
                return reject(&socket, &error);
            };
            self.connections.remove(&oldest);
        }
        let token = self.next_token;
        self.next_token += 1;
        let data = EventData::new_u64(token);
        if epoll::add(&self.epoll, &socket, data, CONNECTION_EVENTS).is_ok() {
            self.connections
                .insert(token, Connection::new(socket, token, peer));
        }
    }

    /// Handles the packets of a client.
    fn serve(&mut self, token: u64) {
        let Some(connection) = self.connections.get_mut(&token) else {
            return;
        };
        for _ in 0..PACKETS_PER_TURN {
            match connection.turn(&mut self.serving, &mut self.buffer) {
                Outcome::Continue => {}
                Outcome::Wait => return,
                Outcome::Suspend => return self.select(token, EventFlags::empty()),
                Outcome::Close => return self.remove(token),
            }
        }
    }

    /// Sends copies of frames to the clients that wait for them.
    fn finish_taps(&mut self) {
        for reply in self.serving.replies() {
            let token = reply.connection;
            // A client that has disconnected has no connection.
            let connection = self.connections.get_mut(&token);
            match connection.map(|connection| connection.finish_tap(&reply)) {
                Some(Outcome::Close) => self.remove(token),
                Some(_) => self.select(token, CONNECTION_EVENTS),
                None => {}
            }
        }
    }

    /// Selects the events of a connection. The end of a connection is always an event.
    fn select(&mut self, token: u64, events: EventFlags) {
        if let Some(connection) = self.connections.get(&token) {
            let data = EventData::new_u64(token);
            if epoll::modify(&self.epoll, connection.socket(), data, events).is_err() {
                self.remove(token);
            }
        }
    }

    /// Closes a connection.
    fn remove(&mut self, token: u64) {
        if let Some(connection) = self.connections.remove(&token) {
            // The thread of a source may still use the connection, so closing it here would not end its events.
            let _ = epoll::delete(&self.epoll, connection.socket());
        }
    }

    /// Checks what depends on time.
    fn check(&mut self) {
        // With hundreds of clients, packets arrive much more often than anything can time out.
        if Instant::now() < self.next_check {
            return;
        }
        self.next_check = Instant::now() + CHECK_INTERVAL;
        self.connections
            .retain(|_, connection| connection.check(&self.serving) != Outcome::Close);
    }

    /// Disconnects all clients.
    fn end(&mut self) {
        for connection in self.connections.values_mut() {
            connection.end();
        }
        self.connections.clear();
    }
}

/// Sends the reason why a connection is rejected.
fn reject(socket: &OwnedFd, error: &str) {
    // A client that does not read the reason sees that the connection is closed.
    let _ = socket::send(socket, refusal(error).to_string().as_bytes(), &[], false);
}
