//! Constants of gptrain's own plan, learned from the measured steps of several cuts (`gptrain tune`):
//! a factor for each part of a step, as far as the cuts differ in it, and then the slowdown.

use super::{drift, dry_run, stage_times};
use crate::hardware::Hardware;
use crate::parts::{Part, PartSeconds};
use crate::setup::Setup;
use crate::tuned::Tuned;
use base::Problems;
use manifest::Manifest;
use plan::robust::{NORMAL, median};
use std::path::Path;

/// Measured cut.
struct Cut {
    stages: Vec<dry_run::Stage>,
    setup: Setup,
    /// Seconds of a step.
    measured: f64,
}

/// Cuts from which factors of parts are learned: fewer do not tell the parts apart.
const FEWEST: usize = 4;

/// Weight of a factor's logarithm, squared, among the squared relative errors of the cuts: a part that
/// explains little keeps its plan.
const RIDGE: f64 = 0.01;

/// Steps of a factor's logarithm.
const STEPS: [f64; 5] = [0.4, 0.2, 0.1, 0.05, 0.02];

/// Half the error of a plan that was learned so, for a cut that was not measured.
const LEARNED: f64 = 0.05;

/// Setup of the plan of `m` with what the cuts of a document took. Also returns a summary in one line.
/// `name` is the document's file.
pub fn learn(
    tuned: &Tuned,
    name: &str,
    m: &Manifest,
    setup: Setup,
) -> Result<(Setup, String), Problems> {
    let ours = &setup.hardware.name;
    if tuned.hardware != *ours {
        let its = &tuned.hardware;
        let what = format!("was planned for {its}, and this plan is for {ours}");
        return Err(Problems::one(name, what, format!("--hardware {its}")));
    }
    if tuned.precision != m.precision {
        let its = tuned.precision.name();
        let what = format!("was run in {its}, and the plan is in {}", m.precision.name());
        return Err(Problems::one(name, what, format!("--set precision={its}")));
    }
    let mut cuts = Vec::new();
    for row in &tuned.rows {
        let (Some(measured), Some(global)) = (row.sec, row.global_batch) else { continue };
        let m = manifest::parse(&tuned.manifest, name, Path::new("."), &row.set)?.manifest;
        let setup = Setup { global, ..setup.for_manifest(&m) };
        cuts.push(Cut { stages: dry_run::stages(&m), setup, measured });
    }
    if cuts.is_empty() {
        let remedy = "give a table of gptrain tune with a measured cut";
        return Err(Problems::one(name, "none of its rows has a time", remedy));
    }
    let parts = fit_parts(&cuts);
    let hardware: &'static Hardware =
        Hardware { parts: multiply(setup.hardware.parts, parts), ..setup.hardware.clone() }.leak();
    let ratios: Vec<f64> = cuts
        .iter()
        .map(|cut| cut.measured / cut.planned(hardware))
        .collect();
    let slowdown = median(ratios.iter().copied());
    let errors: Vec<f64> = ratios
        .iter()
        .map(|ratio| (ratio / slowdown - 1.0).abs())
        .collect();
    let worst = errors.iter().copied().fold(0.0, f64::max);
    let learned = Hardware {
        slowdown: hardware.slowdown * slowdown,
        scatter: NORMAL * median(errors.iter().copied()),
        uncertainty: LEARNED,
        measured_devices: cuts.iter().map(|cut| cut.setup.ranks()).max().unwrap_or(0),
        ..hardware.clone()
    };
    let line = describe(&cuts, parts, slowdown, median(errors), worst, ours);
    Ok((Setup { hardware: learned.leak(), ..setup }, line))
}

impl Cut {
    fn planned(&self, hardware: &'static Hardware) -> f64 {
        stage_times::seconds(&self.stages, &Setup { hardware, ..self.setup.clone() })
    }
}

fn multiply(a: PartSeconds, b: PartSeconds) -> PartSeconds {
    std::array::from_fn(|part| a[part] * b[part])
}

/// Factor of each part with which the plans come nearest to the measured times, up to a common factor:
/// a descent along one part at a time.
fn fit_parts(cuts: &[Cut]) -> PartSeconds {
    let mut logs = [0.0; Part::COUNT];
    if cuts.len() < FEWEST {
        return logs.map(f64::exp);
    }
    let planned: Vec<PartSeconds> = cuts
        .iter()
        .map(|cut| drift::by_part(&cut.stages, &cut.setup, 0))
        .collect();
    let error = |logs: &PartSeconds| -> f64 {
        let mut ratios = Vec::new();
        for (cut, parts) in cuts.iter().zip(&planned) {
            let seconds: f64 = std::iter::zip(parts, logs)
                .map(|(s, log)| s * log.exp())
                .sum();
            ratios.push((cut.measured / seconds).ln());
        }
        let mean = ratios.iter().sum::<f64>() / ratios.len() as f64;
        let errors: f64 = ratios.iter().map(|ratio| (ratio - mean).powi(2)).sum();
        errors + RIDGE * logs.iter().map(|log| log * log).sum::<f64>()
    };
    let mut least = error(&logs);
    for step in STEPS {
        loop {
            let before = least;
            for part in 0..Part::COUNT {
                for change in [step, -step] {
                    let mut tried = logs;
                    tried[part] += change;
                    let its = error(&tried);
                    if its < least {
                        (least, logs) = (its, tried);
                    }
                }
            }
            if least > 0.999 * before {
                break;
            }
        }
    }
    logs.map(f64::exp)
}

