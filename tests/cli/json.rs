//! `--json`: one JSON object alone on standard output, the facts that the lines say.

use crate::common::binary::{Done, Lab};
use serde_json::{Value, json};
use std::fs;

/// Output of `gptrain LINE --json`, which must end with `code`.
fn printed(lab: &Lab, line: &str, code: i32) -> Value {
    let args: Vec<&str> = line.split_whitespace().chain(["--json"]).collect();
    let done: Done = lab.gptrain(&args);
    assert_eq!(done.code, Some(code), "{line}\n{}\n{}", done.out, done.err);
    serde_json::from_str(&done.out).unwrap_or_else(|why| panic!("{line}: {why}\n{}", done.out))
}

/// Every command with the option takes part here.
#[test]
fn commands_with_json_print_one_object() {
    let lab = Lab::new();
    fs::write(lab.path("t.txt"), "a text, a text of words").unwrap();
    lab.run(&["train.steps=2"]).well();
    let built = printed(&lab, "data build t.txt -t bytes -o x --append-eod", 0);
    assert_eq!((&built["documents"], &built["tokens"]), (&json!(1), &json!(24)));
    assert_eq!((&built["dataset"], &built["dtype"]), (&json!("x"), &json!("uint16")));
    assert!(built["seconds"].as_f64().unwrap() > 0.0);
    let trained = printed(&lab, "data train-tokenizer t.txt --vocab 260 -o tok.json", 0);
    assert_eq!((&trained["vocab"], &trained["tokenizer"]), (&json!(260), &json!("tok.json")));
    assert_eq!(printed(&lab, "data merge x x -o y", 0)["tokens"], 48);
    let sound = printed(&lab, "data check x y --vocab 257 --digest", 0);
    assert_eq!(sound["sound"][1]["highest_id"], 256);
    assert_eq!(
        sound["sound"][0]["digests"]["x.bin"]
            .as_str()
            .unwrap()
            .len(),
        16
    );
    let damaged = printed(&lab, "data check x y --vocab 256", 2);
    let what = damaged["mistakes"][0]["what"].as_str().unwrap();
    assert!(what.contains("holds id 256") && damaged["sound"] == json!([]), "{damaged}");
    assert_eq!(printed(&lab, "data inspect x", 0)["tokens"], 24);

    let checked = printed(&lab, "manifest check run.yaml --set train.steps=3", 0);
    assert_eq!((&checked["ok"], &checked["steps"]), (&json!(true), &json!(3)));
    assert_eq!((&checked["missing"], &checked["ranks"]), (&json!([]), &json!(1)));
    let missing = printed(&lab, "manifest check run.yaml --set data.train=none", 0);
    assert!(
        missing["missing"][0]["what"]
            .as_str()
            .unwrap()
            .contains("none.idx"),
        "{missing}"
    );
    let wrong = printed(&lab, "manifest check run.yaml --set model.heads=5 --set lr.peak=-1", 2);
    assert!(wrong["ok"] == json!(false) && wrong["mistakes"].as_array().unwrap().len() == 2);

    let exported = printed(&lab, "export runs/a --output hf", 0);
    assert_eq!((&exported["dtype"], &exported["files"]), (&json!("f32"), &json!(1)));
    assert_eq!(exported["from"], "runs/a/checkpoints/step-00000002");
    let converted = printed(&lab, "convert runs/a megatron --to megatron --tensor 2", 0);
    assert_eq!((&converted["tensor"], &converted["states"]), (&json!(2), &json!(true)));
    let imported = printed(&lab, "import --hf hf --output imported", 0);
    let checkpoint = imported["checkpoint"].as_str().unwrap();
    assert!(checkpoint.ends_with("imported/checkpoints/step-00000000"), "{checkpoint}");
    assert_eq!(imported["unknown_keys"], json!([]));
    let mean = printed(&lab, "average runs/a imported --output mean", 0);
    assert_eq!(mean["mean_of"].as_array().unwrap().len(), 2);
    for line in ["status runs/a", "inspect-ckpt runs/a", "estimate run.yaml"] {
        assert!(printed(&lab, line, 0).is_object(), "{line}");
    }
}

/// One of each kind of option: what it cuts, how many, and in which form.
#[test]
fn samples_are_counted_cut_and_printed_as_json() {
    let lab = Lab::new();
    fs::write(lab.path("t.txt"), "one two three four five six seven\n".repeat(60)).unwrap();
    printed(&lab, "data train-tokenizer t.txt --vocab 300 -o tok.json", 0);
    printed(&lab, "data build t.txt -t tok.json -o x", 0);
    let sets = ["data.train=x", "data.tokenizer=tok.json", "model.vocab=300", "train.steps=60"];
    lab.run(
        &[&sets[..], &["data.split='1,0,0'", "lr.peak=0.02", "train.eval_interval=0"]].concat(),
    )
    .well();
    let sample = |more: &str| {
        let line = format!("sample runs/a --prompt one --tokens 24 {more}");
        let done = lab.gptrain(&line.split_whitespace().collect::<Vec<_>>());
        done.well();
        done.out
    };
    let lines = sample("--samples 3 --json");
    let texts = |lines: &str| -> Vec<Value> {
        lines
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    };
    assert_eq!(texts(&lines).len(), 3);
    assert_eq!(texts(&lines)[2]["sample"], 2);
    let whole = &texts(&sample("--temperature 0 --json"))[0];
    assert_eq!((&whole["prompt"], &whole["tokens"]), (&json!("one"), &json!(24)));
    let text = whole["text"].as_str().unwrap();
    assert!(text.contains(" five six"), "{text}");
    let cut = &texts(&sample("--temperature 0 --json --stop four"))[0];
    let before = text.split("four").next().unwrap();
    assert_eq!((&cut["finish"], &cut["text"]), (&json!("stop"), &json!(before)));
    assert!(sample("--temperature 0").contains(text), "the same as lines");
    assert_eq!(sample("--samples 3 --json"), lines, "the seed decides");
    assert_ne!(sample("--samples 3 --json --seed 2 --temperature 1.5"), lines);
}
