//! `gptrain estimate --what-if`, `--sizes`

use super::config::Planned;
use super::progress::Bar;
use super::records::{Changes, learn};
use super::search::explain_none;
use super::{Estimate, find_predictor};
use base::table::Printout;
use base::{Problems, number};
use estimate::campaign::{self, Law, Member};
use estimate::change::flag_lines;
use estimate::compare::{self, Side, comparison};
use estimate::machine::split_settings;
use estimate::predict::Predict;
use estimate::request::{Flags, Request};
use estimate::setup::{Extras, Program};
use estimate::verdict::MemoryFit;
use estimate::view::View;
use estimate::words;
use manifest::{Loaded, Manifest, Model};
use std::path::Path;

#[derive(clap::Args)]
pub struct Campaign {
    /// Compare with other settings, as in --what-if "topology.tensor=4,batch.micro=2", or with
    /// another manifest. Given several times, or with --csv, it prints a row for each plan
    #[arg(long, value_name = "KEY=VALUE,…|FILE")]
    pub what_if: Vec<String>,
    /// Print the rows of --what-if as comma-separated values
    #[arg(long, requires = "what_if", conflicts_with = "json")]
    pub csv: bool,
    /// Plan models of several sizes in the manifest's family, such as 125M,350M,1.3B, each with the
    /// tokens of --law and its best topology over --gpus
    #[arg(long, value_delimiter = ',', value_parser = words::tokens)]
    pub sizes: Vec<f64>,
    /// Number of tokens for a size: chinchilla, a number of tokens per parameter (20), or a fit
    /// E,A,α,B,β of the loss E + A/N^α + B/D^β [default: chinchilla]
    #[arg(long, value_parser = Law::read)]
    pub law: Option<Law>,
    /// Length of the run: the tokens after which the model has this loss by --law. Losses of other
    /// data and other tokenizers need a fit of their own
    #[arg(long, value_name = "LOSS", value_parser = number::real, conflicts_with = "tokens")]
    pub until_loss: Option<f64>,
}

impl Campaign {
    /// Tokens of --until-loss for this model.
    pub fn tokens_until_loss(&self, model: &Model) -> Result<Option<f64>, Problems> {
        let Some(loss) = self.until_loss else { return Ok(None) };
        let parameters = model::parameters(model) as f64;
        match self
            .law
            .unwrap_or(Law::CHINCHILLA)
            .tokens_until(loss, parameters)
        {
            Some(Ok(tokens)) => Ok(Some(tokens)),
            Some(Err(least)) => Err(Problems::one(
                "--until-loss",
                format!(
                    "{loss} is reached by no number of tokens: by the law, {} parameters approach \
                     {least:.3}",
                    words::size(parameters)
                ),
                "plan a larger model, or give a higher loss",
            )),
            None => Err(Problems::one(
                "--law",
                "tokens per parameter say nothing of losses",
                "--law chinchilla, or a fit E,A,α,B,β of your own",
            )),
        }
    }
}

/// Plan of `--what-if`: its manifest and figures, and the settings that make it from the plan as it is.
struct Plan {
    loaded: Loaded,
    view: View,
    changes: Vec<String>,
}

impl Plan {
    /// Plan of a run that was loaded with the settings `sets`.
    fn new(
        args: &Estimate,
        planned: Planned,
        sets: &[String],
        changes: Vec<String>,
    ) -> anyhow::Result<Plan> {
        let (_, columns) = split_settings(sets);
        let mixture = planned.mixture();
        let loaded = planned.loaded;
        let flags = Flags { columns: &columns, mixture, ..args.flags() };
        let (request, other) = make_request(args, &loaded, flags)?;
        request.check_program()?;
        Ok(Plan { view: request.view(other), loaded, changes })
    }

    fn side<'a>(&'a self, name: &'a str) -> Side<'a> {
        Side { name, view: &self.view, effective: &self.loaded.effective }
    }

    /// Plan of another manifest, or of `path` with changes of the plan as it is.
    fn changed(args: &Estimate, path: &Path, now: &Plan, changes: &str) -> anyhow::Result<Plan> {
        let file = Path::new(changes);
        if file.is_file() {
            return Plan::new(args, args.load(file, &[])?, &[], Vec::new());
        }
        let changes = Changes::read(changes, &now.view.setup)?;
        let sets = [&args.set[..], &changes.sets].concat();
        let planned = args
            .load(path, &sets)
            .map_err(|error| changes.explain(error))?;
        Plan::new(args, planned, &sets, changes.sets)
    }
}

