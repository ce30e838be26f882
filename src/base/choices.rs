//! Closed choices: enums whose variants have a name in manifests.

/// Defines closed choices: `Variant = "name in manifests"`.
#[macro_export]
macro_rules! choices {
    ($($(#[$about:meta])* $name:ident {
        $($(#[$doc:meta])* $variant:ident = $word:literal,)*
    })*) => {$(
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[derive(serde::Deserialize, serde::Serialize, schemars::JsonSchema)]
        $(#[$about])*
        pub enum $name {$(
            $(#[$doc])*
            #[serde(rename = $word)]
            $variant,
        )*}

        impl $name {
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// Name in manifests.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)*
                }
            }

            /// Choice with the name `word`.
            pub fn by_name(word: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|choice| choice.name() == word)
            }
        }
    )*};
}

choices! {
// Hendrycks & Gimpel 2016: x·Φ(x), exact or by its tanh approximation.
/// Formulas of the activation function.
Gelu {
    /// The approximation by tanh (GPT-2, Megatron, BLOOM).
    Tanh = "tanh",
    /// By the error function.
    Exact = "exact",
}
}
