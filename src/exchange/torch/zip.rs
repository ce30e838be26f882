//! Reads ZIP archives of `torch.save`: stored entries, ZIP64 for large ones, a checksum for each.

use super::IS_WHOLE;
use anyhow::Context;
use base::Problems;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Maximum entries of an archive, and maximum bytes of its directory.
const MAX_ENTRIES: u64 = 1 << 20;
const MAX_DIRECTORY: u64 = 1 << 28;
/// Bytes read at once for a checksum.
const BLOCK: usize = 4 << 20;

/// Lengths of the end record, the ZIP64 locator, a directory entry and a local header.
const END: u64 = 22;
const LOCATOR: u64 = 20;
const END64: u64 = 56;
const ENTRY: usize = 46;
const LOCAL: u64 = 30;

/// An archive in a file, or in a part of one.
pub struct Archive {
    file: Arc<File>,
    place: String,
    /// First byte of the archive in the file.
    start: u64,
    /// The name of the folder that every entry is in.
    prefix: String,
    entries: BTreeMap<String, Entry>,
    checksums: bool,
    /// Entries whose checksum was compared.
    verified: Mutex<BTreeSet<String>>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// First byte of its local header, then of its data, in the archive.
    header: u64,
    data: u64,
    size: u64,
    crc: u32,
}

impl Archive {
    /// Reads the directory: every entry is stored, in the file, and over no other.
    pub fn read(file: Arc<File>, place: String, start: u64, len: u64) -> anyhow::Result<Archive> {
        let mut archive = Archive {
            file,
            place,
            start,
            prefix: String::new(),
            entries: BTreeMap::new(),
            checksums: true,
            verified: Mutex::default(),
        };
        let directory = archive.directory(len)?;
        archive.list(&directory)?;
        archive.disjoint(directory.start)?;
        // torch.serialization.set_crc32_options(False) leaves every checksum 0.
        archive.checksums = archive.entries.values().any(|entry| entry.crc != 0);
        Ok(archive)
    }

    pub fn place(&self) -> &str {
        &self.place
    }

    pub fn has_checksums(&self) -> bool {
        self.checksums
    }

    pub fn has(&self, name: &str) -> bool {
        self.entries.contains_key(&format!("{}{name}", self.prefix))
    }

    /// Bytes of an entry.
    pub fn size(&self, name: &str) -> anyhow::Result<u64> {
        Ok(self.entry(name)?.size)
    }

    /// A whole entry of at most `most` bytes, its checksum compared.
    pub fn bytes(&self, name: &str, most: u64) -> anyhow::Result<Vec<u8>> {
        let entry = self.entry(name)?;
        if entry.size > most {
            let size = entry.size;
            return Err(
                self.problem(format!("{name} has {size} bytes, more than {most}"), IS_WHOLE)
            );
        }
        let mut bytes = vec![0; entry.size as usize];
        self.read_at(&mut bytes, entry.data)?;
        self.compare(name, entry, crc32fast::hash(&bytes))?;
        Ok(bytes)
    }

    /// Fills `to` from byte `from` of an entry on. The first call for an entry compares the checksum
    /// of all of it.
    pub fn range(&self, name: &str, from: u64, to: &mut [u8]) -> anyhow::Result<()> {
        let entry = self.entry(name)?;
        let end = from.checked_add(to.len() as u64);
        if end.is_none_or(|end| end > entry.size) {
            let size = entry.size;
            let len = to.len();
            return Err(self.damaged(format!(
                "{name} has {size} bytes, {len} from byte {from} on were expected"
            )));
        }
        if self.checksums && !self.verified.lock().contains(name) {
            self.verify(name, entry)?;
            self.verified.lock().insert(name.to_string());
        }
        self.read_at(to, entry.data + from)
    }

    fn verify(&self, name: &str, entry: &Entry) -> anyhow::Result<()> {
        let mut hasher = crc32fast::Hasher::new();
        let mut block = vec![0; BLOCK.min(entry.size as usize)];
        let mut done = 0;
        while done < entry.size {
            let size = block.len().min((entry.size - done) as usize);
            self.read_at(&mut block[..size], entry.data + done)?;
            hasher.update(&block[..size]);
            done += size as u64;
        }
        self.compare(name, entry, hasher.finalize())
    }

    fn compare(&self, name: &str, entry: &Entry, found: u32) -> anyhow::Result<()> {
        if !self.checksums || found == entry.crc {
            return Ok(());
        }
        Err(self.damaged(format!(
            "the checksum of {name} is {:08x}, its bytes give {found:08x}",
            entry.crc
        )))
    }

