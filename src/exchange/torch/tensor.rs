//! Tensors of a file: shape, stride and type over a storage, and their values.

use super::IS_WHOLE;
use super::zip::Archive;
use base::Problems;
use half::{bf16, f16};
use std::ops::Range;

/// Maximum elements of a tensor, and maximum dimensions.
const MAX_ELEMENTS: u64 = 1 << 32;
pub(super) const MAX_DIMENSIONS: usize = 16;
/// Maximum ratio of the elements that a view skips to those it has.
const MAX_SPREAD: u64 = 64;
/// Elements that are read at a time.
const BLOCK: usize = 1 << 20;

/// The type of a storage's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    F64,
    F32,
    F16,
    BF16,
    I64,
    I32,
    I16,
    I8,
    U8,
    Bool,
    /// Bytes, whose type the tensor names (`UntypedStorage`).
    Untyped,
    /// A type that is not read: complex, quantised, 8-bit floats.
    Other,
}

/// Types that are read: the storage's class, the names in `torch`, and the bytes of an element.
#[rustfmt::skip]
const ELEMENTS: &[(Element, &str, &[&str], u64)] = &[
    (Element::F64,     "DoubleStorage",   &["float64", "double"], 8),
    (Element::F32,     "FloatStorage",    &["float32", "float"],  4),
    (Element::F16,     "HalfStorage",     &["float16", "half"],   2),
    (Element::BF16,    "BFloat16Storage", &["bfloat16"],          2),
    (Element::I64,     "LongStorage",     &["int64", "long"],     8),
    (Element::I32,     "IntStorage",      &["int32", "int"],      4),
    (Element::I16,     "ShortStorage",    &["int16", "short"],    2),
    (Element::I8,      "CharStorage",     &["int8"],              1),
    (Element::U8,      "ByteStorage",     &["uint8"],             1),
    (Element::Bool,    "BoolStorage",     &["bool"],              1),
    (Element::Untyped, "UntypedStorage",  &[],                    1),
];

impl Element {
    /// The type of a storage class such as `FloatStorage`.
    pub(super) fn from_storage(class: &str) -> Element {
        let row = ELEMENTS.iter().find(|(_, storage, ..)| *storage == class);
        row.map_or(Element::Other, |(element, ..)| *element)
    }

    /// The type of a name such as `torch.float32`.
    pub fn from_dtype(name: &str) -> Element {
        let name = name.strip_prefix("torch.").unwrap_or(name);
        let row = ELEMENTS
            .iter()
            .find(|(_, _, names, _)| names.contains(&name));
        row.map_or(Element::Other, |(element, ..)| *element)
    }

    /// Name of the storage class, and of the type in `torch`; None if it has none.
    pub(super) fn names(self) -> Option<(&'static str, &'static str)> {
        let (_, storage, names, _) = ELEMENTS.iter().find(|(element, ..)| *element == self)?;
        Some((storage, names.first()?))
    }

    /// Short name: `f32`, `bf16`; PyTorch's for others.
    pub fn short_name(self) -> &'static str {
        match self {
            Element::F64 => "f64",
            Element::F32 => "f32",
            Element::F16 => "f16",
            Element::BF16 => "bf16",
            other => other.names().map_or("bytes", |(_, name)| name),
        }
    }

    /// Bytes of an element; None if they are not known.
    pub fn size(self) -> Option<u64> {
        ELEMENTS
            .iter()
            .find(|(element, ..)| *element == self)
            .map(|(.., size)| *size)
    }
}

/// A view of a storage; strides and offset count elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    pub element: Element,
    pub shape: Vec<usize>,
    pub stride: Vec<usize>,
    /// The storage's entry is `data/KEY`.
    pub key: Box<str>,
    pub offset: u64,
    /// Elements of the storage.
    pub storage: u64,
}

