//! Appends batches of records, one sync each, and reads them back.
//!
//! A batch is written, then synced, then acknowledged; the next one is not begun before. When a
//! write fails (a full disk), the file is cut back to the last synced byte and that is synced, so
//! that no half-written record can turn up later under a position that was given out again; then
//! the log goes on. When a sync fails, or the cut does, nobody knows what the disk holds: the log
//! takes no more writes until it is opened anew, and opening reads what is really there.

mod error;

use std::{
    collections::BTreeMap,
    io,
    sync::{Arc, Mutex, PoisonError, RwLock},
};

use bytes::Bytes;

pub use self::error::LogError;
use super::{
    RecoveryReport, StoreError,
    record::{
        FORMAT, HEAD, Head, Loc, MAX_PAYLOAD, RecordKind, SEGMENT_HEAD, SegmentHead, StoreKey, Tip,
    },
    recover::{self, Found},
    redo::{self, Overwrite},
};
use crate::disk::{Disk, DiskFile};

/// The directory of the segments.
pub(crate) const DIR: &str = "segments";
/// A segment that has reached this length, in bytes, is followed by a new one.
pub(crate) const SEGMENT_BYTES: u64 = 64 * 1024 * 1024;

/// A record to append.
#[derive(Debug, Clone)]
pub(crate) struct NewRecord {
    pub(crate) kind: RecordKind,
    pub(crate) payload: Bytes,
}

/// The segments of one node.
#[derive(Debug)]
pub(crate) struct Log {
    disk: Arc<dyn Disk>,
    key: StoreKey,
    segment_bytes: u64,
    files: RwLock<BTreeMap<u32, Arc<dyn DiskFile>>>,
    /// Nobody reads a record while it is being overwritten: half of each would look like damage.
    overwriting: RwLock<()>,
    tail: Mutex<Tail>,
}

#[derive(Debug)]
struct Tail {
    segment: u32,
    /// Where the next record goes; everything before it is synced, but for a commit record.
    end: u64,
    batch: u64,
    arrival: u64,
    /// The commit record of the last batch, until it is written.
    commit: Option<Vec<Tip>>,
    state: State,
    buffer: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    ReadOnly,
    Closed,
}

/// Where to begin reading when the log is opened: everything before is known from the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Place {
    pub(crate) segment: u32,
    pub(crate) offset: u64,
    /// The last batch before it; it was synced.
    pub(crate) batch: u64,
    /// The last arrival before it.
    pub(crate) arrival: u64,
}

impl Log {
    /// Opens the segments; hands every record from `place` on to `found`, in order, commit records
    /// included.
    pub(crate) fn open(
        disk: Arc<dyn Disk>,
        key: StoreKey,
        segment_bytes: u64,
        place: Place,
        report: &mut RecoveryReport,
        mut found: impl FnMut(&Found, &[u8]),
    ) -> Result<Self, StoreError> {
        disk.create_dir(DIR).map_err(|source| StoreError::Io {
            file: DIR.into(),
            source,
        })?;
        finish_overwriting(&*disk, &key)?;
        let numbers = numbers(&*disk)?;
        let last = numbers.last().copied();
        let mut files = BTreeMap::new();
        let (mut batch, mut arrival) = (place.batch, place.arrival);
        let mut end = 0;
        for number in numbers {
            let name = name(number);
            let io = |source| StoreError::Io {
                file: name.clone(),
                source,
            };
            let file = disk.open(&name).map_err(io)?;
            files.insert(number, Arc::clone(&file));
            report.segments += 1;
            if number < place.segment {
                continue;
            }
            let bytes = disk.read(&name).map_err(io)?;
            check_head(&key, number, &name, &bytes, Some(number) == last, report)?;
            let from = if number == place.segment {
                place.offset
            } else {
                0
            };
            let scan = recover::scan(&key, number, &bytes, from, batch, Some(number) == last);
            for record in &scan.records {
                arrival = arrival.max(record.head.arrival);
                report.replayed += u64::from(record.head.arrival > 0);
                found(record, &bytes[record.payload()]);
            }
            batch = scan.batch;
            report.damage.extend(&scan.damage);
            report.torn_bytes += scan.torn;
            end = scan.end;
            if Some(number) == last {
                settle_tail(&*file, &key, number, &bytes, &scan).map_err(io)?;
                end = end.max(SEGMENT_HEAD as u64);
            }
        }
        let tail = Tail {
            segment: last.unwrap_or(0),
            end,
            batch,
            arrival,
            commit: None,
            state: State::Open,
            buffer: Vec::new(),
        };
        let tail = Mutex::new(tail);
        Ok(Self {
            disk,
            key,
            segment_bytes,
            files: RwLock::new(files),
            overwriting: RwLock::default(),
            tail,
        })
    }

