//! `gptrain estimate` as a person meets it: tables, exit codes, and what it says of bad input.

use serde_json::Value;
use std::process::{Command, Output};

pub fn estimate(args: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gptrain"));
    command
        .arg("estimate")
        .args(args)
        .current_dir(env!("CARGO_MANIFEST_DIR"));
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    // A search that takes long, as on a busy machine, says how far it is.
    let err = text(stderr);
    let mut said = String::new();
    for line in err.lines().filter(|line| !line.starts_with("searching: ")) {
        said += &format!("{line}\n");
    }
    (status.code().unwrap(), text(stdout), said)
}

pub fn json(args: &[&str]) -> Value {
    let (_, out, err) = estimate(&[args, &["--json"]].concat());
    serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out} {err}"))
}

pub fn refused(args: &[&str], words: &[&str]) {
    let (code, _, err) = estimate(args);
    assert_eq!(code, 2, "{args:?}: {err}");
    assert!(words.iter().all(|word| err.contains(word)), "{args:?}: {err}");
}

/// Flags of a plan in JSON.
fn flags(plan: &Value) -> Vec<&str> {
    let sets = plan["set"].as_array().unwrap().iter();
    sets.flat_map(|set| set.as_str().unwrap().split(' '))
        .collect()
}

fn near(a: &Value, b: &Value, share: f64) {
    assert!((a.as_f64().unwrap() / b.as_f64().unwrap() - 1.0).abs() < share, "{a} is not {b}");
}

/// The flags of a plan in a search's or a campaign's JSON give its step and its days.
fn is_its_own_estimate(plan: &[&str], row: &Value, share: f64) -> Value {
    let alone = json(&[plan, &flags(row)].concat());
    near(&alone["time"]["seconds"], &row["sec_per_iter"], share);
    near(&alone["run"]["days"], &row["days"], share);
    alone
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
    let wide: Vec<&str> = out
        .lines()
        .filter(|line| line.chars().count() > 100)
        .collect();
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
    let is = |way: &Value| (way["tensor"] == 4) && (way["pipeline"] == 12) && (way["data"] == 8);
    let place = ways.iter().position(is).expect("among the best");
    let best = ways[0]["sec_per_iter"].as_f64().unwrap();
    assert!(place < 4, "{place}");
    assert!(ways[place]["sec_per_iter"].as_f64().unwrap() < 1.05 * best);
}

/// States of 12 bytes a parameter, a third more than this machine's memory.
#[test]
fn a_host_that_is_too_small_ends_with_4() {
    let memory = gptrain::base::memory::HostMemory::detect().unwrap().total.0;
    let layers = format!("model.layers={}", 4 * memory / 3 / 12 / 30_740_000);
    let sets =
        ["topology.offload=optimizer", "batch.micro=1", "topology.recompute=full", &layers[..]];
    let sets = sets.map(|set| ["--set", set]).concat();
    let args = ["manifests/gpt2-1.5b.yaml", "--as", "gptrain", "--hardware", "cpu"];
    let (code, out, _) = estimate(&[&args[..], &sets].concat());
    let gib = format!("of {:.1}: fits", memory as f64 / 1073741824.0);
    assert!(out.contains(&gib), "the device has room: {out}");
    let host = out
        .lines()
        .find(|line| line.starts_with("Host memory of a node, GiB: needed"));
    assert!(host.is_some_and(|line| line.ends_with("DOES NOT FIT")), "{out}");
    assert!(code == 4 && out.starts_with("DOES NOT FIT"), "{out}");
    let (code, out, _) = estimate(&[&args[..4], &["a100-80g"], &sets[..6]].concat());
    assert!(code == 0 && out.contains("once a step: host"), "{out}");
}

