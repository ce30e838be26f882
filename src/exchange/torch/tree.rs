//! Values of a pickle as a tree, with lookups of keys. Every value has its path for messages.

use super::IS_WHOLE;
use super::tensor::{Element, Tensor};
use base::Problems;
use serde_json::Value as Json;
use std::collections::HashMap;
use std::fmt;

/// Value, or the problem with the file.
pub(super) type Step<T = ()> = Result<T, String>;

/// A node's number.
pub(super) type Id = u32;

/// A value; children are named by their numbers.
#[derive(Debug)]
pub enum Node {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Str(Box<str>),
    Bytes(Box<[u8]>),
    List(Vec<Id>),
    Tuple(Vec<Id>),
    Set(Vec<Id>),
    /// In the order of the file; a key may be any value.
    Dict(Vec<(Id, Id)>),
    /// A name, such as `torch.float32`: never looked up.
    Global(Box<str>),
    /// Arguments and state of a call of an unsupported name.
    Object {
        class: Id,
        args: Id,
        state: Option<Id>,
    },
    /// The storage of tensors, and its number of elements.
    Storage {
        element: Element,
        key: Box<str>,
        len: u64,
    },
    Tensor(Box<Tensor>),
}

/// All values of a pickle.
#[derive(Debug)]
pub struct Tree {
    pub(super) place: String,
    pub(super) nodes: Vec<Node>,
    pub(super) root: Id,
}

/// A value in its tree.
#[derive(Clone)]
pub struct Value<'t> {
    tree: &'t Tree,
    id: Id,
    /// "args.lr", in messages.
    path: String,
}

impl Tree {
    pub fn root(&self) -> Value<'_> {
        Value { tree: self, id: self.root, path: String::new() }
    }

    /// Tree of JSON: arguments of a command line, as a checkpoint has them. `place` names their file.
    pub fn from_json(json: &Json, place: &str) -> Tree {
        let mut tree = Tree { place: place.to_string(), nodes: Vec::new(), root: 0 };
        tree.root = tree.push_json(json);
        tree
    }

    fn push_json(&mut self, json: &Json) -> Id {
        let node = match json {
            Json::Null => Node::None,
            Json::Bool(yes) => Node::Bool(*yes),
            Json::Number(number) => match number.as_i64() {
                Some(whole) => Node::Int(whole),
                None => Node::Float(number.as_f64().unwrap_or(f64::NAN)),
            },
            Json::String(text) => Node::Str(text.as_str().into()),
            Json::Array(items) => {
                Node::List(items.iter().map(|item| self.push_json(item)).collect())
            }
            Json::Object(entries) => {
                let mut pairs = Vec::new();
                for (key, value) in entries {
                    let key = self.push_json(&Json::from(key.as_str()));
                    pairs.push((key, self.push_json(value)));
                }
                Node::Dict(pairs)
            }
        };
        self.nodes.push(node);
        (self.nodes.len() - 1) as Id
    }

    fn node(&self, id: Id) -> &Node {
        &self.nodes[id as usize]
    }
}

