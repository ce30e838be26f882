//! Making datasets from text.

use std::path::{Path, PathBuf};

use gptrain::data::Tokenizer;
use gptrain::data::build::{Build, Train};
use gptrain::data::corpus::{self, Input, Rules};
use gptrain::data::indexed::TokenType;
use gptrain::data::tokenizer::Training;

/// An empty folder of this test's own, under the build folder.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("build-{name}"));
    std::fs::remove_dir_all(&folder).ok();
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn rules() -> Rules {
    Rules { key: "text".into(), skip_invalid: false }
}

fn training(vocab: usize) -> Training {
    Training { vocab, min_frequency: 2, special: vec!["<|endoftext|>".into()] }
}

fn build<'a>(inputs: &'a [Input], tokenizer: &'a Tokenizer, output: &Path) -> Build<'a> {
    Build {
        inputs,
        rules: rules(),
        tokenizer,
        output: output.into(),
        token_type: TokenType::for_vocab(tokenizer.vocab()),
        append: tokenizer.eod(),
        parse_special: false,
        threads: 2,
    }
}

#[test]
fn the_bundled_dataset_is_rebuilt_from_its_text_byte_for_byte() {
    let bundled = Path::new(env!("CARGO_MANIFEST_DIR")).join("datasets/austen");
    let folder = folder("bundled");
    let inputs = corpus::find(&[bundled.join("austen.jsonl.zst")], None).unwrap();
    let train = Train { inputs: &inputs, rules: rules(), training: training(4096), threads: 2 };
    let trained = train.run(|_| {}, |_| {}).unwrap();
    let file = |name: &str| std::fs::read(bundled.join(name)).unwrap();
    assert!(trained.json.as_bytes() == file("tokenizer.json"), "tokenizer.json differs");

    let tokenizer = Tokenizer::load(&bundled).unwrap();
    let output = folder.join("austen");
    let built = build(&inputs, &tokenizer, &output).run(|_, _| Ok(())).unwrap();
    assert_eq!((built.documents, built.tokens, built.skipped), (269, 987_652, 0));
    for name in ["austen.bin", "austen.idx"] {
        let rebuilt = std::fs::read(folder.join(name)).unwrap();
        assert!(rebuilt == file(name), "{name} differs");
    }
}
