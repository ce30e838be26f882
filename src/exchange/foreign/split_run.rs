//! Reads a run of Megatron's modules whose files hold the shares of tensor ranks. DeepSpeed's and
//! Megatron-LM's folders differ only in how a share is read.

use super::arguments::Arguments;
use super::compare::{Comparison, like};
use super::megatron::names::add_one;
use super::replica_merger::ReplicaMerger;
use super::{AdamState, Choices, ForeignRun, Request, RunDescription};
use crate::tensor_part::{Fused, Pairs, ParamKey, TensorPart, param_key};
use anyhow::Context;
use manifest::Model;
use model::{Param, TpSplit, Weight};
use std::collections::{BTreeMap, BTreeSet};

/// A parameter in the files.
#[derive(Clone, Debug)]
pub struct ParamPlace {
    pub stage: usize,
    /// Number among the parameters of the stage.
    pub entry: usize,
    pub name: String,
    /// Shape of one tensor rank's share.
    pub shape: Vec<usize>,
}

/// Parameters in the files.
#[derive(Default)]
pub struct ParamPlaces {
    pub known: BTreeMap<ParamKey, ParamPlace>,
    /// Names that no parameter of gptrain has.
    pub unknown: Vec<String>,
}

/// Reader of the shares that a format's files hold.
pub trait ShareReader {
    /// A state of a parameter on a tensor rank; if no states are read, the model's own weight.
    fn read(
        &mut self,
        place: &ParamPlace,
        rank: usize,
        state: AdamState,
    ) -> anyhow::Result<Vec<f32>>;

    /// Name that the files have for a parameter, if there is one such name.
    fn name(&self, _: &Param) -> Option<String> {
        None
    }
}

/// Shape of a run's files.
pub struct FileLayout {
    /// Tensor ranks whose shares the files hold.
    pub ranks: usize,
    /// `checkpoint_version`.
    pub version: f64,
    /// Rows of the embedding without padding, if they are known.
    pub vocab: Option<u64>,
}

pub struct SplitRun<R> {
    pub found: RunDescription,
    pub places: ParamPlaces,
    pub reader: R,
    ranks: usize,
    /// Order of the rows of queries, keys and values.
    fused: Fused,
    gated: bool,
    /// Whether the file has a norm's scale less one.
    less_one: bool,
    /// Rows of the embedding on all tensor ranks.
    rows: usize,
    copies: ReplicaMerger,
}

impl<R: ShareReader> SplitRun<R> {
    pub fn new(
        found: RunDescription,
        (places, reader): (ParamPlaces, R),
        args: &Arguments,
        layout: FileLayout,
        choices: &Choices,
    ) -> anyhow::Result<SplitRun<R>> {
        let fused = match (layout.version, args.is_set("rotary_interleaved")) {
            (version, _) if version < 1.0 => Fused::Kinds,
            (version, _) if version < 2.0 => Fused::Columns,
            (_, true) => Fused::Heads(Pairs::Neighbours),
            _ => Fused::Heads(Pairs::Halves),
        };
        let gated = args.is_set("swiglu");
        let less_one = args.is_set("apply_layernorm_1p");
        let ranks = layout.ranks;
        let copies = ReplicaMerger::new(choices.replicated);
        let mut run =
            SplitRun { found, places, reader, ranks, fused, gated, less_one, rows: 0, copies };
        run.vocabulary(args, layout.vocab, choices)?;
        run.found.ignored = args.ignored();
        Ok(run)
    }

    /// Decides the model's vocabulary.
    fn vocabulary(
        &mut self,
        args: &Arguments,
        original: Option<u64>,
        choices: &Choices,
    ) -> anyhow::Result<()> {
        let place = self
            .places
            .known
            .get(&(Weight::TokenEmbed, None))
            .cloned()
            .ok_or_else(|| args.problem("the model has no word_embeddings".into()))?;
        self.rows = place.shape.first().copied().unwrap_or(0) * self.ranks;
        let rows = self.rows;
        let original = original
            .map_or(rows, |size| size as usize)
            .clamp(1, rows.max(1));
        let strip =
            original < rows && (choices.mask_padding || self.untrained(original, &place)?);
        self.found.vocabulary([original, rows], args, strip)
    }

