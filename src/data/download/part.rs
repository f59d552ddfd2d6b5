//! A file that is being downloaded: `NAME.part`, and beside it `NAME.part.json`, which says what the part is a part of, so that a later
//! process can go on with it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// What the part is a part of.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Origin {
    pub url: String,
    pub etag: Option<String>,
    pub last_modified: Option<String>,
    /// Bytes of the whole file.
    pub length: Option<u64>,
}

impl Origin {
    /// The value of `If-Range`: a strong entity tag, else the date. A weak tag does not promise equal bytes.
    pub fn validator(&self) -> Option<&str> {
        let strong = self.etag.as_deref().filter(|tag| !tag.starts_with("W/"));
        strong.or(self.last_modified.as_deref())
    }

    /// Whether `other` can be the same file as far as both say.
    pub fn agrees_with(&self, other: &Self) -> bool {
        fn agree<T: PartialEq>(a: &Option<T>, b: &Option<T>) -> bool {
            match (a, b) {
                (Some(a), Some(b)) => a == b,
                _ => true,
            }
        }
        agree(&self.etag, &other.etag)
            && agree(&self.last_modified, &other.last_modified)
            && agree(&self.length, &other.length)
    }
}

/// The names of a part and its description.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Part {
    pub path: PathBuf,
    description: PathBuf,
}

impl Part {
    /// Of the file that will be called `whole`.
    pub fn of(whole: &Path) -> Self {
        Self {
            path: with_suffix(whole, ".part"),
            description: with_suffix(whole, ".part.json"),
        }
    }

    /// Bytes that are there of `url`, and what of; nothing where the description is missing, torn or of another address.
    pub fn found(&self, url: &str) -> (u64, Origin) {
        let nothing = (
            0,
            Origin {
                url: url.to_owned(),
                ..Origin::default()
            },
        );
        let Ok(text) = fs::read(&self.description) else {
            return nothing;
        };
        let Ok(origin) = serde_json::from_slice::<Origin>(&text) else {
            return nothing;
        };
        let Ok(metadata) = fs::metadata(&self.path) else {
            return nothing;
        };
        let fits = origin.length.is_none_or(|length| metadata.len() <= length);
        if origin.url == url && metadata.is_file() && fits {
            (metadata.len(), origin)
        } else {
            nothing
        }
    }

    /// Opens the part to write on behind its first `have` bytes. A new beginning is described before any byte of it is there, so that no
    /// bytes are ever taken for those of another file.
    pub fn open(&self, have: u64, origin: &Origin) -> io::Result<File> {
        let mut file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&self.path)?;
        file.set_len(have)?;
        if have == 0 {
            fs::write(&self.description, serde_json::to_vec(origin)?)?;
        }
        file.seek(SeekFrom::Start(have))?;
        Ok(file)
    }

    pub fn exists(&self) -> bool {
        self.path.exists()
    }

    /// Gives the file its name.
    pub fn becomes(&self, whole: &Path) -> io::Result<()> {
        fs::rename(&self.path, whole)?;
        self.forget();
        Ok(())
    }

    /// Removes the part. Its description goes last: without it the part would be worth nothing.
    pub fn remove(&self) -> io::Result<()> {
        match fs::remove_file(&self.path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => self.forget(),
        }
        Ok(())
    }

    fn forget(&self) {
        // A description without a part says nothing; it is no reason to fail.
        let _ = fs::remove_file(&self.description);
    }
}

pub(super) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_os_string();
    name.push(suffix);
    PathBuf::from(name)
}
