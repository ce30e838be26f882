//! Plans of other programs: the view of a prediction, and advice.

use super::predictor::{Prediction, Predictor};
use super::shape_lint;
use estimate::change::{Proposal, propose_faster, propose_smaller};
use estimate::days::through;
use estimate::gptrain::cuts::is_permitted;
use estimate::predict::{Needs, Predict};
use estimate::setup::Setup;
use estimate::view::{GB, GIB, Stage, Terms, View};
use manifest::Manifest;
use model::parameters;
use serde_json::{Value, json};
use std::fmt::Write;

impl Predict for Predictor {
    fn fits(&self, setup: &Setup) -> bool {
        Predictor::fits(self, setup)
    }

    fn needs(&self, setup: &Setup) -> Needs {
        let Prediction { seconds, seconds_error, gigabytes, .. } = self.predict(setup);
        Needs { seconds, seconds_error, bytes: gigabytes * GB }
    }

    fn view(&self, m: &Manifest, setup: Setup, terms: Terms) -> View {
        view(self, m, setup, terms)
    }

    fn advise(&self, m: &Manifest, v: &View, text: &mut String, json: &mut Value) {
        advise(self, m, v, text, json);
    }
}

/// View of another program's estimate.
fn view(predictor: &Predictor, m: &Manifest, setup: Setup, terms: Terms) -> View {
    let p = predictor.predict(&setup);
    let needed = p.memory.needed();
    // The correction by residuals applies to each term; a plan that does not fit is not capped.
    let (shrink, reserved) = if p.fits {
        ((p.gigabytes / needed).min(1.0), p.gigabytes)
    } else {
        (1.0, p.gigabytes.max(needed))
    };
    let cuts = setup.stages();
    let scale = p.seconds / p.time.total();
    View {
        name: m.name.clone(),
        program: setup.program.name(),
        parameters: parameters(&setup.model),
        stages: p
            .memory
            .stages
            .iter()
            .enumerate()
            .map(|(i, parts)| {
                let last = i + 1 == cuts.len();
                Stage {
                    layers: cuts[i].len(),
                    parameters: setup
                        .counts
                        .stage(&setup.model, cuts[i].len(), i == 0, last),
                    terms: parts
                        .iter()
                        .map(|(name, gb)| (*name, gb * shrink * GB))
                        .collect(),
                    sends: Default::default(),
                }
            })
            .collect(),
        needed: needed * shrink * GB,
        reserved: reserved * GB,
        reserved_error: p.gigabytes_error,
        headroom: 0.0,
        capacity: p.memory.capacity * GB,
        host_needed: 0.0,
        host_capacity: setup.hardware.host_gib * GIB,
        fits: p.fits,
        parts: p
            .time
            .parts
            .iter()
            .map(|(name, seconds)| (*name, seconds * scale))
            .collect(),
        stage_seconds: p
            .time
            .stage_seconds
            .iter()
            .map(|seconds| seconds * scale)
            .collect(),
        seconds: p.seconds,
        seconds_error: p.seconds_error,
        days: through(m.batch.ramp(), terms.samples, &setup, &mut |s| predictor.predict(s).seconds),
        terms,
        setup,
    }
}

/// Changed plan.
#[derive(Clone, Debug)]
struct Change {
    /// Description, such as "micro-batch 2 → 1".
    what: String,
    /// The manifest's settings for it, as `--set` takes them.
    sets: Vec<String>,
    setup: Setup,
    prediction: Prediction,
}

impl Change {
    /// Seconds for the tokens of one step of the plan as it was; negative is faster.
    fn cost(&self, from: &Setup, before: &Prediction) -> f64 {
        self.prediction.seconds * from.global as f64 / self.setup.global as f64 - before.seconds
    }
}