impl<'t> Value<'t> {
    pub fn node(&self) -> &'t Node {
        self.tree.node(self.id)
    }

    /// The value of a key: of a dict, or of the state of an object (its attributes).
    pub fn get(&self, key: &str) -> Option<Value<'t>> {
        let found = self
            .entries()?
            .iter()
            .find(|(name, _)| self.tree.is_str(*name, key))?;
        Some(self.child(found.1, key))
    }

    /// The same; an error names the file and the key.
    pub fn need(&self, key: &str) -> anyhow::Result<Value<'t>> {
        self.get(key).ok_or_else(|| {
            let at = if self.path.is_empty() { "there" } else { &self.path };
            self.problem(format!("has no {key} in {at}"))
        })
    }

    /// The value of a key that is not None.
    pub fn some(&self, key: &str) -> Option<Value<'t>> {
        self.get(key)
            .filter(|value| !matches!(value.node(), Node::None))
    }

    /// Key and value of all entries whose key is text.
    pub fn named(&self) -> anyhow::Result<Vec<(&'t str, Value<'t>)>> {
        let entries = self.entries().ok_or_else(|| self.is_not("a dict"))?;
        let named = entries
            .iter()
            .filter_map(|(key, value)| match self.tree.node(*key) {
                Node::Str(name) => Some((&**name, self.child(*value, name))),
                _ => None,
            });
        Ok(named.collect())
    }

    /// Key and value of all entries.
    pub fn pairs(&self) -> anyhow::Result<Vec<(Value<'t>, Value<'t>)>> {
        let entries = self.entries().ok_or_else(|| self.is_not("a dict"))?;
        Ok(entries
            .iter()
            .map(|(key, value)| {
                let key = self.child(*key, "key");
                let name = key.to_string();
                (key, self.child(*value, &name))
            })
            .collect())
    }

    /// The entry of a whole number.
    pub fn at(&self, number: i64) -> Option<Value<'t>> {
        let is = |id: Id| matches!(self.tree.node(id), Node::Int(found) if *found == number);
        let found = self.entries()?.iter().find(|(key, _)| is(*key))?;
        Some(self.child(found.1, &number.to_string()))
    }

    /// The items of a list, a tuple or a set.
    pub fn items(&self) -> anyhow::Result<Vec<Value<'t>>> {
        let (Node::List(items) | Node::Tuple(items) | Node::Set(items)) = self.node() else {
            return Err(self.is_not("a list"));
        };
        Ok(items
            .iter()
            .enumerate()
            .map(|(i, id)| self.child(*id, &i.to_string()))
            .collect())
    }

    pub fn int(&self) -> anyhow::Result<i64> {
        match self.node() {
            Node::Int(number) => Ok(*number),
            Node::Float(number) if number.fract() == 0.0 && number.abs() < 9e15 => {
                Ok(*number as i64)
            }
            _ => Err(self.is_not("a whole number")),
        }
    }

    /// A whole number that is not negative.
    pub fn count(&self) -> anyhow::Result<u64> {
        u64::try_from(self.int()?).map_err(|_| self.is_not("a count"))
    }

    pub fn float(&self) -> anyhow::Result<f64> {
        match self.node() {
            Node::Int(number) => Ok(*number as f64),
            Node::Float(number) => Ok(*number),
            _ => Err(self.is_not("a number")),
        }
    }

    pub fn is_true(&self) -> bool {
        matches!(self.node(), Node::Bool(true))
    }

    pub fn str(&self) -> anyhow::Result<&'t str> {
        match self.node() {
            Node::Str(text) => Ok(text),
            _ => Err(self.is_not("text")),
        }
    }

    pub fn tensor(&self) -> anyhow::Result<&'t Tensor> {
        match self.node() {
            Node::Tensor(tensor) => Ok(tensor),
            _ => Err(self.is_not("a tensor")),
        }
    }

    /// Name of the class and arguments of an object; of a bare name, the name.
    pub fn object(&self) -> Option<(&'t str, Option<Value<'t>>)> {
        match self.node() {
            Node::Global(name) => Some((name, None)),
            Node::Object { class, args, .. } => match self.tree.node(*class) {
                Node::Global(name) => Some((name, Some(self.child(*args, "arguments")))),
                _ => None,
            },
            _ => None,
        }
    }

    /// An error about this value.
    pub fn problem(&self, what: String) -> anyhow::Error {
        Problems::one(self.tree.place.clone(), what, IS_WHOLE).into()
    }

    /// An error: the value is of another kind.
    fn is_not(&self, wanted: &str) -> anyhow::Error {
        let path = if self.path.is_empty() { "the outermost value" } else { &self.path };
        self.problem(format!("{path} is {self}, not {wanted}"))
    }

    fn entries(&self) -> Option<&'t [(Id, Id)]> {
        match self.node() {
            Node::Dict(entries) => Some(entries),
            Node::Object { state: Some(state), .. } => self.child(*state, "").entries(),
            _ => None,
        }
    }

    fn child(&self, id: Id, key: &str) -> Value<'t> {
        let path = if self.path.is_empty() { key.into() } else { format!("{}.{key}", self.path) };
        Value { tree: self.tree, id, path }
    }
}

/// Key of a dict. Two are equal if they are in Python; keys of other kinds are compared by number.
#[derive(PartialEq, Eq, Hash)]
enum DictKey<'t> {
    Text(&'t str),
    Int(i64),
    Float(u64),
    Other(Id),
}

impl Tree {
    /// Leaves each dict one value of a key, as Python has it: the last, in the place of the first.
    pub(super) fn unify_keys(&mut self) {
        for id in 0..self.nodes.len() {
            if let Some(entries) = self.unique_entries(id as Id) {
                self.nodes[id] = Node::Dict(entries);
            }
        }
    }

