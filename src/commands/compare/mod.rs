//! `gptrain compare`

pub mod comparison;

use crate::options::{Json, Overwrite};
use anyhow::Result;
use base::svg::Scale;
use comparison::Comparison;
use std::path::PathBuf;

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
    let compared = Comparison::read(&args.runs)?;
    compared.printout().say(args.json.json);
    if let Some(page) = &args.output {
        let scale = if args.log { Scale::Log } else { Scale::Linear };
        let text = compared.html(scale);
        base::output::write(page, args.overwrite.existing(), text.as_bytes())?;
        args.json.lines(|| base::say!("wrote {}", page.display()));
    } else {
        args.json
            .lines(|| base::say!("\n--output compare.html draws the curves"));
    }
    Ok(())
}
