//! A worker's side of the conversation with every ps at once.

use crate::{
    flat::{FlatPart, first_not_finite, norm},
    link::{Link, Request},
    patience::Waiting,
    run::RunSpec,
    values::Values,
    wire::Progress,
};
use futures_util::future::{join_all, try_join_all};
use phalanx_cluster::{ClusterSpec, Task};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// How long the last pushes may take from one ps to the others.
const LAST_PUSHES: Duration = Duration::from_secs(2);
const BETWEEN_PULLS: Duration = Duration::from_millis(20);

/// What a worker needs to know to join.
pub struct ClientConfig {
    /// The cluster it is part of.
    pub cluster: ClusterSpec,
    /// Its task index.
    pub worker: usize,
    /// This life of the worker; higher than that of any life before.
    pub incarnation: u64,
    /// Its process and host, for messages to people.
    pub origin: String,
    /// The run it takes part in.
    pub run: RunSpec,
    /// Told, now and then, whom the worker is waiting for.
    pub on_wait: Box<dyn Fn(Waiting) + Send + Sync>,
}

/// Why a worker cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The run ended before this worker came; there is nothing to do.
    #[error("the run is over after {updates} updates")]
    Over {
        /// How many updates it had.
        updates: u64,
    },
    /// A ps turned the worker, or what it sent, away.
    #[error("{ps} at {address} refused: {reason}")]
    Refused {
        /// The ps.
        ps: Task,
        /// Where it listens.
        address: String,
        /// What it said.
        reason: String,
    },
    /// The gradient has a value that is not a number, or infinite; it was sent to nobody.
    #[error(
        "the gradient has {value} at {name}; it was not applied, the parameters are untouched. Training has \
         diverged: try a smaller --learning_rate"
    )]
    NotFinite {
        /// The value.
        value: f32,
        /// The variable and the place in it.
        name: String,
    },
    /// A ps was restarted and has no values any more.
    #[error("{ps} at {address} was restarted and has lost its parameters; start the run again")]
    Lost {
        /// The ps.
        ps: Task,
        /// Where it listens.
        address: String,
    },
}

/// Where the run stands after an exchange.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Updates so far.
    pub global_step: u64,
    /// The run has ended.
    pub over: bool,
    /// Its result is saved.
    pub saved: bool,
    /// This worker has the chief's duties.
    pub chief: bool,
    /// Batches handed to this worker since the last exchange.
    pub batches: Vec<u64>,
    /// They are all that this worker has in hand: the connection was made anew, and what it had before was given
    /// back.
    pub anew: bool,
}

impl Step {
    fn new(progress: Progress, welcomed: Option<Vec<u64>>) -> Self {
        let Progress { version: global_step, over, chief, saved, batches: handed_out, .. } = progress;
        let anew = welcomed.is_some();
        let mut batches = welcomed.unwrap_or_default();
        batches.extend(handed_out);
        Self { global_step, over, saved, chief, batches, anew }
    }
}

/// With what a worker leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Farewell {
    /// The run goes on without it.
    Early,
    /// It knows that the run is over.
    Over,
    /// It was the chief at the end of the run, and has saved the result.
    Saved,
}

/// The connections to every ps.
pub struct Client {
    config: Arc<ClientConfig>,
    links: Vec<Link>,
    sequence: u64,
}

impl Client {
    /// Connects to every ps, in any order of start: a ps that is not there yet is waited for.
    pub async fn connect(config: ClientConfig) -> Result<Self, ClientError> {
        let config = Arc::new(config);
        let shards = config.run.plan.shards().iter().enumerate();
        let links = shards.map(|(ps, shard)| Link::connect(Arc::clone(&config), ps, shard.clone()));
        let links = try_join_all(links).await?;
        // A ps that wants initial values beside others that were trained has lost its own.
        let trained = links.iter().any(|link| link.progress().is_some_and(|progress| progress.version > 0));
        if let Some(empty) = links.iter().find(|link| trained && link.wants_initial_values()) {
            let (ps, address) = empty.name();
            return Err(ClientError::Lost { ps, address });
        }
        Ok(Self { config, links, sequence: 0 })
    }

