//! `gptrain report`: draws the curves of a run as one HTML page.

pub mod page;
pub mod curves;

use crate::options::Overwrite;
use anyhow::Result;
use base::output::{self, Existing};
use base::svg::Scale;
use page::Run;
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
pub struct Report {
    /// Folder of the run: `log.folder` of its manifest
    run: PathBuf,
    /// Write the page to this file [default: report.html in the run's folder]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Also write the loss curves as an SVG picture
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    #[command(flatten)]
    overwrite: Overwrite,
    /// Draw the loss on a logarithmic axis
    #[arg(long)]
    log: bool,
}

impl Report {
    /// Writes the page (and the picture) and prints their paths.
    pub fn run(self) -> Result<()> {
        let run = Run::read(&self.run)?;
        if run.metrics.torn {
            base::warn!(
                "the last line of metrics.jsonl is incomplete and ignored: was the run killed?"
            );
        }
        let scale = if self.log { Scale::Log } else { Scale::Linear };
        let existing = self.overwrite.existing();
        match &self.output {
            Some(page) => write(page, existing, &run.html(scale))?,
            // Every call replaces the page in the run's folder.
            None => write(&self.run.join("report.html"), Existing::Replaced, &run.html(scale))?,
        }
        if let Some(picture) = &self.svg {
            write(picture, existing, &run.loss_svg(scale))?;
        }
        Ok(())
    }
}

fn write(path: &Path, existing: Existing, text: &str) -> Result<()> {
    output::write(path, existing, text.as_bytes())?;
    base::say!("wrote {}", path.display());
    Ok(())
}
