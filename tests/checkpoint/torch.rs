//! The reader of torch.save's files: PyTorch's own, read value by value, and hostile ones, which
//! execute nothing and cost bounded memory and time.

use flate2::Crc;
use gptrain::base::rng;
use gptrain::exchange::torch::{Node, TorchFile, Value, pickled};
use serde_json::{Value as Json, json};
use std::fs;
use std::path::{Path, PathBuf};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/torch")
        .join(name)
}

/// Value in the format of `container.py`.
fn told(file: Option<&TorchFile>, value: &Value) -> Json {
    let items = || {
        value
            .items()
            .unwrap()
            .iter()
            .map(|item| told(file, item))
            .collect::<Vec<_>>()
    };
    match value.node() {
        Node::None => Json::Null,
        Node::Bool(yes) => json!(yes),
        Node::Int(number) => json!(number),
        Node::Float(number) => json!({ "float": number }),
        Node::Str(text) => json!(text),
        Node::Bytes(bytes) => json!({ "bytes": bytes }),
        Node::List(_) => json!(items()),
        Node::Tuple(_) => json!({ "tuple": items() }),
        Node::Set(_) => json!({ "set": items() }),
        Node::Dict(_) => {
            let pairs = value.pairs().unwrap();
            let pair = |(key, value): &(Value, Value)| json!([told(file, key), told(file, value)]);
            json!({ "dict": pairs.iter().map(pair).collect::<Vec<_>>() })
        }
        Node::Storage { .. } => json!("a storage"),
        Node::Tensor(tensor) => {
            let read = file.map(|file| file.floats(tensor, 0..tensor.numel()));
            let read =
                read.map(|read| read.map_or_else(|error| json!(error.to_string()), |v| json!(v)));
            json!({ "tensor": tensor.shape, "values": read })
        }
        Node::Global(name) => json!({ "name": name }),
        Node::Object { state, .. } => {
            let (name, arguments) = value.object().map_or(("?", None), |object| object);
            if state.is_some() {
                let named = value.named().unwrap_or_default();
                let pair = |(key, value): &(&str, Value)| json!([key, told(file, value)]);
                let state = json!({ "dict": named.iter().map(pair).collect::<Vec<_>>() });
                return json!({ "object": name, "state": state });
            }
            let arguments = arguments.and_then(|a| a.items().ok()).unwrap_or_default();
            let arguments: Vec<_> = arguments.iter().map(|item| told(file, item)).collect();
            json!({ "object": name, "arguments": arguments })
        }
    }
}

/// Numbers as f64, so that 1 and 1.0 are equal.
fn plain(value: &Json) -> Json {
    match value {
        Json::Array(items) => items.iter().map(plain).collect(),
        Json::Object(map) => map
            .iter()
            .map(|(key, value)| (key.clone(), plain(value)))
            .collect(),
        Json::Number(number) if !number.is_i64() => json!(number.as_f64()),
        Json::Number(number) => json!(number.as_i64().map(|n| n as f64)),
        other => other.clone(),
    }
}

#[test]
fn what_pytorch_wrote_is_read_value_by_value() {
    let expected: Json =
        serde_json::from_slice(&fs::read(fixture("values.json")).unwrap()).unwrap();
    let expected = plain(&expected);
    for (name, checked) in [("values.pt", true), ("unchecked.pt", false), ("protocol4.pt", true)] {
        let file = TorchFile::open(&fixture(name)).unwrap();
        assert_eq!(file.has_checksums(), checked, "{name}");
        let read = plain(&told(Some(&file), &file.root()));
        let pairs = |json: &Json| json["dict"].as_array().unwrap().clone();
        for (read, expected) in pairs(&read).iter().zip(pairs(&expected)) {
            assert_eq!(*read, expected, "{name}");
        }
        assert_eq!(read, expected, "{name}");
    }
}

