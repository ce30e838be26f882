//! Checks of the default split, and of masks.

use super::super::data::{BlendReader, DEFAULT_SPLIT, RunInputs, raw, shares};
use super::super::report::Report;
use super::super::{Data, Eod, Model};
use std::path::Path;

/// Checks the data section. Relative prefixes are resolved against `folder`.
pub fn data(raw: raw::Data, run: &RunInputs, folder: &Path, report: &mut Report) -> Data {
    let separate = raw.valid.is_some();
    let fallback = raw
        .split
        .clone()
        .or((!separate).then(|| DEFAULT_SPLIT.to_string()));
    if let Some(split) = &raw.split {
        shares(split, "data.split", report);
    }
    let data = Data::read(raw, &mut BlendReader { fallback, folder, report }, run);
    if let Some(eod) = &data.eod {
        known_token(eod, run.model, report);
        one_bound(eod, data.inter_document_masking, report);
    }
    data
}

fn known_token(eod: &Eod, model: &Model, report: &mut Report) {
    let token = eod.token;
    if report.are_valid(&["data.eod.token", "model.vocab"]) && token as usize >= model.vocab {
        report.add(
            "data.eod.token",
            format!("data.eod.token {token} is not below model.vocab {}", model.vocab),
            "give the tokenizer's end-of-document id",
        );
    }
}

/// Documents end either at a token or at the bounds of the index, not both.
fn one_bound(eod: &Eod, by_index: bool, report: &mut Report) {
    let resets =
        [("reset_attention", eod.reset_attention), ("reset_positions", eod.reset_positions)];
    for (key, _) in resets.iter().filter(|(_, on)| by_index && *on) {
        report.add(
            "data.inter_document_masking",
            format!("data.eod.{key} and data.inter_document_masking both end documents"),
            "keep one: the token, or the bounds of the index",
        );
    }
}
