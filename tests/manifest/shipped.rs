//! Every shipped manifest loads, means the same when written back, and reproduces its run's figures.

use gptrain::estimate::predict::Predict;
use gptrain::estimate::print;
use gptrain::estimate::request::{Flags, Request};
use gptrain::estimate::setup::Program;
use gptrain::manifest::{LayerSplit, Loaded, Manifest, Position, Precision, load, parse};
use gptrain::model::parameters;
use gptrain::predict::Predictor;
use std::path::{Path, PathBuf};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests")
}

fn shipped(name: &str, sets: &[&str]) -> Loaded {
    let sets: Vec<String> = sets.iter().map(|set| set.to_string()).collect();
    load(&folder().join(name), &sets).unwrap_or_else(|error| panic!("{error:#}"))
}

#[test]
fn every_manifest_loads_and_means_the_same_when_written_back() {
    let mut names = Vec::new();
    let list = |folder: &Path| {
        std::fs::read_dir(folder)
            .expect("manifests")
            .collect::<Vec<_>>()
    };
    let (sweep, mut all) = (folder().join("sweep"), list(&folder()));
    all.extend(list(&sweep));
    for path in all.into_iter().map(|entry| entry.expect("an entry").path()) {
        if path == sweep {
            continue;
        }
        let name = path
            .file_name()
            .expect("a name")
            .to_string_lossy()
            .into_owned();
        assert!(name.ends_with(".yaml"), "{name} is not a manifest");
        let loaded = shipped(path.to_str().expect("text"), &[]);
        assert_eq!(format!("{}.yaml", loaded.manifest.name), name);
        assert!(loaded.manifest.runnable().is_ok(), "{name}");
        let again = parse(&loaded.effective, "effective", Path::new("/"), &[]);
        let again = again.unwrap_or_else(|problems| panic!("{problems}"));
        assert_eq!(again.manifest, loaded.manifest, "{name}");
        for program in [None, Some("gptrain")] {
            estimate(&loaded.manifest, program);
        }
        names.push(name);
    }
    assert!(names.len() >= 13, "{names:?}");
}

/// Every figure of an estimate is a number.
fn estimate(m: &Manifest, program: Option<&str>) {
    let request = Request::new(m.clone(), &Flags { program, ..Flags::default() });
    let request = request.unwrap_or_else(|problems| panic!("{problems}"));
    let predictor: &dyn Predict = Predictor::shipped();
    let other = (request.setup.program != Program::Gptrain).then_some(predictor);
    let view = request.view(other);
    let text = print::printout(&view).text(usize::MAX);
    assert!(text.contains("sets the peak") && view.seconds > 0.0, "{text}");
    let words = text.split(|c: char| c.is_whitespace() || c == ',');
    let figures: Vec<f64> = words.filter_map(|word| word.parse().ok()).collect();
    assert!(figures.len() > 30 && figures.iter().all(|figure| figure.is_finite()), "{text}");
}

/// The run's own log counts 128,728 iterations, and its notes 375 M, 410 B and 450 B tokens.
#[test]
fn bloom_tells_its_story() {
    let bloom = shipped("tr11-176b-bloom.yaml", &[]).manifest;
    let (model, topology) = (&bloom.model, &bloom.topology);
    assert_eq!((model.layers, model.hidden, model.heads), (70, 14336, 112));
    assert_eq!(
        (model.vocab_padded, model.seq_len, model.position),
        (250880, 2048, Position::Alibi)
    );
    assert!(model.embedding_layernorm && model.tied_head && bloom.precision == Precision::Bf16);
    assert_eq!((topology.tensor, topology.pipeline, topology.data, topology.zero), (4, 12, 8, 1));
    assert_eq!(
        (topology.ranks(), &topology.layer_split),
        (384, &LayerSplit::TransformerAndEmbedding)
    );
    assert_eq!(bloom.batch.ramp().increments(), 127);
    assert_eq!(bloom.batch.ramp().steps(bloom.train.samples), 128_728);
    assert_eq!(bloom.train.samples * 2048 / 1_000_000_000, 450);
}

/// The two other starts, which stand in the manifest as comments.
#[test]
fn bloom_starts_at_192_or_384_as_well() {
    let text =
        std::fs::read_to_string(folder().join("tr11-176b-bloom.yaml")).expect("the manifest");
    let mut steps = Vec::new();
    for start in ["192 16 9_765_625", "384 16 9_765_625"] {
        assert!(text.contains(&format!("# ramp_up: {start}\n")), "{start}");
        let bloom = shipped("tr11-176b-bloom.yaml", &[&format!("batch.ramp_up={start}")]).manifest;
        steps.push(bloom.batch.ramp().steps(bloom.train.samples));
    }
    // 115,311 is what the run counted after its start at 192; both are what Megatron.s loop gives.
    assert_eq!(steps, [115_311, 112_578]);
}

#[test]
fn the_shapes_of_the_others() {
    let shape = |name: &str| {
        let m = shipped(name, &[]).manifest;
        (m.model.layers, m.model.hidden, m.model.heads, m.topology.ranks())
    };
    assert_eq!(shape("tr8-104b.yaml"), (64, 11600, 80, 512));
    assert_eq!(shape("bloom-7b1.yaml"), (30, 4096, 32, 128));
    assert_eq!(shape("gpt2-124m.yaml"), (12, 768, 12, 1));
    assert_eq!(shape("gpt2-1.5b.yaml"), (48, 1600, 25, 1));
    let ladder = [("18b", 16), ("28b", 32), ("36b", 32), ("48b", 64), ("61b", 64), ("109b", 128)];
    for (size, ranks) in ladder {
        assert_eq!(shape(&format!("sweep/gpt2-{size}.yaml")).3, ranks, "{size}");
    }
    assert_eq!(shape("sweep/gpt2-193b.yaml"), (64, 16384, 32, 256));
}

/// Parameters as the models' makers count them, head and embedding apart.
#[test]
fn llamas_have_the_published_parameters() {
    let published = [
        ("llama3-8b", 8_030_261_248),
        ("llama3-70b", 70_553_706_496),
        ("llama3-405b", 405_853_388_800),
        ("qwen3-8b", 8_190_735_360),
    ];
    for (name, count) in published {
        let model = shipped(&format!("{name}.yaml"), &[]).manifest.model;
        assert_eq!((model.vocab_padded, parameters(&model)), (model.vocab, count), "{name}");
    }
    let quick = shipped("llama-quickstart.yaml", &[]).manifest.model;
    assert!((4_900_000..5_100_000).contains(&parameters(&quick)), "{}", parameters(&quick));
}