#[test]
fn what_does_not_fit_ends_with_4_and_a_list_of_changes() {
    let sets =
        ["--set", "topology.tensor=2", "--set", "topology.data=16", "--set", "batch.micro=1"];
    let (code, out, _) = estimate(&[&[BLOOM][..], &sets].concat());
    assert_eq!(code, 4, "{out}");
    assert!(out.contains("DOES NOT FIT") && out.contains("Changes that make it fit"), "{out}");
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
    let shipped = include_str!("../../src/predict/data/measured_runs.csv");
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

/// Every published run of the planner is predicted, or refused with a reason; each row has an error
/// bar.
#[test]
fn published_runs_are_scored_or_refused_with_the_reason() {
    for (table, refused) in [("vtrain_open", 0), ("public_open", 69)] {
        let path = format!("src/predict/data/{table}.csv");
        let v = json(&["--score", &path]);
        let rows = v["rows"].as_array().unwrap();
        let why = rows.iter().filter_map(|row| row["refused"].as_str());
        assert!(
            why.clone()
                .all(|why| why.starts_with("context parallelism over ")),
            "{table}"
        );
        assert_eq!(why.count(), refused, "{table}");
        for row in rows.iter().filter(|row| row["refused"].is_null()) {
            let is = |name: &str| row[name].as_f64().is_some_and(|x| x > 0.0 && x.is_finite());
            let figures = ["sec_per_iter", "time_bar", "mem_gb", "mem_bar"];
            assert!(figures.into_iter().all(is), "{table}: {row}");
        }
    }
}

/// A row of a program without measurements is refused with the nearest program, and planned with its
/// formulas and a wide bar.
#[test]
fn rows_of_an_unknown_program_are_planned_as_a_known_one() {
    let shipped = include_str!("../../src/predict/data/public_open.csv");
    let mut lines = shipped.lines();
    let header = lines.next().unwrap();
    let row = lines
        .find(|line| line.contains(",nemo,") && line.contains(",h100-80g,"))
        .unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("runs.csv");
    let text = format!("{header}\n{row}\n{}\n", row.replace(",nemo,", ",megatron-core,"));
    std::fs::write(&path, text).unwrap();
    let path = path.to_str().unwrap();
    let why = json(&["--score", path])["rows"][1]["refused"]
        .as_str()
        .unwrap()
        .to_string();
    assert!(why.contains("unknown program `megatron-core`: --as megatron-bridge"), "{why}");
    assert!(why.contains("a bar of about 65 %"), "{why}");
    let v = json(&["--score", path, "--as", "nemo"]);
    let [known, unknown] = [&v["rows"][0], &v["rows"][1]];
    assert_eq!(
        (&unknown["program"], unknown["refused"].is_null()),
        (&"megatron-core".into(), true)
    );
    let bar = |row: &Value| row["time_bar"].as_f64().unwrap();
    assert!(bar(known) < 0.3 && bar(unknown) > 0.4, "{} and {}", bar(known), bar(unknown));
    refused(&["--score", path, "--as", "gptrain"], &["--as", "no formulas for rows"]);
    refused(&[BLOOM, "--as", "megatron-core"], &["--as megatron-bridge", "about 65 %"]);
}

/// A machine whose launches waited is planned without that where the flag says so, also in a table.
#[test]
fn asynchronous_launches_count_in_tables_too() {
    let path = "src/predict/data/measured_runs.csv";
    let seconds = |args: &[&str]| -> Vec<f64> {
        let v = json(args);
        let row = |row: &Value| row["sec_per_iter"].as_f64().unwrap_or(0.0);
        v["rows"].as_array().unwrap().iter().map(row).collect()
    };
    let waiting = seconds(&["--score", path]);
    let flying = seconds(&["--score", path, "--async-launches"]);
    let faster = waiting
        .iter()
        .zip(&flying)
        .filter(|(a, b)| **b < 0.99 * **a)
        .count();
    assert!(faster > 40, "{faster} rows");
    let (code, _, err) = estimate(&[BLOOM, "--as", "gptrain", "--async-launches"]);
    assert!(code == 2 && err.contains("--async-launches"), "{err}");
}

/// Side by side: the settings that differ, the figures, and the parts that make the difference.
#[test]
fn what_if_compares_settings_and_manifests() {
    let plain = json(&[BLOOM]);
    let v = json(&[BLOOM, "--what-if", "topology.recompute=none,batch.micro=1"]);
    assert_eq!(v["now"]["time"]["seconds"], plain["time"]["seconds"]);
    let changed: Vec<&String> = v["changed"].as_object().unwrap().keys().collect();
    assert_eq!(changed, ["batch.micro", "topology.recompute"]);
    let parts = v["seconds"]["matrix products"].as_array().unwrap();
    assert!(parts[0].as_f64() > parts[1].as_f64(), "{parts:?}");
    let (code, out, _) = estimate(&[BLOOM, "--what-if", "topology.recompute=none"]);
    assert!(out.contains("Changed\n  topology.recompute: full → none"), "{out}");
    assert!(out.contains("saved") && (code == 4) == out.contains("NO"), "{code} {out}");
    let other = json(&["manifests/gpt2-124m.yaml", "--what-if", "manifests/gpt2-1.5b.yaml"]);
    assert_eq!(other["changed"]["model.layers"], serde_json::json!(["12", "48"]));
    refused(&[BLOOM, "--what-if", "no-such-file.yaml"], &["--what-if", "neither a file nor"]);
    refused(&[BLOOM, "--what-if", "topology.tensor=2", "--search", "--gpus", "8"], &["--what-if"]);
}

/// Each size has the tokens of the law, and the result of a search with the same settings.
#[test]
fn a_campaign_is_the_sum_of_its_searches() {
    let args = ["manifests/gpt2-124m.yaml", "--hardware", "h100-80g", "--gpus", "8"];
    let campaign = [&args[..], &["--sizes", "125M,350M", "--law", "20"]].concat();
    let v = json(&campaign);
    let rows = v["sizes"].as_array().unwrap();
    let number = |row: &Value, name: &str| row[name].as_f64().unwrap();
    let sum: f64 = rows.iter().map(|row| number(row, "days")).sum();
    assert!((sum / number(&v, "days") - 1.0).abs() < 1e-9);
    for (row, size) in rows.iter().zip([125e6, 350e6]) {
        assert!((number(row, "parameters") / size - 1.0).abs() < 0.1, "{row}");
        assert!(
            (number(row, "tokens") / (20.0 * number(row, "parameters")) - 1.0).abs() < 1e-3,
            "{row}"
        );
    }
    let text = estimate(&campaign).1;
    assert!(text.contains("all on 8 devices") && text.contains("$"), "{text}");
    for row in rows {
        is_its_own_estimate(&args[..3], row, 1e-6);
    }
    refused(&[&args[..], &["--sizes", "125M", "--tokens", "1e9"]].concat(), &["--tokens"]);
    refused(&[&args[..3], &["--law", "20"]].concat(), &["--law"]);
}

/// The published shapes of `manifest new`, which every tensor parallelism of a node divides; a size
/// without a topology has the setting that excludes all of them.
#[test]
fn a_campaign_has_published_shapes_or_says_what_excludes_a_topology() {
    let args = [BLOOM, "--gpus", "64", "--hardware", "a100-80g", "--sizes"];
    let v = json(&[&args[..], &["125M,1.3B,13B,20B"]].concat());
    let rows = v["sizes"].as_array().unwrap();
    let shape = |row: &Value| [&row["layers"], &row["hidden"]].map(|n| n.as_u64().unwrap());
    let shapes: Vec<[u64; 2]> = rows.iter().map(shape).collect();
    assert_eq!(shapes[..3], [[12, 768], [24, 2048], [40, 5120]]);
    assert!(shapes[3][1].is_multiple_of(8 * 128), "{shapes:?}");
    for row in rows {
        assert_eq!(row["fits"], true, "{row}");
        let topology = row["topology"].as_str().unwrap();
        let words: Vec<&str> = topology.split(' ').collect();
        assert!(words[3].parse::<usize>().unwrap() <= 8, "PP of {row}");
    }
    let one_by_one = ["batch.ramp_up=1 1 1000", "batch.micro=1", "topology.data=1"];
    let sets = one_by_one.map(|set| ["--set", set]).concat();
    let (code, out, err) = estimate(&[&args[..], &["125M"], &sets].concat());
    assert_eq!(code, 4, "{out} {err}");
    assert!(out.contains("none") && out.contains("batch.ramp_up 1 to 2048 by 1"), "{out}");
    assert!(out.contains("exclude every topology") && !out.contains("fit"), "{out}");
    let (code, out, _) = estimate(&[&[BLOOM, "--search", "--gpus", "60"][..], &sets].concat());
    assert!(code == 4 && out.contains("model.layers 70 excludes every topology"), "{out}");
}

/// Several plans are equal within the bar: the table says how many, and the simplest is first.
#[test]
fn a_search_says_how_many_plans_are_equal() {
    let args = ["manifests/gpt2-1.5b.yaml", "--search", "--gpus", "16", "--hardware", "h100-80g"];
    let (_, out, _) = estimate(&args);
    assert!(out.contains("ZeRO-0") && out.contains("are equal within a tenth"), "{out}");
    let v = json(&args);
    let step = |way: &Value| way["sec_per_iter"].as_f64().unwrap();
    let ways = v["ways"].as_array().unwrap();
    let slower = ways.iter().filter(|way| step(way) > step(&ways[0])).count();
    assert!(v["equal"].as_u64().unwrap() > 1 && slower < ways.len(), "{out}");
    assert!(!out.contains("0.4 days") && out.contains(" h "), "{out}");
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
    let log: String = times
        .iter()
        .enumerate()
        .map(|(i, ms)| line(i + 1, *ms))
        .collect();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.log");
    std::fs::write(&path, log).unwrap();
    let (code, out, err) = estimate(&[BLOOM, "--calibrate", path.to_str().unwrap(), "--json"]);
    assert_eq!(code, 0, "{err}");
    assert!(err.contains("line 4"), "{err}");
    let v: Value = serde_json::from_str(&out).unwrap();
    let seconds = v["time"]["seconds"].as_f64().unwrap();
    assert!((116.0..124.0).contains(&seconds), "{seconds}");
}

/// Each drawing is there for a screen and for a phone, where all its words are within 480 px.
fn fits_a_phone(page: &str) {
    let figures = |class: &str| {
        page.split("<figure class=\"wide ")
            .filter(|f| f.starts_with(class))
            .count()
    };
    assert_eq!(
        (figures("broad\""), figures("narrow\"")),
        (4, 4),
        "memory, waterfall, schedule, days"
    );
    for figure in page.split("<figure class=\"wide narrow\">").skip(1) {
        let figure = figure.split("</figure>").next().unwrap();
        assert!(figure.contains("viewBox=\"0 0 480 "), "{figure}");
        for text in figure.split("<text class=\"").skip(1) {
            let class = text.split('"').next().unwrap();
            let x: f64 = text
                .split("x=\"")
                .nth(1)
                .unwrap()
                .split('"')
                .next()
                .unwrap()
                .parse()
                .unwrap();
            let words = text.split('>').nth(1).unwrap().split('<').next().unwrap();
            let size = if class.contains("title") { 1.25 } else { 1.0 };
            let width = size * gptrain::base::svg::text_width(words);
            let right = x + width
                * if class.contains("end") {
                    0.0
                } else if class.contains("middle") {
                    0.5
                } else {
                    1.0
                };
            assert!(right <= 490.0 && x >= 0.0, "{words:?} ends at {right} of 480");
        }
    }
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
    fits_a_phone(&std::fs::read_to_string(folder.path().join("estimate.html")).unwrap());
    let (code, _, err) = estimate(&[BLOOM, "--plot", at]);
    assert!(code == 2 && err.contains("memory.svg exists"), "{err}");
    assert_eq!(estimate(&[BLOOM, "--plot", at, "--overwrite"]).0, 0);
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
    let changes = out.split("Changes that make it fit").nth(1).unwrap();
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
    let row = two
        .lines()
        .skip_while(|line| !line.starts_with("Sent by a rank"))
        .nth(2)
        .unwrap();
    let numbers: Vec<f64> = row
        .split_whitespace()
        .map(|word| word.parse().unwrap())
        .collect();
    let gradients = 4.0 * 4_240_896.0 / 1048576.0;
    assert!((numbers[3] - gradients).abs() < 0.06 && numbers[3] == numbers[5], "{row}");
}

/// Columns are as wide as their numbers: BLOOM's are of six digits.
#[test]
fn the_bytes_of_a_step_stand_in_columns() {
    let (_, out, err) = estimate(&[BLOOM, "--as", "gptrain"]);
    let lines: Vec<&str> = out
        .lines()
        .skip_while(|line| !line.starts_with("Sent by"))
        .collect();
    assert!(lines.len() > 13, "{out} {err}");
    let heads: Vec<&str> = lines[1].split_whitespace().collect();
    assert_eq!(heads, ["stage", "tensor", "pipeline", "data", "tied", "sum"]);
    for line in &lines[2..14] {
        let row: Vec<f64> = line
            .split_whitespace()
            .map(|word| word.parse().unwrap())
            .collect();
        assert_eq!((row.len(), line.len()), (heads.len(), lines[1].len()), "{line}");
        assert!(!line.contains('-'), "{line}");
        assert!((row[1..5].iter().sum::<f64>() - row[5]).abs() < 0.21 && row[1] > 1e5, "{line}");
    }
}

/// Each of the first cuts, estimated alone, takes what the search says of it.
#[test]
fn a_search_says_what_estimate_says() {
    let plan = ["manifests/gpt2-1.5b.yaml", "--hardware", "a100-40g", "--set", "batch.global=64"];
    let v = json(&[&plan[..], &["--search", "--gpus", "4"]].concat());
    for way in v["ways"].as_array().unwrap().iter().take(3) {
        let memory = &is_its_own_estimate(&plan, way, 1e-9)["memory"];
        let gibibytes = memory["reserved_bytes"].as_f64().unwrap() / 1073741824.0;
        near(&way["mem_gib"], &gibibytes.into(), 1e-9);
        assert_eq!(memory["fits"], true, "{way}");
    }
    let fewest = json(&[&plan[..], &["--min-gpus"]].concat());
    assert_eq!(fewest["min_gpus"], 1, "{fewest}");
    let largest = json(&[&plan[..], &["--max-params", "--gpus", "4"]].concat());
    assert!(largest["max_params"].as_f64().unwrap() > 5e9, "{largest}");
}

/// The same of every other program: the first row of its search is its estimate of that row.
#[test]
fn a_search_of_every_program_says_what_estimate_says() {
    let programs =
        ["megatron-deepspeed", "megatron-lm", "deepspeed-zero3", "hf-deepspeed", "ddp", "fsdp"];
    for program in programs {
        let sets = ["--set", "batch.global=64", "--hardware", "a100-80g", "--as", program];
        let plan = [&["manifests/gpt2-1.5b.yaml"][..], &sets].concat();
        let v = json(&[&plan[..], &["--search", "--gpus", "16"]].concat());
        is_its_own_estimate(&plan, &v["ways"][0], 1e-9);
    }
}

#[test]
fn an_own_plan_that_does_not_fit_ends_with_4_and_a_list_of_changes() {
    let sets =
        ["--set", "topology={data: 8, recompute: full}", "--set", "batch={micro: 1, global: 64}"];
    let args = ["manifests/gpt2-1.5b.yaml", "--hardware", "v100-16g", "--set", "precision=fp16"];
    let args = [&args[..], &sets].concat();
    let (code, out, err) = estimate(&args);
    assert_eq!((code, err.as_str()), (4, ""), "{out}");
    assert!(out.starts_with("DOES NOT FIT: "), "{out}");
    let list = out
        .split("Changes that make it fit, simplest first")
        .nth(1)
        .unwrap();
    let kinds = ["topology.zero=1", "topology.offload=optimizer"];
    let places = kinds.map(|word| list.find(word).unwrap_or_else(|| panic!("{word}: {list}")));
    assert!(places.is_sorted(), "{list}");
    let v = json(&args);
    let first = &v["ladder"][0];
    assert!(first["mem_gib"].as_f64().unwrap() < 15.75 && first["fits"] == true, "{first}");
    let small = ["--set", "train.device_memory=1GiB"];
    let (code, out, _) = estimate(&[&args[..], &small].concat());
    assert!(code == 4 && out.contains("No change of one or two steps fits"), "{out}");
}

#[test]
fn an_own_plan_says_what_is_faster_and_draws_its_days() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path().to_str().unwrap();
    let sets = ["--set", "topology={data: 8, recompute: full}", "--set", "batch.global=64"];
    let args = [&["manifests/gpt2-1.5b.yaml", "--hardware", "a100"][..], &sets].concat();
    let two = estimate(&args);
    assert!(two.0 == 2 && two.2.contains("a100-40g, a100-80g"), "{}", two.2);
    let args = [&["manifests/gpt2-1.5b.yaml", "--hardware", "h100"][..], &sets].concat();
    let (code, out, err) = estimate(&[&args[..], &["--plot", at]].concat());
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    assert!(
        out.starts_with("fits: ") && out.contains("Changes that make it faster, simplest first"),
        "{out}"
    );
    let wide = out.lines().find(|line| line.chars().count() > 100);
    assert_eq!(wide, None);
    let page = std::fs::read_to_string(folder.path().join("estimate.html")).unwrap();
    assert!(
        page.contains("class=\"tiles\"") && page.contains("this plan"),
        "tiles and the own point"
    );
    assert!(folder.path().join("days.svg").exists());
}

