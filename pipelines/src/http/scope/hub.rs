//! The threads that tap rings, and the browsers that they serve.

use super::decode::Samples;
use super::frames::{Copied, Recent};
use super::npy::{Headers, NpyFile};
use super::reduce::{Reducer, description, failed};
use super::stream::Messages;
use super::threads::{TapCalls, Threads};
use super::view::View;
use super::{MAX_LOAD, ScopeError, ScopedRing, TapBudget};
use axum::body::Bytes;
use daq_core::gpu::driver::CudaError;
use daq_core::ring::Tap;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::Thread;
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};

/// Maximum number of different views at the same time.
pub(super) const MAX_VIEWS: usize = 16;
/// Maximum number of streams at the same time. Each stream can have the message that it sends and the next one.
pub(super) const MAX_STREAMS: usize = 32;
/// Maximum number of downloads at the same time.
pub(super) const MAX_DOWNLOADS: usize = 2;
/// Time in which the threads must end when the server stops. A thread that a GPU blocks is left running.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// All rings that browsers can show.
pub(in super::super) struct Hub {
    scopes: BTreeMap<String, Arc<Scope>>,
    streams: Arc<Semaphore>,
    downloads: Arc<Semaphore>,
    /// Locked while the views of all rings are counted.
    counting: Mutex<()>,
    threads: Threads,
}

/// A downloaded frame: its metadata as headers, and the file. The permit limits the number of downloads.
pub(in super::super) struct Download {
    pub(in super::super) headers: Headers,
    pub(in super::super) file: Bytes,
    pub(in super::super) permit: OwnedSemaphorePermit,
}

/// A view, and where its messages are sent. Because the thread of the scope keeps no sender, a stream also ends while the
/// thread works.
type Shown = (View, Weak<watch::Sender<Bytes>>);

/// A ring, and the views that browsers show of it.
struct Scope {
    ring: ScopedRing,
    state: Mutex<State>,
}

struct State {
    views: Vec<(View, Arc<watch::Sender<Bytes>>)>,
    /// The frames that the views have shown; empty without a view.
    recent: Recent,
    /// The thread that serves the views; `None` without a view.
    thread: Option<Thread>,
    is_closed: bool,
}

impl State {
    /// Creates the state of one of `rings` rings.
    fn of(rings: usize) -> Self {
        Self {
            views: Vec::new(),
            recent: Recent::of(rings),
            thread: None,
            is_closed: false,
        }
    }

    /// Drops the views that no browser shows.
    fn drop_closed(&mut self) {
        self.views
            .retain(|(_, messages)| messages.receiver_count() > 0);
    }
}

