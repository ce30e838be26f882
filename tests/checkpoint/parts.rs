//! Parts of ranks, as they are saved into the memory of nodes: every byte counts, and all parts together
//! are the checkpoint that a common index describes.

use crate::common::saved::Saved;
use gptrain::checkpoint::disk::Disk;
use gptrain::checkpoint::{INDEX, PartFile, PartName, Share, index_text, write_part};
use std::fs;
use std::path::Path;

/// Writes the rows of two ranks as two parts.
fn write(folder: &Path, what: &Saved) -> [PartName; 2] {
    [0, 1].map(|rank| {
        let disk = Disk::default();
        let name = PartName { rank, ranks: 2 };
        let shares = what
            .tensors
            .iter()
            .enumerate()
            .flat_map(|(number, tensor)| {
                let half = tensor.rows() / 2;
                let (first, rows) =
                    if rank == 0 { (0, half) } else { (half, tensor.rows() - half) };
                let shares = if rows > 0 { tensor.shares(number, first, rows) } else { Vec::new() };
                shares.into_iter()
            });
        let shares: Vec<Share> = shares.collect();
        let part = write_part(&disk, folder, rank, &shares, &what.state).unwrap();
        let part = PartFile { name, state: what.state.clone(), part };
        part.write(&disk, folder).unwrap();
        name
    })
}

#[test]
fn parts_together_are_a_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let what = Saved::tiny(5);
    let folder = folder.path().join("step-00000005");
    fs::create_dir(&folder).unwrap();
    let parts = write(&folder, &what).map(|name| PartFile::verify(&folder, name, 5).unwrap().part);
    fs::write(folder.join(INDEX), index_text(parts.into(), &what.state).unwrap()).unwrap();
    assert!(what.is_in(&folder));
}

/// Each byte of each file, and each length.
#[test]
fn a_part_with_any_other_byte_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let names = write(folder, &Saved::tiny(5));
    let verify = |name: PartName| PartFile::verify(folder, name, 5);
    let files = verify(names[1]).unwrap().files(folder);
    assert_eq!(files.len(), 4, "three states and the part itself: {files:?}");
    for file in files {
        let sound = fs::read(&file).unwrap();
        for byte in (0..sound.len()).step_by(1 + sound.len() / 500) {
            let mut bytes = sound.clone();
            bytes[byte] ^= 1;
            fs::write(&file, bytes).unwrap();
            assert!(verify(names[1]).is_err(), "byte {byte} of {}", file.display());
            verify(names[0]).expect("the other part");
        }
        fs::write(&file, &sound[..sound.len() - 1]).unwrap();
        assert!(verify(names[1]).is_err(), "cut short: {}", file.display());
        fs::remove_file(&file).unwrap();
        assert!(verify(names[1]).is_err(), "missing: {}", file.display());
        fs::write(&file, sound).unwrap();
        verify(names[1]).unwrap();
    }
    let error = PartFile::verify(folder, names[1], 6).unwrap_err();
    assert!(
        error
            .to_string()
            .ends_with("is that of step 5, rank 1 of 2"),
        "{error}"
    );
    assert_eq!(PartName::parse("part-00002-of-00002.json"), None);
    assert_eq!(PartName::parse("part-1-of-2.json"), None);
    assert_eq!(PartName::parse(&names[1].file()), Some(names[1]));
}
