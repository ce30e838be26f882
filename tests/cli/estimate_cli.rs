//! `gptrain estimate` as a person meets it: tables, exit codes, and what it says of bad input.

use std::process::{Command, Output};

fn estimate(args: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gptrain"));
    command.arg("estimate").args(args).current_dir(env!("CARGO_MANIFEST_DIR"));
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().unwrap(), text(stdout), text(stderr))
}

fn json(args: &[&str]) -> serde_json::Value {
    let (_, out, err) = estimate(&[args, &["--json"]].concat());
    serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out} {err}"))
}

const BLOOM: &str = "manifests/tr11-176b-bloom.yaml";

#[test]
fn blooms_table_tells_its_story_in_100_columns() {
    let (code, out, err) = estimate(&[BLOOM, "--tokens", "366e9", "--draw-schedule"]);
    assert_eq!((code, err.as_str()), (0, ""));
    for words in ["176,247,271,424", "TP 4 × PP 12 × DP 8", ": fits", "pipeline bubble", "Schedule"]
    {
        assert!(out.contains(words), "{words}: {out}");
    }
    let wide: Vec<&str> = out.lines().filter(|line| line.chars().count() > 100).collect();
    assert!(wide.is_empty(), "{wide:#?}");
    let v = json(&[BLOOM, "--tokens", "366e9"]);
    let seconds = v["time"]["seconds"].as_f64().unwrap();
    assert!((102.0..108.0).contains(&seconds), "{seconds}");
    let tflops = v["tflops"]["hardware"].as_f64().unwrap();
    assert!((145.0..155.0).contains(&tflops), "{tflops}");
    let days = v["run"]["days"].as_f64().unwrap();
    assert!((105.0..130.0).contains(&days), "{days}");
    let parts = v["time"]["parts"].as_object().unwrap().values();
    let sum: f64 = parts.map(|part| part.as_f64().unwrap()).sum();
    assert!((sum / seconds - 1.0).abs() < 1e-9);
}

#[test]
fn the_search_finds_blooms_topology() {
    let v = json(&[BLOOM, "--search", "--gpus", "384"]);
    let ways = v["ways"].as_array().unwrap();
    let is = |way: &serde_json::Value| {
        (way["tensor"] == 4) && (way["pipeline"] == 12) && (way["data"] == 8)
    };
    let place = ways.iter().position(is).expect("among the best");
    let best = ways[0]["sec_per_iter"].as_f64().unwrap();
    assert!(place < 4, "{place}");
    assert!(ways[place]["sec_per_iter"].as_f64().unwrap() < 1.05 * best);
}

/// 18 GB of states, of which the machine has 16 GiB.
#[test]
fn a_host_that_is_too_small_ends_with_4() {
    let sets = ["topology.offload=optimizer", "batch.micro=1", "topology.recompute=full"];
    let sets = sets.map(|set| ["--set", set]).concat();
    let on = |hardware| {
        let args = ["manifests/gpt2-1.5b.yaml", "--as", "gptrain", "--hardware", hardware];
        estimate(&[&args[..], &sets].concat())
    };
    let (code, out, _) = on("cpu");
    assert!(out.contains("of 16.4: fits"), "the device has room: {out}");
    assert!(out.contains("Host memory of a node, GB: needed 17.9 of 16.4: DOES NOT FIT"), "{out}");
    assert!(code == 4 && out.contains("DOES NOT FIT"), "{out}");
    let (code, out, _) = on("a100-80g");
    assert!(code == 0 && out.contains("once a step: host"), "{out}");
}

#[test]
fn what_does_not_fit_ends_with_4_and_a_list_of_changes() {
    let sets =
        ["--set", "topology.tensor=2", "--set", "topology.data=16", "--set", "batch.micro=1"];
    let (code, out, _) = estimate(&[&[BLOOM][..], &sets].concat());
    assert_eq!(code, 4, "{out}");
    assert!(out.contains("DOES NOT FIT") && out.contains("Would fit"), "{out}");
}

