//! Frame streams between hosts.

pub mod receiver;
pub mod sender;
pub mod wire;

/// How frames get from one host to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// RDMA: network cards write frames to the memory of the other host.
    Rdma,
}
