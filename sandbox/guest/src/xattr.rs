//! Extended attributes of files, as far as volumes carry them.
//!
//! Those of users alone (`user.*`): all others grant or deny something on the machine they were
//! set on, which is not for whoever writes a volume to decide elsewhere.

use std::{io, path::Path};

use rustix::io::Errno;

/// What the names of attributes that are carried begin with.
pub const PREFIX: &[u8] = b"user.";
/// Most attributes of one file.
pub const MAX_ATTRIBUTES: usize = 64;
/// Most bytes of the names and values of one file's attributes.
pub const MAX_BYTES: usize = 16 * 1024;
/// Longest name.
pub const MAX_NAME: usize = 255;

/// Attributes by name, in the order of names.
pub type Attributes = Vec<(Vec<u8>, Vec<u8>)>;

/// Whether `attributes` may be those of one file: in order, each once, within the bounds.
#[must_use]
pub fn are_valid(attributes: &[(Vec<u8>, Vec<u8>)]) -> bool {
    let is_name = |name: &[u8]| {
        name.len() > PREFIX.len()
            && name.len() <= MAX_NAME
            && name.starts_with(PREFIX)
            && !name.contains(&0)
    };
    let bytes: usize = attributes
        .iter()
        .map(|(name, value)| name.len() + value.len())
        .sum();
    attributes.len() <= MAX_ATTRIBUTES
        && bytes <= MAX_BYTES
        && attributes.iter().all(|(name, _)| is_name(name))
        && attributes.is_sorted_by(|a, b| a.0 < b.0)
}

/// Reads the attributes of a file or directory that volumes carry; links are not followed, and a
/// file system without attributes has none.
///
/// # Errors
/// Those of reading; [`io::ErrorKind::FileTooLarge`] for more than volumes carry.
pub fn read(path: &Path) -> io::Result<Attributes> {
    let mut names = vec![0; 64 * 1024];
    let len = match rustix::fs::llistxattr(path, &mut names[..]) {
        Ok(len) => len,
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(Vec::new()),
        Err(error) => return Err(error.into()),
    };
    let mut attributes = Vec::new();
    let mut value = vec![0; MAX_BYTES + 1];
    for name in names[..len].split(|byte| *byte == 0) {
        if !name.starts_with(PREFIX) {
            continue;
        }
        let len = match rustix::fs::lgetxattr(path, name, &mut value[..]) {
            Ok(len) => len,
            // It went while we looked.
            Err(Errno::NODATA) => continue,
            Err(Errno::RANGE) => return Err(io::ErrorKind::FileTooLarge.into()),
            Err(error) => return Err(error.into()),
        };
        attributes.push((name.to_vec(), value[..len].to_vec()));
    }
    attributes.sort();
    if are_valid(&attributes) {
        Ok(attributes)
    } else {
        Err(io::ErrorKind::FileTooLarge.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(names: &[&str]) -> Attributes {
        let of = |name: &&str| (name.as_bytes().to_vec(), b"v".to_vec());
        names.iter().map(of).collect()
    }

    #[test]
    fn only_those_of_users_in_order_and_bounds_are_valid() {
        assert!(are_valid(&[]));
        assert!(are_valid(&named(&["user.a", "user.b"])));
        for wrong in [
            &["user.b", "user.a"][..],
            &["user.a", "user.a"],
            &["user."],
            &["trusted.overlay.opaque"],
            &["security.capability"],
            &["user.a\0b"],
        ] {
            assert!(!are_valid(&named(wrong)), "{wrong:?}");
        }
        let many: Vec<String> = (0..=MAX_ATTRIBUTES)
            .map(|n| format!("user.{n:04}"))
            .collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert!(!are_valid(&named(&many)));
        assert!(!are_valid(&[(b"user.a".to_vec(), vec![0; MAX_BYTES])]));
        assert!(!are_valid(&named(&[&format!(
            "user.{}",
            "x".repeat(MAX_NAME)
        )])));
    }
}
