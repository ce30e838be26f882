//! `gptrain eval`, `train.eval_tasks`, `train.stop_at_loss` and `gptrain average`. What a model
//! scores equals a plain loop with transformers in float64 (`fixtures/pytorch/scores.py`), on any
//! grid.

use crate::common::binary::{Lab, free_port};
use crate::common::events;
use crate::common::saved::Saved;
use gptrain::checkpoint::Checkpoint;
use gptrain::engine::MASTER;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

fn fixture(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(name);
    path.to_str().unwrap().to_string()
}

fn scores(name: &str) -> String {
    fixture(&format!("pytorch/scores/{name}"))
}

fn questions() -> [String; 3] {
    ["hellaswag", "arc", "piqa"].map(|task| scores(&format!("{task}.jsonl")))
}

/// `gptrain eval MODEL` on the text and all questions, with more arguments: the lines of JSON.
fn eval(lab: &Lab, model: &str, seq_len: u64, more: &[&str]) -> Vec<Value> {
    let (text, tokenizer, seq_len) =
        (scores("text.txt"), scores("tokenizer.json"), seq_len.to_string());
    let tasks = questions();
    let mut args = vec!["eval", model, "--json", "--data", &text, "--seq-len", &seq_len];
    args.extend(["--tokenizer", &tokenizer, "--tasks"]);
    args.extend(tasks.iter().map(String::as_str));
    args.extend(more);
    let done = lab.gptrain(&args);
    done.expect(0, &[]);
    done.out
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn number(value: &Value) -> f64 {
    value
        .as_f64()
        .unwrap_or_else(|| panic!("{value} is not a number"))
}

fn close(ours: &Value, theirs: &Value, tolerance: f64, what: &str) {
    let (ours, theirs) = (number(ours), number(theirs));
    let off = (ours - theirs).abs();
    assert!(off <= tolerance * theirs.abs().max(1.0), "{what}: {ours}, expected {theirs}");
}

/// Every figure to 2e-6 relative: f32 against f64.
fn equals_transformers(name: &str) {
    let lab = Lab::new();
    let text = fs::read_to_string(scores(&format!("{name}.json"))).unwrap();
    let expected: Value = serde_json::from_str(&text).unwrap();
    let folder = fixture(&format!("checkpoint/hf/{name}"));
    let seq_len = expected["seq_len"].as_u64().unwrap();
    let lines = eval(&lab, &folder, seq_len, &["--logprobs"]);
    let (samples, scored) = lines.split_at(lines.len() - 1);

    let theirs = expected["logprobs"].as_array().unwrap();
    assert_eq!(samples.len(), theirs.len());
    for (i, (ours, theirs)) in samples.iter().zip(theirs).enumerate() {
        assert_eq!(ours["sample"], i);
        let (ours, theirs) = (ours["logprobs"].as_array().unwrap(), theirs.as_array().unwrap());
        assert_eq!(ours.len(), theirs.len());
        let pairs = ours.iter().zip(theirs);
        pairs.for_each(|(ours, theirs)| close(ours, theirs, 2e-6, &format!("{name}, sample {i}")));
    }
    let data = &scored[0]["data"];
    for key in ["loss", "perplexity", "bits_per_byte"] {
        close(&data[key], &expected[key], 2e-6, key);
    }
    assert_eq!((&data["tokens"], &data["seq_len"]), (&expected["tokens"], &expected["seq_len"]));
    assert_eq!(data["samples"], theirs.len());
    assert!(!lab.path("gptrain-eval").exists());
    for (i, task) in ["hellaswag", "arc", "piqa"].iter().enumerate() {
        for key in ["questions", "acc", "acc_norm"] {
            close(&scored[0]["tasks"][i][key], &expected["tasks"][task][key], 1e-12, task);
        }
    }
}

#[test]
fn scores_of_gpt2_are_those_of_transformers() {
    equals_transformers("gpt2");
}

#[test]
fn scores_of_bloom_are_those_of_transformers() {
    equals_transformers("bloom");
}

/// A run of a model that every grid divides, trained a little.
fn trained(lab: &Lab) {
    lab.run(&["train.steps=4", "model.layers=4", "model.seq_len=24"])
        .expect(0, &[]);
}

#[test]
fn scores_do_not_depend_on_the_grid() {
    let lab = Lab::new();
    trained(&lab);
    let alone = eval(&lab, "runs/a", 24, &["--logprobs"]);
    let grids = [
        "topology={data: 3}",
        "topology={pipeline: 2}",
        "topology={tensor: 2}",
        "topology={tensor: 2, sequence_parallel: true, pipeline: 2, data: 2}",
        "topology={pipeline: 2, schedule: interleaved, chunks: 2}",
    ];
    for grid in grids {
        for micro in ["batch.micro=1", "batch.micro=3"] {
            let lines = eval(&lab, "runs/a", 24, &["--logprobs", "--set", grid, "--set", micro]);
            assert_eq!(lines.len(), alone.len());
            for (ours, alone) in lines.iter().zip(&alone).take(alone.len() - 1) {
                let numbers = |line: &Value| line["logprobs"].as_array().unwrap().clone();
                let pairs = numbers(ours).into_iter().zip(numbers(alone));
                pairs.for_each(|(ours, alone)| close(&ours, &alone, 1e-6, grid));
            }
            let (ours, alone) = (&lines[lines.len() - 1], &alone[alone.len() - 1]);
            close(&ours["data"]["loss"], &alone["data"]["loss"], 1e-6, grid);
            assert_eq!(ours["tasks"], alone["tasks"], "{grid}");
        }
    }
}

/// The harness adds no first token unless `add_bos_token` is set, and the rule is printed.
#[test]
fn a_templates_tokens_are_added_as_asked_and_named() {
    let lab = Lab::new();
    lab.run(&["train.steps=2", "model.seq_len=40"]).well();
    let plain = scores("tokenizer.json");
    let mut file: Value = serde_json::from_str(&fs::read_to_string(&plain).unwrap()).unwrap();
    let token = serde_json::json!({"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}});
    let text = serde_json::json!({"Sequence": {"id": "A", "type_id": 0}});
    file["post_processor"] = serde_json::json!({
        "type": "TemplateProcessing", "single": [token, text, token], "pair": [text, text],
        "special_tokens": {"<|endoftext|>":
            {"id": "<|endoftext|>", "ids": [0], "tokens": ["<|endoftext|>"]}},
    });
    fs::write(lab.path("template.json"), file.to_string()).unwrap();
    let [.., piqa] = questions();
    let eval = |tokenizer: &str, more: &[&str]| {
        let args = ["eval", "runs/a", "--tasks", &piqa, "--tokenizer", tokenizer];
        lab.gptrain(&[&args[..], more].concat())
    };
    let task = |tokenizer: &str| -> Value {
        let done = eval(tokenizer, &["--json"]);
        serde_json::from_str::<Value>(&done.expect(0, &[]).out).unwrap()
    };
    let (bare, whole) = (task(&plain), task("template.json"));
    assert_eq!(bare["tasks"], whole["tasks"], "neither first nor last token counts");
    assert!(bare.get("prompts").is_none());
    let says = "begin without the template's <|endoftext|>, the harness's default";
    assert!(whole["prompts"].as_str().unwrap().starts_with(says), "{whole}");
    let added = eval("template.json", &["--add-bos-token"]);
    let line =
        "prompts begin with the template's <|endoftext|> (--add-bos-token); <|endoftext|> is not";
    assert!(added.expect(0, &[]).out.contains(line), "{}", added.out);
    eval(&plain, &["--add-bos-token"]).expect(2, &["--add-bos-token: the tokenizer puts no token"]);
}

/// As processes that a launcher starts, which are replicas unless a topology is set.
#[test]
fn ranks_of_a_launcher_score_together_and_one_tells() {
    let lab = Lab::new();
    trained(&lab);
    let alone = lab.gptrain(&["eval", "runs/a", "--data", "corpus", "--json"]);
    alone.expect(0, &[]);
    let port = free_port();
    let start = |rank: usize| {
        let mut command = lab.rank(rank, 2, port, &[]);
        let mut eval = lab.command(&["eval", "runs/a", "--data", "corpus", "--json"]);
        for (name, value) in command.get_envs() {
            value.map(|value| eval.env(name, value));
        }
        command = eval;
        command.spawn().unwrap()
    };
    let ranks = [start(0), start(1)].map(|child| child.wait_with_output().unwrap());
    let out = ranks
        .each_ref()
        .map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let err = ranks
        .each_ref()
        .map(|output| String::from_utf8_lossy(&output.stderr).into_owned());
    assert!(ranks.iter().all(|output| output.status.success()), "{err:?}");
    assert_eq!((&out[0], out[1].as_str()), (&alone.out, ""));
}

/// A dataset made of a text has the text's tokens.
#[test]
fn a_dataset_scores_as_its_text() {
    let lab = Lab::new();
    trained(&lab);
    let (text, tokenizer) = (scores("text.txt"), scores("tokenizer.json"));
    let build = ["data", "build", &text, "--tokenizer", &tokenizer, "--output", "made"];
    lab.gptrain(&build).expect(0, &[]);
    let of = |data: &str| -> Value {
        let args = ["eval", "runs/a", "--data", data, "--json", "--tokenizer", &tokenizer];
        let done = lab.gptrain(&args);
        serde_json::from_str(&done.expect(0, &[]).out).unwrap()
    };
    let (made, text) = (&of("made")["data"], &of(&text)["data"]);
    assert_eq!((&made["loss"], &made["tokens"]), (&text["loss"], &text["tokens"]));
    assert!(made.get("bits_per_byte").is_none());
    let done = lab.gptrain(&["eval", "runs/a", "--data", "made"]);
    let line = format!("made: loss {:.6} | perplexity", number(&made["loss"]));
    assert!(done.expect(0, &[]).out.contains(&line), "{}", done.out);
}

/// Without data and tasks it is the loss of the run's last evaluation.
#[test]
fn a_run_is_scored_on_its_own_validation_set() {
    let lab = Lab::new();
    lab.run(&["train.eval_interval=4", "train.eval_samples=7"])
        .well();
    let rows = fs::read_to_string(lab.path("runs/a/metrics.jsonl")).unwrap();
    let mut rows = rows
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    let last = rows.rfind(|row| row.get("eval").is_some()).unwrap();
    let of = |more: &[&str]| -> Value {
        let done = lab.gptrain(&[&["eval", "runs/a", "--json"][..], more].concat());
        serde_json::from_str(&done.expect(0, &[]).out).unwrap()
    };
    let whole = of(&[]);
    let set = &whole["validation"][0];
    assert_eq!((&set["data"], &set["samples"]), (&"validation set valid".into(), &7.into()));
    close(&set["loss"], &last["lm_loss"], 1e-6, "the run's evaluation");
    let grid = of(&["--set", "topology.data=2", "--set", "batch.micro=3"]);
    assert_eq!(grid["validation"], whole["validation"]);
    assert_eq!(of(&["--limit", "2"])["validation"][0]["samples"], 2);
    let said = lab.gptrain(&["eval", "runs/a"]);
    assert!(
        said.expect(0, &[])
            .out
            .contains("validation set valid: loss "),
        "{}",
        said.out
    );
    // The first samples of a stream.
    let part = of(&["--data", "corpus", "--limit", "3"]);
    let tokens = 3 * part["data"]["seq_len"].as_u64().unwrap();
    assert_eq!((&part["data"]["samples"], &part["data"]["tokens"]), (&3.into(), &tokens.into()));
    let says = ["has no validation set of its own", "→ name what to score: --data PREFIX or FILE"];
    let none = ["data.split=1,0,0", "train.eval_interval=0", "log.folder=runs/b"];
    lab.run(&none).well();
    lab.gptrain(&["eval", "runs/b"]).expect(2, &says);
}

#[test]
fn tasks_are_measured_beside_validation_and_logged() {
    let lab = Lab::new();
    let [hellaswag, _, piqa] = questions();
    let tokenizer = format!("data.tokenizer={}", scores("tokenizer.json"));
    let tasks = format!(
        "train.eval_tasks={{swag: {{file: {hellaswag}, limit: 7}}, piqa: {{file: {piqa}}}}}"
    );
    let longer = ["model.seq_len=40", "log.tensorboard=true"];
    let grid = "topology={tensor: 2, pipeline: 2, data: 2, zero: 1}";
    let done = lab.run(&[&tokenizer, &tasks, grid, longer[0], longer[1]]);
    done.expect(0, &[]);
    let text = fs::read_to_string(lab.path("runs/a/metrics.jsonl")).unwrap();
    let rows: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let of =
        |task: &str| -> Vec<&Value> { rows.iter().filter(|row| row["task"] == task).collect() };
    let (swag, piqa_rows) = (of("swag"), of("piqa"));
    let steps = |rows: &[&Value]| {
        rows.iter()
            .map(|row| row["step"].as_u64())
            .collect::<Vec<_>>()
    };
    assert_eq!(steps(&swag), [Some(6), Some(12)]);
    assert_eq!(steps(&piqa_rows), [Some(6), Some(12)]);
    assert_eq!((&swag[1]["questions"], &piqa_rows[1]["questions"]), (&7.into(), &30.into()));
    let line = format!("acc: {:.4} | acc_norm", number(&piqa_rows[1]["acc"]));
    assert!(done.out.contains("task accuracy at iteration 12") && done.out.contains(&line));
    for (folder, tag) in [("", "piqa/acc_norm"), ("/by-samples", "swag/acc vs samples")] {
        let events = events::scalars(&lab.path(&format!("runs/a/tensorboard{folder}")));
        assert!(
            events
                .iter()
                .any(|(_, of, _)| *of == format!("eval-tasks/{tag}")),
            "{events:?}"
        );
    }

    // The same by the command, from the checkpoint of that step.
    let again = lab.gptrain(&["eval", "runs/a", "--tasks", &piqa, "--json"]);
    let again: Value = serde_json::from_str(&again.expect(0, &[]).out).unwrap();
    for key in ["acc", "acc_norm"] {
        close(&again["tasks"][0][key], &piqa_rows[1][key], 1e-12, key);
    }
    lab.gptrain(&["report", "runs/a"]).expect(0, &[]);
    let page = fs::read_to_string(lab.path("runs/a/report.html")).unwrap();
    assert!(page.contains("accuracy on tasks") && page.contains("<h2>tasks</h2>"));
}

/// Validation is the same whether its samples share the device with questions or not.
#[test]
fn tasks_change_no_loss() {
    let lab = Lab::new();
    let tokenizer = format!("data.tokenizer={}", scores("tokenizer.json"));
    let tasks = format!("train.eval_tasks={{piqa: {{file: {}}}}}", questions()[2]);
    let of = |folder: &str, sets: &[&str]| -> Vec<String> {
        let folder_set = format!("log.folder={folder}");
        let sets: Vec<&str> = sets
            .iter()
            .copied()
            .chain([&*folder_set, "model.seq_len=40"])
            .collect();
        lab.run(&sets).expect(0, &[]);
        let text = fs::read_to_string(lab.path(folder).join("metrics.jsonl")).unwrap();
        let losses = text
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap());
        losses
            .filter(|row| row.get("task").is_none())
            .map(|row| row["lm_loss"].to_string())
            .collect()
    };
    assert_eq!(of("runs/a", &[&tokenizer, &tasks]), of("runs/b", &[]));
}

#[test]
fn what_cannot_be_scored_is_told_by_its_line() {
    let lab = Lab::new();
    trained(&lab);
    let tokenizer = scores("tokenizer.json");
    let bad = [
        (
            r#"{"goal": "a", "sol1": "b", "sol2": "c", "label": 2}"#,
            "the right answer is number 2 of 2",
        ),
        (r#"{"goal": "a", "sol1": "b", "label": 0}"#, "sol2 is null, not text"),
        (r#"{"goal": "a""#, "not JSON"),
        (r#"{"question": "a"}"#, "has the keys of no known format"),
        (r#"{"ctx": "a", "endings": ["b", 3], "label": 0}"#, "endings is not a list of texts"),
        (r#"{"ctx": "a", "endings": ["b", ""], "label": 0}"#, "answer 1 is empty"),
        (r#"{"ctx": "a", "endings": ["b", "c"], "label": ""}"#, "label is \"\", not the number"),
        (
            r#"{"question": "a", "choices": {"text": ["b"], "label": ["A"]}, "answerKey": "C"}"#,
            "answerKey \"C\" is not in choices.label",
        ),
        (
            r#"{"goal": "a", "sol1": "zzz zzz zzz zzz zzz", "sol2": "c", "label": 0}"#,
            "in samples of 8",
        ),
    ];
    let good = "{\"goal\": \"a\", \"sol1\": \"b\", \"sol2\": \"c\", \"label\": 0}\n\n";
    let text: String = bad.iter().map(|(line, _)| format!("{line}\n")).collect();
    fs::write(lab.path("bad.jsonl"), format!("{good}{text}")).unwrap();
    let tasks = ["eval", "runs/a", "--tasks", "bad.jsonl", "--tokenizer", &tokenizer];
    let done = lab.gptrain(&[&tasks[..], &["--seq-len", "8"]].concat());
    done.expect(2, &[]);
    for (i, (_, what)) in bad.iter().enumerate() {
        let line = format!("bad.jsonl:{}: ", i + 3);
        let found = done
            .err
            .lines()
            .find(|l| l.starts_with(&line))
            .unwrap_or_default();
        assert!(found.contains(what), "{line} {what}: {}", done.err);
    }
    lab.gptrain(&[&tasks[..], &["--seq-len", "8", "--limit", "1"]].concat())
        .expect(0, &[]);

    let eval = |args: &[&str], code, words: &[&str]| {
        lab.gptrain(&[&["eval", "runs/a"], args].concat())
            .expect(code, words);
    };
    eval(&["--data", "nowhere"], 2, &["nowhere: there is no such file or dataset"]);
    eval(&["--data", "corpus.bin"], 2, &["one of a dataset's two files", "write corpus"]);
    eval(&["--data", "bad.jsonl"], 2, &["a .jsonl file is not plain text", "gptrain data build"]);
    eval(&["--data", "run.yaml"], 2, &["names no tokenizer", "--tokenizer"]);
    eval(&["--tasks", "bad.jsonl"], 2, &["questions need a tokenizer"]);
    eval(
        &["--data", "corpus", "--seq-len", "25"],
        2,
        &["25 is more than the model's 24 positions"],
    );
    eval(&["--data", "corpus", "--set", "topology.tensor=3"], 2, &["topology.tensor"]);
    fs::write(lab.path("latin.txt"), b"ok\n\xff").unwrap();
    let latin = ["--data", "latin.txt", "--tokenizer", &tokenizer];
    eval(&latin, 2, &["latin.txt:2: not UTF-8 text"]);
    let tasks = "train.eval_tasks={piqa: {file: bad.jsonl}}";
    lab.run(&[tasks])
        .expect(2, &["data.tokenizer names no tokenizer"]);
    let tokenizer = format!("data.tokenizer={tokenizer}");
    lab.run(&[tasks, &tokenizer])
        .expect(2, &["bad.jsonl:3: the right answer"]);
    lab.run(&["train.eval_tasks={piqa: {}}", &tokenizer])
        .expect(2, &["file"]);
}

#[test]
fn a_run_ends_where_its_loss_is_low_enough() {
    let lab = Lab::new();
    let long = ["train.steps=200", "train.eval_interval=5", "lr.decay=constant", "lr.min=0"];
    let loss_at = |folder: &str| -> Vec<(u64, f64)> {
        let text = fs::read_to_string(lab.path(folder).join("metrics.jsonl")).unwrap();
        let rows = text
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap());
        let rows = rows.filter(|row| row.get("eval").is_some());
        rows.map(|row| (row["step"].as_u64().unwrap(), number(&row["lm_loss"])))
            .collect()
    };
    let grid = "topology={tensor: 2, data: 2}";
    let done = lab.run(&[&long[..], &["train.stop_at_loss=3.6", grid]].concat());
    done.expect(0, &[]);
    assert!(done.out.contains("train.stop_at_loss is reached"), "{}", done.out);
    let evals = loss_at("runs/a");
    let (last, before) = evals.split_last().unwrap();
    assert!(last.1 <= 3.6 && before.iter().all(|(_, loss)| *loss > 3.6), "{evals:?}");
    let step = format!("runs/a/checkpoints/step-{:08}", last.0);
    assert!(lab.path(&step).exists(), "{step}");

    // Without a validation set: the mean of 16 steps.
    let none = ["data.split=1,0,0", "train.eval_interval=0", "log.folder=runs/b"];
    let done = lab.run(&[&long[..], &["train.stop_at_loss=3.6"], &none[..]].concat());
    let done = done.expect(0, &[]);
    assert!(done.out.contains("train.stop_at_loss is reached"), "{}", done.out);
    let losses: Vec<f64> = lab
        .metrics("runs/b")
        .iter()
        .map(|row| number(&row["lm_loss"]))
        .collect();
    let means: Vec<f64> = losses
        .windows(16)
        .map(|w| w.iter().sum::<f64>() / 16.0)
        .collect();
    // The step after the one that decides was in flight.
    let (_, before) = means[..means.len() - 1].split_last().unwrap();
    assert!(means[means.len() - 2] <= 3.6 && before.iter().all(|mean| *mean > 3.6), "{means:?}");
}

fn master(step: &Path) -> Vec<(String, Vec<f32>)> {
    let checkpoint = Checkpoint::open(step).unwrap();
    let whole = |t| checkpoint.whole(t, MASTER).unwrap();
    checkpoint
        .index
        .tensors
        .iter()
        .map(|t| (t.name.clone(), whole(t)))
        .collect()
}

#[test]
fn the_mean_of_checkpoints_runs_samples_and_is_exported() {
    let lab = Lab::new();
    for precision in ["f32", "bf16"] {
        let precision = format!("precision={precision}");
        let _ = fs::remove_dir_all(lab.path("runs"));
        let _ = fs::remove_dir_all(lab.path("out"));
        lab.run(&["train.steps=24", &precision]).expect(0, &[]);
        let step = |n: u64| format!("runs/a/checkpoints/step-{n:08}");
        let done =
            lab.gptrain(&["average", &step(5), &step(15), "runs/a", "--output", "runs/mean"]);
        done.expect(0, &[]);
        let written: PathBuf = lab.path("runs/mean/checkpoints/step-00000024");
        let all = [5, 15, 24].map(|n| master(&lab.path(&step(n))));
        for (i, (name, mean)) in master(&written).into_iter().enumerate() {
            for (j, value) in mean.iter().enumerate() {
                let sum: f64 = all.iter().map(|one| f64::from(one[i].1[j])).sum();
                assert_eq!(*value, (sum / 3.0) as f32, "{name}");
            }
        }
        let again = lab.gptrain(&["inspect-ckpt", "runs/mean", "--deep"]);
        assert!(again.expect(0, &[]).out.contains("imported   mean of"), "{}", again.out);
        assert!(Saved::read(&written).state.optimizer.began == 24);
        let done = lab.gptrain(&["run", "runs/mean", "--set", "train.steps=30"]);
        done.expect(0, &[]);
        assert_eq!(lab.metrics("runs/mean").len(), 6);
        lab.gptrain(&["export", "runs/mean", "--hf", "out"])
            .expect(0, &[]);
        let tokenizer = scores("tokenizer.json");
        let sample = ["sample", "runs/mean", "--tokens", "4", "--tokenizer", &tokenizer];
        lab.gptrain(&sample).expect(0, &[]);
        let done = lab.gptrain(&["average", &step(5), "runs/a", "--output", "runs/mean"]);
        done.expect(2, &["is a folder that is not empty"]);
    }
}

#[test]
fn checkpoints_of_other_shapes_have_no_mean() {
    let lab = Lab::new();
    lab.run(&["train.steps=2"]).expect(0, &[]);
    lab.run(&["train.steps=2", "model.ffn_hidden=96", "log.folder=runs/b"])
        .expect(0, &[]);
    lab.run(&["train.steps=2", "model.layers=3", "log.folder=runs/c"])
        .expect(0, &[]);
    let average = |from: [&str; 2], words: &[&str]| {
        lab.gptrain(&["average", from[0], from[1], "--output", "out"])
            .expect(2, words);
        assert!(!lab.path("out").exists());
    };
    average(["runs/a", "runs/b"], &["block.0.mlp.fc1.weight is [128, 32]", "it is [96, 32]"]);
    average(["runs/a", "runs/c"], &["has no block.2."]);
    average(["runs/c", "runs/a"], &["has block.2.", "average checkpoints of one model"]);
}
