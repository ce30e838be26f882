//! Fixtures of many small files, kept as one `.tar.zst`.

use ruzstd::decoding::StreamingDecoder;
use std::fs::{self, File};
use std::io::Read;
use std::ops::Range;
use std::path::Path;

/// Unpacks the plain files of an archive whose names begin with one of `parts`.
pub fn unpack(archive: &Path, parts: &[&str], to: &Path) {
    let mut bytes = Vec::new();
    let file = File::open(archive).unwrap();
    StreamingDecoder::new(file)
        .unwrap()
        .read_to_end(&mut bytes)
        .unwrap();
    let (mut at, mut count) = (0, 0);
    while bytes[at] != 0 {
        let header = &bytes[at..at + 512];
        let text = |range: Range<usize>| {
            let field = header[range].split(|byte| *byte == 0).next().unwrap();
            std::str::from_utf8(field).unwrap().trim().to_string()
        };
        let (name, size) = (text(0..100), usize::from_str_radix(&text(124..136), 8).unwrap());
        at += 512;
        if header[156] == b'0' && parts.iter().any(|part| name.starts_with(part)) {
            let path = to.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, &bytes[at..at + size]).unwrap();
            count += 1;
        }
        at += size.next_multiple_of(512);
    }
    assert!(count > 0, "{} has files of {parts:?}", archive.display());
}
