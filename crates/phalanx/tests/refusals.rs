//! What is wrong is refused at once, with what was wrong, where, and what to do.

#![allow(clippy::unwrap_used)]

mod support;

use rustix::process::Signal;
use std::{fs, net::TcpListener};
use support::{Data, Hosts, phalanx, run, start};

#[test]
fn mistakes_on_the_command_line_exit_with_2() {
    for (line, words) in [
        ("", "nothing to do"),
        ("train --learning_rate -1", "the learning rate is -1; it must be a number"),
        ("train --learning_rate nan", "the learning rate is NaN"),
        ("train --optimizer momentum --momentum 1", "the momentum is 1; it must be from 0 to below 1"),
        ("train --worker 3", "a similar argument exists: '--workers'"),
        ("--job_name=wroker --ps_hosts=p:1 --worker_hosts=w:1", "a similar value exists: 'worker'"),
        ("--job_name=worker --task_index=2 --ps_hosts=p:1 --worker_hosts=w:1,v:1", "there is no worker 2"),
        ("--job_name=ps --ps_hosts= --worker_hosts=w:1", "the list of ps hosts is empty"),
        ("--job_name=ps --ps_hosts=p:1 --worker_hosts=w:1,,v:1", "worker 1 of the list 'w:1,,v:1'"),
        ("--job_name=ps --ps_hosts=http://p:1 --worker_hosts=w:1", "no scheme or path"),
        ("--job_name=ps --ps_hosts=p:99999 --worker_hosts=w:1", "'99999'"),
        ("--job_name=ps --ps_hosts=p:1 --worker_hosts=p:1", "ps 0 and worker 0 have the same address"),
    ] {
        let mut command = phalanx();
        command.args(line.split_whitespace());
        run(command).assert_code(2).assert_says(words);
    }
}

#[test]
fn a_port_in_use_is_named() {
    let hosts = Hosts::new(1, 1);
    let taken = TcpListener::bind(hosts.ps()).unwrap();
    let port = taken.local_addr().unwrap().port();
    let ended = run(hosts.task("ps", 0));
    ended.assert_code(1).assert_says(&format!("port {port} is in use"));
}

#[test]
fn nothing_listens_beyond_loopback_by_default() {
    let mut command = phalanx();
    command.args(["--job_name=ps", "--ps_hosts=192.0.2.1:2222", "--worker_hosts=192.0.2.2:2222"]);
    run(command)
        .assert_code(1)
        .assert_says("192.0.2.1:2222 is not known to be a loopback address")
        .assert_says("--insecure");
}

#[test]
fn tasks_of_different_clusters_refuse_each_other_with_both_sides_values() {
    let (data, hosts, others) = (Data::new(), Hosts::new(1, 2), Hosts::new(1, 1));
    let ps = start(hosts.task("ps", 0));
    let mut stranger = phalanx();
    stranger.args(["--job_name=worker", "--task_index=0"]);
    stranger.args([format!("--ps_hosts={}", hosts.ps()), format!("--worker_hosts={}", others.workers())]);
    stranger.args(data.flags("run"));
    let ended = run(stranger);
    ended.assert_code(1).assert_says(&format!("ps 0 at {} refused: the cluster is ps_hosts=", hosts.ps()));
    ended.assert_says(&hosts.workers()).assert_says(&others.workers());
    ps.signal(Signal::TERM);
    ps.wait().assert_code(130);
}

#[test]
fn a_second_worker_of_one_index_and_one_with_other_settings_are_refused() {
    let (data, hosts) = (Data::new(), Hosts::new(1, 2));
    let ps = start(hosts.task("ps", 0));
    let chief = start(hosts.worker(0, &data, 1_000_000_000));
    chief.wait_for("first step");
    let mut twin = hosts.task("worker", 0);
    twin.args(data.flags("twin")).arg("--train_steps=1000000000");
    let ended = run(twin);
    ended.assert_code(1).assert_says("worker 0 is already here, as pid");
    ended.assert_says(&format!("pid {} on ", chief.child.id()));
    let mut odd = hosts.task("worker", 1);
    odd.args(data.flags("odd")).args(["--train_steps=1000000000", "--batch_size=7", "--learning_rate=3"]);
    let ended = run(odd);
    ended.assert_code(1).assert_says("batch_size is 100 here and 7 there");
    ended.assert_says("learning rate 0.2 here and sgd with learning rate 3 there");
    // Neither has disturbed the run.
    chief.wait_for("Step: ");
    for task in [chief, ps] {
        task.signal(Signal::TERM);
        task.wait().assert_code(130);
    }
}

#[test]
fn bad_files_end_a_worker_with_the_file_and_the_fault() {
    let labels = "train-labels-idx1-ubyte";
    type Spoil = fn(&mut Vec<u8>);
    let faults: [(Spoil, &str); 4] = [
        (|file| file[3] = 3, "train-labels-idx1-ubyte"),
        (|file| file.truncate(500), "train-labels-idx1-ubyte"),
        (|file| file[100] = 77, "77"),
        (|file| file[0] = 0x1f, "train-labels-idx1-ubyte"),
    ];
    for (spoil, words) in faults {
        let (data, hosts) = (Data::new(), Hosts::new(1, 1));
        let path = data.path().join(labels);
        let mut bytes = fs::read(&path).unwrap();
        spoil(&mut bytes);
        fs::write(&path, bytes).unwrap();
        run(hosts.worker(0, &data, 5)).assert_code(1).assert_says("error: ").assert_says(words);
    }
    let (data, hosts) = (Data::new(), Hosts::new(1, 1));
    fs::write(data.path().join("file"), "").unwrap();
    let mut command = hosts.task("worker", 0);
    command.arg(format!("--data_dir={}", data.path().join("file").display()));
    command.arg(format!("--logdir={}", data.results("run").display()));
    run(command).assert_code(1).assert_says("file");
}

#[test]
fn a_logdir_that_cannot_be_written_is_found_out_at_the_start() {
    let (data, hosts) = (Data::new(), Hosts::new(1, 1));
    fs::write(data.path().join("file"), "").unwrap();
    let mut command = hosts.task("worker", 0);
    command.arg(format!("--data_dir={}", data.path().display()));
    command.arg(format!("--logdir={}", data.path().join("file/run").display()));
    run(command).assert_code(1).assert_says("file/run");
}
