//! The threads that tap rings, and the browsers that they serve.

use super::decode::Samples;
use super::npy::npy;
use super::reduce::{Headers, Reducer, failed, properties};
use super::threads::Threads;
use super::view::View;
use super::{MAX_LOAD, ScopeError, ScopedRing, TapBudget};
use axum::body::Bytes;
use daq_core::gpu::driver::CudaError;
use daq_core::ring::Tap;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};

/// Maximum number of different views of one ring at the same time.
const MAX_VIEWS: usize = 16;
/// Maximum number of downloads at the same time.
const MAX_DOWNLOADS: usize = 2;
/// Time in which the threads must end when the server stops. A thread that a GPU blocks is left running.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// All rings that browsers can show.
pub(in super::super) struct Hub {
    scopes: BTreeMap<String, Arc<Scope>>,
    downloads: Arc<Semaphore>,
    threads: Threads,
}

/// A downloaded frame: its metadata as headers, and the file. The permit limits the number of downloads.
pub(in super::super) struct Download {
    pub(in super::super) headers: Headers,
    pub(in super::super) file: Bytes,
    pub(in super::super) permit: OwnedSemaphorePermit,
}

/// A ring, and the views that browsers show of it.
struct Scope {
    ring: ScopedRing,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    views: Vec<(View, watch::Sender<Bytes>)>,
    /// The thread that serves the views; `None` without a view.
    thread: Option<Thread>,
    is_closed: bool,
}

impl Hub {
    pub(in super::super) fn new(rings: BTreeMap<String, ScopedRing>) -> Self {
        let scope = |ring| {
            Arc::new(Scope {
                ring,
                state: Mutex::default(),
            })
        };
        Self {
            scopes: rings
                .into_iter()
                .map(|(name, ring)| (name, scope(ring)))
                .collect(),
            downloads: Arc::new(Semaphore::new(MAX_DOWNLOADS)),
            threads: Threads::default(),
        }
    }

    fn scope(&self, name: &str) -> Result<&Arc<Scope>, ScopeError> {
        self.scopes
            .get(name)
            .ok_or_else(|| ScopeError::UnknownRing {
                name: name.to_owned(),
                rings: self.scopes.keys().cloned().collect(),
            })
    }

    /// Returns the messages of a view of a ring, of which only the newest is kept. Starts the ring's thread if necessary.
    pub(in super::super) fn subscribe(
        &self,
        ring: &str,
        view: View,
    ) -> Result<watch::Receiver<Bytes>, ScopeError> {
        self.scope(ring)?.subscribe(view, &self.threads)
    }

    /// Copies the newest frame of a ring on a thread of low priority.
    pub(in super::super) async fn download(&self, name: &str) -> Result<Download, ScopeError> {
        let scope = self.scope(name)?.clone();
        let permit = self.downloads.clone().try_acquire_owned();
        let permit = permit.map_err(|_| ScopeError::Downloads(MAX_DOWNLOADS))?;
        let (done, result) = oneshot::channel();
        let ring = scope.ring.ring.clone();
        self.threads.spawn("daq-download", &ring, move || {
            let newest = scope.newest();
            // The receiver is gone if the browser has disconnected. The permit ends with this thread or with the response.
            let _ = done.send((newest, permit));
        })?;
        let (newest, permit) = result.await.map_err(|_| ScopeError::Stopped)?;
        let (headers, file) = newest?;
        Ok(Download {
            headers,
            file,
            permit,
        })
    }

    /// Returns the number of threads that serve browsers.
    #[cfg(test)]
    pub(super) fn threads(&self) -> usize {
        let is_serving = |scope: &&Arc<Scope>| scope.state().thread.is_some();
        self.scopes.values().filter(is_serving).count()
    }

    /// Ends all streams, and requests the threads to end.
    pub(in super::super) fn close(&self) {
        for scope in self.scopes.values() {
            let mut state = scope.state();
            state.is_closed = true;
            state.views.clear();
            if let Some(thread) = &state.thread {
                thread.unpark();
            }
        }
    }

    /// Ends all streams, and waits for the threads, which use the memory of the rings. A thread that does not end in time
    /// is left running. It keeps its ring alive, and its GPU is marked as hung.
    pub(in super::super) fn join(&self) {
        self.close();
        self.threads.join(STOP_TIMEOUT);
    }
}

