//! The only place where a Burn module and flat vectors of f32 meet.
//!
//! A model's parameters are visited in the order of its fields; the plan says where each lies in the flat
//! vector. On the CPU nothing is copied: gradients leave as the buffers that `backward` made, and values
//! come in as slices of the vector that was received.

use burn::{
    module::{Module, ModuleMapper, ModuleVisitor, Param},
    tensor::{AllocationProperty, Bytes as BurnBytes, DType, Device, Gradients, Tensor, TensorData},
};
use bytes::Bytes;
use phalanx_cluster::{Plan, Variable};
use phalanx_ps::{FlatPart, Values};
use std::ops::Range;

/// The parameters of a model, by their dotted names.
pub fn variables<M: Module>(model: &M) -> Vec<Variable> {
    #[derive(Default)]
    struct Names {
        path: Vec<String>,
        found: Vec<Variable>,
    }
    impl ModuleVisitor for Names {
        fn enter_module(&mut self, name: &str, container: &str) {
            // Which variant of an enum a model is, is not part of its parameters' names.
            if !container.starts_with("Enum:") {
                self.path.push(name.into());
            }
        }
        fn exit_module(&mut self, _: &str, container: &str) {
            if !container.starts_with("Enum:") {
                self.path.pop();
            }
        }
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.found.push(Variable { name: self.path.join("."), shape: param.lazy_shape().to_vec() });
        }
    }
    let mut names = Names::default();
    model.visit(&mut names);
    names.found
}

/// The values of all parameters as one flat vector, laid out by the plan.
pub fn values<M: Module>(model: &M, plan: &Plan) -> Vec<f32> {
    struct Collect<'a> {
        ranges: &'a mut dyn Iterator<Item = Range<usize>>,
        flat: Vec<f32>,
    }
    impl ModuleVisitor for Collect<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let bytes = f32_bytes(param.val().into_data());
            if let Some(place) = self.ranges.next().and_then(|range| self.flat.get_mut(range)) {
                bytemuck::cast_slice_mut(place).copy_from_slice(&bytes);
            }
        }
    }
    let ranges = &mut plan.variable_ranges().map(|(_, range)| range);
    let mut collect = Collect { ranges, flat: vec![0.0; plan.len()] };
    model.visit(&mut collect);
    collect.flat
}

/// The model with these values, without copying them where the device is the CPU.
pub fn load<M: Module>(model: M, plan: &Plan, values: &Values, device: &Device) -> M {
    struct Load<'a> {
        ranges: &'a mut dyn Iterator<Item = Range<usize>>,
        values: &'a Bytes,
        device: &'a Device,
    }
    impl ModuleMapper for Load<'_> {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            let Some(range) = self.ranges.next() else { return param };
            let shape = param.lazy_shape();
            let slice = self.values.slice(range.start * size_of::<f32>()..range.end * size_of::<f32>());
            let bytes = BurnBytes::from_shared(slice, AllocationProperty::Other);
            let data = TensorData::from_bytes(bytes, shape, DType::F32);
            let tensor = Tensor::from_data(data, self.device);
            Param::initialized(
                param.id,
                if self.device.is_autodiff() { tensor.require_grad() } else { tensor },
            )
        }
    }
    let ranges = &mut plan.variable_ranges().map(|(_, range)| range);
    model.map(&mut Load { ranges, values: values.as_bytes(), device })
}

/// The gradients of all parameters, in the order of the plan.
pub fn gradients<M: Module>(model: &M, plan: &Plan, gradients: Gradients) -> Vec<FlatPart> {
    struct Take<'a> {
        ranges: &'a mut dyn Iterator<Item = Range<usize>>,
        gradients: Gradients,
        parts: Vec<FlatPart>,
    }
    impl ModuleVisitor for Take<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let Some(range) = self.ranges.next() else { return };
            let data = match param.val().grad_remove(&mut self.gradients) {
                Some(gradient) => Bytes::from_owner(Owner(f32_bytes(gradient.into_data()))),
                // The loss does not depend on this parameter.
                None => Bytes::from(vec![0; range.len() * size_of::<f32>()]),
            };
            self.parts.push(FlatPart { start: range.start, data });
        }
    }
    let ranges = &mut plan.variable_ranges().map(|(_, range)| range);
    let mut take = Take { ranges, gradients, parts: Vec::with_capacity(plan.variables().len()) };
    model.visit(&mut take);
    take.parts.sort_by_key(|part| part.start);
    take.parts
}

fn f32_bytes(data: TensorData) -> BurnBytes {
    let data = if data.dtype() == DType::F32 { data } else { data.convert::<f32>() };
    data.into_parts().0
}

/// A buffer that Burn made, for the network to send as it is.
struct Owner(BurnBytes);

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}
