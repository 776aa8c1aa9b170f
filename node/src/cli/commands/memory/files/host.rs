//! A directory of this machine.
//!
//! Links and special files are neither followed nor replaced. A file is written beside its place
//! and moved there whole, and only if it still says what it said when it was read.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Read, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use rhizome_memory::{FilePath, MAX_DEPTH, MAX_FILE, MAX_FILES, MEMORIES};

/// Files by their path below the directory, and what was left out, with the reason.
#[derive(Debug, Default)]
pub(super) struct Scan {
    pub(super) files: BTreeMap<String, String>,
    pub(super) skipped: BTreeMap<String, String>,
}

impl Scan {
    /// Notes what a path is, if it may be a file of memory; says whether it may.
    pub(super) fn takes(&mut self, rest: &str) -> bool {
        let parsed = FilePath::parse(&format!("{MEMORIES}/{rest}"));
        if let Err(error) = &parsed {
            self.skip(rest, error.to_string());
        }
        parsed.is_ok()
    }

    /// Notes what a file says, if it can be a file of memory.
    pub(super) fn take(&mut self, rest: &str, bytes: Vec<u8>) {
        if bytes.len() > MAX_FILE {
            return self.skip(rest, format!("it is larger than {MAX_FILE} bytes"));
        }
        match String::from_utf8(bytes) {
            Ok(text) => drop(self.files.insert(rest.to_owned(), text)),
            Err(_) => self.skip(rest, "it is not UTF-8 text".to_owned()),
        }
    }