    /// Appends a batch and returns once it is durable, with each record's place and arrival.
    ///
    /// `tips` says where the chains written here stand after this batch.
    ///
    /// # Errors
    /// [`LogError`]: then nothing of the batch is stored or ever will be, except after
    /// [`LogError::Sync`]: then opening the store again tells.
    pub(crate) fn append(
        &self,
        records: &[NewRecord],
        mut tips: Vec<Tip>,
    ) -> Result<Vec<(u64, Loc)>, LogError> {
        let mut tail = self.tail();
        let tail = &mut *tail;
        tail.check()?;
        self.roll(tail)?;
        let batch = tail.batch + 1;
        let mut buffer = std::mem::take(&mut tail.buffer);
        buffer.clear();
        if let Some(tips) = &tail.commit {
            write_commit(&self.key, &mut buffer, tail.batch, tips);
        }
        let mut places = Vec::with_capacity(records.len());
        for (index, record) in records.iter().enumerate() {
            let arrival = tail.arrival + 1 + index as u64;
            let len = u32::try_from(record.payload.len()).expect("a payload is bounded");
            debug_assert!(record.payload.len() <= MAX_PAYLOAD);
            let offset = tail.end + buffer.len() as u64;
            // More than 65,535 records of one batch share the last index: it only has to be past 0.
            let last = index + 1 == records.len();
            let index = u16::try_from(index).unwrap_or(u16::MAX);
            let head = Head {
                kind: record.kind,
                len,
                index,
                last,
                batch,
                arrival,
            };
            self.key.write(&mut buffer, head, &record.payload);
            places.push((
                arrival,
                Loc {
                    segment: tail.segment,
                    offset,
                    len,
                },
            ));
        }
        let written = self.write_synced(tail, &buffer);
        tail.buffer = buffer;
        written?;
        tail.end += tail.buffer.len() as u64;
        tail.batch = batch;
        tail.arrival += records.len() as u64;
        tips.truncate(Tip::MAX);
        tail.commit = Some(tips);
        if tail.buffer.capacity() > 1024 * 1024 {
            tail.buffer = Vec::new();
        }
        Ok(places)
    }

    /// Writes the commit record of the last batch, unsynced: call it when no batch follows at once.
    pub(crate) fn settle(&self) {
        let mut tail = self.tail();
        let tail = &mut *tail;
        if tail.state != State::Open {
            return;
        }
        let Some(tips) = tail.commit.take() else {
            return;
        };
        let mut record = Vec::new();
        write_commit(&self.key, &mut record, tail.batch, &tips);
        let Some(file) = self.file(tail.segment) else {
            return;
        };
        if file.write_at(tail.end, &record).is_ok() {
            tail.end += record.len() as u64;
        } else {
            // Nothing depends on it: the next batch overwrites what was written of it, and proves
            // the same.
            tail.commit = Some(tips);
        }
    }

    /// Puts fragments without their bodies in the place of fragments with them, for good; each
    /// payload is as long as the one before. Durable on return.
    ///
    /// # Errors
    /// [`LogError`]; what is there then is whole once the log was opened anew, old or new.
    pub(crate) fn strip(&self, payloads: &[(Loc, Vec<u8>)]) -> Result<(), LogError> {
        let mut entries = Vec::with_capacity(payloads.len());
        for (loc, payload) in payloads {
            let before = self.read(*loc).map(|(head, _)| head);
            // What is damaged holds nothing that could be read.
            let Some(before) = before.filter(|_| payload.len() == loc.len as usize) else {
                continue;
            };
            let head = Head {
                kind: RecordKind::Stripped,
                ..before
            };
            let mut record = Vec::with_capacity(HEAD + payload.len());
            self.key.write(&mut record, head, payload);
            entries.push(Overwrite {
                segment: loc.segment,
                offset: loc.offset,
                record,
            });
        }
        if entries.is_empty() {
            return Ok(());
        }
        let failed = |source| LogError::Write(Arc::new(source));
        let _alone = self
            .overwriting
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        // What an earlier one could not write comes first: its list is about to be replaced.
        redo::finish(&*self.disk, &self.key, DIR).map_err(failed)?;
        redo::overwrite(&*self.disk, &self.key, DIR, &entries).map_err(failed)
    }

    /// Does something while no record is being overwritten.
    pub(crate) fn unchanging<T>(&self, read: impl FnOnce() -> T) -> T {
        let _whole = self
            .overwriting
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        read()
    }

