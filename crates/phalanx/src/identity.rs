//! Which task of which cluster this process is: from flags, or from `TF_CONFIG`.

use phalanx_cluster::{ClusterSpec, JobName, Task, tf_config};
use std::path::PathBuf;

/// The flags that say who this process is.
#[derive(clap::Args, Clone, Debug, Default)]
#[command(rename_all = "snake_case")]
pub struct ClusterArgs {
    /// What this task does.
    #[arg(long, value_name = "ps|worker", value_parser = job_name(), help_heading = "Cluster")]
    pub job_name: Option<JobName>,
    /// This task's place in its job's list of hosts, from 0.
    #[arg(long, visible_alias = "task_id", value_name = "I", help_heading = "Cluster")]
    pub task_index: Option<usize>,
    /// The parameter servers: host:port,host:port,...
    #[arg(long, visible_alias = "parameter_servers", value_name = "HOSTS", help_heading = "Cluster")]
    pub ps_hosts: Option<String>,
    /// The workers: host:port,host:port,...; the first is the chief.
    #[arg(long, visible_alias = "workers", value_name = "HOSTS", help_heading = "Cluster")]
    pub worker_hosts: Option<String>,
    /// Listen beyond loopback without TLS and a token, on a network that is trusted.
    #[arg(long, help_heading = "Cluster")]
    pub insecure: bool,
    /// Folder in which a ps keeps its parameters, so that it goes on where it was after it was killed; or `off`
    /// [default: the user's folder for state].
    #[arg(long, value_name = "DIR|off", overrides_with = "state_dir", help_heading = "Cluster")]
    pub state_dir: Option<PathBuf>,
}

/// Which task this process is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The cluster.
    pub cluster: ClusterSpec,
    /// The task.
    pub task: Task,
}

fn job_name() -> impl clap::builder::TypedValueParser<Value = JobName> {
    use clap::builder::{PossibleValuesParser, TypedValueParser};
    PossibleValuesParser::new(["ps", "worker", "evaluator"]).try_map(|name| name.parse::<JobName>())
}

impl ClusterArgs {
    /// Whether any of the flags was given.
    pub fn is_empty(&self) -> bool {
        let Self { job_name, task_index, ps_hosts, worker_hosts, .. } = self;
        job_name.is_none() && task_index.is_none() && ps_hosts.is_none() && worker_hosts.is_none()
    }

    /// Where a ps keeps its state, if anywhere.
    pub fn state_dir(&self) -> Option<PathBuf> {
        match &self.state_dir {
            Some(folder) => (folder.as_os_str() != "off").then(|| folder.clone()),
            None => dirs::state_dir().or_else(dirs::data_local_dir).map(|folder| folder.join("phalanx")),
        }
    }

    /// Who this process is, by these flags and the value of `TF_CONFIG`. Errors are for the user.
    pub fn identify(&self, tf_config: Option<&str>) -> Result<Identity, String> {
        match tf_config {
            None => self.by_flags_alone(),
            Some(json) => {
                let (cluster, task) = tf_config::parse(json).map_err(|error| error.to_string())?;
                self.check(&cluster, task)?;
                Ok(Identity { cluster, task })
            }
        }
    }

    fn by_flags_alone(&self) -> Result<Identity, String> {
        let missing = |flag: &str| format!("{flag} is missing (and TF_CONFIG is not set)");
        let job = self.job_name.ok_or_else(|| missing("--job_name"))?;
        let ps = self.ps_hosts.as_ref().ok_or_else(|| missing("--ps_hosts"))?;
        let workers = self.worker_hosts.as_ref().ok_or_else(|| missing("--worker_hosts"))?;
        let cluster = ClusterSpec::parse(ps, workers).map_err(|error| error.to_string())?;
        let alone = match job {
            JobName::Ps => cluster.ps().len() == 1,
            JobName::Worker => cluster.workers().len() == 1,
            JobName::Evaluator => true,
        };
        let index = match self.task_index {
            Some(index) => index,
            None if alone => 0,
            None => return Err(format!("--task_index is missing: the cluster has several {job} tasks")),
        };
        let task = Task { job, index };
        if job != JobName::Evaluator {
            cluster.address(task).map_err(|error| error.to_string())?;
        }
        Ok(Identity { cluster, task })
    }

