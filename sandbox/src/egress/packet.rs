//! Packets of a guest, looked at before anything else sees them, and the short answers to some.

use std::net::{Ipv4Addr, SocketAddrV4};

use smoltcp::{
    phy::ChecksumCapabilities,
    wire::{
        Icmpv4DstUnreachable, Icmpv4Packet, Icmpv4Repr, IpAddress, IpProtocol, Ipv4Packet,
        Ipv4Repr, TcpControl, TcpPacket, TcpRepr, TcpSeqNumber, UdpPacket, UdpRepr,
    },
};

/// Time to live of what we send.
const HOP_LIMIT: u8 = 64;
/// Bytes of a packet that an ICMP message quotes beside its header.
const QUOTED: usize = 8;

/// A packet that is what it seems to be.
#[derive(Debug)]
pub(super) enum Packet<'a> {
    Tcp(Segment),
    Udp {
        from: SocketAddrV4,
        to: SocketAddrV4,
        data: &'a [u8],
    },
    Ping {
        to: Ipv4Addr,
        ident: u16,
        number: u16,
        data: &'a [u8],
    },
    /// Of another protocol, or an ICMP message that asks for nothing.
    Other {
        to: Ipv4Addr,
        protocol: u8,
    },
}

/// What matters of a TCP segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) from: SocketAddrV4,
    pub(super) to: SocketAddrV4,
    /// Asks for a connection.
    pub(super) is_open: bool,
    is_reset: bool,
    number: TcpSeqNumber,
    acknowledged: Option<TcpSeqNumber>,
    /// Sequence numbers that it takes up.
    length: usize,
}

/// Reads a packet of `guest`; `None` for what is not IPv4, damaged, in fragments or somebody
/// else's.
pub(super) fn read(bytes: &[u8], guest: Ipv4Addr) -> Option<Packet<'_>> {
    let caps = ChecksumCapabilities::default();
    if bytes.first()? >> 4 != 4 {
        return None;
    }
    let packet = Ipv4Packet::new_checked(bytes).ok()?;
    let repr = Ipv4Repr::parse(&packet, &caps).ok()?;
    if repr.src_addr != guest || packet.more_frags() || packet.frag_offset() != 0 {
        return None;
    }
    let (src, dst) = (
        IpAddress::Ipv4(repr.src_addr),
        IpAddress::Ipv4(repr.dst_addr),
    );
    let payload = packet.payload();
    let socket = |address, port| SocketAddrV4::new(address, port);
    match repr.next_header {
        IpProtocol::Tcp => {
            let tcp = TcpPacket::new_checked(payload).ok()?;
            let parsed = TcpRepr::parse(&tcp, &src, &dst, &caps).ok()?;
            Some(Packet::Tcp(Segment {
                from: socket(repr.src_addr, parsed.src_port),
                to: socket(repr.dst_addr, parsed.dst_port),
                is_open: parsed.control == TcpControl::Syn && parsed.ack_number.is_none(),
                is_reset: parsed.control == TcpControl::Rst,
                number: parsed.seq_number,
                acknowledged: parsed.ack_number,
                length: parsed.segment_len(),
            }))
        }
        IpProtocol::Udp => {
            let udp = UdpPacket::new_checked(payload).ok()?;
            let parsed = UdpRepr::parse(&udp, &src, &dst, &caps).ok()?;
            Some(Packet::Udp {
                from: socket(repr.src_addr, parsed.src_port),
                to: socket(repr.dst_addr, parsed.dst_port),
                data: udp.payload(),
            })
        }
        IpProtocol::Icmp => {
            let icmp = Icmpv4Packet::new_checked(payload).ok()?;
            match Icmpv4Repr::parse(&icmp, &caps) {
                Ok(Icmpv4Repr::EchoRequest {
                    ident,
                    seq_no,
                    data,
                }) => Some(Packet::Ping {
                    to: repr.dst_addr,
                    ident,
                    number: seq_no,
                    data,
                }),
                _ => Some(Packet::Other {
                    to: repr.dst_addr,
                    protocol: 1,
                }),
            }
        }
        other => Some(Packet::Other {
            to: repr.dst_addr,
            protocol: other.into(),
        }),
    }
}