#[test]
fn a_search_is_drawn_and_keeps_to_a_budget() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let plan = ["manifests/gpt2-124m.yaml", "--hardware", "a100-40g", "--set", "batch.global=16"];
    let search = [&plan[..], &["--search", "--gpus", "8"]].concat();
    let (code, out, err) = estimate(&[&search[..], &["--plot", path]].concat());
    assert_eq!((code, err.as_str()), (0, ""));
    assert!(out.starts_with("best by days: 8 × a100-40g"), "{out}");
    for name in ["days.svg", "money.svg", "estimate.html"] {
        let text = std::fs::read_to_string(folder.path().join(name)).unwrap();
        assert!(text.contains("<svg") && !text.contains("NaN"), "{name}");
    }
    let v = json(&search);
    let money = |way: &Value| way["money"].as_f64().unwrap();
    let cheapest = v["pareto"]
        .as_array()
        .unwrap()
        .iter()
        .map(money)
        .fold(f64::INFINITY, f64::min);
    let budget = format!("{}", cheapest * 1.001);
    let within = json(&[&search[..], &["--budget", &budget]].concat());
    assert!(
        money(&within["best"]) <= cheapest * 1.001 && money(&v["best"]) >= money(&within["best"])
    );
    let (_, out, _) = estimate(&[&search[..], &["--budget", "1"]].concat());
    assert!(out.contains("above the budget of $1.00"), "{out}");
}

