//! One process of the cluster.

use std::{fmt, str::FromStr};

/// What a task does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum JobName {
    /// Holds and updates a shard of the parameters.
    Ps,
    /// Computes gradients.
    Worker,
    /// Evaluates what the others train; not a member of the cluster.
    Evaluator,
}

/// One process: a job and its place in that job's list of hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Task {
    /// What it does.
    pub job: JobName,
    /// Its place in the list of hosts, from 0.
    pub index: usize,
}

impl Task {
    /// The parameter server with this index.
    pub fn ps(index: usize) -> Self {
        Self { job: JobName::Ps, index }
    }

    /// The worker with this index; worker 0 is the chief.
    pub fn worker(index: usize) -> Self {
        Self { job: JobName::Worker, index }
    }
}

impl fmt::Display for JobName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ps => "ps",
            Self::Worker => "worker",
            Self::Evaluator => "evaluator",
        })
    }
}

impl FromStr for JobName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "ps" => Ok(Self::Ps),
            "worker" => Ok(Self::Worker),
            "evaluator" => Ok(Self::Evaluator),
            _ => Err(format!("'{text}' is not a job; expected ps, worker or evaluator")),
        }
    }
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.job, self.index)
    }
}