    fn entry(&self, name: &str) -> anyhow::Result<&Entry> {
        let entry = self.entries.get(&format!("{}{name}", self.prefix));
        entry.ok_or_else(|| self.problem(format!("has no entry {name}"), IS_WHOLE))
    }

    /// Position of the directory.
    fn directory(&self, len: u64) -> anyhow::Result<Range<u64>> {
        let tail = len.min(END + LOCATOR + u64::from(u16::MAX));
        let mut bytes = vec![0; tail as usize];
        self.read_at(&mut bytes, len - tail)?;
        let ends = bytes.len().checked_sub(END as usize).map(|last| {
            (0..=last).rev().find(|at| {
                let record = &bytes[*at..];
                record.starts_with(b"PK\x05\x06")
                    && usize::from(u16_at(record, 20)) == record.len() - END as usize
            })
        });
        let Some(at) = ends.flatten() else {
            let mut begin = [0; 4];
            self.read_at(&mut begin[..len.min(4) as usize], 0)?;
            if len == 0 || begin == *b"PK\x03\x04" {
                return Err(self.damaged("is cut short".to_string()));
            }
            let what = "is not an archive of torch.save".to_string();
            return Err(self.problem(what, IS_WHOLE));
        };
        let record = &bytes[at..];
        let end = len - tail + at as u64;
        let mut size = u64::from(u32_at(record, 12));
        let mut first = u64::from(u32_at(record, 16));
        let large = u16_at(record, 10) == u16::MAX || [size, first].contains(&u64::from(u32::MAX));
        if large {
            let locator = end
                .checked_sub(LOCATOR)
                .map(|at| self.record::<20>(at))
                .transpose()?
                .filter(|record| record.starts_with(b"PK\x06\x07"));
            let Some(locator) = locator else {
                return Err(self.damaged("has no ZIP64 locator".to_string()));
            };
            let at = u64_at(&locator, 8);
            if at
                .checked_add(END64)
                .is_none_or(|after| after > end - LOCATOR)
            {
                return Err(self.damaged("its ZIP64 record is beyond the file".to_string()));
            }
            let record = self.record::<56>(at)?;
            if !record.starts_with(b"PK\x06\x06") {
                return Err(self.damaged("has no ZIP64 record".to_string()));
            }
            (size, first) = (u64_at(&record, 40), u64_at(&record, 48));
        }
        let after = first.checked_add(size).filter(|after| *after <= end);
        match after.filter(|_| size <= MAX_DIRECTORY) {
            Some(after) => Ok(first..after),
            None => Err(self.damaged(format!("its directory is {size} bytes at byte {first}"))),
        }
    }

    /// Reads the directory's entries, and each one's local header.
    fn list(&mut self, directory: &Range<u64>) -> anyhow::Result<()> {
        let mut bytes = vec![0; (directory.end - directory.start) as usize];
        self.read_at(&mut bytes, directory.start)?;
        let mut rest = &bytes[..];
        let mut first = None;
        let mut count = 0;
        while !rest.is_empty() {
            let (name, mut entry, after) =
                read_entry(rest).map_err(|what| self.problem(what, IS_WHOLE))?;
            rest = &rest[after..];
            let plain = !name.starts_with('/') && !name.contains(['\\', '\0']);
            let folder = name.split_once('/').map(|(folder, _)| format!("{folder}/"));
            let inside = plain && name.split('/').all(|part| !matches!(part, "" | "." | ".."));
            let prefix = first.get_or_insert_with(|| folder.clone().unwrap_or_default());
            if !inside || folder.as_ref() != Some(prefix) {
                return Err(self.problem(
                    format!("has an entry {:?}, which torch.save does not write", shortened(&name)),
                    IS_WHOLE,
                ));
            }
            let local = self.record::<30>(entry.header)?;
            let lens = [u16_at(&local, 26), u16_at(&local, 28)].map(u64::from);
            entry.data = entry.header.saturating_add(LOCAL + lens[0] + lens[1]);
            if !local.starts_with(b"PK\x03\x04") || lens[0] != name.len() as u64 {
                return Err(self.damaged(format!("{name} is not at byte {}", entry.header)));
            }
            // If entries have the same name, the last one counts, as in Python and PyTorch.
            self.entries.insert(name, entry);
            count += 1;
            if count > MAX_ENTRIES {
                return Err(self.damaged(format!("has more than {MAX_ENTRIES} entries")));
            }
        }
        self.prefix = first.unwrap_or_default();
        Ok(())
    }

