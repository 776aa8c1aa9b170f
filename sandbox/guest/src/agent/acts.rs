//! What is done with paths as a user names them: below a home, with owners, modes, attributes.
//!
//! All of it is done as root. The user says where relative paths begin and who owns what is made,
//! not what is allowed: whoever speaks for the host may do anything here.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs::{self, Metadata},
    io,
    os::unix::{
        ffi::{OsStrExt, OsStringExt},
        fs::{DirBuilderExt, MetadataExt, PermissionsExt, lchown, symlink},
    },
    path::{Component, Path, PathBuf},
    sync::Arc,
};

use rhizome_guest::{
    wire::{Act, Facts, FailureCode, FileAct, FileKind, Frame, Kind, MAX_PAYLOAD, Payload, clip},
    xattr::{self, Attributes},
};
use rustix::io::Errno;

use super::{
    failure::Failed,
    files::{Draft, target_of},
    stream::Stream,
    users::{self, User},
};

/// A frame of facts is sent when the next ones might not fit.
const FACTS_BYTES: usize = MAX_PAYLOAD - Facts::MAX_LEN;
/// Deepest tree that is listed or copied.
const MAX_DEPTH: u32 = 256;
/// Longest path that is told, in bytes.
const MAX_PATH: usize = 4096;
/// Mode of files and directories that are made without one.
const FILE_MODE: u32 = 0o644;
const DIR_MODE: u32 = 0o755;

/// Does one thing with a path.
pub(crate) fn run(stream: &Arc<Stream>, frame: &Frame) {
    let mut teller = Teller {
        stream,
        facts: Vec::new(),
        names: Names::default(),
    };
    match act(&mut teller, frame) {
        Ok(true) if stream.send_whole(Kind::FileFacts, &teller.facts) => {
            stream.send_empty(Kind::Done);
        }
        // The host has gone.
        Ok(_) => {}
        Err(Failed(failure)) => {
            stream.send(Kind::Failed, &failure);
        }
    }
}

/// Returns whether the stream still is.
fn act(teller: &mut Teller<'_>, frame: &Frame) -> Result<bool, Failed> {
    let request: FileAct = frame.message()?;
    let user = users::find(&request.user)
        .ok_or_else(|| Failed::new(FailureCode::NoSuchUser, "no such user or group"))?;
    let path = expand(&user, request.path)?;
    match request.act {
        Act::Look => teller.tell(&path),
        Act::List { depth } => list(teller, path, depth),
        Act::MakeDir => {
            match fs::metadata(&path) {
                Ok(found) if found.is_dir() => {
                    return Err(Failed::new(
                        FailureCode::AlreadyExists,
                        "the directory is there already",
                    ));
                }
                Ok(_) => {
                    return Err(Failed::new(
                        FailureCode::NotADirectory,
                        "there is something else under that name",
                    ));
                }
                Err(_) => make_dirs(&path, &user)?,
            }
            teller.tell(&path)
        }
        Act::Move { to } => {
            let to = expand(&user, to)?;
            fs::symlink_metadata(&path)?;
            if let Some(parent) = to.parent() {
                make_dirs(parent, &user)?;
            }
            rename(&path, &to)?;
            teller.tell(&to)
        }
        Act::Remove => {
            if path == Path::new("/") {
                return Err(Failed::new(FailureCode::Invalid, "that is everything"));
            }
            match fs::symlink_metadata(&path)?.is_dir() {
                true => fs::remove_dir_all(&path)?,
                false => fs::remove_file(&path)?,
            }
            Ok(true)
        }
        Act::Write { mode, attributes } => write(teller, path, &user, mode, &attributes),
    }
}

