//! The bytes that the kernel and a FUSE server exchange (Linux, `include/uapi/linux/fuse.h`),
//! as far as a read-only tree needs them.

use rhizome_guest::wire::{VolumeEntry, VolumeKind};

/// The protocol's version that we speak; an older kernel is refused, a newer one steps back.
pub(super) const MAJOR: u32 = 7;
pub(super) const MINOR: u32 = 31;

/// Nothing changes: the kernel may keep what it learned for this long, in seconds.
const VALID_SECONDS: u64 = 365 * 24 * 3600;

const ASYNC_READ: u32 = 1 << 0;
const NO_OPEN_SUPPORT: u32 = 1 << 17;
const PARALLEL_DIROPS: u32 = 1 << 18;
const MAX_PAGES: u32 = 1 << 22;
const CACHE_SYMLINKS: u32 = 1 << 23;
const NO_OPENDIR_SUPPORT: u32 = 1 << 24;

/// Bytes before a request's own.
const IN_HEADER: usize = 40;

/// What the kernel wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Op {
    Lookup {
        name: Vec<u8>,
    },
    Forget {
        nodes: Vec<(u64, u64)>,
    },
    GetAttr,
    ReadLink,
    Read {
        offset: u64,
        size: u32,
    },
    StatFs,
    ReadDir {
        offset: u64,
        size: u32,
    },
    Init {
        major: u32,
        max_readahead: u32,
        flags: u32,
    },
    /// Room for the value; 0 asks how long it is.
    GetXattr {
        size: u32,
        name: Vec<u8>,
    },
    /// Room for the names; 0 asks how long they are.
    ListXattr {
        size: u32,
    },
    Destroy,
    Interrupt,
    /// Anything that changes something.
    Change,
    /// Anything else.
    Other,
}

/// One request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) unique: u64,
    pub(super) node: u64,
    pub(super) op: Op,
}

impl Request {
    /// Reads what came from the kernel; `None` if it is too short to be anything.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let opcode = u32_at(bytes, 4)?;
        let unique = u64_at(bytes, 8)?;
        let node = u64_at(bytes, 16)?;
        let body = bytes.get(IN_HEADER..)?;
        let op = match opcode {
            1 => {
                let end = body.iter().position(|byte| *byte == 0)?;
                let name = body[..end].to_vec();
                Op::Lookup { name }
            }
            2 => {
                let nodes = vec![(node, u64_at(body, 0)?)];
                Op::Forget { nodes }
            }
            3 => Op::GetAttr,
            5 => Op::ReadLink,
            15 => Op::Read {
                offset: u64_at(body, 8)?,
                size: u32_at(body, 16)?,
            },
            17 => Op::StatFs,
            22 => {
                let name = body.get(8..)?;
                let end = name.iter().position(|byte| *byte == 0)?;
                Op::GetXattr {
                    size: u32_at(body, 0)?,
                    name: name[..end].to_vec(),
                }
            }
            23 => Op::ListXattr {
                size: u32_at(body, 0)?,
            },
            26 => Op::Init {
                major: u32_at(body, 0)?,
                max_readahead: u32_at(body, 8)?,
                flags: u32_at(body, 12)?,
            },
            28 => Op::ReadDir {
                offset: u64_at(body, 8)?,
                size: u32_at(body, 16)?,
            },
            36 => Op::Interrupt,
            38 => Op::Destroy,
            42 => {
                let count = u32_at(body, 0)? as usize;
                let all = body.get(8..)?.chunks_exact(16).take(count);
                let nodes = all.filter_map(|one| Some((u64_at(one, 0)?, u64_at(one, 8)?)));
                Op::Forget {
                    nodes: nodes.collect(),
                }
            }
            // SETATTR, SYMLINK, MKNOD, MKDIR, UNLINK, RMDIR, RENAME, LINK, WRITE, SETXATTR,
            // REMOVEXATTR, CREATE, FALLOCATE, RENAME2.
            4 | 6 | 8..=13 | 16 | 21 | 24 | 35 | 43 | 45 => Op::Change,
            _ => Op::Other,
        };
        Some(Self { unique, node, op })
    }
}

/// Returns a whole answer.
pub(super) fn answer(unique: u64, result: Result<Vec<u8>, rustix::io::Errno>) -> Vec<u8> {
    let (error, body) = match result {
        Ok(body) => (0, body),
        Err(errno) => (-errno.raw_os_error(), Vec::new()),
    };
    let len = u32::try_from(16 + body.len()).unwrap_or(u32::MAX);
    let mut out = len.to_le_bytes().to_vec();
    out.extend_from_slice(&error.to_le_bytes());
    out.extend_from_slice(&unique.to_le_bytes());
    out.extend_from_slice(&body);
    out
}

