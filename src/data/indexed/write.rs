//! Writes datasets: tokens are streamed into `PREFIX.bin.partial`, the index follows at the end.
//! Both, and the tokenizer's record, are renamed only when they are complete and on disk, the index
//! last (`base::output::FileSet`).

use std::io::{BufWriter, IntoInnerError, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::{Indexed, MAGIC, TokenType, index_path, record_path, tokens_path};
use base::output::{self, Existing, FileSet, Output};
use base::progress::Progress;

/// Files of a dataset. Nothing is read without the index.
fn files(prefix: &Path) -> FileSet {
    FileSet::new([tokens_path(prefix), record_path(prefix), index_path(prefix)])
}

/// Writer of one dataset. Removes its files if dropped before `finish`.
pub struct Writer {
    prefix: PathBuf,
    token_type: TokenType,
    out: BufWriter<Output>,
    existing: Existing,
    lengths: Vec<i32>,
    documents: Vec<i64>,
    /// Tokens of the unfinished sequence.
    open_tokens: usize,
    tokens: u64,
}

/// Minimum number of tokens in a share for which documents are cut.
const SHORTEST_SHARE: usize = 64;

/// Sequences into which one document is cut.
struct Pieces {
    /// Tokens of `count` equal sequences.
    front: u64,
    count: u64,
    /// Tokens of a further sequence after them.
    tail: u64,
}

impl Pieces {
    fn lengths(&self) -> impl Iterator<Item = i32> {
        let Pieces { front, count, tail } = *self;
        let bound = move |i| front * i / count;
        let equal = (0..count).map(move |i| bound(i + 1) - bound(i));
        equal
            .chain([tail])
            .filter(|length| *length > 0)
            .map(|length| length as i32)
    }
}

impl Writer {
    /// Starts `prefix.bin` and `prefix.idx`, and removes what a killed process left of them. Fails
    /// if they exist or if another process is writing them.
    pub fn create(prefix: &Path, token_type: TokenType) -> Result<Writer> {
        Writer::create_or_replace(prefix, token_type, Existing::Refused)
    }

    /// Like `create`; with `Existing::Replaced`, replaces files that exist.
    pub fn create_or_replace(
        prefix: &Path,
        token_type: TokenType,
        existing: Existing,
    ) -> Result<Writer> {
        assert!(!matches!(token_type, TokenType::F64 | TokenType::Float), "tokens are integers");
        output::check_is_file_path(prefix)?;
        files(prefix).repair()?;
        if existing == Existing::Refused {
            output::is_free(&tokens_path(prefix))?;
            output::is_free(&index_path(prefix))?;
        }
        let out = Output::create(&tokens_path(prefix), existing)?;
        Ok(Writer {
            prefix: prefix.into(),
            token_type,
            out: BufWriter::with_capacity(1 << 20, out),
            existing,
            lengths: Vec::new(),
            documents: vec![0],
            open_tokens: 0,
            tokens: 0,
        })
    }

    /// Appends one sequence to the current document. Ids must fit the token type.
    pub fn sequence(&mut self, tokens: &[u32]) -> Result<()> {
        self.extend(tokens)?;
        self.end_sequence()
    }

    /// Appends tokens to the current sequence.
    pub fn extend(&mut self, tokens: &[u32]) -> Result<()> {
        let max = self.token_type.max();
        if let Some(token) = tokens.iter().find(|token| **token as u64 > max) {
            bail!("token id {token} does not fit {} (largest {max})", self.token_type);
        }
        let written = match self.token_type.size() {
            1 => self.write_tokens(tokens, |token| [token as u8]),
            2 => self.write_tokens(tokens, |token| (token as u16).to_le_bytes()),
            4 => self.write_tokens(tokens, u32::to_le_bytes),
            _ => self.write_tokens(tokens, |token| (token as u64).to_le_bytes()),
        };
        written.with_context(|| self.write_error(&tokens_path(&self.prefix)))?;
        self.open_tokens += tokens.len();
        self.tokens += tokens.len() as u64;
        Ok(())
    }

    /// Tokens of the current sequence.
    pub fn open_tokens(&self) -> usize {
        self.open_tokens
    }

    /// Ends the current sequence.
    pub fn end_sequence(&mut self) -> Result<()> {
        let tokens = std::mem::take(&mut self.open_tokens);
        let Ok(length) = i32::try_from(tokens) else {
            bail!("a sequence of {tokens} tokens; the format allows 2^31 - 1");
        };
        self.lengths.push(length);
        Ok(())
    }

    fn write_tokens<const N: usize>(
        &mut self,
        tokens: &[u32],
        bytes: impl Fn(u32) -> [u8; N],
    ) -> std::io::Result<()> {
        let mut buffer = [[0; N]; 512];
        for some in tokens.chunks(buffer.len()) {
            for (slot, token) in buffer.iter_mut().zip(some) {
                *slot = bytes(*token);
            }
            self.out.write_all(buffer[..some.len()].as_flattened())?;
        }
        Ok(())
    }

    /// Ends the current document, which is empty if it has no sequence.
    pub fn end_document(&mut self) {
        self.documents.push(self.lengths.len() as i64);
    }

    /// Appends the documents of an existing dataset of the same type.
    pub fn append(&mut self, other: &Indexed, progress: &Progress) -> Result<()> {
        assert_eq!(other.token_type(), self.token_type);
        let first = self.lengths.len() as i64;
        let mut at = 0;
        let mut bytes = vec![0; 1 << 20];
        let total = other.tokens() as usize * self.token_type.size();
        while at < total {
            let some = &mut bytes[..(total - at).min(1 << 20)];
            other.read_raw(at, some)?;
            self.out
                .write_all(some)
                .with_context(|| self.write_error(&tokens_path(&self.prefix)))?;
            at += some.len();
            progress.add(some.len() as u64);
        }
        self.lengths
            .extend(other.lengths().iter().map(|length| *length as i32));
        self.tokens += other.tokens();
        let ends = (0..other.documents()).map(|document| other.document(document).end);
        self.documents.extend(ends.map(|end| first + end as i64));
        Ok(())
    }

    /// Cuts documents into more sequences, so that a split by the number of sequences can hold out one of
    /// `parts` equal shares of the tokens: the last share is a whole number of sequences, and the other
    /// tokens are `parts − 1` times as many. Returns false, without a cut, if there are enough sequences,
    /// or too few tokens.
    pub fn cut_documents(&mut self, parts: usize) -> bool {
        let enough = self.tokens >= (parts * SHORTEST_SHARE) as u64;
        if self.lengths.len() >= parts || !enough {
            return false;
        }
        let front = self.tokens - self.tokens / parts as u64;
        let mut at = 0;
        let mut tail = 0;
        let mut pieces: Vec<Pieces> = Vec::with_capacity(self.lengths.len());
        for length in &self.lengths {
            let length = *length as u64;
            let front = front.saturating_sub(at).min(length);
            at += length;
            tail += usize::from(front < length);
            pieces.push(Pieces { front, count: u64::from(front > 0), tail: length - front });
        }
        if front < 2 * ((parts - 1) * tail) as u64 {
            return false;
        }
        let missing = (parts - 1) * tail - pieces.iter().filter(|piece| piece.count > 0).count();
        for _ in 0..missing {
            let longest = pieces
                .iter_mut()
                .max_by_key(|piece| piece.front / piece.count.max(1));
            longest.expect("there are tokens").count += 1;
        }
        let ends = pieces.iter().scan(0, |count, pieces| {
            *count += pieces.lengths().count() as i64;
            Some(*count)
        });
        let bounds: Vec<i64> = std::iter::once(0).chain(ends).collect();
        self.documents
            .iter_mut()
            .for_each(|bound| *bound = bounds[*bound as usize]);
        self.lengths = pieces.iter().flat_map(Pieces::lengths).collect();
        true
    }

    /// Tokens written so far.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    pub fn prefix(&self) -> &Path {
        &self.prefix
    }

    /// Sequences written so far.
    pub fn sequences(&self) -> u64 {
        self.lengths.len() as u64
    }

    /// Documents written so far.
    pub fn documents(&self) -> u64 {
        self.documents.len() as u64 - 1
    }

    /// Writes the index and renames both files. The record of an older dataset is removed.
    pub fn finish(self) -> Result<()> {
        self.finish_with(None)
    }

    /// Writes the index and renames both files and the tokenizer's record: all or none of them.
    pub fn finish_with(mut self, record: Option<Output>) -> Result<()> {
        let tokens = tokens_path(&self.prefix);
        let index = index_path(&self.prefix);
        self.out
            .flush()
            .with_context(|| self.write_error(&tokens))?;
        let mut out = BufWriter::with_capacity(1 << 20, Output::create(&index, self.existing)?);
        self.write_index(&mut out)
            .with_context(|| self.write_error(&index))?;
        let whole = |error: IntoInnerError<_>| error.into_error();
        let failed = self.write_error(&tokens);
        let two = [self.out.into_inner().map_err(whole)?, out.into_inner().map_err(whole)?];
        let outputs: Vec<Output> = two.into_iter().chain(record).collect();
        files(&self.prefix).finish(outputs).context(failed)
    }

    fn write_index(&self, out: &mut impl Write) -> std::io::Result<()> {
        out.write_all(MAGIC)?;
        out.write_all(&1u64.to_le_bytes())?;
        out.write_all(&[self.token_type.code()])?;
        out.write_all(&(self.lengths.len() as u64).to_le_bytes())?;
        out.write_all(&(self.documents.len() as u64).to_le_bytes())?;
        for length in &self.lengths {
            out.write_all(&length.to_le_bytes())?;
        }
        let mut offset = 0i64;
        for length in &self.lengths {
            out.write_all(&offset.to_le_bytes())?;
            offset += *length as i64 * self.token_type.size() as i64;
        }
        for bound in &self.documents {
            out.write_all(&bound.to_le_bytes())?;
        }
        out.flush()
    }

    fn write_error(&self, path: &Path) -> String {
        format!("writing {} failed; nothing of it is kept", path.display())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::split::split;
    use base::rng;
    use manifest::DataRule;
    use std::ops::Range;

    /// Writes documents of these lengths, and cuts them into 20 parts.
    fn cut_documents(folder: &Path, documents: &[usize]) -> Indexed {
        let prefix = folder.join("cut");
        let mut writer =
            Writer::create_or_replace(&prefix, TokenType::U16, Existing::Replaced).unwrap();
        for length in documents {
            if *length > 0 {
                writer.sequence(&vec![1; *length]).unwrap();
            }
            writer.end_document();
        }
        writer.cut_documents(20);
        writer.finish().unwrap();
        Indexed::open(&prefix).unwrap()
    }

    #[test]
    fn the_tail_of_few_documents_is_held_out() {
        let folder = tempfile::tempdir().unwrap();
        let one = cut_documents(folder.path(), &[2003]);
        assert_eq!((one.documents(), one.sequences()), (1, 20));
        assert!(
            one.lengths()[..19]
                .iter()
                .all(|length| length.abs_diff(100) <= 1)
        );
        assert_eq!(one.lengths()[19], 100);
        // The last twentieth, 527 tokens, begins 13 tokens behind the start of a document.
        let several = cut_documents(folder.path(), &[10_000, 125, 125, 125, 0, 165]);
        assert_eq!((several.documents(), several.sequences()), (6, 80));
        assert_eq!(several.lengths()[76..], [112, 125, 125, 165][..]);
        for whole in [vec![1279], vec![100; 20], vec![0]] {
            let sequences = whole.iter().filter(|length| **length > 0).count();
            assert_eq!(cut_documents(folder.path(), &whole).sequences(), sequences);
        }
    }

    #[test]
    fn splits_hold_out_the_last_tokens_of_any_few_documents() {
        let folder = tempfile::tempdir().unwrap();
        let mut drawn = 0;
        let mut below = |n| {
            drawn += 1;
            rng::below(rng::key(3, "cut"), drawn, n) as usize
        };
        for _ in 0..100 {
            let count = 1 + below(18);
            let mut documents: Vec<usize> = (0..count).map(|_| below(300)).collect();
            documents[below(count as u64)] += 1280 + below(9000);
            let dataset = cut_documents(folder.path(), &documents);
            let total: usize = documents.iter().sum();
            let tokens = |part: Range<usize>| {
                dataset.lengths()[part]
                    .iter()
                    .map(|length| *length as usize)
                    .sum::<usize>()
            };
            for (document, length) in documents.iter().enumerate() {
                assert_eq!(tokens(dataset.document(document)), *length);
            }
            for rule in [DataRule::MegatronCore, DataRule::MegatronDeepSpeed] {
                let [train, valid, test] = split(rule, "95,5,0", dataset.sequences()).unwrap();
                assert_eq!((tokens(valid), tokens(test)), (total / 20, 0), "{documents:?}");
                assert_eq!(tokens(train), total - total / 20);
            }
        }
    }
}
