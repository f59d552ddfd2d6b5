//! "Did you mean": the known word that a misspelt one most likely stands for.

/// The candidate nearest to `word`, or none where all are too far off. Case, `-` and `_` make no difference; of equally near
/// ones the first is taken.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = normalised(word);
    if word.is_empty() {
        return None;
    }
    let mut best: Option<(f64, &str)> = None;
    for candidate in candidates {
        let known = normalised(candidate);
        let likeness = likeness(&word, &known);
        if likeness > best.map_or(0.0, |(likeness, _)| likeness) {
            best = Some((likeness, candidate));
        }
    }
    best.map(|(_, candidate)| candidate)
}

fn normalised(word: &str) -> String {
    word.to_lowercase().replace('_', "-")
}

/// 0 where the words have too little in common, otherwise greater the nearer they are.
fn likeness(word: &str, known: &str) -> f64 {
    let (word_len, known_len) = (word.chars().count(), known.chars().count());
    let edits = strsim::osa_distance(word, known);
    let tolerated = word_len.max(known_len).div_ceil(4);
    if edits <= tolerated && edits < word_len.max(known_len) {
        return 2.0 - edits as f64 / (word_len.max(known_len) as f64);
    }
    // A word left unfinished: `warmup` for `warmup-epochs`.
    if word_len >= 3 && (known.starts_with(word) || word.starts_with(known) && known_len >= 3) {
        return word_len.min(known_len) as f64 / word_len.max(known_len) as f64;
    }
    0.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspelt_words_find_their_known_one_and_strangers_none() {
        let known = [
            "epochs",
            "batch",
            "close-mosaic",
            "warmup-epochs",
            "lr0",
            "lrf",
            "box",
        ];
        for (word, expected) in [
            ("epoch", Some("epochs")),
            ("Epcohs", Some("epochs")),
            ("batchsize", Some("batch")),
            ("close_mosiac", Some("close-mosaic")),
            ("warmup", Some("warmup-epochs")),
            ("lr", Some("lr0")),
            ("frobnicate", None),
            ("x", None),
            ("", None),
        ] {
            assert_eq!(nearest(word, known), expected, "{word}");
        }
    }
}
