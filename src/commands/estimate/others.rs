//! Plans of other programs, by the crate `predict`: `--as`, `--selftest`, `--score`.

use super::Estimate;
use super::records::read;
use base::Problems;
use estimate::hardware::{self, Hardware};
use estimate::machine;
use estimate::setup::Setup;
use estimate::trainers::{self, Trainer};
use predict::rows::Given;
use predict::{Predictor, calibrate, rows, score};

/// Number of skipped log lines that are printed.
const SHOWN: usize = 10;

/// Predictor from the shipped runs, and from those of --calibrate: a csv, or a log of the run that
/// `setup` plans. Prints a summary on stderr.
pub fn load_predictor(
    args: &Estimate,
    setup: Option<&Setup>,
) -> anyhow::Result<&'static Predictor> {
    let Some(path) = &args.calibrate else { return Ok(Predictor::shipped()) };
    let name = path.display().to_string();
    let given = given(args, setup)?;
    let found = calibrate::calibrate(&read(path)?, &name, setup, args.async_launches, given)?;
    for (id, what) in found.refused.iter().take(SHOWN) {
        base::warn!("{name}: {id}: {what}");
    }
    if found.refused.len() > SHOWN {
        base::warn!("{name}: and {} more like these", found.refused.len() - SHOWN);
    }
    let (times, weights) = found.learned_counts(&name)?;
    base::warn!("{name}: learned from {times} times and {weights} memories");
    Ok(Box::leak(Box::new(found.predictor))) // a command has one, or one per plan
}

/// Prints the errors of predictions of measured runs: the shipped ones, or those of --score.
pub fn print_scores(args: &Estimate) -> anyhow::Result<()> {
    let out = match &args.score {
        None => score::print::selftest(),
        Some(path) => {
            let predictor = load_predictor(args, None)?;
            let text = read(path)?;
            let given = given(args, None)?;
            let mut rows = rows::read_with(&text, &path.display().to_string(), given)?;
            if args.async_launches {
                rows = rows
                    .into_iter()
                    .map(rows::Row::with_async_launches)
                    .collect();
            }
            score::print::score(predictor, &rows)
        }
    };
    out.say(args.json);
    Ok(())
}

/// Formulas of unknown programs in rows, by --as, and machine of the rows, by the file of --hardware.
fn given(args: &Estimate, plan: Option<&Setup>) -> Result<Given, Problems> {
    if let Some(plan) = plan {
        let is_row = hardware::table()
            .iter()
            .any(|row| std::ptr::eq(row, plan.hardware));
        return Ok(Given {
            family: args.program.as_ref().map(|_| plan.trainer()),
            machine: (!is_row).then_some(plan.hardware),
        });
    }
    let machine: Option<&'static Hardware> = match args.hardware.as_deref() {
        Some(name) if manifest::is_hardware_file(name) => Some(machine::find(name, "--hardware")?),
        Some(_) => {
            return Err(Problems::one(
                "--hardware",
                "has no effect here: every row of --score names its machine",
                "leave it out, or give the file of a machine that the rows name",
            ));
        }
        None => None,
    };
    Ok(Given { family: parse_family(args)?, machine })
}

/// Program whose formulas the rows of unknown programs have.
fn parse_family(args: &Estimate) -> Result<Option<&'static Trainer>, Problems> {
    if args.program.as_deref() == Some("gptrain") {
        return Err(Problems::one(
            "--as",
            "gptrain's own plans have no formulas for rows",
            "name another program, or give a manifest",
        ));
    }
    args.program
        .as_deref()
        .map(|name| trainers::find(name, "--as"))
        .transpose()
}
