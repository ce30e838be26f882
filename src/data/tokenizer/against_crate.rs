//! Random tokenizer files and texts: gptrain's own encoder gives the ids of Hugging Face's crate.

use std::cell::Cell;
use std::path::Path;

use base::rng;
use serde_json::{Map, Value, json};

use super::{Encoder, Tokenizer, byte_level, hugging_face, json};

/// Contents of added tokens: alone, inside each other, in the vocabulary, with spaces and line breaks.
const CONTENTS: [&str; 24] = [
    "[USER]",
    "[BOT]",
    "<mask>",
    "<|end|>",
    "<|end|><|end|>",
    "<|",
    "mask",
    "the",
    "e",
    "ing",
    "Ġthe",
    "    ",
    "  ",
    " ",
    "\t",
    "\n",
    "a\nb",
    " the",
    "é",
    "日本",
    "۰",
    "'s",
    "_",
    "x ",
];
/// Parts of texts besides the tokens.
const WORDS: [&str; 26] = [
    "the",
    " the",
    "The",
    "cat's",
    " he'll",
    "unmasked",
    "mask.",
    " ",
    "  ",
    "     ",
    "\t",
    "\n",
    "\n\n",
    " \n ",
    "12",
    " 345",
    "…",
    "!?",
    "(a)",
    "naïve",
    "हिन्दी",
    "日本語",
    "🙂",
    "\u{a0}",
    "\u{200d}",
    "<|end|",
];

struct Dice {
    key: u64,
    rolls: Cell<u64>,
}

impl Dice {
    fn below(&self, most: usize) -> usize {
        self.rolls.set(self.rolls.get() + 1);
        rng::below(self.key, self.rolls.get(), most as u64) as usize
    }

    /// True once in so many times.
    fn once_in(&self, times: usize) -> bool {
        self.below(times) == 0
    }

    fn of<'a>(&self, list: &[&'a str]) -> &'a str {
        list[self.below(list.len())]
    }
}

fn fixture(name: &str) -> Map<String, Value> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/data/tokenizers");
    serde_json::from_slice(&std::fs::read(folder.join(name)).unwrap()).unwrap()
}

fn byte_level(dice: &Dice) -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": dice.once_in(3), "trim_offsets": dice.once_in(2),
        "use_regex": !dice.once_in(4)})
}

fn post_processor(dice: &Dice) -> Value {
    let text = json!({"Sequence": {"id": "A", "type_id": 0}});
    let first = json!({"SpecialToken": {"id": "</s>", "type_id": 0}});
    let template = |single: Value| {
        json!({"type": "TemplateProcessing", "single": single, "pair": [text, text],
            "special_tokens": {"</s>": {"id": "</s>", "ids": [1], "tokens": ["</s>"]}}})
    };
    match dice.below(10) {
        0..4 => Value::Null,
        4 | 5 => byte_level(dice),
        6 | 7 => template(json!([text])),
        8 => json!({"type": "Sequence", "processors": [byte_level(dice), template(json!([text]))]}),
        _ => template(json!([first, text])),
    }
}

fn added_tokens(dice: &Dice, vocab: &Map<String, Value>) -> Vec<Value> {
    let mut contents = vec!["<|endoftext|>", "</s>"];
    for _ in 0..dice.below(6) {
        let content = dice.of(&CONTENTS);
        if !contents.contains(&content) {
            contents.push(content);
        }
    }
    let strips = dice.once_in(4);
    let mut next = vocab.len();
    contents
        .iter()
        .map(&mut |content: &&str| {
            let id = vocab
                .get(*content)
                .and_then(Value::as_u64)
                .unwrap_or(next as u64);
            next += usize::from(id == next as u64);
            let id = if dice.once_in(100) { id + 1 } else { id };
            json!({"id": id, "content": content, "single_word": dice.once_in(5),
            "lstrip": strips && dice.once_in(2), "rstrip": strips && dice.once_in(2),
            "normalized": dice.once_in(2), "special": dice.once_in(2)})
        })
        .collect()
}

/// Tokenizer file of which most have only fields that gptrain's own encoder implements.
fn file(dice: &Dice) -> Map<String, Value> {
    let mut file = fixture(dice.of(&["gpt2.json", "bloom.json"]));
    if !dice.once_in(4) {
        file["pre_tokenizer"] = byte_level(dice);
    }
    file["added_tokens"] = added_tokens(dice, file["model"]["vocab"].as_object().unwrap()).into();
    file["post_processor"] = post_processor(dice);
    file["normalizer"] = match dice.below(12) {
        0 => json!({"type": "NFC"}),
        1 => json!({"type": "Sequence", "normalizers": []}),
        _ => Value::Null,
    };
    let model = file["model"].as_object_mut().unwrap();
    let merges = model["merges"].as_array_mut().unwrap();
    merges.truncate(if dice.once_in(3) { dice.below(merges.len()) } else { merges.len() });
    model.insert("ignore_merges".into(), dice.once_in(3).into());
    model.insert("dropout".into(), [Value::Null, json!(0.5)][usize::from(dice.once_in(8))].clone());
    model.insert("end_of_word_suffix".into(), dice.of(&["", "", "", "", "</w>"]).into());
    model.insert("unk_token".into(), [Value::Null, json!("</s>")][dice.below(2)].clone());
    if dice.once_in(20) {
        model.insert("new_feature".into(), true.into());
    }
    file
}