#[test]
fn flags_that_would_do_nothing_are_refused() {
    let plan = |more: &[&str], word: &str| {
        refused(&[&[BLOOM][..], more].concat(), &[word, "leave it out"])
    };
    plan(&["--gpus", "512", "--what-if", "batch.micro=1"], "--gpus");
    plan(&["--objective", "money"], "--objective");
    plan(&["--nodes-spare", "2"], "--nodes-spare");
    plan(&["--with", "offload"], "--with");
    plan(&["--min-gpus", "--gpus", "8"], "--gpus");
    plan(&["--min-gpus", "--plot", "x"], "--plot");
    plan(&["--max-params", "--gpus", "8", "--budget", "9"], "--budget");
    plan(&["--search", "--gpus", "8", "--draw-schedule"], "--draw-schedule");
    plan(&["--search", "--gpus", "8", "--with", "offload"], "gptrain's own plans");
    plan(&["--as", "gptrain", "--async-launches"], "--async-launches");
    plan(&["--selftest"], "MANIFEST");
    refused(&["--list-hardware", "--plot", "x"], &["--plot", "leave it out"]);
    refused(&["--selftest", "--calibrate", "x"], &["--calibrate", "leave it out"]);
    let (code, _, err) = estimate(&[BLOOM, "--tokens", "many"]);
    assert!(code == 2 && err.contains("300B"), "{err}");
    let tokens = |text: &str| {
        json(&[BLOOM, "--tokens", text])["run"]["tokens"]
            .as_f64()
            .unwrap()
    };
    assert_eq!([tokens("300B"), tokens("300_000_000_000")], [tokens("300e9"); 2]);
    assert!(json(&["--list-hardware"]).as_array().unwrap().len() > 5);
}

