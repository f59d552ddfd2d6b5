//! A hash of what a split holds: the same images with the same boxes in the same order give the same text.

use super::Split;
use sha2::{Digest, Sha256};

/// SHA-256 in hexadecimal over classes, ids, names and sizes of images, and boxes; not over pixels.
#[must_use]
pub fn fingerprint<'a>(splits: impl IntoIterator<Item = &'a Split>) -> String {
    let mut hash = Sha256::new();
    let number = |hash: &mut Sha256, n: u64| hash.update(n.to_le_bytes());
    let text = |hash: &mut Sha256, t: &str| {
        hash.update((t.len() as u64).to_le_bytes());
        hash.update(t);
    };
    for split in splits {
        number(&mut hash, split.names.len() as u64);
        for (name, id) in split.names.iter().zip(&split.category_ids) {
            text(&mut hash, name);
            number(&mut hash, *id);
        }
        number(&mut hash, split.images.len() as u64);
        for image in &split.images {
            number(&mut hash, image.id);
            text(&mut hash, &image.file_name);
            number(
                &mut hash,
                u64::from(image.width) << 32 | u64::from(image.height),
            );
            number(&mut hash, image.labels.len() as u64);
            for label in &image.labels {
                number(&mut hash, label.class as u64);
                label
                    .xyxy
                    .iter()
                    .for_each(|v| hash.update(v.to_bits().to_le_bytes()));
            }
            number(&mut hash, image.truths.len() as u64);
            for truth in &image.truths {
                number(&mut hash, truth.id);
                number(
                    &mut hash,
                    (truth.class as u64) << 1 | u64::from(truth.crowd),
                );
                let figures = truth.bbox.iter().chain([&truth.area]);
                figures.for_each(|v| hash.update(v.to_bits().to_le_bytes()));
            }
        }
    }
    hash.finalize().iter().map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{ImageEntry, LabelBox, Truth};

    fn split() -> Split {
        let image = |id: u64| ImageEntry {
            id,
            file_name: format!("{id}.jpg"),
            path: "anywhere".into(),
            width: 10,
            height: 20,
            labels: vec![LabelBox {
                class: 0,
                xyxy: [0.0, 1.0, 2.0, 3.0],
            }],
            truths: vec![Truth {
                id: 5,
                class: 0,
                bbox: [0.0, 1.0, 2.0, 2.0],
                area: 4.0,
                crowd: false,
            }],
        };
        Split {
            names: vec!["a".into()],
            category_ids: vec![3],
            images: vec![image(1), image(2)],
            image_id_in_file: true,
        }
    }

    #[test]
    fn every_change_changes_it_and_the_place_of_the_files_does_not() {
        let changes: [fn(&mut Split); 9] = [
            |s| s.names[0].push('b'),
            |s| s.category_ids[0] = 4,
            |s| s.images.swap(0, 1),
            |s| drop(s.images.pop()),
            |s| s.images[0].width = 11,
            |s| s.images[1].labels[0].xyxy[2] = 2.5,
            |s| s.images[1].labels.clear(),
            |s| s.images[0].truths[0].crowd = true,
            |s| s.images[0].truths[0].area = 4.5,
        ];
        let of = |s: &Split| fingerprint([s]);
        let mut seen = std::collections::BTreeSet::from([of(&split())]);
        for change in changes {
            let mut s = split();
            change(&mut s);
            assert!(seen.insert(of(&s)));
        }
        let mut moved = split();
        moved.images[0].path = "elsewhere".into();
        assert_eq!(of(&moved), of(&split()));
        assert!(seen.insert(fingerprint([&split(), &split()])));
    }
}
