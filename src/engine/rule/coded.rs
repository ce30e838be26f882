//! Formats of Adam's moments: 32 bits, or codes and scales; and the conversion between them when a
//! checkpoint is read.

use super::Conversion;
use crate::states::{Extent, StateSpec, TensorSlice};
use base::DType;
use device::dynamic_map::{DynamicMap, SIGNED, UNSIGNED};
use std::sync::LazyLock;

/// Type and extent of a parameter's state in a checkpoint, by name; None if it has no such state.
pub type SavedStates<'a> = &'a dyn Fn(&str) -> Option<(DType, Extent)>;

/// Moment of Adam: the names of its states, and the meaning of its codes.
#[derive(Clone, Copy)]
pub struct Moment {
    /// Name of the f32 state.
    pub plain: &'static str,
    pub codes: &'static str,
    /// Name of the scales, one per block of columns.
    pub scales: &'static str,
    map: &'static LazyLock<DynamicMap>,
    /// Whether the codes encode the square root of the moment.
    root: bool,
}

pub const FIRST: Moment = Moment {
    plain: "first_moment",
    codes: "first_codes",
    scales: "first_scales",
    map: &SIGNED,
    root: false,
};

/// The second moment is never negative.
pub const SECOND: Moment = Moment {
    plain: "second_moment",
    codes: "second_codes",
    scales: "second_scales",
    map: &UNSIGNED,
    root: true,
};

impl Moment {
    /// States of the moment in blocks of `block` columns. All zero encodes the moment 0.
    pub fn coded_states(&self, block: usize) -> [StateSpec; 2] {
        let codes = StateSpec { dtype: DType::U8, ..StateSpec::moment(self.codes) };
        let extent = Extent::ColBlocks(block);
        [codes, StateSpec { extent, ..StateSpec::moment(self.scales) }]
    }

    /// States of the moment that a checkpoint has.
    fn saved_states(&self, saved: SavedStates) -> Option<Vec<StateSpec>> {
        let is_saved = |spec: &StateSpec| saved(spec.name) == Some((spec.dtype, spec.extent));
        let plain = StateSpec::moment(self.plain);
        if is_saved(&plain) {
            return Some(vec![plain]);
        }
        let Some((_, Extent::ColBlocks(block))) = saved(self.scales) else { return None };
        let coded = self.coded_states(block);
        coded.iter().all(is_saved).then(|| coded.to_vec())
    }

    /// Decodes part of a parameter's moment from the bytes of saved states.
    fn decode(&self, from: &[StateSpec], part: TensorSlice, bytes: &[Vec<u8>]) -> Vec<f32> {
        let ([_, scales], [codes, scale_bytes]) = (from, bytes) else {
            return DType::F32.widen(&bytes[0]);
        };
        let Extent::ColBlocks(block) = scales.extent else { panic!("scales of blocks") };
        let scale_of = scales.extent.covering_part(part);
        let scales = DType::F32.widen(scale_bytes);
        let [rows, cols] = part.size;
        let mut numbers = Vec::with_capacity(rows * cols);
        for (i, code) in codes.iter().enumerate() {
            let row = part.at[0] + i / cols;
            let col = part.at[1] + i % cols;
            let scale = scales[scale_of.element(row, col / block)];
            let number = self.map.values[*code as usize] * scale;
            numbers.push(if self.root { number * number } else { number });
        }
        numbers
    }

    /// Encodes one state of the moment.
    fn encode(&self, state: &StateSpec, block: usize, mut numbers: Vec<f32>) -> Vec<u8> {
        if state.name == self.plain {
            return bytemuck::cast_slice(&numbers).to_vec();
        }
        if self.root {
            numbers.iter_mut().for_each(|x| *x = x.sqrt());
        }
        let (codes, scales) = self.map.encode(&numbers, block);
        if state.name == self.codes { codes } else { bytemuck::cast_slice(&scales).to_vec() }
    }
}

/// Moments that a checkpoint holds as codes, each with its conversion to 32 bits.
pub fn decoding_conversions(saved: SavedStates) -> Vec<(&'static str, Conversion)> {
    [FIRST, SECOND]
        .iter()
        .filter_map(|Moment { plain, .. }| {
            Some((*plain, convert(&StateSpec::moment(plain), 0, saved)?))
        })
        .collect()
}

/// Conversion to a state of one format, in blocks of `block` columns, from the other format. None
/// if the checkpoint has this format, or neither.
pub fn convert(state: &StateSpec, block: usize, saved: SavedStates) -> Option<Conversion> {
    let moment = [FIRST, SECOND]
        .into_iter()
        .find(|moment| [moment.plain, moment.codes, moment.scales].contains(&state.name))?;
    let from = moment.saved_states(saved)?;
    let state = *state;
    let wanted = if state.name == moment.plain {
        vec![StateSpec::moment(moment.plain)]
    } else {
        moment.coded_states(block).to_vec()
    };
    if from == wanted {
        return None;
    }
    let saved = from.clone();
    let compute = move |part: TensorSlice, bytes: &[Vec<u8>]| {
        moment.encode(&state, block, moment.decode(&saved, part, bytes))
    };
    Some(Conversion { from, compute: Box::new(compute) })
}
