//! Between a [`Record`] and its payload bytes.

use minicbor::{Decode, Decoder, Encode, Encoder};

use super::{MAX_PARENTS, RECORD_VERSION, Record, RecordBody, RecordError, UnknownBody, is_name};
use crate::{
    cbor::{self, CborError},
    id::{MeshId, RecordId, SpaceId},
};

/// The longest reason of a revocation, in bytes.
const MAX_REASON_BYTES: usize = 512;

pub(crate) fn encode(record: &Record) -> Vec<u8> {
    let mut e = Encoder::new(Vec::with_capacity(256));
    write(&mut e, record).expect("writing to memory does not fail");
    e.into_writer()
}

fn write(
    e: &mut Encoder<Vec<u8>>,
    record: &Record,
) -> Result<(), minicbor::encode::Error<std::convert::Infallible>> {
    e.map(6)?;
    e.u8(0)?.u8(record.v)?;
    e.u8(1)?.encode(record.mesh)?;
    e.u8(2)?.encode(&record.parents)?;
    e.u8(3)?.u64(record.at_ms)?;
    e.u8(4)?.u64(kind_number(&record.body))?;
    e.u8(5)?;
    match &record.body {
        RecordBody::Genesis(body) => body.encode(e, &mut ()),
        RecordBody::Grant(body) => body.encode(e, &mut ()),
        RecordBody::SpaceCreate(body) => body.encode(e, &mut ()),
        RecordBody::InviteOpen(body) => body.encode(e, &mut ()),
        RecordBody::InviteClose(body) => body.encode(e, &mut ()),
        RecordBody::AgentCert(body) => body.encode(e, &mut ()),
        RecordBody::Revoke(body) => body.encode(e, &mut ()),
        RecordBody::Amend(body) => body.encode(e, &mut ()),
        RecordBody::KeyEpoch(body) => body.encode(e, &mut ()),
        RecordBody::RotateRoot(body) => body.encode(e, &mut ()),
        RecordBody::ForkProof(body) => body.encode(e, &mut ()),
        RecordBody::Checkpoint(body) => body.encode(e, &mut ()),
        RecordBody::Unknown(body) => {
            e.writer_mut().extend_from_slice(&body.raw);
            Ok(())
        }
    }
}

fn kind_number(body: &RecordBody) -> u64 {
    match body {
        RecordBody::Genesis(_) => 1,
        RecordBody::Grant(_) => 2,
        RecordBody::SpaceCreate(_) => 3,
        RecordBody::InviteOpen(_) => 4,
        RecordBody::InviteClose(_) => 5,
        RecordBody::AgentCert(_) => 6,
        RecordBody::Revoke(_) => 7,
        RecordBody::Amend(_) => 8,
        RecordBody::KeyEpoch(_) => 9,
        RecordBody::RotateRoot(_) => 10,
        RecordBody::ForkProof(_) => 11,
        RecordBody::Checkpoint(_) => 12,
        RecordBody::Unknown(body) => body.kind,
    }
}

/// Decodes a payload; the flag says whether all of it is known to this version.
pub(crate) fn decode(payload: &[u8]) -> Result<(Record, bool), RecordError> {
    cbor::check_canonical(payload)?;
    let record = read(payload).map_err(CborError::from)?;
    if record.v != RECORD_VERSION {
        return Err(RecordError::Version(record.v.into()));
    }
    check(&record)?;
    // What we would not write ourselves holds a field that we do not know.
    let understood = !matches!(record.body, RecordBody::Unknown(_)) && encode(&record) == payload;
    Ok((record, understood))
}

