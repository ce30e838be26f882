//! Campaign: models of several sizes, each with the tokens of a scaling law, and their total cost.

use super::change::flag_lines;
use super::search::print::{flags_json, shape_sets, sized_sets};
use super::search::{Candidate, Planned};
use super::shapes::published;
use super::view::{GIB, Terms};
use super::words::{self, seconds_in_unit_of, span};
use base::table::{Cell, Printout, Rows, Table};
use base::{Count, Problems, number};
use manifest::{Family, Ffn, Manifest, Model};
use model::parameters;
use serde_json::json;

/// Loss of a model of N parameters after D tokens: E + A/N^α + B/D^β (Hoffmann et al. 2022).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Law {
    /// D = tokens × N.
    PerParameter(f64),
    Fit {
        e: f64,
        a: f64,
        alpha: f64,
        b: f64,
        beta: f64,
    },
}

impl Law {
    /// Chinchilla's runs, as Besiroglu et al. (2024) fit them: 15 to 30 tokens per parameter.
    pub const CHINCHILLA: Law =
        Law::Fit { e: 1.8172, a: 482.01, alpha: 0.3478, b: 2085.43, beta: 0.3658 };

    /// "chinchilla", tokens per parameter, or "E,A,α,B,β" of the user's own fit.
    pub fn read(text: &str) -> Result<Law, String> {
        if text == "chinchilla" {
            return Ok(Law::CHINCHILLA);
        }
        let numbers: Vec<f64> = text
            .split(',')
            .filter_map(|n| number::real(n).ok())
            .collect();
        let sound = numbers.iter().all(|n| n.is_finite() && *n > 0.0);
        match numbers[..] {
            [ratio] if sound && !text.contains(',') => Ok(Law::PerParameter(ratio)),
            [e, a, alpha, b, beta] if sound => Ok(Law::Fit { e, a, alpha, b, beta }),
            _ => {
                Err("a law is `chinchilla`, tokens per parameter such as 20, or a fit E,A,α,B,β"
                    .into())
            }
        }
    }

    /// Tokens with which a model of this size is the best for its FLOPs: those with αA/N^α = βB/D^β.
    pub fn tokens(self, parameters: f64) -> f64 {
        match self {
            Law::PerParameter(ratio) => ratio * parameters,
            Law::Fit { a, alpha, b, beta, .. } => {
                (beta * b / (alpha * a)).powf(1.0 / beta) * parameters.powf(alpha / beta)
            }
        }
    }

    /// Tokens after which a model of this size has this loss: D = (B / (L − E − A/N^α))^(1/β). Err with
    /// the loss that it approaches, E + A/N^α, if that is not below. None if the law has no losses.
    pub fn tokens_until(self, loss: f64, parameters: f64) -> Option<Result<f64, f64>> {
        let Law::Fit { e, a, alpha, b, beta } = self else { return None };
        let least = e + a / parameters.powf(alpha);
        if loss > least {
            Some(Ok((b / (loss - least)).powf(1.0 / beta)))
        } else {
            Some(Err(least))
        }
    }

    pub fn loss(self, parameters: f64, tokens: f64) -> Option<f64> {
        match self {
            Law::PerParameter(_) => None,
            Law::Fit { e, a, alpha, b, beta } => {
                Some(e + a / parameters.powf(alpha) + b / tokens.powf(beta))
            }
        }
    }
}

/// Ratio of hidden width to layers: 64 at 125 million parameters, 128 from 7 billion, as for GPT-3.
fn width_per_layer(parameters: f64) -> f64 {
    64.0 * (parameters / 125e6)
        .powf(2f64.ln() / (7e9f64 / 125e6).ln())
        .clamp(1.0, 2.0)
}

/// Settings of a model of about this size: the published one of the family, else one with the head
/// dimension, the groups of heads and the feed-forward proportions of `like`. They are for one device,
/// because the search chooses the topology.
pub fn sets_for_size(like: &Model, target: f64) -> Result<Vec<String>, Problems> {
    let series = match like.ffn {
        Ffn::Gelu => Family::Gpt2,
        Ffn::Swiglu => like.family,
    };
    let model = match published(target, Some(series)) {
        Some(shape) => shape.model(like),
        None => scale_to_size(like, target)?,
    };
    let mut sets = shape_sets(&model);
    sets.extend(ONE_DEVICE.map(str::to_string));
    Ok(sets)
}

