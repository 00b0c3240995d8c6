//! Tasks as processes of their own: they start in any order, and they all end.

#![allow(clippy::unwrap_used)]

mod support;

use rustix::process::Signal;
use support::{Data, Hosts, phalanx, run, start};

#[test]
fn a_seeds_three_commands_work_in_all_six_orders() {
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let (data, hosts) = (Data::new(), Hosts::new(1, 2));
        let mut tasks: Vec<_> = order
            .map(|task| match task {
                0 => (0, start(hosts.task("ps", 0))),
                worker => (worker, start(hosts.worker(worker - 1, &data, 400))),
            })
            .into();
        tasks.sort_by_key(|(task, _)| *task);
        let ended: Vec<_> = tasks.into_iter().map(|(_, task)| task.wait()).collect();
        for task in &ended {
            task.assert_code(0);
        }
        let [ps, chief, other] = &ended[..] else { unreachable!() };
        ps.assert_says("the run is over after 400 updates");
        assert!(chief.accuracy() > 0.9, "{order:?}: {}", chief.output);
        chief.assert_says("Final Cost: ").assert_says("Total Time: ").assert_says("done");
        assert!(!other.output.contains("Test-Accuracy"), "only the chief evaluates");
    }
}

#[test]
fn a_task_that_waits_says_for_whom_where_and_why() {
    let (data, hosts) = (Data::new(), Hosts::new(1, 2));
    let ps = hosts.ps();
    let worker = start(hosts.worker(1, &data, 5));
    worker.wait_for(&format!("waiting for ps 0 at {ps} for 1 s: connection refused"));
    let ps = start(hosts.task("ps", 0));
    let workers = hosts.workers();
    let chief = workers.split(',').next().unwrap();
    worker.wait_for(&format!("waiting for worker 0 at {chief} for 1 s: the chief has not yet initialised"));
    let chief = start(hosts.worker(0, &data, 5));
    for task in [ps, worker, chief] {
        task.wait().assert_code(0);
    }
}

#[test]
fn a_ps_that_nobody_comes_to_says_so() {
    let hosts = Hosts::new(1, 2);
    let ps = start(hosts.task("ps", 0));
    let text = ps.wait_for("no worker is here");
    assert!(hosts.workers().split(',').all(|worker| text.contains(worker)), "{text}");
    ps.signal(Signal::TERM);
    ps.wait().assert_code(130);
}

#[test]
fn a_name_that_does_not_resolve_is_waited_for() {
    let data = Data::new();
    let mut command = phalanx();
    command.args(["--ps_hosts=no-such-host.invalid:2222", "--worker_hosts=localhost:2223"]);
    command.args(["--job_name=worker", "--task_index=0"]).args(data.flags("run"));
    let worker = start(command);
    worker.wait_for("waiting for ps 0 at no-such-host.invalid:2222");
    worker.wait_for("the name 'no-such-host.invalid' does not resolve");
    worker.signal(Signal::INT);
    worker.wait().assert_code(130);
}

#[test]
fn a_worker_that_comes_after_the_end_is_told_and_exits_0() {
    let (data, hosts) = (Data::new(), Hosts::new(1, 2));
    let ps = start(hosts.task("ps", 0));
    run(hosts.worker(0, &data, 5)).assert_code(0);
    run(hosts.worker(1, &data, 5)).assert_code(0).assert_says("the run is over after 5 updates");
    ps.wait().assert_code(0);
}

#[test]
fn a_slow_worker_at_the_end_is_not_a_second_chief() {
    let data = Data::new();
    // Each worker's last step outlasts the other's evaluation.
    let ended = run(data.train(&["--train_steps=3", "--hidden_units=3000", "--batch_size=1100"]));
    ended.assert_code(0);
    assert_eq!(ended.output.matches("Test-Accuracy").count(), 1, "{}", ended.output);
}

