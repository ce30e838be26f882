//! Models with a mixture of experts, and degrees of parallelism, which other programs have and gptrain does
//! not yet: their parameters and FLOPs, for plans of those programs.
//!
//! A manifest cannot declare them, because `gptrain run` could not train it: the shape comes from a
//! config.json (`config`) or from the table of published ones (`published`), the degrees from
//! `--set topology.expert=8`.

pub mod config;
mod setup;
mod degrees;
pub mod published;

pub use degrees::{Degrees, KEYS, USUAL, is_setting};

use super::counts::Counts;
use manifest::Model;
use model::{TpSplit, parameters};

/// Mixture of experts: everything about a layer that the dense model beside it, which has the layers, the
/// width, the heads and the vocabulary, does not say.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mixture {
    /// Experts of a layer, and the number of them that each token uses.
    pub experts: usize,
    pub chosen: usize,
    /// Inner width of an expert.
    pub width: usize,
    /// Inner width of all shared experts, which every token uses; 0 without.
    pub shared: usize,
    /// Number of first layers without experts, and the inner width of their feed-forward layer.
    pub dense_layers: usize,
    pub dense_width: usize,
    /// Whether the router and the experts add biases.
    pub biases: bool,
    pub attention: Attention,
}

/// Attention of a layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Attention {
    /// Groups of heads, as in dense models.
    Grouped(Grouped),
    /// Keys and values from a latent vector (DeepSeek-V2, 2024).
    Latent(Latent),
}

/// Parameters of grouped attention in addition to its matrices.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Grouped {
    pub norm: Norm,
    pub biases: bool,
    /// Whether each head has a learned logit without a key.
    pub sinks: bool,
}

/// Norm of queries and keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Norm {
    #[default]
    None,
    /// One for all heads, as wide as a head.
    Head,
    /// As wide as all heads.
    Whole,
}

/// Widths of latent attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Latent {
    /// Latent vector of the queries; None if they come from the hidden vector.
    pub query_rank: Option<usize>,
    pub rank: usize,
    /// Columns of a head: of queries and keys without and with rotary positions, and of values.
    pub plain: usize,
    pub rotary: usize,
    pub value: usize,
}

impl Latent {
    /// Columns of a head that cost attention as much as its two widths do: their mean.
    pub fn head_dim(self) -> usize {
        (self.plain + self.rotary + self.value) / 2
    }
}

/// Matrix [outputs, inputs], and how tensor ranks share it.
pub type Matrix = (usize, usize, TpSplit);

impl Mixture {
    /// Inner width of a dense feed-forward layer with the products of a token's experts.
    pub fn active_width(&self) -> usize {
        self.chosen * self.width + self.shared
    }

    /// Matrices of attention.
    pub fn attention_matrices(&self, m: &Model) -> Vec<Matrix> {
        let h = m.hidden;
        match self.attention {
            Attention::Grouped(_) => {
                let heads = m.heads();
                let query = heads.query_width();
                let keys = 2 * heads.kv * heads.dim;
                vec![(query + keys, h, TpSplit::Rows), (h, query, TpSplit::Cols)]
            }
            Attention::Latent(Latent { query_rank, rank, plain, rotary, value }) => {
                let queries = m.heads * (plain + rotary);
                let mut all = match query_rank {
                    Some(own) => vec![(own, h, TpSplit::Whole), (queries, own, TpSplit::Rows)],
                    None => vec![(queries, h, TpSplit::Rows)],
                };
                all.push((rank + rotary, h, TpSplit::Whole));
                all.push((m.heads * (plain + value), rank, TpSplit::Rows));
                all.push((h, m.heads * value, TpSplit::Cols));
                all
            }
        }
    }

    /// Matrices of a layer that every token uses on its own rank: attention's, the router, shared experts.
    pub fn own_matrices(&self, m: &Model) -> Vec<Matrix> {
        let mut all = self.attention_matrices(m);
        all.push((self.experts, m.hidden, TpSplit::Whole));
        if self.shared > 0 {
            all.push((2 * self.shared, m.hidden, TpSplit::Rows));
            all.push((m.hidden, self.shared, TpSplit::Cols));
        }
        all
    }