/// A search over models has an end: more devices than it takes are refused at once.
#[test]
fn more_devices_than_a_search_over_models_takes_are_refused() {
    for devices in ["65537", "4294967295", "18446744073709551615"] {
        let words = ["--gpus", "--max-params tries models for up to 65,536"];
        refused(&[BLOOM, "--max-params", "--gpus", devices], &words);
    }
}

/// The promise of docs/estimate.md: of configurations that were not seen, and of every source of which
/// nothing was, or a few rows, the error and how many lie within their bars.
#[test]
fn the_selftest_tells_of_every_source() {
    let v = json(&["--selftest"]);
    let figure = |place: &str| {
        let at = v.pointer(place).and_then(|at| at.as_f64());
        at.unwrap_or_else(|| panic!("no {place}"))
    };
    let seen = |name: &str, what: &str| figure(&format!("/left_out/{name}/{what}"));
    assert!(seen("time, all rows", "rows") > 700.0 && seen("time, all rows", "median") < 0.03);
    assert!((0.85..0.96).contains(&seen("time, all rows", "within_bar")));
    let printed = "time, Jean Zay, printed";
    assert!(seen(printed, "mean") < 0.025 && seen(printed, "p90") < 0.06);
    let memory = "memory, Jean Zay's A100";
    assert!(seen(memory, "mean") < 0.03 && seen(memory, "p90") < 0.06);
    let fits = "fits, Jean Zay's A100";
    assert!(seen(fits, "right") >= 0.96 * seen(fits, "rows"));
    let sources = v["sources_left_out"].as_object().unwrap();
    assert!(sources.len() > 12);
    for (source, stages) in sources {
        assert!(stages["unseen"]["rows"].as_u64() > Some(0), "{source}");
        for (stage, errors) in stages.as_object().unwrap().iter().filter(|(stage, _)| {
            stage.starts_with("after") // of a source, not of all
        }) {
            let (rows, within) = (errors["rows"].as_u64(), errors["within_bar"].as_f64());
            assert!(
                rows < Some(5) || within > Some(0.8),
                "{source}, {stage}: {within:?} of {rows:?}"
            );
        }
        // Five runs of one's own do not widen a bar that they do not contradict.
        let bars = |rows: &Value| -> std::collections::BTreeMap<String, f64> {
            let rows = rows.as_array().into_iter().flatten();
            let bar = |row: &Value| Some((row["id"].to_string(), row["time_bar"].as_f64()?));
            rows.filter_map(bar).collect()
        };
        if stages["unseen"]["within_bar"] == 1.0 {
            let before = bars(&stages["rows"]);
            for (id, bar) in bars(&stages["rows_after_5"]) {
                assert!(bar <= before[&id] + 1e-9, "{source}, {id}: {bar}, {} before", before[&id]);
            }
        }
    }
    let unseen = |place: &str| figure(&format!("/sources_left_out/{place}"));
    assert!(unseen("all/unseen/mean") < 0.25 && unseen("all/unseen/within_bar") > 0.9);
    for case in ["all, unknown program", "all, known program"] {
        let figure = |what: &str| unseen(&format!("{case}/unseen/{what}"));
        assert!(figure("within_bar") >= 0.9, "{case}: {}", figure("within_bar"));
        assert!(figure("bar") <= 0.65, "{case}: {}", figure("bar"));
    }
    let goals = v["goals"].as_object().unwrap();
    assert!(goals.len() == 6 && goals.values().all(|goal| goal["met"] == true), "{goals:?}");
    assert!(unseen("vtrain/after_20/mean") < 0.1 && unseen("llm-foundry/after_20/mean") < 0.08);
}