/// Model with the proportions of `like`. Its heads are a multiple of 8 if a model of usual depth then
/// has about this size, so that each tensor parallelism of a node divides them; else of 4, 2 or 1.
fn scale_to_size(like: &Model, target: f64) -> Result<Model, Problems> {
    let (heads, group) = (like.heads(), like.heads / like.heads().kv);
    let ratio = like.ffn_hidden as f64 / like.hidden as f64;
    let model = |heads_count: usize, layers: usize| {
        let hidden = heads_count * heads.dim;
        let ffn_hidden = ((ratio * hidden as f64).round() as usize).next_multiple_of(64);
        let kv_heads = like.kv_heads.map(|_| heads_count / group);
        Model { heads: heads_count, kv_heads, hidden, ffn_hidden, layers, ..like.clone() }
    };
    let size = |m: &Model| (parameters(m) as f64 / target).ln().abs();
    let shape = |m: &Model| {
        (m.hidden as f64 / m.layers as f64 / width_per_layer(target))
            .ln()
            .abs()
    };
    let far = |m: &Model| 10.0 * size(m) + shape(m);
    let nearest = |multiple: usize| {
        let widths = (1..=512).map(|width| width * multiple * group);
        let shapes = widths.flat_map(|width| (1..=80).map(move |pairs| (width, 2 * pairs)));
        let models = shapes.map(|(width, layers)| model(width, layers));
        models
            .min_by(|a, b| far(a).total_cmp(&far(b)))
            .expect("there are models")
    };
    let found = [8, 4, 2]
        .into_iter()
        .map(nearest)
        .find(|m| size(m) < OFF && shape(m) < 2f64.ln())
        .unwrap_or_else(|| nearest(1));
    if size(&found) > OFF {
        return Err(Problems::one(
            "--sizes",
            format!("no model of this family's proportions has {target:.3e} parameters"),
            "give sizes such as 125M or 1.3B",
        ));
    }
    Ok(found)
}

/// Deviation of a size, as a logarithm, up to which a model has it.
const OFF: f64 = 0.1;

const ONE_DEVICE: [&str; 11] = [
    "topology.tensor=1",
    "topology.pipeline=1",
    "topology.data=1",
    "topology.zero=0",
    "topology.shard=all",
    "topology.states=all",
    "topology.schedule=1f1b",
    "topology.chunks=null",
    "topology.layer_split=uniform",
    "topology.sequence_parallel=false",
    "batch.micro=1",
];

/// Model of the campaign.
pub struct Member {
    /// Nominal number of parameters.
    pub size: f64,
    pub manifest: Manifest,
    pub terms: Terms,
    /// Best plan for it, or the reason why there is none.
    pub best: Result<Planned, String>,
}

impl Member {
    fn parameters(&self) -> f64 {
        parameters(&self.manifest.model) as f64
    }

    fn tokens(&self) -> f64 {
        self.terms.tokens as f64
    }

    /// Settings of the manifest `like` for this model and its best plan.
    fn sets(&self, like: &Manifest) -> Option<Vec<String>> {
        let mut sets = sized_sets(like, &self.best.as_ref().ok()?.candidate.setup);
        sets.push(format!("train.tokens={:.0}", self.tokens()));
        Some(sets)
    }

    /// Cell of the best plan; empty without one.
    fn planned(&self, cell: impl Fn(&Planned) -> Cell) -> Cell {
        self.best.as_ref().map_or(Cell::default(), cell)
    }

    /// Remarks on the size, and the reason why there is no plan.
    fn notes(&self) -> Vec<String> {
        let size = self.parameters();
        let name = short(self.size);
        let mut notes = Vec::new();
        if (size / self.size).ln().abs() > OFF {
            let all = short(size);
            let vocab = Count(self.manifest.model.vocab as u64);
            notes.push(format!("{name}: {all} parameters with the vocabulary of {vocab}"));
        }
        notes.extend(self.best.as_ref().err().map(|why| format!("{name}: {why}")));
        notes
    }
}

