//! How far and how fast a worker gets, told now and then.

use crate::{
    data::Place,
    report::{Event, StepReport},
    worker::Worker,
};
use phalanx_ps::Step;
use std::time::{Duration, Instant};

/// Reports between the milestones of `--log_every`, for displays.
const HEARTBEAT: Duration = Duration::from_millis(200);

/// Counts a worker's steps.
pub struct Meter<'a> {
    worker: &'a Worker,
    train_steps: u64,
    started: Instant,
    local_step: u64,
    cost: f32,
    reported_at: Instant,
    steps_since: u64,
}

/// What a worker's part in the run came to.
#[derive(Clone, Copy, Debug)]
pub struct Totals {
    /// Updates of the whole run.
    pub global_step: u64,
    /// How long this worker trained.
    pub seconds: f64,
    /// The loss on its last batch.
    pub final_cost: f32,
}

impl<'a> Meter<'a> {
    /// Begins to count.
    pub fn new(worker: &'a Worker, train_steps: u64) -> Self {
        let now = Instant::now();
        Self {
            worker,
            train_steps,
            started: now,
            local_step: 0,
            cost: f32::NAN,
            reported_at: now,
            steps_since: 0,
        }
    }

    /// Counts a step, and tells of it if it is time to.
    pub fn step(&mut self, place: Place, step: &Step, cost: f32) {
        if self.local_step == 0 {
            self.worker.report.note(format!("first step at global step {}", step.global_step));
        }
        self.local_step += 1;
        self.steps_since += 1;
        self.cost = cost;
        let milestone = self.local_step.is_multiple_of(self.worker.settings.log_every.into()) || step.over;
        let elapsed = self.reported_at.elapsed();
        if milestone || elapsed >= HEARTBEAT {
            let seconds = elapsed.as_secs_f64().max(1e-9);
            let examples = self.steps_since * u64::from(self.worker.settings.batch_size);
            self.worker.report.event(Event::Step(StepReport {
                worker: self.worker.index,
                local_step: self.local_step,
                global_step: step.global_step,
                train_steps: self.train_steps,
                epoch: place.epoch + 1,
                batch: place.batch + 1,
                batches: place.batches,
                cost,
                average_ms: seconds * 1e3 / self.steps_since as f64,
                examples_per_s: examples as f64 / seconds,
                milestone,
            }));
            self.reported_at = Instant::now();
            self.steps_since = 0;
        }
    }

    /// The sum of it.
    pub fn totals(&self, global_step: u64) -> Totals {
        Totals { global_step, seconds: self.started.elapsed().as_secs_f64(), final_cost: self.cost }
    }
}
