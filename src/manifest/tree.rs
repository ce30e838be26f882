//! YAML as a tree in which every node has its line number, for messages. serde would stop at the
//! first mistake and drop the line numbers; the events of the parser keep them.

use base::Problems;
use serde_saphyr::granit_parser::{Event, Parser, ScalarStyle, ScanError, Span};
use std::collections::HashMap;

/// Size limit of a manifest, which usually has a few kilobytes.
pub const MAX_MANIFEST_BYTES: u64 = 4 << 20;
/// Maximum number of nodes after expanding aliases. Known alias bombs need millions.
const MAX_NODES: usize = 100_000;
const MAX_DEPTH: usize = 32;

/// Origin of a node.
#[derive(Clone, Debug, PartialEq)]
pub enum Location {
    /// The file as a whole.
    File,
    /// Line of the file, from 1.
    Line(usize),
    /// `--set` argument, up to its equals sign.
    Set(String),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    pub place: Location,
    pub value: Value,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Empty, `~` or `null`.
    Null,
    /// Text that the reader interprets; `quoted` text is never a number.
    Scalar {
        text: String,
        quoted: bool,
    },
    List(Vec<Node>),
    Map(Vec<Entry>),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    pub key: String,
    /// Has the location of the key, even if the value starts on a later line.
    pub node: Node,
}

impl Node {
    pub fn empty(place: Location) -> Node {
        Node { place, value: Value::Null }
    }

    /// Node at a dotted path below this one, if it exists. List items are numbers.
    pub fn at(&self, path: &str) -> Option<&Node> {
        path.split('.')
            .filter(|step| !step.is_empty())
            .try_fold(self, |node, step| node.child(step))
    }

    /// Deepest existing node on the path.
    pub fn nearest(&self, path: &str) -> &Node {
        let mut node = self;
        for step in path.split('.') {
            match node.child(step) {
                Some(child) => node = child,
                None => break,
            }
        }
        node
    }

    pub fn child(&self, step: &str) -> Option<&Node> {
        match &self.value {
            Value::Map(entries) => entries.iter().find(|e| e.key == step).map(|e| &e.node),
            Value::List(items) => items.get(step.parse::<usize>().ok()?),
            _ => None,
        }
    }

    fn count(&self) -> usize {
        1 + match &self.value {
            Value::Map(entries) => entries.iter().map(|e| e.node.count()).sum(),
            Value::List(items) => items.iter().map(Node::count).sum(),
            _ => 0,
        }
    }
}

/// Reads one YAML document. `name` is the file's name in messages. `set` marks every node as coming
/// from that `--set` instead of a line.
pub fn parse(text: &str, name: &str, set: Option<&str>) -> Result<Node, Problems> {
    let place = |line: usize| match set {
        Some(path) => Location::Set(path.to_string()),
        None => Location::Line(line),
    };
    if text.len() as u64 > MAX_MANIFEST_BYTES {
        return Err(too_large(name, text.len() as u64));
    }
    let mut reader = Reader {
        events: Parser::new_from_str(text.strip_prefix('\u{feff}').unwrap_or(text)),
        name,
        place: &place,
        anchors: HashMap::new(),
        nodes: 0,
        problems: Problems::default(),
    };
    let root = reader.document().map_err(|fatal| {
        let mut all = std::mem::take(&mut reader.problems);
        all.list.extend(fatal.list);
        all
    })?;
    reader.problems.or(root)
}

pub fn too_large(name: &str, bytes: u64) -> Problems {
    Problems::one(
        name,
        format!(
            "the file has {} MiB; a manifest has at most {} MiB",
            bytes >> 20,
            MAX_MANIFEST_BYTES >> 20
        ),
        "give the path of a manifest",
    )
}

/// For example `run.yaml:12`, or `--set model.layers`.
pub fn show(place: &Location, name: &str) -> String {
    match place {
        Location::File => name.to_string(),
        Location::Line(line) => format!("{name}:{line}"),
        Location::Set(path) => format!("--set {path}"),
    }
}

/// Node as YAML in one line.
pub fn flow(node: &Node) -> String {
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    match &node.value {
        Value::Null => "null".to_string(),
        Value::Scalar { text, quoted: false } if is_plain(text) => text.clone(),
        Value::Scalar { text, .. } => quoted(text),
        Value::List(items) => {
            format!("[{}]", items.iter().map(flow).collect::<Vec<_>>().join(", "))
        }
        Value::Map(entries) => {
            let key = |key: &str| if is_plain(key) { key.to_string() } else { quoted(key) };
            let entry = |entry: &Entry| format!("{}: {}", key(&entry.key), flow(&entry.node));
            format!("{{{}}}", entries.iter().map(entry).collect::<Vec<_>>().join(", "))
        }
    }
}

/// Whether a scalar needs no quotes: a number or a word.
fn is_plain(text: &str) -> bool {
    let is_null = text.eq_ignore_ascii_case("null");
    !is_null
        && text.starts_with(|c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '+' | '.'))
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '+' | '.'))
}

struct Reader<'a, P> {
    events: Parser<'a, serde_saphyr::granit_parser::StrInput<'a>>,
    name: &'a str,
    place: P,
    /// Completed nodes by anchor, with their size in nodes.
    anchors: HashMap<usize, (Node, usize)>,
    nodes: usize,
    problems: Problems,
}

