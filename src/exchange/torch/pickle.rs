//! The opcodes of pickles that `torch.save` (protocol 2) and distributed checkpoints (4 and 5)
//! write: a stack machine that builds values and calls nothing.

use super::IS_WHOLE;
use super::rebuild;
use super::tree::{Id, Node, Step, Tree};
use base::Problems;
use std::collections::HashMap;

/// Maximum bytes of a pickle.
pub const MAX_BYTES: u64 = 256 << 20;
/// Maximum opcodes, values, and numbers in the memo.
const MAX_OPCODES: usize = 1 << 26;
const MAX_NODES: usize = 1 << 24;
/// Maximum bytes of all text and maximum children of all values, which a memo can repeat.
const MAX_HELD: usize = 1 << 28;
const MAX_MEMO: u64 = 1 << 24;
/// Maximum depth of the tree.
const MAX_DEPTH: u32 = 512;

/// Builds the tree of a pickle; an error names the byte.
pub fn parse(bytes: &[u8], place: &str) -> anyhow::Result<Tree> {
    let mut machine = Machine {
        bytes,
        at: 0,
        tree: Tree { place: place.to_string(), nodes: Vec::new(), root: 0 },
        stack: Vec::new(),
        marks: Vec::new(),
        memo: HashMap::new(),
        held: 0,
    };
    let run = machine.run();
    let checked = run.and_then(|root| machine.tree.check(root).map(|()| root));
    match checked {
        Ok(root) => {
            machine.tree.unify_keys();
            Ok(Tree { root, ..machine.tree })
        }
        Err(what) => {
            let place = format!("{place}, byte {}", machine.at);
            Err(Problems::one(place, what, IS_WHOLE).into())
        }
    }
}

struct Machine<'b> {
    bytes: &'b [u8],
    at: usize,
    tree: Tree,
    stack: Vec<Id>,
    /// Lengths of the stack at the open marks.
    marks: Vec<usize>,
    memo: HashMap<u32, Id>,
    /// Bytes of text and children so far.
    held: usize,
}

impl<'b> Machine<'b> {
    fn run(&mut self) -> Step<Id> {
        for _ in 0..MAX_OPCODES {
            let opcode = self.byte()?;
            if opcode == b'.' {
                return self.pop();
            }
            self.step(opcode)?;
        }
        Err(format!("has more than {MAX_OPCODES} opcodes"))
    }

    fn step(&mut self, opcode: u8) -> Step {
        match opcode {
            0x80 => match self.byte()? {
                2..=5 => Ok(()),
                other => Err(format!("is of pickle protocol {other}: 2 to 5 are read")),
            },
            0x95 => self.take(8).map(|_| ()), // FRAME
            b'(' => {
                self.marks.push(self.stack.len());
                Ok(())
            }
            b'0' => self.pop().map(|_| ()),
            b'1' => self.marked().map(|_| ()),
            b'q' | b'r' | 0x94 | b'h' | b'j' => self.remember(opcode),
            b'e' | b'a' | b'u' | b's' | 0x90 => self.fill(opcode),
            b'b' | b'c' | 0x93 | b'R' | 0x81 | b'Q' => self.object(opcode),
            b't' | b'l' | b'd' | 0x85..=0x87 | b')' | b']' | b'}' | 0x8f | 0x91 => {
                self.collection(opcode)
            }
            _ => self.literal(opcode),
        }
    }

    /// None, booleans, numbers, text and bytes.
    fn literal(&mut self, opcode: u8) -> Step {
        let node = match opcode {
            b'N' => Node::None,
            0x88 => Node::Bool(true),
            0x89 => Node::Bool(false),
            b'J' => Node::Int(i64::from(i32::from_le_bytes(self.array()?))),
            b'K' => Node::Int(i64::from(self.byte()?)),
            b'M' => Node::Int(i64::from(u16::from_le_bytes(self.array()?))),
            0x8a => self.long()?,
            b'G' => Node::Float(f64::from_be_bytes(self.array()?)),
            b'X' => self.text(4)?,
            0x8c => self.text(1)?,
            0x8d => self.text(8)?,
            b'T' => self.old_text(4)?,
            b'U' => self.old_text(1)?,
            b'B' => self.raw(4)?,
            b'C' => self.raw(1)?,
            0x8e => self.raw(8)?,
            other => return Err(format!("opcode 0x{other:02x} is not one of a checkpoint")),
        };
        self.push(node)
    }

