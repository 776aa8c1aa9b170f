//! The invite: one string that lets a newcomer join.
//!
//! `RHZ1` and Crockford base32, upper case so that a QR code stays in its alphanumeric mode. The
//! string carries the secret of a one-time invite key and where to redeem it, never a root key or
//! a space key (`docs/wire.md`, section 3).

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    str::FromStr,
};

use zeroize::Zeroizing;

use crate::{
    authority::{Authority, InviteState},
    id::{Hash, InviteId, MeshId, NodeId},
    keys::SecretKey,
    relay_url::is_relay_url,
    role::Role,
};

/// What every invite starts with.
pub const PREFIX: &str = "RHZ1";
/// How many nodes an invite may name.
pub const MAX_ENDPOINTS: usize = 3;
/// How many addresses an invite may give for each.
pub const MAX_ADDRS: usize = 4;
/// How many relays an invite may name for each.
pub const MAX_RELAYS: usize = 2;

/// An invite that names no relay.
const VERSION: u8 = 1;
/// An invite that names relays, which earlier readers would not know how to dial.
const VERSION_RELAYS: u8 = 2;
const CHECKSUM_BYTES: usize = 4;
/// The longest string that is looked at.
const MAX_TEXT: usize = 2_048;
/// Crockford's alphabet: no I, L, O, U.
const ALPHABET: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";

/// A node at which an invite can be redeemed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InviteEndpoint {
    /// The node.
    pub node: NodeId,
    /// Where it can be reached; at most [`MAX_ADDRS`] travel.
    pub addrs: Vec<SocketAddr>,
    /// The URLs of relays through which it can be reached; at most [`MAX_RELAYS`] travel.
    pub relays: Vec<String>,
}

/// What an invite string says.
#[derive(Clone, PartialEq, Eq)]
pub struct Invite {
    /// The mesh it leads to.
    pub mesh: MeshId,
    /// The secret the invite key is made from.
    pub seed: Zeroizing<[u8; 16]>,
    /// The role it gives.
    pub role: Role,
    /// How many nodes may use it.
    pub uses: u16,
    /// When it ends, in Unix milliseconds; the string keeps whole seconds.
    pub not_after_ms: u64,
    /// Where it can be redeemed; at most [`MAX_ENDPOINTS`] travel.
    pub endpoints: Vec<InviteEndpoint>,
}

impl fmt::Debug for Invite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Invite")
            .field("mesh", &self.mesh)
            .field("invite", &self.id())
            .field("role", &self.role)
            .field("endpoints", &self.endpoints)
            .finish_non_exhaustive()
    }
}

/// Why a string is not an invite.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InviteError {
    /// It is something else.
    #[error("this is not an invite: invites start with {PREFIX}")]
    NotAnInvite,
    /// Its end is missing.
    #[error("the invite is cut off: {}", what_is_there(*found, *expected))]
    Truncated {
        /// How many characters there are.
        found: usize,
        /// How many there should be; 0 if not even that can be read.
        expected: usize,
    },
    /// A character is wrong, missing or too many.
    #[error("the invite is mistyped: its checksum does not fit")]
    Mistyped,
    /// A newer version made it.
    #[error("the invite is of version {0}, which this version does not know")]
    Version(u8),
    /// It has ended.
    #[error("the invite has expired")]
    Expired {
        /// When, in Unix milliseconds.
        not_after_ms: u64,
    },
}

fn what_is_there(found: usize, expected: usize) -> String {
    match expected {
        0 => format!("only {found} characters are there"),
        _ => format!("{found} of its {expected} characters are there"),
    }
}

impl InviteError {
    /// Says what the reader can do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::NotAnInvite => "paste the string that `rhizome invite create` printed",
            Self::Truncated { .. } => "copy it again, to its end",
            Self::Mistyped => "copy and paste it rather than typing it",
            Self::Version(_) => "update rhizome on this machine",
            Self::Expired { .. } => "ask for a new one, made with `rhizome invite create`",
        }
    }
}