/// `cpu` is this machine: its memory and its name, and no price unless one is given.
#[test]
fn the_local_cpu_is_this_machine_and_has_no_price() {
    let memory = gptrain::base::memory::HostMemory::detect().unwrap().total.0;
    let plan = "manifests/quickstart.yaml";
    let v = json(&[plan]);
    let capacity = v["memory"]["capacity_bytes"].as_f64().unwrap();
    assert!((capacity / memory as f64 - 1.0).abs() < 1e-9, "{capacity}");
    assert_eq!(v["run"]["money"], 0.0);
    let (_, out, _) = estimate(&[plan]);
    assert!(!out.contains('$') && !out.contains("Cost"), "{out}");
    let (_, out, _) = estimate(&[plan, "--price", "0.05"]);
    assert!(out.lines().next().unwrap().contains(", $") && out.contains("Cost at $0.05"), "{out}");
    let rows = json(&["--list-hardware"]);
    let cpu = rows
        .as_array()
        .unwrap()
        .iter()
        .find(|row| row["name"] == "cpu")
        .unwrap();
    let about = cpu["about"].as_str().unwrap();
    let name = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let vendor = ["Intel", "AMD"]
        .into_iter()
        .find(|vendor| name.contains(vendor));
    assert!(vendor.is_none_or(|vendor| about.contains(vendor)), "{about}");
    assert!(
        (cpu["memory_gib"].as_f64().unwrap() * 1073741824.0 / memory as f64 - 1.0).abs() < 1e-9
    );
}

