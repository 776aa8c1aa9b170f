//! The frames of a join, for [`crate::fuzz`].

use bytes::Bytes;
use rhizome_identity::{InviteId, MeshId};

use super::{
    records,
    wire::{Refused, Request, VERSION, kind},
};

/// Reads `payload` as whoever receives a frame of this kind does.
pub(crate) fn frame(kind: u8, payload: &Bytes) {
    match kind {
        kind::REQUEST => {
            if let Ok(request) = minicbor::decode::<Request>(payload) {
                let again = minicbor::to_vec(&request).expect("memory takes every byte");
                let read: Request = minicbor::decode(&again).expect("our own spelling");
                assert_eq!(read, request);
            }
        }
        kind::REFUSED => {
            if let Ok(refused) = minicbor::decode::<Refused>(payload) {
                let _ = refused.refusal().to_string();
            }
        }
        _ => {
            if let Some(list) = records::decode(payload) {
                let again = records::encode(&list);
                let read: Vec<Bytes> = again
                    .iter()
                    .flat_map(|frame| records::decode(frame).expect("our own spelling"))
                    .collect();
                assert_eq!(read, list);
            }
        }
    }
}

pub(crate) fn frames() -> Vec<Vec<u8>> {
    let request = Request {
        version: VERSION,
        mesh: MeshId::from_bytes([1; 32]),
        invite: InviteId::from_bytes([2; 32]),
        proof: vec![3; 64],
        node_name: "cloud".to_owned(),
        node_info: vec![4; 120],
    };
    let request = minicbor::to_vec(&request).expect("memory takes every byte");
    let refused = minicbor::to_vec(Refused { code: 3 }).expect("memory takes every byte");
    vec![
        [&[kind::REQUEST], &request[..]].concat(),
        [&[kind::REFUSED], &refused[..]].concat(),
        [&[kind::RECORDS], &crate::net::fuzz::record_frame()[..]].concat(),
    ]
}
