//! What tells this machine from its copies.
//!
//! Copies of one guest were booted once, together: the kernel's `boot_id` is the same in all of
//! them, and so is the image's `machine-id` in all that were made from it. Each gets its own, in
//! files that lie over these two; programs that look see it before they run for the first time.

use std::{
    fs::{self, File, Permissions},
    io,
    os::unix::fs::{FileExt, PermissionsExt},
    path::Path,
};

use rustix::{
    mount::mount_bind,
    rand::{GetRandomFlags, getrandom},
};

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// Where it lies over what the image has; one that has none has no use for it.
pub(crate) const MACHINE_ID: &str = "/etc/machine-id";
/// The files themselves.
const OWN_BOOT_ID: &str = "/run/rhizome/boot_id";
const OWN_MACHINE_ID: &str = "/run/rhizome/machine-id";

/// The files that say which machine this is; those that could be put in place.
#[derive(Debug, Default)]
pub(crate) struct Identity {
    boot: Option<File>,
    machine: Option<File>,
}

impl Identity {
    /// Puts the boot's own number in place, where copies change it.
    ///
    /// # Errors
    /// If a file cannot be made or mounted.
    pub(crate) fn take_boot(&mut self) -> io::Result<()> {
        let text = fs::read(BOOT_ID)?;
        self.boot = Some(put(OWN_BOOT_ID, BOOT_ID, &text)?);
        Ok(())
    }

    /// Puts this machine's number in place, 32 hexadecimal digits, if the image has a place for it.
    ///
    /// # Errors
    /// If a file cannot be made or mounted.
    pub(crate) fn take_machine(&mut self, number: &str) -> io::Result<()> {
        if Path::new(MACHINE_ID).is_file() {
            let text = format!("{number}\n");
            self.machine = Some(put(OWN_MACHINE_ID, MACHINE_ID, text.as_bytes())?);
        }
        Ok(())
    }

    /// Makes this machine another than the one it was copied from; after its randomness is its
    /// own.
    ///
    /// # Errors
    /// If it cannot.
    pub(crate) fn become_another(&self, machine: Option<[u8; 16]>) -> io::Result<()> {
        if let Some(file) = &self.boot {
            let mut random = [0; 16];
            getrandom(&mut random, GetRandomFlags::empty())?;
            file.write_all_at(format!("{}\n", uuid(random)).as_bytes(), 0)?;
        }
        if let (Some(file), Some(machine)) = (&self.machine, machine) {
            file.write_all_at(
                format!("{:032x}\n", u128::from_be_bytes(machine)).as_bytes(),
                0,
            )?;
        }
        Ok(())
    }
}

/// Makes a file and puts it over another.
fn put(own: &str, over: &str, text: &[u8]) -> io::Result<File> {
    if let Some(dir) = Path::new(own).parent() {
        fs::create_dir_all(dir)?;
    }
    let file = File::create(own)?;
    file.write_all_at(text, 0)?;
    file.set_permissions(Permissions::from_mode(0o444))?;
    mount_bind(own, over)?;
    Ok(file)
}

/// Returns a random UUID (RFC 9562, version 4) as the kernel writes it.
fn uuid(random: [u8; 16]) -> String {
    let mut number = u128::from_be_bytes(random);
    number = (number & !(0xf << 76)) | (4 << 76);
    number = (number & !(3 << 62)) | (2 << 62);
    let digits = format!("{number:032x}");
    let (a, rest) = digits.split_at(8);
    let (b, rest) = rest.split_at(4);
    let (c, rest) = rest.split_at(4);
    let (d, e) = rest.split_at(4);
    format!("{a}-{b}-{c}-{d}-{e}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_a_boot_look_like_the_kernels() {
        assert_eq!(uuid([0; 16]), "00000000-0000-4000-8000-000000000000");
        assert_eq!(uuid([0xff; 16]), "ffffffff-ffff-4fff-bfff-ffffffffffff");
        let kernels = fs::read_to_string(BOOT_ID).unwrap();
        assert_eq!(kernels.trim_end().len(), uuid([1; 16]).len());
    }
}
