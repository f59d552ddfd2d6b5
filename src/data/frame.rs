//! Whether boxes were drawn in the frame of the image as it is read: upright and of its size.

use super::decode::Header;
use super::report::{Finding, FindingKind};

/// Compares the annotated size of `image` with the file's.
pub(crate) fn check_size(
    image: &str,
    annotated: Option<(u64, u64)>,
    header: Header,
) -> Option<Finding> {
    let (width, height) = annotated?;
    let wide = |(width, height): (u32, u32)| (u64::from(width), u64::from(height));
    let upright = wide(header.upright());
    let stored = wide(header.stored);
    if (width, height) == upright {
        return None;
    }
    let (kind, reason) = if header.swaps_sides() && (width, height) == stored {
        (
            FindingKind::StoredFrame,
            format!(
                "annotated as stored, before its EXIF orientation {}, which makes it {} x {}: the boxes would be wrong; \
                 remove the orientation from the file, or annotate the upright image",
                header.orientation, upright.0, upright.1
            ),
        )
    } else {
        let exchanged = if (height, width) == upright {
            " (width and height are exchanged)"
        } else {
            ""
        };
        (
            FindingKind::SizeMismatch,
            format!(
                "the image is {} x {}{exchanged}: the boxes would be wrong",
                upright.0, upright.1
            ),
        )
    };
    Some(Finding::new(kind, image, reason).value(format!("{width} x {height}")))
}

/// Whether the annotated size shows which frame the boxes are in: it is that of the upright image, and
/// another than the stored one's.
pub(crate) fn is_confirmed(annotated: Option<(u64, u64)>, header: Header) -> bool {
    let (width, height) = header.stored;
    header.swaps_sides() && annotated.is_some() && width != height
}
