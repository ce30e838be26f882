//! `gptrain bench`

mod set_env;

use crate::completions::SETTINGS;
use base::{Count, Problems, input, number};
use bench::history::{self, Kept, Since};
use bench::{self, BenchOptions, print};
use estimate::measured::Measured;
use launch::exit::{self, AlreadyPrinted};
use launch::messages::Messages;
use launch::sick_nodes::{self, Reason};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::UNIX_EPOCH;

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
    /// At the end, repeat the collectives of a step at their sizes for this time, such as 10m: the worst
    /// minute beside the mean
    #[arg(long, value_name = "TIME", value_parser = history::seconds)]
    soak: Option<f64>,
    /// Measure with each value of a variable, in processes of its own, such as NCCL_ALGO=Ring,Tree. An
    /// empty value leaves it unset. Several variables are combined
    #[arg(long, value_name = "NAME=VALUE,VALUE", conflicts_with_all = ["history", "since"])]
    set_env: Vec<String>,
    /// Add the figures to this file, for --since
    #[arg(long, value_name = "FILE")]
    history: Option<PathBuf>,
    /// Print what has changed since the measurement of --history at this time (7d, 36h, 2026-11-24,
    /// 2026-11-24T08:30 UTC), or since a file that `bench --json` printed. Exit code 5 if anything is
    /// slower by more than --tolerance
    #[arg(long, value_name = "TIME|FILE", value_parser = Since::parse)]
    since: Option<Since>,
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
        if !self.set_env.is_empty() {
            return set_env::run(set_env::parse(&self.set_env)?, &self.arguments(), self.json);
        }
        let earlier = self.earlier()?;
        let options =
            BenchOptions { quick: self.quick, tolerance: self.tolerance, soak: self.soak };
        let mut outcome = bench::run(&loaded, &options, messages)?;
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
        let mut healthy = outcome.healthy;
        if let Some(measured) = &mut outcome.measured {
            let sentences = self.compare(earlier, measured);
            healthy &= measured
                .changes
                .iter()
                .all(|change| change.now > change.then);
            let mut out = print::printout(measured);
            for sentence in sentences {
                out.line(sentence);
            }
            out.say(self.json);
            if let Some(path) = &self.history {
                history::append(path, &Measured { changes: Vec::new(), ..measured.clone() })?;
            }
        }
        if healthy { Ok(()) } else { Err(AlreadyPrinted { code: exit::SLOW }.into()) }
    }
}

impl Bench {
    /// Words of a process that measures the same once more.
    fn arguments(&self) -> Vec<OsString> {
        let mut words: Vec<OsString> = vec!["bench".into(), "--json".into()];
        words.extend(self.manifest.iter().map(OsString::from));
        words.extend(self.set.iter().flat_map(|set| ["--set".into(), set.into()]));
        words.extend(self.quick.then(|| "--quick".into()));
        words.extend(
            self.tolerance
                .map(|share| format!("--tolerance={share}").into()),
        );
        words.extend(self.soak.map(|seconds| format!("--soak={seconds}s").into()));
        words
    }

    /// Earlier measurements to compare with, read before anything is measured.
    fn earlier(&self) -> anyhow::Result<Option<Vec<Kept>>> {
        match (&self.since, &self.history) {
            (None, _) => Ok(None),
            (Some(Since::File(file)), _) => {
                let name = file.display().to_string();
                let at = file.metadata().and_then(|about| about.modified());
                let at = at.ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
                let at = at.map_or(0.0, |at| at.as_secs_f64());
                let text = input::read(file, input::LARGE)?;
                let bench = Measured::read(&String::from_utf8_lossy(&text), &name)?;
                Ok(Some(vec![Kept { at, bench }]))
            }
            (Some(Since::Time(_)), Some(history)) => Ok(Some(history::read(history)?)),
            (Some(Since::Time(_)), None) => Err(Problems::one(
                "--since",
                "names a time, and there is no file with earlier measurements",
                "add --history FILE, to which every measurement is added, or give a file of `bench --json`",
            )
            .into()),
        }
    }

    /// Sets the changes since the earlier measurement, and returns them as sentences.
    fn compare(&self, earlier: Option<Vec<Kept>>, measured: &mut Measured) -> Vec<String> {
        let Some(earlier) = earlier else { return Vec::new() };
        let found = match &self.since {
            Some(Since::Time(at)) => history::find(earlier, *at, measured),
            _ => earlier.into_iter().next(),
        };
        let Some(Kept { at, bench: then }) = found else {
            let ranks = Count(measured.ranks.len() as u64).with_noun("rank");
            return vec![format!(
                "note: the history has no measurement of {} on {ranks} in {} yet",
                measured.manifest,
                measured.precision.name()
            )];
        };
        let found = history::compare(&then, measured, self.tolerance);
        let since = base::calendar::date_and_minute(at);
        measured.changes = found.changes;
        let mut lines: Vec<String> = found
            .notes
            .iter()
            .map(|note| format!("note: {note}"))
            .collect();
        let changes = measured.changes.iter();
        lines.extend(changes.map(|change| history::sentence(change, &since)));
        let figures = Count(found.compared as u64).with_noun("figure");
        lines.push(format!("{} of {figures} changed since {since}", measured.changes.len()));
        lines
    }
}

fn parse_share(text: &str) -> Result<f64, String> {
    match number::real(text) {
        Ok(share) if (0.0..1.0).contains(&share) => Ok(share),
        _ => Err("a share is a number from 0 to 1, such as 0.05".into()),
    }
}
