//! The loops that all rules share: one element in, one element out, with 0, 1 or 2 slots.
//!
//! A rule is a function of one element, and no element looks at another, so an update may be made block by
//! block. Nothing here is fused or reordered: the vector form and the scalar form give the same bits.

use super::{New, Old};

/// Makes new values: `rule` gets (gradient, value).
pub(super) fn no_slot(old: Old<'_>, gradient: &[f32], new: New<'_>, rule: impl Fn(f32, f32) -> f32) {
    for ((new, value), gradient) in new.values.iter_mut().zip(old.values).zip(gradient) {
        *new = rule(*gradient, *value);
    }
}

/// Makes new values and the new first slot: `rule` gets (gradient, value, slot).
pub(super) fn one_slot(
    old: Old<'_>,
    gradient: &[f32],
    new: New<'_>,
    rule: impl Fn(f32, f32, f32) -> (f32, f32),
) {
    let [old_slot, _] = old.slots;
    let [new_slot, _] = new.slots;
    debug_assert_eq!([old_slot.len(), new_slot.len()], [gradient.len(); 2]);
    let old = old.values.iter().zip(old_slot);
    let new = new.values.iter_mut().zip(new_slot);
    for (((new_value, new_slot), (value, slot)), gradient) in new.zip(old).zip(gradient) {
        (*new_value, *new_slot) = rule(*gradient, *value, *slot);
    }
}

/// Makes new values and both new slots: `rule` gets (gradient, value, slots).
pub(super) fn two_slots(
    old: Old<'_>,
    gradient: &[f32],
    new: New<'_>,
    rule: impl Fn(f32, f32, [f32; 2]) -> (f32, [f32; 2]),
) {
    let [old_first, old_second] = old.slots;
    let [new_first, new_second] = new.slots;
    debug_assert_eq!([old_first.len(), old_second.len()], [gradient.len(); 2]);
    debug_assert_eq!([new_first.len(), new_second.len()], [gradient.len(); 2]);
    let old = old.values.iter().zip(old_first).zip(old_second);
    let new = new.values.iter_mut().zip(new_first).zip(new_second);
    for ((((new_value, new_first), new_second), ((value, first), second)), gradient) in
        new.zip(old).zip(gradient)
    {
        (*new_value, [*new_first, *new_second]) = rule(*gradient, *value, [*first, *second]);
    }
}