#[test]
fn parts_of_tensors_are_read_alone() {
    let file = TorchFile::open(&fixture("values.pt")).unwrap();
    let part = file.root().need("part").unwrap();
    assert_eq!(file.floats(part.tensor().unwrap(), 2..5).unwrap(), [10.0, 14.0, 15.0]);
    let transposed = file.root().need("transposed").unwrap();
    assert_eq!(file.floats(transposed.tensor().unwrap(), 3..6).unwrap(), [18.0, 1.0, 7.0]);
}

fn refusal(path: &Path) -> String {
    match TorchFile::open(path) {
        Ok(file) => {
            let root = file.root();
            let dtypes = root.need("dtypes").and_then(|of| of.named());
            let read = dtypes.and_then(|named| {
                named
                    .iter()
                    .try_for_each(|(_, value)| file.floats(value.tensor()?, 0..3).map(|_| ()))
            });
            read.expect_err("damage is found").to_string()
        }
        Err(error) => format!("{error:#}"),
    }
}

#[test]
fn files_that_are_damaged_or_of_another_format_are_refused_in_one_line() {
    let lab = tempfile::tempdir().unwrap();
    let whole = fs::read(fixture("values.pt")).unwrap();
    let write = |name: &str, bytes: &[u8]| {
        let path = lab.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    };
    let place = |what: &[u8]| whole.windows(what.len()).position(|w| w == what).unwrap();
    let storage = 3.0f32.to_le_bytes();
    let mut flipped = whole.clone();
    flipped[place(&[1.0f32.to_le_bytes(), storage].concat())] ^= 1;
    let mut big = whole.clone();
    let order = place(b"little");
    big[order..order + 6].copy_from_slice(b"bigbig");
    let mut method = whole.clone();
    let directory = place(b"PK\x01\x02");
    method[directory + 10] = 8;
    let cases = [
        (fixture("legacy.pt"), "before PyTorch 1.6"),
        (write("cut.pt", &whole[..whole.len() - 40]), "cut short"),
        (write("short.pt", &whole[..20]), "cut short"),
        (write("empty.pt", b""), "cut short"),
        (write("flipped.pt", &flipped), "the checksum of data/"),
        (write("big.pt", &big), "the checksum of byteorder"),
        (write("method.pt", &method), "compressed or encrypted (method 8)"),
        (lab.path().join("missing.pt"), "is missing"),
        (lab.path().to_path_buf(), "is not a file"),
    ];
    for (path, expected) in cases {
        let said = refusal(&path);
        assert!(said.contains(expected), "{}: {said}", path.display());
        assert!(said.contains(&path.display().to_string()) && said.lines().count() <= 2, "{said}");
    }
}

/// A ZIP of stored entries: name, place of its local header (None: in turn), bytes.
fn archive(entries: &[(&str, &[u8])], change: impl Fn(&mut Vec<u8>)) -> Vec<u8> {
    let (mut out, mut directory) = (Vec::new(), Vec::new());
    for (name, bytes) in entries {
        let mut crc = Crc::new();
        crc.update(bytes);
        let at = out.len() as u32;
        let mut common = vec![0, 0, 0, 0, 0, 0, 0, 0]; // flags, method, time, date
        common.extend(crc.sum().to_le_bytes());
        common.extend([bytes.len() as u32; 2].map(u32::to_le_bytes).concat());
        common.extend((name.len() as u16).to_le_bytes());
        common.extend([0, 0]);
        out.extend([b"PK\x03\x04\x14\0", &common[..], name.as_bytes(), bytes].concat());
        directory.extend([b"PK\x01\x02\x14\0\x14\0", &common[..], &[0; 10]].concat());
        directory.extend([&at.to_le_bytes(), name.as_bytes()].concat());
    }
    let (at, count) = (out.len() as u32, (entries.len() as u16).to_le_bytes());
    out.extend(&directory);
    out.extend([b"PK\x05\x06\0\0\0\0", &count[..], &count].concat());
    out.extend([(directory.len() as u32).to_le_bytes(), at.to_le_bytes()].concat());
    out.extend([0, 0]);
    change(&mut out);
    out
}

