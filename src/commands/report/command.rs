//! `gptrain report`: draws the curves of a run as one HTML page.

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::options::Overwrite;
use crate::report::page::Run;
use base::output::{self, Existing};
use base::svg::Scale;

/// Draw a run's curves as one self-contained HTML page
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Folder of the run: `log.folder` of its manifest
    pub run: PathBuf,
    /// Write the page to this file [default: report.html in the run's folder]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Also write the loss curves as an SVG picture
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    #[command(flatten)]
    overwrite: Overwrite,
    /// Draw the loss on a logarithmic axis
    #[arg(long)]
    pub log: bool,
}

/// Writes the page (and the picture) and prints their paths.
pub fn run(args: Args) -> Result<()> {
    let run = Run::read(&args.run)?;
    if run.metrics.torn {
        base::warn!(
            "the last line of metrics.jsonl is incomplete and ignored: was the run killed?"
        );
    }
    let scale = if args.log { Scale::Log } else { Scale::Linear };
    let existing = args.overwrite.existing();
    match &args.output {
        Some(page) => write(page, existing, &run.html(scale))?,
        // Every call replaces the page in the run's folder.
        None => write(&args.run.join("report.html"), Existing::Replaced, &run.html(scale))?,
    }
    if let Some(picture) = &args.svg {
        write(picture, existing, &run.loss_svg(scale))?;
    }
    Ok(())
}

fn write(path: &Path, existing: Existing, text: &str) -> Result<()> {
    output::write(path, existing, text.as_bytes())?;
    base::say!("wrote {}", path.display());
    Ok(())
}
