//! Macros that define types from the tables of settings, and the conversion that they share.

use std::collections::BTreeMap;

/// Checked value that can be converted back to its written form.
pub trait Written {
    type Raw;
    fn written(&self) -> Option<Self::Raw>;
}

/// Section as written, of which one of several keys is given.
pub trait OneOf {
    /// Full keys of its kinds.
    const KEYS: &'static [&'static str];

    /// Number of its kinds that are given.
    fn kinds(&self) -> usize;
}

impl<T: Written> Written for BTreeMap<String, T> {
    type Raw = BTreeMap<String, T::Raw>;

    fn written(&self) -> Option<Self::Raw> {
        Some(
            self.iter()
                .filter_map(|(name, of)| Some((name.clone(), of.written()?)))
                .collect(),
        )
    }
}

impl<T: Written> Written for Option<T> {
    type Raw = T::Raw;

    fn written(&self) -> Option<T::Raw> {
        self.as_ref().and_then(T::written)
    }
}

/// Defines values with a short and a long form. Each variant is another kind of YAML node, so the
/// form is unambiguous.
macro_rules! forms {
    ($($(#[$about:meta])* $name:ident {
        $($(#[$doc:meta])* $variant:ident($inner:ty),)*
    })*) => {$(
        $(#[$about])*
        #[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
        #[serde(untagged)]
        // A manifest has one of each, so their size does not matter.
        #[allow(clippy::large_enum_variant)]
        pub enum $name { $($(#[$doc])* $variant($inner),)* }

        $(impl From<$inner> for $name {
            fn from(inner: $inner) -> $name {
                $name::$variant(inner)
            }
        })*
    )*};
}

/// Defines a setting that is one of several kinds, each given by its name or with its settings: the
/// names, the form (a name, or the section), and all that `one_of` defines. The first rows are kinds
/// without settings, `Variant = "name"`; the others are those of `one_of`.
macro_rules! kinds {
    ($(#[derive($derive:ident)])? $(#[doc = $about:literal])*
    $name:ident($($arg:ident: $argty:ty),*) at $path:literal,
    $names:ident, $form:ident, $section:ident = $title:literal {
        $($(#[doc = $bare_doc:literal])* $bare:ident = $bare_word:literal;)*
    } settings {$(
        $(#[doc = $doc:literal])*
        $(#[schemars $schema:tt])?
        $variant:ident = $word:literal, $key:ident: $rule:ident($($pass:expr),*);
    )*} $($only:tt)?) => {
        base::choices! {
            $(#[doc = $about])*
            $names {
                $($(#[doc = $bare_doc])* $bare = $bare_word,)*
                $($(#[doc = $doc])* $variant = $word,)*
            }
        }

        forms! {
            $(#[doc = $about])*
            $form {
                /// By name, with its defaults.
                Name($names),
                /// With settings.
                Settings($section),
            }
        }

        one_of! {
            $(#[derive($derive)])? $(#[doc = $about])*
            $name($($arg: $argty),*) at $path, $section = $title {
                $($(#[doc = $bare_doc])* $bare = $bare_word;)*
            } settings {$(
                $(#[doc = $doc])*
                $(#[schemars $schema])?
                $variant = $word, $key: $rule($($pass),*);
            )*} $($only)?
        }

        impl $name {
            /// Kind with the defaults of its settings.
            fn named(name: $names $(, $arg: $argty)*) -> $name {
                match name {
                    $($names::$bare => $name::$bare,)*
                    $($names::$variant => {
                        $name::$variant($rule::read(Default::default() $(, $pass)*))
                    })*
                }
            }

            /// First kind that is written, or the default.
            pub(super) fn read(
                form: Option<$form>,
                default: $names
                $(, $arg: $argty)*
            ) -> $name {
                let name = match form {
                    None => default,
                    Some($form::Name(name)) => name,
                    Some($form::Settings(section)) => match $name::given(section $(, $arg)*) {
                        Some(kind) => return kind,
                        None => default,
                    },
                };
                $name::named(name $(, $arg)*)
            }
        }

        impl Written for $name {
            type Raw = $form;

            fn written(&self) -> Option<$form> {
                match self.section() {
                    Some(section) => Some(section.into()),
                    None => $names::by_name(self.name()).map(Into::into),
                }
            }
        }
    };
}

/// Defines a setting that is one of several kinds: the section as written, with a key for each kind,
/// the checked enum, and the conversions. A row is one kind, `Variant = "name", key: Settings(inputs)`,
/// where the inputs are those of the settings' `read`; they may use the arguments of the enum. The
/// first rows are kinds without settings. Brackets after the rows contain further keys of the written
/// section.
macro_rules! one_of {
    ($(#[derive($derive:ident)])? $(#[doc = $about:literal])*
    $name:ident($($arg:ident: $argty:ty),*) at $path:literal, $section:ident = $title:literal {
        $($(#[doc = $bare_doc:literal])* $bare:ident = $bare_word:literal;)*
    } settings {$(
        $(#[doc = $doc:literal])*
        $(#[schemars $schema:tt])?
        $variant:ident = $word:literal, $key:ident: $rule:ident($($pass:expr),*);
    )*} $([$(
        $(#[$only_doc:meta])*
        $only:ident: $only_written:ty $(, in $min:literal..=$max:literal)?;
    )*])?) => {
        sections! {
            $(#[derive($derive)])? $(#[doc = $about])*
            #[schemars(rename = $title)]
            $section {
                $($(#[doc = $doc])* $(#[schemars $schema])? $key: raw::$rule;)*
                $($($(#[$only_doc])* $only: $only_written $(, in $min..=$max)?;)*)?
            }
        }

        $(#[doc = $about])*
        #[derive(Clone, Debug, PartialEq $(, $derive)?)]
        pub enum $name {
            $($(#[doc = $bare_doc])* $bare,)*
            $($(#[doc = $doc])* $variant($rule),)*
        }

        impl $name {
            /// Name in manifests.
            pub fn name(&self) -> &'static str {
                match self {
                    $($name::$bare => $bare_word,)*
                    $($name::$variant(_) => $word,)*
                }
            }

            /// First kind of a written section.
            fn given(section: $section $(, $arg: $argty)*) -> Option<$name> {
                $(if let Some(raw) = section.$key {
                    return Some($name::$variant($rule::read(raw $(, $pass)*)));
                })*
                None
            }

            /// Section as written; None for a kind without settings.
            fn section(&self) -> Option<$section> {
                let mut section = $section::default();
                $(if let $name::$variant(settings) = self {
                    section.$key = settings.written();
                })*
                (section.kinds() > 0).then_some(section)
            }
        }

        impl OneOf for $section {
            const KEYS: &'static [&'static str] = &[$(concat!($path, ".", $word)),*];

            fn kinds(&self) -> usize {
                [$(self.$key.is_some()),*].into_iter().filter(|given| *given).count()
            }
        }
    };
}

/// Defines sections as written, in which every key is optional. Editors show the doc comments, and
/// values are checked against the ranges.
macro_rules! sections {
    ($($(#[$about:meta])* $name:ident {$(
        $(#[$doc:meta])*
        $key:ident: $written:ty
        $(, required in $least:literal..=$most:literal)?
        $(, in $min:literal..=$max:literal)?;
    )*})*) => {$(
        #[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
        #[serde(deny_unknown_fields)]
        $(#[$about])*
        pub struct $name {$(
            $(#[$doc])*
            $(#[schemars(required, range(min = $least, max = $most))])?
            $(#[schemars(range(min = $min, max = $max))])?
            #[serde(skip_serializing_if = "Option::is_none")]
            pub $key: Option<$written>,
        )*}
    )*};
}

/// Defines sections as written (in the module `raw`), as checked, and both conversions between
/// them. A row is one setting, `key: type`, in the order of the effective manifest:
///
/// * `key: T = default` is a `T`; the default may use the keys above it;
/// * `key: T, required in 1..=9` is a `T`; if missing, this is reported and the minimum used;
/// * `key: T` is an `Option<T>`;
/// * `key: T => C = conversion` is written as a `T` and checked to a `C`. The conversion reads the
///   written `raw.key` (an `Option<T>`). `Written` or `, written expression` converts back;
/// * `, in 0..=9` are the limits of the written value.
///
/// Brackets after the rows contain keys of the written section only (other ways to set one of the
/// keys), parentheses those of the checked section only. The arguments of the section are inputs of
/// its defaults and conversions.
macro_rules! settings {
    ($($(#[$about:meta])* $name:ident($raw:ident $(, $arg:ident: $argty:ty)*) {$(
        $(#[doc = $doc:literal])*
        $(#[schemars $schema:tt])?
        $key:ident: $written:ty
        $(= $default:expr)?
        $(=> $checked:ty = $conversion:expr)?
        $(, required in $least:literal..=$most:literal)?
        $(, in $min:literal..=$max:literal)?
        $(, written $back:expr)?;
    )*}
    $([$(
        $(#[$only_doc:meta])*
        $only:ident: $only_written:ty $(, in $only_min:literal..=$only_max:literal)?;
    )*])?
    $(($(
        $(#[$derived_doc:meta])*
        $derived:ident: $derived_ty:ty = $value:expr;
    )*))?
    )*) => {
        pub mod raw {
            use super::*;

            sections! {$(
                $(#[$about])*
                $name {
                    $(
                        $(#[doc = $doc])*
                        $(#[schemars $schema])?
                        $key: $written
                        $(, required in $least..=$most)?
                        $(, in $min..=$max)?;
                    )*
                    $($(
                        $(#[$only_doc])*
                        $only: $only_written $(, in $only_min..=$only_max)?;
                    )*)?
                }
            )*}
        }
        $(
            $(#[$about])*
            #[derive(Clone, Debug, PartialEq)]
            pub struct $name {
                $(
                    $(#[doc = $doc])*
                    pub $key: checked!(
                        $written $(= $default)? $(=> $checked)? $(, required $least)?
                    ),
                )*
                $($($(#[$derived_doc])* pub $derived: $derived_ty,)*)?
            }

            impl $name {
                /// Fills in the defaults of a written section.
                pub(super) fn read($raw: raw::$name $(, $arg: $argty)*) -> $name {
                    $(let $key = read!(
                        $raw.$key $(= $default)? $(=> $conversion)? $(, required $least)?
                    );)*
                    $($(let $derived = $value;)*)?
                    $name { $($key,)* $($($derived,)*)? }
                }
            }

            impl Written for $name {
                type Raw = raw::$name;

                fn written(&self) -> Option<raw::$name> {
                    $(let $key = written!(
                        self.$key
                        $(= $default)? $(=> $conversion)? $(, required $least)?
                        $(, written $key = $back)?
                    );)*
                    Some(raw::$name { $($key,)* $($($only: None,)*)? })
                }
            }
        )*
    };
}

macro_rules! checked {
    ($written:ty) => { Option<$written> };
    ($written:ty => $checked:ty) => { $checked };
    ($written:ty $(= $default:expr)? $(, required $least:literal)?) => { $written };
}

macro_rules! read {
    ($raw:ident.$key:ident) => {
        $raw.$key
    };
    ($raw:ident.$key:ident = $default:expr) => {
        $raw.$key.unwrap_or_else(|| $default)
    };
    ($raw:ident.$key:ident => $conversion:expr) => {
        $conversion
    };
    ($raw:ident.$key:ident, required $least:literal) => {
        $raw.$key.unwrap_or($least)
    };
}

macro_rules! written {
    ($checked:ident.$key:ident) => {
        $checked.$key.clone()
    };
    ($checked:ident.$key:ident => $conversion:expr) => {
        $checked.$key.written().map(Into::into)
    };
    ($checked:ident.$key:ident => $conversion:expr, written $name:ident = $back:expr) => {{
        let $name = &$checked.$key;
        $back
    }};
    ($checked:ident.$key:ident $(= $default:expr)? $(, required $least:literal)?) => {
        Some($checked.$key.clone())
    };
}

pub(super) use {checked, forms, kinds, one_of, read, sections, settings, written};
