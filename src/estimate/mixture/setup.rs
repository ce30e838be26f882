//! A setup with experts and context parallelism: its parameters, FLOPs and ranks.

use super::{Degrees, KEYS, Mixture};
use crate::setup::{Program, Setup};
use crate::trainers;
use base::{Problems, number};
use model::{ParamSpec, parameters, table};

impl Setup {
    pub fn with_degrees(self, degrees: Degrees) -> Setup {
        Setup { degrees, ..self }
    }

    /// Setup with the degrees of the settings `sets`, "topology.context=2". Without one, experts are dealt
    /// among as many ranks of a node as possible.
    pub fn with_degree_settings(self, sets: &[String]) -> Result<Setup, Problems> {
        let mut problems = Problems::default();
        let mut degree = |key: &str| {
            let mut pairs = sets.iter().filter_map(|set| set.split_once('='));
            let (_, text) = pairs.rfind(|(name, _)| name.trim() == key)?;
            let read = number::whole::<usize>(text)
                .ok()
                .filter(|n| (1..=1 << 20).contains(n));
            if read.is_none() {
                let what = format!("is {:?}", text.trim());
                problems.add(format!("--set {key}"), what, "give a whole number from 1, such as 8");
            }
            read
        };
        let [context, expert] = KEYS.map(&mut degree);
        problems.or(())?;
        let setup = self.with_degrees(Degrees { context: context.unwrap_or(1), expert: 1 });
        let usual = setup
            .expert_degrees()
            .into_iter()
            .filter(|e| *e <= setup.link_domain());
        let expert = expert.or(usual.max()).unwrap_or(1);
        let degrees = Degrees { expert, ..setup.degrees };
        let setup = setup.with_degrees(degrees);
        check(&setup)?;
        Ok(setup)
    }

    /// Whether gptrain itself does not train such a run yet, and no shipped constant or residual was learned
    /// from one.
    pub fn is_foreign(&self) -> bool {
        self.mixture.is_some() || self.degrees.context > 1
    }

    /// Ranks with the same weights, except for experts.
    pub fn replicas(&self) -> usize {
        self.topology.data * self.degrees.context
    }

    /// Ranks with the same experts.
    pub fn expert_replicas(&self) -> usize {
        (self.topology.tensor * self.replicas() / self.degrees.expert).max(1)
    }

    /// Whether what tensor ranks do not split otherwise is split by positions: with experts always, as each
    /// rank routes its own rows.
    pub fn splits_sequence(&self) -> bool {
        self.topology.sequence_parallel || self.mixture.is_some()
    }

    /// Rows of a micro-batch on a rank, before tensor ranks split them.
    pub fn rows(&self) -> usize {
        (self.model.seq_len * self.micro).div_ceil(self.degrees.context)
    }

    /// Numbers of ranks among which the experts can be dealt.
    pub fn expert_degrees(&self) -> Vec<usize> {
        let Some(Mixture { experts, .. }) = self.mixture else { return vec![1] };
        let ranks = self.topology.tensor * self.replicas();
        (1..=experts.min(ranks))
            .filter(|e| experts.is_multiple_of(*e) && ranks.is_multiple_of(*e))
            .collect()
    }

    /// Rules that the degrees violate.
    pub fn degree_violations(&self) -> Vec<String> {
        let Degrees { context, expert } = self.degrees;
        let length = self.model.seq_len;
        let mut found = Vec::new();
        if context > 1 && !length.is_multiple_of(2 * context) {
            found.push(format!("{length} tokens per sample are not divisible by 2 × CP {context}"));
        }
        if let Some(Mixture { experts, .. }) = self.mixture
            && !self.expert_degrees().contains(&expert)
        {
            let ranks = self.topology.tensor * self.replicas();
            found.push(format!(
                "EP {expert} does not divide both {experts} experts and TP × CP × DP {ranks}"
            ));
        }
        found
    }

    /// Parameters of a stage's rank: without its experts, and of its experts.
    pub fn stage_parameters(&self, stage: usize) -> [f64; 2] {
        let cuts = self.stages();
        let layers = cuts[stage].clone();
        let (first, last) = (stage == 0, stage + 1 == cuts.len());
        let Some(mixture) = &self.mixture else {
            return [self.counts.stage(&self.model, layers.len(), first, last), 0.0];
        };
        let ends = self.counts.stage(&self.model, 0, first, last);
        let sparse = layers
            .clone()
            .filter(|layer| mixture.is_sparse(*layer))
            .count();
        let own = layers.map(|layer| mixture.layer(&self.model, layer, self.topology.tensor));
        let experts = (sparse * mixture.experts) as f64 / self.degrees.expert as f64;
        [ends + own.sum::<f64>(), experts * mixture.expert(&self.model)]
    }

