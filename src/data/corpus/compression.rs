//! Compressed files: gzip members, xz and bzip2 streams, Zstandard frames, one after the other as the
//! tools write them, with the padding and the skippable frames between.

use std::io::{BufRead, Error, ErrorKind, Read, Result};

use base::Problems;
use bzip2::bufread::BzDecoder;
use flate2::bufread::GzDecoder;
use lzma_rust2::XzReader;
use ruzstd::decoding::errors::FrameDecoderError;
use ruzstd::decoding::{FrameDecoder, StreamingDecoder};

use super::position::Counted;

/// Longest magic of a compression.
const MAGIC: usize = 10;
/// Bytes read from the file at once.
const READ_SIZE: usize = 1 << 18;
/// Magic of Zstandard's skippable frames, whose first byte is 0x50 to 0x5f. LZ4 has the same.
const SKIPPABLE: &[u8] = &[0x2a, 0x4d, 0x18];
/// Maximum window of Zstandard that is decoded, the window of `zstd --long=31`.
const WINDOW: u64 = 2 << 30;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    Gzip,
    Zstandard,
    Xz,
    Bzip2,
}

impl Compression {
    /// Compression of a stream that starts with these bytes; None for others.
    fn detect(start: &[u8]) -> Option<Compression> {
        match start {
            [0x1f, 0x8b, ..] => Some(Compression::Gzip),
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Some(Compression::Zstandard),
            [b'\xfd', b'7', b'z', b'X', b'Z', 0, ..] => Some(Compression::Xz),
            // The level, then a block or the end of an empty stream.
            [b'B', b'Z', b'h', _, block @ ..]
                if block.starts_with(b"1AY&SY") || block.starts_with(b"\x17rE8P\x90") =>
            {
                Some(Compression::Bzip2)
            }
            _ if is_skippable(start) => Some(Compression::Zstandard),
            _ => None,
        }
    }

    /// Program that writes it.
    fn tool(self) -> &'static str {
        match self {
            Compression::Gzip => "gzip",
            Compression::Zstandard => "zstd",
            Compression::Xz => "xz",
            Compression::Bzip2 => "bzip2",
        }
    }
}

/// Whether a skippable frame of Zstandard starts with these bytes.
fn is_skippable(start: &[u8]) -> bool {
    start.first().is_some_and(|byte| byte >> 4 == 5) && start[1..].starts_with(SKIPPABLE)
}

/// Decompressed bytes of a file, or its own bytes.
pub fn decompress(file: Counted, place: &str) -> Result<Box<dyn Read>> {
    let mut file = Source { file, bytes: Vec::new(), at: 0 };
    Ok(match Compression::detect(file.peek(MAGIC)?) {
        None => Box::new(file),
        Some(compression) => {
            let place = place.into();
            Box::new(Members { file: Some(file), decoder: None, place, compression })
        }
    })
}

/// File whose next bytes can be seen before they are read.
struct Source {
    file: Counted,
    bytes: Vec<u8>,
    at: usize,
}

impl Source {
    /// Next bytes: `count`, or fewer at the end of the file.
    fn peek(&mut self, count: usize) -> Result<&[u8]> {
        while self.bytes.len() - self.at < count {
            self.bytes.drain(..self.at);
            let old = self.bytes.len();
            let room = self.bytes.len() + READ_SIZE;
            self.at = 0;
            self.bytes.resize(room, 0);
            let read = self.file.read(&mut self.bytes[old..]);
            self.bytes.truncate(old + *read.as_ref().unwrap_or(&0));
            match read {
                Ok(0) => break,
                Err(error) if error.kind() != ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
        }
        Ok(&self.bytes[self.at..])
    }

    /// Skips `count` bytes. Fails at the end of the file.
    fn skip(&mut self, mut count: u64) -> Result<()> {
        while count > 0 {
            let some = (self.fill_buf()?.len() as u64).min(count);
            if some == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            self.consume(some as usize);
            count -= some;
        }
        Ok(())
    }

    fn skip_zeros(&mut self) -> Result<()> {
        loop {
            let zeros = self
                .fill_buf()?
                .iter()
                .take_while(|byte| **byte == 0)
                .count();
            if zeros == 0 {
                return Ok(());
            }
            self.consume(zeros);
        }
    }
}

impl BufRead for Source {
    fn fill_buf(&mut self) -> Result<&[u8]> {
        self.peek(1)
    }