/// Money has the sign that its price is given with, and the table's without one.
#[test]
fn money_has_the_sign_of_its_price() {
    let first = |args: &[&str]| {
        let (_, out, _) = estimate(&[&[BLOOM, "--hardware", "a100-80g"], args].concat());
        out.lines().next().unwrap().to_string()
    };
    let (dollars, euros) = (first(&["--price", "2"]), first(&["--price", "€2"]));
    assert!(dollars.contains(", $"), "{dollars}");
    assert_eq!(euros, dollars.replace('$', "€"));
    refused(&[BLOOM, "--price", "two"], &["€2.10"]);
}

/// Short runs are printed in minutes; the local CPU is measured, and a run of years suggests GPUs.
#[test]
fn small_runs_are_told_in_minutes_and_long_ones_of_gpus() {
    let (_, out, _) = estimate(&["manifests/quickstart.yaml"]);
    let run = out.lines().find(|line| line.starts_with("Run of")).unwrap();
    assert!(!run.contains("0.0 days") && !out.contains("--list-hardware"), "{out}");
    let (_, out, _) = estimate(&["manifests/gpt2-1.5b.yaml", "--set", "train.tokens=300e9"]);
    assert!(out.lines().nth(1).unwrap().contains("--hardware h100-80g"), "{out}");
}

