//! Where libraries and headers of CUDA lie: toolkits, PyPI wheels in Python environments (no Python is asked), the folder of
//! the program, and what `YOLO_TRAIN_CUDA_LIBS` names.

use serde::Serialize;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

/// Environment variable with more folders to search first: of libraries, or with `nvidia/…` of PyPI wheels in them.
pub const VARIABLE: &str = "YOLO_TRAIN_CUDA_LIBS";

/// A library that is loaded at run time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Library {
    Nvrtc,
    Nccl,
    Cudnn,
}

impl Library {
    /// Names that it is loaded by, the newest first.
    #[must_use]
    pub fn names(self) -> &'static [&'static str] {
        match self {
            Library::Nvrtc => &["libnvrtc.so.13", "libnvrtc.so.12"],
            Library::Nccl => &["libnccl.so.2"],
            Library::Cudnn => &["libcudnn.so.9"],
        }
    }

    /// Its folder in PyPI wheels, below `nvidia`.
    fn wheels(self) -> &'static [&'static str] {
        match self {
            Library::Nvrtc => &["cu13/lib", "cuda_nvrtc/lib"],
            Library::Nccl => &["nccl/lib"],
            Library::Cudnn => &["cudnn/lib"],
        }
    }
}

/// A library or a folder with headers, as found on this machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Part {
    pub path: Option<PathBuf>,
    pub version: Option<String>,
    /// Why it cannot be used.
    pub problem: Option<String>,
}

impl Part {
    #[cfg(feature = "cuda")]
    pub(super) fn missing(problem: impl Into<String>) -> Self {
        Part {
            problem: Some(problem.into()),
            ..Part::default()
        }
    }
}

/// Folders with headers in PyPI wheels, below `nvidia`: runtime, C++ library, internals of the compiler.
const HEADER_WHEELS: [&str; 4] = [
    "cu13/include",
    "cuda_runtime/include",
    "cuda_cccl/include",
    "cuda_nvcc/include",
];

/// The header that kernels cannot do without.
pub const HEADER: &str = "cuda_fp16.h";
/// What matrix products include; among PyPI wheels of CUDA 12 it is in another one.
pub const INNER_HEADER: &str = "crt/mma.h";

/// What the search looks at.
#[derive(Debug, Clone, Default)]
pub struct Search {
    /// `/`.
    root: PathBuf,
    /// Of [`VARIABLE`].
    given: Vec<PathBuf>,
    /// `CUDA_PATH` and `CUDA_HOME`.
    toolkits: Vec<PathBuf>,
    /// Of Python environments and the program's folder: prefixes with `lib/python3…/site-packages`.
    prefixes: Vec<PathBuf>,
    /// Folders with `nvidia/…` in them.
    packages: Vec<PathBuf>,
}

impl Search {
    /// Of this process.
    #[must_use]
    pub fn of_process() -> Self {
        let program = std::env::current_exe().ok();
        let program = program.and_then(|p| Some(p.parent()?.to_owned()));
        Search::of(Path::new("/"), |name| std::env::var_os(name), program)
    }

    fn of(root: &Path, get: impl Fn(&str) -> Option<OsString>, program: Option<PathBuf>) -> Self {
        let paths = |name: &str| -> Vec<PathBuf> {
            let set = get(name).unwrap_or_default();
            std::env::split_paths(&set)
                .filter(|path| path.is_absolute())
                .collect()
        };
        let one = |name: &str| paths(name).into_iter().next();
        let home = one("HOME");
        let pyenv = one("PYENV_ROOT").or_else(|| home.as_ref().map(|h| h.join(".pyenv")));
        let mut prefixes: Vec<PathBuf> = ["VIRTUAL_ENV", "CONDA_PREFIX"]
            .into_iter()
            .filter_map(one)
            .collect();
        prefixes.extend(home.map(|home| home.join(".local")));
        prefixes.extend(pyenv.into_iter().flat_map(|p| entries(&p.join("versions"))));
        prefixes.extend(["usr/local", "usr", "opt/conda"].map(|folder| root.join(folder)));
        Search {
            given: paths(VARIABLE),
            toolkits: ["CUDA_PATH", "CUDA_HOME"]
                .into_iter()
                .filter_map(one)
                .collect(),
            prefixes,
            packages: paths("PYTHONPATH").into_iter().chain(program).collect(),
            root: root.into(),
        }
    }

