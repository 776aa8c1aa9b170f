//! Questions of a guest to the gateway's resolver, and their answers (RFC 1035, 6891, 8914).

use std::net::Ipv4Addr;

use simple_dns::{
    CLASS, OPCODE, Packet, PacketFlag, QCLASS, QTYPE, Question, RCODE, ResourceRecord, TYPE,
    rdata::{A, OPT, OPTCode, RData},
};

use super::name::DomainName;

/// Longest question, in bytes; a larger one is dropped.
const MAX_QUESTION: usize = 1024;
/// How long a guest may keep an answer, in seconds. The host's resolver does not say.
const TTL: u32 = 60;
/// The option that says why (RFC 8914) and its code for "prohibited".
const EXTENDED_ERROR: u16 = 15;
const PROHIBITED: u16 = 18;

/// A question that can be answered.
#[derive(Debug)]
pub(super) struct Asked {
    id: u16,
    question: Question<'static>,
    wants_recursion: bool,
    is_extended: bool,
    /// The name, if it is one that a host can have.
    pub(super) name: Option<DomainName>,
    /// What is asked for.
    pub(super) about: About,
}

/// What a question is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum About {
    /// IPv4 addresses.
    Addresses,
    /// The name of an address: answered with nothing, and no matter of the policy.
    Reverse,
    /// Anything else.
    Other,
}

/// What to answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer<'a> {
    /// These addresses; the name exists also if there are none.
    Addresses(&'a [Ipv4Addr]),
    /// The name does not exist.
    Unknown,
    /// Nobody could say.
    Failed,
    /// It is denied, with the reason. Said as a name that does not exist, with the reason beside
    /// it for those who ask for reasons: with REFUSED, programs try again and then speak of a
    /// temporary failure.
    Denied(&'a str),
}

/// Reads a question; `None` for what gets no answer at all.
pub(super) fn read(bytes: &[u8]) -> Option<Asked> {
    // The counts, before anything is made for them.
    let count = |at: usize| Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]));
    if bytes.len() > MAX_QUESTION
        || count(4)? != 1
        || count(6)? != 0
        || count(8)? != 0
        || count(10)? > 1
    {
        return None;
    }
    let packet = Packet::parse(bytes).ok()?;
    if packet.has_flags(PacketFlag::RESPONSE) || packet.opcode() != OPCODE::StandardQuery {
        return None;
    }
    let question = packet.questions.first()?.clone().into_owned();
    let text = question.qname.to_string();
    let is_internet = matches!(question.qclass, QCLASS::CLASS(CLASS::IN));
    let about = match question.qtype {
        _ if !is_internet => About::Other,
        QTYPE::TYPE(TYPE::A) => About::Addresses,
        QTYPE::TYPE(TYPE::PTR) if text.to_ascii_lowercase().ends_with(".arpa") => About::Reverse,
        _ => About::Other,
    };
    Some(Asked {
        id: packet.id(),
        wants_recursion: packet.has_flags(PacketFlag::RECURSION_DESIRED),
        is_extended: packet.opt().is_some(),
        // A label with a dot in it would read as two.
        name: question
            .qname
            .get_labels()
            .iter()
            .all(|label| !label.to_string().contains('.'))
            .then(|| DomainName::from_wire(text.as_bytes()).ok())
            .flatten(),
        question,
        about,
    })
}

impl Asked {
    /// Returns what was asked for, for people.
    pub(super) fn shown(&self) -> String {
        self.question
            .qname
            .to_string()
            .escape_debug()
            .take(256)
            .collect()
    }

    /// Returns the answer's bytes.
    pub(super) fn answer(&self, answer: &Answer<'_>) -> Vec<u8> {
        let mut packet = Packet::new_reply(self.id);
        packet.questions.push(self.question.clone());
        packet.set_flags(PacketFlag::RECURSION_AVAILABLE);
        if self.wants_recursion {
            packet.set_flags(PacketFlag::RECURSION_DESIRED);
        }
        let mut reasons = Vec::new();
        match *answer {
            Answer::Addresses(addresses) => {
                for address in addresses {
                    let data = RData::A(A {
                        address: address.to_bits(),
                    });
                    let name = self.question.qname.clone();
                    packet
                        .answers
                        .push(ResourceRecord::new(name, CLASS::IN, TTL, data));
                }
            }
            Answer::Unknown => *packet.rcode_mut() = RCODE::NameError,
            Answer::Failed => *packet.rcode_mut() = RCODE::ServerFailure,
            Answer::Denied(reason) => {
                *packet.rcode_mut() = RCODE::NameError;
                let text = reason.bytes().take(255);
                let data: Vec<u8> = PROHIBITED.to_be_bytes().into_iter().chain(text).collect();
                reasons.push(OPTCode {
                    code: EXTENDED_ERROR,
                    data: data.into(),
                });
            }
        }
        if self.is_extended {
            *packet.opt_mut() = Some(OPT {
                opt_codes: reasons,
                udp_packet_size: 1232,
                version: 0,
            });
        }
        packet.build_bytes_vec_compressed().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use simple_dns::Name;

    use super::*;

    /// Returns a question as a guest's resolver asks it.
    fn question(name: &str, kind: TYPE) -> Vec<u8> {
        let mut packet = Packet::new_query(7);
        packet.set_flags(PacketFlag::RECURSION_DESIRED);
        let name = Name::new_unchecked(name);
        packet.questions.push(Question::new(
            name,
            QTYPE::TYPE(kind),
            QCLASS::CLASS(CLASS::IN),
            false,
        ));
        packet.build_bytes_vec().unwrap()
    }

    /// Returns the code and the addresses of an answer.
    fn answered(bytes: &[u8]) -> (RCODE, Vec<Ipv4Addr>) {
        let packet = Packet::parse(bytes).unwrap();
        let address = |record: &ResourceRecord<'_>| match &record.rdata {
            RData::A(a) => Some(Ipv4Addr::from_bits(a.address)),
            _ => None,
        };
        (
            packet.rcode(),
            packet.answers.iter().filter_map(address).collect(),
        )
    }

