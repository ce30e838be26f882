//! `gptrain estimate --search`, `--min-gpus`, `--max-params`

use super::Estimate;
use super::progress::Bar;
use base::number::{self, whole};
use base::table::Printout;
use base::{Count, Problems};
use estimate::days::Days;
use estimate::plot;
use estimate::predict::Predict;
use estimate::request::Request;
use estimate::search::{MOST_DEVICES, Search as Searched, print};
use estimate::setup::Extras;
use serde_json::json;

#[derive(clap::Args)]
pub struct Search {
    /// Find the best topology for the model on --gpus
    #[arg(long, requires = "gpus", conflicts_with_all = ["max_params", "min_gpus"])]
    pub search: bool,
    /// Devices to use
    #[arg(long, value_parser = parse_devices)]
    pub gpus: Option<usize>,
    /// Nodes of --gpus that remain idle as spares
    #[arg(long, value_parser = whole::<usize>)]
    pub nodes_spare: Option<usize>,
    /// Quantity that the search minimises: days, gpu-hours or money [default: days]
    #[arg(long, value_parser = ["days", "gpu-hours", "money"])]
    pub objective: Option<String>,
    /// Also try these with every topology (gptrain's plans only): offload, adam8bit, powersgd. If no
    /// other plan fits, the search tries the first two without this option
    #[arg(long, value_delimiter = ',', value_parser = ["offload", "adam8bit", "powersgd"])]
    pub with: Vec<String>,
    /// Find the largest model of the manifest's proportions that fits on --gpus
    #[arg(long, requires = "gpus", conflicts_with = "min_gpus")]
    pub max_params: bool,
    /// Find the fewest devices on which the manifest's model fits
    #[arg(long)]
    pub min_gpus: bool,
    /// Find the fewest devices with which the run ends within this number of days; --gpus limits them
    #[arg(long, value_parser = parse_days, conflicts_with_all = ["search", "max_params", "min_gpus"])]
    pub days: Option<f64>,
}

/// Parses the days of a deadline.
fn parse_days(text: &str) -> Result<f64, String> {
    let days = number::real(text).ok().filter(|days| *days > 0.0);
    days.ok_or_else(|| "write a number of days, such as 90".into())
}

/// Parses a number of devices.
fn parse_devices(text: &str) -> Result<usize, String> {
    match whole(text) {
        Ok(0) => Err("a plan needs a device: give 1 or more".into()),
        Ok(count) => Ok(count),
        Err(_) => Err("write a number of devices, such as 64".into()),
    }
}

impl Search {
    pub fn is_asked(&self) -> bool {
        self.search || self.max_params || self.min_gpus || self.days.is_some()
    }

    fn extras(&self) -> Extras {
        let has = |name: &str| self.with.iter().any(|with| with == name);
        Extras { offload: has("offload"), adam8bit: has("adam8bit"), powersgd: has("powersgd") }
    }
}

/// Runs the search. Ok(false) if no plan fits.
pub fn run(
    args: &Estimate,
    request: &Request,
    other: Option<&dyn Predict>,
) -> anyhow::Result<bool> {
    let bar = Bar::new();
    let watch = |progress| bar.show(progress);
    let search = request
        .search(other, args.search.extras())
        .with_watch(&watch);
    let m = &request.manifest;
    if args.search.min_gpus {
        let found = search
            .find_fewest_devices(MOST_DEVICES)
            .map(|found| print::print_fewest_devices(m, &found));
        bar.finish();
        let none = || NONE_ON_ANY.to_string();
        return Ok(print_found(args, found, none));
    }
    if let Some(days) = args.search.days {
        let most = args.search.gpus.unwrap_or(MOST_DEVICES);
        let terms = &request.terms;
        let in_time = |run: &Days| terms.calendar_days(run) <= days;
        let found = search
            .find_fewest_in_time(most, &in_time)
            .map(|found| print::print_deadline(m, terms, days, &found));
        bar.finish();
        let none = || {
            format!(
                "the run does not end within {days} days on up to {} devices",
                Count(most as u64)
            )
        };
        return Ok(print_found(args, found, none));
    }
    let devices = count_devices(args, request)?;
    if args.search.max_params {
        if devices > MOST_DEVICES {
            let (given, most) = (Count(devices as u64), Count(MOST_DEVICES as u64));
            let what = format!("{given} devices: --max-params tries models for up to {most}");
            return Err(Problems::one("--gpus", what, format!("give {most} or fewer")).into());
        }
        let found = search
            .largest(devices)
            .map(|found| print::largest(m, devices, &found));
        bar.finish();
        let none = || format!("no model of these proportions fits on {devices} devices");
        return Ok(print_found(args, found, none));
    }
    let found = rank(args, request, &search, devices)?;
    bar.finish();
    Ok(print_found(args, found, || explain_none(devices, search.exclusion(devices))))
}

const NONE_ON_ANY: &str = "the model does not fit on any number of devices up to 65,536";

/// Says why no topology over this number of devices fits: settings that exclude all, or memory.
pub fn explain_none(devices: usize, exclusion: Option<String>) -> String {
    match exclusion {
        Some(exclusion) => format!("no topology over {devices} devices: {exclusion}"),
        None => format!("no topology over {devices} devices fits into their memory"),
    }
}

/// Devices of --gpus, without the spare nodes.
fn count_devices(args: &Estimate, request: &Request) -> Result<usize, Problems> {
    let all = args.search.gpus.expect("clap asks for it");
    let spare = args.search.nodes_spare.unwrap_or(0);
    match all.saturating_sub(spare * request.setup.per_node) {
        0 => Err(Problems::one(
            "--nodes-spare",
            format!("{spare} spare nodes leave none of {all} devices"),
            "keep fewer, or give more --gpus",
        )),
        devices => Ok(devices),
    }
}

fn rank(
    args: &Estimate,
    request: &Request,
    search: &Searched,
    devices: usize,
) -> anyhow::Result<Option<Printout>> {
    let Some(found) = search.rank(devices) else { return Ok(None) };
    let objective = args.search.objective.as_deref().unwrap_or("days");
    let m = &request.manifest;
    let terms = &request.terms;
    let mut out = print::ranking(m, &found, devices, objective, terms);
    if let Some(folder) = &args.plot {
        let text = out.text(usize::MAX);
        plot::write_search(folder, args.overwrite.existing(), m, &found, terms, &text)?;
        out.line(format!("\n{}", folder.join("estimate.html").display()));
    }
    Ok(Some(out))
}

/// Prints the result, or that there is none. Returns whether there is one.
fn print_found(args: &Estimate, found: Option<Printout>, none: impl FnOnce() -> String) -> bool {
    let exists = found.is_some();
    let out = found.unwrap_or_else(|| {
        let text = format!(
            "{}\n  → a smaller model, more devices, or batch sizes (ramp-up too) with more divisors",
            none()
        );
        let mut out = Printout::default();
        out.line(&text);
        out.json = json!({ "fits": false, "what": text });
        out
    });
    out.say(args.json);
    exists
}
