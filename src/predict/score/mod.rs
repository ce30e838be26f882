//! Scores of predictions against measurements.

mod foreign;
mod held;
pub mod physics;
pub mod print;

use super::fitted;
use super::predictor::{Prediction, Predictor};
use super::rows::Row;
use estimate::verdict::MemoryFit;
use rayon::prelude::*;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// Row, and its prediction.
pub struct Scored<'a> {
    pub row: &'a Row,
    pub prediction: Option<Prediction>,
}

/// Number of parts of the cross-validation over configurations.
const PARTS: usize = 10;

/// Predicts every row from the others, without its own configuration.
pub fn predict_left_out<'a>(rows: &[&'a Row]) -> Vec<Scored<'a>> {
    let groups: BTreeSet<&str> = rows.iter().map(|row| row.group.as_str()).collect();
    let part: BTreeMap<&str, usize> = groups
        .into_iter()
        .enumerate()
        .map(|(at, group)| (group, at % PARTS))
        .collect();
    base::threads::init_rayon();
    let scored = (0..PARTS).into_par_iter().flat_map_iter(|out| {
        let (inside, others): (Vec<&'a Row>, Vec<&'a Row>) =
            rows.iter().partition(|row| part[row.group.as_str()] == out);
        let predictor = Predictor::new(
            &fitted::fit_constants(&others, fitted::shipped(), fitted::NEARLY_CONVERGED),
            &others,
            &[],
        );
        inside
            .into_iter()
            .map(move |row| score_row(&predictor, row))
            .collect::<Vec<_>>()
    });
    scored.collect()
}

/// Scores of a source that was left out, and of its rest after some of its rows were measured.
pub struct Unseen<'a> {
    pub source: &'a str,
    pub scored: Vec<Scored<'a>>,
    pub after: Vec<(usize, Vec<Scored<'a>>)>,
}

/// Numbers of a source's own rows that are added before the rest is scored again (`Unseen::after`).
const MEASURED: [usize; 3] = [2, 5, 20];

/// Predicts every source from all others.
pub fn sources_left_out<'a>(rows: &[&'a Row]) -> Vec<Unseen<'a>> {
    let sources: BTreeSet<&'a str> = rows.iter().map(|row| row.source.as_str()).collect();
    let sources: Vec<&'a str> = sources.into_iter().collect();
    base::threads::init_rayon();
    sources
        .into_par_iter()
        .map(|source| predict_source_left_out(source, rows))
        .collect()
}

fn predict_source_left_out<'a>(source: &'a str, rows: &[&'a Row]) -> Unseen<'a> {
    let (inside, others): (Vec<&'a Row>, Vec<&'a Row>) =
        rows.iter().partition(|row| row.source == source);
    let constants = fitted::fit_constants(&others, fitted::shipped(), fitted::NEARLY_CONVERGED);
    let predictor = Predictor::new(&constants, &others, &[]);
    let after = MEASURED
        .into_iter()
        .filter(|count| inside.len() > 2 * count)
        .map(|count| (count, predict_others(&predictor, &inside, count)))
        .collect();
    Unseen {
        source,
        scored: inside
            .into_iter()
            .map(|row| score_row(&predictor, row))
            .collect(),
        after,
    }
}

/// Predicts the rest of a source's rows after `count` of them, evenly through the source, were measured.
fn predict_others<'a>(before: &Predictor, rows: &[&'a Row], count: usize) -> Vec<Scored<'a>> {
    let pick = |own: bool| -> Vec<&'a Row> {
        let numbered = rows.iter().enumerate();
        let picked = numbered.filter(|(at, _)| ((at * count) % rows.len() < count) == own);
        picked.map(|(_, row)| *row).collect()
    };
    score_all(&before.with_own(&pick(true)), pick(false))
}

pub fn score_all<'a>(
    predictor: &Predictor,
    rows: impl IntoIterator<Item = &'a Row>,
) -> Vec<Scored<'a>> {
    rows.into_iter()
        .map(|row| score_row(predictor, row))
        .collect()
}

