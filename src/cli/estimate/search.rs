//! `gptrain estimate --search`, `--min-gpus`, `--max-params`

use crate::base::Problems;
use crate::estimate::others::predict::Predictor;
use crate::estimate::request::Request;
use crate::estimate::search::{MOST_DEVICES, print};
use serde_json::Value;

#[derive(clap::Args)]
pub struct Search {
    /// Find the best way to cut the model over --gpus
    #[arg(long, requires = "gpus")]
    search: bool,
    /// Devices to use
    #[arg(long)]
    gpus: Option<usize>,
    /// Nodes of --gpus that are kept idle, for failures
    #[arg(long, default_value_t = 0)]
    nodes_spare: usize,
    /// What the search minimises: days, gpu-hours or money
    #[arg(long, default_value = "days", value_parser = ["days", "gpu-hours", "money"])]
    objective: String,
    /// The largest model of the manifest's proportions that --gpus hold
    #[arg(long, requires = "gpus")]
    max_params: bool,
    /// The fewest devices that hold the manifest's model
    #[arg(long)]
    min_gpus: bool,
}

impl Search {
    pub fn asked(&self) -> bool {
        self.search || self.max_params || self.min_gpus
    }
}

pub fn run(
    args: &Search,
    request: &Request,
    predictor: &Predictor,
) -> anyhow::Result<(String, Value)> {
    let search = request.search(predictor);
    if args.min_gpus {
        let found = search.fewest(MOST_DEVICES);
        let found = found.ok_or_else(|| none("no number of devices up to 65,536"))?;
        return Ok(print::fewest(&request.manifest.name, &found));
    }
    let all = args.gpus.expect("clap asks for it");
    let devices = all.saturating_sub(args.nodes_spare * request.setup.per_node);
    if devices == 0 {
        let what = format!("{} spare nodes leave nothing of {all} devices", args.nodes_spare);
        return Err(Problems::one("--nodes-spare", what, "keep fewer, or give more --gpus").into());
    }
    if args.max_params {
        let found = search.largest(devices);
        let found = found.ok_or_else(|| none("no model of these proportions"))?;
        return Ok(print::largest(devices, &found));
    }
    let found = search.rank(devices);
    let found = found.ok_or_else(|| none(&format!("no way to cut it over {devices} devices")))?;
    Ok(print::ranking(&search, &found, devices, &args.objective, &request.terms))
}

fn none(what: &str) -> Problems {
    let remedy = "a smaller model, more devices, or batch sizes (ramp-up too) with more divisors";
    Problems::one("search", format!("{what} fits: memory, divisibility or heads forbid it"), remedy)
}