    /// Folders with `nvidia/…` of PyPI wheels in them.
    fn site_packages(&self) -> Vec<PathBuf> {
        let mut all = self.given.clone();
        all.extend(self.packages.iter().cloned());
        for prefix in &self.prefixes {
            for lib in ["lib", "lib64"] {
                let pythons = entries(&prefix.join(lib)).into_iter().filter(|path| {
                    let name = path.file_name().unwrap_or_default();
                    name.to_string_lossy().starts_with("python3")
                });
                for python in pythons {
                    all.extend(["site-packages", "dist-packages"].map(|f| python.join(f)));
                }
            }
        }
        all.retain(|folder| folder.join("nvidia").is_dir());
        all
    }

    /// Folders of CUDA toolkits.
    fn toolkits(&self) -> Vec<PathBuf> {
        let mut all = self.toolkits.clone();
        all.extend(["usr/local/cuda", "opt/cuda"].map(|folder| self.root.join(folder)));
        let versions = entries(&self.root.join("usr/local"))
            .into_iter()
            .filter(|path| {
                let name = path.file_name().unwrap_or_default();
                name.to_string_lossy().starts_with("cuda-")
            });
        all.extend(versions);
        all
    }

    /// Files of a library, best first; the linker's own search comes between those that the user names and the others, and
    /// stands as a bare name.
    #[must_use]
    pub fn library(&self, library: Library) -> Vec<PathBuf> {
        let mut given = vec![];
        for folder in &self.given {
            given.extend([folder.clone(), folder.join("lib"), folder.join("lib64")]);
        }
        given.extend(self.wheel_folders(&self.given, library));
        let mut others = vec![];
        for toolkit in self.toolkits() {
            others.extend(["lib64", "lib", "targets/x86_64-linux/lib"].map(|f| toolkit.join(f)));
        }
        others.extend(self.wheel_folders(&self.site_packages(), library));
        // conda packages, and what lies beside the program
        others.extend(self.prefixes.iter().map(|prefix| prefix.join("lib")));
        for folder in &self.packages {
            others.extend([folder.clone(), folder.join("lib"), folder.join("../lib")]);
        }
        let files = |folders: Vec<PathBuf>| -> Vec<PathBuf> {
            let in_folder =
                |folder: PathBuf| library.names().iter().map(move |name| folder.join(name));
            let mut files: Vec<_> = folders.into_iter().flat_map(in_folder).collect();
            files.retain(|file| file.is_file());
            files
        };
        let mut all = files(given);
        all.extend(library.names().iter().map(PathBuf::from));
        all.extend(files(others));
        let mut seen = vec![];
        all.retain(|file| {
            let new = !seen.contains(file);
            seen.push(file.clone());
            new
        });
        all
    }

    fn wheel_folders(&self, packages: &[PathBuf], library: Library) -> Vec<PathBuf> {
        let mut folders = vec![];
        for package in packages {
            let nvidia = package.join("nvidia");
            folders.extend(library.wheels().iter().map(|wheel| nvidia.join(wheel)));
        }
        folders
    }