impl Hub {
    pub(in super::super) fn new(rings: BTreeMap<String, ScopedRing>) -> Self {
        let count = rings.len();
        let scope = |ring| {
            Arc::new(Scope {
                ring,
                state: Mutex::new(State::of(count)),
            })
        };
        Self {
            scopes: rings
                .into_iter()
                .map(|(name, ring)| (name, scope(ring)))
                .collect(),
            streams: Arc::new(Semaphore::new(MAX_STREAMS)),
            downloads: Arc::new(Semaphore::new(MAX_DOWNLOADS)),
            counting: Mutex::default(),
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
    ) -> Result<Messages, ScopeError> {
        let scope = self.scope(ring)?;
        view.check(&scope.ring)?;
        let permit = self.streams.clone().try_acquire_owned();
        let permit = permit.map_err(|_| ScopeError::Streams(MAX_STREAMS))?;
        let description = description(&scope.ring, &view);
        let _counting = self.counting.lock().unwrap_or_else(PoisonError::into_inner);
        let others = self
            .scopes
            .values()
            .filter(|other| !Arc::ptr_eq(other, scope));
        let others = others.map(|other| other.shown()).sum();
        let newest = scope.subscribe(view, others, &self.threads)?;
        Ok(Messages {
            newest,
            description,
            permit,
        })
    }

    /// Copies a frame of a ring on a thread of low priority: that with the number `index`, which browsers show, or the
    /// newest.
    pub(in super::super) async fn download(
        &self,
        name: &str,
        index: Option<u64>,
    ) -> Result<Download, ScopeError> {
        let scope = self.scope(name)?.clone();
        let frozen = match index {
            Some(index) => Some(scope.frozen(&scope.state(), index)?),
            None => None,
        };
        let permit = self.downloads.clone().try_acquire_owned();
        let permit = permit.map_err(|_| ScopeError::Downloads(MAX_DOWNLOADS))?;
        let (done, result) = oneshot::channel();
        let ring = scope.ring.ring.clone();
        self.threads.spawn("daq-download", &ring, move |calls| {
            let file = match frozen {
                Some(frame) => Ok(scope.file(frame.index, &frame.samples(&scope.ring.layout))),
                None => scope.newest(calls),
            };
            // The receiver is gone if the browser has disconnected. The permit ends with this thread or with the response.
            let _ = done.send((file, permit));
        })?;
        let (file, permit) = result.await.map_err(|_| ScopeError::Stopped)?;
        let (headers, file) = file?;
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
    /// is left running. It keeps its ring alive, and a GPU that it calls is marked as hung.
    pub(in super::super) fn join(&self) {
        self.close();
        self.threads.join(STOP_TIMEOUT);
    }
}

impl Scope {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of views that browsers show.
    fn shown(&self) -> usize {
        let mut state = self.state();
        state.drop_closed();
        state.views.len()
    }

    /// Returns the messages of a view. Browsers show `others` views of other rings. Calls no function of a GPU, because the HTTP
    /// server must not wait for a GPU.
    fn subscribe(
        self: &Arc<Self>,
        view: View,
        others: usize,
        threads: &Threads,
    ) -> Result<watch::Receiver<Bytes>, ScopeError> {
        let mut state = self.state();
        if state.is_closed {
            return Err(ScopeError::Stopped);
        }
        state.drop_closed();
        if let Some((_, messages)) = state.views.iter().find(|(known, _)| *known == view) {
            let mut messages = messages.subscribe();
            // Before the first frame there is no message. Later, the newest message is sent immediately.
            if !messages.borrow_and_update().is_empty() {
                messages.mark_changed();
            }
            return Ok(messages);
        }
        if let Some(index) = view.index {
            self.frozen(&state, index)?;
        }
        if state.views.len() + others >= MAX_VIEWS {
            return Err(ScopeError::Views(MAX_VIEWS));
        }
        if state.thread.is_none() {
            let scope = self.clone();
            let run = move |calls: &TapCalls| scope.serve(calls);
            state.thread = Some(threads.spawn("daq-scope", &self.ring.ring, run)?);
        }
        let (sender, messages) = watch::channel(Bytes::new());
        state.views.push((view, Arc::new(sender)));
        Ok(messages)
    }

    /// Taps the ring until no browser shows it.
    fn serve(&self, calls: &TapCalls) {
        let _ended = Ended(self);
        let period = TapBudget::of(self.ring.ring.options().slot_bytes).period();
        let mut tap = None;
        let mut reducers: Vec<Reducer> = Vec::new();
        let mut is_failing = false;
        while let Some(views) = self.views() {
            let begin = Instant::now();
            reducers.retain(|reducer| views.iter().any(|(view, _)| view == reducer.view()));
            let mut is_new = false;
            for (view, messages) in &views {
                if reducers.iter().any(|reducer| reducer.view() == view) {
                    continue;
                }
                let mut reducer = Reducer::new(view.clone());
                match view.index {
                    Some(index) => {
                        let is_wanted = || messages.strong_count() > 0;
                        let message = self.reduce_frozen(index, &mut reducer, &is_wanted);
                        send(messages, message);
                    }
                    None => is_new = true,
                }
                reducers.push(reducer);
            }
            let result = if views.iter().all(|(view, _)| view.index.is_some()) {
                Ok(())
            } else {
                let opened = match tap.take() {
                    Some(tap) => Ok(tap),
                    None => calls.run(|| self.ring.ring.tap()),
                };
                opened.and_then(|opened| {
                    let tap = tap.insert(opened);
                    self.round(calls, tap, is_new, &mut reducers, &views)
                })
            };
            match result {
                Ok(()) => is_failing = false,
                Err(error) => {
                    let ring = &self.ring.ring.options().name;
                    if !std::mem::replace(&mut is_failing, true) {
                        tracing::warn!(%ring, %error, "the scope cannot read the newest frame of this ring");
                    }
                    let message = failed(&format!("cannot read ring `{ring}`: {error}"));
                    for (_, messages) in &views {
                        send(messages, message.clone());
                    }
                }
            }
            let busy = begin.elapsed();
            let pause = busy.mul_f64(1.0 / MAX_LOAD - 1.0);
            std::thread::park_timeout(pause.max(period.saturating_sub(busy)));
        }
        calls.run(|| drop(tap));
    }

    /// Returns the views that browsers show. Without a view, returns `None`, and the thread must end.
    fn views(&self) -> Option<Vec<Shown>> {
        let mut state = self.state();
        state.drop_closed();
        if state.views.is_empty() {
            state.recent.clear();
            state.thread = None;
            return None;
        }
        let shown = state
            .views
            .iter()
            .map(|(view, messages)| (view.clone(), Arc::downgrade(messages)));
        Some(shown.collect())
    }

    /// Reduces the newest frame for each view.
    fn round(
        &self,
        calls: &TapCalls,
        tap: &mut Tap,
        is_new: bool,
        reducers: &mut [Reducer],
        views: &[Shown],
    ) -> Result<(), CudaError> {
        if is_new {
            // A new view does not wait for the next frame.
            tap.rewind();
        }
        let Some(frame) = calls.run(|| tap.newest())? else {
            return Ok(());
        };
        let samples = Samples::new(
            &self.ring.layout,
            frame.meta(),
            frame.present(),
            frame.bytes(),
        );
        // A browser may request the frame as soon as the browser shows it.
        let max_bytes = self.state().recent.max_frame_bytes();
        if frame.bytes().len() <= max_bytes {
            let copied = Copied::new(&frame);
            let mut state = self.state();
            // A browser may have frozen a frame since `views` was read.
            let State { views, recent, .. } = &mut *state;
            recent.keep(copied, |index| {
                views.iter().any(|(view, _)| view.index == Some(index))
            });
        }
        for reducer in reducers {
            let view = reducer.view();
            if view.index.is_none()
                && let Some((_, messages)) = views.iter().find(|(known, _)| known == view)
            {
                // When the server stops, no message is wanted.
                let is_wanted = || messages.strong_count() > 0;
                if is_wanted() {
                    let message = reducer.reduce(&self.ring, frame.index(), &samples, &is_wanted);
                    send(messages, message);
                }
            }
        }
        Ok(())
    }

    /// Returns the copy of frame `index`, which browsers have shown.
    fn frozen(&self, state: &State, index: u64) -> Result<Arc<Copied>, ScopeError> {
        state.recent.find(index).ok_or_else(|| ScopeError::Gone {
            ring: self.ring.ring.options().name.clone(),
            index,
        })
    }

    /// Reduces the copy of frame `index`.
    fn reduce_frozen(
        &self,
        index: u64,
        reducer: &mut Reducer,
        is_wanted: &dyn Fn() -> bool,
    ) -> Bytes {
        let frame = self.frozen(&self.state(), index);
        match frame {
            Ok(frame) => {
                let samples = frame.samples(&self.ring.layout);
                reducer.reduce(&self.ring, index, &samples, is_wanted)
            }
            Err(error) => failed(&error.to_string()),
        }
    }

    /// Returns the newest frame as a file, with its metadata.
    fn newest(&self, calls: &TapCalls) -> Result<(Headers, Bytes), ScopeError> {
        let ring = &self.ring.ring;
        let mut tap = calls.run(|| ring.tap())?;
        let Some(frame) = calls.run(|| tap.newest())? else {
            let name = ring.options().name.clone();
            return Err(match ring.published() {
                0 => ScopeError::NoFrame(name),
                _ => ScopeError::Overwritten(name),
            });
        };
        let samples = Samples::new(
            &self.ring.layout,
            frame.meta(),
            frame.present(),
            frame.bytes(),
        );
        let file = self.file(frame.index(), &samples);
        calls.run(|| drop(tap));
        Ok(file)
    }

    /// Returns frame `index` as a file, with its metadata.
    fn file(&self, index: u64, samples: &Samples<'_>) -> (Headers, Bytes) {
        let file = NpyFile::new(&self.ring.layout, samples);
        let headers = file.headers(&self.ring.ring.options().name, index, samples);
        (headers, file.bytes.into())
    }
}

/// Ends the streams of a thread that panicked, so that the next browser starts another one.
struct Ended<'a>(&'a Scope);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let mut state = self.0.state();
            state.views.clear();
            state.recent.clear();
            state.thread = None;
        }
    }
}

/// Replaces the newest message of a view.
fn send(messages: &Weak<watch::Sender<Bytes>>, message: Bytes) {
    if let Some(messages) = messages.upgrade() {
        messages.send_replace(message);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use daq_testkit::ring::RingFixture;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    #[test]
    fn panic_of_the_thread_ends_its_streams() {
        let fixture = RingFixture::host("raw", 2, 8);
        let scope = Scope {
            ring: ScopedRing {
                ring: fixture.ring.clone(),
                layout: daq_core::layout::Samples::default().layout(8).unwrap(),
                parts: Vec::new(),
            },
            state: Mutex::new(State::of(1)),
        };
        let (sender, messages) = watch::channel(Bytes::new());
        scope
            .state()
            .views
            .push((View::default(), Arc::new(sender)));
        scope.state().thread = Some(std::thread::current());
        let result = catch_unwind(AssertUnwindSafe(|| {
            let _ended = Ended(&scope);
            panic!("a defect");
        }));
        assert!(result.is_err());
        assert!(messages.has_changed().is_err(), "the stream has ended");
        assert!(scope.state().thread.is_none());
    }
}
