//! The JSON that Kubernetes operators put into the environment variable `TF_CONFIG`.

use crate::{Address, ClusterSpec, JobName, SpecError, Task};
use serde::Deserialize;
use std::collections::BTreeMap;

/// Why a `TF_CONFIG` cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TfConfigError {
    /// Not JSON, or JSON of another form.
    #[error("TF_CONFIG is not what is expected: {0}")]
    Json(#[from] serde_json::Error),
    /// An address in the cluster is malformed.
    #[error("TF_CONFIG, cluster.{job}[{index}]: {source}")]
    Address {
        /// The job as TF_CONFIG names it.
        job: String,
        /// The place in its list.
        index: usize,
        /// What is wrong.
        source: crate::AddressError,
    },
    /// The addresses are no cluster, or the task is not in it.
    #[error("TF_CONFIG: {0}")]
    Spec(#[from] SpecError),
    /// A task of an unknown kind.
    #[error("TF_CONFIG, task.type '{0}' is unknown; expected ps, worker, chief, master or evaluator")]
    UnknownJob(String),
    /// A chief that is not in the cluster.
    #[error(
        "TF_CONFIG, task: there is no {job} {index}: the cluster has {chiefs} hosts under chief and master"
    )]
    NoSuchChief {
        /// The job as TF_CONFIG names it.
        job: String,
        /// The index asked for.
        index: usize,
        /// How many there are.
        chiefs: usize,
    },
    /// Two names for one job.
    #[error("TF_CONFIG, cluster: {chiefs} hosts under chief and master together; there can be only one")]
    SeveralChiefs {
        /// How many there are.
        chiefs: usize,
    },
}

// Members that are not listed here are ignored, as every reader of TF_CONFIG does.
#[derive(Deserialize)]
struct TfConfig {
    cluster: BTreeMap<String, Vec<String>>,
    task: TaskConfig,
}

#[derive(Deserialize)]
struct TaskConfig {
    #[serde(rename = "type")]
    job: String,
    // Operators write the index as a number; some older ones as a string.
    #[serde(deserialize_with = "number_or_text")]
    index: usize,
}

fn number_or_text<'de, D: serde::Deserializer<'de>>(from: D) -> Result<usize, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Index {
        Number(usize),
        Text(String),
    }
    match Index::deserialize(from) {
        Ok(Index::Number(number)) => Ok(number),
        Ok(Index::Text(text)) => {
            text.parse().map_err(|_| serde::de::Error::custom(format!("task.index '{text}' is not a number")))
        }
        Err(_) => Err(serde::de::Error::custom("task.index is not a number from 0")),
    }
}

/// The cluster and this process's place in it. A `chief` (or `master`) counts as worker 0.
pub fn parse(json: &str) -> Result<(ClusterSpec, Task), TfConfigError> {
    let config: TfConfig = serde_json::from_str(json)?;
    let hosts = |job: &str| -> Result<Vec<Address>, TfConfigError> {
        let list = config.cluster.get(job).map(Vec::as_slice).unwrap_or_default();
        let parse = |(index, text): (usize, &String)| {
            text.parse().map_err(|source| TfConfigError::Address { job: job.into(), index, source })
        };
        list.iter().enumerate().map(parse).collect()
    };
    let mut workers = hosts("chief")?;
    workers.extend(hosts("master")?);
    let chiefs = workers.len();
    if chiefs > 1 {
        return Err(TfConfigError::SeveralChiefs { chiefs });
    }
    workers.extend(hosts("worker")?);
    let spec = ClusterSpec::new(hosts("ps")?, workers)?;

    let TaskConfig { job, index } = config.task;
    let task = match job.as_str() {
        "ps" => Task::ps(index),
        "chief" | "master" if index < chiefs => Task::worker(index),
        "chief" | "master" => return Err(TfConfigError::NoSuchChief { job, index, chiefs }),
        "worker" => Task::worker(index.saturating_add(chiefs)),
        "evaluator" => return Ok((spec, Task { job: JobName::Evaluator, index })),
        _ => return Err(TfConfigError::UnknownJob(job)),
    };
    spec.address(task)?;
    Ok((spec, task))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(cluster: &str, task: &str) -> String {
        format!(r#"{{"cluster": {{{cluster}}}, "task": {{{task}}}, "environment": "cloud"}}"#)
    }

    #[test]
    fn the_chief_is_worker_0_and_the_workers_follow() {
        let cluster = r#""chief": ["c:1"], "worker": ["w:1", "v:1"], "ps": ["p:1"], "evaluator": ["e:1"]"#;
        for (task, expected) in [
            (r#""type": "chief", "index": 0"#, Task::worker(0)),
            (r#""type": "worker", "index": 1, "trial": "7""#, Task::worker(2)),
            (r#""type": "ps", "index": "0""#, Task::ps(0)),
            (r#""type": "evaluator", "index": 0"#, Task { job: JobName::Evaluator, index: 0 }),
        ] {
            let (spec, found) = parse(&config(cluster, task)).unwrap();
            assert_eq!(spec.to_string(), "ps_hosts=p:1 worker_hosts=c:1,w:1,v:1");
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let good = r#""worker": ["w:1"], "ps": ["p:1"]"#;
        let task = r#""type": "worker", "index": 0"#;
        for (json, words) in [
            ("{".into(), "not what is expected"),
            (r#"{"cluster": {}}"#.into(), "missing field `task`"),
            (config(r#""worker": ["w"], "ps": ["p:1"]"#, task), "cluster.worker[0]: 'w' has no port"),
            (config(r#""worker": ["w:1"]"#, task), "ps hosts is empty"),
            (config(good, r#""type": "boss", "index": 0"#), "task.type 'boss'"),
            (config(good, r#""type": "worker", "index": 1"#), "there is no worker 1"),
            (config(good, r#""type": "chief", "index": 0"#), "there is no chief 0: the cluster has 0"),
            (config(good, r#""type": "worker", "index": -1"#), "task.index is not a number"),
            (config(r#""chief": ["a:1"], "master": ["b:1"], "ps": ["p:1"]"#, task), "only one"),
        ] {
            let error = parse(&json).unwrap_err().to_string();
            assert!(error.contains(words), "{json} gave {error:?}");
        }
    }
}