    fn consume(&mut self, count: usize) {
        self.at += count;
    }
}

impl Read for Source {
    fn read(&mut self, out: &mut [u8]) -> Result<usize> {
        let read = self.fill_buf()?.read(out)?;
        self.consume(read);
        Ok(read)
    }
}

/// Decoder of one member, stream or frame.
enum Decoder {
    Gzip(GzDecoder<Source>),
    Zstandard(Box<Frame>),
    Xz(Box<XzReader<Source>>),
    Bzip2(BzDecoder<Source>),
}

type Frame = StreamingDecoder<Source, FrameDecoder>;

impl Decoder {
    fn open(compression: Compression, file: Source, place: &str) -> Result<Decoder> {
        Ok(match compression {
            Compression::Gzip => Decoder::Gzip(GzDecoder::new(file)),
            Compression::Zstandard => Decoder::Zstandard(Box::new(open_frame(file, place)?)),
            Compression::Xz => Decoder::Xz(Box::new(XzReader::new(file, false))),
            Compression::Bzip2 => Decoder::Bzip2(BzDecoder::new(file)),
        })
    }

    fn read(&mut self, out: &mut [u8]) -> Result<usize> {
        match self {
            Decoder::Gzip(decoder) => decoder.read(out),
            Decoder::Zstandard(frame) => match frame.read(out)? {
                0 if !out.is_empty() => check_checksum(&frame.decoder).map(|()| 0),
                read => Ok(read),
            },
            Decoder::Xz(decoder) => decoder.read(out),
            Decoder::Bzip2(decoder) => decoder.read(out),
        }
    }

    fn into_inner(self) -> Source {
        match self {
            Decoder::Gzip(decoder) => decoder.into_inner(),
            Decoder::Zstandard(decoder) => decoder.into_inner(),
            Decoder::Xz(decoder) => decoder.into_inner(),
            Decoder::Bzip2(decoder) => decoder.into_inner(),
        }
    }
}

/// Opens a Zstandard frame.
fn open_frame(file: Source, place: &str) -> Result<Frame> {
    Frame::new_with_max_window_size(file, WINDOW).map_err(|error| match error {
        FrameDecoderError::DictNotProvided { dict_id } => Error::other(Problems::one(
            place,
            format!("is compressed with the Zstandard dictionary {dict_id}"),
            "unpack it with that dictionary: zstd -d -D DICTIONARY FILE",
        )),
        error => Error::other(error),
    })
}

/// Fails if a frame has a checksum, and its content another.
fn check_checksum(frame: &FrameDecoder) -> Result<()> {
    let stored = frame.get_checksum_from_data();
    if stored.is_some() && stored != frame.get_calculated_checksum() {
        return Err(Error::new(ErrorKind::InvalidData, "the checksum of a zstd frame is wrong"));
    }
    Ok(())
}

/// Decompressed bytes of consecutive members.
struct Members {
    /// The file between two members.
    file: Option<Source>,
    decoder: Option<Decoder>,
    place: String,
    compression: Compression,
}

impl Members {
    /// Opens the next member. Returns false at the end of the file.
    fn next(&mut self) -> Result<bool> {
        let Some(mut file) = self.file.take() else { return Ok(false) };
        loop {
            let start: Vec<u8> = file.peek(MAGIC)?.iter().take(MAGIC).copied().collect();
            match start[..] {
                [] => return Ok(false),
                // Zeros are the padding of xz, and of tapes and block devices.
                [0, ..] => file.skip_zeros()?,
                [_, _, _, _, a, b, c, d, ..]
                    if self.compression == Compression::Zstandard && is_skippable(&start) =>
                {
                    file.skip(8 + u64::from(u32::from_le_bytes([a, b, c, d])))?;
                }
                _ if Compression::detect(&start) == Some(self.compression) => {
                    self.decoder = Some(Decoder::open(self.compression, file, &self.place)?);
                    return Ok(true);
                }
                _ => return Err(self.mixed_members_error(&file)),
            }
        }
    }

    /// Error: the file continues with bytes of another kind.
    fn mixed_members_error(&self, file: &Source) -> Error {
        let at = file.file.position.get() - (file.bytes.len() - file.at) as u64;
        let tool = self.compression.tool();
        Error::other(Problems::one(
            &self.place,
            format!("has something else behind its {tool} data, at byte {at}"),
            format!("ask {tool}: {tool} -tv FILE"),
        ))
    }
}

impl Read for Members {
    fn read(&mut self, out: &mut [u8]) -> Result<usize> {
        loop {
            if let Some(decoder) = &mut self.decoder {
                let read = decoder.read(out)?;
                if read > 0 || out.is_empty() {
                    return Ok(read);
                }
            }
            self.file = self
                .decoder
                .take()
                .map(Decoder::into_inner)
                .or(self.file.take());
            if !self.next()? {
                return Ok(0);
            }
        }
    }
}
