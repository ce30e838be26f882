//! Opens and reads datasets. Everything in the index is checked once, on open, in one pass over its
//! arrays. Afterwards no position can be outside the token file.

use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use xxhash_rust::xxh3::Xxh3Default;

use super::map::{Access, Mapped};
use super::missing::missing_dataset;
use super::{HEADER, MAGIC, TokenType, index_path, tokens_path};
use base::{Count, Problems};

/// Open dataset, cheap to share between threads.
#[derive(Debug)]
pub struct Indexed {
    prefix: PathBuf,
    token_type: TokenType,
    tokens: Mapped,
    /// Tokens of each sequence, [S].
    lengths: Vec<u32>,
    /// First token of every 64th sequence; the others follow from the lengths.
    starts: Vec<u64>,
    /// Total number of tokens.
    total: u64,
    /// First sequence of each document, and S, [documents + 1]; `None` if each document is one
    /// sequence.
    documents: Option<Vec<u64>>,
    /// Modes of sequences in multimodal datasets, [S].
    modes: Option<Vec<i8>>,
    identity: u64,
}

/// Sequences per entry of `starts`: few enough to add up on every read.
const BLOCK: usize = 64;

impl Indexed {
    /// Opens `prefix.idx` and `prefix.bin` and checks the whole index in one pass.
    ///
    /// Errors in a file's content are a `Problems` that names the file, the field and the numbers.
    /// Errors of the system (no such file, no permission) are ordinary errors.
    pub fn open(prefix: &Path) -> Result<Indexed> {
        let path = index_path(prefix);
        for path in [&path, &tokens_path(prefix)] {
            if !path.exists() {
                return Err(missing_dataset(prefix, path).into());
            }
        }
        let index = Mapped::open(&path, Access::Whole)?;
        let tokens = Mapped::open(&tokens_path(prefix), Access::Scattered)?;
        let check = Check { path: &path, index: &index };
        let header = check.read_header()?;
        let mut hash = Xxh3Default::new();
        let (lengths, starts, total) = check.read_sequences(&header, &tokens, &mut hash)?;
        let documents = check.read_documents(&header, &mut hash)?;
        let modes = check.read_modes(&header)?;
        index.check_intact()?;
        let token_type = header.token_type;
        let prefix = prefix.into();
        let identity = hash.digest();
        Ok(Indexed {
            prefix,
            token_type,
            tokens,
            lengths,
            starts,
            total,
            documents,
            modes,
            identity,
        })
    }

    pub fn prefix(&self) -> &Path {
        &self.prefix
    }

    pub fn token_type(&self) -> TokenType {
        self.token_type
    }

    /// Number of sequences, S.
    pub fn sequences(&self) -> usize {
        self.lengths.len()
    }

    pub fn documents(&self) -> usize {
        self.documents
            .as_ref()
            .map_or(self.lengths.len(), |bounds| bounds.len() - 1)
    }

    /// Sequences of one document.
    pub fn document(&self, document: usize) -> Range<usize> {
        match &self.documents {
            Some(bounds) => bounds[document] as usize..bounds[document + 1] as usize,
            None => document..document + 1,
        }
    }

    /// Total number of tokens.
    pub fn tokens(&self) -> u64 {
        self.total
    }

    /// Tokens of each sequence, [S].
    pub fn lengths(&self) -> &[u32] {
        &self.lengths
    }

    /// Hash of the index: lengths and documents. Two datasets with different hashes give different
    /// samples.
    pub fn identity(&self) -> u64 {
        self.identity
    }

    /// First token of a sequence.
    fn start(&self, sequence: usize) -> u64 {
        let block = sequence / BLOCK;
        let before = &self.lengths[block * BLOCK..sequence];
        self.starts[block] + before.iter().map(|length| *length as u64).sum::<u64>()
    }

    /// Mode of each sequence in a multimodal dataset, [S].
    pub fn modes(&self) -> Option<&[i8]> {
        self.modes.as_deref()
    }

    /// Reads tokens `offset .. offset + out.len()` of one sequence. Fails for a token outside i32,
    /// or if the file has shrunk since it was opened.
    pub fn read(&self, sequence: usize, offset: u32, out: &mut [i32]) -> Result<()> {
        let within = offset as u64 + out.len() as u64 <= self.lengths[sequence] as u64;
        assert!(within, "a read past the end of sequence {sequence}");
        let at = (self.start(sequence) + offset as u64) as usize * self.token_type.size();
        self.read_tokens(at, out)
            .with_context(|| format!("sequence {sequence}"))
    }

