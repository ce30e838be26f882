//! `gptrain estimate --what-if`, `--sizes`

use super::progress::Bar;
use super::records::{Changes, learn};
use super::search::explain_none;
use super::{Estimate, find_predictor};
use base::{Problems, number};
use estimate::campaign::{self, Law, Member};
use estimate::change::flag_lines;
use estimate::compare::{Side, comparison};
use estimate::machine::split_settings;
use estimate::predict::Predict;
use estimate::request::{Flags, Request};
use estimate::setup::{Extras, Program};
use estimate::verdict::Verdict;
use estimate::words;
use manifest::{Loaded, Model};
use std::path::Path;

#[derive(clap::Args)]
pub struct Campaign {
    /// Compare with other settings, as in --what-if "topology.tensor=4,batch.micro=2", or with
    /// another manifest
    #[arg(long, value_name = "KEY=VALUE,…|FILE")]
    pub what_if: Option<String>,
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

/// Prints both plans side by side. Ok(false) if the changed plan does not fit, by its whole bar.
pub fn print_comparison(args: &Estimate, path: &Path, changes: &str) -> anyhow::Result<bool> {
    let (from, mut sets) = match Path::new(changes) {
        file if file.is_file() => (file, Vec::new()),
        _ => (path, args.set.clone()),
    };
    let now = args.load(path, &args.set)?;
    let mut flags = Vec::new();
    let then = if from == path {
        let changes = Changes::read(changes, &now.manifest.topology)?;
        sets.extend_from_slice(&changes.sets);
        let then = args
            .load(from, &sets)
            .map_err(|error| changes.explain(error))?;
        flags = changes.sets;
        then
    } else {
        args.load(from, &sets)?
    };
    let view = |loaded: &Loaded, columns: &[String]| {
        let flags = Flags { columns, ..args.flags() };
        let (request, other) = make_request(args, loaded, flags)?;
        anyhow::Ok(request.view(other))
    };
    let [before, after] = [&args.set, &sets].map(|sets| split_settings(sets).1);
    let a = view(&now, &before)?;
    let b = view(&then, &after)?;
    let side = |name, view, effective| Side { name, view, effective };
    let mut out =
        comparison(&side("as it is", &a, &now.effective), &side("what if", &b, &then.effective));
    if !flags.is_empty() {
        out.line("\nThe changed plan");
        out.push_indented(flag_lines(&flags));
        out.json["set"] = flags.into();
    }
    out.say(args.json);
    Ok(b.verdict() != Verdict::DoesNotFit)
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

/// Prints the plan of every size. Ok(false) if one of them does not fit in any topology.
pub fn print_sizes(args: &Estimate, path: &Path) -> anyhow::Result<bool> {
    let law = args.campaign.law.unwrap_or(Law::CHINCHILLA);
    let like = args.load(path, &args.set)?.manifest;
    let devices = args.search.gpus.unwrap_or(like.topology.ranks());
    let bar = Bar::new();
    let watch = |progress| bar.show(progress);
    let member = |size: &f64| {
        let sets = campaign::sets_for_size(&like.model, *size)?;
        let loaded = args.load(path, &[&args.set[..], &sets].concat())?;
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
    campaign::printout(&like, &members, law, devices).say(args.json);
    Ok(members.iter().all(|member| member.best.is_ok()))
}
