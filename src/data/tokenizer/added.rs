//! Added tokens: found in a text before it is cut into pieces, by the rules of Hugging Face's crate
//! (`AddedVocabulary::find_matches`), whose ids have to be the same.

use std::ops::Range;
use std::sync::LazyLock;

use regex_syntax::hir::{Class, ClassUnicode, HirKind};
use serde::Deserialize;

/// Token of the list `added_tokens` of a tokenizer.json.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct AddedToken {
    pub id: u32,
    pub content: String,
    /// Found only between characters that are not part of a word.
    pub single_word: bool,
    /// Takes the white space before it.
    pub lstrip: bool,
    /// Takes the white space after it.
    pub rstrip: bool,
    /// Searched in the normalised text, after the others.
    pub normalized: bool,
    /// Is ordinary text unless special tokens are parsed.
    pub special: bool,
}

/// Maximum length of a content in bytes.
const LONGEST: usize = 256;

/// Part of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// Ordinary text, not empty.
    Text(Range<usize>),
    Token(u32),
}

/// Added tokens of a tokenizer without a normalizer.
#[derive(Clone, Debug, Default)]
pub struct AddedTokens {
    list: Vec<AddedToken>,
    /// Tokens as they are, and then, in the remaining text, those that match normalised text.
    passes: [Trie; 2],
}

impl AddedTokens {
    /// Fails with a description of tokens that are left to the crate: matches that overlap, and contents
    /// so long that a search for them takes longer than the crate's.
    pub fn new(list: Vec<AddedToken>) -> Result<AddedTokens, &'static str> {
        let strips = list.iter().any(|token| token.lstrip || token.rstrip);
        let spaced = list
            .iter()
            .any(|token| token.content.starts_with(char::is_whitespace));
        if strips && spaced {
            return Err("a token that takes spaces, and one that begins with a space");
        }
        if list.iter().any(|token| token.content.len() > LONGEST) {
            return Err("a token of more than 256 bytes");
        }
        let mut passes = [Trie::default(), Trie::default()];
        for (index, token) in list
            .iter()
            .enumerate()
            .filter(|(_, token)| !token.content.is_empty())
        {
            passes[usize::from(token.normalized)].insert(&token.content, index as u32);
        }
        Ok(AddedTokens { list, passes })
    }

    pub fn list(&self) -> &[AddedToken] {
        &self.list
    }

    /// Whether a text may be cut after a line without changing what is found.
    pub fn cuts_at_lines(&self) -> bool {
        !self
            .list
            .iter()
            .any(|token| token.lstrip || token.rstrip || token.content.contains('\n'))
    }

    /// Whether text can contain a token.
    pub fn is_active(&self, parse_special: bool) -> bool {
        self.list
            .iter()
            .any(|token| parse_special || !token.special)
    }

    /// Calls `each` with the parts of a text in their order.
    pub fn split(&self, text: &str, parse_special: bool, each: &mut dyn FnMut(Part)) {
        self.run_pass(0, text, 0..text.len(), parse_special, each);
    }

    fn run_pass(
        &self,
        pass: usize,
        text: &str,
        range: Range<usize>,
        parse_special: bool,
        each: &mut dyn FnMut(Part),
    ) {
        let Some(trie) = self.passes.get(pass) else { return each(Part::Text(range)) };
        let first = range.start;
        let within = &text[range];
        let ordinary = |range: Range<usize>, each: &mut dyn FnMut(Part)| {
            if !range.is_empty() {
                let range = first + range.start..first + range.end;
                self.run_pass(pass + 1, text, range, parse_special, each);
            }
        };
        let mut done = 0;
        let mut searched = 0;
        while let Some(Match { start, end, index }) = trie.find(within.as_bytes(), searched) {
            // A match that does not count hides tokens that begin inside it, as in the crate.
            searched = end;
            let token = &self.list[index as usize];
            if token.special && !parse_special || !token.fits(within, start, end) {
                continue;
            }
            let (start, end) = token.include_spaces(within, start, end);
            ordinary(done..start.max(done), each);
            each(Part::Token(token.id));
            done = end;
        }
        ordinary(done..within.len(), each);
    }
}

impl AddedToken {
    /// Special token without other flags.
    pub fn special(id: u32, content: &str) -> AddedToken {
        let [single_word, lstrip, rstrip, normalized] = [false; 4];
        let content = content.to_string();
        AddedToken { id, content, single_word, lstrip, rstrip, normalized, special: true }
    }

    /// Whether the token counts at this place.
    fn fits(&self, text: &str, start: usize, end: usize) -> bool {
        let is_word = |c: Option<char>| c.is_some_and(is_word);
        let before = text[..start].chars().next_back();
        let after = text[end..].chars().next();
        !self.single_word || !is_word(before) && !is_word(after)
    }

    /// The place with the white space that belongs to it.
    fn include_spaces(&self, text: &str, start: usize, end: usize) -> (usize, usize) {
        let before = text[..start].trim_end().len();
        let after = text.len() - text[end..].trim_start().len();
        (if self.lstrip { before } else { start }, if self.rstrip { after } else { end })
    }
}

