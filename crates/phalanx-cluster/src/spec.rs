//! The addresses of every ps and every worker.

use crate::{Address, AddressError, JobName, Task};
use std::{collections::HashMap, fmt};

/// The cluster: which task listens where. Every task of a run is started with the same one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterSpec {
    ps: Vec<Address>,
    workers: Vec<Address>,
}

/// Why a list of hosts is not a cluster.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// A list with nothing in it.
    #[error("the list of {0} hosts is empty; expected host:port,host:port,...")]
    NoHosts(JobName),
    /// One entry of a list is malformed.
    #[error("{task} of the list '{list}': {source}")]
    Address {
        /// The task whose address it would have been.
        task: Task,
        /// The list as it was given.
        list: String,
        /// What is wrong with the entry.
        source: AddressError,
    },
    /// Two tasks with one address.
    #[error("{first} and {second} have the same address, {address}")]
    SharedAddress {
        /// The task that had it first.
        first: Task,
        /// The task that has it too.
        second: Task,
        /// The address.
        address: Address,
    },
    /// The cluster has no such task.
    #[error("there is no {task}: the cluster has {} ({addresses})", how_many(*.count, .task.job))]
    NoSuchTask {
        /// The task asked for.
        task: Task,
        /// How many tasks its job has.
        count: usize,
        /// Where those listen.
        addresses: String,
    },
}

fn how_many(n: usize, job: JobName) -> String {
    match n {
        1 => format!("1 {job}, index 0"),
        n => format!("{n} {job} tasks, index 0 to {}", n.saturating_sub(1)),
    }
}

impl ClusterSpec {
    /// A cluster from two comma-separated lists of `host:port`.
    pub fn parse(ps: &str, workers: &str) -> Result<Self, SpecError> {
        Self::new(parse_list(JobName::Ps, ps)?, parse_list(JobName::Worker, workers)?)
    }

    /// A cluster from the addresses of its tasks.
    pub fn new(ps: Vec<Address>, workers: Vec<Address>) -> Result<Self, SpecError> {
        for (job, list) in [(JobName::Ps, &ps), (JobName::Worker, &workers)] {
            if list.is_empty() {
                return Err(SpecError::NoHosts(job));
            }
        }
        let spec = Self { ps, workers };
        let mut seen = HashMap::new();
        for task in spec.tasks() {
            let address = spec.address(task)?;
            if let Some(first) = seen.insert(address, task) {
                return Err(SpecError::SharedAddress { first, second: task, address: address.clone() });
            }
        }
        Ok(spec)
    }

    /// The addresses of the parameter servers, by task index.
    pub fn ps(&self) -> &[Address] {
        &self.ps
    }

    /// The addresses of the workers, by task index.
    pub fn workers(&self) -> &[Address] {
        &self.workers
    }

    /// Where `task` listens.
    pub fn address(&self, task: Task) -> Result<&Address, SpecError> {
        let list = match task.job {
            JobName::Ps => &self.ps,
            JobName::Worker | JobName::Evaluator => &self.workers,
        };
        list.get(task.index).ok_or_else(|| SpecError::NoSuchTask {
            task,
            count: list.len(),
            addresses: join(list),
        })
    }

    fn tasks(&self) -> impl Iterator<Item = Task> + use<> {
        let (ps, workers) = (self.ps.len(), self.workers.len());
        (0..ps).map(Task::ps).chain((0..workers).map(Task::worker))
    }
}

fn parse_list(job: JobName, list: &str) -> Result<Vec<Address>, SpecError> {
    if list.trim().is_empty() {
        return Err(SpecError::NoHosts(job));
    }
    let address = |(index, text): (usize, &str)| {
        text.parse().map_err(|source| SpecError::Address {
            task: Task { job, index },
            list: list.into(),
            source,
        })
    };
    list.split(',').enumerate().map(address).collect()
}

fn join(list: &[Address]) -> String {
    list.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

impl fmt::Display for ClusterSpec {
    /// The form that tasks compare: `ps_hosts=a:1 worker_hosts=b:1,c:1`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ps_hosts={} worker_hosts={}", join(&self.ps), join(&self.workers))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_may_have_spaces_as_in_the_wild() {
        let spec = ClusterSpec::parse(" tf-ps0:2222,tf-ps1:1111", "w0:1, w1:2").unwrap();
        assert_eq!(spec.to_string(), "ps_hosts=tf-ps0:2222,tf-ps1:1111 worker_hosts=w0:1,w1:2");
    }

    #[test]
    fn bad_lists_are_refused_with_the_entry_and_the_list() {
        for (ps, workers, words) in [
            ("", "w:1", "ps hosts is empty"),
            ("p:1", " ", "worker hosts is empty"),
            ("p:1,", "w:1", "ps 1 of the list 'p:1,': an address is empty"),
            ("p:1", "w:1,,v:1", "worker 1 of the list"),
            ("p:1", "w", "'w' has no port"),
            ("p:1", "p:1", "ps 0 and worker 0 have the same address, p:1"),
        ] {
            let error = ClusterSpec::parse(ps, workers).unwrap_err().to_string();
            assert!(error.contains(words), "{ps:?} {workers:?} gave {error:?}");
        }
    }

    #[test]
    fn an_index_out_of_range_is_refused_with_the_range() {
        let spec = ClusterSpec::parse("p:1", "w:1,v:1").unwrap();
        let error = |task| spec.address(task).unwrap_err().to_string();
        assert_eq!(
            error(Task::worker(2)),
            "there is no worker 2: the cluster has 2 worker tasks, index 0 to 1 (w:1,v:1)"
        );
        assert_eq!(error(Task::ps(1)), "there is no ps 1: the cluster has 1 ps, index 0 (p:1)");
    }
}
