//! Durations for people.

use std::time::Duration;

/// `350ms`, `12s`, `3m 20s`, `2h 5m`, `4d 1h`: the two largest units.
pub(crate) fn age(time: Duration) -> String {
    let seconds = time.as_secs();
    let two = |large: u64, unit: &str, small: u64, smaller: &str| match small {
        0 => format!("{large}{unit}"),
        small => format!("{large}{unit} {small}{smaller}"),
    };
    match seconds {
        0 => format!("{}ms", time.as_millis()),
        1..60 => format!("{seconds}s"),
        60..3_600 => two(seconds / 60, "m", seconds % 60, "s"),
        3_600..86_400 => two(seconds / 3_600, "h", seconds / 60 % 60, "m"),
        _ => two(seconds / 86_400, "d", seconds / 3_600 % 24, "h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_have_two_units() {
        let table = [
            (350, "350ms"),
            (12_900, "12s"),
            (60_000, "1m"),
            (200_000, "3m 20s"),
            (7_500_000, "2h 5m"),
            (90_000_000, "1d 1h"),
        ];
        for (millis, text) in table {
            assert_eq!(age(Duration::from_millis(millis)), text);
        }
    }
}
