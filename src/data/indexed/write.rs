//! Writing: tokens stream into `PREFIX.bin.partial`, the index follows at the end, and both get
//! their names only when complete and on the disk (`base::output`).

use std::io::{BufWriter, IntoInnerError, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::{Indexed, MAGIC, TokenType, index_path, tokens_path};
use base::output::{self, Existing, Output};

/// Writes one dataset. Dropped before `finish`, it leaves nothing behind.
pub struct Writer {
    prefix: PathBuf,
    token_type: TokenType,
    out: BufWriter<Output>,
    lengths: Vec<i32>,
    documents: Vec<i64>,
    /// Tokens of the sequence that has not ended.
    open: usize,
    tokens: u64,
}

impl Writer {
    /// Starts `prefix.bin` and `prefix.idx`. Refuses names that exist or that somebody else is
    /// writing right now.
    pub fn create(prefix: &Path, token_type: TokenType) -> Result<Writer> {
        assert!(!matches!(token_type, TokenType::F64 | TokenType::Float), "tokens are integers");
        output::names_a_file(prefix)?;
        output::is_free(&tokens_path(prefix))?;
        output::is_free(&index_path(prefix))?;
        let out = Output::create(&tokens_path(prefix), Existing::Refused)?;
        Ok(Writer {
            prefix: prefix.into(),
            token_type,
            out: BufWriter::with_capacity(1 << 20, out),
            lengths: Vec::new(),
            documents: vec![0],
            open: 0,
            tokens: 0,
        })
    }

    /// Appends one sequence to the document being written. Ids must fit the token type.
    pub fn sequence(&mut self, tokens: &[u32]) -> Result<()> {
        self.extend(tokens)?;
        self.end_sequence()
    }

    /// Appends tokens to the sequence being written.
    pub fn extend(&mut self, tokens: &[u32]) -> Result<()> {
        let max = self.token_type.max();
        if let Some(token) = tokens.iter().find(|token| **token as u64 > max) {
            bail!("token id {token} does not fit {} (largest {max})", self.token_type);
        }
        let written = match self.token_type.size() {
            1 => self.put(tokens, |token| [token as u8]),
            2 => self.put(tokens, |token| (token as u16).to_le_bytes()),
            4 => self.put(tokens, u32::to_le_bytes),
            _ => self.put(tokens, |token| (token as u64).to_le_bytes()),
        };
        written.with_context(|| self.failed(&tokens_path(&self.prefix)))?;
        self.open += tokens.len();
        self.tokens += tokens.len() as u64;
        Ok(())
    }

    /// Tokens of the sequence being written.
    pub fn open(&self) -> usize {
        self.open
    }

    /// Ends the sequence being written.
    pub fn end_sequence(&mut self) -> Result<()> {
        let tokens = std::mem::take(&mut self.open);
        let Ok(length) = i32::try_from(tokens) else {
            bail!("a sequence of {tokens} tokens; the format allows 2^31 - 1");
        };
        self.lengths.push(length);
        Ok(())
    }

    fn put<const N: usize>(
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

    /// Ends the document being written; with no sequence since the last end it is empty.
    pub fn end_document(&mut self) {
        self.documents.push(self.lengths.len() as i64);
    }

    /// Appends whole documents as they stand in an existing dataset of the same type.
    pub fn append(&mut self, other: &Indexed) -> Result<()> {
        assert_eq!(other.token_type(), self.token_type);
        let first = self.lengths.len() as i64;
        let mut at = 0;
        let mut bytes = vec![0; 1 << 20];
        let total = other.tokens() as usize * self.token_type.size();
        while at < total {
            let some = &mut bytes[..(total - at).min(1 << 20)];
            other.raw(at, some)?;
            self.out.write_all(some).with_context(|| self.failed(&tokens_path(&self.prefix)))?;
            at += some.len();
        }
        self.lengths.extend(other.lengths().iter().map(|length| *length as i32));
        self.tokens += other.tokens();
        let ends = (0..other.documents()).map(|document| other.document(document).end);
        self.documents.extend(ends.map(|end| first + end as i64));
        Ok(())
    }

    /// Tokens written so far.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Writes the index and gives both files their names.
    pub fn finish(mut self) -> Result<()> {
        let (tokens, index) = (tokens_path(&self.prefix), index_path(&self.prefix));
        self.out.flush().with_context(|| self.failed(&tokens))?;
        let mut out = BufWriter::with_capacity(1 << 20, Output::create(&index, Existing::Refused)?);
        self.write_index(&mut out).with_context(|| self.failed(&index))?;
        let whole = |error: IntoInnerError<_>| error.into_error();
        let failed = self.failed(&tokens);
        let two = [self.out.into_inner().map_err(whole)?, out.into_inner().map_err(whole)?];
        output::finish(two).context(failed)
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

    fn failed(&self, path: &Path) -> String {
        format!("writing {} failed; nothing of it is kept", path.display())
    }
}
