//! `phalanx train`: a whole cluster from one command, and nothing left of it, whatever way it ends.

#![allow(clippy::unwrap_used)]

mod support;

use rustix::process::Signal;
use support::{Data, children, run, start, wait_until_gone};

const FOR_EVER: &str = "--train_steps=1000000000";

#[test]
fn one_command_trains_and_says_how_well_and_where_it_saved() {
    let data = Data::new();
    let ended = run(data.train(&["--train_steps=400", "--log_every=50"]));
    ended.assert_code(0);
    assert!(ended.accuracy() > 0.9, "{}", ended.output);
    for words in [
        "[worker 0] Step: ",
        "[worker 1] Step: ",
        "of 11,  Cost: ",
        "Total Time: ",
        "Final Cost: ",
        "\ndone\n",
    ] {
        ended.assert_says(words);
    }
    let saved = data.results("run").join("checkpoint-000000400");
    ended.assert_says(&format!("Saved: {}", saved.display()));
    assert!(saved.join("model.safetensors").is_file() && saved.join("state.json").is_file());
    assert!(data.results("run").join("config.json").is_file());
    // A second run does not overwrite the first.
    run(data.train(&["--train_steps=5"])).assert_code(1).assert_says("already holds a run");
}

#[test]
fn any_shape_of_cluster_trains() {
    for (ps, workers) in [("1", "1"), ("2", "3")] {
        let data = Data::new();
        let ended = run(data.train(&["--ps", ps, "--workers", workers, "--epochs=30", "--model=softmax"]));
        ended.assert_code(0).assert_says(&format!("{ps} ps and {workers} workers"));
        assert!(ended.accuracy() > 0.9, "{}", ended.output);
        ended.assert_says("Total Time: ").assert_says("(330 steps");
    }
}

#[test]
fn epochs_of_each_worker_add_up_when_the_data_is_replicated() {
    let data = Data::new();
    let ended = run(data.train(&["--epochs=2", "--sharding=replicated"]));
    ended.assert_code(0).assert_says("(44 steps");
}

#[test]
fn every_optimizer_trains_on_several_ps() {
    for optimizer in ["momentum", "adagrad", "rmsprop", "adam", "adamw"] {
        let data = Data::new();
        let rate = if optimizer == "momentum" { "--learning_rate=0.02" } else { "--learning_rate=0.01" };
        let flags = ["--ps=2", "--train_steps=300", "--clip_norm=5", "--optimizer", optimizer, rate];
        let ended = run(data.train(&flags));
        assert!(ended.assert_code(0).accuracy() > 0.9, "{optimizer}: {}", ended.output);
        ended.assert_says(optimizer);
    }
}

#[test]
fn the_convnet_trains() {
    let data = Data::new();
    let flags =
        ["--model=convnet", "--train_steps=6", "--batch_size=20", "--workers=1", "--learning_rate=0.01"];
    run(data.train(&flags)).assert_code(0).assert_says("(6 steps");
}

#[test]
fn json_is_one_object_for_each_line() {
    let data = Data::new();
    let ended = run(data.train(&["--train_steps=50", "--log_format=json"]));
    ended.assert_code(0);
    let events: Vec<serde_json::Value> =
        ended.output.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let done = events.iter().find(|event| event["event"] == "done").unwrap();
    assert_eq!((done["task"].as_str(), done["global_step"].as_u64()), (Some("worker 0"), Some(50)));
}

#[test]
fn a_signal_ends_every_task() {
    for signal in [Signal::INT, Signal::TERM] {
        let data = Data::new();
        let train = start(data.train(&[FOR_EVER]));
        train.wait_for("Step: ");
        let tasks = children(train.child.id());
        assert_eq!(tasks.len(), 3);
        train.signal(signal);
        train.wait().assert_code(130).assert_says("interrupted");
        wait_until_gone(&tasks);
    }
}

#[test]
fn no_task_outlives_a_killed_parent() {
    let data = Data::new();
    let train = start(data.train(&[FOR_EVER]));
    train.wait_for("Step: ");
    let tasks = children(train.child.id());
    train.signal(Signal::KILL);
    wait_until_gone(&tasks);
}

#[test]
fn a_task_that_dies_ends_the_run_and_is_named() {
    for (victim, name) in [(0, "ps 0"), (1, "worker 0"), (2, "worker 1")] {
        let data = Data::new();
        let train = start(data.train(&[FOR_EVER]));
        train.wait_for("[worker 0] Step: ");
        let tasks = children(train.child.id());
        rustix::process::kill_process(
            rustix::process::Pid::from_raw(tasks[victim] as i32).unwrap(),
            Signal::KILL,
        )
        .unwrap();
        train.wait().assert_code(1).assert_says(&format!("error: {name} ended with signal: 9 (SIGKILL)"));
        wait_until_gone(&tasks);
    }
}

#[test]
fn training_that_diverges_ends_with_the_variable_and_the_remedy() {
    let data = Data::new();
    let ended = run(data.train(&["--learning_rate=1e30"]));
    ended.assert_code(1).assert_says("error: worker").assert_says("ps 0 at 127.0.0.1:");
    ended.assert_says("NaN at hidden.").assert_says("try a smaller --learning_rate");
}
