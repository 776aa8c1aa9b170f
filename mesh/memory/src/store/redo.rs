//! Overwrites records in place, so that a crash at any moment leaves each whole, old or new.
//!
//! What is to be written lies in a file of its own, synced and under its final name, before the
//! first byte of a segment changes, and is removed once the segments are synced. Opening writes
//! whatever such a file holds once more: as the same bytes go to the same places, it does not matter
//! how much of them was there already. In place, because then the old bytes are gone from the disk
//! and not merely from the directory, and because it costs what the records are long, not what the
//! segment is.

use std::{collections::BTreeSet, io};

use super::record::{CHECKSUM, StoreKey};
use crate::disk::Disk;

/// A record as it shall be, with its head.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Overwrite {
    pub(super) segment: u32,
    pub(super) offset: u64,
    pub(super) record: Vec<u8>,
}

const MAGIC: &[u8; 8] = b"RHZREDO\x01";
/// Segment, offset and length of an entry.
const ENTRY_HEAD: usize = 4 + 8 + 4;

/// What is to be written, under its final name.
fn file(dir: &str) -> String {
    format!("{dir}/redo")
}

/// Overwrites records; on return all of them are durable.
///
/// # Errors
/// What the disk said. Each record is then the old one or the new one once [`finish`] has run.
pub(super) fn overwrite(
    disk: &dyn Disk,
    key: &StoreKey,
    dir: &str,
    entries: &[Overwrite],
) -> io::Result<()> {
    let (name, partial) = (file(dir), format!("{}.part", file(dir)));
    let written = disk.open(&partial).and_then(|file| {
        file.truncate(0)?;
        file.write_at(0, &encode(key, entries))?;
        file.sync()?;
        disk.rename(&partial, &name)?;
        disk.sync_dir(dir)
    });
    if let Err(error) = written {
        let _ = disk.remove(&partial);
        return Err(error);
    }
    apply(disk, dir, entries)
}

/// Ends what an overwrite began before a crash, if there was one.
///
/// # Errors
/// What the disk said.
pub(super) fn finish(disk: &dyn Disk, key: &StoreKey, dir: &str) -> io::Result<()> {
    let name = file(dir);
    if !disk.exists(&name) {
        return Ok(());
    }
    match decode(key, &disk.read(&name)?) {
        Some(entries) => apply(disk, dir, &entries),
        // It was synced before it got its name: this is damage, and says nothing that can be
        // believed. The segments are as whole as they are, which reading them tells.
        None => {
            tracing::warn!(file = name, "a damaged list of overwrites is dropped");
            disk.remove(&name)?;
            disk.sync_dir(dir)
        }
    }
}

fn apply(disk: &dyn Disk, dir: &str, entries: &[Overwrite]) -> io::Result<()> {
    let segments: BTreeSet<u32> = entries.iter().map(|entry| entry.segment).collect();
    for number in segments {
        let name = super::log::name(number);
        if !disk.exists(&name) {
            continue;
        }
        let file = disk.open(&name)?;
        let len = file.len()?;
        for entry in entries.iter().filter(|entry| entry.segment == number) {
            // Never more than was there: a record that is gone stays gone.
            if entry.offset.saturating_add(entry.record.len() as u64) <= len {
                file.write_at(entry.offset, &entry.record)?;
            }
        }
        file.sync()?;
    }
    disk.remove(&file(dir))?;
    disk.sync_dir(dir)
}

fn encode(key: &StoreKey, entries: &[Overwrite]) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    for entry in entries {
        let len = u32::try_from(entry.record.len()).expect("a record is bounded");
        bytes.extend_from_slice(&entry.segment.to_be_bytes());
        bytes.extend_from_slice(&entry.offset.to_be_bytes());
        bytes.extend_from_slice(&len.to_be_bytes());
        bytes.extend_from_slice(&entry.record);
    }
    let check = key.checksum(&bytes, &[]);
    bytes.extend_from_slice(&check);
    bytes
}

fn decode(key: &StoreKey, bytes: &[u8]) -> Option<Vec<Overwrite>> {
    let (fields, check) = bytes.split_at_checked(bytes.len().checked_sub(CHECKSUM)?)?;
    if key.checksum(fields, &[]) != check {
        return None;
    }
    let mut rest = fields.strip_prefix(MAGIC)?;
    let mut entries = Vec::new();
    while !rest.is_empty() {
        let (head, tail) = rest.split_at_checked(ENTRY_HEAD)?;
        let len = u32::from_be_bytes(head[12..].try_into().ok()?);
        let (record, tail) = tail.split_at_checked(usize::try_from(len).ok()?)?;
        entries.push(Overwrite {
            segment: u32::from_be_bytes(head[..4].try_into().ok()?),
            offset: u64::from_be_bytes(head[4..12].try_into().ok()?),
            record: record.to_vec(),
        });
        rest = tail;
    }
    Some(entries)
}