    fn collection(&mut self, opcode: u8) -> Step {
        let node = match opcode {
            b'}' => Node::Dict(Vec::new()),
            b']' => Node::List(Vec::new()),
            b')' => Node::Tuple(Vec::new()),
            0x8f => Node::Set(Vec::new()),
            b't' => Node::Tuple(self.marked()?),
            b'l' => Node::List(self.marked()?),
            0x91 => Node::Set(self.marked()?),
            b'd' => Node::Dict(pairs(&self.marked()?)?),
            short => {
                let from = self.stack.len().checked_sub(usize::from(short - 0x84));
                let from = from.filter(|from| self.marks.last().is_none_or(|mark| mark <= from));
                Node::Tuple(self.stack.split_off(from.ok_or("a tuple lacks values")?))
            }
        };
        self.push(node)
    }

    /// Puts items into the list, the dict or the set under them.
    fn fill(&mut self, opcode: u8) -> Step {
        let items = match opcode {
            b'a' => vec![self.pop()?],
            b's' => {
                let value = self.pop()?;
                vec![self.pop()?, value]
            }
            _ => self.marked()?,
        };
        let under = self.top()?;
        match (opcode, &mut self.tree.nodes[under as usize]) {
            (b'a' | b'e', Node::List(list)) => list.extend(items),
            (0x90, Node::Set(set)) => set.extend(items),
            (b's' | b'u', Node::Dict(dict)) => dict.extend(pairs(&items)?),
            // Object of an unknown class, such as a subclass of dict: its items are dropped.
            (_, Node::Object { .. }) => {}
            (_, other) => return Err(format!("items are put into {}", rebuild::kind(other))),
        }
        Ok(())
    }

    fn object(&mut self, opcode: u8) -> Step {
        match opcode {
            b'c' => {
                let module = self.line()?;
                let name = self.line()?;
                self.push(Node::Global(format!("{module}.{name}").into()))
            }
            0x93 => {
                let name = self.pop()?;
                let module = self.pop()?;
                let text = |id: Id| match &self.tree.nodes[id as usize] {
                    Node::Str(text) if text.len() <= 512 => Ok(text.to_string()),
                    _ => Err("a name is not text".to_string()),
                };
                let name = format!("{}.{}", text(module)?, text(name)?);
                self.push(Node::Global(name.into()))
            }
            b'R' | 0x81 => {
                let args = self.pop()?;
                let class = self.pop()?;
                let node = rebuild::call(&self.tree, class, args)?;
                self.push(node)
            }
            b'Q' => {
                let id = self.pop()?;
                let node = rebuild::storage(&self.tree, id)?;
                self.push(node)
            }
            _ => {
                let value = self.pop()?;
                let under = self.top()?;
                if let Node::Object { state, .. } = &mut self.tree.nodes[under as usize] {
                    *state = Some(value);
                }
                Ok(()) // attributes of a dict or a tensor are not used
            }
        }
    }

    fn remember(&mut self, opcode: u8) -> Step {
        let number = match opcode {
            b'q' | b'h' => u32::from(self.byte()?),
            b'r' | b'j' => u32::from_le_bytes(self.array()?),
            _ => u32::try_from(self.memo.len()).map_err(|_| "the memo is full")?,
        };
        if u64::from(number) >= MAX_MEMO {
            return Err(format!("has number {number} in its memo, more than {MAX_MEMO}"));
        }
        if let b'h' | b'j' = opcode {
            let value = self
                .memo
                .get(&number)
                .ok_or(format!("has no number {number} in its memo"))?;
            self.stack.push(*value);
            return Ok(());
        }
        let value = self.top()?;
        self.memo.insert(number, value);
        Ok(())
    }