    /// Entries of a dict without those that others replace; None if all are needed.
    fn unique_entries(&self, id: Id) -> Option<Vec<(Id, Id)>> {
        let Node::Dict(entries) = self.node(id) else { return None };
        let mut unique: Vec<(Id, Id)> = Vec::new();
        let mut places = HashMap::new();
        for (key, value) in entries {
            let place = *places.entry(self.dict_key(*key)).or_insert(unique.len());
            match unique.get_mut(place) {
                Some(entry) => entry.1 = *value,
                None => unique.push((*key, *value)),
            }
        }
        (unique.len() < entries.len()).then_some(unique)
    }

    fn dict_key(&self, id: Id) -> DictKey<'_> {
        match self.node(id) {
            Node::Str(text) => DictKey::Text(text),
            Node::Int(number) => DictKey::Int(*number),
            Node::Bool(yes) => DictKey::Int(i64::from(*yes)),
            Node::Float(number) if number.fract() == 0.0 && number.abs() < 9e15 => {
                DictKey::Int(*number as i64)
            }
            Node::Float(number) => DictKey::Float(number.to_bits()),
            _ => DictKey::Other(id),
        }
    }

    fn is_str(&self, id: Id, text: &str) -> bool {
        matches!(self.node(id), Node::Str(found) if **found == *text)
    }
}

/// A short description.
impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.node() {
            Node::None => f.write_str("None"),
            Node::Bool(yes) => write!(f, "{yes}"),
            Node::Int(number) => write!(f, "{number}"),
            Node::Float(number) => write!(f, "{number:?}"),
            Node::Str(text) if text.chars().count() > 60 => {
                write!(f, "{:?}…", text.chars().take(60).collect::<String>())
            }
            Node::Str(text) => write!(f, "{text:?}"),
            Node::Bytes(bytes) => write!(f, "{} bytes", bytes.len()),
            Node::List(items) => write!(f, "a list of {}", items.len()),
            Node::Tuple(items) => write!(f, "a tuple of {}", items.len()),
            Node::Set(items) => write!(f, "a set of {}", items.len()),
            Node::Dict(entries) => write!(f, "a dict of {}", entries.len()),
            Node::Storage { .. } => f.write_str("a storage"),
            Node::Tensor(tensor) => write!(f, "a tensor {:?}", tensor.shape),
            Node::Global(_) | Node::Object { .. } => {
                let name: String = self
                    .object()
                    .map_or("?", |(name, _)| name)
                    .chars()
                    .take(80)
                    .collect();
                write!(f, "{}", name.escape_debug())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::pickled;

    /// {"a": {"b": [1, 2.0, 2.5, -1, "c"], 3: None}}
    const PICKLE: &[u8] = b"\x80\x02}X\x01\0\0\0a}X\x01\0\0\0b](K\x01G\x40\0\0\0\0\0\0\0\
        G\x40\x04\0\0\0\0\0\0J\xff\xff\xff\xffX\x01\0\0\0cesK\x03Nss.";

    #[test]
    fn values_are_found_by_their_keys_and_named_by_their_paths() {
        let tree = pickled(PICKLE, "FILE").unwrap();
        let a = tree.root().need("a").unwrap();
        assert!(a.at(3).is_some() && a.some("3").is_none() && tree.root().some("b").is_none());
        assert_eq!(a.named().unwrap().len(), 1, "keys that are text");
        let list = a.need("b").unwrap().items().unwrap();
        assert_eq!(list[0].int().unwrap(), 1);
        assert_eq!(list[1].int().unwrap(), 2);
        assert_eq!(list[2].float().unwrap(), 2.5);
        assert_eq!(list[4].str().unwrap(), "c");
        for (error, words) in [
            (a.need("d").err(), "FILE: has no d in a"),
            (list[2].int().err(), "a.b.2 is 2.5, not a whole number"),
            (list[3].count().err(), "a.b.3 is -1, not a count"),
            (list[4].float().err(), "a.b.4 is \"c\", not a number"),
            (tree.root().items().err(), "the outermost value is a dict of 1, not a list"),
        ] {
            let said = error.expect(words).to_string();
            assert!(said.contains(words), "{said}");
        }
    }
}
