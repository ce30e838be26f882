//! The share that each part of the predictor has in its accuracy: formulas, the fit of their constants, and
//! the residuals that are learned from measured runs. Each is left out in turn, and a table is printed.

use gptrain::predict::cost::Constants;
use gptrain::predict::rows::{self, Row};
use gptrain::predict::score::{self, Errors};
use gptrain::predict::{Predictor, fitted};
use std::collections::BTreeSet;

/// Mean errors of time and memory with a part left out.
struct Parts {
    /// Formulas with constants of round numbers.
    formulas: [f64; 2],
    /// Formulas with fitted constants.
    fitted: [f64; 2],
    /// Formulas with constants of round numbers, and learned residuals.
    learned: [f64; 2],
    /// The predictor as it is.
    all: [f64; 2],
}

/// Predicts each part of the rows from the others. `part` is the name of a row's part.
fn leave_out(title: &str, part: fn(&Row) -> String) -> Parts {
    let all = rows::shipped();
    let round = Constants::prior();
    let mut scored = [const { Vec::new() }; 4];
    for name in all
        .iter()
        .map(|row| part(row))
        .collect::<BTreeSet<String>>()
    {
        let (inside, others): (Vec<&Row>, Vec<&Row>) =
            all.iter().partition(|row| part(row) == name);
        let fit = fitted::fit_constants(&others, fitted::shipped(), fitted::NEARLY_CONVERGED);
        let none: &[&Row] = &[];
        let variants = [(&round, none), (&fit, none), (&round, &others), (&fit, &others)];
        for ((constants, learned), scored) in variants.into_iter().zip(&mut scored) {
            let predictor = Predictor::new(constants, learned, &[]);
            scored.extend(score::score_all(&predictor, inside.iter().copied()));
        }
    }
    let names = ["formulas", "formulas, fit", "formulas, residuals", "formulas, fit, residuals"];
    let errors = |number: usize| -> [f64; 2] {
        let every = |_: &Row| true;
        let time = score::time_errors(&scored[number], &every);
        let memory = score::memory_errors(&scored[number], &every);
        let text = |errors: &Errors| {
            let [mean, within] = [errors.mean, errors.within_bar].map(|share| 100.0 * share);
            format!("{mean:.1} % ({within:.0} % within {:.0} %)", 100.0 * errors.bar)
        };
        println!("{title}: {:26} {:28} {}", names[number], text(&time), text(&memory));
        [time.mean, memory.mean]
    };
    let [formulas, fitted, learned, all] = [0, 1, 2, 3].map(errors);
    Parts { formulas, fitted, learned, all }
}

/// A tenth of the configurations at a time: the residuals carry most, and the fit a little.
#[test]
fn each_part_improves_known_clusters() {
    let tenth = |row: &Row| {
        let sum: usize = row.group.bytes().map(usize::from).sum();
        (sum % 10).to_string()
    };
    let parts = leave_out("configurations", tenth);
    assert!(parts.fitted[0] < 0.9 * parts.formulas[0]);
    assert!(parts.learned[0] < 0.3 * parts.formulas[0]);
    assert!(parts.learned[1] < 0.6 * parts.formulas[1]);
    assert!(parts.all[0] < parts.learned[0] && parts.all[0] < 0.055, "{}", parts.all[0]);
}

/// A source at a time: residuals of other sources help here too. The fit does not (docs/estimate.md).
#[test]
fn residuals_improve_unseen_sources() {
    let parts = leave_out("sources", |row| row.source.clone());
    for (with, without) in [(parts.learned, parts.formulas), (parts.all, parts.fitted)] {
        assert!(with[0] < 0.8 * without[0], "{with:?}, {without:?} without residuals");
    }
    assert!(parts.all[0] < 0.25 && parts.all[1] < 0.15, "{:?}", parts.all);
}
