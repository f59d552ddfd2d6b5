//! Scales of axes and their ticks: round numbers.

/// From values to a place on an axis.
#[derive(Debug, Clone, PartialEq)]
pub struct Scale {
    /// Value at the axis' start and end; a scale may fall.
    start: f64,
    end: f64,
    log: bool,
    /// Values with their text.
    pub ticks: Vec<(f64, String)>,
}

impl Scale {
    /// Exactly from `start` to `end`, about `count` ticks.
    #[must_use]
    pub fn linear(start: f64, end: f64, count: usize) -> Self {
        Self::between(start, end, count, 0.0)
    }

    /// As [`linear`](Self::linear) for counts: ticks are whole numbers.
    #[must_use]
    pub fn whole(start: f64, end: f64, count: usize) -> Self {
        Self::between(start, end, count, 1.0)
    }

    /// Around `values` with some room; those that are not finite are ignored.
    #[must_use]
    pub fn around(values: impl IntoIterator<Item = f64>, count: usize) -> Self {
        let (low, high) = range(values).unwrap_or((0.0, 1.0));
        let room = (high - low) * 0.05;
        Self::linear(low - room, high + room, count)
    }

    /// From 0 to somewhat over the greatest of `counts`.
    #[must_use]
    pub fn counts(greatest: u64, count: usize) -> Self {
        Self::whole(0.0, (greatest.max(1) as f64) * 1.08, count)
    }

    /// Powers of ten from below 1 to over `greatest`: for counts of very different sizes. 0 lies at the start.
    #[must_use]
    pub fn log_counts(greatest: u64) -> Self {
        let decades = (greatest.max(1) as f64).log10().ceil().max(1.0) as u32;
        let apart = decades.div_ceil(6);
        let ticks = (0..=decades).step_by(apart as usize).map(|d| {
            let value = 10_f64.powi(d as i32);
            (value, label(value, value))
        });
        Self {
            start: 0.5,
            end: 1.5 * greatest.max(1) as f64,
            log: true,
            ticks: ticks
                .filter(|&(v, _)| v <= 1.5 * greatest.max(1) as f64)
                .collect(),
        }
    }

    fn between(start: f64, end: f64, count: usize, least_step: f64) -> Self {
        let (start, end) = widened(start, end);
        let (low, high) = (start.min(end), start.max(end));
        Self {
            start,
            end,
            log: false,
            ticks: ticks(low, high, count, least_step),
        }
    }

    /// 0 at the scale's start, 1 at its end; values beyond lie on the nearer one.
    #[must_use]
    pub fn place(&self, value: f64) -> f64 {
        let t = if self.log {
            (value.max(f64::MIN_POSITIVE).ln() - self.start.ln())
                / (self.end.ln() - self.start.ln())
        } else {
            (value - self.start) / (self.end - self.start)
        };
        t.clamp(0.0, 1.0)
    }
}

/// The least and the greatest finite value.
pub(super) fn range(values: impl IntoIterator<Item = f64>) -> Option<(f64, f64)> {
    let finite = values.into_iter().filter(|v| v.is_finite());
    finite.fold(None, |range, v| match range {
        None => Some((v, v)),
        Some((low, high)) => Some((v.min(low), v.max(high))),
    })
}

/// A range that has a length and that numbers can be placed in.
fn widened(start: f64, end: f64) -> (f64, f64) {
    const GREATEST: f64 = 1e300;
    if !start.is_finite() || !end.is_finite() {
        return (0.0, 1.0);
    }
    let (start, end) = (
        start.clamp(-GREATEST, GREATEST),
        end.clamp(-GREATEST, GREATEST),
    );
    let size = start.abs().max(end.abs());
    if (end - start).abs() > size * 1e-9 && (end - start).abs() > 1e-300 {
        return (start, end);
    }
    let room = if size < 1e-290 { 0.5 } else { size * 0.1 };
    let middle = start / 2.0 + end / 2.0;
    (middle - room, middle + room)
}

