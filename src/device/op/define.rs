//! Macro of the table of ops.

/// Defines the ops of a table: the struct of each, its accesses from the types of its fields, the
/// enum of all, and `run_op!`, which calls the function of an op in the modules of a backend. The
/// table begins with `$`, which the macro cannot write itself.
macro_rules! ops {
    ($d:tt $($(#[$doc:meta])* $kind:ident $(<$life:lifetime>)? ($name:expr)
        => $module:ident::$function:ident
        { $($(#[$about:meta])* $field:ident: $type:ty),* $(,)? })*
    ) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug)]
            pub struct $kind $(<$life>)? { $($(#[$about])* pub $field: $type,)* }

            impl $(<$life>)? Arg for $kind $(<$life>)? {
                fn access(&self, to: &mut Accesses) {
                    to.part(|to| { $(self.$field.access(to);)* });
                }
            }

            impl<'a> From<$kind $(<$life>)?> for Op<'a> {
                fn from(op: $kind $(<$life>)?) -> Op<'a> {
                    Op::$kind(op)
                }
            }
        )*

        /// One op with its arguments.
        #[derive(Clone, Copy, Debug)]
        pub enum Op<'a> { $($kind($kind $(<$life>)?),)* }

        impl Op<'_> {
            /// Kinds of ops: the names of their structs.
            pub const KINDS: &'static [&'static str] = &[$(stringify!($kind)),*];

            pub fn kind(&self) -> &'static str {
                match self { $(Op::$kind(_) => stringify!($kind),)* }
            }

            /// Name in profiles and plans; ops of one purpose share it.
            pub fn name(&self) -> &'static str {
                match self { $(Op::$kind(_) => $name,)* }
            }

            /// Panics if a shape or dtype is wrong, which is a bug.
            pub fn check(&self) {
                match self { $(Op::$kind(op) => op.check(),)* }
            }

            /// FLOPs and memory traffic, as the planner counts them. No call if the op does nothing.
            pub fn cost(&self) -> Work {
                match self { $(Op::$kind(op) => op.cost(),)* }
            }

            /// Tensors that the op reads and writes.
            pub fn tensors(&self) -> Accesses {
                let mut all = Accesses::default();
                match self { $(Op::$kind(op) => op.access(&mut all),)* }
                all
            }
        }

        /// Calls the function of an op in the modules of a backend.
        macro_rules! run_op {
            ($d backend:ident, $d op:ident) => {
                match $d op { $($crate::Op::$kind(op) => $module::$function($d backend, op),)* }
            };
        }
        pub(crate) use run_op;
    };
}

pub(super) use ops;
