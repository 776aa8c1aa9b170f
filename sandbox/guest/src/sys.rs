//! The system calls that have no safe wrapper.
#![expect(unsafe_code, reason = "see each block")]

mod start;

use std::{ffi::c_int, fs::File, os::fd::AsFd};

use rustix::net::{
    AddressFamily, SocketAddrAny,
    addr::{SocketAddrArg, SocketAddrLen, SocketAddrOpaque},
};

pub(crate) use start::{Start, start};

/// `_IO('R', 7)`
const RNDRESEEDCRNG: rustix::ioctl::Opcode = 0x5207;
/// `_IOWR('X', 119, int)`
const FIFREEZE: rustix::ioctl::Opcode = 0xc004_5877;
/// `_IOWR('X', 120, int)`
const FITHAW: rustix::ioctl::Opcode = 0xc004_5878;

/// `_IOW('T', 202, int)`; what it takes is a `struct ifreq` all the same.
const TUNSETIFF: rustix::ioctl::Opcode = 0x4004_54ca;
const IFF_TUN: u16 = 0x0001;
const IFF_NO_PI: u16 = 0x1000;
/// Size of `struct ifreq` on 64-bit machines.
const IFREQ_BYTES: usize = 40;
/// Longest name of a device, its end included.
const IFNAMSIZ: usize = 16;

/// Policy of threads that say nothing about theirs.
const SCHED_OTHER: c_int = 0;
/// Policy of threads that do not take the place of what runs.
const SCHED_BATCH: c_int = 3;
/// Threads and processes that such a thread starts do not have its policy.
const SCHED_RESET_ON_FORK: c_int = 0x4000_0000;

/// How many heaps the C library makes; by default one for each thread.
const M_ARENA_MAX: c_int = -8;
/// How much a heap may have at its end before that is given back, in bytes.
const M_TRIM_THRESHOLD: c_int = -1;
const KEPT_BYTES: c_int = 1024 * 1024;

unsafe extern "C" {
    fn mallopt(what: c_int, value: c_int) -> c_int;
    fn sched_setscheduler(pid: c_int, policy: c_int, parameters: *const c_int) -> c_int;
}

/// Any number of this machine.
pub(crate) const VMADDR_CID_ANY: u32 = u32::MAX;
/// The number of the host.
pub(crate) const VMADDR_CID_HOST: u32 = 2;

/// `struct sockaddr_vm`.
#[repr(C)]
struct SockaddrVm {
    family: u16,
    reserved: u16,
    port: u32,
    cid: u32,
    zero: [u8; 4],
}

/// An address of a virtio socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct VsockAddr {
    pub(crate) cid: u32,
    pub(crate) port: u32,
}

// SAFETY: `f` gets a `struct sockaddr_vm` that lives for as long as it runs, with its size.
unsafe impl SocketAddrArg for VsockAddr {
    unsafe fn with_sockaddr<R>(
        &self,
        f: impl FnOnce(*const SocketAddrOpaque, SocketAddrLen) -> R,
    ) -> R {
        let address = SockaddrVm {
            family: AddressFamily::VSOCK.as_raw(),
            reserved: 0,
            port: self.port,
            cid: self.cid,
            zero: [0; 4],
        };
        let size = SocketAddrLen::try_from(size_of::<SockaddrVm>()).expect("it is 16");
        f((&raw const address).cast(), size)
    }
}

/// Returns whose address of a virtio socket it is; `None` for another kind of address.
pub(crate) fn vsock_cid(address: &SocketAddrAny) -> Option<u32> {
    let whole = usize::try_from(address.addr_len()).ok()? >= size_of::<SockaddrVm>();
    if address.address_family() != AddressFamily::VSOCK || !whole {
        return None;
    }
    // SAFETY: the first `addr_len` bytes there are initialised, which is all of the structure, and
    // it is of plain numbers; nothing is said of how they are aligned.
    let read = unsafe { address.as_ptr().cast::<SockaddrVm>().read_unaligned() };
    Some(read.cid)
}

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

/// Writes a file system out and lets nothing change it.
pub(crate) fn freeze(dir: &File) -> rustix::io::Result<()> {
    // SAFETY: the kernel does not look at FIFREEZE's argument and changes no memory of ours; on
    // a file system that can't be frozen it answers EOPNOTSUPP.
    unsafe { rustix::ioctl::ioctl(dir.as_fd(), rustix::ioctl::NoArg::<FIFREEZE>::new()) }
}

/// Undoes [`freeze`].
pub(crate) fn thaw(dir: &File) -> rustix::io::Result<()> {
    // SAFETY: as for FIFREEZE; on a file system that is not frozen the kernel answers EINVAL.
    unsafe { rustix::ioctl::ioctl(dir.as_fd(), rustix::ioctl::NoArg::<FITHAW>::new()) }
}

/// Has all threads share one heap, which is not cut back after each request: a heap for each is
/// grown and cut by calls to the kernel, which cost a guest that just woke up more than what the
/// memory is for. Before there are threads.
pub(crate) fn share_the_heap() {
    // SAFETY: both are numbers; what the C library does not know it leaves as it is.
    unsafe {
        mallopt(M_ARENA_MAX, 1);
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES);
    }
}

/// Whether what runs goes on when this thread has something to do, until that waits or its turn is
/// over. What this thread starts is scheduled as usual.
pub(crate) fn give_way(does: bool) {
    let policy = match does {
        true => SCHED_BATCH | SCHED_RESET_ON_FORK,
        false => SCHED_OTHER,
    };
    let parameters: c_int = 0;
    // SAFETY: `parameters` is a `struct sched_param`, whose only field is a number; a policy that
    // the kernel refuses changes nothing.
    unsafe { sched_setscheduler(0, policy, &raw const parameters) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_of_a_virtio_socket_is_read_as_it_was_made() {
        let address = VsockAddr {
            cid: VMADDR_CID_HOST,
            port: 1024,
        };
        assert_eq!(vsock_cid(&address.as_any()), Some(VMADDR_CID_HOST));
        let other = std::net::SocketAddr::from(([127, 0, 0, 1], 80));
        assert_eq!(vsock_cid(&other.as_any()), None);
    }
}
