//! `gptrain compare`: the same numbers as text, as JSON and on the page.

use crate::common::binary::Lab;
use serde_json::Value;
use std::fs;

fn row<'a>(object: &'a Value, name: &str) -> &'a Value {
    let rows = object["rows"].as_array().unwrap();
    let found = rows.iter().find(|row| row["name"] == name);
    &found.unwrap_or_else(|| panic!("no {name} in {object:#}"))["values"]
}

#[test]
fn runs_are_compared_at_the_same_step_and_at_the_same_tokens() {
    let lab = Lab::new();
    let eval = ["train.eval_interval=4", "train.eval_samples=4"];
    let run = |folder: &str, sets: &[&str]| {
        let folder = format!("log.folder=runs/{folder}");
        lab.run(&[&eval[..], &[&folder], sets].concat())
            .expect(0, &[]);
    };
    run("a", &["train.steps=8"]);
    run("b", &["train.steps=12", "lr.peak=0.002"]);
    run("large", &["train.steps=4", "batch.global=8"]);

    let done = lab.gptrain(&["compare", "runs/a", "runs/b", "--json"]);
    let object: Value = serde_json::from_str(&done.expect(0, &[]).out).unwrap();
    assert_eq!(object["runs"], serde_json::json!(["a", "b"]));
    // Equal batches: one row says both. The median of the steps up to the last that both took.
    let median = |run: &str| {
        let rows = lab.metrics(run);
        let mut losses: Vec<f64> = rows[..8]
            .iter()
            .map(|row| row["lm_loss"].as_f64().unwrap())
            .collect();
        losses.sort_by(f64::total_cmp);
        losses[4]
    };
    let losses = row(&object, "training loss at step 8");
    assert_eq!(losses, &serde_json::json!([median("runs/a"), median("runs/b")]));
    let text = fs::read_to_string(lab.path("runs/b/metrics.jsonl")).unwrap();
    let lines = text
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    let valid = lines
        .filter(|row| row.get("eval").is_some())
        .find(|row| row["step"] == 8)
        .unwrap();
    let set = valid["eval"].as_str().unwrap();
    let both = row(&object, &format!("validation loss at step 8, {set}"));
    assert_eq!(both[1], valid["lm_loss"]);
    let settings = object["settings"].as_object().unwrap();
    assert_eq!(settings["lr.peak"][1], "0.002");
    assert!(settings.contains_key("train.samples") && !settings.contains_key("log.folder"));

    // Half the steps with batches twice as large: the same tokens.
    let done = lab.gptrain(&["compare", "runs/a", "runs/large", "-o", "both.html"]);
    let said = &done.expect(0, &[]).out;
    for part in [
        "training loss at step 4 ",
        "training loss at 512",
        " tokens",
        "difference",
        "batch.global",
    ] {
        assert!(said.contains(part), "{part:?} is not in {said}");
    }
    let page = fs::read_to_string(lab.path("both.html")).unwrap();
    for outside in ["http:", "https:", "src=", "href=", "@import", "url("] {
        assert!(!page.contains(outside), "{outside}");
    }
    assert!(page.contains("<th>batch.global</th><td>4</td><td>8</td>"), "{said}");
    assert!(page.matches("<figure").count() == 7 && !page.contains("NaN"), "{said}");
    lab.gptrain(&["compare", "runs/a", "runs/b", "-o", "both.html"])
        .expect(2, &["both.html"]);

    // The fall of the first steps flattens a chart of the whole: a second one begins after it.
    run("long", &["train.steps=30", "model.layers=1"]);
    lab.gptrain(&["compare", "runs/b", "runs/long", "-o", "long.html"])
        .well();
    let page = fs::read_to_string(lab.path("long.html")).unwrap();
    let late = "<h2>loss without the first tenth, nats a token";
    assert!(page.contains(late) && page.matches("<figure").count() == 8, "{page}");

    // A run that ended early does not set the step of the others, unless there is but one other.
    run("early", &["train.steps=2"]);
    let done = lab.gptrain(&["compare", "runs/a", "runs/b", "runs/early", "--json"]);
    let object: Value = serde_json::from_str(&done.expect(0, &[]).out).unwrap();
    let three = row(&object, "training loss at step 8");
    assert_eq!((&three[0], &three[1], &three[2]), (&losses[0], &losses[1], &Value::Null));
    assert!(row(&object, "training loss at each run's end")[2].is_number());
    let note = "early ends at step 2: it is not compared at step 8";
    assert_eq!(object["notes"], serde_json::json!([note]));
    let said = lab.gptrain(&["compare", "runs/b", "runs/early"]).out;
    let note = "early ends at step 2: the others, up to step 12, are compared there";
    assert!(said.contains("training loss at step 2 ") && said.contains(note), "{said}");
    // A value in JSON is whole.
    let pattern = "model.pattern=[full, {attention: window, rope: {theta: 5000}}]";
    run("pattern", &["train.steps=4", "model.position=rope", "model.window=8", pattern]);
    let said = lab.gptrain(&["compare", "runs/large", "runs/pattern"]).out;
    let json = |text: &str| serde_json::from_str::<Value>(text).is_ok();
    let values = said
        .lines()
        .filter_map(|line| line.trim().strip_prefix("pattern: "));
    assert!(
        values
            .filter(|value| value.starts_with('[') && json(value))
            .count()
            == 1,
        "{said}"
    );
    lab.gptrain(&["compare", "runs/a"])
        .expect(2, &["2 values required"]);
    lab.gptrain(&["compare", "runs/a", "runs/none"])
        .expect(2, &["runs/none/metrics.jsonl"]);
}
