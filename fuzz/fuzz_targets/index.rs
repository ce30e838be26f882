//! Any bytes as an .idx: refused, or a dataset whose every sequence and sample can be read.
#![no_main]

use std::fs::{self, File};
use std::path::PathBuf;
use std::sync::LazyLock;

use gptrain::data::Indexed;
use gptrain::data::order::{Cut, Order, OrderSpec};
use gptrain::manifest::DataRule;
use libfuzzer_sys::fuzz_target;

static PREFIX: LazyLock<PathBuf> = LazyLock::new(|| {
    let folder = PathBuf::from(format!("/dev/shm/gptrain-fuzz-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder in memory");
    folder.join("fuzz")
});

fuzz_target!(|index: &[u8]| {
    fs::write(PREFIX.with_extension("idx"), index).expect("memory");
    let tokens = File::create(PREFIX.with_extension("bin")).expect("memory");
    tokens.set_len(described(index).min(1 << 40)).expect("a hole");
    let Ok(dataset) = Indexed::open(&PREFIX) else { return };
    let mut tokens = vec![0; 4096];
    for (sequence, length) in dataset.lengths().iter().enumerate() {
        let length = (*length as usize).min(tokens.len());
        dataset.read(sequence, 0, &mut tokens[..length]).expect("zeros");
    }
    let documents = (0..dataset.documents()).map(|document| dataset.document(document).len());
    assert_eq!(documents.sum::<usize>(), dataset.sequences());
    // A sequence length for which there are few samples, however long the sequences claim to be.
    let seq_len = 16 + dataset.tokens() as usize / 64;
    let cut = Cut::default();
    let spec = OrderSpec { rule: DataRule::MegatronCore, seq_len, samples: Some(20), seed: 1, cut };
    let part = 0..dataset.sequences();
    let Ok(order) = Order::build(&spec, dataset.lengths(), part, "fuzz") else { return };
    for k in 0..order.samples().min(20) {
        let mut pieces = order.slices(k, dataset.lengths()).expect("in memory");
        let mut count = 0;
        while let Some(piece) = pieces.next().expect("in memory") {
            count += piece.count;
        }
        assert_eq!(count, seq_len + 1);
    }
});

/// The size of the token file that an index describes, so that fuzzing gets past the comparison.
fn described(index: &[u8]) -> u64 {
    let size = match index.get(17) {
        Some(1 | 2) => 1,
        Some(3 | 8) => 2,
        Some(5) => 8,
        _ => 4,
    };
    let (lengths, _) = index.get(34..).unwrap_or_default().as_chunks::<4>();
    let count = index.get(18..26).map_or(0, |bytes| u64::from_le_bytes(bytes.try_into().unwrap()));
    let lengths = lengths.iter().take(count as usize).map(|length| u32::from_le_bytes(*length));
    lengths.map(u64::from).sum::<u64>() * size
}
