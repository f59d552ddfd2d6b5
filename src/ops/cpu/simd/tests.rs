use super::*;
use crate::ops::cpu::isa::{Isa, Kernel};

/// Applies every operation to `a`, `b`, `c` (each at least one vector) and returns one row of results for each.
struct Every<'a>(&'a [f32], &'a [f32], &'a [f32]);

impl Kernel for Every<'_> {
    type Output = Vec<Vec<f32>>;
    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Vec<Vec<f32>> {
        assert!(self.0.len() >= S::N && self.1.len() >= S::N && self.2.len() >= S::N);
        // SAFETY: each slice holds a vector.
        let (a, b, c) = unsafe {
            (
                s.load(self.0.as_ptr()),
                s.load(self.1.as_ptr()),
                s.load(self.2.as_ptr()),
            )
        };
        let (m, k) = s.split2(a);
        [
            s.add(a, b),
            s.sub(a, b),
            s.mul(a, b),
            s.div(a, b),
            s.fma(a, b, c),
            s.fnma(a, b, c),
            s.max(a, c),
            s.min(a, c),
            s.abs(c),
            s.sqrt(a),
            s.recip(a),
            s.neg(c),
            s.round(c),
            s.scale2(c, s.round(c)),
            m,
            k,
            s.select(s.lt(a, c), a, b),
            s.select(s.le(a, a), a, b),
            s.select(s.eq(a, c), a, b),
            exp(s, c),
            sigmoid(s, c),
            ln(s, a),
            s.splat(s.reduce_add(c)),
            s.splat(s.reduce_max(c)),
            s.add_pairs(c),
            // SAFETY: `a` has two numbers.
            unsafe { s.splat_pair(self.0.as_ptr()) },
        ]
        .iter()
        .map(|&v| {
            let mut row = vec![0.0; S::N];
            // SAFETY: the row holds a vector.
            unsafe { s.store(row.as_mut_ptr(), v) };
            row
        })
        .collect()
    }
}

fn wanted(a: f64, b: f64, c: f64) -> Vec<f64> {
    let k = a.log2().floor();
    vec![
        a + b,
        a - b,
        a * b,
        a / b,
        a * b + c,
        c - a * b,
        a.max(c),
        a.min(c),
        c.abs(),
        a.sqrt(),
        1.0 / a,
        -c,
        c.round_ties_even(),
        c * c.round_ties_even().exp2(),
        a / k.exp2(),
        k,
        if a < c { a } else { b },
        a,
        if a == c { a } else { b },
        c.exp(),
        1.0 / (1.0 + (-c).exp()),
        a.ln(),
    ]
}

#[test]
fn every_operation_of_every_instruction_set_equals_float64() {
    let mut seed = 7u64;
    let mut next = || {
        seed = seed
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (seed >> 40) as f32 / (1u64 << 24) as f32
    };
    for isa in Isa::available() {
        for _ in 0..500 {
            let a: Vec<f32> = (0..16).map(|_| next() * 20.0 + 1e-3).collect();
            let b: Vec<f32> = (0..16).map(|_| next() - 1.5).collect();
            let c: Vec<f32> = (0..16).map(|_| next() * 40.0 - 20.0).collect();
            let rows = isa.run(Every(&a, &b, &c));
            for i in 0..isa.width() {
                let want = wanted(a[i].into(), b[i].into(), c[i].into());
                for (j, &w) in want.iter().enumerate() {
                    let got = f64::from(rows[j][i]);
                    let scale = w.abs()
                        + if j < 6 {
                            (a[i] * b[i]).abs() as f64 + c[i].abs() as f64
                        } else {
                            0.0
                        };
                    assert!(
                        (got - w).abs() <= 4e-7 * scale + 1e-7,
                        "{isa:?} operation {j}: {got} for {w}"
                    );
                }
            }
            for i in 0..isa.width() {
                assert_eq!(rows[25][i], a[i % 2]);
                if i < isa.width() / 2 {
                    assert_eq!(rows[24][i], c[2 * i] + c[2 * i + 1]);
                }
            }
            let n = isa.width();
            let sum: f64 = c[..n].iter().map(|&c| f64::from(c)).sum();
            assert!((f64::from(rows[22][0]) - sum).abs() < 1e-4);
            assert_eq!(
                rows[23][0],
                c[..n].iter().copied().fold(f32::NEG_INFINITY, f32::max)
            );
        }
    }
}

/// Loads the first `n` of `from`, stores the first `n` into `to`; the rest of the vector goes to `rest`.
struct First<'a>(&'a [f32], &'a mut [f32], usize, &'a mut [f32]);

impl Kernel for First<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        assert!(self.0.len() >= self.2 && self.1.len() >= self.2 && self.3.len() >= S::N);
        // SAFETY: lengths were checked.
        unsafe {
            let v = s.load_first(self.0.as_ptr(), self.2);
            s.store_first(self.1.as_mut_ptr(), v, self.2);
            s.store(self.3.as_mut_ptr(), v);
        }
    }
}

#[test]
fn partial_loads_and_stores_touch_the_first_elements_alone() {
    for isa in Isa::available() {
        for n in 0..=isa.width() {
            let from: Vec<f32> = (0..n).map(|i| i as f32 + 1.0).collect();
            let (mut to, mut rest) = ([-1.0; 17], [-1.0; 16]);
            isa.run(First(&from, &mut to, n, &mut rest));
            assert_eq!(to[..n], from);
            assert!(to[n..].iter().all(|&x| x == -1.0));
            assert!(rest[n..isa.width()].iter().all(|&x| x == 0.0));
        }
    }
}

#[test]
fn exp_and_sigmoid_stay_finite_at_the_ends() {
    for isa in Isa::available() {
        let c = [
            -1e30, -200.0, -88.0, 0.0, 88.0, 200.0, 1e30, 1.0, -1e30, -200.0, -88.0, 0.0, 88.0,
            200.0, 1e30, 1.0,
        ];
        let rows = isa.run(Every(&[1.0; 16], &[1.0; 16], &c));
        for (i, &x) in c.iter().enumerate().take(isa.width()) {
            assert!(
                rows[19][i].is_finite() && (0.0..=1.0).contains(&rows[20][i]),
                "{isa:?} {x}"
            );
        }
    }
}
