//! age: encrypting for whoever is to open a file, and opening it.
use std::{
    fmt,
    fs::File,
    io::{self, Read, Write},
    iter,
    path::Path,
    str::FromStr,
};

use age::{
    DecryptError, Decryptor, EncryptError, Encryptor, Identity, Recipient, scrypt,
    secrecy::SecretString,
    stream::{StreamReader, StreamWriter},
    x25519,
};
use zeroize::Zeroizing;

use super::BackupError;

/// How much a passphrase is stretched, as a power of two: about a second and 256 MiB, as age does.
const WORK: u8 = 18;
/// How much work a file may ask for, as a power of two: four times that, about 1 GiB.
const MAX_WORK: u8 = 20;
/// The largest file of a passphrase or of identities, in bytes.
const MAX_SECRET_FILE: u64 = 64 * 1024;
/// The longest passphrase, in bytes.
const MAX_PASSPHRASE: usize = 4 * 1024;

/// Who is to open a file.
pub(crate) enum Sealer {
    Recipients(Vec<x25519::Recipient>),
    Passphrase(SecretString),
}

impl Sealer {
    /// Encrypts for each of `recipients`, as age spells them.
    ///
    /// # Errors
    /// [`BackupError::NoRecipient`], [`BackupError::Recipient`].
    pub(crate) fn for_recipients(recipients: &[String]) -> Result<Self, BackupError> {
        let parse = |text: &String| {
            x25519::Recipient::from_str(text.trim())
                .map_err(|_| BackupError::Recipient(text.chars().take(80).collect()))
        };
        let recipients: Vec<_> = recipients.iter().map(parse).collect::<Result<_, _>>()?;
        match recipients.is_empty() {
            true => Err(BackupError::NoRecipient),
            false => Ok(Self::Recipients(recipients)),
        }
    }

    /// Encrypts under a passphrase.
    pub(crate) fn for_passphrase(passphrase: &str) -> Self {
        Self::Passphrase(SecretString::from(passphrase.to_owned()))
    }

    /// Begins an age file; what is written to the returned writer is encrypted, and its `finish`
    /// ends the file.
    pub(crate) fn seal<W: Write>(&self, out: W) -> Result<StreamWriter<W>, BackupError> {
        let encryptor = match self {
            Self::Recipients(recipients) => {
                Encryptor::with_recipients(recipients.iter().map(|one| one as &dyn Recipient))
            }
            Self::Passphrase(passphrase) => {
                let mut recipient = scrypt::Recipient::new(passphrase.clone());
                recipient.set_work_factor(WORK);
                Encryptor::with_recipients(iter::once(&recipient as &dyn Recipient))
            }
        };
        let encryptor = encryptor.map_err(|error| match error {
            EncryptError::MissingRecipients => BackupError::NoRecipient,
            other => BackupError::Recipient(other.to_string()),
        })?;
        let begun = encryptor.wrap_output(out);
        begun.map_err(BackupError::io("write", Path::new("the encrypted file")))
    }

    /// Encrypts `bytes` as one file.
    pub(crate) fn seal_all(&self, bytes: &[u8]) -> Result<Vec<u8>, BackupError> {
        let mut sealed = Vec::new();
        let mut out = self.seal(&mut sealed)?;
        let written = out.write_all(bytes).and_then(|()| out.finish().map(|_| ()));
        written.map_err(BackupError::io("write", Path::new("the encrypted file")))?;
        Ok(sealed)
    }
}

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Recipients(_) => "Sealer(recipients)",
            Self::Passphrase(_) => "Sealer(passphrase)",
        })
    }
}

/// Who opens a file.
pub(crate) enum Opener {
    Identities(Vec<x25519::Identity>),
    Passphrase(SecretString),
}

impl Opener {
    /// Opens with the identities in a file, one a line, as `age-keygen` writes them.
    ///
    /// # Errors
    /// [`BackupError::NoIdentity`], [`BackupError::Io`].
    pub(crate) fn from_identities(path: &Path) -> Result<Self, BackupError> {
        let text = read_secret(path)?;
        let lines = text.lines().map(str::trim);
        let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
        let identities = lines.map(x25519::Identity::from_str);
        let identities: Result<Vec<_>, _> = identities.collect();
        match identities {
            Ok(identities) if !identities.is_empty() => Ok(Self::Identities(identities)),
            _ => Err(BackupError::NoIdentity(path.to_owned())),
        }
    }