fn refused(args: &[&str], words: &[&str]) {
    let (code, _, err) = estimate(args);
    assert_eq!(code, 2, "{args:?}: {err}");
    assert!(words.iter().all(|word| err.contains(word)), "{args:?}: {err}");
}

#[test]
fn bad_input_is_named_with_a_remedy() {
    refused(&[BLOOM, "--hardware", "a100-90g"], &["unknown hardware `a100-90g`", "a100-80g"]);
    refused(&[BLOOM, "--as", "megatron"], &["unknown program `megatron`", "megatron-deepspeed"]);
    refused(&[BLOOM, "--set", "topology.pipeline=71"], &["topology.pipeline"]);
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_string()
    };
    let foreign = write("other.log", "epoch 1 loss 2.0\nepoch 2 loss 1.5\n");
    refused(&[BLOOM, "--calibrate", &foreign], &["elapsed time per iteration"]);
    let table = write("other.csv", "name,speed\na,1\n");
    refused(&["--score", &table], &["not a table of measured runs"]);
}

#[test]
fn a_row_with_swapped_columns_is_named() {
    let shipped = include_str!("../../src/estimate/data/measured_runs.csv");
    let mut lines = shipped.lines();
    let header = lines.next().unwrap();
    let row = lines.find(|line| line.starts_with("002-053,")).unwrap();
    let swapped = row.replace(",134.02,120.29,", ",120.29,134.02,");
    assert_ne!(row, swapped);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("runs.csv");
    std::fs::write(&path, format!("{header}\n{swapped}\n")).unwrap();
    let v = json(&["--score", path.to_str().unwrap()]);
    let odd = v["rows"][0]["odd"][0].as_str().unwrap();
    assert!(odd.contains("swapped"), "{odd}");
}

#[test]
fn a_log_calibrates_and_its_odd_line_is_named() {
    let line = |i: usize, ms: f64| {
        format!(
            " iteration {i:8}/  100 | consumed samples: {:12} | elapsed time per iteration (ms): {ms:.1} | \
             learning rate: 6E-05 | global batch size:  2048 | lm loss: 2.0E+00 |\n",
            2048 * i
        )
    };
    let times = [300_000.0, 120_100.0, 120_400.0, 190_000.0, 119_900.0, 120_200.0];
    let log: String = times.iter().enumerate().map(|(i, ms)| line(i + 1, *ms)).collect();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.log");
    std::fs::write(&path, log).unwrap();
    let (code, out, err) = estimate(&[BLOOM, "--calibrate", path.to_str().unwrap(), "--json"]);
    assert_eq!(code, 0, "{err}");
    assert!(err.contains("line 4"), "{err}");
    let v: serde_json::Value = serde_json::from_str(&out).unwrap();
    let seconds = v["time"]["seconds"].as_f64().unwrap();
    assert!((116.0..124.0).contains(&seconds), "{seconds}");
}

#[test]
fn pictures_and_page_are_written() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path().to_str().unwrap();
    let (code, _, err) = estimate(&[BLOOM, "--plot", at]);
    assert_eq!((code, err.as_str()), (0, ""));
    for name in ["memory.svg", "waterfall.svg", "schedule.svg", "days.svg", "estimate.html"] {
        let text = std::fs::read_to_string(folder.path().join(name)).unwrap();
        assert!(text.contains("<svg") && !text.contains("NaN"), "{name}");
        assert!(!text.contains("src=") && !text.contains("<script"), "{name} is self-contained");
    }
}

#[test]
fn the_largest_model_and_the_fewest_devices() {
    let v = json(&[BLOOM, "--max-params", "--gpus", "384"]);
    let billions = v["max_params"].as_f64().unwrap() / 1e9;
    assert!((176.0..1000.0).contains(&billions), "{billions}");
    let v = json(&[BLOOM, "--min-gpus"]);
    let devices = v["min_gpus"].as_u64().unwrap();
    assert!((24..384).contains(&devices) && devices.is_multiple_of(8), "{devices}");
}

