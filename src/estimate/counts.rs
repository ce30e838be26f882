//! Number of parameters of a rank, from the model's own table of weights.

use manifest::Model;
use model::{Module, TpSplit, table};

/// Parameters of one rank under tensor parallelism.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counts {
    pub embed: f64,
    pub block: f64,
    pub head: f64,
    /// The embedding's token table, which the last stage repeats under a tied head.
    pub tokens: f64,
}

impl Counts {
    pub fn new(model: &Model, tensor: usize) -> Counts {
        let mut counts = Counts::default();
        for spec in table(model) {
            let whole = spec.rows as f64 * spec.cols as f64;
            let share = if spec.split == TpSplit::Whole { whole } else { whole / tensor as f64 };
            match spec.module {
                Module::Embed => counts.embed += share,
                Module::Block => counts.block += share,
                Module::Head | Module::TiedCopy => counts.head += share,
            }
            if spec.vocab && spec.module == Module::Embed {
                counts.tokens = share;
            }
        }
        counts
    }

    /// Parameters of a stage with `layers` layers.
    pub fn stage(&self, model: &Model, layers: usize, first: bool, last: bool) -> f64 {
        let copy = if last && !first && model.tied_head { self.tokens } else { 0.0 };
        let embed = if first { self.embed } else { 0.0 };
        let head = if last { self.head } else { 0.0 };
        layers as f64 * self.block + embed + head + copy
    }
}