    /// Opens with a passphrase.
    pub(crate) fn from_passphrase(passphrase: &str) -> Self {
        Self::Passphrase(SecretString::from(passphrase.to_owned()))
    }

    /// Reads the head of an age file; what is read from the returned reader is decrypted, and
    /// fails where the file was changed or cut short.
    pub(crate) fn open<R: Read>(&self, input: R) -> Result<StreamReader<R>, BackupError> {
        let decryptor = Decryptor::new(input).map_err(|error| self.failed(error))?;
        // One head is for passphrases alone, the other for identities alone.
        let opened = match self {
            Self::Identities(_) if decryptor.is_scrypt() => {
                return Err(BackupError::WrongKey { with: "identity" });
            }
            Self::Identities(identities) => {
                decryptor.decrypt(identities.iter().map(|one| one as &dyn Identity))
            }
            Self::Passphrase(passphrase) => {
                let mut identity = scrypt::Identity::new(passphrase.clone());
                identity.set_max_work_factor(MAX_WORK);
                decryptor.decrypt(iter::once(&identity as &dyn Identity))
            }
        };
        opened.map_err(|error| self.failed(error))
    }

    /// Decrypts a file of at most `limit` bytes.
    pub(crate) fn open_all(
        &self,
        sealed: &[u8],
        limit: u64,
    ) -> Result<Zeroizing<Vec<u8>>, BackupError> {
        let mut plain = Zeroizing::new(Vec::new());
        let mut reader = self.open(sealed)?;
        let read = reader.by_ref().take(limit + 1).read_to_end(&mut plain);
        read.map_err(|error| BackupError::damaged(error.to_string()))?;
        match plain.len() as u64 > limit {
            true => Err(BackupError::TooLarge {
                path: "the content".to_owned(),
                bytes: plain.len() as u64,
                limit,
            }),
            false => Ok(plain),
        }
    }

    fn failed(&self, error: DecryptError) -> BackupError {
        match error {
            DecryptError::ExcessiveWork { required, .. } => BackupError::TooMuchWork {
                required,
                limit: MAX_WORK,
            },
            DecryptError::DecryptionFailed
            | DecryptError::KeyDecryptionFailed
            | DecryptError::NoMatchingKeys => BackupError::WrongKey {
                with: match self {
                    Self::Identities(_) => "identity",
                    Self::Passphrase(_) => "passphrase",
                },
            },
            _ => BackupError::NotAge,
        }
    }
}

impl fmt::Debug for Opener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Identities(_) => "Opener(identities)",
            Self::Passphrase(_) => "Opener(passphrase)",
        })
    }
}

/// Returns the passphrase on the first line of a file.
///
/// # Errors
/// [`BackupError::Passphrase`] if that is empty or very long, [`BackupError::Io`].
pub(crate) fn first_line(path: &Path) -> Result<Zeroizing<String>, BackupError> {
    let text = read_secret(path)?;
    let line = text.lines().next().unwrap_or_default();
    match line.is_empty() || line.len() > MAX_PASSPHRASE {
        true => Err(BackupError::Passphrase(path.display().to_string())),
        false => Ok(Zeroizing::new(line.to_owned())),
    }
}

fn read_secret(path: &Path) -> Result<Zeroizing<String>, BackupError> {
    let bytes = read_bounded(path, MAX_SECRET_FILE)?;
    let text = std::str::from_utf8(&bytes);
    let text = text.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error));
    let text = text.map_err(BackupError::io("read", path))?;
    Ok(Zeroizing::new(text.to_owned()))
}

/// Returns the content of a file of at most `limit` bytes.
///
/// # Errors
/// [`BackupError::TooLarge`], [`BackupError::Io`].
pub(crate) fn read_bounded(path: &Path, limit: u64) -> Result<Zeroizing<Vec<u8>>, BackupError> {
    let mut bytes = Zeroizing::new(Vec::new());
    let file = File::open(path).map_err(BackupError::io("open", path))?;
    let read = file.take(limit + 1).read_to_end(&mut bytes);
    read.map_err(BackupError::io("read", path))?;
    if bytes.len() as u64 > limit {
        let (path, bytes) = (path.display().to_string(), bytes.len() as u64);
        return Err(BackupError::TooLarge { path, bytes, limit });
    }
    Ok(bytes)
}
