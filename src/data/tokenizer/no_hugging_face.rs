//! Replaces `hugging_face` in a build without the feature `tokenizers`: a file
//! that needs Hugging Face's crate is refused.

use super::Tokenizer;
use anyhow::Result;
use base::Problems;
use std::path::Path;

/// There is none.
#[derive(Clone, Debug)]
pub enum HfTokenizer {}

/// Refuses a tokenizer.json. `why` says what gptrain's own code does not do.
pub fn load(path: &Path, why: &str) -> Result<Tokenizer> {
    let what = format!("{why}, and this gptrain was built without Hugging Face's tokenizers");
    let remedy = "build with them (`cargo build --release`), or give a byte-level BPE tokenizer";
    Err(Problems::one(path.display().to_string(), what, remedy).into())
}

impl HfTokenizer {
    pub fn encode(&self, _: &str, _: bool, _: &mut Vec<u32>) -> Result<()> {
        match *self {}
    }

    pub fn decode(&self, _: &[u32]) -> String {
        match *self {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_needs_the_crate_is_refused_with_the_remedy() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/data/tokenizers");
        let file = Path::new(file).join("foreign.json");
        let said = Tokenizer::load(&file).unwrap_err().to_string();
        for part in ["foreign.json", "without Hugging Face's tokenizers", "cargo build --release"] {
            assert!(said.contains(part), "{said}");
        }
    }
}
