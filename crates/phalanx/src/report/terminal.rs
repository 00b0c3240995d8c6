//! A whole cluster as a progress display: one bar for the run and one line for each worker.

use super::{ClusterReport, Event, StepReport, plain::summary_lines};
use indicatif::{HumanCount, MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

/// The display.
pub struct Terminal {
    display: MultiProgress,
    run: ProgressBar,
    workers: Vec<Worker>,
    cost: Option<f32>,
}

struct Worker {
    line: ProgressBar,
    examples_per_s: f64,
}

const BAR: &str = "{bar:32.cyan/blue} {percent:>3}%  step {human_pos}/{human_len}  ETA {eta}  {wide_msg}";

impl Terminal {
    /// A display for this many workers.
    pub fn new(workers: usize) -> Self {
        // Where the lines go too: what is hidden from one must not be hidden from the other.
        let display = MultiProgress::with_draw_target(ProgressDrawTarget::stdout());
        let style = |template| {
            ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
        };
        let run = display.add(ProgressBar::new(0).with_style(style("{spinner} {msg}")));
        run.set_message("waiting for the first step");
        let worker = |index: usize| {
            let line = display.add(ProgressBar::new_spinner().with_style(style("  {prefix}  {wide_msg}")));
            line.set_prefix(format!("worker {index}"));
            line.set_message("starting");
            Worker { line, examples_per_s: 0.0 }
        };
        let workers = (0..workers).map(worker).collect();
        Self { display, run, workers, cost: None }
    }

    fn step(&mut self, step: &StepReport) {
        if self.cost.is_none() {
            self.run.set_length(step.train_steps);
            self.run.set_style(
                ProgressStyle::with_template(BAR).unwrap_or_else(|_| ProgressStyle::default_bar()),
            );
        }
        // One batch's cost jumps about; what people want to see is where it is going.
        let cost = self.cost.map_or(step.cost, |before| 0.8 * before + 0.2 * step.cost);
        self.cost = Some(cost);
        if let Some(worker) = self.workers.get_mut(step.worker) {
            worker.examples_per_s = step.examples_per_s;
            worker.line.set_message(format!(
                "{:>8} steps  {:>9} examples/s  {:.2} ms/step  cost {:.4}  epoch {}, batch {} of {}",
                HumanCount(step.local_step).to_string(),
                HumanCount(step.examples_per_s as u64).to_string(),
                step.average_ms,
                step.cost,
                step.epoch,
                step.batch,
                step.batches
            ));
        }
        let examples_per_s: f64 = self.workers.iter().map(|worker| worker.examples_per_s).sum();
        self.run.set_position(step.global_step.max(self.run.position()));
        self.run.set_message(format!("{} examples/s  loss {cost:.4}", HumanCount(examples_per_s as u64)));
    }

    fn line(&self, text: &str) {
        drop(self.display.println(text));
    }

    fn clear(&self) {
        self.workers.iter().for_each(|worker| worker.line.finish_and_clear());
        self.run.finish_and_clear();
    }
}

impl ClusterReport for Terminal {
    fn event(&mut self, task: &str, event: &Event) {
        match event {
            Event::Step(step) => self.step(step),
            Event::Note { text } => self.line(&format!("[{task}] {text}")),
            Event::Warning { text } => self.line(&format!("[{task}] warning: {text}")),
            Event::Done(summary) => {
                self.clear();
                super::print_line(&summary_lines(summary));
            }
            Event::Failed { .. } => self.clear(),
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.clear();
    }
}