    // Flags beside a TF_CONFIG must say the same.
    fn check(&self, cluster: &ClusterSpec, task: Task) -> Result<(), String> {
        let ours = |ps: &Option<String>, workers: &Option<String>| {
            let list = |given: &Option<String>, known: &[phalanx_cluster::Address]| {
                let known = known.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
                given.clone().unwrap_or(known)
            };
            ClusterSpec::parse(&list(ps, cluster.ps()), &list(workers, cluster.workers()))
        };
        let flags = ours(&self.ps_hosts, &self.worker_hosts).map_err(|error| error.to_string())?;
        let given =
            Task { job: self.job_name.unwrap_or(task.job), index: self.task_index.unwrap_or(task.index) };
        let conflict = |flags: String, config: String| {
            Err(format!("the flags and TF_CONFIG differ: {flags} by the flags, {config} by TF_CONFIG"))
        };
        if flags != *cluster {
            return conflict(flags.to_string(), cluster.to_string());
        }
        if given != task {
            return conflict(given.to_string(), task.to_string());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(job: &str, index: Option<usize>, ps: &str, workers: &str) -> ClusterArgs {
        let text = |text: &str| (text != "-").then(|| text.to_string());
        ClusterArgs {
            job_name: text(job).map(|job| job.parse().unwrap()),
            task_index: index,
            ps_hosts: text(ps),
            worker_hosts: text(workers),
            ..ClusterArgs::default()
        }
    }

    const TF_CONFIG: &str =
        r#"{"cluster": {"ps": ["p:1"], "worker": ["w:1", "v:1"]}, "task": {"type": "worker", "index": 1}}"#;

    #[test]
    fn flags_and_tf_config_say_the_same_thing() {
        let by_flags = args("worker", Some(1), "p:1", "w:1,v:1");
        let identity = by_flags.identify(None).unwrap();
        assert_eq!(identity.task, Task::worker(1));
        assert_eq!(ClusterArgs::default().identify(Some(TF_CONFIG)).unwrap(), identity);
        assert_eq!(by_flags.identify(Some(TF_CONFIG)).unwrap(), identity);
    }

    #[test]
    fn a_conflict_shows_both() {
        let error = args("worker", Some(0), "-", "-").identify(Some(TF_CONFIG)).unwrap_err();
        assert!(error.contains("worker 0 by the flags, worker 1 by TF_CONFIG"), "{error}");
        let error = args("-", None, "q:1", "-").identify(Some(TF_CONFIG)).unwrap_err();
        assert!(error.contains("ps_hosts=q:1") && error.contains("ps_hosts=p:1"), "{error}");
    }

    #[test]
    fn what_is_missing_or_wrong_is_named() {
        for (args, words) in [
            (args("-", None, "p:1", "w:1"), "--job_name is missing"),
            (args("ps", None, "-", "w:1"), "--ps_hosts is missing"),
            (args("ps", None, "p:1", "-"), "--worker_hosts is missing"),
            (args("worker", None, "p:1", "w:1,v:1"), "--task_index is missing"),
            (args("worker", Some(2), "p:1", "w:1,v:1"), "no worker 2"),
            (args("ps", Some(0), "p", "w:1"), "'p' has no port"),
        ] {
            let error = args.identify(None).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
        assert_eq!(args("ps", None, "p:1", "w:1").identify(None).unwrap().task, Task::ps(0));
        assert!(args("-", None, "-", "-").identify(Some("{")).unwrap_err().contains("TF_CONFIG"));
    }
}
