//! Table of the names in pickles that have a value. Any other name that a pickle calls becomes an inert
//! object: its name and its arguments.

use super::tensor::{Element, MAX_DIMENSIONS, Tensor};
use super::tree::{Id, Node, Step, Tree};

/// Function of a name, from its arguments to a value.
pub fn call(tree: &Tree, class: Id, args: Id) -> Step<Node> {
    let node = |id: Id| &tree.nodes[id as usize];
    let object = || Ok(Node::Object { class, args, state: None });
    let (Node::Global(name), Node::Tuple(list)) = (node(class), node(args)) else {
        return object();
    };
    let list = list.as_slice();
    match (&**name, list) {
        ("torch._utils._rebuild_tensor" | "torch._utils._rebuild_tensor_v2", _) => {
            tensor(tree, list, None)
        }
        ("torch._utils._rebuild_tensor_v3", [_, _, _, _, _, _, dtype, ..]) => {
            let Node::Global(dtype) = node(*dtype) else {
                return Err("the type of a tensor is not a name".to_string());
            };
            tensor(tree, list, Some(Element::from_dtype(dtype)))
        }
        (
            "torch._utils._rebuild_parameter" | "torch._utils._rebuild_parameter_with_state",
            [of, ..],
        ) => match node(*of) {
            Node::Tensor(tensor) => Ok(Node::Tensor(tensor.clone())),
            other => Err(format!("a parameter is {}, not a tensor", kind(other))),
        },
        ("torch.Size" | "builtins.tuple" | "__builtin__.tuple", [of]) => match node(*of) {
            Node::Tuple(items) | Node::List(items) => Ok(Node::Tuple(items.clone())),
            _ => object(),
        },
        ("collections.OrderedDict" | "collections.defaultdict", _) => dict(tree, list),
        ("builtins.set" | "__builtin__.set" | "builtins.frozenset", [of]) => match node(*of) {
            Node::List(items) | Node::Tuple(items) => Ok(Node::Set(items.clone())),
            _ => object(),
        },
        ("_codecs.encode", [text, ..]) => match node(*text) {
            Node::Str(text) => {
                let bytes = text
                    .chars()
                    .map(|c| u8::try_from(u32::from(c)))
                    .collect::<Result<_, _>>();
                bytes
                    .map(Node::Bytes)
                    .map_err(|_| "bytes are beyond latin-1".to_string())
            }
            _ => object(),
        },
        ("numpy.core.multiarray.scalar" | "numpy._core.multiarray.scalar", [dtype, bytes]) => {
            number(tree, *dtype, *bytes).map_or_else(object, Ok)
        }
        _ => object(),
    }
}

/// Storage of a persistent id, the tuple ('storage', class, key, device, elements).
pub fn storage(tree: &Tree, id: Id) -> Step<Node> {
    let node = |id: Id| &tree.nodes[id as usize];
    let wrong = || Err("a persistent id does not name a storage".to_string());
    let Node::Tuple(items) = node(id) else { return wrong() };
    let [kind, class, key, _, len, ..] = items.as_slice() else { return wrong() };
    match (node(*kind), node(*class), node(*key), node(*len)) {
        (Node::Str(kind), Node::Global(class), Node::Str(key), Node::Int(len))
            if **kind == *"storage" && key.len() <= 64 && *len >= 0 =>
        {
            let class = class.rsplit('.').next().unwrap_or_default();
            let element = Element::from_storage(class);
            Ok(Node::Storage { element, key: key.clone(), len: *len as u64 })
        }
        _ => wrong(),
    }
}

/// Tensor of the arguments (storage, offset, sizes, strides, …).
fn tensor(tree: &Tree, args: &[Id], dtype: Option<Element>) -> Step<Node> {
    let node = |id: Id| &tree.nodes[id as usize];
    let wrong = |what: &str| Err(format!("a tensor is not made of a storage: {what}"));
    let [storage, offset, shape, stride, ..] = args else { return wrong("too few arguments") };
    let Node::Storage { element, key, len } = node(*storage) else {
        return wrong(kind(node(*storage)));
    };
    let Node::Int(offset) = node(*offset) else { return wrong("its offset") };
    let numbers = |id: Id| match node(id) {
        Node::Tuple(items) | Node::List(items) if items.len() <= MAX_DIMENSIONS => items
            .iter()
            .map(|id| if let Node::Int(n) = node(*id) { Some(*n) } else { None })
            .collect::<Option<Vec<i64>>>(),
        _ => None,
    };
    let (Some(shape), Some(stride)) = (numbers(*shape), numbers(*stride)) else {
        return wrong("its sizes");
    };
    let (element, len) = match (element, dtype.and_then(|dtype| Some((dtype, dtype.size()?)))) {
        (Element::Untyped, Some((dtype, size))) => (dtype, len / size),
        (Element::Untyped, None) => (Element::Other, *len),
        (element, _) => (*element, *len),
    };
    let tensor = Tensor::new(element, (key.clone(), len), *offset, &shape, &stride)?;
    Ok(Node::Tensor(Box::new(tensor)))
}

/// An ordered dict: empty, or of a list of pairs.
fn dict(tree: &Tree, args: &[Id]) -> Step<Node> {
    let node = |id: Id| &tree.nodes[id as usize];
    let mut entries = Vec::new();
    let lists = args.iter().filter_map(|id| match node(*id) {
        Node::List(items) => Some(items),
        _ => None, // the factory of a defaultdict
    });
    for pair in lists.flatten() {
        match node(*pair) {
            Node::List(pair) | Node::Tuple(pair) if pair.len() == 2 => {
                entries.push((pair[0], pair[1]));
            }
            other => return Err(format!("an ordered dict is made of {}", kind(other))),
        }
    }
    Ok(Node::Dict(entries))
}

/// A number of numpy's, of 4 or 8 bytes; None of any other type.
fn number(tree: &Tree, dtype: Id, bytes: Id) -> Option<Node> {
    let node = |id: Id| &tree.nodes[id as usize];
    let Node::Object { args, .. } = node(dtype) else { return None };
    let (Node::Tuple(args), Node::Bytes(bytes)) = (node(*args), node(bytes)) else { return None };
    let Node::Str(code) = node(*args.first()?) else { return None };
    let wide = || <[u8; 8]>::try_from(&**bytes).ok();
    let narrow = || <[u8; 4]>::try_from(&**bytes).ok();
    Some(match code.trim_start_matches(['<', '=']) {
        "f8" => Node::Float(f64::from_le_bytes(wide()?)),
        "i8" => Node::Int(i64::from_le_bytes(wide()?)),
        "u8" => Node::Int(i64::try_from(u64::from_le_bytes(wide()?)).ok()?),
        "f4" => Node::Float(f64::from(f32::from_le_bytes(narrow()?))),
        "i4" => Node::Int(i64::from(i32::from_le_bytes(narrow()?))),
        "u4" => Node::Int(i64::from(u32::from_le_bytes(narrow()?))),
        _ => return None,
    })
}

/// The word for a node in a message.
pub fn kind(node: &Node) -> &'static str {
    match node {
        Node::None => "None",
        Node::Bool(_) => "a bool",
        Node::Int(_) | Node::Float(_) => "a number",
        Node::Str(_) => "text",
        Node::Bytes(_) => "bytes",
        Node::List(_) => "a list",
        Node::Tuple(_) => "a tuple",
        Node::Set(_) => "a set",
        Node::Dict(_) => "a dict",
        Node::Global(_) => "a name",
        Node::Object { .. } => "an object",
        Node::Storage { .. } => "a storage",
        Node::Tensor(_) => "a tensor",
    }
}