fn read(payload: &[u8]) -> Result<Record, minicbor::decode::Error> {
    let missing = minicbor::decode::Error::message;
    let mut d = Decoder::new(payload);
    let fields = d.map()?.ok_or_else(|| missing("a record is a map"))?;
    let (mut v, mut mesh, mut parents, mut at_ms, mut kind, mut body) =
        (None, None, None, None, None, None);
    for _ in 0..fields {
        match d.u64()? {
            0 => v = Some(d.u8()?),
            1 => mesh = Some(d.decode::<MeshId>()?),
            2 => parents = Some(d.decode::<Vec<RecordId>>()?),
            3 => at_ms = Some(d.u64()?),
            4 => kind = Some(d.u64()?),
            5 => {
                let start = d.position();
                d.skip()?;
                body = Some(&payload[start..d.position()]);
            }
            _ => d.skip()?,
        }
    }
    let kind = kind.ok_or_else(|| missing("a record has a kind"))?;
    let body = body.ok_or_else(|| missing("a record has a body"))?;
    Ok(Record {
        v: v.ok_or_else(|| missing("a record has a version"))?,
        mesh: mesh.ok_or_else(|| missing("a record has a mesh"))?,
        parents: parents.ok_or_else(|| missing("a record has parents"))?,
        at_ms: at_ms.ok_or_else(|| missing("a record has a time"))?,
        body: read_body(kind, body)?,
    })
}

fn read_body(kind: u64, raw: &[u8]) -> Result<RecordBody, minicbor::decode::Error> {
    fn body<'b, T: Decode<'b, ()>>(raw: &'b [u8]) -> Result<T, minicbor::decode::Error> {
        minicbor::decode(raw)
    }
    Ok(match kind {
        1 => RecordBody::Genesis(body(raw)?),
        2 => RecordBody::Grant(body(raw)?),
        3 => RecordBody::SpaceCreate(body(raw)?),
        4 => RecordBody::InviteOpen(body(raw)?),
        5 => RecordBody::InviteClose(body(raw)?),
        6 => RecordBody::AgentCert(body(raw)?),
        7 => RecordBody::Revoke(body(raw)?),
        8 => RecordBody::Amend(body(raw)?),
        9 => RecordBody::KeyEpoch(body(raw)?),
        10 => RecordBody::RotateRoot(body(raw)?),
        11 => RecordBody::ForkProof(body(raw)?),
        12 => RecordBody::Checkpoint(body(raw)?),
        _ => RecordBody::Unknown(UnknownBody {
            kind,
            raw: raw.to_vec(),
        }),
    })
}

/// Checks the rules of the layout that need no other record.
pub(super) fn check(record: &Record) -> Result<(), RecordError> {
    let malformed = |rule| Err(RecordError::Malformed(rule));
    let zero_mesh = record.mesh.as_bytes() == &[0; 32];
    if matches!(record.body, RecordBody::Genesis(_)) {
        if !record.parents.is_empty() || !zero_mesh {
            return malformed("a genesis has neither parents nor a mesh");
        }
    } else if record.parents.is_empty() || zero_mesh {
        return malformed("a record has parents and a mesh");
    }
    if record.parents.len() > MAX_PARENTS || !ascending(record.parents.iter()) {
        return malformed("parents are ascending and at most 16");
    }
    let (names, spaces): (Vec<&str>, Vec<&SpaceId>) = match &record.body {
        RecordBody::Genesis(body) => (vec![&body.name], vec![]),
        RecordBody::Grant(body) => (
            vec![&body.node_name],
            body.spaces.iter().map(|grant| &grant.space).collect(),
        ),
        RecordBody::SpaceCreate(body) => (vec![&body.name], vec![]),
        RecordBody::InviteOpen(body) => {
            if body.uses == 0 {
                return malformed("an invite has at least one use");
            }
            (vec![], body.spaces.iter().collect())
        }
        RecordBody::AgentCert(body) => (vec![&body.name], body.spaces.iter().flatten().collect()),
        RecordBody::Revoke(body) => {
            if body.reason.len() > MAX_REASON_BYTES {
                return malformed("a reason is at most 512 bytes");
            }
            (vec![], vec![])
        }
        _ => (vec![], vec![]),
    };
    if !names.into_iter().all(is_name) {
        return malformed("a name is 1 to 64 bytes without control characters or outer spaces");
    }
    if !ascending(spaces.into_iter()) {
        return malformed("spaces are ascending, each named once");
    }
    Ok(())
}

fn ascending<'a, T: Ord + 'a>(items: impl Iterator<Item = &'a T>) -> bool {
    items.is_sorted_by(|a, b| a < b)
}
