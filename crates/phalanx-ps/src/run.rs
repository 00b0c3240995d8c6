//! What all tasks of a run must agree on.

use crate::{optimizer::Optimizer, wire};
use phalanx_cluster::{Placement, Plan, Variable};
use std::collections::BTreeMap;

/// The definition of a run. A ps learns it from the first worker that comes, and refuses workers that
/// were started with another.
#[derive(Clone, Debug, PartialEq)]
pub struct RunSpec {
    /// The variables and where they lie.
    pub plan: Plan,
    /// How the ps applies gradients.
    pub optimizer: Optimizer,
    /// After how many updates the run is over.
    pub train_steps: u64,
    /// Settings that only the workers understand, such as the batch size, by name.
    pub settings: BTreeMap<String, String>,
}

impl RunSpec {
    /// Every setting that differs, with both values, or nothing.
    pub fn differences(&self, theirs: &Self) -> Option<String> {
        let mut found = Vec::new();
        let mut compare = |name: &str, ours: String, theirs: String| {
            if ours != theirs {
                found.push(format!("{name} is {ours} here and {theirs} there"));
            }
        };
        let plan = |run: &Self| format!("{} (hash {})", run.plan, run.plan.hash());
        compare("the plan", plan(self), plan(theirs));
        compare("the optimizer", self.optimizer.to_string(), theirs.optimizer.to_string());
        compare("train_steps", self.train_steps.to_string(), theirs.train_steps.to_string());
        let names: std::collections::BTreeSet<_> =
            self.settings.keys().chain(theirs.settings.keys()).collect();
        for name in names {
            let value = |run: &Self| run.settings.get(name).cloned().unwrap_or_else(|| "not set".into());
            compare(name, value(self), value(theirs));
        }
        (!found.is_empty()).then(|| found.join("; "))
    }

    pub(crate) fn to_wire(&self) -> wire::Run {
        let variable = |variable: &Variable| wire::Variable {
            name: variable.name.clone(),
            shape: variable.shape.iter().map(|&dimension| dimension as u64).collect(),
        };
        wire::Run {
            variables: self.plan.variables().iter().map(variable).collect(),
            placement: self.plan.placement().to_string(),
            plan_hash: self.plan.hash(),
            optimizer: Some(self.optimizer.to_wire()),
            train_steps: self.train_steps,
            settings: self.settings.clone().into_iter().collect(),
        }
    }

    pub(crate) fn from_wire(run: Option<wire::Run>, ps_count: usize) -> Result<Self, String> {
        let run = run.ok_or("the run is missing")?;
        let placement = [Placement::Balanced, Placement::RoundRobin]
            .into_iter()
            .find(|placement| placement.to_string() == run.placement)
            .ok_or_else(|| format!("the placement '{}' is unknown", run.placement))?;
        let variable = |variable: wire::Variable| {
            let shape = variable.shape.iter().map(|&dimension| usize::try_from(dimension).ok());
            let shape = shape.collect::<Option<_>>();
            let shape = shape.ok_or_else(|| format!("the shape of '{}' is too large", variable.name))?;
            Ok::<_, String>(Variable { name: variable.name, shape })
        };
        let variables = run.variables.into_iter().map(variable).collect::<Result<_, _>>()?;
        let plan = Plan::new(variables, placement, ps_count).map_err(|error| error.to_string())?;
        if plan.hash() != run.plan_hash {
            return Err(format!("the plan has hash {} here and {} there", plan.hash(), run.plan_hash));
        }
        let optimizer = Optimizer::from_wire(run.optimizer)?;
        Ok(Self {
            plan,
            optimizer,
            train_steps: run.train_steps,
            settings: run.settings.into_iter().collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optimizer::Rule;

    fn run(learning_rate: f64, batch: &str) -> RunSpec {
        let variables = vec![Variable { name: "w".into(), shape: vec![2, 3] }];
        RunSpec {
            plan: Plan::new(variables, Placement::Balanced, 1).unwrap(),
            optimizer: Optimizer::new(Rule::Sgd, learning_rate),
            train_steps: 10,
            settings: [("batch_size".to_string(), batch.to_string())].into(),
        }
    }

    #[test]
    fn a_run_survives_the_wire() {
        let there = RunSpec::from_wire(Some(run(0.5, "100").to_wire()), 1).unwrap();
        assert_eq!(there, run(0.5, "100"));
        assert_eq!(run(0.5, "100").differences(&there), None);
        let error = RunSpec::from_wire(Some(run(0.5, "100").to_wire()), 2).unwrap_err();
        assert!(error.contains("hash"), "{error}");
    }

    #[test]
    fn what_differs_is_named_with_both_values() {
        let text = run(0.5, "100").differences(&run(0.1, "50")).unwrap();
        assert!(text.contains("learning rate 0.5 here and sgd with learning rate 0.1 there"), "{text}");
        assert!(text.contains("batch_size is 100 here and 50 there"), "{text}");
    }
}