    /// The two matrices of an expert: gate and value rows, and the way back.
    pub fn expert_matrices(&self, m: &Model) -> [(usize, usize); 2] {
        [(2 * self.width, m.hidden), (m.hidden, self.width)]
    }

    /// Parameters of an expert.
    pub fn expert(&self, m: &Model) -> f64 {
        let biases = if self.biases { 2 * self.width + m.hidden } else { 0 };
        (3 * m.hidden * self.width + biases) as f64
    }

    /// Vectors of a layer: norms, biases and sinks.
    fn vectors(&self, m: &Model) -> usize {
        let heads = m.heads();
        let (query, kv) = (heads.query_width(), heads.kv * heads.dim);
        let own = match self.attention {
            Attention::Grouped(Grouped { norm, biases, sinks }) => {
                let norms = match norm {
                    Norm::None => 0,
                    Norm::Head => 2 * heads.dim,
                    Norm::Whole => query + kv,
                };
                let biases = if biases { query + 2 * kv + m.hidden } else { 0 };
                norms + biases + if sinks { m.heads } else { 0 }
            }
            Attention::Latent(latent) => latent.query_rank.unwrap_or(0) + latent.rank,
        };
        own + 2 * m.hidden
    }

    /// Whether a layer has experts.
    pub fn is_sparse(&self, layer: usize) -> bool {
        layer >= self.dense_layers
    }

    /// Parameters of a layer on one of `tensor` ranks, without those of its experts.
    pub fn layer(&self, m: &Model, layer: usize, tensor: usize) -> f64 {
        let share = |(rows, cols, split): Matrix| {
            let ranks = if split == TpSplit::Whole { 1 } else { tensor };
            (rows * cols) as f64 / ranks as f64
        };
        let vectors = self.vectors(m) as f64;
        if !self.is_sparse(layer) {
            let attention = self.attention_matrices(m).into_iter().map(share);
            let dense = (3 * m.hidden * self.dense_width) as f64 / tensor as f64;
            return vectors + attention.sum::<f64>() + dense;
        }
        let router = if self.biases { self.experts as f64 } else { 0.0 };
        vectors + router + self.own_matrices(m).into_iter().map(share).sum::<f64>()
    }

    /// Number of layers with experts.
    pub fn sparse_layers(&self, m: &Model) -> usize {
        m.layers.saturating_sub(self.dense_layers)
    }

    /// Parameters of all experts of the model.
    pub fn all_experts(&self, m: &Model) -> f64 {
        (self.sparse_layers(m) * self.experts) as f64 * self.expert(m)
    }

    /// Parameters of all layers.
    pub fn layers(&self, m: &Model) -> f64 {
        let own = (0..m.layers).map(|layer| self.layer(m, layer, 1));
        own.sum::<f64>() + self.all_experts(m)
    }

    /// Parameters of the whole model, whose dense part is `m`.
    pub fn parameters(&self, m: &Model) -> u64 {
        let dense = Counts::new(m, 1).block * m.layers as f64;
        (parameters(m) as f64 - dense + self.layers(m)) as u64
    }

    /// Parameters that a token uses: those of its experts, and of everything else.
    pub fn active(&self, m: &Model) -> f64 {
        let unused = 1.0 - self.chosen as f64 / self.experts as f64;
        self.parameters(m) as f64 - unused * self.all_experts(m)
    }

    /// Weights of a layer's products for one token.
    pub fn active_weights(&self, m: &Model, layer: usize) -> f64 {
        let size = |(rows, cols, _): Matrix| (rows * cols) as f64;
        if self.is_sparse(layer) {
            let own: f64 = self.own_matrices(m).into_iter().map(size).sum();
            own + (3 * m.hidden * self.width * self.chosen) as f64
        } else {
            let attention: f64 = self.attention_matrices(m).into_iter().map(size).sum();
            attention + (3 * m.hidden * self.dense_width) as f64
        }
    }
}