    /// Sets of folders with headers, best first; the first folder of each has [`HEADER`].
    #[must_use]
    pub fn headers(&self) -> Vec<Headers> {
        let mut all = vec![];
        for folder in &self.given {
            all.push(vec![folder.join("include")]);
        }
        for toolkit in self.toolkits() {
            all.push(vec![toolkit.join("include")]);
        }
        for package in self.site_packages() {
            let folders = HEADER_WHEELS.map(|wheel| package.join("nvidia").join(wheel));
            let [cu13, rest @ ..] = folders;
            all.push(vec![cu13]);
            all.push(rest.to_vec());
        }
        all.extend(self.prefixes.iter().map(|p| vec![p.join("include")]));
        all.extend(
            self.prefixes
                .iter()
                .map(|p| vec![p.join("targets/x86_64-linux/include")]),
        );
        all.retain(|folders| folders[0].join(HEADER).is_file());
        let mut found: Vec<Headers> = all.into_iter().map(Headers::of).collect();
        found.dedup();
        found
    }
}

/// Folders with headers that belong together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Headers {
    /// The first has [`HEADER`].
    pub folders: Vec<PathBuf>,
    /// Version of CUDA, as 12040 for 12.4.
    pub version: Option<i32>,
}

impl Headers {
    fn of(mut folders: Vec<PathBuf>) -> Self {
        folders.retain(|folder| folder.is_dir());
        let defined = |file: &str, name: &str| -> Option<i32> {
            let text = fs::read_to_string(folders.first()?.join(file)).ok()?;
            text.lines().find_map(|line| {
                let rest = line.strip_prefix("#define")?.trim_start();
                rest.strip_prefix(name)?.trim().parse().ok()
            })
        };
        let version = defined("cuda_runtime_api.h", "CUDART_VERSION")
            .or_else(|| defined("cuda.h", "CUDA_VERSION"));
        Headers { folders, version }
    }

    /// Whether nothing is missing that kernels include.
    #[must_use]
    pub fn are_complete(&self) -> bool {
        self.folders.iter().any(|f| f.join(INNER_HEADER).is_file())
    }

    /// A folder that has them all in its `include`, which is what the kernels' compiler wants to know (`CUDA_PATH`). Where
    /// wheels keep them in several places, links to all are put together in `cache`.
    ///
    /// # Errors
    /// Those of making folders and links.
    pub fn home(&self, cache: &Path) -> std::io::Result<PathBuf> {
        if let [only] = &self.folders[..]
            && only.ends_with("include")
            && let Some(home) = only.parent()
        {
            return Ok(home.to_owned());
        }
        let home = cache.join(format!("cuda-headers-{:016x}", self.mark()));
        let include = home.join("include");
        if include.join(HEADER).exists() {
            return Ok(home);
        }
        // under a name of its own first: another rank may do the same
        let own = cache.join(format!("cuda-headers-{}", std::process::id()));
        fs::create_dir_all(own.join("include"))?;
        for folder in &self.folders {
            for entry in entries(folder) {
                let name = entry.file_name().unwrap_or_default();
                let link = own.join("include").join(name);
                if !link.exists() {
                    link_to(&entry, &link)?;
                }
            }
        }
        if fs::rename(&own, &home).is_err() {
            // whoever came first has made the same
            let _ = fs::remove_dir_all(&own);
        }
        match include.join(HEADER).exists() {
            true => Ok(home),
            false => Err(std::io::Error::other(format!(
                "{} cannot be made",
                home.display()
            ))),
        }
    }

    /// FNV-1a of the folders' names.
    fn mark(&self) -> u64 {
        let names = self
            .folders
            .iter()
            .flat_map(|f| f.as_os_str().as_encoded_bytes());
        names.fold(0xcbf2_9ce4_8422_2325, |h, &b| {
            (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3)
        })
    }
}

#[cfg(unix)]
fn link_to(target: &Path, link: &Path) -> std::io::Result<()> {
    std::os::unix::fs::symlink(target, link)
}

#[cfg(not(unix))]
fn link_to(target: &Path, link: &Path) -> std::io::Result<()> {
    match target.is_file() {
        true => fs::copy(target, link).map(|_| ()),
        false => Ok(()),
    }
}

/// Paths in a folder, in order; none where it cannot be read.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let read = fs::read_dir(folder).into_iter().flatten();
    let mut all: Vec<_> = read.filter_map(|entry| Some(entry.ok()?.path())).collect();
    all.sort();
    all
}

