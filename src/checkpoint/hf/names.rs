//! Table of the names and layouts of weights in each family's files, used in both directions.
//!
//! A weight of ours corresponds to one or several tensors of a family: the rows of a fused matrix are
//! separated (queries, keys and values of each key/value head; a gate and a value in turn). GPT-2 also
//! stores its matrices as [in, out].

use super::family::{self, Names};
use base::{Heads, Qkv};
use manifest::Family;
use model::{Param, Weight};

/// Tensor of a family, made of rows of one weight of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HfTensor {
    pub name: String,
    pub shape: Vec<usize>,
    /// Our row of each of its rows; None if it is the whole weight in our order.
    rows: Option<Vec<usize>>,
    /// Whether it is stored as [in, out].
    transposed: bool,
    /// Rows and columns before any transposition; a bias is a column, as its matrix is rows.
    outs: usize,
    ins: usize,
}

/// Layout of a weight's rows in a family's tensors.
enum Rows {
    Whole,
    /// One tensor: all queries, all keys, all values.
    Joined,
    /// Three tensors: queries, keys, values.
    QueryKeyValue,
    /// Two tensors, whose rows alternate in ours.
    InTurn,
}

/// Tensors of the family that together contain all rows of our weight; empty if the family has no such
/// weight. `shape` is that of a checkpoint, without the rows that pad the vocabulary.
pub fn tensors_of(family: Family, param: &Param, shape: &[usize], heads: Heads) -> Vec<HfTensor> {
    let weight = param.spec.weight;
    let column = family::of(family).names;
    let (conv, llama) = (column == Names::Gpt2, column == Names::Llama);
    let rows = match weight {
        Weight::QkvW | Weight::QkvB if llama => Rows::QueryKeyValue,
        Weight::QkvW | Weight::QkvB if conv => Rows::Joined,
        Weight::Fc1W | Weight::Fc1B if llama => Rows::InTurn,
        _ => Rows::Whole,
    };
    let (all, ins) = match *shape {
        [outs] => (outs, 1),
        _ => (shape[0], shape[1]),
    };
    let parts = match rows {
        Rows::Whole => vec![None],
        Rows::Joined => vec![Some(apart(heads).concat())],
        Rows::QueryKeyValue => apart(heads).into_iter().map(Some).collect(),
        Rows::InTurn => (0..2).map(|first| Some((first..all).step_by(2).collect())).collect(),
    };
    use Weight::*;
    let transposed = conv && matches!(weight, QkvW | ProjW | Fc1W | Fc2W);
    let tensor = |(name, rows): (String, Option<Vec<usize>>)| {
        let outs = rows.as_ref().map_or(all, Vec::len);
        let shape = match (shape.len(), transposed) {
            (1, _) => vec![outs],
            (_, true) => vec![ins, outs],
            (_, false) => vec![outs, ins],
        };
        HfTensor { name, shape, rows, transposed, outs, ins }
    };
    names(family, param).into_iter().zip(parts).map(tensor).collect()
}