    /// Reads one record; `None` if it is not there or damaged.
    pub(crate) fn read(&self, loc: Loc) -> Option<(Head, Bytes)> {
        let _whole = self
            .overwriting
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        let len = usize::try_from(loc.len).ok()?;
        if len > MAX_PAYLOAD {
            return None;
        }
        let mut bytes = vec![0; HEAD + len];
        self.file(loc.segment)?
            .read_at(loc.offset, &mut bytes)
            .ok()?;
        let (head, payload) = self.key.read(&bytes)?;
        let from = bytes.len() - payload.len();
        Some((head, Bytes::from(bytes).slice(from..)))
    }

    /// Takes no more writes until the log is opened anew.
    pub(crate) fn refuse_writes(&self) {
        let mut tail = self.tail();
        if tail.state == State::Open {
            tail.state = State::ReadOnly;
        }
    }

    /// Returns where the next record goes.
    pub(crate) fn place(&self) -> Place {
        let tail = self.tail();
        Place {
            segment: tail.segment,
            offset: tail.end,
            batch: tail.batch,
            arrival: tail.arrival,
        }
    }

    /// Returns the segments in their order, each with the length up to which it is durable and will
    /// not change any more.
    pub(crate) fn point(&self) -> io::Result<Vec<(String, u64)>> {
        self.settle();
        // Under the lock, so that no batch is in the middle of being written.
        let tail = self.tail();
        let files = self.files.read().unwrap_or_else(PoisonError::into_inner);
        let measured = files.iter().map(|(number, file)| {
            let len = match *number == tail.segment {
                true => tail.end,
                false => file.len()?,
            };
            Ok((name(*number), len))
        });
        measured.collect()
    }

    /// Syncs what is not synced yet, and refuses every further write.
    pub(crate) fn close(&self) -> Result<(), LogError> {
        self.settle();
        let mut tail = self.tail();
        if tail.state != State::Open {
            return Ok(());
        }
        tail.state = State::Closed;
        match self.file(tail.segment) {
            Some(file) => file
                .sync()
                .map_err(|source| LogError::Sync(Arc::new(source))),
            None => Ok(()),
        }
    }

    /// Starts a new segment if there is none, or the last one is long enough.
    fn roll(&self, tail: &mut Tail) -> Result<(), LogError> {
        let is_new = self.file(tail.segment).is_none();
        if !is_new && tail.end < self.segment_bytes {
            return Ok(());
        }
        let number = if is_new {
            tail.segment.max(1)
        } else {
            tail.segment + 1
        };
        // The last commit record was not synced yet, and nothing will write behind it any more.
        if let Some(file) = self.file(tail.segment)
            && let Err(source) = file.sync()
        {
            tail.state = State::ReadOnly;
            return Err(LogError::Sync(Arc::new(source)));
        }
        let start = || -> io::Result<Arc<dyn DiskFile>> {
            let file = self.disk.open(&name(number))?;
            file.truncate(0)?;
            file.write_at(0, &self.key.segment_head(number, FORMAT))?;
            file.sync()?;
            self.disk.sync_dir(DIR)?;
            Ok(file)
        };
        match start() {
            Ok(file) => {
                self.files
                    .write()
                    .unwrap_or_else(PoisonError::into_inner)
                    .insert(number, file);
                tail.segment = number;
                tail.end = SEGMENT_HEAD as u64;
                Ok(())
            }
            Err(source) => {
                // Without a record in it the file means nothing; the next try writes it again.
                let _ = self.disk.remove(&name(number));
                Err(LogError::Write(Arc::new(source)))
            }
        }
    }

    fn write_synced(&self, tail: &mut Tail, buffer: &[u8]) -> Result<(), LogError> {
        let file = self.file(tail.segment).expect("the last segment is open");
        if let Err(source) = file.write_at(tail.end, buffer) {
            let cut = file.truncate(tail.end).and_then(|()| file.sync());
            if cut.is_err() {
                tail.state = State::ReadOnly;
            }
            return Err(LogError::Write(Arc::new(source)));
        }
        file.sync().map_err(|source| {
            tail.state = State::ReadOnly;
            LogError::Sync(Arc::new(source))
        })
    }

    fn file(&self, segment: u32) -> Option<Arc<dyn DiskFile>> {
        self.files
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&segment)
            .cloned()
    }

    fn tail(&self) -> std::sync::MutexGuard<'_, Tail> {
        self.tail.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tail {
    fn check(&self) -> Result<(), LogError> {
        match self.state {
            State::Open => Ok(()),
            State::ReadOnly => Err(LogError::ReadOnly),
            State::Closed => Err(LogError::Closed),
        }
    }
}

/// Ends what overwriting records began before a crash; before anything is read of the segments.
pub(crate) fn finish_overwriting(disk: &dyn Disk, key: &StoreKey) -> Result<(), StoreError> {
    redo::finish(disk, key, DIR).map_err(|source| StoreError::Io {
        file: DIR.into(),
        source,
    })
}

