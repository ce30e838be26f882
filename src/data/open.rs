//! Opens the datasets of a plan and orders their samples.

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Result;
use rayon::prelude::*;

use super::blend::{Blend, check_dataset_count, normalize};
use super::indexed::Indexed;
use super::mixture::{Member, Mixture, MixtureStage};
use super::order::{Cache, Cut, Order, OrderSpec};
use super::plan::{MixturePlan, PlannedStage, Share, SharePart};
use super::split;
use base::{Count, Problems};
use manifest::{Data, DataRule};

/// Opens mixtures. Files used by several mixtures are opened once.
pub struct MixtureBuilder {
    rule: DataRule,
    /// Seed of plans without one.
    seed: u64,
    seq_len: usize,
    cache: Cache,
    open: HashMap<PathBuf, Arc<Indexed>>,
}

/// Members of a mixture while its stages are planned.
#[derive(Default)]
struct MixtureLayout {
    cut: Cut,
    /// Seed of the stage.
    seed: u64,
    members: Vec<Member>,
    /// Share of each member.
    shares: Vec<Share>,
    /// Member that has a part of a dataset; the number counts the repetitions of a part within a stage.
    member_of_part: HashMap<(String, usize), usize>,
    /// Samples that the stages so far take from each member.
    used: Vec<u64>,
    stages: Vec<MixtureStage>,
}

/// Member whose samples are to be ordered. Ordering takes a second per 10 million sequences, so
/// several are ordered concurrently.
struct UnorderedMember {
    dataset: Arc<Indexed>,
    part: Range<usize>,
    spec: OrderSpec,
    place: String,
}

impl MixtureLayout {
    /// Shuffles the samples that no stage has taken yet again, if the seed changes.
    fn change_seed(&mut self, seed: u64) {
        if seed != self.seed {
            self.seed = seed;
            for (member, used) in self.members.iter_mut().zip(&self.used) {
                member.reshuffle(*used, seed);
            }
        }
    }
}

impl UnorderedMember {
    fn order_samples(&self, cache: &Cache) -> Result<Order> {
        cache.order(&self.spec, &self.dataset, self.part.clone(), &self.place)
    }

    fn into_member(self, cache: &Cache) -> Result<Member> {
        let segments = vec![self.order_samples(cache)?];
        Ok(Member { segments, reshuffles: Vec::new(), dataset: self.dataset })
    }
}

impl MixtureBuilder {
    /// `seed` is that with which the run began.
    pub fn new(data: &Data, seed: u64, seq_len: usize) -> MixtureBuilder {
        let cache = Cache::new(data.cache.clone());
        MixtureBuilder { rule: data.rule, seed, seq_len, cache, open: HashMap::new() }
    }

    /// Mixture of a plan. The error lists everything that is wrong with the plan.
    pub fn mixture(&mut self, name: &str, plan: &MixturePlan, cut: Cut) -> Result<Mixture> {
        let mut layout = MixtureLayout { cut, seed: self.seed, ..MixtureLayout::default() };
        for (i, stage) in plan.stages.iter().enumerate() {
            layout.change_seed(plan.seed(i).unwrap_or(self.seed));
            let until = plan.stages.get(i + 1).map_or(stage.until, |next| next.from);
            self.add_stage(name, stage, until, &mut layout)?;
        }
        // A single dataset provides whole epochs, which is more than was requested.
        if let Some(last) = layout.stages.last_mut()
            && last.blend.is_none()
        {
            last.until = last.from + layout.members[last.members[0]].samples() - last.cursors[0];
        }
        Ok(Mixture::new(layout.members, layout.stages, self.seq_len))
    }

