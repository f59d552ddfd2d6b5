//! Numbers as C's `%.6g` prints them.

/// `value` with six significant digits as C's `printf("%.6g")`: no trailing zeros, an exponent (of at least two digits)
/// below 1e-4 and from 1e6 on, exact ties to even.
pub fn six_digits(value: f64) -> String {
    if value.is_nan() {
        return "nan".into();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf" } else { "-inf" }.into();
    }
    // Rounded once here; the exponent is that of the rounded value (999999.5 is 1e+06).
    let scientific = format!("{value:.5e}");
    let (mantissa, exponent) = scientific
        .split_once('e')
        .expect("the e format writes an exponent");
    let exponent: i32 = exponent.parse().expect("the exponent is a number");
    if (-4..6).contains(&exponent) {
        // In range, so 0 to 9 decimals.
        let decimals = usize::try_from(5 - exponent).unwrap_or(0);
        without_trailing_zeros(&format!("{value:.decimals$}")).into()
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        let mantissa = without_trailing_zeros(mantissa);
        format!("{mantissa}e{sign}{:02}", exponent.abs())
    }
}

fn without_trailing_zeros(digits: &str) -> &str {
    if digits.contains('.') {
        digits.trim_end_matches('0').trim_end_matches('.')
    } else {
        digits
    }
}

#[cfg(test)]
mod tests {
    use super::six_digits;

    #[test]
    fn numbers_look_as_c_prints_them() {
        for (value, text) in [
            (0.0, "0"),
            (-0.0, "-0"),
            (1.0, "1"),
            (-2.5, "-2.5"),
            (100_000.0, "100000"),
            (123_456.0, "123456"),
            (999_999.0, "999999"),
            (999_999.4, "999999"),
            (999_999.5, "1e+06"),
            (1e6, "1e+06"),
            (1_234_567.0, "1.23457e+06"),
            (1e-4, "0.0001"),
            (1e-5, "1e-05"),
            (9.999994e-5, "9.99999e-05"),
            (9.9999996e-5, "0.0001"),
            (0.000123456789, "0.000123457"),
            (1.0 / 3.0, "0.333333"),
            (2.0 / 3.0, "0.666667"),
            (0.1 + 0.2, "0.3"),
            (3.0000001, "3"),
            (12_345.65, "12345.6"),
            (0.5000005, "0.5"),
            (1e100, "1e+100"),
            (1.5e-300, "1.5e-300"),
            (5e-324, "4.94066e-324"),
            (f64::MAX, "1.79769e+308"),
            // Exact ties go to the even digit.
            (500_000.25, "500000"),
            (100_000.5, "100000"),
            (100_001.5, "100002"),
            (1_000_005.0, "1e+06"),
            (1_000_015.0, "1.00002e+06"),
            (f64::NAN, "nan"),
            (f64::INFINITY, "inf"),
            (f64::NEG_INFINITY, "-inf"),
        ] {
            assert_eq!(six_digits(value), text, "{value:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn what_is_printed_reads_back_to_within_half_a_unit_of_the_sixth_digit(bits: u64) {
            let value = f64::from_bits(bits);
            if value.is_finite() && value.abs() > 1e-300 {
                let back: f64 = six_digits(value).parse().unwrap();
                proptest::prop_assert!(((back - value) / value).abs() <= 5.000001e-6 || back.is_infinite());
            }
        }
    }
}
