//! Messages as bytes (layout: `docs/sync.md`, "Parts").

use rhizome_identity::Hash;

use super::{Body, LOWEST, Part, ReconcileError};

/// Most short ids in one part.
pub(super) const MAX_PART_IDS: usize = 4096;

const DIGEST: u8 = 0;
const IDS: u8 = 1;
const WANT: u8 = 2;
/// Set when the range starts where the one before it ended.
const FOLLOWS: u8 = 0x80;
/// The length of a bound that stands for the end of all ids.
const END: u8 = 33;

/// Appends `parts` to `out`.
pub fn encode(parts: &[Part], out: &mut Vec<u8>) {
    let mut end = Some(LOWEST);
    for part in parts {
        encode_part(part, end, out);
        end = part.hi;
    }
}

/// Groups `parts` so that each group takes at most `max_bytes` once encoded.
///
/// A single part always fits: lists are short, and wanted ids are at most as many as were listed.
pub fn pack(parts: Vec<Part>, max_bytes: usize) -> Vec<Vec<Part>> {
    let mut groups: Vec<Vec<Part>> = Vec::new();
    let mut used = usize::MAX;
    for part in parts {
        let size = part_bound(&part);
        if used.saturating_add(size) > max_bytes {
            groups.push(Vec::new());
            used = 0;
        }
        used += size;
        groups.last_mut().expect("a group was opened").push(part);
    }
    groups
}

/// Reads all of `bytes`.
///
/// # Errors
/// Says what is wrong with bytes that [`encode`] would not have written.
pub fn decode(mut bytes: &[u8]) -> Result<Vec<Part>, ReconcileError> {
    let mut parts = Vec::new();
    let mut end = Some(LOWEST);
    while !bytes.is_empty() {
        let kind = byte(&mut bytes)?;
        let lo = if kind & FOLLOWS == 0 {
            let lo = bound(&mut bytes)?.ok_or(ReconcileError::BadBound)?;
            if end.is_none_or(|end| lo <= end) {
                return Err(ReconcileError::Unordered);
            }
            lo
        } else {
            end.ok_or(ReconcileError::Unordered)?
        };
        let hi = bound(&mut bytes)?;
        if hi.is_some_and(|hi| hi <= lo) {
            return Err(ReconcileError::Unordered);
        }
        let body = match kind & !FOLLOWS {
            DIGEST => Body::Digest(eight(&mut bytes)?),
            IDS => Body::Ids(short_ids(&mut bytes)?),
            WANT => Body::Want(short_ids(&mut bytes)?),
            other => return Err(ReconcileError::UnknownKind(other)),
        };
        end = hi;
        parts.push(Part { lo, hi, body });
    }
    Ok(parts)
}

fn encode_part(part: &Part, end: Option<Hash>, out: &mut Vec<u8>) {
    let kind = match part.body {
        Body::Digest(_) => DIGEST,
        Body::Ids(_) => IDS,
        Body::Want(_) => WANT,
    };
    if end == Some(part.lo) {
        out.push(kind | FOLLOWS);
    } else {
        out.push(kind);
        encode_bound(Some(&part.lo), out);
    }
    encode_bound(part.hi.as_ref(), out);
    match &part.body {
        Body::Digest(digest) => out.extend_from_slice(&digest.to_le_bytes()),
        Body::Ids(ids) | Body::Want(ids) => {
            encode_number(ids.len() as u64, out);
            for id in ids {
                out.extend_from_slice(&id.to_le_bytes());
            }
        }
    }
}

fn part_bound(part: &Part) -> usize {
    let bounds = 2 + bound_len(&part.lo) + part.hi.as_ref().map_or(0, bound_len);
    let body = match &part.body {
        Body::Digest(_) => 8,
        Body::Ids(ids) | Body::Want(ids) => 5 + 8 * ids.len(),
    };
    1 + bounds + body
}

fn bound_len(bound: &Hash) -> usize {
    32 - bound
        .as_bytes()
        .iter()
        .rev()
        .take_while(|byte| **byte == 0)
        .count()
}

fn encode_bound(bound: Option<&Hash>, out: &mut Vec<u8>) {
    let Some(bound) = bound else {
        out.push(END);
        return;
    };
    let len = bound_len(bound);
    out.push(u8::try_from(len).expect("at most 32"));
    out.extend_from_slice(&bound.as_bytes()[..len]);
}

fn bound(bytes: &mut &[u8]) -> Result<Option<Hash>, ReconcileError> {
    let len = byte(bytes)?;
    if len == END {
        return Ok(None);
    }
    if len > 32 {
        return Err(ReconcileError::BadBound);
    }
    let prefix = take(bytes, usize::from(len))?;
    if prefix.last() == Some(&0) {
        return Err(ReconcileError::BadBound);
    }
    let mut bound = [0; 32];
    bound[..prefix.len()].copy_from_slice(prefix);
    Ok(Some(Hash::from_bytes(bound)))
}

fn short_ids(bytes: &mut &[u8]) -> Result<Vec<u64>, ReconcileError> {
    let count = number(bytes)?;
    let len = usize::try_from(count)
        .ok()
        .filter(|len| *len <= MAX_PART_IDS)
        .ok_or(ReconcileError::TooManyIds(count))?;
    let ids = take(bytes, 8 * len)?.chunks_exact(8);
    Ok(ids
        .map(|id| u64::from_le_bytes(id.try_into().expect("eight bytes")))
        .collect())
}

fn eight(bytes: &mut &[u8]) -> Result<u64, ReconcileError> {
    let eight = take(bytes, 8)?;
    Ok(u64::from_le_bytes(eight.try_into().expect("eight bytes")))
}

fn encode_number(mut number: u64, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(low_seven(number) | 0x80);
        number >>= 7;
    }
    out.push(low_seven(number));
}

fn low_seven(number: u64) -> u8 {
    u8::try_from(number & 0x7f).expect("seven bits")
}

fn number(bytes: &mut &[u8]) -> Result<u64, ReconcileError> {
    let mut number = 0;
    for shift in (0..35).step_by(7) {
        let next = byte(bytes)?;
        number |= u64::from(next & 0x7f) << shift;
        if next & 0x80 == 0 {
            return Ok(number);
        }
    }
    Err(ReconcileError::BadNumber)
}

fn byte(bytes: &mut &[u8]) -> Result<u8, ReconcileError> {
    take(bytes, 1).map(|byte| byte[0])
}

fn take<'a>(bytes: &mut &'a [u8], len: usize) -> Result<&'a [u8], ReconcileError> {
    let (taken, rest) = bytes
        .split_at_checked(len)
        .ok_or(ReconcileError::Truncated)?;
    *bytes = rest;
    Ok(taken)
}