fn text(dice: &Dice) -> String {
    let mut text = String::new();
    for _ in 0..dice.below(14) {
        match dice.below(8) {
            0..3 => text += dice.of(&CONTENTS),
            3 => text += ["<|endoftext|>", "</s>"][dice.below(2)],
            4 => text.extend(char::from_u32(dice.below(0x3000) as u32)),
            _ => text += dice.of(&WORDS),
        }
    }
    text
}

#[test]
fn own_ids_are_those_of_the_crate() {
    let path = Path::new("random.json");
    let mut own_files = 0;
    let mut crate_files = 0;
    let mut found = 0;
    for case in 0..500 {
        let dice = Dice { key: rng::key(case, "tokenizers"), rolls: Cell::new(0) };
        let file = file(&dice);
        let parts = match byte_level::read(&file) {
            Ok(parts) => parts,
            Err(why) => {
                crate_files += 1;
                assert!(why.contains(" is ") || why.contains(" holds "), "{why}");
                continue;
            }
        };
        own_files += 1;
        let own = json::build(parts, "random.json").unwrap();
        let theirs = hugging_face::load(path, &file, "case".into()).unwrap();
        assert_eq!(
            (own.vocab(), own.head(), own.tail()),
            (theirs.vocab(), theirs.head(), theirs.tail())
        );
        for _ in 0..12 {
            let text = text(&dice);
            for parse_special in [false, true] {
                let ids = |tokenizer: &Tokenizer| {
                    let encoder = Encoder::small(tokenizer);
                    let mut encoder = if parse_special { encoder.parse_special() } else { encoder };
                    let mut ids = Vec::new();
                    encoder.encode(&text, &mut ids).unwrap();
                    ids
                };
                let ours = ids(&own);
                let wanted = ids(&theirs);
                let rules = json!([file["added_tokens"], file["pre_tokenizer"]]);
                assert_eq!(ours, wanted, "case {case}, {parse_special}, {text:?}, {rules}");
                found += usize::from(own.added_tokens().iter().any(|(_, id)| ours.contains(id)));
            }
            in_parts(&own, &text);
        }
    }
    // The comparison covers most files and texts, and files for the crate occur.
    assert!(own_files > 250 && crate_files > 50, "{own_files} files here, {crate_files} there");
    assert!(found > 1500, "{found} texts with added tokens");
}

/// A text cut at a line, as `data build` cuts a large one, has the same ids.
fn in_parts(tokenizer: &Tokenizer, text: &str) {
    let cut = text.match_indices('\n').map(|(at, _)| at + 1).find(|at| {
        let plain = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
        plain(text[..at - 1].chars().next_back()) && plain(text[*at..].chars().next())
    });
    let Some(cut) = cut.filter(|_| tokenizer.cuts_at_lines()) else { return };
    let mut encoder = Encoder::small(tokenizer);
    let mut ids = Vec::new();
    let mut whole = Vec::new();
    encoder.encode(&text[..cut], &mut ids).unwrap();
    encoder.encode_more(&text[cut..], &mut ids).unwrap();
    encoder.encode(text, &mut whole).unwrap();
    assert_eq!(ids, whole, "{text:?} cut at {cut}");
}

/// Rules that could fill the memory are refused before they see a text, whatever their form.
#[test]
fn rules_that_lengthen_texts_without_limit_are_refused() {
    let double = json!({"type": "Replace", "pattern": {"String": "a"}, "content": "aa"});
    let many = |count: usize| vec![double.clone(); count];
    let nested = json!({"type": "Sequence", "normalizers": many(10)});
    let ids = json!({"x": {"id": "x", "ids": vec![1; 1000], "tokens": vec!["x"; 1000]}});
    let piece = json!({"SpecialToken": {"id": "x", "type_id": 0}});
    let cases = [
        ("normalizer", json!({"type": "Sequence", "normalizers": many(30)}), "1073741824 times"),
        (
            "normalizer",
            json!({"type": "Sequence", "normalizers": [nested, nested]}),
            "1048576 times",
        ),
        (
            "normalizer",
            json!({"type": "Replace", "pattern": {"Regex": "b*"},
            "content": "a".repeat(20_000)}),
            "20001 times",
        ),
        ("decoder", json!({"type": "Sequence", "decoders": many(30)}), "its decoder can make"),
        (
            "post_processor",
            json!({"type": "TemplateProcessing", "single": vec![piece; 5],
            "pair": [], "special_tokens": ids}),
            "adds 5,000 tokens to each text",
        ),
    ];
    for (key, value, says) in cases {
        let mut file = fixture("gpt2.json");
        file[key] = value;
        let said = hugging_face::load(Path::new("a.json"), &file, "x is y".into()).unwrap_err();
        assert!(said.to_string().contains(says), "{said}");
    }
}