    /// Reads tokens from number `first` of the whole dataset on, across sequences.
    pub fn read_across(&self, first: u64, out: &mut [i32]) -> Result<()> {
        let last = first + out.len() as u64;
        assert!(last <= self.total, "a read of token {last} of {}", self.total);
        self.read_tokens(first as usize * self.token_type.size(), out)
    }

    /// Highest id and its sequence; reads everything. `progress` receives the number of tokens
    /// read.
    pub fn find_highest_id(&self, mut progress: impl FnMut(u64)) -> Result<Option<(u64, usize)>> {
        let mut highest: Option<(i32, u64)> = None;
        let mut buffer = vec![0; 1 << 18];
        let mut at = 0;
        while at < self.tokens() {
            let count = (self.tokens() - at).min(buffer.len() as u64) as usize;
            let some = &mut buffer[..count];
            self.read_tokens(at as usize * self.token_type.size(), some)?;
            let mut low = i32::MAX;
            let mut high = i32::MIN;
            for token in &*some {
                (low, high) = (low.min(*token), high.max(*token));
            }
            if low < 0 {
                let place = self.tokens.path().display().to_string();
                return Err(Problems::one(
                    place,
                    format!("holds the negative id {low} near token {at}"),
                    "build the dataset again",
                )
                .into());
            }
            if highest.is_none_or(|(before, _)| high > before) {
                let within = some.iter().position(|token| *token == high).unwrap_or(0);
                highest = Some((high, at + within as u64));
            }
            at += count as u64;
            progress(at);
        }
        Ok(highest.map(|(id, at)| (id as u64, self.find_sequence(at))))
    }

    /// Sequence of a token.
    fn find_sequence(&self, token: u64) -> usize {
        let block = self.starts.partition_point(|start| *start <= token) - 1;
        let mut end = self.starts[block];
        let lengths = self.lengths[block * BLOCK..].iter();
        let within = lengths.take_while(|length| {
            end += **length as u64;
            end <= token
        });
        block * BLOCK + within.count()
    }

    /// Raw bytes of the token file.
    pub(super) fn read_raw(&self, at: usize, out: &mut [u8]) -> Result<()> {
        self.tokens.copy(at, out)
    }

    /// Prefetches a part of one sequence.
    pub fn will_need(&self, sequence: usize, offset: u32, count: usize) {
        let size = self.token_type.size();
        let at = (self.start(sequence) + offset as u64) as usize * size;
        self.tokens.will_need(at, count * size);
    }

    /// Reads tokens from byte `at` on, widened to i32.
    fn read_tokens(&self, at: usize, out: &mut [i32]) -> Result<()> {
        match self.token_type {
            TokenType::U8 => self.read_widened(at, out, |b: [u8; 1]| b[0] as i64),
            TokenType::I8 => self.read_widened(at, out, |b: [u8; 1]| b[0] as i8 as i64),
            TokenType::I16 => self.read_widened(at, out, |b| i16::from_le_bytes(b) as i64),
            TokenType::U16 => self.read_widened(at, out, |b| u16::from_le_bytes(b) as i64),
            TokenType::I32 => self.read_widened(at, out, |b| i32::from_le_bytes(b) as i64),
            TokenType::I64 => self.read_widened(at, out, i64::from_le_bytes),
            TokenType::F64 | TokenType::Float => unreachable!("refused at open"),
        }
    }

    fn read_widened<const N: usize>(
        &self,
        at: usize,
        out: &mut [i32],
        value: impl Fn([u8; N]) -> i64,
    ) -> Result<()> {
        const CHUNK: usize = 4096; // bytes: on the stack, and in the L1 cache
        let mut buffer = [0; CHUNK];
        for (i, tokens) in out.chunks_mut(CHUNK / N).enumerate() {
            let bytes = &mut buffer[..tokens.len() * N];
            self.tokens.copy(at + i * CHUNK, bytes)?;
            let mut outside = false;
            for (token, raw) in tokens.iter_mut().zip(bytes.as_chunks().0) {
                let wide = value(*raw);
                outside |= wide as i32 as i64 != wide;
                *token = wide as i32;
            }
            if outside {
                let place = self.tokens.path().display().to_string();
                return Err(Problems::one(
                    place,
                    format!("holds a token id beyond 31 bits near byte {}", at + i * CHUNK),
                    "it is damaged, or holds no tokens: build it again",
                )
                .into());
            }
        }
        Ok(())
    }
}

