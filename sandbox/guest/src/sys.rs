//! The system calls that have no safe wrapper.
#![expect(unsafe_code, reason = "see each block")]

use std::{fs::File, os::fd::AsFd};

/// `_IO('R', 7)`
const RNDRESEEDCRNG: rustix::ioctl::Opcode = 0x5207;

/// `_IOW('T', 202, int)`; what it takes is a `struct ifreq` all the same.
const TUNSETIFF: rustix::ioctl::Opcode = 0x4004_54ca;
const IFF_TUN: u16 = 0x0001;
const IFF_NO_PI: u16 = 0x1000;
/// Size of `struct ifreq` on 64-bit machines.
const IFREQ_BYTES: usize = 40;
/// Longest name of a device, its end included.
const IFNAMSIZ: usize = 16;

/// Makes an open `/dev/net/tun` the device called `name`, which carries bare IP packets.
pub(crate) fn make_tun(tun: &File, name: &str) -> rustix::io::Result<()> {
    let mut request = [0_u8; IFREQ_BYTES];
    if name.len() >= IFNAMSIZ {
        return Err(rustix::io::Errno::INVAL);
    }
    request[..name.len()].copy_from_slice(name.as_bytes());
    request[IFNAMSIZ..IFNAMSIZ + 2].copy_from_slice(&(IFF_TUN | IFF_NO_PI).to_ne_bytes());
    // SAFETY: TUNSETIFF reads and writes a `struct ifreq`, 40 bytes on every 64-bit Linux, which
    // `request` is; on a file that is not /dev/net/tun the kernel answers ENOTTY or EBADFD.
    unsafe {
        let request = rustix::ioctl::Setter::<TUNSETIFF, [u8; IFREQ_BYTES]>::new(request);
        rustix::ioctl::ioctl(tun.as_fd(), request)
    }
}

/// Makes the kernel use what was mixed into its randomness at once.
pub(crate) fn reseed_now(random: &File) -> rustix::io::Result<()> {
    // SAFETY: RNDRESEEDCRNG takes no argument and changes no memory of ours; on a file that is
    // not /dev/random or /dev/urandom the kernel answers ENOTTY.
    unsafe { rustix::ioctl::ioctl(random.as_fd(), rustix::ioctl::NoArg::<RNDRESEEDCRNG>::new()) }
}
