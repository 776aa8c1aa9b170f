//! The one system call that has no safe wrapper.
#![expect(unsafe_code, reason = "see each block")]

use std::{fs::File, os::fd::AsFd};

/// `_IO('R', 7)`
const RNDRESEEDCRNG: rustix::ioctl::Opcode = 0x5207;

/// Makes the kernel use what was mixed into its randomness at once.
pub(crate) fn reseed_now(random: &File) -> rustix::io::Result<()> {
    // SAFETY: RNDRESEEDCRNG takes no argument and changes no memory of ours; on a file that is
    // not /dev/random or /dev/urandom the kernel answers ENOTTY.
    unsafe { rustix::ioctl::ioctl(random.as_fd(), rustix::ioctl::NoArg::<RNDRESEEDCRNG>::new()) }
}
