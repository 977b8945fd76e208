//! RDMA.
pub(crate) mod line;
