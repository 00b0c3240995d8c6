//! The parameter server: it holds one shard of the parameters, applies what workers push, and answers
//! with the new values.
//!
//! The rules are plain data structures with no I/O; the shell round them is thin:
//!
//! - [`optimizer`]: one update of a flat vector of values by a flat vector of gradients.
//! - `arena`: the memory of a store, which may outlive the process; `kept`: the file it lies in then.
//! - `store`: the values of one shard, and which pushes were applied to them.
//! - [`Values`]: vectors that are shared and not copied.
//! - `membership`: which workers are here, and which of them is the chief.
//! - `ending`: who saves the result, and when a ps may go.
//! - `ledger`: which batch of the data set was handed to whom.
//! - `state`: those together: what each message of a worker does.
//! - [`RunSpec`]: what all tasks of a run must agree on.
//! - `service`: the gRPC edge of `state`; [`serve`] runs it until the work is done.
//! - [`Client`]: a worker's side of the conversation with every ps; `link`: with one of them; `flat`: how a
//!   gradient is cut for each.
//! - `framing`: messages on the wire, without copies of their payload.
//! - `transport`: how a connection is made and accepted, the one place for TLS and tokens.
//!
//! This crate knows no Burn, no data set, no file of the user's, and prints nothing.

#[cfg(target_endian = "big")]
compile_error!("values travel as little-endian f32 and are not converted");

mod arena;
mod client;
mod ending;
mod flat;
mod framing;
mod kept;
mod ledger;
mod link;
mod membership;
pub mod optimizer;
mod patience;
mod run;
mod serve;
mod service;
mod state;
mod store;
mod transport;
mod values;
pub mod wire;

pub use client::{Client, ClientConfig, ClientError, Farewell, Step};
pub use flat::FlatPart;

pub use patience::Waiting;
pub use run::RunSpec;
pub use serve::{Outcome, PsConfig, PsEvent, serve};
pub use transport::{ListenError, listen};
pub use values::{ValuePool, Values};
