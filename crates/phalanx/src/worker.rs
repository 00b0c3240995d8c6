//! THE loop: take a batch, compute its gradient, push it, get new values.

use crate::{
    chief,
    data::Schedule,
    device,
    input::Input,
    job::Job,
    meter::Meter,
    params,
    random::Random,
    report::Report,
    rundir::RunDir,
    settings::{Settings, Sharding},
    stop::Stop,
};
use phalanx_cluster::{ClusterSpec, Plan, Variable};
use phalanx_ps::{Client, ClientConfig, ClientError, Farewell, RunSpec, ValuePool};
use std::{
    collections::BTreeMap,
    process,
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use tokio::runtime::{self, Runtime};

/// How often a worker asks whether the result is saved.
const BETWEEN_QUESTIONS: Duration = Duration::from_millis(100);

/// What a worker is told when it starts.
pub struct Worker {
    /// The cluster it is part of.
    pub cluster: ClusterSpec,
    /// Its task index.
    pub index: usize,
    /// The flags.
    pub settings: Settings,
    /// What it trains on, in words.
    pub dataset: String,
    /// Where results go.
    pub run_dir: RunDir,
    /// Where events go.
    pub report: Report,
    /// Whether it is to stop.
    pub stop: Stop,
}

/// Why a worker ended before the run did.
#[derive(Debug, thiserror::Error)]
pub enum Halt {
    /// It was asked to stop.
    #[error("interrupted")]
    Interrupted,
    /// The run was over before this worker came.
    #[error("the run is over after {updates} updates")]
    TooLate {
        /// The updates it had.
        updates: u64,
    },
    /// It cannot go on.
    #[error(transparent)]
    Failed(#[from] anyhow::Error),
}

/// Takes part in a run until it is over.
pub fn run<J: Job>(job: &J, worker: &Worker) -> Result<Farewell, Halt> {
    let network = Network::new(worker.stop.clone())?;
    let model = job.model(&device::training());
    let plan = worker.plan(params::variables(&model))?;
    let schedule = worker.schedule(job.examples())?;
    let spec = worker.run_spec(&plan, schedule.batches(), job.settings())?;
    worker.introduce(&spec);

    let mut client = network.wait(Client::connect(worker.client_config(spec)))?;
    let mut training = Training { job, worker, plan: &plan, network: &network, client: &mut client };
    let result = training.run(model, schedule);
    let farewell = result.as_ref().copied().unwrap_or(Farewell::Early);
    network.runtime.block_on(client.leave(farewell));
    result
}

/// A worker that is connected to every ps.
struct Training<'a, J> {
    job: &'a J,
    worker: &'a Worker,
    plan: &'a Plan,
    network: &'a Network,
    client: &'a mut Client,
}

impl<J: Job> Training<'_, J> {
    fn run(&mut self, mut model: J::Model, schedule: Schedule) -> Result<Farewell, Halt> {
        let Self { job, worker, plan, network, client } = self;
        let device = device::training();
        let pool = ValuePool::default();
        let mut input = Input::new(*job, &device, schedule, worker.settings.sharding);

        let initial = pool.share(params::values(&model, plan));
        let mut values = pool.take(plan.len());
        let mut step = network.wait(client.begin(&initial, &mut values))?;
        drop(initial);
        let mut meter = Meter::new(worker, client.run().train_steps);
        while !step.over {
            input.add(&step);
            let (number, batch) = input.take()?;
            model = params::load(model, plan, &pool.share(values), &device);
            let loss = job.loss(&model, batch);
            let gradient = params::gradients(&model, plan, loss.backward());

            values = pool.take(plan.len());
            let push = client.push(number, &gradient, &mut values);
            // While the gradient travels, the next batch is made ready.
            step = network.wait(meanwhile(push, || input.prepare()))?;
            meter.step(input.place(number), &step, loss.into_scalar::<f32>());
        }
        // Until somebody has saved the result, it may fall to this worker to do so.
        while !step.chief {
            if step.saved {
                return Ok(Farewell::Over);
            }
            step = network.wait(async {
                tokio::time::sleep(BETWEEN_QUESTIONS).await;
                client.ask().await
            })?;
        }
        let totals = meter.totals(step.global_step);
        network.wait(client.pull_last(&mut values))?;
        chief::finish(*job, worker, plan, &pool.share(values), totals)?;
        Ok(Farewell::Saved)
    }
}

