//! `gptrain bench`

use crate::completions::SETTINGS;
use base::number;
use bench::{self, BenchOptions, print};
use launch::exit::{self, AlreadyPrinted};
use launch::messages::Messages;
use launch::sick_nodes::{self, Reason};
use std::path::PathBuf;

#[derive(clap::Args)]
pub struct Bench {
    /// Manifest whose shapes, topology, precision and folder are measured [default: a block of GPT-2
    /// 124M in bf16, data-parallel ranks]
    manifest: Option<PathBuf>,
    /// Change a setting of the manifest, as in `--set topology.tensor=4`
    #[arg(long, value_name = "KEY=VALUE", value_parser = SETTINGS, hide_possible_values = true)]
    set: Vec<String>,
    /// Take at most 10 s instead of 60: fewer repeats, smaller messages
    #[arg(long)]
    quick: bool,
    /// Share below the median from which a device or link counts as slow [default: 0.05 for links,
    /// 0.02 for products, 0.5 for ranks that share a node's processors]
    #[arg(long, value_name = "SHARE", value_parser = parse_share)]
    tolerance: Option<f64>,
    /// Print JSON, which `estimate --calibrate` reads
    #[arg(long)]
    json: bool,
}

impl Bench {
    pub fn run(self, messages: &Messages) -> anyhow::Result<()> {
        let loaded = match &self.manifest {
            Some(path) => launch::load_manifest(path, &self.set)?,
            None => bench::without_manifest(&self.set)?,
        };
        let options = BenchOptions { quick: self.quick, tolerance: self.tolerance };
        let outcome = bench::run(&loaded, &options, messages)?;
        let folder = &loaded.manifest.log.folder;
        for slow in outcome.measured.iter().flat_map(|measured| &measured.slow) {
            // A record belongs to the manifest's run. A slow link does not point at one node.
            for host in slow
                .who
                .iter()
                .filter(|_| slow.what == "node" && self.manifest.is_some())
            {
                sick_nodes::add(folder, host, Reason::Slow, &slow.text)?;
            }
        }
        // The process of rank 0 has them.
        if let Some(measured) = &outcome.measured {
            print::printout(measured).say(self.json);
        }
        if outcome.healthy { Ok(()) } else { Err(AlreadyPrinted { code: exit::SLOW }.into()) }
    }
}

fn parse_share(text: &str) -> Result<f64, String> {
    match number::real(text) {
        Ok(share) if (0.0..1.0).contains(&share) => Ok(share),
        _ => Err("a share is a number from 0 to 1, such as 0.05".into()),
    }
}