#[test]
fn archives_that_lie_are_refused() {
    let lab = tempfile::tempdir().unwrap();
    let pickle: &[u8] = b"\x80\x02}.";
    let set = |at_from_end: usize, bytes: &'static [u8]| {
        move |all: &mut Vec<u8>| {
            let at = all.len() - at_from_end;
            all[at..at + bytes.len()].copy_from_slice(bytes);
        }
    };
    let good = [("a/data.pkl", pickle), ("a/data/0", b"12345678")];
    let over = |all: &mut Vec<u8>| {
        // The second entry's header is the first one's.
        let second = all.windows(4).rposition(|w| w == b"PK\x01\x02").unwrap();
        all[second + 42..second + 46].copy_from_slice(&[0; 4]);
        let name = all.len() - 22 - 8;
        all[name..name + 8].copy_from_slice(b"a/data/0");
    };
    let cases: Vec<(Vec<u8>, &str)> = vec![
        (archive(&[("a/data.pkl", pickle), ("a/../x", b"1")], |_| {}), "has an entry"),
        (archive(&[("/a/data.pkl", pickle)], |_| {}), "has an entry"),
        (archive(&[("a/data.pkl", pickle), ("b/data/0", b"1")], |_| {}), "has an entry"),
        (archive(&[("a/data.pkl", pickle), ("a/data.pkl", b"1")], |_| {}), "data.pkl, byte"),
        (archive(&[("a/x", pickle)], |_| {}), "has no entry data.pkl"),
        (archive(&good, over), "is not at byte 0"),
        (archive(&good, set(10, &[0xff, 0xff, 0xff, 0x7f])), "its directory is"),
        (archive(&good, set(6, &[0xff, 0xff, 0xff, 0xff])), "ZIP64"),
        (archive(&good, set(6, &[0xf0, 0xff, 0xff, 0xff])), "its directory is"),
    ];
    fs::write(lab.path().join("good.pt"), archive(&good, |_| {})).unwrap();
    TorchFile::open(&lab.path().join("good.pt")).unwrap();
    for (i, (bytes, expected)) in cases.into_iter().enumerate() {
        let path = lab.path().join(format!("{i}.pt"));
        fs::write(&path, bytes).unwrap();
        let error = TorchFile::open(&path)
            .err()
            .unwrap_or_else(|| panic!("{i} is accepted"));
        let said = format!("{error:#}");
        assert!(said.contains(expected), "{i}: {said}");
    }
}

/// As in Python's dicts, and in its archives and PyTorch's.
#[test]
fn of_a_key_or_an_entry_that_is_there_twice_the_last_counts() {
    let dict = b"\x80\x02}(X\x01\0\0\0aK\x01X\x01\0\0\0bK\x02X\x01\0\0\0aK\x03u.";
    let tree = pickled(dict, "x").unwrap();
    let root = tree.root();
    assert_eq!(root.get("a").unwrap().int().unwrap(), 3);
    let names: Vec<&str> = root
        .named()
        .unwrap()
        .into_iter()
        .map(|(name, _)| name)
        .collect();
    assert_eq!(names, ["a", "b"]);
    // 1, 1.0 and True are one key.
    let numbers = b"\x80\x02}(K\x01K\x05G?\xf0\0\0\0\0\0\0K\x06\x88K\x07K\x02K\x08u.";
    let tree = pickled(numbers, "x").unwrap();
    assert_eq!(tree.root().at(1).unwrap().int().unwrap(), 7);
    assert_eq!(tree.root().pairs().unwrap().len(), 2);
    let lab = tempfile::tempdir().unwrap();
    let path = lab.path().join("two.pt");
    let two = [("a/data.pkl", &b"\x80\x02K\x01."[..]), ("a/data.pkl", b"\x80\x02K\x02.")];
    fs::write(&path, archive(&two, |_| {})).unwrap();
    assert_eq!(TorchFile::open(&path).unwrap().root().int().unwrap(), 2);
}

