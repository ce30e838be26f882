//! `gptrain estimate --what-if`, `--sizes`

use super::{Args, calibrate, learn, show};
use base::Problems;
use estimate::campaign::{self, Law, Member};
use estimate::compare::{Side, compared};
use estimate::others::predict::Predictor;
use estimate::request::{Flags, Request};
use estimate::setup::{Extras, Program};
use estimate::words;
use manifest::Loaded;
use std::path::Path;

#[derive(clap::Args)]
pub struct Campaign {
    /// Compare with other settings, as in --what-if "topology.tensor=4,batch.micro=2", or with
    /// another manifest
    #[arg(long, value_name = "KEY=VALUE,…|FILE")]
    pub what_if: Option<String>,
    /// Plan models of several sizes of the manifest's family, such as 125M,350M,1.3B, each with the
    /// tokens of --law and its best cut over --gpus
    #[arg(long, value_delimiter = ',', value_parser = words::tokens)]
    pub sizes: Vec<f64>,
    /// Tokens of a size: chinchilla, tokens a parameter (20), or a fit E,A,α,B,β of the loss
    /// E + A/N^α + B/D^β [default: chinchilla]
    #[arg(long, value_parser = Law::read)]
    pub law: Option<Law>,
}

/// Side by side. Ok(false): the changed plan does not fit.
pub fn compare(args: &Args, path: &Path, other: &str) -> anyhow::Result<bool> {
    let (from, mut sets) = match Path::new(other) {
        file if file.is_file() => (file, Vec::new()),
        _ => (path, args.set.clone()),
    };
    if from == path {
        let pairs = pairs(other)?;
        sets.extend(pairs);
    }
    let now = manifest::load(path, &args.set)?;
    let then = manifest::load(from, &sets)?;
    let view = |loaded: &Loaded| {
        let (request, predictor) = requested(args, loaded, args.flags())?;
        let predictor = predictor.as_ref().unwrap_or_else(|| Predictor::shipped());
        anyhow::Ok(request.view(predictor).0)
    };
    let (a, b) = (view(&now)?, view(&then)?);
    let side = |name, view, effective| Side { name, view, effective };
    let (text, json) =
        compared(&side("as it is", &a, &now.effective), &side("what if", &b, &then.effective));
    show(args.json, &text, &json);
    Ok(b.fits_all())
}

/// "a=1,b=2" as settings; a comma that no key follows belongs to a value.
fn pairs(text: &str) -> Result<Vec<String>, Problems> {
    let mut all: Vec<String> = Vec::new();
    for piece in text.split(',') {
        match (piece.contains('='), all.last_mut()) {
            (true, _) => all.push(piece.trim().to_string()),
            (false, Some(last)) => *last += &format!(",{piece}"),
            (false, None) => {
                let what = format!("`{piece}` is neither a file nor key=value");
                let remedy = "give settings as in topology.tensor=4,batch.micro=2, or a manifest";
                return Err(Problems::one("--what-if", what, remedy));
            }
        }
    }
    Ok(all)
}

/// The request, with what --calibrate learned: in it for gptrain, else as a predictor.
fn requested(
    args: &Args,
    loaded: &Loaded,
    flags: Flags,
) -> anyhow::Result<(Request, Option<Predictor>)> {
    let request = Request::new(loaded.manifest.clone(), &flags)?;
    args.refuse_idle_for(request.setup.program)?;
    match &args.calibrate {
        None => Ok((request, None)),
        Some(path) if request.setup.program == Program::Gptrain => {
            Ok((learn(path, request)?, None))
        }
        Some(path) => {
            let own = calibrate(path, Some(&request.setup), args.async_launches)?;
            Ok((request, Some(own)))
        }
    }
}

/// Every size with its tokens. Ok(false): one fits in no way.
pub fn sizes(args: &Args, path: &Path) -> anyhow::Result<bool> {
    let law = args.campaign.law.unwrap_or(Law::CHINCHILLA);
    let like = manifest::load(path, &args.set)?.manifest;
    let devices = args.search.gpus.unwrap_or(like.topology.ranks());
    let member = |size: &f64| {
        let sets = campaign::sized(&like.model, *size)?;
        let loaded = manifest::load(path, &[&args.set[..], &sets].concat())?;
        let tokens = law.tokens(model::parameters(&loaded.manifest.model) as f64);
        let flags = Flags { tokens: Some(tokens), ..args.flags() };
        let (request, predictor) = requested(args, &loaded, flags)?;
        let predictor = predictor.as_ref().unwrap_or_else(|| Predictor::shipped());
        let found = request.search(predictor, Extras::default()).rank(devices);
        let best = found.and_then(|found| found.best.into_iter().next());
        anyhow::Ok(Member { best, manifest: request.manifest, terms: request.terms })
    };
    let members = args.campaign.sizes.iter().map(member).collect::<anyhow::Result<Vec<_>>>()?;
    let (text, json) = campaign::table(&members, law, devices);
    show(args.json, &text, &json);
    Ok(members.iter().all(|member| member.best.is_some()))
}