    /// Checks a plan before its samples are ordered. Mistakes are an error; orders that do not fit
    /// this machine's memory are returned. Later segments of a dataset, for stages that need more
    /// of it, are not checked.
    pub fn check(&mut self, name: &str, plan: &MixturePlan, cut: Cut) -> Result<Problems> {
        let mut wrong = Problems::default();
        let mut too_large = Problems::default();
        for stage in &plan.stages {
            let samples = stage.until.saturating_sub(stage.from);
            let wanted = shares(self.rule, &stage.datasets, samples);
            for (share, wanted) in stage.datasets.iter().zip(wanted) {
                let place = format!("data.{name}: {}", share.prefix.display());
                let Some(member) =
                    wrong.collect(self.open_unordered(share, cut, wanted, self.seed, place))?
                else {
                    continue;
                };
                let UnorderedMember { dataset, part, spec, place } = member;
                let checked = Order::check(&spec, dataset.lengths(), part, &place);
                let fits = wrong.collect(checked)?.unwrap_or(Ok(()));
                too_large.collect(fits.map_err(anyhow::Error::from))?;
            }
        }
        wrong.or(())?;
        Ok(too_large)
    }

    fn add_stage(
        &mut self,
        name: &str,
        stage: &PlannedStage,
        until: u64,
        layout: &mut MixtureLayout,
    ) -> Result<()> {
        let planned = stage.until.saturating_sub(stage.from);
        let mut problems = Problems::default();
        if stage.datasets.is_empty() {
            problems.add(format!("data.{name}"), "no datasets", "name at least one");
        }
        if let Some(too_many) = check_dataset_count(&format!("data.{name}"), stage.datasets.len()) {
            problems.list.extend(too_many.list);
        }
        for share in &stage.datasets {
            if !(share.weight.is_finite() && share.weight > 0.0) {
                let place = format!("data.{name}: {}", share.prefix.display());
                problems.add(
                    place,
                    format!("its weight is {}", share.weight),
                    "give it a weight above 0, or leave it out",
                );
            }
        }
        let mut members = Vec::new();
        let mut new = Vec::new();
        let wanted = shares(self.rule, &stage.datasets, planned);
        let mut times: HashMap<String, usize> = HashMap::new();
        for (share, wanted) in stage.datasets.iter().zip(wanted) {
            let part = share.part_key();
            let repeat = times
                .entry(part.clone())
                .and_modify(|times| *times += 1)
                .or_insert(0);
            if let Some(member) = layout.member_of_part.get(&(part.clone(), *repeat)) {
                members.push(*member);
                continue;
            }
            let place = format!("data.{name}: {}", share.prefix.display());
            let unordered = self.open_unordered(share, layout.cut, wanted, layout.seed, place);
            new.extend(problems.collect(unordered)?);
            members.push(layout.shares.len());
            layout
                .member_of_part
                .insert((part, *repeat), layout.shares.len());
            layout.shares.push(share.clone());
            layout.used.push(0);
        }
        problems.or(())?;
        base::threads::init_rayon();
        let ordered: Result<Vec<Member>> = new
            .into_par_iter()
            .map(|member| member.into_member(&self.cache))
            .collect();
        layout.members.extend(ordered?);
        let size = planned.max(until - stage.from);
        let blend = match stage.datasets.len() {
            1 => None,
            _ => Some(Blend::weighted(&weights(&stage.datasets), size as usize)),
        };
        let cursors: Vec<u64> = members.iter().map(|member| layout.used[*member]).collect();
        let stage = MixtureStage { from: stage.from, until, blend, members, cursors };
        let totals = stage.samples_before(stage.from + size);
        for (member, total) in stage.members.iter().zip(totals) {
            let share = &layout.shares[*member];
            let member = &mut layout.members[*member];
            self.add_segment(member, share, (layout.cut, layout.seed), total)?;
        }
        for (member, used) in stage.members.iter().zip(stage.samples_before(until)) {
            layout.used[*member] = used;
        }
        layout.stages.push(stage);
        Ok(())
    }