/// Smallest changes that make the plan fit, cheapest first: single ones, or pairs if no single one is
/// enough.
fn memory_remedies(predictor: &Predictor, m: &Manifest, setup: &Setup) -> Vec<Change> {
    let fitting = |mut proposals: Vec<Proposal>| -> Vec<Change> {
        proposals.retain(|proposal| is_permitted(m, &proposal.setup));
        let changes = proposals
            .into_iter()
            .map(|proposal| evaluate(predictor, proposal));
        changes.filter(|change| change.prediction.fits).collect()
    };
    let mut found = fitting(propose_smaller(setup));
    if found.is_empty() {
        let pairs = propose_smaller(setup).into_iter().flat_map(|first| {
            propose_smaller(&first.setup)
                .into_iter()
                .map(move |second| first.and(second))
        });
        found = fitting(pairs.collect());
    }
    found.sort_by(|a, b| a.prediction.seconds.total_cmp(&b.prediction.seconds));
    let mut seen: Vec<f64> = Vec::new();
    found.retain(|change| {
        let new = seen
            .iter()
            .all(|s| (s - change.prediction.seconds).abs() > 1e-9);
        seen.push(change.prediction.seconds);
        new
    });
    found
}

/// Changes that are faster and fit, the largest gain first.
fn speed_ups(predictor: &Predictor, m: &Manifest, setup: &Setup, now: &Prediction) -> Vec<Change> {
    let proposals = propose_faster(setup)
        .into_iter()
        .filter(|proposal| is_permitted(m, &proposal.setup));
    let changes = proposals.map(|proposal| evaluate(predictor, proposal));
    let gain = |change: &Change| -change.cost(setup, now) / now.seconds;
    let mut found: Vec<Change> = changes
        .filter(|change| change.prediction.fits && gain(change) > 0.005)
        .collect();
    found.sort_by(|a, b| gain(b).total_cmp(&gain(a)));
    found
}

fn evaluate(predictor: &Predictor, proposal: Proposal) -> Change {
    let Proposal { what, sets, setup, .. } = proposal;
    Change { what, sets, prediction: predictor.predict(&setup), setup }
}

fn advise(predictor: &Predictor, m: &Manifest, v: &View, text: &mut String, json: &mut Value) {
    let now = &predictor.predict(&v.setup);
    let found = shape_lint::lint(&v.setup);
    *text += &notes(&found);
    json["shape"] = json!(found);
    if v.fits {
        let list = speed_ups(predictor, m, &v.setup, now);
        *text += &printed("Faster, by seconds of a step", &list, v, now, 6);
        json["faster"] = changes_json(&list, v, now);
    } else {
        let list = memory_remedies(predictor, m, &v.setup);
        let none =
            "\nNo change of one or two steps fits: more devices (--min-gpus) or a smaller model.\n";
        let remedies = printed("Would fit, and what it costs a step", &list, v, now, 8);
        *text += if list.is_empty() { none } else { &remedies };
        json["ladder"] = changes_json(&list, v, now);
    }
}

/// Changes, each with its cost in seconds of a step.
fn printed(title: &str, list: &[Change], v: &View, now: &Prediction, most: usize) -> String {
    if list.is_empty() {
        return String::new();
    }
    let mut out = format!("\n{title}\n");
    for change in list.iter().take(most) {
        let cost = change.cost(&v.setup, now);
        let _ = writeln!(
            out,
            "  {:50}{cost:>+9.2} s {:>+7.1} %  {:>5.1} GiB",
            change.what,
            100.0 * cost / now.seconds,
            change.prediction.gigabytes * GB / GIB
        );
    }
    out
}

fn notes(list: &[String]) -> String {
    let lines: Vec<String> = list.iter().map(|note| format!("  {note}\n")).collect();
    if lines.is_empty() { String::new() } else { format!("\nShape\n{}", lines.concat()) }
}

fn changes_json(list: &[Change], from: &View, now: &Prediction) -> Value {
    list.iter()
        .map(|c| {
            json!({ "change": c.what, "set": c.sets, "cost_seconds": c.cost(&from.setup, now),
            "mem_gib": c.prediction.gigabytes * GB / GIB, "fits": c.prediction.fits })
        })
        .collect()
}
