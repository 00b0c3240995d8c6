//! The duties of one worker for all: at the end, judge the model, save it and say so.

use crate::{
    checkpoint, device,
    job::{Evaluation, Job},
    meter::Totals,
    params,
    report::{Event, Summary},
    worker::Worker,
};
use phalanx_cluster::Plan;
use phalanx_ps::Values;

/// Evaluates the final values, saves them, and reports how the run ended.
pub fn finish<J: Job>(
    job: &J,
    worker: &Worker,
    plan: &Plan,
    values: &Values,
    totals: Totals,
) -> anyhow::Result<()> {
    let device = device::inference();
    let model = params::load(job.model(&device), plan, values, &device);
    let Evaluation { accuracy, cross_entropy } = job.evaluate(&model, &device);
    let Totals { global_step, seconds, final_cost } = totals;

    let folder = worker.run_dir.open()?;
    let mut saved = vec![checkpoint::save(&folder, global_step, plan, values.as_slice())?];
    if let Some(name) = &worker.settings.weights_name {
        // The model is saved: that this cannot be is no reason to keep quiet about the result.
        match checkpoint::save_last_layer(&folder, name, plan, values.as_slice()) {
            Ok(path) => saved.push(path),
            Err(error) => worker.report.warning(format!("{error:#}")),
        }
    }
    let dataset = worker.dataset.clone();
    worker.report.event(Event::Done(Summary {
        dataset,
        accuracy,
        cross_entropy,
        global_step,
        seconds,
        final_cost,
        saved,
    }));
    Ok(())
}