/// Multiples of 1, 2 or 5 times a power of ten within `low..=high`, at most `count + 1` of them, with their text.
fn ticks(low: f64, high: f64, count: usize, least_step: f64) -> Vec<(f64, String)> {
    let raw = ((high - low) / count.max(1) as f64).max(least_step);
    let mut power = raw.log10().floor() as i32;
    let mut factor = 10.0;
    for f in [1.0, 2.0, 5.0] {
        // The tolerance keeps 0.2 from becoming 0.5 where (1 - 0) / 5 is a hair over it.
        if f * 10_f64.powi(power) >= raw * (1.0 - 1e-9) {
            factor = f;
            break;
        }
    }
    if factor == 10.0 {
        factor = 1.0;
        power += 1;
    }
    let step = factor * 10_f64.powi(power);
    let (first, last) = (
        (low / step - 1e-9).ceil() as i64,
        (high / step + 1e-9).floor() as i64,
    );
    (first..=last.min(first.saturating_add(1000)))
        .map(|i| {
            // One rounding: 3 x 0.1 would be 0.30000000000000004, 3 / 10 is 0.3.
            let value = if power < 0 && power > -300 {
                i as f64 * factor / 10_f64.powi(-power)
            } else {
                i as f64 * step
            };
            (value, label(value, step))
        })
        .collect()
}

/// The shortest text of a multiple of `step`.
fn label(value: f64, step: f64) -> String {
    if value == 0.0 {
        return "0".into();
    }
    let size = value.abs();
    if step < 0.9e-4 || size >= 1e10 {
        // {:e} writes the shortest digits that read back, so rounding to the step comes first
        let digits = ((size.log10().floor() - step.log10().floor()).max(0.0) as usize).min(15);
        let text = format!("{value:.digits$e}");
        let (mantissa, power) = text.split_once('e').unwrap_or((&text, "0"));
        let mantissa = match mantissa.contains('.') {
            true => mantissa.trim_end_matches('0').trim_end_matches('.'),
            false => mantissa,
        };
        return format!("{mantissa}e{power}");
    }
    let exact = |unit: f64| (step / unit).fract() == 0.0 && size >= unit;
    if exact(1e6) {
        return format!("{}M", value / 1e6);
    }
    if size >= 1e4 && exact(1e3) {
        return format!("{}k", value / 1e3);
    }
    let decimals = (-(step * 1.000_001).log10().floor()).clamp(0.0, 12.0) as usize;
    format!("{value:.decimals$}")
}

/// A count in at most four or five characters: `987`, `12.3k`, `4.5M`.
#[must_use]
pub fn short_count(n: u64) -> String {
    let (unit, letter) = match n {
        0..1_000 => return n.to_string(),
        1_000..999_950 => (1e3, "k"),
        999_950..999_950_000 => (1e6, "M"),
        _ => (1e9, "G"),
    };
    let value = n as f64 / unit;
    if value < 99.95 {
        format!("{value:.1}{letter}")
    } else {
        format!("{value:.0}{letter}")
    }
}

