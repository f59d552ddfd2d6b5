//! Names of files from archives and annotations, which others wrote: only below the folder that they belong into.

use std::path::PathBuf;

/// The relative path that `name` means, with `/` or `\` between its parts.
///
/// # Errors
/// In words: absolute, with `..`, a drive letter, a control character, or empty.
pub(crate) fn safe_path(name: &str) -> Result<PathBuf, &'static str> {
    if name.chars().any(char::is_control) {
        return Err("it has a control character in it");
    }
    if name.starts_with(['/', '\\']) {
        return Err("it is an absolute path");
    }
    let mut path = PathBuf::new();
    for part in name.split(['/', '\\']) {
        match part {
            "" | "." => {}
            ".." => return Err("it leads out of the folder with `..`"),
            part if path.as_os_str().is_empty() && part.as_bytes().get(1) == Some(&b':') => {
                return Err("it begins with the letter of a drive");
            }
            part => path.push(part),
        }
    }
    if path.as_os_str().is_empty() {
        return Err("it names nothing");
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use std::path::{Component, Path};

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_stay_below_their_folder_or_are_refused() {
        for (name, path) in [
            ("a.jpg", "a.jpg"),
            ("./images//a b.jpg", "images/a b.jpg"),
            ("images\\train\\ä.jpg", "images/train/ä.jpg"),
            ("..a/b..", "..a/b.."),
            ("a:b.jpg/", "a:b.jpg"),
        ] {
            if name.starts_with("a:") {
                assert!(safe_path(name).is_err());
            } else {
                assert_eq!(safe_path(name).unwrap(), Path::new(path), "{name}");
            }
        }
        for name in [
            "",
            ".",
            "//",
            "/etc/x",
            "\\x",
            "../x",
            "a/../../x",
            "a\\..\\x",
            "C:\\x",
            "a\nb",
            "a\0b",
        ] {
            assert!(safe_path(name).is_err(), "{name:?}");
        }
    }

    proptest! {
        #[test]
        fn whatever_the_name_nothing_leaves_the_folder(name in "[./\\\\a:C\\PC]{0,12}") {
            if let Ok(path) = safe_path(&name) {
                prop_assert!(path.components().all(|part| matches!(part, Component::Normal(_))));
                prop_assert!(Path::new("/root/folder").join(path).starts_with("/root/folder"));
            }
        }
    }
}