    /// Opens and checks a share, whose segment of `wanted` samples the caller orders.
    fn open_unordered(
        &mut self,
        share: &Share,
        cut: Cut,
        wanted: u64,
        seed: u64,
        place: String,
    ) -> Result<UnorderedMember> {
        let dataset = self.open_dataset(&share.prefix)?;
        let part = self.check_part(share, cut, &dataset, &place)?;
        let MixtureBuilder { rule, seq_len, .. } = *self;
        let spec = OrderSpec { rule, seq_len, samples: Some(wanted), seed, cut };
        Ok(UnorderedMember { dataset, part, spec, place })
    }

    /// Orders another segment if a stage needs more of a member than planned. (Under
    /// Megatron-DeepSpeed's rule this could also happen from the start, and end in an IndexError.)
    fn add_segment(
        &mut self,
        member: &mut Member,
        share: &Share,
        (cut, seed): (Cut, u64),
        total: u64,
    ) -> Result<()> {
        let missing = total.saturating_sub(member.samples());
        if missing > 0 {
            let seed = (seed + member.segments.len() as u64) % (1 << 32);
            let place = share.prefix.display().to_string();
            let segment = self.open_unordered(share, cut, missing, seed, place)?;
            member.segments.push(segment.order_samples(&self.cache)?);
        }
        Ok(())
    }

    fn open_dataset(&mut self, prefix: &Path) -> Result<Arc<Indexed>> {
        if let Some(dataset) = self.open.get(prefix) {
            return Ok(dataset.clone());
        }
        let dataset = Arc::new(Indexed::open(prefix)?);
        self.open.insert(prefix.into(), dataset.clone());
        Ok(dataset)
    }

    /// Sequences of a share; fails if they cannot fill one sample.
    fn check_part(
        &self,
        share: &Share,
        cut: Cut,
        dataset: &Indexed,
        place: &str,
    ) -> Result<Range<usize>> {
        let part = part(self.rule, share, dataset.sequences())?;
        let tokens: u64 = dataset.lengths()[part.clone()]
            .iter()
            .map(|n| *n as u64)
            .sum();
        let fewest = cut.min_tokens(self.seq_len);
        if tokens >= fewest {
            return Ok(part);
        }
        Err(Problems::one(
            place,
            format!(
                "{} holds {} of {} sequences, {} tokens; one sample takes {}",
                share.describe(),
                Count(part.len() as u64),
                Count(dataset.sequences() as u64),
                Count(tokens),
                Count(fewest)
            ),
            remedy(share),
        )
        .into())
    }
}

/// Remedy for a part that cannot fill a sample.
fn remedy(share: &Share) -> String {
    let larger = "give it a larger part, lower model.seq_len, or use a larger dataset";
    match share.part {
        SharePart::Split(_, 1) => format!(
            "{larger}; a dataset of few documents has such parts if it is built with \
             --min-sequences 20; train without validation with data.split: 100,0,0 and \
             train.eval_interval: 0"
        ),
        _ => larger.into(),
    }
}

fn weights(datasets: &[Share]) -> Vec<f64> {
    let weights: Vec<f64> = datasets.iter().map(|share| share.weight).collect();
    normalize(&weights)
}

/// Number of samples ordered from each dataset for `samples` of the mixture: its share, and 0.5 %
/// more because the mixture is not perfectly even.
pub fn shares(rule: DataRule, datasets: &[Share], samples: u64) -> Vec<u64> {
    if datasets.len() == 1 {
        return vec![samples];
    }
    let mut shares = Vec::new();
    for weight in weights(datasets) {
        let share = match rule {
            DataRule::MegatronCore => ((samples as f64 * weight).ceil() * (1.0 + 0.005)).ceil(),
            DataRule::MegatronDeepSpeed => (samples as f64 * weight * 1.005).ceil(),
        };
        shares.push(share as u64);
    }
    shares
}

/// Sequences of a share.
pub fn part(rule: DataRule, share: &Share, sequences: usize) -> Result<Range<usize>> {
    match &share.part {
        SharePart::Split(weights, which) => {
            Ok(split::split(rule, weights, sequences)?[*which].clone())
        }
        SharePart::Range(from, to) => Ok(split::range(*from, *to, sequences)),
    }
}