/// Full names of a weight's tensors; empty if the family has no such weight.
fn names(family: Family, param: &Param) -> Vec<String> {
    use Weight::*;
    let bias = [EmbedLnShift, Ln1Shift, QkvB, ProjB, Ln2Shift, Fc1B, Fc2B, LnfShift];
    let kind = if bias.contains(&param.spec.weight) { "bias" } else { "weight" };
    #[rustfmt::skip]
    let [gpt2, bloom, llama] = match param.spec.weight {
        PosEmbed                    => ["wpe", "", ""],
        TokenEmbed                  => ["wte", "word_embeddings", "embed_tokens"],
        EmbedLnScale | EmbedLnShift => ["", "word_embeddings_layernorm", ""],
        Ln1Scale | Ln1Shift => ["ln_1", "input_layernorm", "input_layernorm"],
        QkvW | QkvB =>
            ["attn.c_attn", "self_attention.query_key_value", "self_attn.{q,k,v}_proj"],
        QNorm               => ["", "", "self_attn.q_norm"],
        KNorm               => ["", "", "self_attn.k_norm"],
        ProjW | ProjB       => ["attn.c_proj", "self_attention.dense", "self_attn.o_proj"],
        Ln2Scale | Ln2Shift => ["ln_2", "post_attention_layernorm", "post_attention_layernorm"],
        Fc1W | Fc1B         => ["mlp.c_fc", "mlp.dense_h_to_4h", "mlp.{gate,up}_proj"],
        Fc2W | Fc2B         => ["mlp.c_proj", "mlp.dense_4h_to_h", "mlp.down_proj"],
        LnfScale | LnfShift => ["ln_f", "ln_f", "norm"],
        HeadW               => ["lm_head", "lm_head", "lm_head"],
    };
    let hf = family::of(family);
    let theirs = match hf.names {
        Names::Gpt2 => gpt2,
        Names::Bloom => bloom,
        Names::Llama => llama,
    };
    if theirs.is_empty() {
        return Vec::new();
    }
    let layer = param.name.strip_prefix("block.").and_then(|rest| rest.split_once('.'));
    let full = |name: String| match (layer, param.spec.weight) {
        (_, HeadW) => format!("{name}.{kind}"),
        (Some((layer, _)), _) => format!("{}{}.{layer}.{name}.{kind}", hf.prefix, hf.layers),
        (None, _) => format!("{}{name}.{kind}", hf.prefix),
    };
    each(theirs).into_iter().map(full).collect()
}

/// Expands `mlp.{gate,up}_proj` to `mlp.gate_proj` and `mlp.up_proj`.
fn each(name: &str) -> Vec<String> {
    let braces = name.split_once('{').and_then(|(before, rest)| {
        let (choices, after) = rest.split_once('}')?;
        Some((before, choices, after))
    });
    let Some((before, choices, after)) = braces else { return vec![name.to_string()] };
    choices.split(',').map(|choice| format!("{before}{choice}{after}")).collect()
}

/// Our fused rows of all queries, of all keys, and of all values, each in the order of heads.
fn apart(heads: Heads) -> Vec<Vec<usize>> {
    let serves = heads.query / heads.kv;
    let of = |which, step: usize| {
        let starts = (0..heads.query).step_by(step).map(move |head| heads.column(head, which));
        starts.flat_map(|start| start..start + heads.dim).collect()
    };
    vec![of(Qkv::Query, 1), of(Qkv::Key, serves), of(Qkv::Value, serves)]
}

impl HfTensor {
    pub fn numel(&self) -> usize {
        self.outs * self.ins
    }

    /// Copies the family's values to their places in our weight.
    pub fn put(&self, theirs: &[f32], ours: &mut [f32]) {
        self.each_row(|row, out| {
            let ours = &mut ours[row * self.ins..][..self.ins];
            match self.transposed {
                true => ours
                    .iter_mut()
                    .zip(theirs[out..].iter().step_by(self.outs))
                    .for_each(|(ours, theirs)| *ours = *theirs),
                false => ours.copy_from_slice(&theirs[out * self.ins..][..self.ins]),
            }
        });
    }

    /// Extracts the family's values from our weight.
    pub fn take(&self, ours: &[f32]) -> Vec<f32> {
        let mut theirs = vec![0.0; self.outs * self.ins];
        self.each_row(|row, out| {
            let ours = &ours[row * self.ins..][..self.ins];
            match self.transposed {
                true => theirs[out..]
                    .iter_mut()
                    .step_by(self.outs)
                    .zip(ours)
                    .for_each(|(theirs, ours)| *theirs = *ours),
                false => theirs[out * self.ins..][..self.ins].copy_from_slice(ours),
            }
        });
        theirs
    }

    /// Calls `each` with our row and the family's.
    fn each_row(&self, mut each: impl FnMut(usize, usize)) {
        (0..self.outs).for_each(|out| each(self.rows.as_ref().map_or(out, |rows| rows[out]), out));
    }
}