impl Worker {
    fn plan(&self, variables: Vec<Variable>) -> anyhow::Result<Plan> {
        Ok(Plan::new(variables, self.settings.placement.into(), self.cluster.ps().len())?)
    }

    fn schedule(&self, examples: usize) -> anyhow::Result<Schedule> {
        let own_order = match self.settings.sharding {
            Sharding::Shared => 0,
            Sharding::Replicated => self.index as u64,
        };
        let batch_size = self.settings.batch_size as usize;
        anyhow::ensure!(
            batch_size <= examples,
            "--batch_size {batch_size} is more than the {examples} training examples"
        );
        let seed = self.settings.seed ^ Random::new(own_order).bits();
        Schedule::new(examples, batch_size, seed)
    }

    fn run_spec(
        &self,
        plan: &Plan,
        batches: u64,
        mut settings: BTreeMap<String, String>,
    ) -> anyhow::Result<RunSpec> {
        let Settings { batch_size, seed, sharding, .. } = &self.settings;
        settings.insert("batch_size".into(), batch_size.to_string());
        settings.insert("seed".into(), seed.to_string());
        settings.insert("sharding".into(), format!("{sharding:?}").to_lowercase());
        Ok(RunSpec {
            plan: plan.clone(),
            optimizer: self.settings.optimizer.optimizer(self.settings.model).map_err(anyhow::Error::msg)?,
            train_steps: self.settings.total_steps(batches, self.cluster.workers().len()),
            settings,
        })
    }

    fn introduce(&self, run: &RunSpec) {
        // Said once in a cluster.
        if self.index == 0 {
            let model = run.settings.get("the model").cloned().unwrap_or_default();
            self.report.note(format!(
                "training {model} ({} parameters) on {}: {} steps of {} examples, {}",
                run.plan.len(),
                self.dataset,
                run.train_steps,
                self.settings.batch_size,
                run.optimizer
            ));
        }
    }

    fn client_config(&self, run: RunSpec) -> ClientConfig {
        let report = self.report.clone();
        ClientConfig {
            cluster: self.cluster.clone(),
            worker: self.index,
            // Later lives of a worker have higher numbers, on the same machine and on most others.
            incarnation: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_nanos() as u64),
            origin: format!("pid {} on {}", process::id(), host_name()),
            run,
            on_wait: Box::new(move |waiting| report.note(waiting.to_string())),
        }
    }
}

fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// The network of a worker. It runs on the worker's own thread, while that waits for it: nothing is handed
/// from one thread to another.
struct Network {
    runtime: Runtime,
    stop: Stop,
}

impl Network {
    fn new(stop: Stop) -> anyhow::Result<Self> {
        Ok(Self { runtime: runtime::Builder::new_current_thread().enable_all().build()?, stop })
    }

    fn wait<T>(&self, exchange: impl Future<Output = Result<T, ClientError>>) -> Result<T, Halt> {
        match self.runtime.block_on(self.stop.unless_requested(exchange)) {
            None => Err(Halt::Interrupted),
            Some(Err(ClientError::Over { updates })) => Err(Halt::TooLate { updates }),
            Some(result) => result.map_err(|error| Halt::Failed(error.into())),
        }
    }
}

/// Does `work` as soon as `exchange` has nothing to do but to wait for the other side.
async fn meanwhile<T>(exchange: impl Future<Output = T>, work: impl FnOnce()) -> T {
    let work = async {
        tokio::task::yield_now().await;
        work();
    };
    tokio::join!(exchange, work).0
}