/// A count with commas: `1,234,567`.
#[must_use]
pub fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn texts(scale: &Scale) -> Vec<&str> {
        scale.ticks.iter().map(|(_, t)| t.as_str()).collect()
    }

    #[test]
    fn ticks_are_the_round_numbers_that_a_person_would_choose() {
        let of = |a, b, n| Scale::linear(a, b, n);
        assert_eq!(
            texts(&of(0.0, 1.0, 5)),
            ["0", "0.2", "0.4", "0.6", "0.8", "1.0"]
        );
        assert_eq!(texts(&of(1.0, 0.0, 2)), ["0", "0.5", "1.0"]);
        assert_eq!(texts(&of(0.13, 0.31, 4)), ["0.15", "0.20", "0.25", "0.30"]);
        assert_eq!(texts(&of(-3.0, 7.0, 5)), ["-2", "0", "2", "4", "6"]);
        assert_eq!(
            texts(&of(0.0, 2500.0, 5)),
            ["0", "500", "1000", "1500", "2000", "2500"]
        );
        assert_eq!(
            texts(&of(0.0, 40_000.0, 4)),
            ["0", "10k", "20k", "30k", "40k"]
        );
        assert_eq!(texts(&of(0.0, 4e6, 4)), ["0", "1M", "2M", "3M", "4M"]);
        assert_eq!(
            texts(&of(0.0, 4e-5, 4)),
            ["0", "1e-5", "2e-5", "3e-5", "4e-5"]
        );
        assert_eq!(texts(&Scale::whole(1.0, 3.0, 8)), ["1", "2", "3"]);
        assert_eq!(
            texts(&Scale::log_counts(262_465)),
            ["1", "10", "100", "1000", "10k", "100k"]
        );
    }

    #[test]
    fn ranges_without_length_and_without_numbers_get_an_axis() {
        for scale in [
            Scale::linear(3.0, 3.0, 5),
            Scale::linear(0.0, 0.0, 5),
            Scale::linear(f64::NAN, 1.0, 5),
            Scale::linear(f64::INFINITY, 1.0, 5),
            Scale::linear(f64::MIN, f64::MAX, 5),
            Scale::linear(1e-310, 2e-310, 5),
            Scale::around([], 5),
            Scale::around([f64::NAN, 7.0], 5),
            Scale::counts(0, 5),
            Scale::log_counts(0),
        ] {
            assert!(!scale.ticks.is_empty(), "{scale:?}");
            assert!((0.0..=1.0).contains(&scale.place(0.3)), "{scale:?}");
        }
        assert_eq!(Scale::linear(3.0, 3.0, 5).place(3.0), 0.5);
    }

    #[test]
    fn values_beyond_the_ends_lie_on_them_and_logarithms_take_zero() {
        let s = Scale::linear(1.0, 0.0, 5);
        assert_eq!(
            [s.place(2.0), s.place(0.25), s.place(-1.0)],
            [0.0, 0.75, 1.0]
        );
        let s = Scale::log_counts(1000);
        assert_eq!(s.place(0.0), 0.0);
        assert!(s.place(1.0) > 0.0 && s.place(1000.0) < 1.0);
    }

    #[test]
    fn counts_are_short() {
        let cases = [
            (0, "0"),
            (999, "999"),
            (1000, "1.0k"),
            (99_949, "99.9k"),
            (99_950, "100k"),
            (999_949, "1000k"),
            (999_950, "1.0M"),
            (2_000_000_000, "2.0G"),
        ];
        for (n, text) in cases {
            assert_eq!(short_count(n), text);
        }
        assert_eq!(
            [0, 999, 1000, 1_234_567].map(grouped),
            ["0", "999", "1,000", "1,234,567"]
        );
    }

    proptest! {
        #[test]
        fn ticks_lie_within_rise_evenly_and_have_different_texts_that_read_back(
            low in -1e6_f64..1e6, size in -8.0_f64..8.0, count in 3_usize..12,
        ) {
            let span = 10_f64.powf(size);
            prop_assume!(span > low.abs() * 1e-6);
            let scale = Scale::linear(low, low + span, count);
            let values: Vec<f64> = scale.ticks.iter().map(|t| t.0).collect();
            prop_assert!((1..=count + 1).contains(&values.len()), "{:?}", values);
            prop_assert!(values.len() * 5 >= count, "{:?}", values);
            let near = span * 1e-8;
            prop_assert!(values[0] >= low - near && values[values.len() - 1] <= low + span + near);
            let steps: Vec<f64> = values.windows(2).map(|w| w[1] - w[0]).collect();
            for step in &steps {
                prop_assert!((step / steps[0] - 1.0).abs() < 1e-3, "{:?}", values);
            }
            let texts = texts(&scale);
            for (i, text) in texts.iter().enumerate() {
                prop_assert!(!texts[..i].contains(text), "{:?}", texts);
                let (number, unit) = match text.strip_suffix('k') {
                    Some(t) => (t, 1e3),
                    None => match text.strip_suffix('M') {
                        Some(t) => (t, 1e6),
                        None => (*text, 1.0),
                    },
                };
                let read = number.parse::<f64>().unwrap() * unit;
                let close = (read - values[i]).abs() <= span * 1e-2 / count as f64;
                prop_assert!(close, "{} for {}", text, values[i]);
            }
        }

        #[test]
        fn ticks_of_counts_are_whole(greatest in 0_u64..10_000_000) {
            for (value, _) in Scale::counts(greatest, 6).ticks {
                prop_assert_eq!(value.fract(), 0.0);
            }
        }
    }
}