    /// The run that this worker takes part in.
    pub fn run(&self) -> &RunSpec {
        &self.config.run
    }

    /// Fetches the values to begin with, laid out by the plan. They are `initial` where a ps has none yet and
    /// this worker is the one to bring them; other workers wait until it has.
    pub async fn begin(&mut self, initial: &Values, values: &mut [f32]) -> Result<Step, ClientError> {
        let initial = [FlatPart { start: 0, data: initial.as_bytes().clone() }];
        Ok(self.exchange(&Request::Begin { initial: &initial }, values).await?.0)
    }

    /// Fetches the values that the run ended with: a push that ps 0 has counted may still be on its way to another
    /// ps, and is waited for, but not for ever, since its worker may be gone.
    pub async fn pull_last(&mut self, values: &mut [f32]) -> Result<Step, ClientError> {
        let deadline = Instant::now() + LAST_PUSHES;
        loop {
            let (step, lowest) = self.exchange(&Request::Pull, values).await?;
            if lowest >= step.global_step || Instant::now() >= deadline {
                return Ok(step);
            }
            tokio::time::sleep(BETWEEN_PULLS).await;
        }
    }

    /// Pushes the gradient of one batch to every ps and fetches the new values into `values`.
    pub async fn push(
        &mut self,
        batch: u64,
        gradient: &[FlatPart],
        values: &mut [f32],
    ) -> Result<Step, ClientError> {
        self.sequence += 1;
        let sequence = self.sequence;
        if self.links.len() > 1 {
            self.check(gradient)?;
        }
        let norm = self.config.run.optimizer.clip_norm.map(|_| norm(gradient));
        Ok(self.exchange(&Request::Push { sequence, batch, norm, parts: gradient }, values).await?.0)
    }

    // Each ps refuses a gradient that is not finite, but others may have applied their part of it by then.
    fn check(&self, gradient: &[FlatPart]) -> Result<(), ClientError> {
        for part in gradient {
            let floats = part.floats();
            let Some(place) = first_not_finite(&floats) else { continue };
            let (element, plan) = (part.start + place, &self.config.run.plan);
            let shard = plan.shards().iter().enumerate().find(|(_, shard)| shard.contains(&element));
            let name = shard.map(|(ps, shard)| plan.name_of(ps, element - shard.start)).unwrap_or_default();
            return Err(ClientError::NotFinite { value: floats[place], name });
        }
        Ok(())
    }

    /// Where the run stands, by the word of ps 0.
    pub async fn ask(&mut self) -> Result<Step, ClientError> {
        let link = self.links.first_mut();
        let progress = match link {
            Some(link) => link.exchange(&Request::Ask, &mut []).await?,
            None => Progress::default(),
        };
        Ok(Step::new(progress, None))
    }

    /// Leaves in order.
    pub async fn leave(self, farewell: Farewell) {
        join_all(self.links.into_iter().map(|link| link.leave(farewell))).await;
    }

    /// One request to every ps; where the run stands, and the lowest version of all shards.
    async fn exchange(
        &mut self,
        request: &Request<'_>,
        values: &mut [f32],
    ) -> Result<(Step, u64), ClientError> {
        let mut rest = values;
        let exchanges = self.links.iter_mut().map(|link| {
            let (shard, after) = std::mem::take(&mut rest).split_at_mut(link.shard().len());
            rest = after;
            link.exchange(request, bytemuck::cast_slice_mut(shard))
        });
        let replies = try_join_all(exchanges).await?;
        let lowest = replies.iter().map(|progress| progress.version).min().unwrap_or_default();
        let progress = replies.into_iter().next().unwrap_or_default();
        let welcomed = self.links.first_mut().and_then(Link::take_batches);
        Ok((Step::new(progress, welcomed), lowest))
    }
}
