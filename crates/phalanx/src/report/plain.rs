//! Events as lines of text, steps and results in the form that people know from the ps/worker examples.

use super::{ClusterReport, Event, StepReport, Summary, print_line};

/// A whole cluster as lines of text.
pub struct Lines;

impl ClusterReport for Lines {
    fn event(&mut self, task: &str, event: &Event) {
        print(Some(task), event);
    }
}

/// Prints an event; with the name of its task where there are several.
pub fn print(task: Option<&str>, event: &Event) {
    let prefix = task.map(|task| format!("[{task}] ")).unwrap_or_default();
    match event {
        Event::Note { text } => print_line(&format!("{prefix}{text}")),
        Event::Warning { text } => print_line(&format!("{prefix}warning: {text}")),
        Event::Step(step) if step.milestone => print_line(&format!("{prefix}{}", step_line(step))),
        Event::Step(_) => {}
        Event::Done(summary) => print_line(&summary_lines(summary)),
        // Whoever ends the process says so, on standard error.
        Event::Failed { .. } => {}
    }
}

fn step_line(step: &StepReport) -> String {
    let StepReport { global_step, epoch, batch, batches, cost, average_ms, .. } = step;
    format!(
        "Step: {global_step},  Epoch: {epoch},  Batch: {batch} of {batches},  Cost: {cost:.4},  \
         AvgTime: {average_ms:.2}ms"
    )
}

/// The result of a run, ending with `done`.
pub fn summary_lines(summary: &Summary) -> String {
    let Summary { dataset, accuracy, cross_entropy, global_step, seconds, final_cost, saved } = summary;
    let mut lines = vec![
        format!("Data: {dataset}"),
        format!("Test-Accuracy: {accuracy:.4} (cross-entropy {cross_entropy:.4})"),
        format!(
            "Total Time: {seconds:.2}s ({global_step} steps, {:.0} steps/s)",
            *global_step as f64 / seconds.max(1e-9)
        ),
        format!("Final Cost: {final_cost:.4}"),
    ];
    lines.extend(saved.iter().map(|path| format!("Saved: {}", path.display())));
    lines.push("done".into());
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_and_results_read_as_people_know_them() {
        let step = StepReport {
            worker: 0,
            local_step: 100,
            global_step: 8900,
            train_steps: 11000,
            epoch: 17,
            batch: 100,
            batches: 550,
            cost: 4.01521,
            average_ms: 59.391,
            examples_per_s: 1684.0,
            milestone: true,
        };
        assert_eq!(
            step_line(&step),
            "Step: 8900,  Epoch: 17,  Batch: 100 of 550,  Cost: 4.0152,  AvgTime: 59.39ms"
        );
        let summary = Summary {
            dataset: "MNIST".into(),
            accuracy: 0.28,
            cross_entropy: 3.2,
            global_step: 11000,
            seconds: 500.0,
            final_cost: 3.3322,
            saved: vec!["runs/1".into()],
        };
        assert_eq!(
            summary_lines(&summary),
            "Data: MNIST\nTest-Accuracy: 0.2800 (cross-entropy 3.2000)\nTotal Time: 500.00s (11000 steps, 22 \
             steps/s)\nFinal Cost: 3.3322\nSaved: runs/1\ndone"
        );
    }
}