#[test]
fn a_result_whose_chief_was_killed_is_saved_by_the_next_who_comes() {
    let (data, hosts) = (Data::new(), Hosts::new(2, 2));
    let ps = [0, 1].map(|index| start(hosts.task("ps", index)));
    let chief = start(hosts.worker(0, &data, 200));
    let other = start(hosts.worker(1, &data, 200));
    chief.wait_for("first step");
    chief.signal(Signal::KILL);
    chief.wait();
    // The other has the duty now, and does it.
    let other = other.wait();
    other.assert_code(0);
    assert!(other.accuracy() > 0.5);
    for ps in ps {
        ps.wait().assert_code(0);
    }
}

#[test]
fn a_result_whose_chief_is_killed_while_it_judges_is_saved_by_another() {
    let (data, hosts) = (Data::new(), Hosts::new(1, 2));
    let ps = start(hosts.task("ps", 0));
    let [chief, other] = [0, 1].map(|index| {
        let mut worker = hosts.worker(index, &data, 4);
        worker.args(["--model=convnet", "--batch_size=20", "--learning_rate=0.001"]);
        start(worker)
    });
    ps.wait_for("the run is over");
    chief.signal(Signal::KILL);
    chief.wait();
    other.wait().assert_code(0);
    ps.wait().assert_code(0);
    // Whether or not the chief was quick enough, somebody has saved.
    let saved = |run: &str| data.results(run).join("checkpoint-000000004/state.json").is_file();
    assert!(saved("run-0") || saved("run-1"));
}

#[test]
fn several_ps_start_in_any_order_and_with_any_gap() {
    let (data, hosts) = (Data::new(), Hosts::new(2, 2));
    let second = start(hosts.task("ps", 1));
    let workers = [0, 1].map(|index| start(hosts.worker(index, &data, 300)));
    for worker in &workers {
        worker.wait_for("waiting for ps 0");
    }
    let first = start(hosts.task("ps", 0));
    for task in workers.into_iter().chain([first, second]) {
        task.wait().assert_code(0);
    }
}

#[test]
fn a_worker_that_is_started_again_takes_its_place_again() {
    let (data, hosts) = (Data::new(), Hosts::new(1, 2));
    let ps = start(hosts.task("ps", 0));
    let chief = start(hosts.worker(0, &data, 3000));
    let other = start(hosts.worker(1, &data, 3000));
    other.wait_for("first step");
    other.signal(Signal::KILL);
    other.wait();
    ps.wait_for("worker 1 is gone");
    let again = start(hosts.worker(1, &data, 3000));
    again.wait_for("first step");
    for task in [ps, chief, again] {
        task.wait().assert_code(0);
    }
}

#[test]
fn a_ps_that_lost_its_parameters_is_found_out() {
    let (data, hosts) = (Data::new(), Hosts::new(2, 2));
    let forgetful = |index| {
        let mut ps = hosts.task("ps", index);
        ps.arg("--state_dir=off");
        ps
    };
    let first = start(forgetful(0));
    let second = start(forgetful(1));
    let chief = start(hosts.worker(0, &data, 1_000_000_000));
    let other = start(hosts.worker(1, &data, 1_000_000_000));
    other.wait_for("first step");
    second.signal(Signal::KILL);
    second.wait();
    let second = start(forgetful(1));
    for worker in [chief, other] {
        worker.wait().assert_code(1).assert_says("ps 1 at").assert_says("has lost its parameters");
    }
    // Nor does a fresh chief mix its own initial values with what was trained.
    let mut fresh = hosts.task("worker", 0);
    fresh.args(data.flags("fresh")).arg("--train_steps=1000000000");
    run(fresh).assert_code(1).assert_says("ps 1 at").assert_says("has lost its parameters");
    for ps in [first, second] {
        ps.signal(Signal::TERM);
        ps.wait().assert_code(130);
    }
}