#[test]
fn advice_is_what_the_program_has() {
    let sets = ["--set", "topology.data=8", "--set", "batch.global=512"];
    let args = [&["manifests/gpt2-1.5b.yaml", "--as", "ddp", "--hardware", "a100-40g"][..], &sets];
    let (code, out, err) = estimate(&args.concat());
    assert_eq!(code, 4, "{out} {err}");
    let changes = out.split("Would fit").nth(1).unwrap();
    assert!(
        !changes.contains("ZeRO") && !changes.contains("PP ") && changes.contains("micro"),
        "{changes}"
    );
}

/// ZeRO-0 over two replicas: each sends its f32 gradients once (2·(n−1)/n) and two numbers.
#[test]
fn the_bytes_of_a_step_are_shown_where_ranks_send() {
    let one = estimate(&["manifests/quickstart.yaml"]).1;
    assert!(!one.contains("Sent by a rank"), "{one}");
    let sets = ["--set", "topology.data=2", "--set", "batch.micro=8"];
    let two = estimate(&[&["manifests/quickstart.yaml"][..], &sets].concat()).1;
    let row = two.lines().skip_while(|line| !line.starts_with("Sent by a rank")).nth(2).unwrap();
    let numbers: Vec<f64> = row.split_whitespace().map(|word| word.parse().unwrap()).collect();
    let gradients = 4.0 * 4_240_896.0 / 1048576.0;
    assert!((numbers[3] - gradients).abs() < 0.06 && numbers[3] == numbers[5], "{row}");
}

/// Columns are as wide as their numbers: BLOOM's are of six digits.
#[test]
fn the_bytes_of_a_step_stand_in_columns() {
    let (_, out, err) = estimate(&[BLOOM, "--as", "gptrain"]);
    let lines: Vec<&str> = out.lines().skip_while(|line| !line.starts_with("Sent by")).collect();
    assert!(lines.len() > 13, "{out} {err}");
    let heads: Vec<&str> = lines[1].split_whitespace().collect();
    assert_eq!(heads, ["stage", "tensor", "pipeline", "data", "tied", "sum"]);
    for line in &lines[2..14] {
        let row: Vec<f64> = line.split_whitespace().map(|word| word.parse().unwrap()).collect();
        assert_eq!((row.len(), line.len()), (heads.len(), lines[1].len()), "{line}");
        assert!(!line.contains('-'), "{line}");
        assert!((row[1..5].iter().sum::<f64>() - row[5]).abs() < 0.21 && row[1] > 1e5, "{line}");
    }
}

/// Each of the first cuts, estimated alone, takes what the search says of it.
#[test]
fn a_search_says_what_estimate_says() {
    let of = ["manifests/gpt2-1.5b.yaml", "--hardware", "a100-40g", "--set", "batch.global=64"];
    let v = json(&[&of[..], &["--search", "--gpus", "4"]].concat());
    for way in v["ways"].as_array().unwrap().iter().take(3) {
        let sets: Vec<&str> = way["set"]
            .as_array()
            .unwrap()
            .iter()
            .map(|set| set.as_str().unwrap())
            .flat_map(|set| set.split(' '))
            .collect();
        let alone = json(&[&of[..], &sets].concat());
        let same = |a: &serde_json::Value, b: f64| (a.as_f64().unwrap() / b - 1.0).abs() < 1e-9;
        assert!(same(&alone["time"]["seconds"], way["sec_per_iter"].as_f64().unwrap()), "{way}");
        assert!(same(&alone["run"]["days"], way["days"].as_f64().unwrap()), "{way}");
        let gigabytes = alone["memory"]["reserved_bytes"].as_f64().unwrap() / 1048576e3;
        assert!(same(&way["mem_gb"], gigabytes) && alone["memory"]["fits"] == true, "{way}");
    }
    let fewest = json(&[&of[..], &["--min-gpus"]].concat());
    assert_eq!(fewest["min_gpus"], 1, "{fewest}");
    let largest = json(&[&of[..], &["--max-params", "--gpus", "4"]].concat());
    assert!(largest["max_params"].as_f64().unwrap() > 5e9, "{largest}");
}
