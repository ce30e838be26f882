//! Formats that an unknown folder resembles, because it was renamed or copied in part.

use super::format::{Format, by_names, list_names};
use base::Problems;
use std::path::Path;

/// Formats with names that are in their folders, among them those that `detect` needs. `*` is any text, and
/// a name that ends with `/` is a folder's.
const SIGNS: &[(Format, &[&str])] = &[
    (Format::HuggingFace, &["config.json", "*.safetensors"]),
    (
        Format::MegatronDeepSpeed,
        &["mp_rank_*_model_states.pt", "*zero_pp_rank_*_mp_rank_*_optim_states.pt"],
    ),
    (Format::DeepSpeedUniversal, &["zero/", "mp_rank_*_model_states.pt"]),
    (Format::MegatronLegacy, &["mp_rank_*/", "model_optim_rng.pt"]),
    (Format::PytorchDcp, &[".metadata", "__*_*.distcp"]),
    (Format::MegatronDist, &[".metadata", "metadata.json", "__*_*.distcp"]),
];

/// Folders that are looked into, at most.
const MAX_FOLDERS: usize = 200;

/// Message for a folder that resembles a checkpoint or has one in it; None for other folders.
pub fn resemblance(from: &Path) -> anyhow::Result<Option<Problems>> {
    let place = from.display().to_string();
    if let Some((step, format)) = checkpoint_within(from)? {
        return Ok(Some(Problems::one(
            place,
            format!("is not a checkpoint, but {step} in it is one of {}", format.name()),
            format!("give {}", from.join(&step).display()),
        )));
    }
    let names = names_below(from)?;
    let found: Vec<String> = SIGNS
        .iter()
        .filter_map(|(format, signs)| describe(*format, signs, &names))
        .collect();
    if found.is_empty() {
        return Ok(None);
    }
    let whole = from.canonicalize().unwrap_or_else(|_| from.to_path_buf());
    let above = whole.parent().filter(|above| is_rank_of(above, &whole));
    let remedy = match above {
        Some(above) => format!("it is part of one: give {}", above.display()),
        None => "copy the folder of the step whole, hidden files too, and keep its names".into(),
    };
    let what = format!("is not a checkpoint that is known, but resembles {}", found.join("; and "));
    Ok(Some(Problems::one(place, what, remedy)))
}

/// Newest folder in this one that is a checkpoint by itself, and its format.
fn checkpoint_within(from: &Path) -> anyhow::Result<Option<(String, Format)>> {
    let mut newest: Option<(u64, String, Format)> = None;
    for name in folders(from, &list_names(from)?) {
        let inner = from.join(&name);
        let Ok(names) = list_names(&inner) else { continue };
        let Some(format) = by_names(&inner, &names) else { continue };
        // The last number of `global_step100` or `iter_0000100`.
        let digits = name.rsplit(|c: char| !c.is_ascii_digit()).next();
        let step = digits
            .and_then(|digits| digits.parse().ok())
            .unwrap_or_default();
        if newest.as_ref().is_none_or(|(known, ..)| step >= *known) {
            newest = Some((step, name, format));
        }
    }
    Ok(newest.map(|(_, name, format)| (name, format)))
}

/// Whether a folder is that of one rank, in a folder that is a checkpoint.
fn is_rank_of(above: &Path, rank: &Path) -> bool {
    let is_rank = rank
        .file_name()
        .is_some_and(|name| name.to_string_lossy().starts_with("mp_rank_"));
    is_rank && list_names(above).is_ok_and(|names| by_names(above, &names).is_some())
}

fn folders(from: &Path, names: &[String]) -> Vec<String> {
    let mut folders: Vec<String> = names
        .iter()
        .filter(|name| from.join(name).is_dir())
        .cloned()
        .collect();
    folders.sort();
    folders.truncate(MAX_FOLDERS);
    folders
}

/// Names of the files in a folder and in the folders in it, and of these, which end with `/`.
fn names_below(from: &Path) -> anyhow::Result<Vec<String>> {
    let mut names = list_names(from)?;
    let folders = folders(from, &names);
    names.retain(|name| !from.join(name).is_dir());
    for folder in folders {
        let inner = list_names(&from.join(&folder)).unwrap_or_default();
        names.extend(inner.iter().map(|name| format!("{folder}/{name}")));
        names.push(format!("{folder}/"));
    }
    names.sort();
    Ok(names)
}

/// Sentence about the names of a format that a folder has and lacks; None if it has none.
fn describe(format: Format, signs: &[&str], names: &[String]) -> Option<String> {
    let mut has = Vec::new();
    let mut lacks = Vec::new();
    for sign in signs {
        let mut found = names.iter().filter(|name| matches(sign, name));
        match (found.next(), found.count()) {
            (None, _) => lacks.push(*sign),
            (Some(first), 0) => has.push(first.clone()),
            (Some(first), more) => has.push(format!("{first} and {more} more")),
        }
    }
    if has.is_empty() || lacks.is_empty() {
        return None;
    }
    Some(format!("{} (has {}; lacks {})", format.name(), has.join(", "), lacks.join(", ")))
}

/// Whether the last part of a name is of a form with `*`.
fn matches(form: &str, name: &str) -> bool {
    let start = name.trim_end_matches('/').rfind('/').map_or(0, |at| at + 1);
    let mut rest = &name[start..];
    let mut parts = form.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(after) = rest.strip_prefix(first) else { return false };
    rest = after;
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_match_the_last_part_of_a_name() {
        for (form, name, is) in [
            ("config.json", "config.json", true),
            ("config.json", "model/config.json", true),
            ("config.json", "my_config.json", false),
            ("config.json", "config.json.bak", false),
            ("zero/", "zero/", true),
            ("zero/", "zero", false),
            ("mp_rank_*/", "mp_rank_00/", true),
            ("mp_rank_*/", "mp_rank_00/model_optim_rng.pt", false),
            ("__*_*.distcp", "__0_0.distcp", true),
            ("__*_*.distcp", "__0.distcp", false),
            ("*.safetensors", "model.safetensors.index.json", false),
        ] {
            assert_eq!(matches(form, name), is, "{form} {name}");
        }
    }

    #[test]
    fn a_folder_that_has_all_or_none_of_a_format_does_not_resemble_it() {
        let names = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        let dcp = |found: &[&str]| {
            describe(Format::PytorchDcp, &[".metadata", "__*_*.distcp"], &names(found))
        };
        assert_eq!(dcp(&[".metadata", "__0_0.distcp"]), None);
        assert_eq!(dcp(&["notes.txt"]), None);
        assert_eq!(
            dcp(&["__0_0.distcp", "__1_0.distcp"]).unwrap(),
            "PyTorch distributed checkpoint (has __0_0.distcp and 1 more; lacks .metadata)"
        );
    }
}
