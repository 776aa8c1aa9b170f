//! The certificate authority of this door: clients that trust it reach the node over TLS.
use std::{
    fs, io,
    net::IpAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use rcgen::{
    BasicConstraints, Certificate, CertificateParams, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose, date_time_ymd,
};
use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer},
};
use tokio_rustls::TlsAcceptor;

use super::registry::write_synced;

/// The authority's certificate, for clients, and its key, for nobody.
const CERTIFICATE: &str = "ca.pem";
const KEY: &str = "ca.key";

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AuthorityError {
    /// A file cannot be read or written.
    #[error("cannot use `{}`", path.display())]
    Io {
        /// Which one.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A certificate could not be made, or a key not read.
    #[error("cannot make a certificate")]
    Certificate(#[from] rcgen::Error),
    /// TLS would not take it.
    #[error("cannot use a certificate")]
    Tls(#[from] rustls::Error),
}

/// Returns where the certificate that clients are to trust lies.
pub(super) fn certificate_path(root: &Path) -> PathBuf {
    root.join(CERTIFICATE)
}

/// Makes the authority below `root`, or finds it, and returns what answers TLS for `domain`,
/// `localhost` and `address`.
pub(super) fn acceptor(
    root: &Path,
    domain: Option<&str>,
    address: IpAddr,
) -> Result<TlsAcceptor, AuthorityError> {
    let (certificate, key) = authority(root)?;
    let leaf_key = KeyPair::generate()?;
    let mut names: Vec<String> = ["localhost", "*.localhost", "127.0.0.1", "::1"]
        .map(str::to_owned)
        .into();
    if !address.is_loopback() && !address.is_unspecified() {
        names.push(address.to_string());
    }
    // `api.x`, `sandbox.x` and `<port>-<sandbox>.x` are all one label below.
    names.extend(
        domain
            .iter()
            .flat_map(|d| [(*d).to_owned(), format!("*.{d}")]),
    );
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name = subject("Rhizome node");
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.use_authority_key_identifier_extension = true;
    params.not_before = date_time_ymd(2020, 1, 1);
    params.not_after = date_time_ymd(2120, 1, 1);
    let leaf = params.signed_by(&leaf_key, &certificate, &key)?;
    let chain: Vec<CertificateDer<'static>> = vec![leaf.der().clone(), certificate.der().clone()];
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(leaf_key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    // Said out loud: a client that prefers HTTP/2 must learn that this is not it.
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn authority(root: &Path) -> Result<(Certificate, KeyPair), AuthorityError> {
    let key_path = root.join(KEY);
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| AuthorityError::Io { path, source }
    };
    let key = match fs::read_to_string(&key_path) {
        Ok(pem) => KeyPair::from_pem(&pem)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let key = KeyPair::generate()?;
            write_synced(root, &key_path, key.serialize_pem().as_bytes())
                .map_err(failed(&key_path))?;
            key
        }
        Err(source) => return Err(failed(&key_path)(source)),
    };
    let mut params = CertificateParams::default();
    // Names tell authorities apart where several nodes' are trusted.
    let id: String = data_encoding::HEXLOWER
        .encode(ring::digest::digest(&ring::digest::SHA256, &key.public_key_der()).as_ref())
        .chars()
        .take(8)
        .collect();
    params.distinguished_name = subject(&format!("Rhizome E2B door {id}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.not_before = date_time_ymd(2020, 1, 1);
    params.not_after = date_time_ymd(2120, 1, 1);
    let certificate = params.self_signed(&key)?;
    let path = certificate_path(root);
    // The signature differs each time and the name and key do not: whoever has an older copy
    // trusts the same authority.
    if !path.exists() {
        write_synced(root, &path, certificate.pem().as_bytes()).map_err(failed(&path))?;
    }
    Ok((certificate, key))
}

fn subject(name: &str) -> DistinguishedName {
    let mut subject = DistinguishedName::new();
    subject.push(DnType::CommonName, name);
    subject
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_authority_stays_the_same_and_its_key_private() {
        let temp = tempfile::tempdir().unwrap();
        let loopback = IpAddr::from([127, 0, 0, 1]);
        acceptor(temp.path(), Some("box.test"), loopback).unwrap();
        let pem = fs::read(certificate_path(temp.path())).unwrap();
        acceptor(temp.path(), None, loopback).unwrap();
        assert_eq!(fs::read(certificate_path(temp.path())).unwrap(), pem);
        let mode = fs::metadata(temp.path().join(KEY)).unwrap().permissions();
        assert_eq!(mode.mode() & 0o077, 0);
    }
}
