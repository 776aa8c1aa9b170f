//! Counting what a change claims to hold, before anything is built from it.
//!
//! Columns of a change are run-length encoded: ten bytes can claim a billion operations, and
//! automerge would visit each. This scan walks the runs without expanding them, and lets through
//! only the columns that documents of the shape use, so that lists, marks and counters never reach
//! automerge's own parser, and texts only that of a file.
//!
//! Layout of a change chunk: <https://automerge.org/automerge-binary-format-spec/>.

use crate::{document::Shape, file::MAX_FILE};

/// Most operations of one change.
pub const MAX_OPS: u64 = 1024;
/// Most references to overwritten operations in one change.
pub const MAX_PREDS: u64 = 4096;
/// Most operations of one change of a file: its text goes and another comes, a character each.
pub const MAX_FILE_OPS: u64 = 2 * MAX_FILE as u64 + MAX_OPS;
/// Most other actors that a change names.
const MAX_ACTORS: u64 = 512;
/// Most dependencies that a change names: the fragment's, and the genesis.
const MAX_CHANGE_DEPS: u64 = 33;
/// Most bytes of a map key.
const MAX_MAP_KEY: u64 = 128;

const MAGIC: [u8; 4] = [0x85, 0x6f, 0x4a, 0x83];
const CHANGE_CHUNK: u8 = 1;
const COMPRESSED_CHUNK: u8 = 2;
const ACTOR_LEN: u64 = 16;
const MAX_COLUMNS: u64 = 12;

