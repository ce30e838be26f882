//! Messages and refusals of `gptrain estimate`, and a size instead of a manifest.

use crate::estimate_cli::{estimate, json, refused};

const LLAMA: &str = "manifests/llama3-8b.yaml";

#[test]
fn numbers_that_a_device_does_not_have_are_refused() {
    let on = |precision| {
        let set = format!("precision={precision}");
        estimate(&["manifests/gpt2-1.5b.yaml", "--hardware", "v100-32g", "--set", &set])
    };
    let (code, _, err) = on("bf16");
    assert_eq!(code, 2, "{err}");
    assert!(err.contains("v100-32g has no bf16") && err.contains("precision=fp16"), "{err}");
    let (code, _, err) = on("fp8");
    assert!(code == 2 && err.contains("precision=fp16"), "{err}");
    assert_ne!(on("fp16").0, 2);
}

#[test]
fn what_if_keeps_the_number_of_devices_unless_it_is_set() {
    let compared = |what: &str| {
        let v = json(&[LLAMA, "--what-if", what]);
        ["now", "what_if"].map(|side| v[side]["devices"].as_u64().unwrap())
    };
    assert_eq!(compared("topology.tensor=4,batch.micro=2"), [64, 64]);
    assert_eq!(compared("topology.tensor=4,topology.data=64"), [64, 256]);
    let (code, out, err) = estimate(&[LLAMA, "--what-if", "topology.tensor=4,batch.micro=2"]);
    assert_eq!(code, 0, "{out} {err}");
    assert!(out.contains("topology.data: 64 → 16"), "{out}");
    let row = out
        .lines()
        .find(|line| line.starts_with("devices"))
        .unwrap();
    assert_eq!(row.split_whitespace().collect::<Vec<_>>(), ["devices", "64", "64", "–"]);
}

#[test]
fn a_search_over_no_device_and_a_folder_in_use_are_named() {
    refused(&[LLAMA, "--search", "--gpus", "0"], &["--gpus", "give 1 or more"]);
    refused(&[LLAMA, "--sizes", "1B", "--gpus", "0"], &["--gpus", "give 1 or more"]);
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("estimate.html"), "mine").unwrap();
    let at = folder.path().to_str().unwrap();
    let bloom = "manifests/tr11-176b-bloom.yaml";
    refused(&[bloom, "--plot", at], &["estimate.html exists", "--overwrite"]);
}

/// One table says which programs are predicted.
#[test]
fn help_readme_and_messages_name_the_same_programs() {
    let (_, _, err) = estimate(&[LLAMA, "--as", "megatron"]);
    let list = err
        .split("take one of gptrain, ")
        .nth(1)
        .unwrap()
        .trim()
        .to_string();
    let (_, help, _) = estimate(&["--help"]);
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words(&help).contains(&words(&list)), "{list}: {help}");
    let number = list.split(", ").count();
    let numbers = ["thirteen", "fourteen", "fifteen", "sixteen", "seventeen"];
    let said = format!("{} other trainers", numbers[number - 13]);
    assert!(include_str!("../../README.md").contains(&said), "{number} programs: {said}");
}

#[test]
fn a_plan_says_where_gptrain_was_not_measured() {
    let note =
        "gptrain has not run on a GPU: the plan for h100-80g is a model's forecast, not measured";
    let own = estimate(&[LLAMA]).1;
    assert!(own.lines().nth(1).is_some_and(|line| line.contains(note)), "{own}");
    let other = estimate(&[LLAMA, "--as", "fsdp"]).1;
    assert!(!other.contains("has not run on a GPU"), "{other}");
    let found = estimate(&[LLAMA, "--search", "--gpus", "64"]).1;
    assert!(found.contains(note), "{found}");
}

/// A size that fits in no way answers too, in the same columns.
#[test]
fn a_campaigns_columns_stay_apart() {
    let (code, out, _) = estimate(&[LLAMA, "--sizes", "1B,1T", "--gpus", "8"]);
    assert_eq!(code, 4, "{out}");
    let row = out.lines().nth(1).unwrap();
    let cells: Vec<&str> = row
        .split("  ")
        .map(str::trim)
        .filter(|cell| !cell.is_empty())
        .collect();
    assert_eq!(cells.len(), 9, "{out}");
    assert!(out.contains("none"), "{out}");
    assert!(out.contains("all on 8 devices") && out.contains("forecast, not measured"), "{out}");
}

#[test]
fn a_size_stands_for_the_published_model() {
    let v = json(&["7B"]);
    let size = v["parameters"].as_u64().unwrap();
    assert_eq!(size, 6_738_415_616, "Llama 2 7B");
    assert_eq!((&v["hardware"], &v["name"]), (&"h100-80g".into(), &"7B".into()));
    let gpt = json(&["13B", "--family", "gpt2"])["parameters"]
        .as_u64()
        .unwrap();
    assert!((12_800_000_000..12_900_000_000).contains(&gpt), "{gpt}");
    let best = &json(&["7B", "--search", "--gpus", "64"])["best"];
    assert_eq!(best["gpus"], 64, "{best}");
    refused(&[LLAMA, "--family", "gpt2"], &["--family", "set model.family in the manifest"]);
    refused(&["7C"], &["7C"]);
}

/// Devices without a mode ask for the best topology over them, and a line says so.
#[test]
fn a_number_of_devices_alone_searches() {
    let (code, out, err) = estimate(&["7B", "--gpus", "64"]);
    let (_, search, _) = estimate(&["7B", "--search", "--gpus", "64"]);
    assert_eq!((code, out), (0, search));
    assert!(err.contains("--gpus 64 without --search: searching for the best topology"), "{err}");
}

#[test]
fn an_own_plan_says_what_its_time_leaves_out() {
    let left_out = "without input, which is read ahead of the step, and saves";
    assert!(estimate(&[LLAMA]).1.contains(left_out));
    assert!(!estimate(&[LLAMA, "--as", "fsdp"]).1.contains(left_out));
}
