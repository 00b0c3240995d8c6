//! The parameters on disk.

use anyhow::Context;
use phalanx_cluster::Plan;
use safetensors::{Dtype, tensor::TensorView};
use serde::Serialize;
use std::{
    fs::{self, File, Permissions},
    io::{BufWriter, Write},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

const MODEL: &str = "model.safetensors";
const STATE: &str = "state.json";

/// What a checkpoint is of; written last, so that a folder with it is whole.
#[derive(Serialize)]
struct State {
    global_step: u64,
    parameters: usize,
    plan: String,
    blake3: [(&'static str, String); 1],
}

/// Saves the flat vector of the plan as `checkpoint-<step>/` in `folder`, whole or not at all.
pub fn save(folder: &Path, global_step: u64, plan: &Plan, values: &[f32]) -> anyhow::Result<PathBuf> {
    let target = folder.join(format!("checkpoint-{global_step:09}"));
    let save = || -> anyhow::Result<()> {
        // As open as the user's umask allows: temporary folders are private, results are not.
        let unfinished = tempfile::Builder::new()
            .prefix(".checkpoint-")
            .permissions(Permissions::from_mode(0o777))
            .tempdir_in(folder)?;
        let model = serialize(plan, values)?;
        write(&unfinished.path().join(MODEL), &model)?;
        let state = State {
            global_step,
            parameters: plan.len(),
            plan: plan.hash(),
            blake3: [(MODEL, blake3::hash(&model).to_hex().to_string())],
        };
        write(&unfinished.path().join(STATE), &serde_json::to_vec_pretty(&state)?)?;
        sync(unfinished.path())?;
        fs::rename(unfinished.path(), &target)?;
        sync(folder)
    };
    save().with_context(|| format!("cannot save {}", target.display()))?;
    Ok(target)
}

/// Saves the weights of the last layer as `<name>.csv` in `folder`, a line for each input.
pub fn save_last_layer(folder: &Path, name: &str, plan: &Plan, values: &[f32]) -> anyhow::Result<PathBuf> {
    let target = folder.join(format!("{name}.csv"));
    let save = || -> anyhow::Result<()> {
        let matrices = plan.variable_ranges().filter(|(variable, _)| variable.shape.len() == 2);
        let (variable, range) = matrices.last().context("the model has no matrix of weights")?;
        let columns = variable.shape.last().copied().unwrap_or(1).max(1);
        let unfinished =
            tempfile::Builder::new().permissions(Permissions::from_mode(0o666)).tempfile_in(folder)?;
        let mut file = BufWriter::new(unfinished);
        for row in values.get(range).unwrap_or_default().chunks(columns) {
            let row: Vec<String> = row.iter().map(ToString::to_string).collect();
            writeln!(file, "{}", row.join(","))?;
        }
        let file = file.into_inner()?;
        file.as_file().sync_all()?;
        file.persist(&target)?;
        Ok(())
    };
    save().with_context(|| format!("cannot save {}", target.display()))?;
    Ok(target)
}

fn serialize(plan: &Plan, values: &[f32]) -> anyhow::Result<Vec<u8>> {
    let mut tensors = Vec::with_capacity(plan.variables().len());
    for (variable, range) in plan.variable_ranges() {
        let values = values.get(range).context("the values do not fit the plan")?;
        let view = TensorView::new(Dtype::F32, variable.shape.clone(), bytemuck::cast_slice(values))?;
        tensors.push((variable.name.as_str(), view));
    }
    Ok(safetensors::serialize(tensors, None)?)
}

fn write(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    Ok(file.sync_all()?)
}

fn sync(folder: &Path) -> anyhow::Result<()> {
    Ok(File::open(folder)?.sync_all()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use phalanx_cluster::{Placement, Variable};
    use safetensors::SafeTensors;

    fn plan() -> Plan {
        let variable = |name: &str, shape: &[usize]| Variable { name: name.into(), shape: shape.into() };
        Plan::new(vec![variable("w", &[2, 2]), variable("b", &[1])], Placement::RoundRobin, 2).unwrap()
    }

    #[test]
    fn what_is_saved_can_be_read_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let saved = save(folder.path(), 12, &plan(), &[1.0, 2.0, 3.0, 4.0, 5.0]).unwrap();
        assert_eq!(saved, folder.path().join("checkpoint-000000012"));
        let bytes = fs::read(saved.join(MODEL)).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let values = |name| bytemuck::pod_collect_to_vec::<u8, f32>(tensors.tensor(name).unwrap().data());
        assert_eq!(tensors.tensor("w").unwrap().shape(), [2, 2]);
        assert_eq!((values("w"), values("b")), (vec![1.0, 2.0, 3.0, 4.0], vec![5.0]));
        let state = fs::read_to_string(saved.join(STATE)).unwrap();
        assert!(state.contains(&blake3::hash(&bytes).to_hex().to_string()), "{state}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing else is left");
    }

    #[test]
    fn the_last_layer_is_a_line_for_each_input() {
        let folder = tempfile::tempdir().unwrap();
        let saved = save_last_layer(folder.path(), "weights", &plan(), &[1.0, 2.5, 3.0, 4.0, 5.0]).unwrap();
        assert_eq!(fs::read_to_string(saved).unwrap(), "1,2.5\n3,4\n");
    }

    #[test]
    fn a_save_that_fails_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let error = save(folder.path(), 1, &plan(), &[1.0]).unwrap_err();
        assert!(format!("{error:#}").contains("checkpoint-000000001"), "{error:#}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