/// Fixed part of an index.
struct Header {
    token_type: TokenType,
    sequences: usize,
    /// Entries of the documents array: documents + 1.
    bounds: usize,
    /// Whether exactly S bytes follow the arrays.
    has_modes: bool,
}

/// Index being checked.
struct Check<'a> {
    path: &'a Path,
    index: &'a Mapped,
}

impl Check<'_> {
    fn error(&self, what: String, remedy: &str) -> anyhow::Error {
        Problems::one(self.path.display().to_string(), what, remedy).into()
    }

    fn read_header(&self) -> Result<Header> {
        let size = self.index.len();
        let mut head = [0; HEADER];
        let have = size.min(HEADER);
        self.index.copy(0, &mut head[..have])?;
        if head.starts_with(b"TNTIDX\0\0") {
            let what = "an old fairseq index (TNTIDX), which gptrain does not read".to_string();
            return Err(self.error(what, "build the dataset again with `gptrain data build`"));
        }
        let start = &head[..have.min(MAGIC.len())];
        if !MAGIC.starts_with(start) {
            let start = start.escape_ascii();
            return Err(self.error(
                format!("not a Megatron index: it starts with \"{start}\", not MMIDIDX"),
                "give the prefix of a .bin/.idx pair",
            ));
        }
        if size < HEADER {
            return Err(self
                .error(format!("cut off: {size} bytes, the header alone has {HEADER}"), REBUILD));
        }
        let number = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().unwrap());
        let version = number(9);
        let code = head[17];
        if version != 1 {
            return Err(self.error(format!("version {version}; only version 1 exists"), REBUILD));
        }
        let token_type = match TokenType::from_code(code) {
            Some(TokenType::F64 | TokenType::Float) => {
                return Err(self.error(
                    format!("dtype code {code} is a floating-point type, not token ids"),
                    "tokens have dtype code 1 to 5 or 8",
                ));
            }
            Some(token_type) => token_type,
            None => {
                return Err(self.error(
                    format!("dtype code {code} is unknown"),
                    "tokens have dtype code 1 to 5 or 8",
                ));
            }
        };
        let sequences = number(18);
        let bounds = number(26);
        let has_modes = self.check_layout(sequences, bounds)?;
        let sequences = sequences as usize;
        let bounds = bounds as usize;
        Ok(Header { token_type, sequences, bounds, has_modes })
    }

    /// Checks the length of the file against its counts. Returns whether it has modes.
    fn check_layout(&self, sequences: u64, bounds: u64) -> Result<bool> {
        let size = self.index.len() as u64;
        let arrays = (|| {
            let sequences = sequences.checked_mul(12)?;
            let bounds = bounds.checked_mul(8)?;
            sequences.checked_add(bounds)?.checked_add(HEADER as u64)
        })();
        let counts =
            format!("{} sequences and {} document bounds", Count(sequences), Count(bounds));
        let Some(arrays) = arrays.filter(|arrays| *arrays <= size) else {
            let needed = arrays.map_or("more than 2^64".into(), |bytes| Count(bytes).to_string());
            return Err(self.error(
                format!("claims {counts}, {needed} bytes; the file has {}", Count(size)),
                REBUILD,
            ));
        };
        if bounds == 0 {
            return Err(
                self.error("has no document bounds; even an empty dataset has one".into(), REBUILD)
            );
        }
        let rest = size - arrays;
        if rest != 0 && rest != sequences {
            return Err(self.error(
                format!(
                    "{} bytes follow the arrays of {counts}; none may, or one mode per sequence",
                    Count(rest)
                ),
                REBUILD,
            ));
        }
        Ok(rest != 0)
    }

    /// Reads lengths and starts, and checks them against each other and against the token file.
    fn read_sequences(
        &self,
        header: &Header,
        tokens: &Mapped,
        hash: &mut Xxh3Default,
    ) -> Result<(Vec<u32>, Vec<u64>, u64)> {
        let count = header.sequences;
        let item = header.token_type.size() as u64;
        let mut lengths = Vec::with_capacity(count);
        let mut starts = Vec::with_capacity(count / BLOCK + 1);
        let mut raw_lengths = Array::<4>::new(self.index, HEADER, count);
        let mut raw_offsets = Array::<8>::new(self.index, HEADER + 4 * count, count);
        let mut start = 0u64; // below 2^31 · S, so it cannot overflow
        while let (Some(some), Some(offsets)) = (raw_lengths.next()?, raw_offsets.next()?) {
            hash.update(some.as_flattened());
            for (length, offset) in some.iter().zip(offsets) {
                let length = i32::from_le_bytes(*length);
                let offset = i64::from_le_bytes(*offset);
                let sequence = lengths.len();
                if length < 0 {
                    return Err(
                        self.error(format!("sequence {sequence} has length {length}"), REBUILD)
                    );
                }
                if start
                    .checked_mul(item)
                    .and_then(|at| i64::try_from(at).ok())
                    != Some(offset)
                {
                    return Err(self.error(format!(
                        "sequence {sequence} starts at byte {offset}; the sequences before it end \
                         at byte {}",
                        start.saturating_mul(item)
                    ), REBUILD));
                }
                if sequence.is_multiple_of(BLOCK) {
                    starts.push(start);
                }
                lengths.push(length as u32);
                start += length as u64;
            }
        }
        let bytes = start.checked_mul(item);
        if bytes != Some(tokens.len() as u64) {
            let needed = bytes.map_or("more than 2^64".into(), |bytes| Count(bytes).to_string());
            return Err(self.error(
                format!(
                    "describes {} tokens of {}, {needed} bytes; {} has {}",
                    Count(start),
                    header.token_type,
                    tokens.path().display(),
                    Count(tokens.len() as u64)
                ),
                "the pair does not belong together, or a copy was cut off: copy or build \
                 it again",
            ));
        }
        Ok((lengths, starts, start))
    }

    /// Reads the documents' bounds; None if each document is one sequence.
    fn read_documents(&self, header: &Header, hash: &mut Xxh3Default) -> Result<Option<Vec<u64>>> {
        let mut documents = Documents::default();
        let mut bounds = Array::<8>::new(self.index, HEADER + 12 * header.sequences, header.bounds);
        let mut previous = 0;
        while let Some(some) = bounds.next()? {
            hash.update(some.as_flattened());
            for bound in some {
                let bound = i64::from_le_bytes(*bound);
                let at = documents.count;
                if at == 0 && bound != 0 {
                    return Err(self.error(
                        format!("the first document starts at sequence {bound}, not 0"),
                        REBUILD,
                    ));
                }
                if bound < previous {
                    return Err(self.error(
                        format!("document bound {at} is {bound}, below the one before, {previous}"),
                        REBUILD,
                    ));
                }
                previous = bound;
                documents.push(bound as u64);
            }
        }
        if previous as u64 != header.sequences as u64 {
            return Err(self.error(
                format!(
                    "the last document ends at sequence {previous}; there are {} sequences",
                    header.sequences
                ),
                REBUILD,
            ));
        }
        Ok(documents.bounds)
    }

    fn read_modes(&self, header: &Header) -> Result<Option<Vec<i8>>> {
        if !header.has_modes {
            return Ok(None);
        }
        let mut modes = vec![0; header.sequences];
        self.index
            .copy(HEADER + 12 * header.sequences + 8 * header.bounds, &mut modes)?;
        Ok(Some(modes.into_iter().map(|mode| mode as i8).collect()))
    }
}