    /// Fails if an entry overlaps another one, or the directory.
    fn disjoint(&self, directory: u64) -> anyhow::Result<()> {
        let mut spans: Vec<_> = self.entries.iter().collect();
        spans.sort_by_key(|(_, entry)| entry.header);
        let ends = spans
            .iter()
            .skip(1)
            .map(|(_, next)| next.header)
            .chain([directory]);
        for ((name, entry), next) in spans.iter().zip(ends) {
            if entry
                .data
                .checked_add(entry.size)
                .is_none_or(|end| end > next)
            {
                return Err(
                    self.damaged(format!("{name} ({} bytes) ends after byte {next}", entry.size))
                );
            }
        }
        Ok(())
    }

    fn record<const N: usize>(&self, at: u64) -> anyhow::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.read_at(&mut bytes, at)?;
        Ok(bytes)
    }

    fn read_at(&self, to: &mut [u8], at: u64) -> anyhow::Result<()> {
        let Some(at) = self.start.checked_add(at) else {
            return Err(self.damaged("is cut short".to_string()));
        };
        self.file
            .read_exact_at(to, at)
            .with_context(|| format!("{}: cannot read {} bytes at {at}", self.place, to.len()))
    }

    /// Error for bytes that are not those that were written.
    fn damaged(&self, what: String) -> anyhow::Error {
        self.problem(what, "the file is damaged: copy it again")
    }

    fn problem(&self, what: String, remedy: &str) -> anyhow::Error {
        Problems::one(self.place.clone(), what, remedy).into()
    }
}

/// First entry of a directory: its name, its position, and the length of its record.
fn read_entry(bytes: &[u8]) -> Result<(String, Entry, usize), String> {
    if bytes.len() < ENTRY || !bytes.starts_with(b"PK\x01\x02") {
        return Err("its directory is cut short".to_string());
    }
    let lens = [28, 30, 32].map(|at| usize::from(u16_at(bytes, at)));
    let after = ENTRY + lens.iter().sum::<usize>();
    if bytes.len() < after {
        return Err("its directory is cut short".to_string());
    }
    let name = std::str::from_utf8(&bytes[ENTRY..ENTRY + lens[0]])
        .map_err(|_| "has an entry whose name is not UTF-8".to_string())?;
    let flags = u16_at(bytes, 8);
    let method = u16_at(bytes, 10);
    if flags & 1 != 0 || method != 0 {
        let name = shortened(name);
        return Err(format!(
            "{name} is compressed or encrypted (method {method}): torch.save stores"
        ));
    }
    let mut extra = &bytes[ENTRY + lens[0]..ENTRY + lens[0] + lens[1]];
    let mut large: &[u8] = &[];
    while extra.len() >= 4 {
        let len = usize::from(u16_at(extra, 2)).min(extra.len() - 4);
        if u16_at(extra, 0) == 1 {
            large = &extra[4..4 + len];
        }
        extra = &extra[4 + len..];
    }
    let mut wide = |at: usize| match u32_at(bytes, at) {
        u32::MAX if large.len() >= 8 => {
            let (first, rest) = large.split_at(8);
            large = rest;
            u64_at(first, 0)
        }
        other => u64::from(other),
    };
    // In this order: the ZIP64 field has those alone that do not fit.
    let size = wide(24);
    let stored = wide(20);
    let header = wide(42);
    if size != stored {
        return Err(format!("{} has {stored} bytes for {size}", shortened(name)));
    }
    let crc = u32_at(bytes, 16);
    Ok((name.to_string(), Entry { header, data: 0, size, crc }, after))
}

