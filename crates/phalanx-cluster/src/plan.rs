//! Which range of which variable lies on which shard.
//!
//! All variables are laid end to end in one flat vector, whole and each in one place, and every shard is
//! one contiguous range of it. [`Placement`] decides the order of the variables and where the cuts are.

use std::{fmt, ops::Range};

/// A named tensor of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variable {
    /// The dotted path of the parameter in the model, such as `hidden.weight`.
    pub name: String,
    /// Its dimensions; a scalar has none.
    pub shape: Vec<usize>,
}

/// How the variables are spread over the parameter servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// Equal ranges of all variables laid end to end: every ps carries the same bytes to within one element.
    #[default]
    Balanced,
    /// Whole variables in turn, as TensorFlow does.
    RoundRobin,
}

/// Where every element of every variable lies; a pure function of the variables and the number of ps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    variables: Vec<Variable>,
    placement: Placement,
    // Where each variable begins in the flat vector, by variable.
    offsets: Vec<usize>,
    // The range of the flat vector that each ps holds, by ps.
    shards: Vec<Range<usize>>,
}

/// A range of one variable on one shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice<'a> {
    /// The variable.
    pub variable: &'a Variable,
    /// Which of its elements.
    pub elements: Range<usize>,
    /// Where the first of them lies in the shard.
    pub offset: usize,
}

/// Why there can be no plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// Nothing to place.
    #[error("the model has no variables")]
    NoVariables,
    /// Nowhere to place it.
    #[error("there is no ps to hold the variables")]
    NoShards,
    /// Two variables of one name.
    #[error("two variables are called '{0}'")]
    DuplicateName(String),
    /// More elements than can be counted.
    #[error("variable '{0}' has a shape whose size overflows")]
    TooLarge(String),
}

impl Variable {
    /// The number of elements, or `None` if it overflows.
    pub fn checked_len(&self) -> Option<usize> {
        self.shape.iter().try_fold(1usize, |len, dimension| len.checked_mul(*dimension))
    }

    fn len(&self) -> usize {
        self.shape.iter().product()
    }
}

impl Plan {
    /// Cuts `variables` into one shard for each of `ps_count` parameter servers.
    pub fn new(variables: Vec<Variable>, placement: Placement, ps_count: usize) -> Result<Self, PlanError> {
        if variables.is_empty() {
            return Err(PlanError::NoVariables);
        }
        if ps_count == 0 {
            return Err(PlanError::NoShards);
        }
        let mut total = 0usize;
        let mut names = std::collections::HashSet::new();
        for variable in &variables {
            if !names.insert(variable.name.as_str()) {
                return Err(PlanError::DuplicateName(variable.name.clone()));
            }
            // Four bytes for each element must be countable too.
            let too_large = || PlanError::TooLarge(variable.name.clone());
            total = variable.checked_len().and_then(|len| total.checked_add(len)).ok_or_else(too_large)?;
            total.checked_mul(size_of::<f32>()).ok_or_else(too_large)?;
        }

        // The variables of shard 0 first, then those of shard 1, ...; in the order of the model within each.
        let order: Vec<usize> = match placement {
            Placement::Balanced => (0..variables.len()).collect(),
            Placement::RoundRobin => {
                (0..ps_count).flat_map(|ps| (ps..variables.len()).step_by(ps_count)).collect()
            }
        };
        let mut offsets = vec![0; variables.len()];
        let mut next = 0;
        for variable in order {
            offsets[variable] = next;
            next += variables[variable].len();
        }
        let cut = |ps: usize| match placement {
            // In 128 bits, since total * ps_count may not fit into 64.
            Placement::Balanced => (total as u128 * ps as u128 / ps_count as u128) as usize,
            Placement::RoundRobin => offsets.get(ps).copied().unwrap_or(total),
        };
        let shards =
            (0..ps_count).map(|ps| cut(ps)..if ps + 1 == ps_count { total } else { cut(ps + 1) }).collect();
        Ok(Self { variables, placement, offsets, shards })
    }

    /// The variables, in the order of the model.
    pub fn variables(&self) -> &[Variable] {
        &self.variables
    }

    /// How the variables were spread.
    pub fn placement(&self) -> Placement {
        self.placement
    }

    /// The number of elements of all variables together.
    pub fn len(&self) -> usize {
        self.shards.last().map_or(0, |last| last.end)
    }

    /// Whether the variables have no elements at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The range of the flat vector that each ps holds, by ps.
    pub fn shards(&self) -> &[Range<usize>] {
        &self.shards
    }

    /// The range of the flat vector that each variable takes up, in the order of the model.
    pub fn variable_ranges(&self) -> impl Iterator<Item = (&Variable, Range<usize>)> {
        self.variables.iter().zip(&self.offsets).map(|(variable, &at)| (variable, at..at + variable.len()))
    }

