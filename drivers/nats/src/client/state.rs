//! Compares the acknowledgements with the messages that the stream holds.
//!
//! A server also acknowledges messages that the limits of a stream remove at once. So only the acknowledgements and the
//! state of the stream together show that frames are stored.

use super::TICK;
use super::stream::is_absent;
use async_nats::jetstream::context::Context;
use async_nats::jetstream::stream::{ClusterInfo, Config, RetentionPolicy, State};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

/// Time between two comparisons.
const INTERVAL: Duration = Duration::from_secs(5);
/// Maximum time for the server's answer.
const TIMEOUT: Duration = Duration::from_millis(1500);
/// Number of equal findings in a row after which frames count as lost. A server of a cluster that has just become the leader
/// may not know the last messages yet.
const MIN_FINDINGS: u32 = 3;

/// Why frames of a deleted stream are lost.
const GONE: &str = "the stream was deleted";

/// What the server has acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Acknowledged {
    /// Number of frames of this run.
    frames: u64,
    /// Number of messages of the last frame.
    chunks: u64,
    /// Sequence number in the stream of the newest message.
    newest: u64,
}

impl Acknowledged {
    /// Returns why a stream with `state` does not contain the newest frame, or `None` if it can contain it. Other
    /// publishers may have stored messages since, and the limits may have removed older frames.
    fn contradiction(&self, state: &State) -> Option<String> {
        let newest = self.newest;
        if state.last_sequence < newest {
            return Some(format!(
                "the server has acknowledged message {newest}, but the last message is {}",
                state.last_sequence
            ));
        }
        (state.messages < self.chunks).then(|| {
            format!(
                "it holds {} of {} messages, from {} to {}, but a frame has {}",
                state.messages,
                state.last_sequence,
                state.first_sequence,
                state.last_sequence,
                self.chunks
            )
        })
    }
}

/// Frames that were acknowledged, but are not in the stream.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unstored {
    /// Number of frames that no comparison has found in the stream.
    pub(super) frames: u64,
    /// What contradicts the acknowledgements.
    pub(super) why: String,
}

/// The comparisons of a publisher.
pub(super) struct StateCheck {
    context: Context,
    stream: String,
    retention: RetentionPolicy,
    /// Maximum age of messages.
    max_age: Duration,
    acknowledged: Acknowledged,
    acknowledged_at: Instant,
    /// Number of frames until the last comparison that found the newest frame, or counted the frames as lost.
    compared: u64,
    findings: u32,
    due: Instant,
    answer: Option<(Acknowledged, JoinHandle<Option<Answer>>)>,
}

/// What the server answers.
enum Answer {
    /// The state of the stream.
    State(State),
    /// The stream does not exist.
    Gone,
    /// The cluster has no leader, so its state may be an older one.
    NoLeader,
}

impl StateCheck {
    pub(super) fn new(context: Context, stream: &Config) -> Self {
        let age = stream.max_age;
        let max_age = if age.is_zero() { Duration::MAX } else { age };
        let now = Instant::now();
        Self {
            context,
            stream: stream.name.clone(),
            retention: stream.retention,
            max_age,
            acknowledged: Acknowledged::default(),
            acknowledged_at: now,
            compared: 0,
            findings: 0,
            due: now + INTERVAL,
            answer: None,
        }
    }

    /// Records the sequence number of an acknowledged message.
    pub(super) fn message(&mut self, sequence: u64) {
        self.acknowledged.newest = self.acknowledged.newest.max(sequence);
    }

    /// Records that all messages of a frame are acknowledged.
    pub(super) fn frame(&mut self, chunks: u32) {
        self.acknowledged.frames += 1;
        self.acknowledged.chunks = chunks.into();
        self.acknowledged_at = Instant::now();
    }

    /// Begins again with a stream that was created again. Returns the frames that were acknowledged and not compared before.
    pub(super) fn restart(&mut self) -> Option<Unstored> {
        let frames = self.acknowledged.frames - self.compared;
        self.compared = self.acknowledged.frames;
        self.acknowledged.newest = 0;
        (self.answer, self.findings) = (None, 0);
        (frames > 0).then(|| Unstored {
            frames,
            why: GONE.to_owned(),
        })
    }

    /// Compares when it is time, and while the server stores messages. Returns frames that are not in the stream once.
    pub(super) async fn tick(&mut self, is_storing: bool) -> Option<Unstored> {
        if !is_storing {
            // A server of a cluster without a leader may have an older state of the stream.
            (self.answer, self.findings) = (None, 0);
            return None;
        }
        if let Some((asked, answer)) = self.answer.take_if(|(_, answer)| answer.is_finished()) {
            let answer = answer.await.ok().flatten()?;
            return self.compare(asked, &answer);
        }
        if self.answer.is_none() && Instant::now() >= self.due && self.is_comparable() {
            self.due = Instant::now() + INTERVAL;
            let (context, stream) = (self.context.clone(), self.stream.clone());
            let asked = self.acknowledged;
            self.answer = Some((asked, tokio::spawn(state(context, stream))));
        }
        None
    }

    /// Compares a last time.
    pub(super) async fn finish(&mut self) -> Option<Unstored> {
        self.findings = 0;
        while self.is_comparable() {
            let answer = state(self.context.clone(), self.stream.clone()).await?;
            if let Some(found) = self.compare(self.acknowledged, &answer) {
                return Some(found);
            }
            tokio::time::sleep(TICK).await;
        }
        None
    }