impl Tensor {
    /// Fails unless every element is inside the storage.
    pub(super) fn new(
        element: Element,
        (key, storage): (Box<str>, u64),
        offset: i64,
        shape: &[i64],
        stride: &[i64],
    ) -> Result<Tensor, String> {
        let what = |what: &str| format!("a tensor of shape {shape:?} {what}");
        let sizes = |of: &[i64]| {
            of.iter()
                .map(|n| usize::try_from(*n).ok())
                .collect::<Option<Vec<_>>>()
        };
        if shape.len() > MAX_DIMENSIONS || shape.len() != stride.len() {
            return Err(format!("a tensor has {} sizes, {} strides", shape.len(), stride.len()));
        }
        let (Some(sizes), Some(strides), Ok(offset)) =
            (sizes(shape), sizes(stride), u64::try_from(offset))
        else {
            return Err(what("has a negative size, stride or offset"));
        };
        let count = sizes
            .iter()
            .try_fold(1u64, |n, size| n.checked_mul(*size as u64));
        let Some(count) = count.filter(|count| *count <= MAX_ELEMENTS) else {
            return Err(what("has more than 2³² elements"));
        };
        let last = match count {
            0 => Some(0),
            _ => sizes.iter().zip(&strides).try_fold(
                offset,
                |end: u64, (size, stride): (&usize, &usize)| {
                    end.checked_add((*size as u64 - 1).checked_mul(*stride as u64)?)
                },
            ),
        };
        if count > 0 && last.is_none_or(|last| last >= storage) {
            return Err(what(&format!("reaches beyond its storage of {storage} elements")));
        }
        Ok(Tensor { element, shape: sizes, stride: strides, key, offset, storage })
    }

