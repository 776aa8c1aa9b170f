//! The loopback device, brought up by one netlink message.

use std::io;

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with,
};

const RTM_NEWLINK: u16 = 16;
const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST_ACK: u16 = 0x1 | 0x4;
const IFF_UP: u32 = 1;
/// The loopback device is the first of its network namespace, always.
const LOOPBACK_INDEX: i32 = 1;

/// Brings the loopback device up; the kernel then gives it its addresses.
pub(crate) fn bring_up() -> io::Result<()> {
    // The default protocol of netlink is NETLINK_ROUTE.
    let socket = socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        None,
    )?;
    send(&socket, &request(), SendFlags::empty())?;
    let mut answer = [0_u8; 256];
    let (len, _) = recv(&socket, &mut answer, RecvFlags::empty())?;
    parse_answer(&answer[..len])
}

/// `struct nlmsghdr`, `struct ifinfomsg`.
fn request() -> Vec<u8> {
    let mut message = Vec::with_capacity(32);
    message.extend_from_slice(&32_u32.to_ne_bytes());
    message.extend_from_slice(&RTM_NEWLINK.to_ne_bytes());
    message.extend_from_slice(&NLM_F_REQUEST_ACK.to_ne_bytes());
    message.extend_from_slice(&1_u32.to_ne_bytes());
    message.extend_from_slice(&0_u32.to_ne_bytes());
    message.extend_from_slice(&[0, 0, 0, 0]);
    message.extend_from_slice(&LOOPBACK_INDEX.to_ne_bytes());
    message.extend_from_slice(&IFF_UP.to_ne_bytes());
    message.extend_from_slice(&IFF_UP.to_ne_bytes());
    message
}

/// `struct nlmsghdr`, then the error number, negative, or 0.
fn parse_answer(answer: &[u8]) -> io::Result<()> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_request_is_as_long_as_it_says() {
        assert_eq!(request().len(), 32);
    }

    #[test]
    fn an_error_is_taken_from_the_answer() {
        let mut answer = vec![0; 20];
        answer[4..6].copy_from_slice(&NLMSG_ERROR.to_ne_bytes());
        assert!(parse_answer(&answer).is_ok());
        answer[16..20].copy_from_slice(&(-1_i32).to_ne_bytes());
        assert_eq!(parse_answer(&answer).unwrap_err().raw_os_error(), Some(1));
        assert!(parse_answer(&answer[..7]).is_err());
    }
}