/// Returns the absolute path that a user means.
fn expand(user: &User, path: Vec<u8>) -> Result<PathBuf, Failed> {
    let path = PathBuf::from(OsString::from_vec(path));
    let home = Path::new(&user.home);
    let whole = match path.strip_prefix("~") {
        Ok(below) => home.join(below),
        Err(_) => home.join(path),
    };
    // As people read it, and as SDKs compare it: `a/./b//c` is `a/b/c`, `a/../b` is `b`.
    let mut clean = PathBuf::from("/");
    for part in whole.components() {
        match part {
            Component::ParentDir => drop(clean.pop()),
            Component::Normal(name) => clean.push(name),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    if clean.as_os_str().len() > MAX_PATH {
        return Err(Failed::new(FailureCode::Invalid, "the path is too long"));
    }
    Ok(clean)
}

fn list(teller: &mut Teller<'_>, root: PathBuf, depth: u32) -> Result<bool, Failed> {
    if !fs::metadata(&root)?.is_dir() {
        return Err(Failed::new(
            FailureCode::NotADirectory,
            "it is no directory",
        ));
    }
    // Depth first, each directory in the order of its names; links are not followed.
    let mut waiting: Vec<(PathBuf, u32)> = children(&root)?
        .into_iter()
        .rev()
        .map(|path| (path, 1))
        .collect();
    while let Some((path, at)) = waiting.pop() {
        // It may be gone since its name was read.
        let Ok(found) = fs::symlink_metadata(&path) else {
            continue;
        };
        if !teller.tell(&path)? {
            return Ok(false);
        }
        if found.is_dir() && at < depth.min(MAX_DEPTH) {
            let below = children(&path).unwrap_or_default();
            waiting.extend(below.into_iter().rev().map(|path| (path, at + 1)));
        }
    }
    Ok(true)
}

fn children(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut names: Vec<PathBuf> = fs::read_dir(directory)?
        .flatten()
        .map(|entry| entry.path())
        .collect();
    names.sort();
    Ok(names)
}

/// Makes a directory and those above it; what is made belongs to the user.
fn make_dirs(path: &Path, user: &User) -> Result<(), Failed> {
    let mut missing = Vec::new();
    for above in path.ancestors() {
        match fs::metadata(above) {
            Ok(found) if found.is_dir() => break,
            Ok(_) => {
                return Err(Failed::new(
                    FailureCode::NotADirectory,
                    "what is above it is no directory",
                ));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => missing.push(above),
            Err(error) => return Err(error.into()),
        }
    }
    for path in missing.into_iter().rev() {
        match fs::DirBuilder::new().mode(DIR_MODE).create(path) {
            // Set apart, since what is created is subject to the mask.
            Ok(()) => {
                fs::set_permissions(path, fs::Permissions::from_mode(DIR_MODE))?;
                own(path, user)?;
            }
            // Somebody else was quicker.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Gives something to a user. Only in tests are we not root: then it stays ours.
fn own(path: &Path, user: &User) -> io::Result<()> {
    if rustix::process::getuid().is_root() {
        lchown(path, Some(user.uid), Some(user.gid))?;
    }
    Ok(())
}

fn write(
    teller: &mut Teller<'_>,
    path: PathBuf,
    user: &User,
    mode: Option<u32>,
    attributes: &Attributes,
) -> Result<bool, Failed> {
    let target = target_of(path.clone())?;
    if let Some(parent) = target.parent() {
        make_dirs(parent, user)?;
    }
    let mut draft = Draft::beside(&target)?;
    if !draft.fill(teller.stream)? {
        return Ok(false);
    }
    let before = fs::metadata(&target).ok();
    let mode = mode.unwrap_or_else(|| before.map_or(FILE_MODE, |before| before.mode() & 0o7777));
    for (name, value) in attributes {
        let flags = rustix::fs::XattrFlags::empty();
        match rustix::fs::fsetxattr(&draft.file, name.as_slice(), value, flags) {
            Ok(()) => {}
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                return Err(Failed::new(
                    FailureCode::Unsupported,
                    "the file system there holds no attributes",
                ));
            }
            Err(error) => return Err(io::Error::from(error).into()),
        }
    }
    if rustix::process::getuid().is_root() {
        std::os::unix::fs::fchown(&draft.file, Some(user.uid), Some(user.gid))?;
    }
    // After the owner, whose change takes bits away.
    draft
        .file
        .set_permissions(fs::Permissions::from_mode(mode))?;
    draft.keep(&target)?;
    teller.tell(&path)
}

/// Moves a file or a tree, also to another file system: `/tmp` may be one, and what an image holds
/// is on another than what was written since.
fn rename(from: &Path, to: &Path) -> Result<(), Failed> {
    match fs::rename(from, to) {
        Err(error) if error.kind() == io::ErrorKind::CrossesDevices => {}
        other => return Ok(other?),
    }
    if to.starts_with(from) {
        return Err(Failed::new(
            FailureCode::Invalid,
            "a directory cannot be moved into itself",
        ));
    }
    // Where it goes it appears whole, as a rename would have it.
    let draft = to.with_file_name(format!(".rhizome-move-{}", std::process::id()));
    let moved = copy(from, &draft, 0).and_then(|()| Ok(fs::rename(&draft, to)?));
    if let Err(error) = moved {
        let _ = fs::remove_dir_all(&draft).or_else(|_| fs::remove_file(&draft));
        return Err(error);
    }
    match fs::symlink_metadata(from)?.is_dir() {
        true => fs::remove_dir_all(from)?,
        false => fs::remove_file(from)?,
    }
    Ok(())
}

fn copy(from: &Path, to: &Path, depth: u32) -> Result<(), Failed> {
    if depth > MAX_DEPTH {
        return Err(Failed::new(FailureCode::Invalid, "the tree is too deep"));
    }
    let found = fs::symlink_metadata(from)?;
    let kind = found.file_type();
    if kind.is_symlink() {
        symlink(fs::read_link(from)?, to)?;
    } else if kind.is_dir() {
        fs::DirBuilder::new().mode(0o700).create(to)?;
        for path in children(from)? {
            let name = path.file_name().unwrap_or_default();
            copy(&path, &to.join(name), depth + 1)?;
        }
    } else if kind.is_file() {
        fs::copy(from, to)?;
    } else {
        return Err(Failed::new(
            FailureCode::Unsupported,
            "pipes, sockets and devices are not moved to another file system",
        ));
    }
    if rustix::process::getuid().is_root() {
        lchown(to, Some(found.uid()), Some(found.gid()))?;
    }
    if !kind.is_symlink() {
        fs::set_permissions(to, found.permissions())?;
        if let Ok(modified) = found.modified() {
            let times = fs::FileTimes::new().set_modified(modified);
            fs::File::open(to)?.set_times(times)?;
        }
    }
    Ok(())
}

/// Tells facts in frames of a good size.
struct Teller<'a> {
    stream: &'a Stream,
    facts: Vec<u8>,
    names: Names,
}

impl Teller<'_> {
    /// Tells what a path is. Returns whether the stream still is.
    fn tell(&mut self, path: &Path) -> Result<bool, Failed> {
        if path.as_os_str().len() > MAX_PATH {
            return Ok(true);
        }
        let facts = self.facts_of(path)?;
        self.facts.extend_from_slice(&facts.to_payload());
        if self.facts.len() > FACTS_BYTES {
            let told = std::mem::take(&mut self.facts);
            return Ok(self.stream.send_whole(Kind::FileFacts, &told));
        }
        Ok(true)
    }

    fn facts_of(&mut self, path: &Path) -> Result<Facts, Failed> {
        let found = fs::symlink_metadata(path)?;
        let (kind, target) = if found.is_symlink() {
            let end = fs::canonicalize(path);
            let kind = fs::metadata(path).map_or(FileKind::Symlink, |leads| kind_of(&leads));
            (
                kind,
                end.or_else(|_| fs::read_link(path)).unwrap_or_default(),
            )
        } else {
            (kind_of(&found), PathBuf::new())
        };
        let nanoseconds = found
            .mtime()
            .saturating_mul(1_000_000_000)
            .saturating_add(found.mtime_nsec());
        Ok(Facts {
            path: path.as_os_str().as_bytes().to_vec(),
            kind,
            is_link: found.is_symlink(),
            mode: found.mode() & 0o7777,
            uid: found.uid(),
            gid: found.gid(),
            owner: self.names.user(found.uid()),
            group: self.names.group(found.gid()),
            size: found.len(),
            modified_ns: nanoseconds,
            target: target.into_os_string().into_vec(),
            // Where there are too many to be told, or none can be, none are.
            attributes: xattr::read(path).unwrap_or_default(),
        })
    }
}

fn kind_of(found: &Metadata) -> FileKind {
    let kind = found.file_type();
    if kind.is_file() {
        FileKind::File
    } else if kind.is_dir() {
        FileKind::Directory
    } else if kind.is_symlink() {
        FileKind::Symlink
    } else {
        FileKind::Other
    }
}

/// Names of users and groups, read once for each answer.
#[derive(Default)]
struct Names {
    users: Option<BTreeMap<u32, String>>,
    groups: Option<BTreeMap<u32, String>>,
}

impl Names {
    fn user(&mut self, uid: u32) -> String {
        let users = self.users.get_or_insert_with(|| read("/etc/passwd"));
        users.get(&uid).cloned().unwrap_or_else(|| uid.to_string())
    }

    fn group(&mut self, gid: u32) -> String {
        let groups = self.groups.get_or_insert_with(|| read("/etc/group"));
        groups.get(&gid).cloned().unwrap_or_else(|| gid.to_string())
    }
}

/// Reads `name:password:number:…` lines; the first of several names of a number counts.
fn read(path: &str) -> BTreeMap<u32, String> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let mut names = BTreeMap::new();
    for line in text.lines() {
        let mut fields = line.split(':');
        if let (Some(name), _, Some(Ok(number))) = (
            fields.next(),
            fields.next(),
            fields.next().map(str::parse::<u32>),
        ) {
            names
                .entry(number)
                .or_insert_with(|| clip(name, 255).to_owned());
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_begin_in_the_home() {
        let user = users::find("").unwrap();
        let at = |path: &str| expand(&user, path.as_bytes().to_vec()).unwrap();
        let home = PathBuf::from(&user.home);
        assert_eq!(at(""), home);
        assert_eq!(at("~"), home);
        assert_eq!(at("."), home);
        assert_eq!(at("~/a"), home.join("a"));
        assert_eq!(at("a/./b//c"), home.join("a/b/c"));
        assert_eq!(at("~a"), home.join("~a"));
        assert_eq!(at("/a/../../b"), Path::new("/b"));
        assert_eq!(at("/"), Path::new("/"));
        assert!(expand(&user, vec![b'a'; MAX_PATH + 1]).is_err());
    }
}
