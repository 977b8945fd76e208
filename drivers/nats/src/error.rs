//! What can go wrong between daq and a NATS server.

/// An error of the client. Each error names the object, what happened and the fix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {why}")]
pub struct NatsError {
    /// The object: a server, a stream, a consumer or a file.
    pub what: String,
    /// What happened, and how to fix it.
    pub why: String,
    /// True if only a change of the configuration, of a file or of the server resolves the error. A restart without such a
    /// change fails in the same way.
    pub is_configuration: bool,
}

impl NatsError {
    /// Creates an error about `what`, which is not available.
    pub fn new(what: impl Into<String>, why: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            why: why.into(),
            is_configuration: false,
        }
    }

    /// Creates an error about `what` that only a change of the configuration, of a file or of the server resolves.
    pub fn configuration(what: impl Into<String>, why: impl Into<String>) -> Self {
        Self {
            is_configuration: true,
            ..Self::new(what, why)
        }
    }

    /// Returns the error of a program that was built without the client.
    pub fn no_client() -> Self {
        Self::new(
            "driver `nats`",
            "this daq was built without the NATS client; build it with `cargo build --release --features nats`",
        )
    }
}