const REBUILD: &str = "the index is damaged: copy it again from its source, or build it again";

/// Document bounds, which are not stored as long as they are 0, 1, 2, …
#[derive(Default)]
struct Documents {
    count: usize,
    bounds: Option<Vec<u64>>,
}

impl Documents {
    fn push(&mut self, bound: u64) {
        match &mut self.bounds {
            Some(bounds) => bounds.push(bound),
            None if bound == self.count as u64 => {}
            None => self.bounds = Some((0..self.count as u64).chain([bound]).collect()),
        }
        self.count += 1;
    }
}

/// Unaligned array of N-byte elements, read chunk by chunk.
struct Array<'a, const N: usize> {
    index: &'a Mapped,
    at: usize,
    left: usize,
    chunk: Vec<[u8; N]>,
}

impl<'a, const N: usize> Array<'a, N> {
    fn new(index: &'a Mapped, at: usize, count: usize) -> Array<'a, N> {
        Array { index, at, left: count, chunk: Vec::new() }
    }

    fn next(&mut self) -> Result<Option<&[[u8; N]]>> {
        let count = self.left.min(1 << 14);
        if count == 0 {
            return Ok(None);
        }
        self.chunk.resize(count, [0; N]);
        self.index.copy(self.at, self.chunk.as_flattened_mut())?;
        self.at += count * N;
        self.left -= count;
        Ok(Some(&self.chunk))
    }
}