impl Invite {
    /// Returns the invite key; who has it may join.
    pub fn key(&self) -> SecretKey {
        let seed = blake3::derive_key("rhizome 2026-11-30 invite key", &*self.seed);
        SecretKey::from_seed(seed)
    }

    /// Returns the invite's id: the public half of its key.
    pub fn id(&self) -> InviteId {
        InviteId::from_bytes(*self.key().public().as_bytes())
    }

    /// Checks that the invite has not ended, as this machine's clock sees it.
    ///
    /// # Errors
    /// [`InviteError::Expired`]; the node that admits decides by its own clock.
    pub fn check_expiry(&self, now_ms: u64) -> Result<(), InviteError> {
        let not_after_ms = self.not_after_ms;
        if now_ms > not_after_ms {
            Err(InviteError::Expired { not_after_ms })
        } else {
            Ok(())
        }
    }

    fn to_bytes(&self) -> Zeroizing<Vec<u8>> {
        // Sized so that it never moves and leaves a copy of the seed behind.
        let mut bytes = Zeroizing::new(Vec::with_capacity(MAX_TEXT));
        let endpoints = &self.endpoints[..self.endpoints.len().min(MAX_ENDPOINTS)];
        let has_relays = endpoints.iter().any(|end| end.relays().next().is_some());
        let version = if has_relays { VERSION_RELAYS } else { VERSION };
        bytes.extend_from_slice(&[version, 0, 0]);
        bytes.extend_from_slice(self.mesh.as_bytes());
        bytes.extend_from_slice(&*self.seed);
        bytes.push(self.role.code());
        bytes.extend_from_slice(&self.uses.to_be_bytes());
        let seconds = u32::try_from(self.not_after_ms / 1_000).unwrap_or(u32::MAX);
        bytes.extend_from_slice(&seconds.to_be_bytes());
        bytes.push(u8::try_from(endpoints.len()).expect("at most three endpoints"));
        for endpoint in endpoints {
            bytes.extend_from_slice(endpoint.node.as_bytes());
            let addrs = &endpoint.addrs[..endpoint.addrs.len().min(MAX_ADDRS)];
            bytes.push(u8::try_from(addrs.len()).expect("at most four addresses"));
            for addr in addrs {
                match addr.ip() {
                    IpAddr::V4(ip) => {
                        bytes.push(4);
                        bytes.extend_from_slice(&ip.octets());
                    }
                    IpAddr::V6(ip) => {
                        bytes.push(6);
                        bytes.extend_from_slice(&ip.octets());
                    }
                }
                bytes.extend_from_slice(&addr.port().to_be_bytes());
            }
            if has_relays {
                bytes.push(u8::try_from(endpoint.relays().count()).expect("at most two relays"));
                for url in endpoint.relays() {
                    bytes.push(u8::try_from(url.len()).expect("a relay's URL is short"));
                    bytes.extend_from_slice(url.as_bytes());
                }
            }
        }
        let length = u16::try_from(bytes.len() + CHECKSUM_BYTES).expect("an invite is short");
        bytes[1..3].copy_from_slice(&length.to_be_bytes());
        let checksum = Hash::of(&bytes);
        bytes.extend_from_slice(&checksum.as_bytes()[..CHECKSUM_BYTES]);
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        let [version, ..] = reader.take::<3>()?;
        let mesh = MeshId::from_bytes(reader.take()?);
        let seed = Zeroizing::new(reader.take()?);
        let role = Role::from_code(reader.byte()?)?;
        let uses = u16::from_be_bytes(reader.take()?);
        let not_after_ms = u64::from(u32::from_be_bytes(reader.take()?)) * 1_000;
        let mut endpoints = Vec::new();
        for _ in 0..usize::from(reader.byte()?) {
            let node = NodeId::from_bytes(reader.take()?);
            let mut addrs = Vec::new();
            for _ in 0..usize::from(reader.byte()?) {
                let ip = match reader.byte()? {
                    4 => IpAddr::from(reader.take::<4>()?),
                    6 => IpAddr::from(reader.take::<16>()?),
                    _ => return None,
                };
                addrs.push(SocketAddr::new(ip, u16::from_be_bytes(reader.take()?)));
            }
            let mut relays = Vec::new();
            if version == VERSION_RELAYS {
                for _ in 0..usize::from(reader.byte()?) {
                    let length = usize::from(reader.byte()?);
                    let url = std::str::from_utf8(reader.slice(length)?).ok()?;
                    relays.push(is_relay_url(url).then(|| url.to_owned())?);
                }
            }
            endpoints.push(InviteEndpoint {
                node,
                addrs,
                relays,
            });
        }
        let invite = Self {
            mesh,
            seed,
            role,
            uses,
            not_after_ms,
            endpoints,
        };
        reader.0.is_empty().then_some(invite)
    }
}

