//! The pages that a guest on a template has written: they are with its monitor, in no file.
//!
//! A monitor maps a template privately, so the kernel copies a page when the guest first writes
//! to it. Which pages these are stands in `/proc/<pid>/pagemap`, and what is in them in
//! `/proc/<pid>/mem`; both want the right to trace the monitor, without which no guest is started
//! on a template ([`Overlay::can_be_read`]).
//!
//! The monitor may have been taken over by its guest: how it has mapped what is its own to say,
//! and a wrong answer gives a wrong memory to that guest alone. Whatever it says is bounded.

use std::{
    fs::{self, File},
    io::{self, Read},
    ops::Range,
    os::unix::fs::{FileExt, MetadataExt},
};

use rustix::fs::{FallocateFlags, fallocate};

use super::process_start;

/// Bytes of a page, and of what is known about one.
const PAGE: usize = 4096;
const PAGE_BYTES: u64 = PAGE as u64;
const ENTRY_BYTES: u64 = 8;
/// Entries that are read at once.
const ENTRIES: u64 = 8192;
/// Most bytes that are read of a process at once.
const PIECE_BYTES: u64 = 1024 * 1024;
/// Longest list of mappings that is read; a monitor's is some 30 KiB.
const MAX_MAPS_BYTES: u64 = 1024 * 1024;
/// Bits of an entry: the page is there, or swapped out; it belongs to a file.
const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
const OF_A_FILE: u64 = 1 << 61;
/// The right to trace processes of other users, as in `/proc/self/status`.
const CAP_SYS_PTRACE: u64 = 1 << 19;

/// A monitor that has a template mapped, named so that no other can be taken for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Overlay {
    pub(super) pid: u32,
    pub(super) started: u64,
}

/// A part of a file in a process's memory.
#[derive(Debug, PartialEq, Eq)]
struct Mapping {
    address: u64,
    /// Which bytes of the file.
    part: Range<u64>,
}

impl Overlay {
    /// Tells whether this daemon may read what its monitors keep, also after a restart.
    pub(super) fn can_be_read() -> bool {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let root = rustix::process::geteuid().is_root();
        may_trace(
            root,
            &read("/proc/self/status"),
            &read("/proc/sys/kernel/yama/ptrace_scope"),
        )
    }

    /// Fails unless the monitor has `file` mapped and can be read.
    pub(super) fn check(&self, file: &File) -> io::Result<()> {
        let process = self.open()?;
        let mappings = self.mappings(file)?;
        let Some(mapping) = mappings.first() else {
            return Err(io::Error::other("the monitor has no template mapped"));
        };
        process.entries(mapping.address, 1)?;
        process.memory.read_exact_at(&mut [0], mapping.address)
    }

    /// Writes the guest's own pages over a copy of the template and returns the bytes written.
    /// The guest has to be paused. Blocks.
    pub(super) fn copy_to(&self, template: &File, to: &File, size: u64) -> io::Result<u64> {
        let process = self.open()?;
        let mut written = 0;
        for mapping in self.mappings(template)? {
            let end = mapping.part.end.min(size) / PAGE_BYTES * PAGE_BYTES;
            let mut at = mapping.part.start;
            while at < end {
                let count = ((end - at) / PAGE_BYTES).min(ENTRIES);
                let address = mapping.address + (at - mapping.part.start);
                for run in runs(&process.entries(address, count)?) {
                    let range = at + run.start * PAGE_BYTES..at + run.end * PAGE_BYTES;
                    let from = address + run.start * PAGE_BYTES;
                    written += process.copy(from, range, to)?;
                }
                at += count * PAGE_BYTES;
            }
        }
        Ok(written)
    }

    fn open(&self) -> io::Result<Process> {
        let open = |what| File::open(format!("/proc/{}/{what}", self.pid));
        let process = Process {
            pagemap: open("pagemap")?,
            memory: open("mem")?,
        };
        // Both stay with the process they were opened of; the number alone may be another's now.
        if process_start(self.pid) != Some(self.started) {
            return Err(io::Error::other("the monitor is gone"));
        }
        Ok(process)
    }

    fn mappings(&self, file: &File) -> io::Result<Vec<Mapping>> {
        let mut maps = String::new();
        File::open(format!("/proc/{}/maps", self.pid))?
            .take(MAX_MAPS_BYTES)
            .read_to_string(&mut maps)?;
        Ok(parse_maps(&maps, file.metadata()?.ino()))
    }
}

struct Process {
    pagemap: File,
    memory: File,
}

impl Process {
    fn entries(&self, address: u64, count: u64) -> io::Result<Vec<u64>> {
        let length = usize::try_from(count * ENTRY_BYTES).expect("few are read at once");
        let mut bytes = vec![0; length];
        self.pagemap
            .read_exact_at(&mut bytes, address / PAGE_BYTES * ENTRY_BYTES)?;
        let entries = bytes.as_chunks::<8>().0.iter();
        Ok(entries.map(|entry| u64::from_ne_bytes(*entry)).collect())
    }

