//! Macros that define types from the tables in `forms` and `settings`.

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

/// Defines a setting that is one of several kinds, each with its settings: the names of the kinds, the
/// section as written with a key for each kind, the form (a name, or the section), the checked enum, and
/// the conversions. A row is one kind, `Variant = "name", key: Settings`; the first is the default.
/// Brackets after the rows contain further keys of the written section.
macro_rules! kinds {
    ($(#[$about:meta])* $name:ident at $path:literal, $names:ident, $form:ident {
        $(#[$first_doc:meta])* $first:ident = $first_word:literal, $first_key:ident: $first_rule:ident;
        $($(#[$doc:meta])* $variant:ident = $word:literal, $key:ident: $rule:ident;)*
    } [$(
        $(#[$only_doc:meta])*
        $only:ident: $only_written:ty $(, in $min:literal..=$max:literal)?;
    )*]) => {
        base::choices! {
            $(#[$about])*
            $names {
                $(#[$first_doc])* $first = $first_word,
                $($(#[$doc])* $variant = $word,)*
            }
        }

        forms! {
            /// One of the kinds, by name or with settings.
            $form {
                /// By name, with its defaults.
                Name($names),
                /// With settings.
                Settings(kind::$name),
            }
        }

        /// The section as written.
        pub mod kind {
            use super::*;

            sections! {
                $(#[$about])*
                $name {
                    $(#[$first_doc])* $first_key: raw::$first_rule;
                    $($(#[$doc])* $key: raw::$rule;)*
                    $($(#[$only_doc])* $only: $only_written $(, in $min..=$max)?;)*
                }
            }
        }

        $(#[$about])*
        #[derive(Clone, Debug, PartialEq)]
        pub enum $name { $first($first_rule), $($variant($rule),)* }

        impl $name {
            /// Keys of the kinds, of which a section has one.
            pub(super) const KEYS: &'static [&'static str] = &[
                concat!($path, ".", $first_word),
                $(concat!($path, ".", $word),)*
            ];

            /// Name in manifests.
            pub fn name(&self) -> &'static str {
                match self {
                    $name::$first(_) => $first_word,
                    $($name::$variant(_) => $word,)*
                }
            }

            /// Kinds that are written, with the defaults of their settings filled in: one, unless the
            /// section has several.
            pub(super) fn read(form: Option<$form>) -> Vec<$name> {
                let default = || $name::$first($first_rule::read(Default::default()));
                let section = match form {
                    None | Some($form::Name($names::$first)) => return vec![default()],
                    $(Some($form::Name($names::$variant)) => {
                        return vec![$name::$variant($rule::read(Default::default()))];
                    })*
                    Some($form::Settings(section)) => section,
                };
                let mut given = Vec::new();
                given.extend(section.$first_key.map(|raw| $name::$first($first_rule::read(raw))));
                $(given.extend(section.$key.map(|raw| $name::$variant($rule::read(raw))));)*
                if given.is_empty() { vec![default()] } else { given }
            }
        }

        impl Written for $name {
            type Raw = $form;

            fn written(&self) -> Option<$form> {
                let mut section = kind::$name::default();
                match self {
                    $name::$first(settings) => section.$first_key = settings.written(),
                    $($name::$variant(settings) => section.$key = settings.written(),)*
                }
                Some(section.into())
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

pub(super) use {checked, forms, kinds, read, sections, settings, written};