/// Table with a row per model. Seconds of a step are in the unit of the slowest one.
fn table(like: &Manifest, members: &[Member], law: Law, slowest: f64) -> Table {
    let loss = |m: &Member| law.loss(m.parameters(), m.tokens());
    Rows::new(members)
        .text("size", |m| Cell::new(m.size, short(m.size)))
        .text("layers×width", |Member { manifest: Manifest { model, .. }, .. }| {
            format!("{}×{}", model.layers, model.hidden)
        })
        .column("h/L", "width_per_layer", |Member { manifest: Manifest { model, .. }, .. }| {
            Cell::fixed(model.hidden as f64 / model.layers as f64, 0)
        })
        .column("tokens", "tokens", |m| Cell::new(m.tokens(), short(m.tokens())))
        .column("loss", "loss", |m| Cell::optional(loss(m).map(|loss| Cell::fixed(loss, 2))))
        .json("parameters", |m| m.parameters())
        .json("layers", |m| m.manifest.model.layers)
        .json("hidden", |m| m.manifest.model.hidden)
        .json("fits", |m| m.best.is_ok())
        .json("why", |m| {
            m.best
                .as_ref()
                .map_or_else(|why| why.clone().into(), |_| Cell::default())
        })
        .column("topology", "topology", |m| match &m.best {
            Ok(best) => topology(&best.candidate).into(),
            Err(_) => Cell::without_value("none"),
        })
        .text("GiB", |m| m.planned(|p| Cell::fixed(p.candidate.bytes / GIB, 1)))
        .column("per step", "sec_per_iter", |m| {
            m.planned(|p| {
                Cell::new(p.candidate.seconds, seconds_in_unit_of(p.candidate.seconds, slowest))
            })
        })
        .json("time_bar", |m| m.planned(|p| p.candidate.seconds_error.into()))
        .column("time", "days", |m| m.planned(|p| m.terms.days_cell(&p.days, span)))
        .column("cost", "money", |m| m.planned(|p| m.terms.cost_cell(&p.days)))
        .json("set", |m| {
            m.sets(like)
                .map_or(Cell::default(), |sets| flags_json(&sets).into())
        })
        .table()
}

/// "TP 1 PP 4 DP 16 Z0 mb 1"
fn topology(candidate: &Candidate) -> String {
    let t = &candidate.setup.topology;
    let micro = candidate.setup.micro;
    format!("TP {} PP {} DP {} Z{} mb {micro}", t.tensor, t.pipeline, t.data, t.zero)
}

/// Plans of models of the proportions of `like`, and their sum.
pub fn printout(like: &Manifest, members: &[Member], law: Law, devices: usize) -> Printout {
    let mut slowest = 0.0;
    let mut seconds = 0.0;
    let mut sum = 0.0;
    let mut notes = Vec::new();
    for member in members {
        if let Ok(Planned { candidate, days }) = &member.best {
            slowest = candidate.seconds.max(slowest);
            seconds += member.terms.calendar_seconds(days);
            sum += member.terms.cost(days);
            let setup = &candidate.setup;
            notes = setup.hardware.notes(setup.program.name(), seconds);
        }
    }
    let fits = members.iter().all(|member| member.best.is_ok());
    let table = table(like, members, law, slowest);
    let mut out = Printout::new(
        json!({ "sizes": table.json(), "days": seconds / 86400.0, "money": sum, "fits": fits }),
    );
    out.table(table);
    for member in members {
        out.push_indented(member.notes());
    }
    let partly = if fits { "" } else { ", without those that have no plan" };
    let paid = match members.first() {
        Some(member) if member.terms.has_price() => format!(", {}", member.terms.money(sum)),
        _ => String::new(),
    };
    let devices = words::devices(devices);
    let time = span(seconds);
    out.line(format!("\nall on {devices}, one after the other{partly}: {time}{paid}"));
    out.push_indented(notes);
    for member in members {
        if let Some(sets) = member.sets(like) {
            out.line(format!("\n{}", short(member.size)));
            out.push_indented(flag_lines(&sets));
        }
    }
    out
}

/// Size as text, such as "1.3B".
fn short(count: f64) -> String {
    match count {
        1e12.. => format!("{:.2}T", count / 1e12),
        1e10.. => format!("{:.0}B", count / 1e9),
        1e9.. => format!("{:.1}B", count / 1e9),
        _ => format!("{:.0}M", count / 1e6),
    }
}

/// Chinchilla's own model: 70 billion parameters, 1.4 trillion tokens.
#[test]
fn chinchillas_law_gives_chinchilla() {
    let tokens = Law::CHINCHILLA.tokens(70e9);
    assert!((1.0e12..1.7e12).contains(&tokens), "{tokens:e}");
    assert_eq!(Law::read("20"), Ok(Law::PerParameter(20.0)));
    assert_eq!(Law::PerParameter(20.0).tokens(1e9), 2e10);
    let fit = Law::read("1.8172, 482.01, 0.3478, 2085.43, 0.3658").unwrap();
    assert_eq!(fit, Law::CHINCHILLA);
    // With these tokens any other split of the same FLOPs has a higher loss.
    let best = fit.loss(70e9, tokens).unwrap();
    for other in [0.7, 1.4] {
        assert!(fit.loss(70e9 * other, tokens / other).unwrap() > best);
    }
    for wrong in ["", "x", "1,2", "-3", "1,2,3,4,0"] {
        assert!(Law::read(wrong).is_err(), "{wrong}");
    }
}