    pub(super) fn skip(&mut self, rest: &str, why: String) {
        if self.skipped.len() < MAX_FILES {
            self.skipped.insert(rest.to_owned(), why);
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.files.len() >= MAX_FILES
    }
}

/// Returns whether a name is kept out of memory, and what memory has under it out of directories.
pub(super) fn is_hidden(rest: &str) -> bool {
    rest.split('/')
        .any(|name| name.starts_with('.') || name == "node_modules")
}

/// Reads the whole tree.
pub(super) fn scan(root: &Path) -> io::Result<Scan> {
    let mut scan = Scan::default();
    match fs::symlink_metadata(root) {
        Ok(found) if found.is_dir() => below(root, "", 0, &mut scan)?,
        Ok(_) => return Err(io::ErrorKind::NotADirectory.into()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    Ok(scan)
}

fn below(dir: &Path, prefix: &str, depth: usize, scan: &mut Scan) -> io::Result<()> {
    let mut entries: Vec<_> = fs::read_dir(dir)?.collect::<Result<_, _>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let name = entry.file_name();
        let rest = format!("{prefix}{}", name.to_string_lossy());
        if is_hidden(&name.to_string_lossy()) {
            continue;
        }
        if name.to_str().is_none() {
            scan.skip(&rest, "its name is not UTF-8".to_owned());
            continue;
        }
        if scan.is_full() {
            scan.skip(&rest, format!("there are {MAX_FILES} files already"));
            continue;
        }
        let kind = entry.file_type()?;
        if kind.is_dir() {
            if depth + 1 >= MAX_DEPTH {
                scan.skip(&rest, "it is too deep".to_owned());
                continue;
            }
            below(&entry.path(), &format!("{rest}/"), depth + 1, scan)?;
        } else if kind.is_file() {
            if scan.takes(&rest) {
                match read(&entry.path()) {
                    Ok(bytes) => scan.take(&rest, bytes),
                    Err(error) => scan.skip(&rest, error.to_string()),
                }
            }
        } else {
            scan.skip(&rest, "it is a link or a special file".to_owned());
        }
    }
    Ok(())
}

/// Reads a regular file, and one byte more than a file may have.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let no_link = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
    let flags = i32::try_from(no_link.bits()).expect("flags of open(2)");
    let file = fs::OpenOptions::new()
        .read(true)
        .custom_flags(flags)
        .open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is a link or a special file"));
    }
    let mut bytes = Vec::new();
    file.take(MAX_FILE as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Makes a file say `text` if it says `expected` now.
pub(super) fn write(root: &Path, rest: &str, expected: Option<&str>, text: &str) -> io::Result<()> {
    let path = place(root, rest, true)?;
    unchanged(&path, expected)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let draft = path.with_file_name(format!(".rhizome-{}-{name}.new", std::process::id()));
    let written = fs::File::create_new(&draft)
        .and_then(|mut file| {
            if let Ok(found) = fs::symlink_metadata(&path) {
                file.set_permissions(found.permissions())?;
            }
            file.write_all(text.as_bytes())?;
            file.sync_all()
        })
        .and_then(|()| unchanged(&path, expected))
        .and_then(|()| fs::rename(&draft, &path));
    if written.is_err() {
        let _ = fs::remove_file(&draft);
    }
    written
}

/// Deletes a file that says `expected`, and the directories that are then empty.
pub(super) fn delete(root: &Path, rest: &str, expected: &str) -> io::Result<()> {
    let path = place(root, rest, false)?;
    unchanged(&path, Some(expected))?;
    fs::remove_file(&path)?;
    let mut dir = path.parent();
    while let Some(empty) = dir.filter(|dir| *dir != root) {
        if fs::remove_dir(empty).is_err() {
            break;
        }
        dir = empty.parent();
    }
    Ok(())
}

/// Returns where a file is; every directory on the way is one, not a link to one.
fn place(root: &Path, rest: &str, make: bool) -> io::Result<PathBuf> {
    let mut path = root.to_owned();
    if make {
        fs::create_dir_all(root)?;
    }
    let mut names = rest.split('/').peekable();
    while let Some(name) = names.next() {
        path.push(name);
        if names.peek().is_none() {
            break;
        }
        match fs::symlink_metadata(&path) {
            Ok(found) if found.is_dir() => {}
            Ok(_) => return Err(io::ErrorKind::NotADirectory.into()),
            Err(error) if error.kind() == io::ErrorKind::NotFound && make => {
                fs::create_dir(&path)?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(path)
}

fn unchanged(path: &Path, expected: Option<&str>) -> io::Result<()> {
    let found = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
        Ok(_) => Some(read(path)?),
    };
    if found.as_deref() == expected.map(str::as_bytes) {
        Ok(())
    } else {
        Err(io::Error::other("it was changed meanwhile"))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_special_files_and_odd_names_stay_out() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        fs::create_dir_all(root.join("a/b")).unwrap();
        fs::write(root.join("a/b/c.md"), "text").unwrap();
        fs::write(root.join(".hidden"), "text").unwrap();
        fs::write(root.join("binary"), [0xff, 0xfe]).unwrap();
        fs::write(root.join("large"), vec![b'x'; MAX_FILE + 1]).unwrap();
        fs::write(root.join("back\\slash"), "text").unwrap();
        symlink("/etc/passwd", root.join("link")).unwrap();
        symlink("/etc", root.join("dir")).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            root.join("pipe"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR,
            0,
        )
        .unwrap();
        let scan = scan(root).unwrap();
        let files: Vec<_> = scan.files.into_iter().collect();
        assert_eq!(files, [("a/b/c.md".to_owned(), "text".to_owned())]);
        let skipped: Vec<_> = scan.skipped.keys().collect();
        assert_eq!(
            skipped,
            ["back\\slash", "binary", "dir", "large", "link", "pipe"]
        );
    }

    #[test]
    fn nothing_is_written_through_a_link_or_over_what_has_changed() {
        let dir = tempfile::tempdir().unwrap();
        let (root, outside) = (dir.path().join("tree"), dir.path().join("outside"));
        fs::create_dir_all(&outside).unwrap();
        write(&root, "a/b.md", None, "one").unwrap();
        assert_eq!(fs::read_to_string(root.join("a/b.md")).unwrap(), "one");
        assert!(write(&root, "a/b.md", None, "two").is_err());
        assert!(write(&root, "a/b.md", Some("other"), "two").is_err());
        write(&root, "a/b.md", Some("one"), "two").unwrap();
        assert!(delete(&root, "a/b.md", "one").is_err());
        delete(&root, "a/b.md", "two").unwrap();
        assert!(!root.join("a").exists(), "an empty directory goes too");

        symlink(&outside, root.join("dir")).unwrap();
        assert!(write(&root, "dir/x", None, "text").is_err());
        fs::write(outside.join("target"), "safe").unwrap();
        symlink(outside.join("target"), root.join("x")).unwrap();
        assert!(write(&root, "x", Some("safe"), "text").is_err());
        assert!(delete(&root, "x", "safe").is_err());
        assert_eq!(fs::read_to_string(outside.join("target")).unwrap(), "safe");
        let left: Vec<_> = fs::read_dir(&root).unwrap().collect();
        assert_eq!(left.len(), 2, "no draft is left");
    }
}
