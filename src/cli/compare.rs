//! `gptrain compare`

use super::report::write;
use super::{Json, Overwrite};
use anyhow::Result;
use base::escape_control;
use base::svg::Scale;
use commands::report::compare::Comparison;
use commands::report::page::Run;
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
pub struct Args {
    /// Folders of the runs
    #[arg(required = true, num_args = 2.., value_name = "RUN")]
    runs: Vec<PathBuf>,
    /// Also write a self-contained HTML page, with the curves drawn over each other
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    overwrite: Overwrite,
    /// Draw the loss on a logarithmic axis
    #[arg(long)]
    log: bool,
    #[command(flatten)]
    json: Json,
}

pub fn run(args: Args) -> Result<()> {
    let runs = args.runs.iter().map(|folder| Run::read(folder)).collect::<Result<Vec<_>>>()?;
    let compared = Comparison(labels(&args.runs).into_iter().zip(runs).collect());
    args.json.say(|| base::say!("{}", escape_control(&compared.text())), compared.object());
    if let Some(page) = &args.output {
        let scale = if args.log { Scale::Log } else { Scale::Linear };
        let text = compared.html(scale);
        match args.json.json {
            true => base::output::write(page, args.overwrite.existing(), text.as_bytes())?,
            false => write(page, args.overwrite.existing(), &text)?,
        }
    } else {
        args.json.lines(|| base::say!("\n--output compare.html draws the curves"));
    }
    Ok(())
}

/// Labels of the runs: the folders' last names if they differ, else the folders as given.
fn labels(runs: &[PathBuf]) -> Vec<String> {
    let last = |run: &PathBuf| run.file_name().map(|name| name.to_string_lossy().into_owned());
    let short: Option<Vec<String>> = runs.iter().map(last).collect();
    let whole = |run: &PathBuf| Path::new(run).display().to_string();
    let differ = |names: &Vec<String>| {
        let mut sorted = names.clone();
        sorted.sort();
        sorted.windows(2).all(|pair| pair[0] != pair[1])
    };
    short.filter(differ).unwrap_or_else(|| runs.iter().map(whole).collect())
}

#[cfg(test)]
mod tests {
    use super::labels;

    #[test]
    fn labels_are_as_short_as_they_differ() {
        let of = |runs: &[&str]| labels(&runs.iter().map(Into::into).collect::<Vec<_>>());
        assert_eq!(of(&["runs/a", "runs/b/"]), ["a", "b"]);
        assert_eq!(of(&["x/a", "y/a"]), ["x/a", "y/a"]);
        assert_eq!(of(&["..", "a"]), ["..", "a"]);
    }
}