    /// What lies on the shard of one ps, in the order of its vector.
    pub fn slices(&self, ps: usize) -> Vec<Slice<'_>> {
        let Some(shard) = self.shards.get(ps) else { return Vec::new() };
        let overlap = |(variable, range): (_, Range<usize>)| {
            let (start, end) = (range.start.max(shard.start), range.end.min(shard.end));
            (start < end).then(|| Slice {
                variable,
                elements: start - range.start..end - range.start,
                offset: start - shard.start,
            })
        };
        let mut slices: Vec<_> = self.variable_ranges().filter_map(overlap).collect();
        slices.sort_by_key(|slice| slice.offset);
        slices
    }

    /// A name for one element of a shard, such as `hidden.weight[12,3]`.
    pub fn name_of(&self, ps: usize, element: usize) -> String {
        for Slice { variable, elements, offset } in self.slices(ps) {
            if (offset..offset + elements.len()).contains(&element) {
                let mut rest = elements.start + (element - offset);
                let mut index = Vec::new();
                for dimension in variable.shape.iter().rev() {
                    index.push((rest % dimension).to_string());
                    rest /= dimension;
                }
                index.reverse();
                return format!("{}[{}]", variable.name, index.join(","));
            }
        }
        format!("element {element} of shard {ps}")
    }

    /// A short text that differs whenever two plans differ.
    pub fn hash(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        hasher.update(format!("{} {}", self.placement, self.shards.len()).as_bytes());
        for variable in &self.variables {
            hasher.update(format!("\n{}{:?}", variable.name, variable.shape).as_bytes());
        }
        hasher.finalize().to_hex().as_str()[..16].to_string()
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { variables, placement, shards, .. } = self;
        write!(
            f,
            "{} variables, {} parameters, {placement} over {} ps",
            variables.len(),
            self.len(),
            shards.len()
        )
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Balanced => "balanced",
            Self::RoundRobin => "round-robin",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn variable(name: &str, shape: &[usize]) -> Variable {
        Variable { name: name.into(), shape: shape.into() }
    }

    fn mlp() -> Vec<Variable> {
        vec![
            variable("hidden.weight", &[784, 100]),
            variable("hidden.bias", &[100]),
            variable("output.weight", &[100, 10]),
            variable("output.bias", &[10]),
        ]
    }

    #[test]
    fn balanced_cuts_through_variables() {
        let plan = Plan::new(mlp(), Placement::Balanced, 2).unwrap();
        assert_eq!(plan.shards(), [0..39755, 39755..79510]);
        let names = |ps| plan.slices(ps).iter().map(|s| s.variable.name.clone()).collect::<Vec<_>>();
        assert_eq!(names(0), ["hidden.weight"]);
        assert_eq!(names(1), ["hidden.weight", "hidden.bias", "output.weight", "output.bias"]);
        assert_eq!(plan.name_of(1, 0), "hidden.weight[397,55]");
        assert_eq!(plan.name_of(1, 39754), "output.bias[9]");
    }

    #[test]
    fn round_robin_keeps_variables_whole() {
        let plan = Plan::new(mlp(), Placement::RoundRobin, 2).unwrap();
        assert_eq!(plan.shards(), [0..79400, 79400..79510]);
        let names = |ps| plan.slices(ps).iter().map(|s| s.variable.name.clone()).collect::<Vec<_>>();
        assert_eq!(names(0), ["hidden.weight", "output.weight"]);
        assert_eq!(names(1), ["hidden.bias", "output.bias"]);
        assert_eq!(plan.name_of(1, 100), "output.bias[0]");
    }

    #[test]
    fn more_ps_than_variables_leaves_shards_empty() {
        for placement in [Placement::Balanced, Placement::RoundRobin] {
            let plan = Plan::new(vec![variable("b", &[2])], placement, 4).unwrap();
            assert_eq!(plan.shards().iter().map(ExactSizeIterator::len).sum::<usize>(), 2);
        }
    }

    #[test]
    fn plans_that_differ_have_other_hashes() {
        let hash = |variables, placement, ps| Plan::new(variables, placement, ps).unwrap().hash();
        let base = hash(mlp(), Placement::Balanced, 2);
        assert_eq!(base, hash(mlp(), Placement::Balanced, 2));
        assert_ne!(base, hash(mlp(), Placement::Balanced, 3));
        assert_ne!(base, hash(mlp(), Placement::RoundRobin, 2));
        assert_ne!(base, hash(mlp().into_iter().rev().collect(), Placement::Balanced, 2));
    }

    #[test]
    fn impossible_plans_are_refused() {
        let plan = |variables, ps| Plan::new(variables, Placement::Balanced, ps).unwrap_err().to_string();
        assert!(plan(vec![], 1).contains("no variables"));
        assert!(plan(mlp(), 0).contains("no ps"));
        assert!(plan(vec![variable("a", &[1]), variable("a", &[2])], 1).contains("'a'"));
        assert!(plan(vec![variable("a", &[usize::MAX, 2])], 1).contains("overflows"));
    }

    proptest! {
        #[test]
        fn every_element_lies_on_exactly_one_shard(
            lens in proptest::collection::vec(0usize..50, 1..12), ps in 1usize..9, round_robin: bool,
        ) {
            let variables = lens.iter().enumerate().map(|(i, &len)| variable(&format!("v{i}"), &[len])).collect();
            let placement = if round_robin { Placement::RoundRobin } else { Placement::Balanced };
            let plan = Plan::new(variables, placement, ps).unwrap();
            let mut seen: Vec<Vec<u32>> = lens.iter().map(|&len| vec![0; len]).collect();
            for shard in 0..ps {
                let mut offset = 0;
                for slice in plan.slices(shard) {
                    prop_assert_eq!(slice.offset, offset);
                    offset += slice.elements.len();
                    let index: usize = slice.variable.name[1..].parse().unwrap();
                    for element in slice.elements { seen[index][element] += 1; }
                }
                prop_assert_eq!(offset, plan.shards()[shard].len());
            }
            prop_assert!(seen.iter().flatten().all(|&count| count == 1));
            if !round_robin {
                let sizes: Vec<_> = plan.shards().iter().map(ExactSizeIterator::len).collect();
                prop_assert!(sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= 1);
            }
        }
    }
}
