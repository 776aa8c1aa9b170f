//! Address, route and state of the device, by messages to the kernel (`rtnetlink(7)`).

use std::{fs, io, net::Ipv4Addr};

use rustix::{
    fd::OwnedFd,
    net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with},
};

const RTM_NEWLINK: u16 = 16;
const RTM_NEWADDR: u16 = 20;
const RTM_NEWROUTE: u16 = 24;
const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST_ACK: u16 = 0x1 | 0x4;
const NLM_F_CREATE_REPLACE: u16 = 0x400 | 0x100;
const AF_INET: u8 = 2;
const IFF_UP: u32 = 1;
const IFLA_MTU: u16 = 4;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const RTA_GATEWAY: u16 = 5;
const RTA_OIF: u16 = 4;
const RT_TABLE_MAIN: u8 = 254;
const RTPROT_BOOT: u8 = 3;
const RTN_UNICAST: u8 = 1;

/// Gives the device its address and size, brings it up and sends everything else its way.
pub(super) fn configure(
    name: &str,
    address: Ipv4Addr,
    prefix: u8,
    gateway: Ipv4Addr,
    mtu: u16,
) -> io::Result<()> {
    let index = fs::read_to_string(format!("/sys/class/net/{name}/ifindex"))?;
    let index: u32 = index.trim().parse().map_err(io::Error::other)?;
    // The default protocol of netlink is NETLINK_ROUTE.
    let socket = socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        None,
    )?;
    for (what, message) in [
        ("address", new_address(index, address, prefix)),
        ("link", set_link(index, mtu)),
        ("route", default_route(index, gateway)),
    ] {
        ask(&socket, &message)
            .map_err(|error| io::Error::new(error.kind(), format!("{what} of {name}: {error}")))?;
    }
    Ok(())
}

fn ask(socket: &OwnedFd, message: &[u8]) -> io::Result<()> {
    send(socket, message, SendFlags::empty())?;
    let mut answer = [0_u8; 1024];
    let (len, _) = recv(socket, &mut answer, RecvFlags::empty())?;
    let answer = &answer[..len];
    // `struct nlmsghdr`, then the error number, negative, or 0.
    let kind = answer
        .get(4..6)
        .and_then(|bytes| bytes.try_into().ok())
        .map(u16::from_ne_bytes);
    let error = answer
        .get(16..20)
        .and_then(|bytes| bytes.try_into().ok())
        .map(i32::from_ne_bytes);
    match (kind, error) {
        (Some(NLMSG_ERROR), Some(0)) => Ok(()),
        (Some(NLMSG_ERROR), Some(error)) => Err(io::Error::from_raw_os_error(error.wrapping_neg())),
        _ => Err(io::Error::other("the kernel's answer is no answer")),
    }
}

/// `struct ifinfomsg`
fn set_link(index: u32, mtu: u16) -> Vec<u8> {
    let mut body = vec![0; 4];
    body.extend_from_slice(&index.to_ne_bytes());
    body.extend_from_slice(&IFF_UP.to_ne_bytes());
    body.extend_from_slice(&IFF_UP.to_ne_bytes());
    attribute(&mut body, IFLA_MTU, u32::from(mtu).to_ne_bytes());
    message(RTM_NEWLINK, 0, &body)
}

/// `struct ifaddrmsg`
fn new_address(index: u32, address: Ipv4Addr, prefix: u8) -> Vec<u8> {
    let mut body = vec![AF_INET, prefix, 0, 0];
    body.extend_from_slice(&index.to_ne_bytes());
    attribute(&mut body, IFA_LOCAL, address.octets());
    attribute(&mut body, IFA_ADDRESS, address.octets());
    message(RTM_NEWADDR, NLM_F_CREATE_REPLACE, &body)
}

/// `struct rtmsg`
fn default_route(index: u32, gateway: Ipv4Addr) -> Vec<u8> {
    let mut body = vec![AF_INET, 0, 0, 0, RT_TABLE_MAIN, RTPROT_BOOT, 0, RTN_UNICAST];
    body.extend_from_slice(&0_u32.to_ne_bytes());
    attribute(&mut body, RTA_GATEWAY, gateway.octets());
    attribute(&mut body, RTA_OIF, index.to_ne_bytes());
    message(RTM_NEWROUTE, NLM_F_CREATE_REPLACE, &body)
}

fn attribute(out: &mut Vec<u8>, kind: u16, value: [u8; 4]) {
    out.extend_from_slice(&8_u16.to_ne_bytes());
    out.extend_from_slice(&kind.to_ne_bytes());
    out.extend_from_slice(&value);
}

/// `struct nlmsghdr`
fn message(kind: u16, flags: u16, body: &[u8]) -> Vec<u8> {
    let len = u32::try_from(16 + body.len()).unwrap_or(u32::MAX);
    let mut message = Vec::with_capacity(16 + body.len());
    message.extend_from_slice(&len.to_ne_bytes());
    message.extend_from_slice(&kind.to_ne_bytes());
    message.extend_from_slice(&(NLM_F_REQUEST_ACK | flags).to_ne_bytes());
    message.extend_from_slice(&1_u32.to_ne_bytes());
    message.extend_from_slice(&0_u32.to_ne_bytes());
    message.extend_from_slice(body);
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_as_long_as_they_say() {
        let (address, gateway) = (Ipv4Addr::new(10, 107, 0, 2), Ipv4Addr::new(10, 107, 0, 1));
        for (message, len) in [
            (set_link(2, 1500), 40),
            (new_address(2, address, 24), 40),
            (default_route(2, gateway), 44),
        ] {
            assert_eq!(message.len(), len);
            assert_eq!(message[..4], u32::try_from(len).unwrap().to_ne_bytes());
        }
    }
}