fn score_row<'a>(predictor: &Predictor, row: &'a Row) -> Scored<'a> {
    let setup = row.setup.as_ref().ok();
    Scored { row, prediction: setup.map(|setup| predictor.predict(setup)) }
}

/// Errors of rows with a common name.
pub type Named = (String, Errors);

/// Errors as shares of what was measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Errors {
    pub rows: usize,
    pub mean: f64,
    pub median: f64,
    pub p90: f64,
    pub worst: f64,
    /// Rows within their error bar, their share, and the median bar.
    pub within: usize,
    pub within_bar: f64,
    pub bar: f64,
}

impl Errors {
    /// Errors of triples (predicted, measured, error bar).
    pub fn new(all: &[(f64, f64, f64)]) -> Errors {
        if all.is_empty() {
            return Errors::default();
        }
        let mut errors: Vec<f64> = all.iter().map(|(p, m, _)| (p / m - 1.0).abs()).collect();
        let mut bars: Vec<f64> = all.iter().map(|(_, _, bar)| *bar).collect();
        errors.sort_by(f64::total_cmp);
        bars.sort_by(f64::total_cmp);
        let n = errors.len();
        let last = errors.len() - 1;
        let quantile = |share: f64| errors[((share * last as f64).round() as usize).min(last)];
        let inside = all
            .iter()
            .filter(|(p, m, bar)| (m / p).ln().abs() <= bar.ln_1p())
            .count();
        Errors {
            rows: n,
            mean: errors.iter().sum::<f64>() / n as f64,
            median: quantile(0.5),
            p90: quantile(0.9),
            worst: errors[last],
            within: inside,
            within_bar: inside as f64 / n as f64,
            bar: bars[last / 2],
        }
    }
}

/// Errors of the time of the rows that `of` selects.
pub fn time_errors(scored: &[Scored], of: &dyn Fn(&Row) -> bool) -> Errors {
    Errors::new(
        &scored
            .iter()
            .filter_map(|s| {
                let (_, seconds) = s.row.timing().filter(|_| of(s.row))?;
                let p = s.prediction.as_ref()?;
                Some((p.seconds, seconds, p.seconds_error))
            })
            .collect::<Vec<_>>(),
    )
}

pub fn memory_errors(scored: &[Scored], of: &dyn Fn(&Row) -> bool) -> Errors {
    Errors::new(
        &scored
            .iter()
            .filter_map(|s| {
                let (_, gb) = s.row.memory().filter(|_| of(s.row))?;
                let p = s.prediction.as_ref()?;
                Some((p.gigabytes, gb, p.gigabytes_error))
            })
            .collect::<Vec<_>>(),
    )
}

/// Verdicts about rows whose outcome is known: numbers of rows.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Outcomes {
    pub rows: usize,
    /// Rows whose verdict is that they fit, or that they do not, and how many of these are right.
    pub decided: usize,
    pub right: usize,
}

/// Compares whether runs fitted with their verdicts.
pub fn outcomes(scored: &[Scored], of: &dyn Fn(&Row) -> bool) -> Outcomes {
    let mut found = Outcomes::default();
    for s in scored.iter().filter(|s| of(s.row)) {
        let (Some(fitted), Some(prediction)) = (s.row.fits, &s.prediction) else { continue };
        found.rows += 1;
        if let MemoryFit::MayNotFit(_) = prediction.verdict {
            continue;
        }
        found.decided += 1;
        found.right += usize::from(fitted == (prediction.verdict == MemoryFit::Fits));
    }
    found
}

/// Jean Zay's rows on A100, whose times repeat from day to day: the known cluster.
pub fn is_known_cluster(row: &Row) -> bool {
    row.setup
        .as_ref()
        .is_ok_and(|s| s.hardware.name.starts_with("jean-zay"))
}

/// Those rows whose seconds were printed, not derived from TFLOPs or days.
pub fn has_printed_seconds(row: &Row) -> bool {
    is_known_cluster(row) && row.seconds_printed
}