    /// Whether the rows that pad the embedding are zero in every state.
    fn untrained(&mut self, original: usize, place: &ParamPlace) -> anyhow::Result<bool> {
        let rows = place.shape[0];
        let cols = place.shape.get(1).copied().unwrap_or(1);
        let states = self.found.read_states();
        for rank in 0..self.ranks {
            let from = original.saturating_sub(rank * rows).min(rows);
            for state in states.iter().filter(|_| from < rows) {
                let values = self.reader.read(place, rank, *state)?;
                if values[from * cols..].iter().any(|value| *value != 0.0) {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// The part of a parameter on a tensor rank.
    fn cut(&self, model: &Model, param: &Param, shape: &[usize], rank: usize) -> TensorPart {
        let rows = if param.spec.vocab { self.rows } else { shape[0] };
        let whole = [rows, shape.get(1).copied().unwrap_or(1)];
        let ranks = [rank, self.ranks];
        match param.spec.weight {
            Weight::QkvW | Weight::QkvB => {
                TensorPart::for_fused(model.heads(), whole[1], ranks, self.fused)
            }
            _ => TensorPart::for_rank(param, whole, ranks, self.gated),
        }
    }
}

impl<R: ShareReader> ForeignRun for SplitRun<R> {
    fn description(&self) -> &RunDescription {
        &self.found
    }

    fn check(&self, model: &Model, params: &[&Param]) -> anyhow::Result<()> {
        let mut compared = Comparison::with_args(&self.found.folder);
        let ranks = self.ranks;
        let heads = model.heads();
        let fit = heads.kv.is_multiple_of(ranks);
        let ordered = heads.kv == heads.query || matches!(self.fused, Fused::Heads(_));
        if !fit {
            let kv = heads.kv;
            compared
                .add(format!("{kv} heads of keys on {ranks} tensor ranks: copies are not read"));
        }
        if !ordered {
            let what = "checkpoint_version is older than 2.0, and there are groups of queries";
            compared.add(what.into());
        }
        if !fit || !ordered {
            return Ok(compared.finish()?);
        }
        let mut known = BTreeSet::new();
        known.extend(model.tied_head.then_some((Weight::HeadW, None)));
        for param in params {
            known.insert(param_key(param));
            let shape = engine::saved_shape(param, model.vocab);
            match (self.places.known.get(&param_key(param)), self.reader.name(param)) {
                (Some(place), _) => {
                    let expected = like(&shape, self.cut(model, param, &shape, 0).shape());
                    compared.shape(&place.name, Some(&place.shape), &expected, "args");
                }
                (None, Some(name)) => compared.shape(&name, None, &shape, "args"),
                (None, None) => compared.missing(param),
            }
        }
        // A stage counts its layers: a name may be that of two parameters.
        let others = self
            .places
            .known
            .iter()
            .filter(|(key, _)| !known.contains(key));
        for name in others
            .map(|(_, place)| &place.name)
            .chain(&self.places.unknown)
        {
            compared.add(format!("{name} is not in gptrain's model"));
        }
        Ok(compared.finish()?)
    }

    fn read(&mut self, request: Request) -> anyhow::Result<Vec<f32>> {
        let Request { model, param, shape, state } = request;
        let numel = shape.iter().product();
        if !self.found.read_states().contains(&state) {
            return Ok(vec![0.0; numel]);
        }
        let place = self
            .places
            .known
            .get(&param_key(param))
            .cloned()
            .with_context(|| format!("no place of {}", param.name))?;
        let mut ours = if param.spec.split == TpSplit::Whole {
            let copies = (0..self.ranks)
                .map(|rank| self.reader.read(&place, rank, state))
                .collect::<anyhow::Result<Vec<_>>>()?;
            self.copies.merge(&place.name, state, copies)
        } else {
            let mut ours = vec![0.0; numel];
            let width = shape.get(1).copied().unwrap_or(1);
            let tied = self.places.known.get(&(Weight::HeadW, None)).cloned();
            let tied = tied.filter(|_| param.spec.tied && state == AdamState::Master);
            for rank in 0..self.ranks {
                let part = self.reader.read(&place, rank, state)?;
                if let Some(copy) = &tied {
                    let last = self.reader.read(copy, rank, state)?;
                    self.copies.compare_tied(&part, &last);
                }
                let cut = self.cut(model, param, shape, rank);
                cut.put(([0, 0], cut.shape()), &part, &mut ours, width);
            }
            ours
        };
        if self.less_one {
            add_one(param, state, &mut ours);
        }
        Ok(ours)
    }

    fn remarks(&mut self) -> Vec<String> {
        self.copies.remarks()
    }
}