    pub fn numel(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether its elements follow one another in the storage.
    fn is_contiguous(&self) -> bool {
        let mut next = 1;
        self.shape
            .iter()
            .zip(&self.stride)
            .rev()
            .all(|(size, stride)| {
                let follows = *size == 1 || *stride == next;
                next *= size;
                follows
            })
    }

    /// Elements `which`, in the order of rows, as f32.
    pub(super) fn floats(
        &self,
        archive: &Archive,
        which: Range<usize>,
    ) -> anyhow::Result<Vec<f32>> {
        let mut values = Vec::new();
        self.each_floats(archive, which, &mut |block| values.extend_from_slice(block))?;
        Ok(values)
    }

    /// Passes elements `which` to `each`, in the order of rows, as f32. Some MiB are in memory at a time,
    /// of a tensor that is not contiguous all.
    pub(super) fn each_floats(
        &self,
        archive: &Archive,
        which: Range<usize>,
        each: &mut dyn FnMut(&[f32]),
    ) -> anyhow::Result<()> {
        let problem = |what: String| {
            let place = format!("{}, data/{}", archive.place(), self.key);
            Problems::one(place, what, IS_WHOLE)
        };
        let count = self.numel();
        let shape = &self.shape;
        if which.end > count || which.start > which.end {
            return Err(problem(format!("{shape:?} has {count} elements, {which:?} asked")).into());
        }
        let name = format!("data/{}", self.key);
        let Some(size) = self.element.size() else {
            return Err(problem(format!("{shape:?} is of a type that is not read")).into());
        };
        let bytes = archive.size(&name)?;
        if Some(bytes) != self.storage.checked_mul(size) {
            let expected = u128::from(self.storage) * u128::from(size);
            return Err(problem(format!("has {bytes} bytes, its tensors need {expected}")).into());
        }
        if which.is_empty() {
            return Ok(());
        }
        if self.is_contiguous() {
            let mut raw = Vec::new();
            for first in which.clone().step_by(BLOCK) {
                let len = BLOCK.min(which.end - first);
                raw.resize(len * size as usize, 0);
                archive.range(&name, (self.offset + first as u64) * size, &mut raw)?;
                each(&decode(self.element, &raw));
            }
            return Ok(());
        }
        let span = 1 + self
            .shape
            .iter()
            .zip(&self.stride)
            .map(|(n, s)| (n - 1) * s)
            .sum::<usize>();
        if count as u64 > self.storage || span as u64 > MAX_SPREAD * count as u64 {
            return Err(problem(format!(
                "{shape:?} is a view of {span} elements for {count}: not read"
            ))
            .into());
        }
        let mut raw = vec![0; span * size as usize];
        archive.range(&name, self.offset * size, &mut raw)?;
        let values = decode(self.element, &raw);
        let values: Vec<f32> = which.map(|number| values[self.place(number)]).collect();
        each(&values);
        Ok(())
    }

    /// Place in the storage, from the first element on, of element `number` in the order of rows.
    fn place(&self, mut number: usize) -> usize {
        let mut place = 0;
        for (size, stride) in self.shape.iter().zip(&self.stride).rev() {
            place += number % size * stride;
            number /= size;
        }
        place
    }
}

/// Elements, widened or rounded to f32.
fn decode(element: Element, bytes: &[u8]) -> Vec<f32> {
    fn each<const N: usize>(bytes: &[u8], widen: impl Fn([u8; N]) -> f32) -> Vec<f32> {
        bytes
            .as_chunks::<N>()
            .0
            .iter()
            .map(|bytes| widen(*bytes))
            .collect()
    }
    match element {
        Element::F64 => each(bytes, |b| f64::from_le_bytes(b) as f32),
        Element::F32 => each(bytes, f32::from_le_bytes),
        Element::F16 => each(bytes, |b| f16::from_le_bytes(b).to_f32()),
        Element::BF16 => each(bytes, |b| bf16::from_le_bytes(b).to_f32()),
        Element::I64 => each(bytes, |b| i64::from_le_bytes(b) as f32),
        Element::I32 => each(bytes, |b| i32::from_le_bytes(b) as f32),
        Element::I16 => each(bytes, |b| f32::from(i16::from_le_bytes(b))),
        Element::I8 => each(bytes, |b| f32::from(i8::from_le_bytes(b))),
        Element::U8 | Element::Untyped => each(bytes, |[b]| f32::from(b)),
        Element::Bool => each(bytes, |[b]| f32::from(u8::from(b != 0))),
        Element::Other => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(shape: &[i64], stride: &[i64], offset: i64) -> Result<Tensor, String> {
        Tensor::new(Element::F32, ("0".into(), 24), offset, shape, stride)
    }

    #[test]
    fn views_are_read_in_the_order_of_their_rows() {
        let places = |shape: &[i64], stride: &[i64]| {
            let tensor = tensor(shape, stride, 0).unwrap();
            let places: Vec<usize> = (0..tensor.numel())
                .map(|number| tensor.place(number))
                .collect();
            (tensor.is_contiguous(), places)
        };
        assert_eq!(places(&[2, 3], &[3, 1]), (true, vec![0, 1, 2, 3, 4, 5]));
        // Transposed, every other column, an axis of one element, a scalar.
        assert_eq!(places(&[3, 2], &[1, 3]), (false, vec![0, 3, 1, 4, 2, 5]));
        assert_eq!(places(&[2, 2], &[4, 2]), (false, vec![0, 2, 4, 6]));
        assert_eq!(places(&[1, 2], &[9, 1]), (true, vec![0, 1]));
        assert_eq!(places(&[], &[]), (true, vec![0]));
    }

    #[test]
    fn the_last_element_is_within_the_storage() {
        assert!(tensor(&[4, 6], &[6, 1], 0).is_ok());
        assert!(tensor(&[2, 3], &[6, 1], 15).is_ok());
        assert!(tensor(&[0, 6], &[6, 1], 24).is_ok());
        for (shape, stride, offset) in
            [(&[4, 6], &[6, 1], 1), (&[2, 3], &[6, 1], 16), (&[2, 2], &[i64::MAX, 1], 0)]
        {
            let error = tensor(shape, stride, offset).unwrap_err();
            assert!(error.contains("beyond its storage of 24 elements"), "{error}");
        }
        assert!(
            tensor(&[1; 17], &[1; 17], 0)
                .unwrap_err()
                .contains("17 sizes")
        );
    }

    #[test]
    fn every_type_is_widened_to_f32() {
        let cases: [(&str, &[u8], f32); 10] = [
            ("float64", &2.5f64.to_le_bytes(), 2.5),
            ("float32", &2.5f32.to_le_bytes(), 2.5),
            ("float16", &f16::from_f32(2.5).to_le_bytes(), 2.5),
            ("bfloat16", &bf16::from_f32(2.5).to_le_bytes(), 2.5),
            ("int64", &(-3i64).to_le_bytes(), -3.0),
            ("int32", &(-3i32).to_le_bytes(), -3.0),
            ("int16", &(-3i16).to_le_bytes(), -3.0),
            ("int8", &(-3i8).to_le_bytes(), -3.0),
            ("uint8", &[253], 253.0),
            ("bool", &[2], 1.0),
        ];
        for (name, bytes, value) in cases {
            let element = Element::from_dtype(&format!("torch.{name}"));
            let (storage, dtype) = element.names().unwrap();
            assert_eq!((Element::from_storage(storage), dtype), (element, name));
            assert_eq!(element.size(), Some(bytes.len() as u64), "{name}");
            assert_eq!(decode(element, &bytes.repeat(2)), [value, value], "{name}");
        }
        assert_eq!(Element::from_dtype("torch.complex64").size(), None);
    }
}