/// `12.4` of 12040.
#[must_use]
pub fn version_text(version: i32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn touch(root: &Path, file: &str, text: &str) {
        let path = root.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn search(root: &Path, variables: &[(&str, &str)]) -> Search {
        let get = |name: &str| {
            let found = variables.iter().find(|(n, _)| *n == name)?;
            Some(root.join(found.1).into_os_string())
        };
        Search::of(root, get, Some(root.join("bin")))
    }

    #[test]
    fn libraries_of_wheels_are_found_after_those_the_linker_knows() {
        let t = tempfile::tempdir().unwrap();
        let root = t.path();
        let wheel = "venv/lib/python3.11/site-packages/nvidia/nccl/lib/libnccl.so.2";
        touch(root, wheel, "");
        touch(
            root,
            "usr/local/lib/python3.12/dist-packages/nvidia/nccl/lib/libnccl.so.2",
            "",
        );
        touch(root, "mine/libnccl.so.2", "");
        let plain = search(root, &[]).library(Library::Nccl);
        assert_eq!(plain.len(), 2);
        assert_eq!(plain[0], Path::new("libnccl.so.2"));
        let s = search(root, &[("VIRTUAL_ENV", "venv"), (VARIABLE, "mine")]);
        let found = s.library(Library::Nccl);
        assert_eq!(found[0], root.join("mine/libnccl.so.2"), "the user's first");
        assert_eq!(found[1], Path::new("libnccl.so.2"));
        assert_eq!(found[2], root.join(wheel));
        assert_eq!(found.len(), 4);
    }

    #[test]
    fn a_folder_that_the_user_names_may_hold_wheels() {
        let t = tempfile::tempdir().unwrap();
        touch(t.path(), "target/nvidia/cudnn/lib/libcudnn.so.9", "");
        let found = search(t.path(), &[(VARIABLE, "target")]).library(Library::Cudnn);
        assert_eq!(
            found[0],
            t.path().join("target/nvidia/cudnn/lib/libcudnn.so.9")
        );
    }

    #[test]
    fn headers_carry_their_version_and_those_of_several_wheels_are_put_together() {
        let t = tempfile::tempdir().unwrap();
        let root = t.path();
        let nvidia = "venv/lib/python3.11/site-packages/nvidia";
        touch(root, &format!("{nvidia}/cuda_runtime/include/{HEADER}"), "");
        touch(
            root,
            &format!("{nvidia}/cuda_runtime/include/cuda_runtime_api.h"),
            "/* */\n#define CUDART_VERSION  12040\n",
        );
        touch(root, &format!("{nvidia}/cuda_nvcc/include/crt/mma.h"), "");
        let found = search(root, &[("VIRTUAL_ENV", "venv")]).headers();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].version, Some(12040));
        assert_eq!(found[0].folders.len(), 2);
        assert!(found[0].are_complete());
        let cache = root.join("cache");
        let home = found[0].home(&cache).unwrap();
        assert!(home.join("include").join(HEADER).exists());
        assert!(home.join("include/crt/mma.h").exists());
        assert_eq!(found[0].home(&cache).unwrap(), home, "made once");
        assert_eq!(entries(&cache).len(), 1, "nothing else is left");
    }

    #[test]
    fn a_toolkit_is_a_home_by_itself() {
        let t = tempfile::tempdir().unwrap();
        touch(
            t.path(),
            &format!("usr/local/cuda-12.4/include/{HEADER}"),
            "",
        );
        let found = search(t.path(), &[]).headers();
        assert!(!found[0].are_complete(), "crt/mma.h is not there");
        let home = found[0].home(&t.path().join("cache")).unwrap();
        assert_eq!(home, t.path().join("usr/local/cuda-12.4"));
        assert!(!t.path().join("cache").exists());
    }

    #[test]
    fn versions_are_written_as_people_do() {
        assert_eq!(version_text(12040), "12.4");
        assert_eq!(version_text(13000), "13.0");
    }
}
