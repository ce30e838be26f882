//! `gptrain compare`

pub mod comparison;
mod parting;

use crate::options::{Json, Overwrite};
use anyhow::Result;
use base::svg::Scale;
use comparison::Comparison;
use std::path::PathBuf;

#[derive(clap::Args)]
pub struct Compare {
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

impl Compare {
    pub fn run(self) -> Result<()> {
        let compared = Comparison::read(&self.runs)?;
        compared.printout().say(self.json.json);
        if let Some(page) = &self.output {
            let scale = if self.log { Scale::Log } else { Scale::Linear };
            let text = compared.html(scale);
            base::output::write(page, self.overwrite.existing(), text.as_bytes())?;
            self.json.lines(|| base::say!("wrote {}", page.display()));
        } else {
            self.json
                .lines(|| base::say!("\n--output compare.html draws the curves"));
        }
        Ok(())
    }
}
