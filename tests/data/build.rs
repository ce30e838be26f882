//! Making datasets from text.

use std::path::{Path, PathBuf};

use gptrain::base::output::Existing;
use gptrain::data::Tokenizer;
use gptrain::data::build::{Build, Train};
use gptrain::data::corpus::{self, DocumentRules, FileSelection, Input};
use gptrain::data::indexed::{Indexed, TokenType, Writer};
use gptrain::data::tokenizer::Training;

/// An empty folder of this test's own, under the build folder.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("build-{name}"));
    std::fs::remove_dir_all(&folder).ok();
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn rules() -> DocumentRules {
    DocumentRules { key: "text".into(), skip_invalid: false }
}

fn training(vocab: usize) -> Training {
    Training { vocab, min_frequency: 2, special: vec!["<|endoftext|>".into()] }
}

fn build<'a>(inputs: &'a [Input], tokenizer: &'a Tokenizer, output: &Path) -> Build<'a> {
    Build {
        inputs,
        rules: rules(),
        tokenizer,
        record: None,
        output: output.into(),
        existing: Existing::Refused,
        token_type: TokenType::for_vocab(tokenizer.vocab()),
        append: tokenizer.eod(),
        parse_special: false,
        min_sequences: 0,
        shuffle: None,
        threads: 2,
    }
}

#[test]
fn the_bundled_dataset_is_rebuilt_from_its_text_byte_for_byte() {
    let bundled = Path::new(env!("CARGO_MANIFEST_DIR")).join("datasets/austen");
    let folder = folder("bundled");
    let inputs = corpus::find(&[bundled.join("austen.jsonl.zst")], &FileSelection::default())
        .unwrap()
        .inputs;
    let train = Train { inputs: &inputs, rules: rules(), training: training(4096), threads: 2 };
    let trained = train.run(|_| {}, |_| {}).unwrap();
    let file = |name: &str| std::fs::read(bundled.join(name)).unwrap();
    assert!(trained.json.as_bytes() == file("tokenizer.json"), "tokenizer.json differs");

    let tokenizer = Tokenizer::load(&bundled).unwrap();
    let output = folder.join("austen");
    let built = build(&inputs, &tokenizer, &output).run(|_, _| ()).unwrap();
    assert_eq!((built.documents, built.tokens, built.skipped), (269, 987_652, 0));
    for name in ["austen.bin", "austen.idx"] {
        let rebuilt = std::fs::read(folder.join(name)).unwrap();
        assert!(rebuilt == file(name), "{name} differs");
    }
}

#[test]
fn a_text_cut_into_chunks_is_one_document_with_the_same_ids() {
    // Larger than a chunk (1 MiB) several times over, with few places to cut at.
    let bundled = Path::new(env!("CARGO_MANIFEST_DIR")).join("datasets/austen");
    let folder = folder("text");
    let tokenizer = Tokenizer::load(&bundled).unwrap();
    let dataset = Indexed::open(&bundled.join("austen")).unwrap();
    let mut text = String::new();
    for sequence in 0..dataset.sequences() {
        let mut ids = vec![0; dataset.lengths()[sequence] as usize - 1]; // without its EOD
        dataset.read(sequence, 0, &mut ids).unwrap();
        let ids: Vec<u32> = ids.iter().map(|id| *id as u32).collect();
        text.push_str(&tokenizer.decode(&ids));
        text.push_str(["\n  \n", "\r\n", " \n", "end\nstart"][sequence % 4]);
    }
    assert!(text.len() > 3 << 20);
    std::fs::write(folder.join("novels.txt"), &text).unwrap();
    let inputs = corpus::find(std::slice::from_ref(&folder), &FileSelection::default())
        .unwrap()
        .inputs;
    let output = folder.join("d");
    let built = build(&inputs, &tokenizer, &output).run(|_, _| ()).unwrap();
    let mut want: Vec<i32> = tokenizer
        .encode(&text)
        .iter()
        .map(|id| *id as i32)
        .collect();
    want.push(0);
    assert_eq!((built.documents, built.tokens), (1, want.len() as u64));
    let dataset = Indexed::open(&output).unwrap();
    let mut ids = vec![0; want.len()];
    dataset.read(0, 0, &mut ids).unwrap();
    assert!(ids == want);
}

#[test]
fn an_index_written_again_is_megatrons_byte_for_byte() {
    let megatron =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/data/megatron/datasets");
    let folder = folder("again");
    for name in ["u8_tiny", "u16_a", "u16_b", "u16_sentences", "i32_bloom", "i32_big"] {
        let dataset = Indexed::open(&megatron.join(name)).unwrap();
        let mut writer = Writer::create(&folder.join(name), dataset.token_type()).unwrap();
        for document in 0..dataset.documents() {
            for sequence in dataset.document(document) {
                let mut ids = vec![0; dataset.lengths()[sequence] as usize];
                dataset.read(sequence, 0, &mut ids).unwrap();
                let ids: Vec<u32> = ids.iter().map(|id| *id as u32).collect();
                writer.sequence(&ids).unwrap();
            }
            writer.end_document();
        }
        writer.finish().unwrap();
        for ending in ["bin", "idx"] {
            let file = format!("{name}.{ending}");
            let same = std::fs::read(folder.join(&file)).unwrap()
                == std::fs::read(megatron.join(&file)).unwrap();
            assert!(same, "{file}");
        }
    }
}

#[test]
fn an_id_that_does_not_fit_is_refused() {
    let folder = folder("fits");
    let mut writer = Writer::create(&folder.join("d"), TokenType::U16).unwrap();
    let error = writer.sequence(&[1, 65_536]).unwrap_err().to_string();
    assert_eq!(error, "token id 65536 does not fit uint16 (largest 65535)");
    drop(writer);
    assert_eq!(std::fs::read_dir(folder).unwrap().count(), 0);
}
