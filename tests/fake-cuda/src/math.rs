//! Sums, maxima and minima of NCCL's types, in the order of ranks (which is not the program's tree).

use std::ffi::c_int;

/// Bytes of an element; none for types that the fake does not know.
pub fn width(dtype: c_int) -> Option<usize> {
    Some(match dtype {
        0 | 1 => 1,
        2 | 3 | 7 => 4,
        4 | 5 | 8 => 8,
        6 | 9 => 2,
        _ => return None,
    })
}

macro_rules! join {
    ($t:ty, $into:expr, $other:expr, $op:expr, $sum:expr) => {{
        const W: usize = size_of::<$t>();
        for (a, b) in $into.chunks_exact_mut(W).zip($other.chunks_exact(W)) {
            let x = <$t>::from_le_bytes(a.try_into().unwrap());
            let y = <$t>::from_le_bytes(b.try_into().unwrap());
            let z: $t = match $op {
                2 => {
                    if x > y {
                        x
                    } else {
                        y
                    }
                }
                3 => {
                    if x < y {
                        x
                    } else {
                        y
                    }
                }
                _ => $sum(x, y),
            };
            a.copy_from_slice(&z.to_le_bytes());
        }
    }};
}

/// `into = into op other`; operations: 0 sum, 2 maximum, 3 minimum.
pub fn join(into: &mut [u8], other: &[u8], dtype: c_int, op: c_int) {
    match dtype {
        0 => join!(i8, into, other, op, i8::wrapping_add),
        1 => join!(u8, into, other, op, u8::wrapping_add),
        2 => join!(i32, into, other, op, i32::wrapping_add),
        3 => join!(u32, into, other, op, u32::wrapping_add),
        4 => join!(i64, into, other, op, i64::wrapping_add),
        5 => join!(u64, into, other, op, u64::wrapping_add),
        7 => join!(f32, into, other, op, |x: f32, y: f32| x + y),
        8 => join!(f64, into, other, op, |x: f64, y: f64| x + y),
        // half precision is moved, not added
        _ => {}
    }
}