fn describe(
    cuts: &[Cut],
    parts: PartSeconds,
    slowdown: f64,
    usual: f64,
    worst: f64,
    hardware: &str,
) -> String {
    let factors = Part::ALL
        .iter()
        .map(|(part, name)| (name, parts[*part as usize]));
    let named: Vec<String> = factors
        .filter(|(_, factor)| (factor - 1.0).abs() > 0.01)
        .map(|(name, factor)| format!("{name} {factor:.2}"))
        .collect();
    let after = if named.is_empty() {
        String::new()
    } else {
        format!(", after each part's own factor: {}", named.join(", "))
    };
    format!(
        "learned from {} cuts: they took {slowdown:.2} times what is planned for {hardware}{after}; \
         the plan is then within {:.1} % of them at the median, {:.1} % at most",
        cuts.len(),
        100.0 * usual,
        100.0 * worst
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hardware;
    use crate::setup::Program;
    use crate::tuned::{CutResult, FORMAT, TunedRow};

    const TEXT: &str = "
model: {layers: 4, hidden: 64, heads: 4, vocab: 256, seq_len: 32}
data: {train: none}
batch: {micro: 1, global: 16}
lr: {peak: 1e-3}
topology: {data: 4}
train: {samples: 800}
";
    const CUTS: [&[&str]; 6] = [
        &["topology.data=4"],
        &["topology.tensor=2", "topology.data=2"],
        &["topology.tensor=4", "topology.data=1"],
        &["topology.pipeline=2", "topology.data=2"],
        &["topology.data=4", "batch.micro=4"],
        &["topology.pipeline=4", "topology.data=1", "batch.micro=2"],
    ];

    /// Document of cuts that took `seconds` of what `hardware` plans.
    fn document(hardware: &'static Hardware, seconds: impl Fn(f64) -> f64) -> Tuned {
        let m = manifest::for_test::<&str>(TEXT, &[]);
        let base = Setup::new(&m, Program::Gptrain, hardware);
        let row = |sets: &&[&str]| {
            let m = manifest::for_test(TEXT, sets);
            let planned = stage_times::seconds(&dry_run::stages(&m), &base.for_manifest(&m));
            TunedRow {
                set: sets.iter().map(|set| set.to_string()).collect(),
                result: CutResult::Measured,
                global_batch: Some(16),
                sec: Some(seconds(planned)),
                ..TunedRow::default()
            }
        };
        Tuned {
            format: FORMAT.into(),
            name: "test".into(),
            manifest: TEXT.into(),
            precision: m.precision,
            hardware: hardware.name.clone(),
            steps: 5,
            rows: CUTS.iter().map(row).collect(),
        }
    }

    #[test]
    fn a_slower_machine_and_its_slower_part_are_learned() {
        let cpu = hardware::find("cpu", "test").unwrap();
        let m = manifest::for_test::<&str>(TEXT, &[]);
        let setup = || Setup::new(&m, Program::Gptrain, cpu);
        let plain = document(cpu, |planned| 3.0 * planned);
        let (learned, line) = learn(&plain, "t.json", &m, setup()).unwrap();
        assert!((learned.hardware.slowdown / cpu.slowdown - 3.0).abs() < 1e-9, "{line}");
        let mut parts = cpu.parts;
        parts[Part::Products as usize] *= 4.0;
        let slow: &Hardware = Hardware { parts, ..cpu.clone() }.leak();
        let (learned, line) = learn(&document(slow, |s| s), "t.json", &m, setup()).unwrap();
        for sets in CUTS {
            let m = manifest::for_test(TEXT, sets);
            let stages = dry_run::stages(&m);
            let seconds = |hardware| {
                stage_times::seconds(&stages, &Setup::new(&m, Program::Gptrain, hardware))
            };
            let error = seconds(learned.hardware) / seconds(slow) - 1.0;
            assert!(error.abs() < 0.05, "{sets:?}: {error} {line}");
        }
    }

    #[test]
    fn other_documents_are_refused() {
        let cpu = hardware::find("cpu", "test").unwrap();
        let m = manifest::for_test::<&str>(TEXT, &[]);
        let setup = Setup::new(&m, Program::Gptrain, cpu);
        let good = document(cpu, |seconds| seconds);
        let refused = |tuned: Tuned| {
            let found = learn(&tuned, "t.json", &m, setup.clone());
            found.map(|(_, line)| line).unwrap_err().to_string()
        };
        let other = Tuned { hardware: "h100-80g".into(), ..good.clone() };
        assert!(refused(other).contains("--hardware h100-80g"));
        let other = Tuned { precision: manifest::Precision::Bf16, ..good.clone() };
        assert!(refused(other).contains("--set precision=bf16"));
        assert!(refused(Tuned { rows: Vec::new(), ..good.clone() }).contains("has a time"));
        let text = serde_json::to_string(&good).unwrap();
        assert_eq!(Tuned::read(&text, "t").unwrap(), Some(good));
        assert_eq!(Tuned::read("{\"format\": \"gptrain bench 1\"}", "t").unwrap(), None);
        let damaged = text.replace("\"rows\"", "\"rosw\"");
        assert!(
            Tuned::read(&damaged, "t")
                .unwrap_err()
                .to_string()
                .contains("is damaged")
        );
    }
}