    fn push(&mut self, node: Node) -> Step {
        let id = self.tree.nodes.len();
        if id >= MAX_NODES {
            return Err(format!("has more than {MAX_NODES} values"));
        }
        self.held += held(&node);
        if self.held > MAX_HELD {
            return Err(format!("its values hold more than {MAX_HELD} bytes or children"));
        }
        self.tree.nodes.push(node);
        self.stack.push(id as Id);
        Ok(())
    }

    fn pop(&mut self) -> Step<Id> {
        if self
            .marks
            .last()
            .is_some_and(|mark| *mark >= self.stack.len())
        {
            return Err("takes a value from under a mark".to_string());
        }
        self.stack
            .pop()
            .ok_or_else(|| "takes a value from an empty stack".to_string())
    }

    fn top(&mut self) -> Step<Id> {
        let top = self.pop()?;
        self.stack.push(top);
        Ok(top)
    }

    /// The values above the last mark.
    fn marked(&mut self) -> Step<Vec<Id>> {
        let mark = self.marks.pop().filter(|mark| *mark <= self.stack.len());
        Ok(self.stack.split_off(mark.ok_or("has no mark")?))
    }

    fn take(&mut self, len: u64) -> Step<&'b [u8]> {
        let rest = &self.bytes[self.at..];
        let len = usize::try_from(len)
            .ok()
            .filter(|len| *len <= rest.len())
            .ok_or("is cut short")?;
        self.at += len;
        Ok(&rest[..len])
    }

    fn byte(&mut self) -> Step<u8> {
        Ok(self.take(1)?[0])
    }

    fn array<const N: usize>(&mut self) -> Step<[u8; N]> {
        Ok(self
            .take(N as u64)?
            .try_into()
            .expect("as many bytes as were asked for"))
    }

    /// A length in `bytes` bytes.
    fn len(&mut self, bytes: u64) -> Step<u64> {
        let mut word = [0; 8];
        let read = self.take(bytes)?;
        word[..read.len()].copy_from_slice(read);
        Ok(u64::from_le_bytes(word))
    }

    fn text(&mut self, bytes: u64) -> Step<Node> {
        let len = self.len(bytes)?;
        let text = std::str::from_utf8(self.take(len)?).map_err(|_| "text is not UTF-8")?;
        Ok(Node::Str(text.into()))
    }

    /// Text of Python 2, which may be bytes.
    fn old_text(&mut self, bytes: u64) -> Step<Node> {
        let Node::Bytes(raw) = self.raw(bytes)? else { unreachable!("raw gives bytes") };
        Ok(match std::str::from_utf8(&raw) {
            Ok(text) => Node::Str(text.into()),
            Err(_) => Node::Bytes(raw),
        })
    }

    fn raw(&mut self, bytes: u64) -> Step<Node> {
        let len = self.len(bytes)?;
        Ok(Node::Bytes(self.take(len)?.into()))
    }

    /// A whole number of any length; one that does not fit 64 bits is its bytes.
    fn long(&mut self) -> Step<Node> {
        let len = u64::from(self.byte()?);
        let raw = self.take(len)?;
        if raw.len() > 8 {
            return Ok(Node::Bytes(raw.into()));
        }
        let fill = if raw.last().is_some_and(|last| last & 0x80 != 0) { 0xff } else { 0 };
        let mut word = [fill; 8];
        word[..raw.len()].copy_from_slice(raw);
        Ok(Node::Int(i64::from_le_bytes(word)))
    }

    fn line(&mut self) -> Step<String> {
        let rest = &self.bytes[self.at..];
        let end = rest
            .iter()
            .take(512)
            .position(|byte| *byte == b'\n')
            .ok_or("a name has no end")?;
        let line = std::str::from_utf8(&rest[..end]).map_err(|_| "a name is not UTF-8")?;
        self.at += end + 1;
        Ok(line.to_string())
    }
}

/// Keys and values in turn.
fn pairs(items: &[Id]) -> Step<Vec<(Id, Id)>> {
    match items.as_chunks::<2>() {
        (pairs, []) => Ok(pairs.iter().map(|[key, value]| (*key, *value)).collect()),
        _ => Err("a key has no value".to_string()),
    }
}

