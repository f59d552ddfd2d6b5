//! The values that collectives move.

use std::fmt;

/// Type of the elements of a [`Buffer`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum DType {
    F32,
    F64,
    I32,
    I64,
    U64,
    U8,
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DType::F32 => "f32",
            DType::F64 => "f64",
            DType::I32 => "i32",
            DType::I64 => "i64",
            DType::U64 => "u64",
            DType::U8 => "u8",
        })
    }
}

/// How two values become one. Integers wrap; a NaN wins over every number, the left one over the right one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ReduceOp {
    Sum,
    Max,
    Min,
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ReduceOp::Sum => "sum",
            ReduceOp::Max => "max",
            ReduceOp::Min => "min",
        })
    }
}

/// What a collective takes and gives back; it owns its values, so that they can be moved while the caller goes on.
#[derive(Debug, Clone, PartialEq)]
pub enum Buffer {
    F32(Vec<f32>),
    F64(Vec<f64>),
    I32(Vec<i32>),
    I64(Vec<i64>),
    U64(Vec<u64>),
    U8(Vec<u8>),
}

/// Runs `$body` with `$v` bound to the vector of `$buffer`.
macro_rules! each {
    ($buffer:expr, $v:ident => $body:expr) => {
        match $buffer {
            $crate::dist::Buffer::F32($v) => $body,
            $crate::dist::Buffer::F64($v) => $body,
            $crate::dist::Buffer::I32($v) => $body,
            $crate::dist::Buffer::I64($v) => $body,
            $crate::dist::Buffer::U64($v) => $body,
            $crate::dist::Buffer::U8($v) => $body,
        }
    };
}

/// `$f::<T>(…)` for the type of elements.
macro_rules! by_type {
    ($dtype:expr, $f:ident($($arg:expr),*)) => {
        match $dtype {
            $crate::dist::DType::F32 => $f::<f32>($($arg),*),
            $crate::dist::DType::F64 => $f::<f64>($($arg),*),
            $crate::dist::DType::I32 => $f::<i32>($($arg),*),
            $crate::dist::DType::I64 => $f::<i64>($($arg),*),
            $crate::dist::DType::U64 => $f::<u64>($($arg),*),
            $crate::dist::DType::U8 => $f::<u8>($($arg),*),
        }
    };
}
pub(crate) use by_type;

impl Buffer {
    pub fn dtype(&self) -> DType {
        match self {
            Buffer::F32(_) => DType::F32,
            Buffer::F64(_) => DType::F64,
            Buffer::I32(_) => DType::I32,
            Buffer::I64(_) => DType::I64,
            Buffer::U64(_) => DType::U64,
            Buffer::U8(_) => DType::U8,
        }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        each!(self, v => v.len())
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn zeros(dtype: DType, len: usize) -> Self {
        match dtype {
            DType::F32 => Buffer::F32(vec![0.0; len]),
            DType::F64 => Buffer::F64(vec![0.0; len]),
            DType::I32 => Buffer::I32(vec![0; len]),
            DType::I64 => Buffer::I64(vec![0; len]),
            DType::U64 => Buffer::U64(vec![0; len]),
            DType::U8 => Buffer::U8(vec![0; len]),
        }
    }

    /// The memory of the elements.
    pub fn bytes(&self) -> &[u8] {
        each!(self, v => bytemuck::cast_slice(v))
    }

    /// See [`Buffer::bytes`].
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        each!(self, v => bytemuck::cast_slice_mut(v))
    }

    /// The elements as `T`; `None` where they are of another type.
    pub fn into_vec<T: Element>(self) -> Option<Vec<T>> {
        T::unwrap(self)
    }
}

/// A type of elements.
pub trait Element: bytemuck::Pod + Send + Sync {
    const DTYPE: DType;
    fn wrap(values: Vec<Self>) -> Buffer;
    fn unwrap(buffer: Buffer) -> Option<Vec<Self>>;
    fn plus(self, other: Self) -> Self;
    fn larger(self, other: Self) -> Self;
    fn smaller(self, other: Self) -> Self;
}

macro_rules! element {
    ($t:ty, $variant:ident, $add:expr, $is_nan:expr) => {
        impl From<Vec<$t>> for Buffer {
            fn from(values: Vec<$t>) -> Self {
                Buffer::$variant(values)
            }
        }

        impl Element for $t {
            const DTYPE: DType = DType::$variant;
            fn wrap(values: Vec<Self>) -> Buffer {
                Buffer::$variant(values)
            }
            fn unwrap(buffer: Buffer) -> Option<Vec<Self>> {
                match buffer {
                    Buffer::$variant(values) => Some(values),
                    _ => None,
                }
            }
            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                $add(self, other)
            }
            #[inline(always)]
            fn larger(self, other: Self) -> Self {
                if $is_nan(self) || self > other {
                    self
                } else {
                    other
                }
            }
            #[inline(always)]
            fn smaller(self, other: Self) -> Self {
                if $is_nan(self) || self < other {
                    self
                } else {
                    other
                }
            }
        }
    };
}

element!(f32, F32, |a: f32, b: f32| a + b, |a: f32| a.is_nan());
element!(f64, F64, |a: f64, b: f64| a + b, |a: f64| a.is_nan());
element!(i32, I32, i32::wrapping_add, |_| false);
element!(i64, I64, i64::wrapping_add, |_| false);
element!(u64, U64, u64::wrapping_add, |_| false);
element!(u8, U8, u8::wrapping_add, |_| false);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nan_wins_over_every_number() {
        assert!(Element::larger(f32::NAN, 1.0).is_nan());
        assert!(Element::larger(1.0, f32::NAN).is_nan());
        assert!(Element::smaller(f64::NAN, 1.0).is_nan());
        assert!(Element::smaller(1.0, f64::NAN).is_nan());
        assert_eq!(Element::larger(2, 1), 2);
        assert_eq!(Element::smaller(2.0, 1.0), 1.0);
    }
}
