//! The batches of one worker, made ready before they are needed.

use crate::{
    data::{Place, Schedule},
    job::Job,
    settings::Sharding,
};
use anyhow::Context;
use burn::tensor::Device;
use phalanx_ps::Step;
use std::collections::VecDeque;

/// Turns the numbers of batches into batches.
pub struct Input<'a, J: Job> {
    job: &'a J,
    device: &'a Device,
    schedule: Schedule,
    numbers: Numbers,
    ready: Option<(u64, J::Batch)>,
    // The batch that was taken last.
    last: Option<u64>,
}

/// Where the numbers of batches come from.
enum Numbers {
    /// ps 0 hands them out, so that the workers together go through the data.
    HandedOut(VecDeque<u64>),
    /// Each worker counts its own.
    Counted(u64),
}

impl<'a, J: Job> Input<'a, J> {
    /// The input of a worker.
    pub fn new(job: &'a J, device: &'a Device, schedule: Schedule, sharding: Sharding) -> Self {
        let numbers = match sharding {
            Sharding::Shared => Numbers::HandedOut(VecDeque::new()),
            Sharding::Replicated => Numbers::Counted(0),
        };
        Self { job, device, schedule, numbers, ready: None, last: None }
    }

    /// Takes in what ps 0 has handed to this worker.
    pub fn add(&mut self, step: &Step) {
        let Numbers::HandedOut(numbers) = &mut self.numbers else { return };
        if step.anew {
            // What was in hand was given back, and is this worker's only where it was handed out again.
            numbers.clear();
            self.ready.take_if(|(number, _)| !step.batches.contains(number));
        }
        let known = [self.ready.as_ref().map(|(number, _)| *number), self.last];
        numbers.extend(step.batches.iter().filter(|number| !known.contains(&Some(**number))));
    }

    /// Makes the next batch ready, if its number is known.
    pub fn prepare(&mut self) {
        if self.ready.is_none() {
            let number = match &mut self.numbers {
                Numbers::HandedOut(numbers) => numbers.pop_front(),
                Numbers::Counted(next) => {
                    *next += 1;
                    Some(*next - 1)
                }
            };
            self.ready =
                number.map(|number| (number, self.job.batch(self.schedule.examples(number), self.device)));
        }
    }

    /// The next batch and its number.
    pub fn take(&mut self) -> anyhow::Result<(u64, J::Batch)> {
        self.prepare();
        let taken = self.ready.take().context("ps 0 handed out no batch")?;
        self.last = Some(taken.0);
        Ok(taken)
    }

    /// Where a batch lies in the run.
    pub fn place(&self, number: u64) -> Place {
        self.schedule.place(number)
    }
}
