//! Who and where: the cluster, its tasks, and which part of the parameters lies on which ps.
//!
//! Everything here is a pure function of its arguments. This crate opens no socket, reads no file and
//! no environment, and knows no tensors.
//!
//! - [`Address`]: one `host:port`.
//! - [`ClusterSpec`]: the addresses of every ps and every worker.
//! - [`Task`]: one process of the cluster.
//! - [`tf_config`]: the JSON that Kubernetes operators put into `TF_CONFIG`.
//! - [`Plan`]: how the variables of a model are cut into one shard for each ps.

mod address;
mod plan;
mod spec;
mod task;
pub mod tf_config;

pub use address::{Address, AddressError};
pub use plan::{Placement, Plan, PlanError, Slice, Variable};
pub use spec::{ClusterSpec, SpecError};
pub use task::{JobName, Task};