impl InviteEndpoint {
    /// Returns the relays that travel.
    fn relays(&self) -> impl Iterator<Item = &String> {
        let fit = self.relays.iter().filter(|url| is_relay_url(url));
        fit.take(MAX_RELAYS)
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn slice(&mut self, length: usize) -> Option<&'a [u8]> {
        let (first, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(first)
    }

    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*first)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take::<1>().map(|[byte]| byte)
    }
}

impl fmt::Display for Invite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(PREFIX)?;
        let (mut held, mut bits) = (0_u32, 0_u32);
        for byte in self.to_bytes().iter().copied() {
            held = held << 8 | u32::from(byte);
            bits += 8;
            while bits >= 5 {
                bits -= 5;
                f.write_str(letter(held >> bits))?;
            }
        }
        if bits > 0 {
            f.write_str(letter(held << (5 - bits)))
        } else {
            Ok(())
        }
    }
}

fn letter(value: u32) -> &'static str {
    let index = (value & 31) as usize;
    std::str::from_utf8(&ALPHABET[index..=index]).expect("the alphabet is ASCII")
}

impl FromStr for Invite {
    type Err = InviteError;

    fn from_str(text: &str) -> Result<Self, InviteError> {
        let text: String = text
            .chars()
            .filter(|c| !c.is_whitespace() && *c != '-')
            .take(MAX_TEXT + 1)
            .collect();
        let text = text.to_ascii_uppercase();
        let Some(body) = text.strip_prefix(PREFIX) else {
            let is_start = !text.is_empty() && PREFIX.starts_with(&text);
            let cut = InviteError::Truncated {
                found: text.len(),
                expected: 0,
            };
            return Err(if is_start {
                cut
            } else {
                InviteError::NotAnInvite
            });
        };
        let mut bytes = Zeroizing::new(Vec::with_capacity(body.len() * 5 / 8));
        let (mut held, mut bits) = (0_u32, 0_u32);
        for character in body.bytes() {
            let value = match character {
                b'O' => 0,
                b'I' | b'L' => 1,
                _ => ALPHABET
                    .iter()
                    .position(|c| *c == character)
                    .ok_or(InviteError::Mistyped)?,
            };
            held = (held << 5 | u32::try_from(value).expect("below 32")) & 0xfff;
            bits += 5;
            if bits >= 8 {
                bits -= 8;
                bytes.push((held >> bits & 0xff) as u8);
            }
        }
        let padding = held & ((1 << bits) - 1);
        let found = text.len();
        let Some((head, _)) = bytes.split_first_chunk::<3>() else {
            return Err(InviteError::Truncated { found, expected: 0 });
        };
        if ![VERSION, VERSION_RELAYS].contains(&head[0]) {
            return Err(InviteError::Version(head[0]));
        }
        let length = usize::from(u16::from_be_bytes([head[1], head[2]]));
        let expected = PREFIX.len() + (length * 8).div_ceil(5);
        if bytes.len() < length && found < expected {
            return Err(InviteError::Truncated { found, expected });
        }
        let content = bytes
            .len()
            .checked_sub(CHECKSUM_BYTES)
            .filter(|_| bytes.len() == length && found == expected && padding == 0);
        let (content, checksum) = bytes.split_at(content.ok_or(InviteError::Mistyped)?);
        if checksum != &Hash::of(content).as_bytes()[..CHECKSUM_BYTES] {
            return Err(InviteError::Mistyped);
        }
        Self::from_bytes(content).ok_or(InviteError::Mistyped)
    }
}