/// Returns whether an index that reaches to `place`, with `last` as its last record, is of these
/// segments.
pub(crate) fn is_there(
    disk: &dyn Disk,
    key: &StoreKey,
    place: Place,
    last: Option<(u64, Loc)>,
) -> bool {
    let Some((arrival, loc)) = last else {
        return place == Place::default();
    };
    let head_at = |loc: Loc| -> Option<Head> {
        let name = name(loc.segment);
        if !disk.exists(&name) || loc.len as usize > MAX_PAYLOAD {
            return None;
        }
        let mut bytes = vec![0; HEAD + loc.len as usize];
        disk.open(&name)
            .ok()?
            .read_at(loc.offset, &mut bytes)
            .ok()?;
        key.read(&bytes).map(|(head, _)| head)
    };
    let reaches = || {
        let name = name(place.segment);
        disk.exists(&name)
            && disk
                .open(&name)
                .and_then(|file| file.len())
                .is_ok_and(|len| len >= place.offset)
    };
    arrival == place.arrival
        && head_at(loc).is_some_and(|head| head.arrival == arrival)
        && reaches()
}

/// Returns the file name of a segment.
pub(crate) fn name(number: u32) -> String {
    format!("{DIR}/{number:08}.seg")
}

fn numbers(disk: &dyn Disk) -> Result<Vec<u32>, StoreError> {
    let names = disk.list(DIR).map_err(|source| StoreError::Io {
        file: DIR.into(),
        source,
    })?;
    let number = |name: &String| name.strip_suffix(".seg")?.parse().ok();
    let mut numbers: Vec<u32> = names.iter().filter_map(number).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

fn check_head(
    key: &StoreKey,
    number: u32,
    file: &str,
    bytes: &[u8],
    is_last: bool,
    report: &mut RecoveryReport,
) -> Result<(), StoreError> {
    match key.read_segment_head(bytes, number) {
        SegmentHead::Ours => Ok(()),
        SegmentHead::OtherNode(found) => Err(StoreError::OtherNode {
            file: file.into(),
            found,
            expected: key.node(),
        }),
        SegmentHead::Format(version) => Err(StoreError::Format {
            file: file.into(),
            version,
        }),
        SegmentHead::Damaged => {
            // A segment without a record yet was being created when the power went.
            if !is_last || bytes.len() > SEGMENT_HEAD {
                let to = bytes.len().min(SEGMENT_HEAD) as u64;
                report.damage.push(super::Damage {
                    segment: number,
                    from: 0,
                    to,
                });
            }
            Ok(())
        }
    }
}

/// Leaves the last segment as the log will go on from it: torn bytes cut, a good head, and an
/// unconfirmed batch on the platter for certain.
fn settle_tail(
    file: &dyn DiskFile,
    key: &StoreKey,
    number: u32,
    bytes: &[u8],
    scan: &recover::Scan,
) -> io::Result<()> {
    let head_is_good =
        bytes.len() >= SEGMENT_HEAD && key.read_segment_head(bytes, number) == SegmentHead::Ours;
    if scan.torn > 0 {
        file.truncate(scan.end)?;
    }
    if !head_is_good {
        file.write_at(0, &key.segment_head(number, FORMAT))?;
    }
    if let Some((from, to, batch)) = scan.unwritten
        && let Some(len) = usize::try_from(to - from)
            .ok()
            .and_then(|len| len.checked_sub(HEAD))
    {
        let mut filler = Vec::new();
        write_alone(key, &mut filler, RecordKind::Filler, batch, &vec![0; len]);
        file.write_at(from, &filler)?;
    }
    // After a failed sync the system may show bytes it never wrote, and count them as clean;
    // writing them again makes it write them.
    if let Some(from) = scan.unconfirmed_from {
        let start = usize::try_from(from).expect("a segment fits memory");
        let end = usize::try_from(scan.end).expect("a segment fits memory");
        file.write_at(from, &bytes[start..end])?;
    }
    file.sync()
}

fn write_commit(key: &StoreKey, out: &mut Vec<u8>, batch: u64, tips: &[Tip]) {
    write_alone(key, out, RecordKind::Commit, batch, &Tip::write_all(tips));
}

/// Writes a record that belongs to no batch.
fn write_alone(key: &StoreKey, out: &mut Vec<u8>, kind: RecordKind, batch: u64, payload: &[u8]) {
    let len = u32::try_from(payload.len()).expect("a payload is bounded");
    let head = Head {
        kind,
        len,
        index: 0,
        last: true,
        batch,
        arrival: 0,
    };
    key.write(out, head, payload);
}