impl<'a, P: Fn(usize) -> Location> Reader<'a, P> {
    fn document(&mut self) -> Result<Node, Problems> {
        let mut root = None;
        while let Some(event) = self.events.next() {
            let (event, span) = event.map_err(|error| self.broken(&error))?;
            match event {
                Event::StreamEnd => break,
                Event::DocumentStart(..) if root.is_some() => {
                    self.problem(
                        span,
                        "a second document begins (`---`)",
                        "keep one experiment per file",
                    );
                    break;
                }
                Event::StreamStart | Event::DocumentStart(..) | Event::DocumentEnd => {}
                event => root = Some(self.node(event, span, 0)?),
            }
        }
        let mut root = root.unwrap_or(Node::empty(Location::File));
        if matches!(root.place, Location::Line(_)) {
            root.place = Location::File;
        }
        Ok(root)
    }

    /// Reads the node that starts with `event`.
    fn node(&mut self, event: Event<'a>, span: Span, depth: usize) -> Result<Node, Problems> {
        self.count_nodes(1, span)?;
        if depth > MAX_DEPTH {
            return Err(self.fatal(
                span,
                format!("nested more than {MAX_DEPTH} levels deep"),
                "a manifest has at most 6 levels",
            ));
        }
        let place = (self.place)(span.start.line());
        let (value, anchor, tagged) = match event {
            Event::Alias(anchor) => return self.alias(anchor, span, place),
            Event::Scalar(text, style, anchor, tag) => {
                let quoted = style != ScalarStyle::Plain;
                let null = !quoted && matches!(&*text, "" | "~" | "null" | "Null" | "NULL");
                let scalar = Value::Scalar { text: text.into_owned(), quoted };
                (if null { Value::Null } else { scalar }, anchor, tag.is_some())
            }
            Event::SequenceStart(_, anchor, tag) => (self.list(depth)?, anchor, tag.is_some()),
            Event::MappingStart(_, anchor, tag) => (self.map(depth)?, anchor, tag.is_some()),
            other => unreachable!("the parser nests its events: {other:?}"),
        };
        if tagged {
            self.problem(span, "YAML tags (`!…`) are not used here", "remove the tag");
        }
        let node = Node { place, value };
        if anchor > 0 {
            let count = node.count();
            self.anchors.insert(anchor, (node.clone(), count));
        }
        Ok(node)
    }

    fn alias(&mut self, anchor: usize, span: Span, place: Location) -> Result<Node, Problems> {
        let Some((node, count)) = self.anchors.get(&anchor) else {
            return Err(self.fatal(
                span,
                "the alias refers to a value that contains it",
                "write it out",
            ));
        };
        let value = node.value.clone();
        let count = *count;
        self.count_nodes(count, span)?;
        Ok(Node { place, value })
    }

    fn list(&mut self, depth: usize) -> Result<Value, Problems> {
        let mut items = Vec::new();
        loop {
            match self.next()? {
                (Event::SequenceEnd, _) => return Ok(Value::List(items)),
                (event, span) => items.push(self.node(event, span, depth + 1)?),
            }
        }
    }

    fn map(&mut self, depth: usize) -> Result<Value, Problems> {
        let mut entries: Vec<Entry> = Vec::new();
        let mut seen: HashMap<String, Location> = HashMap::new();
        loop {
            let (event, key_span) = self.next()?;
            if event == Event::MappingEnd {
                return Ok(Value::Map(entries));
            }
            let key = self.node(event, key_span, depth + 1)?;
            let (event, span) = self.next()?;
            let mut node = self.node(event, span, depth + 1)?;
            node.place = key.place;
            let key = match key.value {
                Value::Scalar { text, .. } => text,
                _ => {
                    self.problem(key_span, "a key that is not a word", "keys are plain words");
                    continue;
                }
            };
            if key == "<<" {
                self.problem(key_span, "merge keys (`<<`) are not used here", "repeat the keys");
            } else if let Some(first) = seen.get(&key) {
                let first = show(first, self.name);
                self.problem(
                    key_span,
                    &format!("key `{key}` is given twice; the first is at {first}"),
                    "remove one of them",
                );
            } else {
                seen.insert(key.clone(), node.place.clone());
                entries.push(Entry { key, node });
            }
        }
    }

    fn next(&mut self) -> Result<(Event<'a>, Span), Problems> {
        match self.events.next() {
            Some(Ok(event)) => Ok(event),
            Some(Err(error)) => Err(self.broken(&error)),
            None => Err(Problems::one(self.name, "the file ends too early", "complete it")),
        }
    }

    /// Counts nodes about to be created.
    fn count_nodes(&mut self, nodes: usize, span: Span) -> Result<(), Problems> {
        self.nodes = self.nodes.saturating_add(nodes);
        if self.nodes <= MAX_NODES {
            return Ok(());
        }
        Err(self.fatal(
            span,
            format!("more than {MAX_NODES} values, counting what aliases (`*name`) repeat"),
            "write out what is meant",
        ))
    }

    fn problem(&mut self, span: Span, what: &str, remedy: &str) {
        self.problems
            .add(show(&(self.place)(span.start.line()), self.name), what, remedy);
    }

    fn fatal(&self, span: Span, what: impl Into<String>, remedy: &str) -> Problems {
        Problems::one(show(&(self.place)(span.start.line()), self.name), what, remedy)
    }

    fn broken(&self, error: &ScanError) -> Problems {
        let place = (self.place)(error.marker().line());
        let (column, remedy) = match place {
            Location::Set(_) => {
                (String::new(), "the value is YAML: quote it, as in --set 'a.b=[1, 2]'")
            }
            _ => {
                let column = format!(" (column {})", error.marker().col() + 1);
                (column, "check indentation, colons and quotes at and above this line")
            }
        };
        Problems::one(
            show(&place, self.name),
            format!("not YAML: {}{column}", error.info()),
            remedy,
        )
    }
}