impl Segment {
    /// Returns the packet that says there is no such connection, if that may be said (RFC 9293,
    /// section 3.5.2).
    pub(super) fn reset(&self) -> Option<Vec<u8>> {
        if self.is_reset {
            return None;
        }
        let repr = TcpRepr {
            src_port: self.to.port(),
            dst_port: self.from.port(),
            control: TcpControl::Rst,
            seq_number: self.acknowledged.unwrap_or_default(),
            ack_number: match self.acknowledged {
                Some(_) => None,
                None => Some(self.number + self.length),
            },
            window_len: 0,
            window_scale: None,
            max_seg_size: None,
            sack_permitted: false,
            sack_ranges: [None; 3],
            timestamp: None,
            payload: &[],
        };
        let (src, dst) = (*self.to.ip(), *self.from.ip());
        Some(write(
            src,
            dst,
            IpProtocol::Tcp,
            repr.buffer_len(),
            |out, caps| {
                let (src, dst) = (IpAddress::Ipv4(src), IpAddress::Ipv4(dst));
                repr.emit(&mut TcpPacket::new_unchecked(out), &src, &dst, caps);
            },
        ))
    }
}

/// Returns a datagram.
pub(super) fn datagram(from: SocketAddrV4, to: SocketAddrV4, data: &[u8]) -> Vec<u8> {
    let repr = UdpRepr {
        src_port: from.port(),
        dst_port: to.port(),
    };
    let (src, dst) = (*from.ip(), *to.ip());
    write(src, dst, IpProtocol::Udp, 8 + data.len(), |out, caps| {
        let (src, dst) = (IpAddress::Ipv4(src), IpAddress::Ipv4(dst));
        let mut packet = UdpPacket::new_unchecked(out);
        repr.emit(
            &mut packet,
            &src,
            &dst,
            data.len(),
            |out| out.copy_from_slice(data),
            caps,
        );
    })
}

/// Returns the answer to a ping.
pub(super) fn pong(from: Ipv4Addr, to: Ipv4Addr, ident: u16, number: u16, data: &[u8]) -> Vec<u8> {
    let repr = Icmpv4Repr::EchoReply {
        ident,
        seq_no: number,
        data,
    };
    icmp(from, to, &repr)
}

/// Returns the message that `packet` was not let through; programs see it as an error at once.
pub(super) fn prohibited(gateway: Ipv4Addr, packet: &[u8]) -> Option<Vec<u8>> {
    let header = Ipv4Packet::new_checked(packet).ok()?;
    let quoted = header.payload();
    let header = Ipv4Repr::parse(&header, &ChecksumCapabilities::ignored()).ok()?;
    let repr = Icmpv4Repr::DstUnreachable {
        reason: Icmpv4DstUnreachable::CommProhibited,
        header,
        data: &quoted[..quoted.len().min(QUOTED)],
    };
    Some(icmp(gateway, header.src_addr, &repr))
}

fn icmp(from: Ipv4Addr, to: Ipv4Addr, repr: &Icmpv4Repr<'_>) -> Vec<u8> {
    write(
        from,
        to,
        IpProtocol::Icmp,
        repr.buffer_len(),
        |out, caps| {
            repr.emit(&mut Icmpv4Packet::new_unchecked(out), caps);
        },
    )
}

