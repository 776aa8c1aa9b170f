//! The certificate authority of one sandbox.

use rcgen::{
    BasicConstraints, Certificate, CertificateParams, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose, date_time_ymd,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use zeroize::Zeroizing;

use super::super::name::DomainName;

/// A certificate authority that one guest trusts, and nobody else. Its key stays on the node.
pub struct Authority {
    certificate: Certificate,
    key: KeyPair,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority").finish_non_exhaustive()
    }
}

/// Why a sandbox has no certificates.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AuthorityError {
    /// A certificate could not be made, or a key not read.
    #[error("cannot make a certificate")]
    Certificate(#[from] rcgen::Error),
    /// TLS would not take it.
    #[error("cannot use a certificate")]
    Tls(#[source] rustls::Error),
}

impl Authority {
    /// Makes an authority for the sandbox called `name`.
    ///
    /// # Errors
    /// [`AuthorityError::Certificate`].
    pub fn generate(name: &str) -> Result<Self, AuthorityError> {
        Self::with_key(name, KeyPair::generate()?)
    }

    /// Makes the authority again from what [`Self::key_pem`] returned.
    ///
    /// # Errors
    /// [`AuthorityError::Certificate`].
    pub fn from_key_pem(name: &str, pem: &str) -> Result<Self, AuthorityError> {
        Self::with_key(name, KeyPair::from_pem(pem)?)
    }

    fn with_key(name: &str, key: KeyPair) -> Result<Self, AuthorityError> {
        let mut params = CertificateParams::default();
        params.distinguished_name = subject(&format!("Rhizome sandbox {name}"));
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        // A guest's clock may be anything before the node has set it.
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(2120, 1, 1);
        let certificate = params.self_signed(&key)?;
        Ok(Self { certificate, key })
    }

    /// Returns the certificate that the guest is to trust, as PEM.
    #[must_use]
    pub fn certificate_pem(&self) -> String {
        self.certificate.pem()
    }

    /// Returns the key, as PEM, to be kept where nobody else reads it.
    #[must_use]
    pub fn key_pem(&self) -> Zeroizing<String> {
        Zeroizing::new(self.key.serialize_pem())
    }

    /// Makes a certificate for a domain, with a key of its own.
    pub(super) fn certify(
        &self,
        domain: &DomainName,
    ) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), AuthorityError> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new([domain.to_string()])?;
        params.distinguished_name = subject(domain.as_str());
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(2120, 1, 1);
        let certificate = params.signed_by(&key, &self.certificate, &self.key)?;
        let chain = vec![certificate.der().clone(), self.certificate.der().clone()];
        Ok((chain, PrivatePkcs8KeyDer::from(key.serialize_der()).into()))
    }
}

/// Common names end at 64 characters (RFC 5280, appendix A.1).
fn subject(name: &str) -> DistinguishedName {
    let mut subject = DistinguishedName::new();
    subject.push(
        DnType::CommonName,
        name.chars().take(64).collect::<String>(),
    );
    subject
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_authority_comes_back_from_its_key() {
        let first = Authority::generate("a").unwrap();
        let again = Authority::from_key_pem("a", &first.key_pem()).unwrap();
        assert_eq!(again.key_pem(), first.key_pem());
        assert!(
            first
                .certificate_pem()
                .starts_with("-----BEGIN CERTIFICATE-----")
        );
        assert!(!format!("{first:?}").contains("PRIVATE"));
        assert!(Authority::from_key_pem("a", "nonsense").is_err());
        let domain = "a.very.long.name.for.a.server.in.a.very.long.domain.name.example.org";
        assert_eq!(again.certify(&domain.parse().unwrap()).unwrap().0.len(), 2);
    }
}