impl Tree {
    /// Whether it is a finite tree: no value contains itself, and none is too deep.
    fn check(&self, root: Id) -> Step {
        const OPEN: u32 = u32::MAX;
        let mut heights = vec![0u32; self.nodes.len()];
        let mut path = vec![(root, children(&self.nodes[root as usize]), 0usize)];
        heights[root as usize] = OPEN;
        while let Some((id, below, next)) = path.last_mut() {
            let Some(child) = below.get(*next).copied() else {
                let height = below
                    .iter()
                    .map(|child| heights[*child as usize])
                    .max()
                    .unwrap_or(0);
                heights[*id as usize] = height + 1;
                if height >= MAX_DEPTH {
                    return Err(format!("is nested deeper than {MAX_DEPTH}"));
                }
                path.pop();
                continue;
            };
            *next += 1;
            match heights[child as usize] {
                OPEN => return Err("a value is inside itself".to_string()),
                0 if path.len() > MAX_DEPTH as usize => {
                    return Err(format!("is nested deeper than {MAX_DEPTH}"));
                }
                0 => {
                    heights[child as usize] = OPEN;
                    path.push((child, children(&self.nodes[child as usize]), 0));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Bytes of text or children of a value as it is made.
fn held(node: &Node) -> usize {
    match node {
        Node::Str(text) | Node::Global(text) => text.len(),
        Node::Bytes(bytes) => bytes.len(),
        Node::List(items) | Node::Tuple(items) | Node::Set(items) => items.len(),
        Node::Dict(entries) => 2 * entries.len(),
        Node::Storage { key, .. } => key.len(),
        _ => 0,
    }
}

fn children(node: &Node) -> Vec<Id> {
    match node {
        Node::List(items) | Node::Tuple(items) | Node::Set(items) => items.clone(),
        Node::Dict(entries) => entries
            .iter()
            .flat_map(|(key, value)| [*key, *value])
            .collect(),
        Node::Object { class, args, state } => [Some(*class), Some(*args), *state]
            .into_iter()
            .flatten()
            .collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tree::Value;
    use super::*;

    /// A value with all that it holds.
    fn show(value: &Value) -> String {
        let list = |values: Vec<Value>| values.iter().map(show).collect::<Vec<_>>().join(" ");
        match value.node() {
            Node::List(_) => format!("[{}]", list(value.items().unwrap())),
            Node::Tuple(_) => format!("({})", list(value.items().unwrap())),
            Node::Set(_) => format!("<{}>", list(value.items().unwrap())),
            Node::Dict(_) => {
                let pairs = value.pairs().unwrap();
                let pairs = pairs
                    .iter()
                    .map(|(key, value)| format!("{}={}", show(key), show(value)));
                format!("{{{}}}", pairs.collect::<Vec<_>>().join(" "))
            }
            Node::Bytes(bytes) => format!("{bytes:?}"),
            _ => value.to_string(),
        }
    }

    /// What a pickle without protocol and end holds, or the error's first line.
    fn read(body: &[u8]) -> String {
        match parse(&[b"\x80\x02", body, b"."].concat(), "FILE") {
            Ok(tree) => show(&tree.root()),
            Err(error) => error
                .to_string()
                .lines()
                .next()
                .unwrap_or_default()
                .to_string(),
        }
    }

    /// `tests/fixtures/torch/small.py` wrote them with Python.
    #[test]
    fn each_protocol_of_python_gives_the_same_values() {
        let files: [&[u8]; 4] = [
            include_bytes!("../../../tests/fixtures/torch/small/protocol2.pkl"),
            include_bytes!("../../../tests/fixtures/torch/small/protocol3.pkl"),
            include_bytes!("../../../tests/fixtures/torch/small/protocol4.pkl"),
            include_bytes!("../../../tests/fixtures/torch/small/protocol5.pkl"),
        ];
        for (number, bytes) in files.into_iter().enumerate() {
            assert_eq!(bytes[1] as usize, number + 2, "its protocol");
            let tree = parse(bytes, "FILE").unwrap();
            let root = tree.root();
            let shown = show(&root);
            let begin = "{\"none\"=None \"yes\"=true \"no\"=false \
                \"ints\"=[0 255 256 65536 -1 2147483648 -9223372036854775808 \
                [0, 0, 0, 0, 0, 0, 0, 128, 0]] \"float\"=0.5 \"text\"=\"∑\" \"bytes\"=[0, 255] \
                \"tuples\"=(() (1) (1 2) (1 2 3) (1 2 3 4)) \"set\"=<5> \"shared\"=[[\"a\"] [\"a\"]] \
                3={\"deep\"={\"deeper\"=[]}} \"long\"=";
            assert!(shown.starts_with(begin), "{shown}");
            assert_eq!(root.need("long").unwrap().str().unwrap(), "x".repeat(300));
        }
    }

    #[test]
    fn an_opcode_builds_its_value() {
        let cases: &[(&[u8], &str)] = &[
            (b"N", "None"),
            (b"\x88", "true"),
            (b"K\xff", "255"),
            (b"M\xff\x01", "511"),
            (b"J\xfe\xff\xff\xff", "-2"),
            (b"\x8a\x00", "0"),
            (b"\x8a\x02\x00\xff", "-256"),
            (b"\x8a\x09\x01\0\0\0\0\0\0\0\x01", "[1, 0, 0, 0, 0, 0, 0, 0, 1]"),
            (b"G\x3f\xe0\0\0\0\0\0\0", "0.5"),
            (b"X\x02\0\0\0\xc3\xa9", "\"é\""),
            (b"\x8c\x01a", "\"a\""),
            (b"\x8d\x01\0\0\0\0\0\0\0a", "\"a\""),
            // Text of Python 2, and its bytes.
            (b"U\x01a", "\"a\""),
            (b"T\x01\0\0\0\xff", "[255]"),
            (b"C\x02ab", "[97, 98]"),
            (b"B\x01\0\0\0a", "[97]"),
            (b"\x8e\x01\0\0\0\0\0\0\0a", "[97]"),
            (b"]K\x01a(K\x02K\x03e", "[1 2 3]"),
            (b"(K\x01K\x02l", "[1 2]"),
            (b"}K\x01K\x02s(K\x03K\x04K\x05K\x06u", "{1=2 3=4 5=6}"),
            (b"(K\x01K\x02d", "{1=2}"),
            (b"(K\x01K\x02t", "(1 2)"),
            (b"K\x01K\x02K\x03\x87", "(1 2 3)"),
            (b")\x85", "(())"),
            (b"\x8f(K\x01K\x02\x90", "<1 2>"),
            (b"(K\x01\x91", "<1>"),
            (b"K\x01K\x020", "1"),
            (b"K\x01(K\x02K\x031", "1"),
            // The memo: by number, and by turn.
            (b"]q\x05K\x01ah\x05\x86", "([1] [1])"),
            (b"K\x07q\x05h\x05\x86", "(7 7)"),
            (b"K\x07r\x05\x01\0\0j\x05\x01\0\0\x86", "(7 7)"),
            (b"K\x07\x94h\x00\x86", "(7 7)"),
            // Names are text; what they call is an object, or one of the table's values.
            (b"cos\nsystem\n", "os.system"),
            (b"\x8c\x02os\x8c\x06system\x93", "os.system"),
            (b"cos\nsystem\nK\x01\x85R", "os.system"),
            (b"ctorch\nSize\n(K\x02K\x03t\x85R", "(2 3)"),
            (b"ccollections\nOrderedDict\n)R(K\x01K\x02u", "{1=2}"),
            (b"c_codecs\nencode\nX\x01\0\0\0aX\x06\0\0\0latin1\x86R", "[97]"),
        ];
        for (body, expected) in cases {
            let shown = read(body);
            assert!(shown.ends_with(expected), "{}: {shown}", body.escape_ascii());
        }
    }

    #[test]
    fn an_error_names_the_byte() {
        assert!(read(b"K\x01i").starts_with("FILE, byte 5: opcode 0x69"), "{}", read(b"K\x01i"));
        let deep = [&b"]".repeat(513)[..], &b"a".repeat(512)].concat();
        assert!(read(&deep).contains("nested deeper than 512"));
        let fits = [&b"]".repeat(512)[..], &b"a".repeat(511)].concat();
        assert!(read(&fits).starts_with("[["));
    }
}