impl Scope {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the messages of a view. Calls no function of a GPU, because the HTTP server must not wait for a GPU.
    fn subscribe(
        self: &Arc<Self>,
        view: View,
        threads: &Threads,
    ) -> Result<watch::Receiver<Bytes>, ScopeError> {
        let mut state = self.state();
        if state.is_closed {
            return Err(ScopeError::Stopped);
        }
        state
            .views
            .retain(|(_, messages)| messages.receiver_count() > 0);
        if let Some((_, messages)) = state.views.iter().find(|(known, _)| *known == view) {
            let mut messages = messages.subscribe();
            // Before the first frame there is no message. Later, the newest message is sent immediately.
            if !messages.borrow_and_update().is_empty() {
                messages.mark_changed();
            }
            return Ok(messages);
        }
        if state.views.len() >= MAX_VIEWS {
            return Err(ScopeError::Views(MAX_VIEWS));
        }
        if state.thread.is_none() {
            let scope = self.clone();
            let run = move || scope.serve();
            state.thread = Some(threads.spawn("daq-scope", &self.ring.ring, run)?);
        }
        let (sender, messages) = watch::channel(Bytes::new());
        state.views.push((view, sender));
        Ok(messages)
    }

    /// Taps the ring until no browser shows it.
    fn serve(&self) {
        let period = TapBudget::of(self.ring.ring.options().slot_bytes).period();
        let mut tap = None;
        let mut reducers: Vec<Reducer> = Vec::new();
        let mut is_failing = false;
        while let Some(views) = self.views() {
            let begin = Instant::now();
            reducers.retain(|reducer| views.iter().any(|(view, _)| view == reducer.view()));
            let is_new = views.len() > reducers.len();
            for (view, _) in &views {
                if !reducers.iter().any(|reducer| reducer.view() == view) {
                    reducers.push(Reducer::new(view.clone()));
                }
            }
            let opened = match tap.take() {
                Some(tap) => Ok(tap),
                None => self.ring.ring.tap(),
            };
            let result = opened.and_then(|opened| {
                self.round(tap.insert(opened), is_new, &mut reducers, &views)
            });
            match result {
                Ok(()) => is_failing = false,
                Err(error) => {
                    let ring = &self.ring.ring.options().name;
                    if !std::mem::replace(&mut is_failing, true) {
                        tracing::warn!(%ring, %error, "the scope cannot read the newest frame of this ring");
                    }
                    let message = failed(&format!("cannot read ring `{ring}`: {error}"));
                    for (_, messages) in &views {
                        messages.send_replace(message.clone());
                    }
                }
            }
            drop(views);
            let busy = begin.elapsed();
            let pause = busy.mul_f64(1.0 / MAX_LOAD - 1.0);
            std::thread::park_timeout(pause.max(period.saturating_sub(busy)));
        }
    }

    /// Returns the views that browsers show. Without a view, returns `None`, and the thread must end.
    fn views(&self) -> Option<Vec<(View, watch::Sender<Bytes>)>> {
        let mut state = self.state();
        state
            .views
            .retain(|(_, messages)| messages.receiver_count() > 0);
        if state.views.is_empty() {
            state.thread = None;
            return None;
        }
        Some(state.views.clone())
    }

    /// Reduces the newest frame for each view.
    fn round(
        &self,
        tap: &mut Tap,
        is_new: bool,
        reducers: &mut [Reducer],
        views: &[(View, watch::Sender<Bytes>)],
    ) -> Result<(), CudaError> {
        if is_new {
            // A new view does not wait for the next frame.
            tap.rewind();
        }
        let Some(frame) = tap.newest()? else {
            return Ok(());
        };
        let samples = Samples::new(
            &self.ring.layout,
            frame.meta(),
            frame.present(),
            frame.bytes(),
        );
        for reducer in reducers {
            if let Some((_, messages)) = views.iter().find(|(view, _)| view == reducer.view()) {
                messages.send_replace(reducer.reduce(&self.ring, frame.index(), &samples));
            }
        }
        Ok(())
    }

    /// Returns the newest frame as a file, with its metadata.
    fn newest(&self) -> Result<(Headers, Bytes), ScopeError> {
        let mut tap = self.ring.ring.tap()?;
        let frame = tap.newest()?;
        let frame =
            frame.ok_or_else(|| ScopeError::NoFrame(self.ring.ring.options().name.clone()))?;
        let samples = Samples::new(
            &self.ring.layout,
            frame.meta(),
            frame.present(),
            frame.bytes(),
        );
        let file = npy(&self.ring.layout, &samples);
        Ok((properties(frame.index(), frame.meta()), file.into()))
    }
}
