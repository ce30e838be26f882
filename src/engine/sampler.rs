//! Next-token logits on a single rank, for `generate`. Keys and values of a text's tokens are
//! cached, so each further token costs the forward of one token.

use super::arenas::Arenas;
use super::frozen::Frozen;
use super::groups::{Groups, context};
use data::{Batch, Column};
use device::{Backend, OutOfMemory};
use manifest::{Manifest, Model};
use model::{Activations, Cx, Inputs, KvCache, ModelShard, Stage, Tables};
use std::ops::Range;

/// Prompt tokens per forward pass.
const PROMPT: usize = 128;

/// Model without optimizer, for one text at a time. All weights must be written before the first
/// call of `logits`.
pub struct Sampler<'a> {
    be: &'a dyn Backend,
    groups: Groups,
    manifest: Manifest,
    pub weights: Frozen<'a>,
    context_len: usize,
    cache: KvCache,
    /// Buffers for one token, and for several.
    one: Pass,
    several: Pass,
    /// Tokens in the KV cache.
    cached: Vec<u32>,
}

/// Forward pass of a fixed number of tokens.
struct Pass {
    activations: Activations,
    batch: Batch,
}

struct SamplerBuffers<'a> {
    weights: Frozen<'a>,
    tables: Tables,
    cache: KvCache,
    passes: [Activations; 2],
}

impl<'a> Sampler<'a> {
    /// Reserves f32 weights, and buffers for a text of `context_len` tokens. The weights are zero
    /// until every slice is written.
    pub fn new(
        be: &'a dyn Backend,
        manifest: &Manifest,
        context_len: usize,
    ) -> Result<Sampler<'a>, OutOfMemory> {
        let groups = Groups::solo();
        let manifest = Frozen::manifest(manifest);
        let (SamplerBuffers { weights, tables, cache, passes }, _) =
            Arenas::reserve_for(be, |arenas: &Arenas| {
                lay_out(be, &groups, &manifest, context_len, arenas)
            })?;
        tables.upload(&context(be, &groups, &manifest, false));
        let [one, several] = passes.map(|activations| {
            let batch = Batch::causal(&vec![0; activations.inputs.rows() + 1], 1, 0, 0.0);
            Pass { activations, batch }
        });
        let cached = Vec::new();
        Ok(Sampler { be, groups, manifest, weights, context_len, cache, one, several, cached })
    }

    /// Logits of the token after `tokens`, one per entry of the vocabulary. A text longer than the
    /// context is truncated at its start.
    pub fn logits(&mut self, tokens: &[u32]) -> Vec<f32> {
        let tail = &tokens[tokens.len().saturating_sub(self.context_len)..];
        let same = self
            .cached
            .iter()
            .zip(tail)
            .take_while(|(cached, token)| cached == token)
            .count();
        self.cached.truncate(same.min(tail.len() - 1));
        let mut last = Vec::new();
        self.forward(tail, tail.len() - 1..tail.len(), |_, logits| last = logits.to_vec());
        last
    }

    /// Calls `visit` with every position of `tokens` and the logits of the next token. `tokens` must
    /// fit into the context.
    pub fn each_logits(&mut self, tokens: &[u32], visit: impl FnMut(usize, &[f32])) {
        self.cached.clear();
        self.forward(tokens, 0..tokens.len(), visit);
    }

    /// Runs the tokens that are not cached. They follow the cached ones.
    fn forward(
        &mut self,
        tokens: &[u32],
        positions: Range<usize>,
        mut visit: impl FnMut(usize, &[f32]),
    ) {
        let Model { vocab, vocab_padded, logit_softcap, .. } = self.manifest.model;
        let mut host = vec![0.0; vocab_padded];
        while let remaining @ 1.. = tokens.len() - self.cached.len() {
            let first = self.cached.len();
            let pass = if remaining == 1 { &mut self.one } else { &mut self.several };
            let new = &tokens[first..][..remaining.min(pass.batch.seq_len())];
            pass.fill(first, new);
            let cx = Cx {
                cached_tokens: first,
                ..context(self.be, &self.groups, &self.manifest, false)
            };
            self.cache.begin(&cx, first, pass.batch.seq_len());
            let stage = Stage { cx, layout: self.weights.layout(), store: &self.weights };
            pass.activations.inputs.upload(self.be, &pass.batch);
            stage.forward(&pass.activations);
            for row in (0..new.len()).filter(|row| positions.contains(&(first + row))) {
                let logits = stage.logits(&pass.activations, row);
                self.be
                    .download(logits, bytemuck::cast_slice_mut(&mut host));
                if let Some(cap) = logit_softcap {
                    host.iter_mut().for_each(|x| *x = cap * (*x / cap).tanh());
                }
                visit(first + row, &host[..vocab]);
            }
            self.cached.extend(new);
        }
    }
}

impl Pass {
    /// Fills the batch with the tokens `new` from position `first`. The remaining rows are padding
    /// that no token attends to.
    fn fill(&mut self, first: usize, new: &[u32]) {
        let tokens = self.batch.column_mut(Column::Tokens);
        for (row, token) in tokens.iter_mut().enumerate() {
            *token = new.get(row).map_or(0, |token| *token as i32);
        }
        let positions = self.batch.column_mut(Column::Positions);
        for (row, position) in positions.iter_mut().enumerate() {
            *position = if row < new.len() { (first + row) as i32 } else { 0 };
        }
    }
}

fn lay_out<'a>(
    be: &'a dyn Backend,
    groups: &Groups,
    m: &Manifest,
    context_len: usize,
    arenas: &Arenas,
) -> SamplerBuffers<'a> {
    let cx = context(be, groups, m, false);
    let weights = Frozen::lay_out(be, &m.model, ModelShard::whole(&m.model), arenas);
    let several = PROMPT.min(context_len);
    // The last rows of a prompt's pass may exceed the context.
    let cache = KvCache::plan(&cx, context_len + several, &arenas.inputs);
    let tables = Tables { kv_cache: Some(cache), ..Tables::plan(&cx, &arenas.inputs) };
    let chunk = &weights.layout().shard.chunks[0];
    let passes = [1, several].map(|tokens| {
        let inputs = Inputs::plan(1, tokens, true, &arenas.inputs);
        arenas
            .workspace
            .temporary(|space: &_| Activations::plan(&cx, chunk, inputs, &tables, space, space))
    });
    SamplerBuffers { weights, tables, cache, passes }
}