    /// Parameters of the whole model.
    pub fn parameters(&self) -> u64 {
        let own = |mixture: Mixture| mixture.parameters(&self.model);
        self.mixture.map_or_else(|| parameters(&self.model), own)
    }

    /// Parameters of the layers.
    pub fn layer_parameters(&self) -> f64 {
        match &self.mixture {
            Some(mixture) => mixture.layers(&self.model),
            None => self.counts.block * (self.topology.tensor * self.model.layers) as f64,
        }
    }

    /// Parameters that a token uses: all of a dense model, else those of its experts and of everything else.
    pub fn active_parameters(&self) -> f64 {
        let active = |mixture: Mixture| mixture.active(&self.model);
        self.mixture
            .map_or_else(|| parameters(&self.model) as f64, active)
    }

    /// Forward FLOPs per token of the layers beyond those of the dense model beside the mixture.
    pub(crate) fn more_forward_flops(&self) -> f64 {
        let Some(mixture) = &self.mixture else { return 0.0 };
        let m = &self.model;
        let matrices = table(m).into_iter().filter(ParamSpec::is_block_matrix);
        let dense: f64 = matrices.map(|p| (p.rows * p.cols) as f64).sum();
        let layers = (0..m.layers).map(|layer| mixture.active_weights(m, layer) - dense);
        2.0 * layers.sum::<f64>()
    }

    /// Degrees in words, such as ", CP 2, EP 8"; empty without.
    pub fn degree_words(&self) -> String {
        let Degrees { context, expert } = self.degrees;
        let context = if context > 1 { format!(" × CP {context}") } else { String::new() };
        match self.mixture {
            Some(_) => format!("{context}, EP {expert}"),
            None => context,
        }
    }

    /// Settings of the degrees, as `--set` takes them.
    pub fn degree_sets(&self) -> Vec<String> {
        let Degrees { context, expert } = self.degrees;
        let context = (context > 1).then(|| format!("{}={context}", KEYS[0]));
        let expert = self.mixture.map(|_| format!("{}={expert}", KEYS[1]));
        context.into_iter().chain(expert).collect()
    }

    /// Degrees that differ from another setup's, with both values.
    pub fn degree_differences(&self, other: &Setup) -> Vec<(String, [String; 2])> {
        let [a, b] = [self, other].map(|s| [s.degrees.context, s.degrees.expert]);
        let pairs = KEYS.into_iter().zip(a.into_iter().zip(b));
        pairs
            .filter(|(_, (now, then))| now != then)
            .map(|(key, (now, then))| (key.to_string(), [now.to_string(), then.to_string()]))
            .collect()
    }

    /// Notes on a plan that gptrain itself could not run.
    pub fn foreign_notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if let Some(Mixture { experts, chosen, .. }) = self.mixture {
            notes.push(format!(
                "{experts} experts per layer, of which a token uses {chosen}: gptrain itself does not train \
                 these yet."
            ));
        }
        if self.degrees.context > 1 {
            notes.push(
                "Context parallelism: gptrain itself does not train with it yet.".to_string(),
            );
        }
        notes
    }
}

/// Fails if the program of a setup has no such degrees, or if they do not divide.
fn check(s: &Setup) -> Result<(), Problems> {
    let Degrees { context, expert } = s.degrees;
    let mixture = s.mixture.is_some();
    let mut problems = Problems::default();
    if expert > 1 && !mixture {
        let remedy = "leave it out: it is for a config.json with experts";
        problems.add(KEYS[1], "the model has no experts", remedy);
    }
    let wanted = [(mixture, "a mixture of experts"), (context > 1, "context parallelism")];
    for (number, (_, what)) in wanted.iter().enumerate().filter(|(_, (is, _))| *is) {
        let able = trainers::with_extension(number);
        match s.program {
            Program::Gptrain => problems.add(
                "--as",
                format!("gptrain itself does not train with {what} yet"),
                format!("plan it for another program: --as {}", able.join(", --as ")),
            ),
            Program::Other(trainer) if !able.contains(&trainer.name.as_str()) => problems.add(
                "--as",
                format!("{what} is not planned for {}", trainer.name),
                format!("take one of {}", able.join(", ")),
            ),
            Program::Other(_) => {}
        }
    }
    for what in s.degree_violations() {
        problems.add(KEYS.join(", "), what, "give degrees that divide");
    }
    problems.or(())
}