#[test]
fn several_ps_share_the_parameters_either_way() {
    for placement in ["balanced", "round-robin"] {
        let (data, hosts) = (Data::new(), Hosts::new(3, 2));
        let ps: Vec<_> = (0..3).map(|index| start(hosts.task("ps", index))).collect();
        let workers: Vec<_> = (0..2)
            .map(|index| {
                let mut worker = hosts.worker(index, &data, 400);
                worker.arg("--placement").arg(placement).args(["--weights_name", "last"]);
                start(worker)
            })
            .collect();
        let workers: Vec<_> = workers.into_iter().map(|worker| worker.wait()).collect();
        assert!(workers[0].assert_code(0).accuracy() > 0.9, "{}", workers[0].output);
        workers[1].assert_code(0);
        for ps in ps {
            ps.wait().assert_code(0).assert_says("400 updates");
        }
        let results = data.results("run-0");
        assert!(results.join("checkpoint-000000400/model.safetensors").is_file());
        let rows = std::fs::read_to_string(results.join("last.csv")).unwrap();
        assert_eq!((rows.lines().count(), rows.lines().next().unwrap().split(',').count()), (100, 10));
    }
}

#[test]
fn tf_config_stands_for_the_flags() {
    let (data, hosts) = (Data::new(), Hosts::new(1, 2));
    let workers = hosts.workers();
    let (chief, worker) = workers.split_once(',').unwrap();
    let config = |job: &str| {
        let cluster =
            format!(r#"{{"ps": ["{}"], "chief": ["{chief}"], "worker": ["{worker}"]}}"#, hosts.ps());
        format!(
            r#"{{"cluster": {cluster}, "task": {{"type": "{job}", "index": 0}}, "environment": "cloud"}}"#
        )
    };
    let task = |job: &str, results: &str| {
        let mut command = phalanx();
        command.env("TF_CONFIG", config(job)).args(data.flags(results)).arg("--train_steps=50");
        command.arg(format!("--state_dir={}", hosts.state_dir().display()));
        command
    };
    let tasks =
        [("ps", "p"), ("chief", "c"), ("worker", "w")].map(|(job, results)| start(task(job, results)));
    let [ps, chief, worker] = tasks.map(|task| task.wait());
    ps.assert_code(0).assert_says("50 updates");
    chief.assert_code(0).assert_says("Test-Accuracy");
    worker.assert_code(0);
    run(task("evaluator", "e")).assert_code(0).assert_says("the chief evaluates");
    let mut conflict = task("worker", "w2");
    conflict.arg("--task_index=0");
    run(conflict).assert_code(2).assert_says("worker 0 by the flags, worker 1 by TF_CONFIG");
}

#[test]
fn a_signal_is_obeyed_in_every_phase() {
    let (data, hosts) = (Data::new(), Hosts::new(1, 2));
    let waiting = start(hosts.worker(1, &data, 1_000_000_000));
    waiting.wait_for("waiting for ps 0");
    waiting.signal(Signal::TERM);
    waiting.wait().assert_code(130).assert_says("interrupted");

    let ps = start(hosts.task("ps", 0));
    let chief = start(hosts.worker(0, &data, 1_000_000_000));
    let other = start(hosts.worker(1, &data, 1_000_000_000));
    chief.wait_for("Step: ");
    other.wait_for("Step: ");
    other.signal(Signal::INT);
    other.wait().assert_code(130).assert_says("interrupted");
    ps.wait_for("worker 1 left");
    chief.wait_for("Step: ");
    ps.signal(Signal::INT);
    ps.wait().assert_code(130);
    chief.wait_for("waiting for ps 0");
    chief.signal(Signal::TERM);
    chief.wait().assert_code(130);
}

#[test]
fn a_computation_in_progress_does_not_hold_up_a_signal() {
    let (data, hosts) = (Data::new(), Hosts::new(1, 1));
    let ps = start(hosts.task("ps", 0));
    let mut command = hosts.worker(0, &data, 1_000_000_000);
    // One step of this takes many seconds.
    command.args(["--model=convnet", "--batch_size=1100"]);
    let worker = start(command);
    ps.wait_for("holding");
    worker.signal(Signal::INT);
    worker.wait().assert_code(130);
    ps.signal(Signal::TERM);
    ps.wait().assert_code(130);
}