/// What is wrong with the bytes of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ScanError {
    /// It is a compressed chunk.
    Compressed,
    /// It is no change chunk, or ends early, or goes on too long.
    Malformed(&'static str),
    /// It claims more than is allowed.
    TooMany(&'static str),
}

use ScanError::{Malformed, TooMany};

/// What a change of a shape may claim.
struct Limits {
    operations: u64,
    overwritten: u64,
    has_text: bool,
}

impl Limits {
    fn of(shape: Shape) -> Self {
        match shape {
            Shape::Memory | Shape::Context => Self {
                operations: MAX_OPS,
                overwritten: MAX_PREDS,
                has_text: false,
            },
            Shape::File => Self {
                operations: MAX_FILE_OPS,
                overwritten: MAX_FILE_OPS,
                has_text: true,
            },
        }
    }
}

/// Checks the frame and the counts of one uncompressed change chunk.
pub(crate) fn scan(bytes: &[u8], shape: Shape) -> Result<(), ScanError> {
    let mut input = Cursor { rest: bytes };
    if input.take(4)? != MAGIC {
        return Err(Malformed("magic"));
    }
    input.take(4)?; // The checksum: the canonical re-encoding covers it.
    match input.take(1)? {
        [CHANGE_CHUNK] => {}
        [COMPRESSED_CHUNK] => return Err(ScanError::Compressed),
        _ => return Err(Malformed("chunk type")),
    }
    if input.uleb()? != input.rest.len() as u64 {
        return Err(Malformed("chunk length"));
    }
    let deps = input.uleb()?;
    at_most(deps, MAX_CHANGE_DEPS, "dependencies")?;
    input.skip(deps * 32)?;
    if input.uleb()? != ACTOR_LEN {
        return Err(Malformed("actor"));
    }
    input.skip(ACTOR_LEN)?;
    input.uleb()?; // seq
    input.uleb()?; // start_op
    if input.sleb()? != 0 {
        return Err(Malformed("time"));
    }
    if input.uleb()? != 0 {
        return Err(Malformed("message"));
    }
    let actors = input.uleb()?;
    at_most(actors, MAX_ACTORS, "actors")?;
    for _ in 0..actors {
        if input.uleb()? != ACTOR_LEN {
            return Err(Malformed("other actor"));
        }
        input.skip(ACTOR_LEN)?;
    }
    columns(&mut input, &Limits::of(shape))
}

fn columns(input: &mut Cursor<'_>, limits: &Limits) -> Result<(), ScanError> {
    let count = input.uleb()?;
    at_most(count, MAX_COLUMNS, "columns")?;
    let mut specs = Vec::with_capacity(12);
    for _ in 0..count {
        specs.push((input.uleb()?, input.uleb()?));
    }
    if !specs.is_sorted_by(|a, b| a.0 < b.0) {
        return Err(Malformed("column order"));
    }
    let mut operations = 0;
    for (spec, len) in specs {
        let mut column = Cursor {
            rest: input.skip(len)?,
        };
        let (rows, limit) = match spec {
            // obj actor, obj counter, pred actor; actors are indexes.
            0x01 | 0x02 => (column.runs(Cursor::uleb)?.rows, limits.operations),
            0x71 => (column.runs(Cursor::uleb)?.rows, limits.overwritten),
            // element actor; element counter, delta encoded
            0x11 if limits.has_text => (column.runs(Cursor::uleb)?.rows, limits.operations),
            0x13 if limits.has_text => (column.runs(Cursor::sleb)?.rows, limits.operations),
            // map key
            0x15 => (column.runs(Cursor::text)?.rows, limits.operations),
            // insert
            0x34 => (column.booleans()?, limits.operations),
            // action
            0x42 => {
                operations = column.runs(Cursor::uleb)?.rows;
                (operations, limits.operations)
            }
            // value metadata, value bytes
            0x56 => (column.runs(Cursor::uleb)?.rows, limits.operations),
            0x57 => (0, limits.operations),
            // pred count: its values add up to the rows of the two pred columns.
            0x70 => {
                let runs = column.runs(Cursor::uleb)?;
                at_most(runs.sum, limits.overwritten, "overwritten operations")?;
                (runs.rows, limits.operations)
            }
            // pred counter, delta encoded
            0x73 => (column.runs(Cursor::sleb)?.rows, limits.overwritten),
            _ => return Err(Malformed("column")),
        };
        at_most(rows, limit, "rows")?;
    }
    if operations == 0 {
        return Err(Malformed("no operation"));
    }
    if !input.rest.is_empty() {
        return Err(Malformed("trailing bytes"));
    }
    Ok(())
}

fn at_most(value: u64, limit: u64, what: &'static str) -> Result<(), ScanError> {
    if value > limit {
        Err(TooMany(what))
    } else {
        Ok(())
    }
}

/// What the runs of a column add up to; saturating, so that a claim can only grow too large.
#[derive(Default)]
struct Runs {
    rows: u64,
    sum: u64,
}

struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], ScanError> {
        let (taken, rest) = self.rest.split_at_checked(len).ok_or(Malformed("short"))?;
        self.rest = rest;
        Ok(taken)
    }

    fn skip(&mut self, len: u64) -> Result<&'a [u8], ScanError> {
        self.take(usize::try_from(len).map_err(|_| Malformed("short"))?)
    }

    fn uleb(&mut self) -> Result<u64, ScanError> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.take(1)?[0];
            let part = u64::from(byte & 0x7f);
            if shift == 63 && part > 1 {
                return Err(Malformed("number"));
            }
            value |= part << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Malformed("number"))
    }

    fn sleb(&mut self) -> Result<u64, ScanError> {
        Ok(self.signed()?.unsigned_abs())
    }

    fn signed(&mut self) -> Result<i64, ScanError> {
        let mut value = 0_i64;
        for shift in (0..64).step_by(7) {
            let byte = self.take(1)?[0];
            value |= i64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                if byte & 0x40 != 0 && shift + 7 < 64 {
                    value |= -1 << (shift + 7);
                }
                return Ok(value);
            }
        }
        Err(Malformed("number"))
    }

    fn text(&mut self) -> Result<u64, ScanError> {
        let len = self.uleb()?;
        at_most(len, MAX_MAP_KEY, "bytes of a key")?;
        self.skip(len)?;
        Ok(0)
    }

    fn runs(&mut self, item: fn(&mut Self) -> Result<u64, ScanError>) -> Result<Runs, ScanError> {
        let mut runs = Runs::default();
        while !self.rest.is_empty() {
            match self.signed()? {
                0 => runs.rows = runs.rows.saturating_add(self.uleb()?),
                literal if literal < 0 => {
                    let rows = literal.unsigned_abs();
                    // One item has at least one byte: a longer claim is refused before the walk.
                    if rows > self.rest.len() as u64 {
                        return Err(Malformed("short"));
                    }
                    runs.rows = runs.rows.saturating_add(rows);
                    for _ in 0..rows {
                        runs.sum = runs.sum.saturating_add(item(self)?);
                    }
                }
                repeated => {
                    let rows = repeated.unsigned_abs();
                    runs.rows = runs.rows.saturating_add(rows);
                    runs.sum = runs.sum.saturating_add(item(self)?.saturating_mul(rows));
                }
            }
        }
        Ok(runs)
    }

    fn booleans(&mut self) -> Result<u64, ScanError> {
        let mut rows = 0_u64;
        while !self.rest.is_empty() {
            rows = rows.saturating_add(self.uleb()?);
        }
        Ok(rows)
    }
}