/// Prints the plan and its changes: one side by side, several as rows. Ok(false) if none of the changed
/// plans fits, even with a part of its bar.
pub fn print_changes(args: &Estimate, path: &Path, planned: Planned) -> anyhow::Result<bool> {
    let now = Plan::new(args, planned, &args.set, Vec::new())?;
    let plans = args.campaign.what_if.iter();
    let plans = plans
        .map(|changes| Plan::changed(args, path, &now, changes))
        .collect::<anyhow::Result<Vec<Plan>>>()?;
    match &plans[..] {
        [then] if !args.campaign.csv => print_comparison(args, &now, then),
        _ => print_rows(args, &now, &plans),
    }
    Ok(plans
        .iter()
        .any(|plan| plan.view.verdict() != MemoryFit::DoesNotFit))
}

fn print_comparison(args: &Estimate, now: &Plan, then: &Plan) {
    let mut out = comparison(&now.side("as it is"), &then.side("what if"));
    if !then.changes.is_empty() {
        out.line("\nThe changed plan");
        out.push_indented(flag_lines(&then.changes));
        out.json["set"] = then.changes.clone().into();
    }
    out.say(args.json);
}

fn print_rows(args: &Estimate, now: &Plan, plans: &[Plan]) {
    let names = ["as it is"]
        .into_iter()
        .chain(args.campaign.what_if.iter().map(String::as_str));
    let views = [now].into_iter().chain(plans).map(|plan| &plan.view);
    let rows: Vec<(&str, &View)> = names.zip(views).collect();
    let table = compare::plans(&rows);
    if args.campaign.csv {
        base::say!("{}", table.csv().trim_end());
    } else {
        Printout::from_table(table).say(args.json);
    }
}

/// Request with the result of --calibrate, and the predictor of another program.
fn make_request(
    args: &Estimate,
    loaded: &Loaded,
    flags: Flags,
) -> anyhow::Result<(Request, Option<&'static dyn Predict>)> {
    let request = Request::new(loaded.manifest.clone(), &flags)?;
    args.refuse_unused_for(request.setup.program)?;
    match &args.calibrate {
        Some(path) if request.setup.program == Program::Gptrain => {
            Ok((learn(path, request)?, None))
        }
        _ => {
            let other = find_predictor(args, &request)?;
            Ok((request, other))
        }
    }
}

/// Prints the plan of every size, with the proportions of `like`, the manifest at `path`. Ok(false) if one
/// of them does not fit in any topology.
pub fn print_sizes(args: &Estimate, path: &Path, like: &Manifest) -> anyhow::Result<bool> {
    let law = args.campaign.law.unwrap_or(Law::CHINCHILLA);
    let devices = args.search.gpus.unwrap_or(like.topology.ranks());
    let bar = Bar::new();
    let watch = |progress| bar.show(progress);
    let member = |size: &f64| {
        let sets = campaign::sets_for_size(&like.model, *size)?;
        let loaded = args.load(path, &[&args.set[..], &sets].concat())?.loaded;
        let tokens = law.tokens(model::parameters(&loaded.manifest.model) as f64);
        let (_, columns) = split_settings(&args.set);
        let flags = Flags { tokens: Some(tokens), columns: &columns, ..args.flags() };
        let (request, other) = make_request(args, &loaded, flags)?;
        let search = request.search(other, Extras::default()).with_watch(&watch);
        let found = search
            .ranked(devices)
            .map(|mut found| found.best.swap_remove(0));
        let best = found.ok_or_else(|| explain_none(devices, search.exclusion(devices)));
        anyhow::Ok(Member { size: *size, best, manifest: request.manifest, terms: request.terms })
    };
    let members = args
        .campaign
        .sizes
        .iter()
        .map(member)
        .collect::<anyhow::Result<Vec<_>>>()?;
    bar.finish();
    campaign::printout(like, &members, law, devices).say(args.json);
    Ok(members.iter().all(|member| member.best.is_ok()))
}
