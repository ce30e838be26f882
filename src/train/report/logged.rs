//! Values of the fields of a record, as numbers.

/// Value of a field, as a number. None if the step has none.
pub(super) trait Logged: Copy {
    fn number(self) -> Option<f64>;
}

macro_rules! logged {
    ($($kind:ty: $value:ident => $number:expr;)*) => {
        $(impl Logged for $kind {
            fn number(self) -> Option<f64> {
                let $value = self;
                $number
            }
        })*
    };
}

logged! {
    f64: value => Some(value);
    u64: value => Some(value as f64);
    bool: value => Some(f64::from(u8::from(value)));
    Option<f64>: value => value;
    Option<u32>: value => value.map(f64::from);
    Option<u64>: value => value.map(|value| value as f64);
}