    #[test]
    fn questions_are_told_apart() {
        for (name, kind, about) in [
            ("Example.ORG", TYPE::A, About::Addresses),
            ("example.org", TYPE::AAAA, About::Other),
            ("example.org", TYPE::MX, About::Other),
            ("1.0.0.10.in-addr.arpa", TYPE::PTR, About::Reverse),
            ("example.org", TYPE::PTR, About::Other),
        ] {
            let asked = read(&question(name, kind)).unwrap();
            assert_eq!(asked.about, about, "{name} {kind:?}");
        }
        let asked = read(&question("Example.ORG", TYPE::A)).unwrap();
        assert_eq!(asked.name.unwrap().as_str(), "example.org");
        assert!(
            read(&question("a b.example", TYPE::A))
                .unwrap()
                .name
                .is_none()
        );
        let mut reply = question("example.org", TYPE::A);
        reply[2] |= 0x80;
        assert!(read(&reply).is_none());
        let mut two = question("example.org", TYPE::A);
        two[5] = 2;
        assert!(read(&two).is_none());
    }

    #[test]
    fn answers_are_read_again() {
        let asked = read(&question("example.org", TYPE::A)).unwrap();
        let addresses = [Ipv4Addr::new(93, 184, 216, 34), Ipv4Addr::new(1, 2, 3, 4)];
        let bytes = asked.answer(&Answer::Addresses(&addresses));
        assert_eq!(answered(&bytes), (RCODE::NoError, addresses.to_vec()));
        let many = asked.answer(&Answer::Addresses(
            &[Ipv4Addr::LOCALHOST; super::super::outside::MAX_ADDRESSES],
        ));
        assert!(many.len() <= 512, "{}", many.len());
        assert_eq!(
            answered(&asked.answer(&Answer::Unknown)).0,
            RCODE::NameError
        );
        assert_eq!(
            answered(&asked.answer(&Answer::Failed)).0,
            RCODE::ServerFailure
        );
        assert_eq!(
            answered(&asked.answer(&Answer::Denied("why"))).0,
            RCODE::NameError
        );
    }

    #[test]
    fn the_reason_is_told_to_those_who_read_it() {
        let mut packet = Packet::new_query(7);
        let name = Name::new_unchecked("example.org");
        packet.questions.push(Question::new(
            name,
            QTYPE::TYPE(TYPE::A),
            QCLASS::CLASS(CLASS::IN),
            false,
        ));
        *packet.opt_mut() = Some(OPT {
            opt_codes: vec![],
            udp_packet_size: 1232,
            version: 0,
        });
        let asked = read(&packet.build_bytes_vec().unwrap()).unwrap();
        let bytes = asked.answer(&Answer::Denied("the policy `none`"));
        let reply = Packet::parse(&bytes).unwrap();
        let code = &reply.opt().unwrap().opt_codes[0];
        assert_eq!(
            (code.code, &code.data[..2], &code.data[2..]),
            (15, &[0, 18][..], &b"the policy `none`"[..])
        );
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_harm(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Some(asked) = read(&bytes) {
                let _ = asked.answer(&Answer::Denied("x"));
            }
        }

        #[test]
        fn a_changed_question_does_no_harm(at in 0_usize..40, value in any::<u8>(), cut in 0_usize..40) {
            let mut bytes = question("www.example.org", TYPE::A);
            let len = bytes.len();
            bytes[at % len] = value;
            bytes.truncate(len - cut % len);
            if let Some(asked) = read(&bytes) {
                let _ = asked.answer(&Answer::Addresses(&[Ipv4Addr::LOCALHOST]));
            }
        }
    }
}