/// The answer to INIT.
pub(super) fn init(max_readahead: u32, flags: u32, max_read: u32) -> Vec<u8> {
    let wanted = ASYNC_READ
        | NO_OPEN_SUPPORT
        | PARALLEL_DIROPS
        | MAX_PAGES
        | CACHE_SYMLINKS
        | NO_OPENDIR_SUPPORT;
    let mut out = Out::default();
    out.u32(MAJOR);
    out.u32(MINOR);
    out.u32(max_readahead.min(max_read));
    out.u32(flags & wanted);
    // Requests in the background, and when that is a lot.
    out.u16(16);
    out.u16(12);
    // Longest write: there are none, and this is the least allowed.
    out.u32(4096);
    // Times are in nanoseconds.
    out.u32(1);
    out.u16(u16::try_from(max_read / 4096).unwrap_or(u16::MAX));
    out.u16(0);
    out.zeros(32);
    out.0
}

/// The answer to LOOKUP: a node, or that there is none, which is as true for as long.
pub(super) fn entry(found: Option<(u64, &VolumeEntry)>) -> Vec<u8> {
    let mut out = Out::default();
    out.u64(found.map_or(0, |(number, _)| number));
    out.u64(0);
    out.u64(VALID_SECONDS);
    out.u64(VALID_SECONDS);
    out.u32(0);
    out.u32(0);
    match found {
        Some((number, entry)) => out.attr(number, entry),
        None => out.zeros(88),
    }
    out.0
}

/// The answer to GETATTR.
pub(super) fn attr(number: u64, entry: &VolumeEntry) -> Vec<u8> {
    let mut out = Out::default();
    out.u64(VALID_SECONDS);
    out.u32(0);
    out.u32(0);
    out.attr(number, entry);
    out.0
}

/// The answer to STATFS: a file system without room.
pub(super) fn stat_fs() -> Vec<u8> {
    let mut out = Out::default();
    out.zeros(40);
    out.u32(4096);
    out.u32(255);
    out.u32(4096);
    out.zeros(28);
    out.0
}

/// The answer to GETXATTR and LISTXATTR: `bytes`, or how many they are if there is room for none.
pub(super) fn xattr(bytes: Vec<u8>, size: u32) -> Result<Vec<u8>, rustix::io::Errno> {
    if size == 0 {
        let mut out = Out::default();
        out.u32(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
        out.u32(0);
        return Ok(out.0);
    }
    if bytes.len() > size as usize {
        return Err(rustix::io::Errno::RANGE);
    }
    Ok(bytes)
}

/// Adds an entry to the answer to READDIR, if it fits. `next` is where the one after it is.
pub(super) fn push_dirent(
    out: &mut Vec<u8>,
    size: usize,
    number: u64,
    next: u64,
    kind: VolumeKind,
    name: &[u8],
) -> bool {
    let len = 24 + name.len();
    let padded = len.next_multiple_of(8);
    if out.len() + padded > size {
        return false;
    }
    let mut entry = Out::default();
    entry.u64(number);
    entry.u64(next);
    entry.u32(u32::try_from(name.len()).unwrap_or(u32::MAX));
    entry.u32(type_bits(kind) >> 12);
    entry.0.extend_from_slice(name);
    entry.zeros(padded - len);
    out.extend_from_slice(&entry.0);
    true
}

/// The bits of a mode that say what something is.
fn type_bits(kind: VolumeKind) -> u32 {
    match kind {
        VolumeKind::Directory | VolumeKind::FreshDirectory => 0o040_000,
        VolumeKind::Symlink => 0o120_000,
        _ => 0o100_000,
    }
}

#[derive(Default)]
struct Out(Vec<u8>);

impl Out {
    fn u16(&mut self, value: u16) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    fn u32(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    fn zeros(&mut self, count: usize) {
        self.0.resize(self.0.len() + count, 0);
    }

    fn attr(&mut self, number: u64, entry: &VolumeEntry) {
        let is_dir = matches!(
            entry.kind,
            VolumeKind::Directory | VolumeKind::FreshDirectory
        );
        let size = match entry.kind {
            VolumeKind::Symlink => entry.target.len() as u64,
            _ => entry.size,
        };
        let seconds = entry.mtime_ns.div_euclid(1_000_000_000).cast_unsigned();
        let nanos = u32::try_from(entry.mtime_ns.rem_euclid(1_000_000_000)).unwrap_or(0);
        self.u64(number);
        self.u64(size);
        self.u64(size.div_ceil(512));
        for _ in 0..3 {
            self.u64(seconds);
        }
        for _ in 0..3 {
            self.u32(nanos);
        }
        self.u32(type_bits(entry.kind) | entry.mode);
        self.u32(if is_dir { 2 } else { 1 });
        self.u32(entry.uid);
        self.u32(entry.gid);
        self.u32(0);
        self.u32(4096);
        self.u32(0);
    }
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}