    /// Copies from an address to a place in a file. What is zero becomes a hole.
    fn copy(&self, mut address: u64, range: Range<u64>, to: &File) -> io::Result<u64> {
        static ZERO: [u8; PAGE] = [0; PAGE];
        let mut buffer = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let length = (range.end - at).min(PIECE_BYTES);
            buffer.resize(usize::try_from(length).expect("a piece is small"), 0);
            self.memory.read_exact_at(&mut buffer, address)?;
            // Zero or not, in as few writes as there are changes between the two.
            for pages in buffer
                .chunks(ZERO.len())
                .collect::<Vec<_>>()
                .chunk_by(|a, b| (*a == ZERO) == (*b == ZERO))
            {
                let bytes = pages.concat();
                if pages[0] == ZERO {
                    let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                    fallocate(to, how, at, bytes.len() as u64)?;
                } else {
                    to.write_all_at(&bytes, at)?;
                }
                at += bytes.len() as u64;
            }
            address += length;
        }
        Ok(range.end - range.start)
    }
}

/// Returns where the writable private mappings of the file with this inode are.
fn parse_maps(maps: &str, inode: u64) -> Vec<Mapping> {
    let parse = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let (rights, offset) = (words.next()?, words.next()?);
        let _device = words.next()?;
        let of: u64 = words.next()?.parse().ok()?;
        // A memfd; inodes of other file systems have the same numbers.
        let ours = words.next()?.starts_with("/memfd:") && of == inode;
        if !ours || !rights.starts_with("rw") || !rights.ends_with('p') {
            return None;
        }
        let hex = |text| u64::from_str_radix(text, 16).ok();
        let (address, end, offset) = (hex(start)?, hex(end)?, hex(offset)?);
        let part = offset..offset.checked_add(end.checked_sub(address)?)?;
        Some(Mapping { address, part })
    };
    maps.lines().filter_map(parse).collect()
}

/// Returns the runs of pages that are the process's own, as indices.
fn runs(entries: &[u64]) -> Vec<Range<u64>> {
    let own = |entry: u64| entry & (PRESENT | SWAPPED) != 0 && entry & OF_A_FILE == 0;
    let mut runs: Vec<Range<u64>> = Vec::new();
    for (number, _) in (0..).zip(entries).filter(|(_, entry)| own(**entry)) {
        match runs.last_mut() {
            Some(run) if run.end == number => run.end += 1,
            _ => runs.push(number..number + 1),
        }
    }
    runs
}

fn may_trace(root: bool, status: &str, yama: &str) -> bool {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let held = line.and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
    if held.is_some_and(|held| held & CAP_SYS_PTRACE != 0) {
        return true;
    }
    // Monitors of an ordinary user are that user's, who may trace them unless told otherwise;
    // root's are of users of their own.
    !root && matches!(yama.trim(), "" | "0")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::GuestRam;

    #[test]
    fn mappings_are_found_by_inode_and_rights() {
        let maps = "\
7fba9bfff000-7fbaabfff000 rw-p 00000000 00:01 3544                       /memfd:rhizome-ram (deleted)
7fbaabfff000-7fbaac000000 rw-p 10000000 00:01 3544                       /memfd:rhizome-ram (deleted)
7fbaac000000-7fbaac001000 rw-s 00000000 00:01 3544                       /memfd:rhizome-ram (deleted)
7fbaac001000-7fbaac002000 r--p 00000000 00:01 3544                       /memfd:rhizome-ram (deleted)
7fbaac002000-7fbaac003000 rw-p 00000000 00:01 3545                       /memfd:rhizome-ram (deleted)
7fbaac003000-7fbaac004000 rw-p 00000000 08:01 3544                       /usr/lib/libc.so
7fbaac004000-7fbaac003000 rw-p 00000000 00:01 3544                       /memfd:rhizome-ram (deleted)
0-ffffffffffffffff rw-p ffffffffffffffff 00:01 3544                      /memfd:x
x-y rw-p z 00:01 3544 /memfd:x
7fbaac003000
";
        let found = parse_maps(maps, 3544);
        assert_eq!(
            found,
            [
                Mapping {
                    address: 0x7fba_9bff_f000,
                    part: 0..0x1000_0000
                },
                Mapping {
                    address: 0x7fba_abff_f000,
                    part: 0x1000_0000..0x1000_1000
                },
            ]
        );
    }

    #[test]
    fn own_pages_come_in_runs() {
        let file = PRESENT | OF_A_FILE;
        let entries = [PRESENT, SWAPPED, 0, file, PRESENT, file | SWAPPED];
        assert_eq!(runs(&entries), [0..2, 4..5]);
        assert!(runs(&[]).is_empty());
    }

    #[test]
    fn the_right_to_trace_is_read_off_the_host() {
        let with = "CapEff:\t000001fffeffffff\n";
        let without = "CapEff:\t00000000a80425fb\n";
        assert!(may_trace(true, with, "3"));
        assert!(!may_trace(true, without, "0"));
        assert!(may_trace(false, without, "0\n"));
        assert!(may_trace(false, "", ""));
        assert!(!may_trace(false, without, "1\n"));
    }

    #[test]
    fn a_process_without_the_template_is_told_from_one() {
        let pid = std::process::id();
        let started = process_start(pid).unwrap();
        let template = GuestRam::create(8).unwrap().copy().unwrap();
        let us = Overlay { pid, started };
        assert!(us.check(template.file()).is_err());
        let other = Overlay {
            pid,
            started: started + 1,
        };
        let error = other.check(template.file()).unwrap_err();
        assert!(error.to_string().contains("gone"), "{error}");
    }
}
