//! Tests the sink and the source `nats` with real servers and with the client nats-py.

mod cluster;
mod errors;
mod kills;
mod login;
mod numbers;
mod server;
mod source;
mod stored;
mod streams;
