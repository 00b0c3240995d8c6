//! A ps that is killed at any instant and started again goes on where it was: nothing that was acknowledged is
//! lost, nothing is applied twice, and no update is ever seen half applied.
//!
//! The oracle is exact: every push adds 1 to every parameter, so each of them equals the number of pushes applied.

#![allow(clippy::unwrap_used)]

mod support;

use bytes::Bytes;
use phalanx::random::Random;
use phalanx_cluster::{ClusterSpec, Placement, Plan, Variable};
use phalanx_ps::{
    Client, ClientConfig, Farewell, FlatPart, RunSpec, ValuePool,
    optimizer::{Optimizer, Rule},
};
use rustix::process::Signal;
use std::{
    env, fs,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};
use support::{Data, Hosts, start};

/// Enough parameters that an update takes a while.
const LEN: usize = 100_000;

fn config(hosts: &Hosts, worker: usize) -> ClientConfig {
    let variables = vec![Variable { name: "w".into(), shape: vec![LEN] }];
    ClientConfig {
        cluster: ClusterSpec::parse(&hosts.ps(), &hosts.workers()).unwrap(),
        worker,
        incarnation: 1 + worker as u64,
        origin: "a test".into(),
        run: RunSpec {
            plan: Plan::new(variables, Placement::Balanced, hosts.ps().split(',').count()).unwrap(),
            // A velocity that forgets everything at once: the same as plain descent, but with something to keep.
            optimizer: Optimizer::new(Rule::Momentum { momentum: 0.0, nesterov: false }, 1.0),
            train_steps: u64::MAX,
            settings: Default::default(),
        },
        on_wait: Box::new(|_| {}),
    }
}

/// Pushes until told to stop; every reply must show whole updates. Gives the number of acknowledged pushes.
async fn push_until(config: ClientConfig, stop: Arc<AtomicBool>, acknowledged: Arc<AtomicU64>) -> u64 {
    let mut client = Client::connect(config).await.unwrap();
    let (mut values, mut mine) = (vec![0.0; LEN], 0);
    client.begin(&ValuePool::default().share(vec![0.0; LEN]), &mut values).await.unwrap();
    let minus_one = Bytes::from((-1.0f32).to_le_bytes().repeat(LEN));
    while !stop.load(Ordering::Relaxed) {
        let gradient = [FlatPart { start: 0, data: minus_one.clone() }];
        let step = client.push(0, &gradient, &mut values).await.unwrap();
        assert!(values.iter().all(|value| *value == values[0]), "an update is seen half applied");
        assert!(step.global_step as f32 >= values[0]);
        mine += 1;
        acknowledged.fetch_add(1, Ordering::Relaxed);
    }
    client.leave(Farewell::Early).await;
    mine
}

fn wait_for_progress(acknowledged: &AtomicU64) -> Duration {
    let (start, before) = (Instant::now(), acknowledged.load(Ordering::Relaxed));
    while acknowledged.load(Ordering::Relaxed) < before + 2 {
        assert!(start.elapsed() < Duration::from_secs(120), "nothing goes on");
        thread::sleep(Duration::from_millis(1));
    }
    start.elapsed()
}

#[test]
fn a_ps_killed_at_random_moments_loses_nothing_and_applies_nothing_twice() {
    // A short version by default; PHALANX_KILLS=300 for a long one.
    let kills: usize = env::var("PHALANX_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(8);
    let hosts = Hosts::new(1, 2);
    let mut ps = start(hosts.task("ps", 0));
    let (stop, acknowledged) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let workers: Vec<_> = (0..2)
        .map(|worker| {
            let (config, stop, acknowledged) = (config(&hosts, worker), stop.clone(), acknowledged.clone());
            thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(push_until(config, stop, acknowledged))
            })
        })
        .collect();

    let (mut random, mut slowest) = (Random::new(kills as u64), Duration::ZERO);
    wait_for_progress(&acknowledged);
    for _ in 0..kills {
        thread::sleep(Duration::from_micros(random.below(50_000) as u64));
        ps.signal(Signal::KILL);
        ps.wait();
        ps = start(hosts.task("ps", 0));
        slowest = slowest.max(wait_for_progress(&acknowledged));
    }
    stop.store(true, Ordering::Relaxed);
    let acknowledged: u64 = workers.into_iter().map(|worker| worker.join().unwrap()).sum();

    // What a fresh look finds is exactly what was acknowledged: all that was sent, since nobody gave up.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (applied, values) = runtime.block_on(async {
        let mut client =
            Client::connect(ClientConfig { incarnation: 99, ..config(&hosts, 0) }).await.unwrap();
        let mut values = vec![0.0; LEN];
        let step = client.begin(&ValuePool::default().share(vec![0.0; LEN]), &mut values).await.unwrap();
        client.leave(Farewell::Early).await;
        (step.global_step, values)
    });
    println!(
        "{kills} kills, {applied} pushes applied, {acknowledged} acknowledged, slowest return {slowest:?}"
    );
    assert_eq!(applied, acknowledged);
    assert!(values.iter().all(|value| *value == acknowledged as f32));
    ps.signal(Signal::TERM);
    ps.wait().assert_code(130).assert_says("are kept in");
}

#[test]
fn training_goes_on_through_the_death_of_a_ps_and_leaves_no_state_behind() {
    let (data, hosts) = (Data::new(), Hosts::new(2, 2));
    let first = start(hosts.task("ps", 0));
    let mut second = start(hosts.task("ps", 1));
    let workers = [0, 1].map(|worker| start(hosts.worker(worker, &data, 4000)));
    for worker in &workers {
        worker.wait_for("first step");
    }
    second.signal(Signal::KILL);
    second.wait();
    second = start(hosts.task("ps", 1));
    second.wait_for("going on after");
    let [chief, other] = workers.map(|worker| worker.wait());
    assert!(chief.assert_code(0).accuracy() > 0.9);
    other.assert_code(0);
    for ps in [first, second] {
        ps.wait().assert_code(0).assert_says("done after 4000 updates");
    }
    assert_eq!(fs::read_dir(hosts.state_dir()).unwrap().count(), 0, "nothing is kept after the end");
}

#[test]
fn the_state_of_a_run_that_is_gone_does_not_spoil_the_next() {
    let (data, hosts) = (Data::new(), Hosts::new(1, 1));
    let ps = start(hosts.task("ps", 0));
    let worker = start(hosts.worker(0, &data, 1_000_000_000));
    worker.wait_for("Step: ");
    worker.signal(Signal::KILL);
    ps.signal(Signal::KILL);
    worker.wait();
    ps.wait();

    let ps = start(hosts.task("ps", 0));
    let mut command = hosts.task("worker", 0);
    command.args(data.flags("new")).arg("--train_steps=200");
    let worker = start(command);
    worker.wait_for("it holds the state of an earlier run");
    worker.wait().assert_code(0).assert_says("(200 steps");
    ps.wait().assert_code(0).assert_says("its run is gone").assert_says("done after 200 updates");
}