/// `\w` of the crate's regular expressions.
fn is_word(c: char) -> bool {
    static WORD: LazyLock<ClassUnicode> = LazyLock::new(|| {
        let pattern = "[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\p{Join_Control}]";
        let hir = regex_syntax::parse(pattern).expect("a fixed pattern");
        let HirKind::Class(Class::Unicode(class)) = hir.kind() else { unreachable!("a class") };
        class.clone()
    });
    let ranges = WORD.ranges();
    let after = ranges.partition_point(|range| range.end() < c);
    ranges.get(after).is_some_and(|range| range.start() <= c)
}

/// Place of a token in a text.
struct Match {
    start: usize,
    end: usize,
    index: u32,
}

/// Contents of tokens as a tree of bytes.
#[derive(Clone, Debug, Default)]
struct Trie {
    /// The first is the root; none without tokens.
    nodes: Vec<Node>,
    /// Children of the root by their byte; 0 if there is none.
    first: Vec<u32>,
}

#[derive(Clone, Debug, Default)]
struct Node {
    children: Vec<(u8, u32)>,
    /// Index of the token that ends here.
    token: Option<u32>,
}

impl Trie {
    fn insert(&mut self, content: &str, token: u32) {
        if self.nodes.is_empty() {
            self.nodes.push(Node::default());
            self.first = vec![0; 256];
        }
        let mut at = 0;
        for byte in content.bytes() {
            let child = self.child(at, byte).unwrap_or_else(|| {
                let new = self.nodes.len() as u32;
                self.nodes.push(Node::default());
                self.nodes[at as usize].children.push((byte, new));
                new
            });
            if at == 0 {
                self.first[byte as usize] = child;
            }
            at = child;
        }
        self.nodes[at as usize].token = Some(token);
    }

    fn child(&self, node: u32, byte: u8) -> Option<u32> {
        let mut children = self.nodes[node as usize].children.iter();
        children
            .find(|(other, _)| *other == byte)
            .map(|(_, child)| *child)
    }

    /// First token that begins at `from` or later; the longest of several that begin together.
    fn find(&self, text: &[u8], from: usize) -> Option<Match> {
        if self.nodes.is_empty() {
            return None;
        }
        let starts = (from..text.len()).filter(|start| self.first[text[*start] as usize] != 0);
        for start in starts {
            let mut node = self.first[text[start] as usize];
            let mut found = None;
            for end in start + 1.. {
                if let Some(index) = self.nodes[node as usize].token {
                    found = Some(Match { start, end, index });
                }
                let child = text.get(end).and_then(|byte| self.child(node, *byte));
                let Some(child) = child else { break };
                node = child;
            }
            if found.is_some() {
                return found;
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(id: u32, content: &str) -> AddedToken {
        AddedToken { special: false, ..AddedToken::special(id, content) }
    }

    fn parts(list: Vec<AddedToken>, text: &str, parse_special: bool) -> String {
        let tokens = AddedTokens::new(list).unwrap();
        let mut said = Vec::new();
        tokens.split(text, parse_special, &mut |part| {
            said.push(match part {
                Part::Text(range) => text[range].to_string(),
                Part::Token(id) => format!("{id}"),
            });
        });
        said.join("|")
    }

    #[test]
    fn the_longest_of_the_first_counts() {
        let list = || vec![token(1, "<a"), token(2, "<a>"), token(3, "a>b"), token(4, "  ")];
        assert_eq!(parts(list(), "x<a>b   <a", false), "x|2|b|4| |1");
        let special = AddedToken { special: true, ..token(2, "<a>") };
        let hidden = || vec![special.clone(), token(3, "a>b")];
        assert_eq!(parts(hidden(), "<a>b a>b", false), "<a>b |3");
        assert_eq!(parts(hidden(), "<a>b a>b", true), "2|b |3");
        // A normalised token is searched in the remaining text.
        let later = AddedToken { normalized: true, ..token(3, "a>b") };
        assert_eq!(parts(vec![special, later], "<a>b", false), "<|3");
    }

    #[test]
    fn flags_take_spaces_and_ask_for_whole_words() {
        let mask = |lstrip, rstrip| AddedToken { lstrip, rstrip, ..token(1, "<m>") };
        assert_eq!(parts(vec![mask(true, false)], "a  <m> b", false), "a|1| b");
        assert_eq!(parts(vec![mask(false, true)], "a <m>\n b", false), "a |1|b");
        assert_eq!(parts(vec![mask(true, true)], "<m> <m> ", false), "1|1");
        let word = AddedToken { single_word: true, ..token(1, "mask") };
        assert_eq!(parts(vec![word], "mask unmask maské mask.", false), "1| unmask maské |1|.");
        assert!(AddedTokens::new(vec![mask(true, false), token(2, " x")]).is_err());
        assert!(AddedTokens::new(vec![token(2, &"x".repeat(257))]).is_err());
    }
}