    /// Returns whether the stream must hold frames that were not compared yet.
    fn is_comparable(&self) -> bool {
        let is_kept = self.acknowledged_at.elapsed() + TIMEOUT < self.max_age;
        is_kept && self.acknowledged.frames > self.compared
    }

    fn compare(&mut self, asked: Acknowledged, answer: &Answer) -> Option<Unstored> {
        if matches!(answer, Answer::NoLeader) {
            self.findings = 0;
            return None;
        }
        let Some(why) = contradiction(self.retention, asked, answer) else {
            self.findings = 0;
            self.compared = self.compared.max(asked.frames);
            return None;
        };
        self.findings += 1;
        if self.findings < MIN_FINDINGS {
            self.due = Instant::now() + TICK;
            return None;
        }
        self.findings = 0;
        let frames = asked.frames.saturating_sub(self.compared);
        self.compared = asked.frames;
        (frames > 0).then_some(Unstored { frames, why })
    }
}

/// Returns why a stream does not hold the acknowledged frames, and did not pass them to consumers either.
fn contradiction(
    retention: RetentionPolicy,
    asked: Acknowledged,
    answer: &Answer,
) -> Option<String> {
    let state = match answer {
        Answer::Gone => return Some(GONE.to_owned()),
        Answer::NoLeader => return None,
        Answer::State(state) => state,
    };
    match retention {
        RetentionPolicy::Limits => asked.contradiction(state),
        RetentionPolicy::Interest if state.consumer_count == 0 => {
            let why = "it has the retention \"interest\" and no consumer, so the server removes each message at once";
            Some(why.to_owned())
        }
        RetentionPolicy::Interest | RetentionPolicy::WorkQueue => None,
    }
}

/// Asks for the state of `stream`. Returns `None` if no server answers.
async fn state(context: Context, stream: String) -> Option<Answer> {
    let answer = tokio::time::timeout(TIMEOUT, context.get_stream(&stream)).await;
    match answer.ok()? {
        Ok(stream) => {
            let info = stream.cached_info();
            let is_current = has_leader(info.cluster.as_ref());
            Some(if is_current {
                Answer::State(info.state.clone())
            } else {
                Answer::NoLeader
            })
        }
        Err(error) => is_absent(error.kind()).then_some(Answer::Gone),
    }
}

/// Whether a server that has answered with this state of its cluster knows the leader. Otherwise, the state of the stream may be
/// an older one.
fn has_leader(cluster: Option<&ClusterInfo>) -> bool {
    cluster.is_none_or(|cluster| cluster.leader.as_ref().is_some_and(|name| !name.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn state(messages: u64, first: u64, last: u64) -> State {
        let time = "2026-01-01T00:00:00Z";
        serde_json::from_value(json!({
            "messages": messages, "bytes": 0, "first_seq": first, "last_seq": last, "first_ts": time, "last_ts": time,
            "consumer_count": 0,
        }))
        .unwrap()
    }

    #[test]
    fn acknowledged_frames_must_be_in_the_stream() {
        let acknowledged = Acknowledged {
            frames: 10,
            chunks: 5,
            newest: 50,
        };
        for (state, text) in [
            (state(50, 1, 50), None),
            // The limits removed older frames, and another publisher stored messages.
            (state(5, 46, 50), None),
            (state(5, 56, 60), None),
            (
                state(2, 49, 50),
                Some("it holds 2 of 50 messages, from 49 to 50, but a frame has 5"),
            ),
            (
                state(0, 51, 50),
                Some("it holds 0 of 50 messages, from 51 to 50, but a frame has 5"),
            ),
            // The stream was deleted and created again.
            (
                state(7, 1, 7),
                Some("the server has acknowledged message 50, but the last message is 7"),
            ),
        ] {
            assert_eq!(acknowledged.contradiction(&state).as_deref(), text);
        }
    }

    #[test]
    fn cluster_without_leader_shows_no_current_state() {
        for (leader, expected) in [
            (json!("s1"), true),
            (json!(""), false),
            (json!(null), false),
        ] {
            let cluster = serde_json::from_value(json!({ "name": "c", "leader": leader })).unwrap();
            assert_eq!(has_leader(Some(&cluster)), expected);
        }
        assert!(has_leader(None), "a server without a cluster");
    }

    #[test]
    fn streams_that_consumers_empty_must_exist_and_have_a_consumer() {
        let asked = Acknowledged {
            frames: 1,
            chunks: 1,
            newest: 1,
        };
        let with = |consumers| {
            let mut state = state(0, 2, 1);
            state.consumer_count = consumers;
            Answer::State(state)
        };
        for (retention, answer, is_lost) in [
            (RetentionPolicy::Limits, Answer::Gone, true),
            (RetentionPolicy::WorkQueue, Answer::Gone, true),
            (RetentionPolicy::WorkQueue, with(0), false),
            (RetentionPolicy::Interest, with(1), false),
            (RetentionPolicy::Interest, with(0), true),
        ] {
            let found = contradiction(retention, asked, &answer);
            assert_eq!(found.is_some(), is_lost, "{retention:?}: {found:?}");
        }
    }
}