/// At most 100 characters of a name in a message.
fn shortened(name: &str) -> String {
    name.chars().take(100).collect()
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().expect("two bytes"))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    const DATA: &[u8] = b"0123456789";

    /// An archive of two stored entries; `large` has sizes and places in ZIP64 fields, as of beyond 4 GiB.
    fn archive(large: bool, checksums: bool) -> Vec<u8> {
        let mut out = Vec::new();
        let mut directory = Vec::new();
        for (name, bytes) in [("a/data.pkl", &b"N."[..]), ("a/data/0", DATA)] {
            let at = out.len() as u64;
            let size = bytes.len() as u64;
            let crc = if checksums { crc32fast::hash(bytes) } else { 0 };
            let short = if large { u32::MAX } else { size as u32 };
            let extra: Vec<u8> = match large {
                true => {
                    [&[1, 0, 24, 0][..], &[size, size, at].map(u64::to_le_bytes).concat()].concat()
                }
                false => Vec::new(),
            };
            let common = [
                &[0; 8][..], // flags, method, time, date
                &crc.to_le_bytes(),
                &short.to_le_bytes(),
                &short.to_le_bytes(),
                &(name.len() as u16).to_le_bytes(),
            ]
            .concat();
            out.extend(
                [b"PK\x03\x04\x2d\0", &common[..], &[0; 2], name.as_bytes(), bytes].concat(),
            );
            directory.extend([b"PK\x01\x02\x2d\0\x2d\0", &common[..]].concat());
            directory.extend((extra.len() as u16).to_le_bytes());
            directory.extend([0; 10]);
            directory.extend(if large { u32::MAX } else { at as u32 }.to_le_bytes());
            directory.extend([name.as_bytes(), &extra].concat());
        }
        let first = out.len() as u64;
        let size = directory.len() as u64;
        out.extend(&directory);
        let end = out.len() as u64;
        if large {
            let head =
                [&b"PK\x06\x06"[..], &44u64.to_le_bytes(), &[45, 0, 45, 0], &[0; 8]].concat();
            out.extend(head);
            out.extend([2, 2, size, first].map(u64::to_le_bytes).concat());
            out.extend([&b"PK\x06\x07"[..], &[0; 4], &end.to_le_bytes(), &[1, 0, 0, 0]].concat());
        }
        let short = |value: u64| if large { u32::MAX } else { value as u32 }.to_le_bytes();
        let count = if large { [0xff; 4] } else { [2, 0, 2, 0] };
        out.extend(
            [&b"PK\x05\x06"[..], &[0; 4], &count, &short(size), &short(first), &[0; 2]].concat(),
        );
        out
    }

    /// Opens an archive that begins at byte 100 of a file.
    fn open(bytes: &[u8]) -> anyhow::Result<Archive> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[&[7; 100], bytes, &[9; 50]].concat())
            .unwrap();
        Archive::read(Arc::new(file), "FILE".into(), 100, bytes.len() as u64)
    }

    #[test]
    fn entries_are_found_by_the_directory_and_by_its_zip64_fields() {
        for large in [false, true] {
            let archive = open(&archive(large, true)).unwrap();
            assert!(archive.has("data.pkl") && archive.has("data/0") && !archive.has("data/1"));
            assert_eq!(archive.size("data/0").unwrap(), 10);
            assert_eq!(archive.bytes("data.pkl", 2).unwrap(), b"N.");
            let most = archive.bytes("data.pkl", 1).unwrap_err().to_string();
            assert!(most.contains("data.pkl has 2 bytes, more than 1"), "{most}");
            assert!(archive.has_checksums());
        }
    }

    #[test]
    fn ranges_are_within_their_entry() {
        let archive = open(&archive(false, true)).unwrap();
        let mut part = [0; 3];
        archive.range("data/0", 7, &mut part).unwrap();
        assert_eq!(&part, b"789");
        for from in [8, u64::MAX] {
            let error = archive
                .range("data/0", from, &mut part)
                .unwrap_err()
                .to_string();
            assert!(error.contains("data/0 has 10 bytes, 3 from byte"), "{error}");
        }
        let missing = archive
            .range("data/1", 0, &mut part)
            .unwrap_err()
            .to_string();
        assert!(missing.contains("has no entry data/1"), "{missing}");
    }

    #[test]
    fn the_first_range_compares_the_checksum_of_all_bytes() {
        let damage = |checksums| {
            let mut bytes = archive(false, checksums);
            let at = bytes.windows(10).position(|part| part == DATA).unwrap();
            bytes[at + 9] ^= 1;
            open(&bytes).unwrap()
        };
        let mut part = [0; 2];
        let error = damage(true)
            .range("data/0", 0, &mut part)
            .unwrap_err()
            .to_string();
        assert!(error.contains("the checksum of data/0 is"), "{error}");
        // An archive may have none.
        let archive = damage(false);
        assert!(!archive.has_checksums());
        archive.range("data/0", 8, &mut part).unwrap();
        assert_eq!(&part, b"88");
    }

    #[test]
    fn a_zip64_record_outside_of_the_file_is_refused() {
        let whole = archive(true, true);
        let locator = whole
            .windows(4)
            .position(|part| part == b"PK\x06\x07")
            .unwrap();
        for (at, expected) in
            [(locator, "has no ZIP64 locator"), (locator + 14, "ZIP64 record is beyond")]
        {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x7f;
            let error = open(&bytes).err().unwrap().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