/// Why an invite cannot be redeemed here and now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RedeemError {
    /// No such invite was made, as far as this node knows.
    #[error("no such invite is known")]
    Unknown,
    /// It has ended.
    #[error("the invite has expired")]
    Expired {
        /// When, in Unix milliseconds.
        not_after_ms: u64,
    },
    /// It has let in as many as it may.
    #[error("the invite is spent: it was good for {uses}")]
    Spent {
        /// How many that is.
        uses: u16,
    },
    /// It was closed early.
    #[error("the invite was closed")]
    Closed,
}

/// Checks that an invite can be redeemed at `now_ms`, the one time that a clock decides.
///
/// # Errors
/// [`RedeemError`] says why not.
pub fn check_redeem<'a>(
    authority: &'a Authority,
    invite: &InviteId,
    now_ms: u64,
) -> Result<&'a InviteState, RedeemError> {
    let state = authority.invite(invite).ok_or(RedeemError::Unknown)?;
    if state.closed {
        return Err(RedeemError::Closed);
    }
    if state.used >= state.uses {
        return Err(RedeemError::Spent { uses: state.uses });
    }
    if now_ms > state.not_after_ms {
        return Err(RedeemError::Expired {
            not_after_ms: state.not_after_ms,
        });
    }
    Ok(state)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn invite() -> Invite {
        Invite {
            mesh: MeshId::from_bytes([7; 32]),
            seed: Zeroizing::new([9; 16]),
            role: Role::Writer,
            uses: 2,
            not_after_ms: 1_796_083_199_000,
            endpoints: vec![InviteEndpoint {
                node: NodeId::from_bytes([3; 32]),
                addrs: vec![
                    "10.77.1.1:4570".parse().unwrap(),
                    "[::1]:4580".parse().unwrap(),
                ],
                relays: Vec::new(),
            }],
        }
    }

    fn invite_with_relays() -> Invite {
        let mut invite = invite();
        let urls = ["http://10.77.1.1:4583/", "https://relay.example.org/"];
        invite.endpoints[0].relays = urls.map(str::to_owned).to_vec();
        invite
    }

    #[test]
    fn relays_travel_in_a_version_of_their_own() {
        let invite = invite_with_relays();
        let text = invite.to_string();
        assert_eq!(&text[4..6], "08", "version 2 is 00000 010..");
        assert_eq!(text.parse::<Invite>().unwrap(), invite);
        for length in 1..text.len() {
            let error = text[..length].parse::<Invite>().unwrap_err();
            assert!(matches!(error, InviteError::Truncated { .. }), "{length}");
        }
        let mut many = invite.clone();
        many.endpoints = vec![many.endpoints[0].clone(); MAX_ENDPOINTS];
        for endpoint in &mut many.endpoints {
            endpoint.relays = vec![format!("http://{}", "a".repeat(121)); MAX_RELAYS];
        }
        let text = many.to_string();
        assert!(text.len() <= MAX_TEXT, "{}", text.len());
        assert_eq!(text.parse::<Invite>().unwrap(), many);
        let mut bad = invite.clone();
        bad.endpoints[0].relays = vec!["file:///etc/passwd".to_owned()];
        let read: Invite = bad.to_string().parse().unwrap();
        assert_eq!(read.endpoints[0].relays, Vec::<String>::new());
    }

    #[test]
    fn an_invite_survives_the_round_trip_and_careless_copying() {
        let invite = invite();
        let text = invite.to_string();
        assert!(text.len() <= 220, "{}", text.len());
        assert!(
            text.bytes()
                .all(|c| c.is_ascii_uppercase() || c.is_ascii_digit())
        );
        assert_eq!(text.parse::<Invite>().unwrap(), invite);
        let careless = format!(
            " {}\n",
            text.to_lowercase().replace('0', "o").replace('1', "l")
        );
        // The prefix's own 1 must stay a digit.
        let careless = careless.replacen("rhzl", "rhz1", 1);
        assert_eq!(careless.parse::<Invite>().unwrap(), invite);
        let wrapped: String = text
            .chars()
            .collect::<Vec<_>>()
            .chunks(40)
            .map(|c| c.iter().collect::<String>() + "\n")
            .collect();
        assert_eq!(wrapped.parse::<Invite>().unwrap(), invite);
    }

    #[test]
    fn an_invite_cut_off_anywhere_says_so() {
        let text = invite().to_string();
        for length in 1..text.len() {
            let error = text[..length].parse::<Invite>().unwrap_err();
            assert!(
                matches!(error, InviteError::Truncated { .. }),
                "{length}: {error:?}"
            );
            assert!(!error.to_string().contains(" 0 "), "{error}");
        }
    }

    #[test]
    fn a_wrong_character_anywhere_is_found() {
        let text = invite().to_string();
        for position in PREFIX.len()..text.len() {
            for wrong in ["0", "Z", "7"] {
                let mut mistyped = text.clone();
                mistyped.replace_range(position..=position, wrong);
                if mistyped != text {
                    assert!(mistyped.parse::<Invite>().is_err(), "{position}");
                }
            }
        }
        assert_eq!(
            format!("{text}0").parse::<Invite>().unwrap_err(),
            InviteError::Mistyped
        );
        assert_eq!(
            "U".repeat(9).parse::<Invite>().unwrap_err(),
            InviteError::NotAnInvite
        );
        assert_eq!("".parse::<Invite>().unwrap_err(), InviteError::NotAnInvite);
        assert_eq!(
            "RHZ1ÄÖ".parse::<Invite>().unwrap_err(),
            InviteError::Mistyped
        );
        let endless = format!("RHZ1{}", "0".repeat(1_000_000));
        assert!(endless.parse::<Invite>().is_err());
    }

    #[test]
    fn a_later_version_says_so() {
        let mut bytes = invite().to_bytes().to_vec();
        bytes[0] = 3;
        let mut text = String::from(PREFIX);
        // The first 8 bits are in the first two characters.
        text.push_str(&invite().to_string()[PREFIX.len()..]);
        assert_eq!(&text[4..6], "04", "version 1 is 00000 001..");
        text.replace_range(4..6, "0C");
        assert_eq!(text.parse::<Invite>().unwrap_err(), InviteError::Version(3));
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig::with_cases(4_000))]

        #[test]
        fn mutated_invites_give_an_error_or_the_same(
            edits in proptest::collection::vec(
                (proptest::prelude::any::<proptest::prelude::prop::sample::Index>(), 0x20..0x7f_u8, 0..3_u8),
                1..5,
            ),
        ) {
            let mut text: Vec<u8> = invite().to_string().into_bytes();
            for (at, byte, how) in edits {
                let at = at.index(text.len());
                match how {
                    0 => text[at] = byte,
                    1 => text.insert(at, byte),
                    _ => drop(text.remove(at)),
                }
            }
            if let Ok(parsed) = String::from_utf8(text).unwrap().parse::<Invite>() {
                proptest::prop_assert_eq!(parsed, invite());
            }
        }

        #[test]
        fn any_text_gives_an_error(text in "(RHZ1)?.{0,300}") {
            let _ = text.parse::<Invite>();
        }
    }

    #[test]
    fn the_joiners_clock_can_see_that_it_has_ended() {
        let invite = invite();
        assert!(invite.check_expiry(invite.not_after_ms).is_ok());
        assert!(matches!(
            invite.check_expiry(invite.not_after_ms + 1),
            Err(InviteError::Expired { .. })
        ));
    }
}