fn write(
    src_addr: Ipv4Addr,
    dst_addr: Ipv4Addr,
    next_header: IpProtocol,
    payload_len: usize,
    emit: impl FnOnce(&mut [u8], &ChecksumCapabilities),
) -> Vec<u8> {
    let caps = ChecksumCapabilities::default();
    let repr = Ipv4Repr {
        src_addr,
        dst_addr,
        next_header,
        payload_len,
        hop_limit: HOP_LIMIT,
    };
    let header_len = repr.buffer_len();
    let mut bytes = vec![0; header_len + payload_len];
    repr.emit(&mut Ipv4Packet::new_unchecked(&mut bytes[..]), &caps);
    emit(&mut bytes[header_len..], &caps);
    bytes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use smoltcp::wire::Icmpv4Message;

    use super::*;

    const GUEST: Ipv4Addr = Ipv4Addr::new(10, 107, 0, 2);
    const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 107, 0, 1);

    fn at(address: Ipv4Addr, port: u16) -> SocketAddrV4 {
        SocketAddrV4::new(address, port)
    }

    fn syn() -> Vec<u8> {
        let repr = TcpRepr {
            src_port: 40_000,
            dst_port: 443,
            control: TcpControl::Syn,
            seq_number: TcpSeqNumber(1000),
            ack_number: None,
            window_len: 1000,
            window_scale: Some(2),
            max_seg_size: Some(1460),
            sack_permitted: true,
            sack_ranges: [None; 3],
            timestamp: None,
            payload: &[],
        };
        write(
            GUEST,
            GATEWAY,
            IpProtocol::Tcp,
            repr.buffer_len(),
            |out, caps| {
                let (src, dst) = (IpAddress::Ipv4(GUEST), IpAddress::Ipv4(GATEWAY));
                repr.emit(&mut TcpPacket::new_unchecked(out), &src, &dst, caps);
            },
        )
    }

    #[test]
    fn packets_are_read_as_they_were_written() {
        let bytes = datagram(at(GUEST, 9), at(GATEWAY, 53), b"question");
        match read(&bytes, GUEST).unwrap() {
            Packet::Udp { from, to, data } => {
                assert_eq!(
                    (from, to, data),
                    (at(GUEST, 9), at(GATEWAY, 53), &b"question"[..])
                );
            }
            other => panic!("{other:?}"),
        }
        let bytes = syn();
        let Some(Packet::Tcp(segment)) = read(&bytes, GUEST) else {
            panic!("no segment")
        };
        assert!(segment.is_open && segment.to == at(GATEWAY, 443));
        let reset = segment.reset().unwrap();
        let Some(Packet::Tcp(reset)) = read(&reset, GATEWAY) else {
            panic!("no segment")
        };
        assert!(reset.is_reset && reset.acknowledged == Some(TcpSeqNumber(1001)));
        assert_eq!(reset.reset(), None);
    }

    #[test]
    fn a_refused_packet_is_quoted() {
        let bytes = datagram(at(GUEST, 9), at(Ipv4Addr::new(8, 8, 8, 8), 53), b"question");
        let answer = prohibited(GATEWAY, &bytes).unwrap();
        let packet = Ipv4Packet::new_checked(&answer[..]).unwrap();
        let icmp = Icmpv4Packet::new_checked(packet.payload()).unwrap();
        assert!(icmp.verify_checksum());
        assert_eq!(
            (icmp.msg_type(), icmp.msg_code()),
            (Icmpv4Message::DstUnreachable, 13)
        );
        // Source, destination and the ports, as far as the kernel needs them to find its socket.
        assert_eq!(icmp.data()[12..28], bytes[12..28]);
        assert_eq!(icmp.data().len(), 28);
    }

    #[test]
    fn what_is_not_the_guests_is_nothing() {
        let bytes = datagram(at(GUEST, 9), at(GATEWAY, 53), b"question");
        assert!(read(&bytes, GATEWAY).is_none());
        assert!(read(&bytes[..20], GUEST).is_none() && read(&[], GUEST).is_none());
        let mut fragment = bytes.clone();
        fragment[6] = 0x20;
        Ipv4Packet::new_unchecked(&mut fragment[..]).fill_checksum();
        assert!(read(&fragment, GUEST).is_none());
        let mut damaged = bytes.clone();
        damaged[30] ^= 1;
        assert!(read(&damaged, GUEST).is_none());
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_harm(bytes in prop::collection::vec(any::<u8>(), 0..120)) {
            let _ = read(&bytes, GUEST);
            let _ = prohibited(GATEWAY, &bytes);
        }

        #[test]
        fn a_changed_packet_does_no_harm(
            at in 0_usize..60, value in any::<u8>(), cut in 0_usize..60, mend in any::<bool>(),
        ) {
            let mut bytes = syn();
            let len = bytes.len();
            bytes[at % len] = value;
            if mend && at % len != 0 {
                // With a sum that fits, more of the reader is reached.
                Ipv4Packet::new_unchecked(&mut bytes[..]).fill_checksum();
            }
            bytes.truncate(len - cut % len);
            if let Some(Packet::Tcp(segment)) = read(&bytes, GUEST) {
                let _ = segment.reset();
            }
        }
    }
}
