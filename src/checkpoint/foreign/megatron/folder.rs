//! A run of Megatron's modules, in tensor ranks' shares: what is common to all files that hold such.

use super::super::arguments::Arguments;
use super::super::compare::{Comparison, like};
use super::super::copies::Copies;
use super::super::cut::{Cut, Fused, Pairs};
use super::super::{Choices, ForeignRun, Found, Kept, Request, layer_of};
use super::names::add_one;
use anyhow::Context;
use manifest::Model;
use model::{Param, TpSplit, Weight};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// A parameter in the files.
#[derive(Clone, Debug)]
pub struct Place {
    pub stage: usize,
    /// Number among the parameters of the stage.
    pub entry: usize,
    pub name: String,
    /// Shape of one tensor rank's share.
    pub shape: Vec<usize>,
}

/// Places by parameter and block.
pub type Places = BTreeMap<(Weight, Option<usize>), Place>;

/// Files that hold the shares.
pub trait Shares {
    /// A state of a parameter on a tensor rank; if no states are read, the model's own weight.
    fn read(&mut self, place: &Place, rank: usize, kept: Kept) -> anyhow::Result<Vec<f32>>;
}

pub struct Folder<S> {
    pub dir: PathBuf,
    pub found: Found,
    pub places: Places,
    pub shares: S,
    /// Order of the rows of queries, keys and values.
    fused: Fused,
    gated: bool,
    /// Whether the file has a norm's scale less one.
    less_one: bool,
    /// Rows of the embedding on all tensor ranks.
    rows: usize,
    copies: Copies,
}

impl<S: Shares> Folder<S> {
    /// `version` is `checkpoint_version`.
    pub fn new(
        (dir, found): (PathBuf, Found),
        (places, shares): (Places, S),
        args: &Arguments,
        version: f64,
        choices: &Choices,
    ) -> anyhow::Result<Folder<S>> {
        let fused = match (version, args.is_set("rotary_interleaved")) {
            (version, _) if version < 1.0 => Fused::Kinds,
            (version, _) if version < 2.0 => Fused::Columns,
            (_, true) => Fused::Heads(Pairs::Neighbours),
            _ => Fused::Heads(Pairs::Halves),
        };
        let (gated, less_one) = (args.is_set("swiglu"), args.is_set("apply_layernorm_1p"));
        let copies = Copies::new(choices.replicated);
        let mut folder =
            Folder { dir, found, places, shares, fused, gated, less_one, rows: 0, copies };
        folder.vocabulary(args, choices)?;
        folder.found.aside = args.aside();
        Ok(folder)
    }

    fn ranks(&self) -> usize {
        self.found.grid[0]
    }

    /// Decides the model's vocabulary.
    fn vocabulary(&mut self, args: &Arguments, choices: &Choices) -> anyhow::Result<()> {
        let place = self.places.get(&(Weight::TokenEmbed, None)).cloned();
        let place = place.ok_or_else(|| args.problem("the model has no word_embeddings".into()))?;
        self.rows = place.shape.first().copied().unwrap_or(0) * self.ranks();
        let rows = self.rows;
        let original = args.get("vocab_size").map(|size| size.count()).transpose()?;
        let original = original.map_or(rows, |size| size as usize).clamp(1, rows.max(1));
        let multiple = args.get("make_vocab_size_divisible_by").map(|v| v.count()).transpose()?;
        let strip =
            original < rows && (choices.mask_padding || self.untrained(original, &place)?);
        self.found.vocabulary([original, rows], multiple, strip);
        Ok(())
    }

    /// Whether the rows that pad the embedding are zero in every state.
    fn untrained(&mut self, original: usize, place: &Place) -> anyhow::Result<bool> {
        let (rows, cols) = (place.shape[0], place.shape.get(1).copied().unwrap_or(1));
        let states = self.found.kept();
        for rank in 0..self.ranks() {
            let from = original.saturating_sub(rank * rows).min(rows);
            for kept in states.iter().filter(|_| from < rows) {
                let values = self.shares.read(place, rank, *kept)?;
                if values[from * cols..].iter().any(|value| *value != 0.0) {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    fn key(&self, param: &Param) -> (Weight, Option<usize>) {
        (param.spec.weight, layer_of(param))
    }

    /// The part of a parameter on a tensor rank.
    fn cut(&self, model: &Model, param: &Param, shape: &[usize], rank: usize) -> Cut {
        let rows = if param.spec.vocab { self.rows } else { shape[0] };
        let whole = [rows, shape.get(1).copied().unwrap_or(1)];
        let ranks = [rank, self.ranks()];
        match param.spec.weight {
            Weight::QkvW | Weight::QkvB => {
                Cut::of_fused(model.heads(), whole[1], ranks, self.fused)
            }
            _ => Cut::of_rank(param, whole, ranks, self.gated),
        }
    }
}

impl<S: Shares> ForeignRun for Folder<S> {
    fn found(&self) -> &Found {
        &self.found
    }

    fn check(&self, model: &Model, params: &[&Param]) -> anyhow::Result<()> {
        let mut compared = Comparison::with_args(&self.dir);
        let (ranks, heads) = (self.ranks(), model.heads());
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
        let mut known = BTreeSet::new();
        known.extend(model.tied_head.then_some((Weight::HeadW, None)));
        for param in params.iter().filter(|_| fit && ordered) {
            let key = self.key(param);
            known.insert(key);
            let shape = engine::saved_shape(param, model.vocab);
            let Some(place) = self.places.get(&key) else {
                compared.missing(param);
                continue;
            };
            let expected = like(&shape, self.cut(model, param, &shape, 0).shape());
            compared.shape(&place.name, Some(&place.shape), &expected, "args");
        }
        // A stage counts its layers: a name may be that of two parameters.
        let others = self.places.iter().filter(|(key, _)| fit && ordered && !known.contains(key));
        for (_, place) in others {
            compared.add(format!("{} is not in gptrain's model", place.name));
        }
        Ok(compared.finish()?)
    }

    fn read(&mut self, Request { model, param, shape, kept }: Request) -> anyhow::Result<Vec<f32>> {
        let numel = shape.iter().product();
        if !self.found.kept().contains(&kept) {
            return Ok(vec![0.0; numel]);
        }
        let place = self.places.get(&self.key(param)).cloned();
        let place = place.with_context(|| format!("no place of {}", param.name))?;
        let ranks = self.ranks();
        let mut ours = if param.spec.split == TpSplit::Whole {
            let copies = (0..ranks).map(|rank| self.shares.read(&place, rank, kept));
            let copies = copies.collect::<anyhow::Result<Vec<_>>>()?;
            self.copies.merge(&place.name, kept, copies)
        } else {
            let mut ours = vec![0.0; numel];
            let width = shape.get(1).copied().unwrap_or(1);
            let tied = self.places.get(&(Weight::HeadW, None)).cloned();
            let tied = tied.filter(|_| param.spec.tied && kept == Kept::Master);
            for rank in 0..ranks {
                let part = self.shares.read(&place, rank, kept)?;
                if let Some(copy) = &tied {
                    let last = self.shares.read(copy, rank, kept)?;
                    self.copies.tied(&part, &last);
                }
                let cut = self.cut(model, param, shape, rank);
                cut.put(([0, 0], cut.shape()), &part, &mut ours, width);
            }
            ours
        };
        if self.less_one {
            add_one(param, kept, &mut ours);
        }
        Ok(ours)
    }

    fn remarks(&mut self) -> Vec<String> {
        self.copies.remarks()
    }
}
