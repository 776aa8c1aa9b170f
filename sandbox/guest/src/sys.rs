//! The system calls that have no safe wrapper.
#![expect(unsafe_code, reason = "see each block")]

use std::{fs::File, io, os::fd::AsFd, os::unix::process::CommandExt, process::Command};

use rustix::{
    fs::{Gid, Uid},
    net::{
        AddressFamily, SocketAddrAny,
        addr::{SocketAddrArg, SocketAddrLen, SocketAddrOpaque},
    },
};

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

/// What a child does before it becomes its program, in this order.
#[derive(Debug, Default)]
pub(crate) struct Before {
    /// The `cgroup.procs` of the control group that it joins.
    pub(crate) group: Option<File>,
    /// Whether its standard input is a terminal that it is to lead.
    pub(crate) terminal: bool,
    /// Supplementary groups, if it changes who it is.
    pub(crate) groups: Vec<Gid>,
    /// Who it becomes.
    pub(crate) user: Option<(Uid, Gid)>,
}

/// Has the children of `command` do what `before` says.
pub(crate) fn before_exec(command: &mut Command, before: Before) {
    if before.group.is_none() && !before.terminal && before.user.is_none() {
        // The standard library then has a faster way to start it.
        return;
    }
    let step = move || -> io::Result<()> {
        if let Some(group) = &before.group {
            rustix::io::write(group, b"0")?;
        }
        if before.terminal {
            rustix::process::setsid()?;
            rustix::process::ioctl_tiocsctty(rustix::stdio::stdin())?;
        }
        if let Some((user, group)) = before.user {
            // Calls of the thread, which is all that is left of the process here.
            rustix::thread::set_thread_groups(&before.groups)?;
            rustix::thread::set_thread_gid(group)?;
            rustix::thread::set_thread_uid(user)?;
        }
        Ok(())
    };
    // SAFETY: the closure runs between `fork` and `exec`, where only what is safe in a signal
    // handler may be done: it makes plain system calls, takes no lock and allocates nothing (a
    // failed call's error is a number).
    unsafe {
        command.pre_exec(step);
    }
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
