//! Compressed text by the tools that write it: their members, streams and frames, padding and frames to
//! skip, and what is refused by name. tests/fixtures/data/compressed/make.sh made the files.

use super::cli::{bad, fixture, folder};
use super::formats::build;
use std::fs;

#[test]
fn what_the_tools_write_is_read() {
    let folder = folder("tools");
    let mut count = 0;
    for entry in fs::read_dir(fixture("compressed")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if name.ends_with(".sh") || name.starts_with("refused-") {
            continue;
        }
        let texts = build(&folder, &format!("{} --format jsonl", path.display()));
        assert_eq!(texts, ["one", "two", "three"], "{name}");
        count += 1;
    }
    assert_eq!(count, 26);
}

/// A message names the tool and what to type, and never calls the file damaged if it is not.
#[test]
fn other_compressions_are_refused_by_name() {
    let folder = folder("other tools");
    for (name, code, says) in [
        (
            "refused-lz4.jsonl",
            2,
            "is compressed by lz4, which is not read\n    → unpack it: lz4 -d FILE",
        ),
        ("refused-lz4-legacy.jsonl", 2, "is compressed by lz4 -l"),
        (
            "refused-compress.jsonl",
            2,
            "is compressed by compress, which is not read\n    → unpack it: gzip",
        ),
        (
            "refused-lzma.jsonl",
            2,
            "is compressed by lzma, which is not read\n    → unpack it: xz -d",
        ),
        ("refused-dictionary.zst", 2, "is compressed with the Zstandard dictionary"),
        ("refused-garbage.gz", 2, "has something else behind its gzip data, at byte 38"),
        ("refused-checksum.zst", 1, "the checksum of a zstd frame is wrong"),
    ] {
        let path = fixture("compressed").join(name);
        let arguments = format!("build {} --format jsonl -t bytes -o x", path.display());
        let error = bad(&folder, &arguments, code);
        assert!(error.contains(says) && !error.contains("again"), "{name}: {error}");
        assert!(!folder.join("x.bin").exists());
    }
}

/// Parts of a compressed file, not cut between two of its frames.
#[test]
fn cut_files_end_in_an_error() {
    let folder = folder("cut");
    for name in ["gzip.gz", "zstd-note.zst", "pzstd.zst", "xz-streams.xz", "bzip2.bz2"] {
        let whole = fs::read(fixture("compressed").join(name)).unwrap();
        for share in [1, 2, 3] {
            fs::write(folder.join(name), &whole[..whole.len() * share / 4]).unwrap();
            let arguments = format!("build {name} --format lines -t bytes -o x");
            let output = super::cli::data(&folder, &arguments).output().unwrap();
            let code = output.status.code();
            assert!(matches!(code, Some(1 | 2)), "{name} {share}: {code:?}");
        }
    }
}
