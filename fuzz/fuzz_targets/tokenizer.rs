//! Any bytes as a tokenizer.json: refused, or a tokenizer that encodes and decodes.
#![no_main]

use std::fs;
use std::path::PathBuf;
use std::sync::LazyLock;

use gptrain::data::Tokenizer;
use libfuzzer_sys::fuzz_target;

static FILE: LazyLock<PathBuf> = LazyLock::new(|| {
    // Hugging Face's crate panics on some damaged files; gptrain catches that and refuses them. A
    // panic that reaches libfuzzer-sys is a finding; its own hook would abort at either.
    std::panic::set_hook(Box::new(|_| {}));
    PathBuf::from(format!("/dev/shm/gptrain-fuzz-{}.json", std::process::id()))
});

fuzz_target!(|json: &[u8]| {
    fs::write(&*FILE, json).expect("memory");
    let Ok(tokenizer) = Tokenizer::load(&FILE) else { return };
    let ids = tokenizer.encode("It's a <|endoftext|> naïve 日本 test   \n 123");
    tokenizer.decode(&ids);
});
