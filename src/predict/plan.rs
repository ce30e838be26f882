//! Plans of other programs: the view of a prediction, and advice.

use super::predictor::{Prediction, Predictor};
use super::shape_lint;
use base::table::{Cell, Printout, Rows, Table};
use estimate::change::{Proposal, propose_faster, propose_smaller};
use estimate::days::plan_run;
use estimate::gptrain::cuts::is_permitted;
use estimate::predict::{Needs, Predict};
use estimate::setup::Setup;
use estimate::verdict::{MemoryFit, OFFERED};
use estimate::view::{GB, GIB, Stage, Terms, View};
use estimate::words;
use manifest::Manifest;
use serde_json::json;

impl Predict for Predictor {
    fn verdict(&self, setup: &Setup) -> MemoryFit {
        Predictor::verdict(self, setup)
    }

    fn needs(&self, setup: &Setup) -> Needs {
        let Prediction { seconds, seconds_error, gigabytes, verdict, .. } = self.predict(setup);
        Needs { seconds, seconds_error, bytes: gigabytes * GB, verdict }
    }

    fn view(&self, m: &Manifest, setup: Setup, terms: Terms) -> View {
        let p = self.predict(&setup);
        let needed = p.memory.needed();
        // The correction by residuals applies to each term.
        let shrink = (p.gigabytes / needed).min(1.0);
        let cuts = setup.stages();
        let scale = p.seconds / p.time.total();
        View {
            name: m.name.clone(),
            program: setup.program.name(),
            parameters: setup.parameters(),
            stages: p
                .memory
                .stages
                .iter()
                .enumerate()
                .map(|(i, parts)| Stage {
                    layers: cuts[i].len(),
                    parameters: setup.stage_parameters(i).iter().sum(),
                    terms: parts
                        .iter()
                        .map(|(name, gb)| (*name, gb * shrink * GB))
                        .collect(),
                    sends: Default::default(),
                })
                .collect(),
            counted: Vec::new(),
            needed: needed * shrink * GB,
            reserved: p.gigabytes * GB,
            reserved_error: p.gigabytes_error,
            headroom: 0.0,
            capacity: p.memory.capacity * GB,
            host_needed: 0.0,
            host_capacity: setup.hardware.host_gib * GIB,
            checkpoints_in_memory: 0.0,
            device_verdict: p.verdict,
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
            days: plan_run(&m.schedule(), terms.samples, &setup, &mut |s| self.predict(s).seconds),
            terms,
            setup,
            planned_seconds: None,
        }
    }

    fn advise(&self, m: &Manifest, v: &View, out: &mut Printout) {
        let now = &self.predict(&v.setup);
        let shape = shape_lint::lint(&v.setup);
        if !shape.is_empty() {
            out.line("\nShape");
            out.push_indented(&shape);
        }
        out.json["shape"] = shape.into();
        out.json["measured_only_on"] = json!(now.only_site);
        if let Some(site) = now.only_site {
            out.line(format!(
                "\n{} was measured only on {site}: elsewhere its time is doubtful, most of all over\n\
                 several nodes. Two rows of your own (--calibrate) end that.",
                v.program
            ));
        }
        let fits = v.device_verdict == MemoryFit::Fits;
        let (title, key, list, shown) = if fits {
            let list = speed_ups(self, m, &v.setup, now);
            ("Changes that make it faster, largest gain first", "faster", list, 6)
        } else {
            let list = memory_remedies(self, m, &v.setup, now);
            ("Changes that make it fit, cheapest first", "ladder", list, 8)
        };
        if list.is_empty() && !fits {
            out.line(
                "\nNo change of one or two steps fits: more devices (--min-gpus) or a smaller model.",
            );
        }
        out.json[key] = changes_table(&list, v, now).json();
        out.table(changes_table(list.iter().take(shown), v, now).titled(title));
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
/// enough. If none does for sure, those whose figure fits.
fn memory_remedies(
    predictor: &Predictor,
    m: &Manifest,
    setup: &Setup,
    now: &Prediction,
) -> Vec<Change> {
    let evaluated = |mut proposals: Vec<Proposal>| -> Vec<Change> {
        proposals.retain(|proposal| is_permitted(m, &proposal.setup));
        let changes = proposals.into_iter();
        changes
            .map(|proposal| evaluate(predictor, proposal))
            .collect()
    };
    let pairs = || -> Vec<Proposal> {
        let singles = propose_smaller(setup).into_iter();
        singles
            .flat_map(|first| {
                let second = propose_smaller(&first.setup).into_iter();
                second.map(move |second| first.and(second))
            })
            .collect()
    };
    let [fits, figure_fits, _] = OFFERED;
    let before = now.verdict.share_beyond();
    let within = |changes: &[Change], most: f64| -> Vec<Change> {
        let share = |change: &&Change| change.prediction.verdict.share_beyond();
        let chosen = changes
            .iter()
            .filter(|change| share(change) <= most && share(change) < before);
        chosen.cloned().collect()
    };
    let singles = evaluated(propose_smaller(setup));
    let mut found = within(&singles, fits);
    if found.is_empty() {
        let pairs = evaluated(pairs());
        let choices = [(&pairs, fits), (&singles, figure_fits), (&pairs, figure_fits)];
        let mut choices = choices
            .into_iter()
            .map(|(changes, most)| within(changes, most));
        found = choices.find(|found| !found.is_empty()).unwrap_or_default();
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
        .filter(|change| change.prediction.verdict == MemoryFit::Fits && gain(change) > 0.005)
        .collect();
    found.sort_by(|a, b| gain(b).total_cmp(&gain(a)));
    found
}

fn evaluate(predictor: &Predictor, proposal: Proposal) -> Change {
    let Proposal { what, sets, setup, .. } = proposal;
    Change { what, sets, prediction: predictor.predict(&setup), setup }
}

/// Changes, each with its cost in seconds per step.
fn changes_table<'a>(
    list: impl IntoIterator<Item = &'a Change>,
    from: &View,
    now: &Prediction,
) -> Table {
    let cost = |change: &Change| change.cost(&from.setup, now);
    Rows::new(list)
        .column("change", "change", |c| c.what.clone())
        .column("s/step", "cost_seconds", |c| Cell::new(cost(c), format!("{:+.2}", cost(c))))
        .text("", |c| words::change(now.seconds, now.seconds + cost(c)))
        .column("GiB", "mem_gib", |c| Cell::fixed(c.prediction.gigabytes * GB / GIB, 1))
        .json("set", |c| Cell::new(c.sets.clone(), ""))
        .column("fits", "fits", |c| c.prediction.verdict.answer())
        .json("share_beyond", |c| c.prediction.verdict.share_beyond())
        .table()
}