/// The metrics of a run that took twice what is planned: twice the seconds, the same bytes.
/// Quadratic work would be 10^10 comparisons and as many numbers in memory.
#[test]
fn a_long_log_is_learned_in_its_length() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("long.log");
    let line = |i: usize| {
        // One in ten thousand has no time, one is odd.
        let seconds =
            [100.0, -1.0, f64::NAN, 900.0][if i % 10_000 < 3 { 1 + i % 10_000 } else { 0 }];
        let name = "elapsed time per iteration (s):";
        format!(" iteration {i}/9 | {name} {seconds} | global batch size: 2048 |\n")
    };
    std::fs::write(&path, (1..=100_000).map(line).collect::<String>()).unwrap();
    for program in [&[][..], &["--as", "megatron-deepspeed"]] {
        let args =
            [&[BLOOM, "--calibrate", path.to_str().unwrap(), "--json"][..], program].concat();
        let (code, out, err) = estimate(&args);
        assert!(matches!(code, 0 | 4) && err.contains("learned from"), "{err}");
        assert!(err.lines().count() < 20 && !out.contains("NaN"), "{err}");
        let v: Value = serde_json::from_str(&out).unwrap();
        assert!(v["time"]["seconds"].as_f64().unwrap() > 0.0, "{out}");
    }
}

#[test]
fn the_metrics_of_a_run_calibrate_its_plan() {
    let plan = ["manifests/gpt2-1.5b.yaml", "--hardware", "h100-80g"];
    let plain = json(&plan);
    let seconds = plain["time"]["seconds"].as_f64().unwrap();
    let batch = plain["topology"]["global_batch"].as_u64().unwrap();
    let row = |step: u64| {
        format!("{{\"step\":{step},\"global_batch\":{batch},\"sec\":{}}}\n", 2.0 * seconds)
    };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("metrics.jsonl");
    std::fs::write(&path, (1..9).map(row).collect::<String>()).unwrap();
    let (code, out, err) =
        estimate(&[&plan[..], &["--calibrate", path.to_str().unwrap(), "--json"]].concat());
    assert!(code == 0 && err.contains("learned from 7 steps: they took 2.00 times"), "{err}");
    let learned: Value = serde_json::from_str(&out).unwrap();
    let near = |a: f64, b: f64| assert!((a / b - 1.0).abs() < 1e-9, "{a} {b}");
    near(learned["time"]["seconds"].as_f64().unwrap(), 2.0 * seconds);
    near(learned["run"]["days"].as_f64().unwrap(), 2.0 * plain["run"]["days"].as_f64().unwrap());
    assert_eq!(learned["memory"]["reserved_bytes"], plain["memory"]["reserved_bytes"]);
    // The search follows it too.
    let search = |more: &[&str]| {
        let args = [&plan[..], &["--search", "--gpus", "1"], more].concat();
        let ways = json(&args)["ways"].as_array().unwrap().clone();
        let steps = ways.iter().map(|way| way["sec_per_iter"].as_f64().unwrap());
        steps.fold(f64::INFINITY, f64::min) // the first is the roomiest within the bar
    };
    near(search(&["--calibrate", path.to_str().unwrap()]), 2.0 * search(&[]));
}
