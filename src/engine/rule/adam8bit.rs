//! AdamW with 8-bit moments for the blocks' matrices (Dettmers et al. 2022), quantized in blocks of
//! columns: 2.125 bytes per parameter instead of AdamW's 8.
//!
//! The model's table decides which parameters have 8-bit moments, so that every grid has the same.
//! Embeddings, head, norms, biases, and matrices whose columns do not fill whole blocks have
//! AdamW's states.

use super::adamw::AdamW;
use super::coded::{self, FIRST, SECOND, SavedStates};
use super::{Conversion, OptimizerRule, Step};
use crate::states::{MASTER, MODEL, ParamStates, StateSpec};
use base::DType;
use device::{Coded, InPlace, op};
use manifest::{self, Model, OptimizerName};
use model::ParamSpec;

pub struct Adam8bit {
    adamw: AdamW,
    /// Columns per scale.
    block: usize,
}

impl Adam8bit {
    pub fn new(settings: manifest::Adam8bit, dtype: DType, model: &Model) -> Adam8bit {
        let manifest::Adam8bit { beta1, beta2, eps, weight_decay, clip, block } = settings;
        let adamw = manifest::AdamW { beta1, beta2, eps, weight_decay, clip };
        Adam8bit { adamw: AdamW::new(adamw, dtype, model), block }
    }

    fn is_coded(&self, param: &ParamSpec) -> bool {
        param.is_block_matrix() && param.cols.is_multiple_of(self.block)
    }
}

impl OptimizerRule for Adam8bit {
    fn states(&self, param: &ParamSpec) -> Vec<StateSpec> {
        let mut states = self.adamw.states(param);
        if self.is_coded(param) {
            states.retain(|state| [MODEL, MASTER].contains(&state.name));
            states.extend(
                [FIRST, SECOND]
                    .iter()
                    .flat_map(|moment| moment.coded_states(self.block)),
            );
        }
        states
    }

    fn begin(&self, step: &Step) {
        self.adamw.begin(step);
    }

    fn update(&self, step: &Step, params: &[ParamStates]) {
        let (coded, plain): (Vec<_>, Vec<_>) =
            params.iter().partition(|p| self.is_coded(&p.param.spec));
        self.adamw.update_all(step, plain.into_iter());
        for p in coded.into_iter().filter(|p| !p.part.is_empty()) {
            let [m, v] = [FIRST, SECOND].map(|moment| {
                InPlace(Coded { codes: p.get(moment.codes), scales: p.get(moment.scales) })
            });
            step.be.run(op::Adam8bit {
                rule: self.adamw.constants(step, p),
                scalars: step.scalars,
                grad: p.grad,
                master: InPlace(p.get(MASTER)),
                m,
                v,
                weight: p.get(MODEL).set_unless(p.get(MASTER)),
            });
        }
    }

    fn resumes_from(&self, rule: &str) -> bool {
        rule == OptimizerName::AdamW.name()
    }

    fn convert(&self, state: &StateSpec, saved: SavedStates) -> Option<Conversion> {
        coded::convert(state, self.block, saved)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Engine, Groups};
    use device::Dry;
    use manifest::Manifest;
    use model::{TpSplit, table};

    fn manifest(sets: &[&str]) -> Manifest {
        let text = "
model: {layers: 2, hidden: 128, heads: 4, vocab: 100, seq_len: 8}
data: {train: none}
batch: {micro: 2, global: 2}
lr: {peak: 1e-3}
optimizer: adam8bit
train: {samples: 800}
";
        manifest::for_test(text, sets)
    }

    fn coded_weights(m: &Manifest) -> Vec<&'static str> {
        let rule = super::super::optimizer_rule(m);
        table(&m.model)
            .iter()
            .filter(|spec| rule.states(spec).iter().any(|s| s.dtype == DType::U8))
            .map(|spec| spec.name)
            .collect()
    }

    #[test]
    fn the_matrices_of_blocks_are_in_8_bits_as_far_as_they_are_whole_blocks() {
        let all = ["attn.qkv.weight", "attn.proj.weight", "mlp.fc1.weight", "mlp.fc2.weight"];
        assert_eq!(coded_weights(&manifest(&[])), all);
        assert_eq!(coded_weights(&manifest(&["model.hidden=144"])), ["mlp.fc2.weight"]);
        let smaller = ["model.hidden=144", "optimizer.adam8bit.block=16"];
        assert_eq!(coded_weights(&manifest(&smaller)), all);
    }

    /// The check of the manifest names the weights that the table splits by columns.
    #[test]
    fn the_weights_that_are_cut_by_columns_are_those_of_the_check() {
        let specs = table(&manifest(&[]).model);
        let cut: Vec<(&str, usize)> = specs
            .iter()
            .filter(|s| s.is_block_matrix() && s.split == TpSplit::Cols)
            .map(|spec| (spec.name, spec.cols))
            .collect();
        assert_eq!(cut, [("attn.proj.weight", 128), ("mlp.fc2.weight", 512)]);
    }

    /// Matrices have a master weight, codes and scales; other parameters a master weight and f32
    /// moments.
    #[test]
    fn states_take_as_many_bytes_as_the_table_says() {
        let optimizer = |sets: &[&str]| {
            let m = manifest(&[&["precision=bf16"], sets].concat());
            let (plan, layout) = Engine::plan(&Dry::default(), &Groups::solo(), &m, true);
            let (_, bytes) = plan
                .rows
                .into_iter()
                .find(|(name, _)| *name == "optimizer")
                .unwrap();
            let matrices = layout.params().filter(|param| param.spec.is_block_matrix());
            (bytes.0 as f64, matrices.map(|param| param.numel()).sum::<usize>() as f64)
        };
        let (wide, matrices) = optimizer(&["optimizer=adamw"]);
        for (block, scales) in [("64", 0.125), ("32", 0.25), ("16", 0.5)] {
            let (coded, _) = optimizer(&[&format!("optimizer.adam8bit.block={block}")]);
            assert_eq!(wide - coded, (8.0 - 2.0 - scales) * matrices, "blocks of {block}");
        }
    }
}
