//! Tensors of an index of format 1, which named the states of AdamW as fields. Converts them to the
//! current form.

use super::{Copied, Tensor, TensorState};
use crate::digest::Digest;
use engine::{MASTER, MODEL, Replica};
use serde::Deserialize;
use std::collections::BTreeMap;

/// Tensor of the current format, or of format 1.
#[derive(Deserialize)]
pub struct AnyTensor {
    name: String,
    shape: Vec<usize>,
    decay: bool,
    #[serde(default)]
    states: BTreeMap<String, TensorState>,
    #[serde(default)]
    copies: Vec<Copied>,
    #[serde(flatten)]
    old: AdamWStates<TensorState>,
}

/// Copy in the current format, or in format 1.
#[derive(Deserialize)]
pub struct AnyCopied {
    replica: Replica,
    #[serde(default)]
    states: BTreeMap<String, Digest>,
    #[serde(flatten)]
    old: AdamWStates<Digest>,
}

/// States of format 1: AdamW's, one by one.
#[derive(Deserialize)]
struct AdamWStates<T> {
    live: Option<T>,
    master: Option<T>,
    first_moment: Option<T>,
    second_moment: Option<T>,
}

impl<T> AdamWStates<T> {
    fn named(self) -> impl Iterator<Item = (String, T)> {
        let moments = [("first_moment", self.first_moment), ("second_moment", self.second_moment)];
        let all = [(MODEL, self.live), (MASTER, self.master)]
            .into_iter()
            .chain(moments);
        all.filter_map(|(name, state)| Some((name.to_string(), state?)))
    }
}

impl From<AnyTensor> for Tensor {
    fn from(any: AnyTensor) -> Tensor {
        let AnyTensor { name, shape, decay, mut states, copies, old } = any;
        states.extend(old.named());
        Tensor { name, shape, decay, states, copies }
    }
}

impl From<AnyCopied> for Copied {
    fn from(AnyCopied { replica, mut states, old }: AnyCopied) -> Copied {
        states.extend(old.named());
        Copied { replica, states }
    }
}