/// A tensor of a storage of ten floats.
fn tensor(offset: &[u8], sizes: &[u8], strides: &[u8]) -> Vec<u8> {
    let storage = b"(U\x07storagectorch\nFloatStorage\nU\x010U\x03cpuK\x0atQ";
    let parts: [&[u8]; 7] = [
        b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n(",
        storage,
        offset,
        sizes,
        strides,
        b"\x89ccollections\nOrderedDict\n)RtR",
        b".",
    ];
    parts.concat()
}

#[test]
fn hostile_pickles_build_values_and_run_nothing() {
    let lab = tempfile::tempdir().unwrap();
    let canary = lab.path().join("canary");
    let run = format!("touch {}", canary.display());
    let len = (run.len() as u32).to_le_bytes();
    let shell = [&b"\x80\x02cos\nsystem\nX"[..], &len, run.as_bytes(), b"\x85R."].concat();
    let tree = pickled(&shell, "x").unwrap();
    assert_eq!(tree.root().object().unwrap().0, "os.system");
    let eval = pickled(b"\x80\x02cbuiltins\neval\nX\x03\0\0\x001+1\x85R.", "x").unwrap();
    let object = told(None, &eval.root());
    assert_eq!(object, json!({"object": "builtins.eval", "arguments": ["1+1"]}));
    // By protocol 4's names, by NEWOBJ, and as the state of an object (BUILD).
    let stack = pickled(b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x02id\x85R.", "x").unwrap();
    assert_eq!(stack.root().object().unwrap().0, "posix.system");
    let made = [&b"\x80\x02cos\nsystem\nX"[..], &len, run.as_bytes(), b"\x85\x81."].concat();
    assert_eq!(pickled(&made, "x").unwrap().root().object().unwrap().0, "os.system");
    let built = [&b"\x80\x02cos\nsystem\n)RX"[..], &len, run.as_bytes(), b"b."].concat();
    assert!(pickled(&built, "x").is_ok_and(|tree| tree.root().object().is_some()));
    assert!(!canary.exists(), "nothing was run");
}

#[test]
fn pickles_that_lie_are_refused_at_a_byte() {
    let deep = [&b"\x80\x02"[..], &b"]".repeat(600), &b"a".repeat(599), b"."].concat();
    let long = [&b"\x80\x02\x8a\xff"[..], &[1; 255], b"."].concat();
    // Tuples of tuples of one tuple: 2 to the 40th leaves, if they were copied.
    let bomb = [&b"\x80\x02)q\0"[..], &b"h\0h\0\x86q\0".repeat(40), b"."].concat();
    let repeated = b"h\0ctorch\nSize\nh\0\x85R0".repeat(40_000);
    let items = [&b"("[..], &b"N".repeat(60_000), b"tq\0"].concat();
    let copies = [&b"\x80\x02"[..], &items, &repeated, b"."].concat();
    let cases: Vec<(Vec<u8>, Option<&str>)> = vec![
        (b"\x80\x02]q\0h\0a.".to_vec(), Some("inside itself")),
        (b"\x80\x02}q\0K\x01h\0s.".to_vec(), Some("inside itself")),
        (deep, Some("nested deeper than 512")),
        (long, None),
        (bomb, None),
        (copies, Some("hold more than")),
        (b"\x80\x02(".to_vec(), Some("cut short")),
        (b"\x80\x02.".to_vec(), Some("empty stack")),
        (b"\x80\x02t.".to_vec(), Some("no mark")),
        (b"\x80\x02N(0.".to_vec(), Some("under a mark")),
        (b"\x80\x02N(\x85.".to_vec(), Some("a tuple lacks values")),
        (b"\x80\x02(NNNd.".to_vec(), Some("a key has no value")),
        (b"\x80\x02h\x07.".to_vec(), Some("no number 7")),
        (b"\x80\x02Nr\xff\xff\xff\xff.".to_vec(), Some("number 4294967295")),
        (b"\x80\x02X\xff\xff\xff\xffabc.".to_vec(), Some("cut short")),
        (b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\xffabc.".to_vec(), Some("cut short")),
        (b"\x80\x02X\x01\0\0\0\xff.".to_vec(), Some("not UTF-8")),
        (b"\x80\x07N.".to_vec(), Some("protocol 7")),
        (b"\x80\x02i.".to_vec(), Some("opcode 0x69")),
        (b"\x80\x02NQ.".to_vec(), Some("persistent id")),
        // Registered extensions, out-of-band buffers, instances by name, Python 2's strings of any length.
        (b"\x80\x02\x82\x01.".to_vec(), Some("opcode 0x82")),
        (b"\x80\x05\x97.".to_vec(), Some("opcode 0x97")),
        (b"\x80\x02(ios\nsystem\n.".to_vec(), Some("opcode 0x69")),
        (b"\x80\x02T\xff\xff\xff\x7fabc.".to_vec(), Some("byte ")),
        (b"".to_vec(), Some("cut short")),
        (tensor(b"K\0", b"K\x0a\x85", b"K\x01\x85"), None),
        (tensor(b"K\x01", b"K\x0a\x85", b"K\x01\x85"), Some("beyond its storage")),
        (tensor(b"K\0", b"K\x0b\x85", b"K\x01\x85"), Some("beyond its storage")),
        (tensor(b"K\0", b"K\x02\x85", b"K\x0a\x85"), Some("beyond its storage")),
        (tensor(b"J\xff\xff\xff\xff", b"K\x02\x85", b"K\x01\x85"), Some("negative")),
        (tensor(b"K\0", b"J\xff\xff\xff\xff\x85", b"K\x01\x85"), Some("negative")),
        (tensor(b"K\0", b"K\x02\x85", b"J\xff\xff\xff\xff\x85"), Some("negative")),
        (tensor(b"K\0", b"K\x02\x85", b")"), Some("1 sizes, 0 strides")),
        (
            tensor(b"K\0", b"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7fK\x02\x86", b"K\0K\0\x86"),
            Some("more than 2³² elements"),
        ),
        (
            tensor(b"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f", b"K\x02\x85", b"K\x01\x85"),
            Some("beyond its storage"),
        ),
        (
            tensor(b"K\0", b"K\x02\x85", b"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f\x85"),
            Some("beyond its storage"),
        ),
        (
            tensor(
                b"K\x01",
                b"K\x02K\x03\x86",
                b"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7fK\x05\x86",
            ),
            Some("beyond its storage"),
        ),
    ];
    for (i, (bytes, expected)) in cases.into_iter().enumerate() {
        match (pickled(&bytes, "FILE"), expected) {
            (Ok(_), None) => {}
            (Ok(_), Some(expected)) => panic!("{i} should say {expected}"),
            (Err(error), Some(expected)) => {
                let said = format!("{error:#}");
                assert!(said.contains(expected) && said.contains("FILE, byte "), "{i}: {said}");
            }
            (Err(error), None) => panic!("{i}: {error:#}"),
        }
    }
}

/// A tensor that spreads one element over four billion: described, and not read.
#[test]
fn a_tensor_larger_than_its_storage_is_not_read() {
    let lab = tempfile::tempdir().unwrap();
    let pickle = tensor(b"K\0", b"J\0\0\0\x40\x85", b"K\0\x85");
    let bytes = archive(&[("a/data.pkl", &pickle), ("a/data/0", &[0; 40])], |_| {});
    let path = lab.path().join("spread.pt");
    fs::write(&path, bytes).unwrap();
    let file = TorchFile::open(&path).unwrap();
    let tensor = file.root().tensor().unwrap().clone();
    let said = file
        .floats(&tensor, 0..tensor.numel())
        .unwrap_err()
        .to_string();
    assert!(said.contains("a view of 1 elements for 1073741824"), "{said}");
}

/// A storage that claims more elements than the file has is named, and nothing is allocated for it.
#[test]
fn a_storage_that_claims_more_than_its_entry_is_not_read() {
    let lab = tempfile::tempdir().unwrap();
    let claim = |len: &[u8]| {
        let storage = [b"(U\x07storagectorch\nFloatStorage\nU\x010U\x03cpu", len, b"tQ"].concat();
        let pickle = [
            &b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n("[..],
            &storage,
            b"K\0K\x02\x85K\x01\x85\x89ccollections\nOrderedDict\n)RtR.",
        ];
        archive(&[("a/data.pkl", &pickle.concat()), ("a/data/0", &[0; 40])], |_| {})
    };
    for len in [&b"K\x0b"[..], b"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f"] {
        let path = lab.path().join("claims.pt");
        fs::write(&path, claim(len)).unwrap();
        let file = TorchFile::open(&path).unwrap();
        let tensor = file.root().tensor().unwrap().clone();
        let said = file.floats(&tensor, 0..2).unwrap_err().to_string();
        assert!(said.contains("has 40 bytes, its tensors need"), "{said}");
    }
}

#[test]
fn ten_thousand_mutations_neither_panic_nor_take_long() {
    let lab = tempfile::tempdir().unwrap();
    let path = lab.path().join("mutated.pt");
    let begun = processor_seconds();
    let mut read = 0;
    for (name, count) in [("values.pt", 2000), ("unchecked.pt", 5000)] {
        let whole = fs::read(fixture(name)).unwrap();
        for case in 0..count {
            let mut bytes = whole.clone();
            mutate(&mut bytes, rng::key(case, name));
            fs::write(&path, &bytes).unwrap();
            if let Ok(file) = TorchFile::open(&path) {
                told(Some(&file), &file.root());
                read += 1;
            }
        }
    }
    let begin = fs::read(fixture("unchecked.pt")).unwrap();
    let from = begin.windows(3).position(|w| w == b"\x80\x02}").unwrap();
    for case in 0..3000 {
        let mut bytes = begin[from..from + 3000].to_vec();
        mutate(&mut bytes, rng::key(case, "pickle"));
        if let Ok(tree) = pickled(&bytes, "x") {
            told(None, &tree.root());
            read += 1;
        }
    }
    assert!(read > 500, "{read} were still readable: the mutations reach the values");
    let took = processor_seconds() - begun;
    assert!(took < 120.0, "{took:.1} s of this thread");
}

/// Processor time of this thread, which other programs do not lengthen as they do a wait.
fn processor_seconds() -> f64 {
    let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    let nanoseconds = text.split_whitespace().next().unwrap();
    nanoseconds.parse::<f64>().unwrap() / 1e9
}

/// Changes up to four places: a byte, a bit, a piece removed, repeated or filled.
fn mutate(bytes: &mut Vec<u8>, key: u64) {
    let draw = |i: u64, below: usize| rng::below(key, i, below as u64) as usize;
    for change in 0..1 + draw(0, 4) as u64 {
        let (at, len) = (draw(10 * change + 1, bytes.len()), 1 + draw(10 * change + 2, 9));
        let end = (at + len).min(bytes.len());
        match draw(10 * change + 3, 6) {
            0 => bytes[at] = draw(10 * change + 4, 256) as u8,
            1 => bytes[at] ^= 1 << draw(10 * change + 4, 8),
            2 => drop(bytes.drain(at..end)),
            3 => bytes.extend_from_within(at..end),
            4 => bytes[at..end].fill(0xff),
            _ => bytes[at..end].fill(0),
        }
    }
}