/// Slowdown of the topology predicted to be fastest against the measured fastest, in each sweep of
/// topologies of one model over the same devices in one period.
pub fn regrets(scored: &[Scored]) -> Vec<(String, usize, f64)> {
    let mut sweeps: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
    for s in scored.iter().filter(|s| has_printed_seconds(s.row)) {
        let (Some((setup, seconds)), Some(p)) = (s.row.timing(), &s.prediction) else { continue };
        let m = &setup.model;
        let period = setup.regime.as_deref().unwrap_or("");
        let name = format!("{}x{}, {} GPUs, {period}", m.hidden, m.layers, setup.ranks());
        let tokens = setup.global as f64;
        if m.heads().dim % 8 == 0 && setup.global > 1500 && m.heads == 64 {
            sweeps
                .entry(name)
                .or_default()
                .push((p.seconds / tokens, seconds / tokens));
        }
    }
    let judged = sweeps
        .into_iter()
        .filter(|(_, ways)| ways.len() > 2)
        .map(|(name, ways)| {
            let pick = ways
                .iter()
                .min_by(|a, b| a.0.total_cmp(&b.0))
                .expect("a sweep has ways")
                .1;
            let best = ways.iter().map(|way| way.1).fold(f64::INFINITY, f64::min);
            (name, ways.len(), pick / best - 1.0)
        });
    judged.collect()
}

/// Rows of source 004 (Hugging Face's trainer, DDP and FSDP on Jean Zay's A100) under a machine's plain name:
/// nine in ten are in their bars.
#[test]
fn rows_of_one_site_are_in_their_bars_under_a_plain_name() {
    use estimate::{hardware, setup::Setup};
    let shipped = super::rows::read(super::rows::SHIPPED, "shipped").unwrap();
    for (name, far) in [("a100-80g", 0.45), ("jean-zay-a100", 0.25)] {
        let hardware = hardware::find(name, "test").unwrap();
        let plain = |row: &Row| {
            let setup = row.setup.clone().ok()?;
            let is_asked = row.source == "004" && setup.hardware.family == "a100";
            let setup = Setup { hardware, regime: None, blocking: hardware.blocking, ..setup };
            let row = Row { use_time: true, setup: Ok(setup), ..row.clone() };
            (is_asked && row.seconds.is_some()).then_some(row)
        };
        let rows: Vec<Row> = shipped.iter().filter_map(plain).collect();
        let errors = time_errors(&score_all(Predictor::shipped(), &rows), &|_| true);
        assert!(errors.rows >= 19, "{errors:?}");
        assert!(errors.within_bar >= 0.89 && errors.mean < far, "{name}: {errors:?}");
    }
}

/// Two own rows on a machine that differs from a measured one narrow its bar and correct its plans.
#[test]
fn two_own_rows_narrow_the_bar_of_a_machine_like_another() {
    use super::rows::{Given, read_with};
    use estimate::{hardware, machine};
    let base = hardware::find("a100-80g", "test").unwrap();
    let own = machine::with_settings(base, &["hardware.network_gb_s=100".to_string()]).unwrap();
    let given = Given { machine: Some(own), family: None };
    let table = "id,hardware,n_layers,hidden,n_heads,vocab,seq_len,framework,tp,pp,dp,mbs,gbs\n\
        a,NAME,32,4096,32,50304,2048,megatron-lm,4,2,4,1,512\n\
        b,NAME,40,5120,40,50304,2048,megatron-lm,8,1,4,2,256\n\
        c,NAME,32,4096,32,50304,2048,megatron-lm,2,4,8,1,1024\n";
    let mut rows = read_with(&table.replace("NAME", &own.name), "test", given).unwrap();
    let planned = rows[2].setup.clone().unwrap();
    let before = Predictor::shipped().predict(&planned);
    rows.truncate(2);
    let slower = 1.4;
    for row in &mut rows {
        let setup = row.setup.clone().unwrap();
        row.seconds = Some(slower * Predictor::shipped().predict(&setup).seconds);
    }
    let after = Predictor::calibrated(&rows).predict(&planned);
    let error = after.seconds / (slower * before.seconds) - 1.0;
    assert!(error.abs() < 0.1, "{error}");
    let [wide, narrow] = [before.seconds_error, after.seconds_error];
    assert!(narrow < 0.3 && narrow < wide - 0.15, "{narrow} of {wide}");
}
