//! The ladder of roles.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// What a member may do, in a mesh or in one space; each step includes those below it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Stores and serves ciphertext and checks signatures, without being able to read.
    Relay,
    /// Reads.
    Reader,
    /// Reads and writes.
    Writer,
    /// Also invites and grants, up to writer; creates spaces.
    Admin,
    /// The root of the mesh: the only one who grants and revokes admins.
    Owner,
}

impl Role {
    /// Every role, lowest first.
    pub const ALL: [Role; 5] = [
        Role::Relay,
        Role::Reader,
        Role::Writer,
        Role::Admin,
        Role::Owner,
    ];

    /// Whether the role is handed space keys.
    pub fn can_read(self) -> bool {
        self >= Role::Reader
    }

    /// Whether agents of the holder may publish.
    pub fn can_write(self) -> bool {
        self >= Role::Writer
    }

    /// Whether the holder may let others in.
    pub fn can_grant(self) -> bool {
        self >= Role::Admin
    }

    /// Returns the word for the role.
    pub fn as_str(self) -> &'static str {
        match self {
            Role::Relay => "relay",
            Role::Reader => "reader",
            Role::Writer => "writer",
            Role::Admin => "admin",
            Role::Owner => "owner",
        }
    }

    /// Returns the number that stands for the role on the wire.
    pub(crate) fn code(self) -> u8 {
        match self {
            Role::Relay => 0,
            Role::Reader => 1,
            Role::Writer => 2,
            Role::Admin => 3,
            Role::Owner => 4,
        }
    }

    pub(crate) fn from_code(code: u8) -> Option<Role> {
        Role::ALL.into_iter().find(|role| role.code() == code)
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The word is not a role.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a role; roles are relay, reader, writer, admin, owner")]
pub struct ParseRoleError(pub String);

impl FromStr for Role {
    type Err = ParseRoleError;

    fn from_str(text: &str) -> Result<Role, ParseRoleError> {
        Role::ALL
            .into_iter()
            .find(|role| role.as_str() == text)
            .ok_or_else(|| ParseRoleError(text.chars().take(32).collect()))
    }
}

impl<C> minicbor::Encode<C> for Role {
    fn encode<W: minicbor::encode::Write>(
        &self,
        e: &mut minicbor::Encoder<W>,
        _: &mut C,
    ) -> Result<(), minicbor::encode::Error<W::Error>> {
        e.u8(self.code())?.ok()
    }
}

impl<'b, C> minicbor::Decode<'b, C> for Role {
    fn decode(d: &mut minicbor::Decoder<'b>, _: &mut C) -> Result<Role, minicbor::decode::Error> {
        Role::from_code(d.u8()?)
            .ok_or_else(|| minicbor::decode::Error::message("unknown role number"))
    }
}
