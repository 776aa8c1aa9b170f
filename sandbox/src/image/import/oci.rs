//! What an image says about itself: OCI layouts and what `docker save` writes.
//!
//! All of it is JSON from somebody else, bounded in size and in number; a blob is believed once
//! its SHA-256 is the one that named it.

use std::collections::BTreeMap;

use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use super::ImportError;
use crate::image::ImageConfig;

/// Largest JSON document that is read, in bytes.
pub(super) const MAX_JSON: u64 = 4 * 1024 * 1024;
/// Most layers of one image.
const MAX_LAYERS: usize = 512;
/// What guests run on.
const ARCHITECTURE: &str = "amd64";
/// Most entries of the environment that are kept, and the longest.
const MAX_ENV: usize = 64;
const MAX_ENV_BYTES: usize = 32 * 1024;
/// Most of foreign text that an error carries, in bytes.
const MAX_SHOWN: usize = 120;

/// A SHA-256, as `sha256:` and 64 digits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Digest([u8; 32]);

impl std::fmt::Debug for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

impl std::fmt::Display for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("sha256:")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl Digest {
    pub(super) fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    pub(super) fn ended(hasher: Sha256) -> Self {
        Self(hasher.finalize().into())
    }

    pub(super) fn parse(text: &str) -> Result<Self, ImportError> {
        let malformed = || ImportError::malformed(format!("`{}` is no sha256", clip(text)));
        let digits = text.strip_prefix("sha256:").ok_or_else(malformed)?;
        let lower = |c: u8| c.is_ascii_digit() || (b'a'..=b'f').contains(&c);
        if digits.len() != 64 || !digits.bytes().all(lower) {
            return Err(malformed());
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.as_bytes().chunks_exact(2)) {
            let pair = std::str::from_utf8(pair).expect("hexadecimal digits");
            *byte = u8::from_str_radix(pair, 16).expect("hexadecimal digits");
        }
        Ok(Self(bytes))
    }

    /// Returns where a layout keeps the blob.
    pub(super) fn blob(&self) -> String {
        self.to_string().replacen("sha256:", "blobs/sha256/", 1)
    }
}

/// The index of a layout, or of several platforms.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Index {
    pub(super) manifests: Vec<Descriptor>,
}

/// What names a blob.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Descriptor {
    pub(super) media_type: String,
    pub(super) digest: String,
    platform: Option<Platform>,
    annotations: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Platform {
    architecture: String,
    os: String,
}

impl Descriptor {
    pub(super) fn is_index(&self) -> bool {
        self.media_type.ends_with(".image.index.v1+json")
            || self.media_type.ends_with(".manifest.list.v2+json")
    }

    fn fits(&self) -> bool {
        self.platform
            .as_ref()
            .is_none_or(|on| on.architecture == ARCHITECTURE && on.os == "linux")
    }

    /// Returns the name that whoever wrote the layout gave the image.
    pub(super) fn name(&self) -> Option<String> {
        [
            "io.containerd.image.name",
            "org.opencontainers.image.ref.name",
        ]
        .into_iter()
        .find_map(|key| self.annotations.get(key))
        .cloned()
    }
}

impl Index {
    /// Chooses the image for our guests, of those called `wanted` if a name is given.
    pub(super) fn choose(&self, wanted: Option<&str>) -> Result<&Descriptor, ImportError> {
        let called = |one: &&Descriptor| {
            wanted.is_none_or(|wanted| one.name().is_some_and(|name| name == wanted))
        };
        let mut fitting = self.manifests.iter().filter(called).filter(|d| d.fits());
        match (fitting.next(), fitting.count()) {
            (Some(one), 0) => Ok(one),
            (Some(_), more) => Err(ImportError::Several { found: more + 1 }),
            (None, _) if self.manifests.is_empty() => {
                Err(ImportError::malformed("its index is empty"))
            }
            (None, _) => Err(ImportError::NoneFits {
                architecture: ARCHITECTURE,
            }),
        }
    }
}

/// An image: its configuration and its layers.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Manifest {
    pub(super) config: Descriptor,
    pub(super) layers: Vec<Descriptor>,
}

/// One image of `docker save`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub(super) struct Saved {
    pub(super) config: String,
    pub(super) repo_tags: Option<Vec<String>>,
    pub(super) layers: Vec<String>,
}

/// The configuration of an image.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Config {
    architecture: String,
    os: String,
    config: Option<Runs>,
    pub(super) rootfs: RootFs,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct RootFs {
    pub(super) diff_ids: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct Runs {
    env: Option<Vec<String>>,
    entrypoint: Option<Vec<String>>,
    cmd: Option<Vec<String>>,
    working_dir: String,
    user: String,
}

impl Config {
    /// Checks what can be checked without the layers.
    pub(super) fn check(&self, layers: usize) -> Result<(), ImportError> {
        if layers == 0 || layers > MAX_LAYERS {
            return Err(ImportError::malformed(format!(
                "{layers} layers; an image has 1 to {MAX_LAYERS}"
            )));
        }
        if self.rootfs.diff_ids.len() != layers {
            return Err(ImportError::malformed(format!(
                "its configuration names {} layers, its manifest {layers}",
                self.rootfs.diff_ids.len()
            )));
        }
        if self.architecture != ARCHITECTURE || !(self.os == "linux" || self.os.is_empty()) {
            return Err(ImportError::NoneFits {
                architecture: ARCHITECTURE,
            });
        }
        Ok(())
    }

    /// Returns what of it means something to a sandbox; what does not fit its bounds is left out.
    pub(super) fn runs(&self) -> ImageConfig {
        let Some(runs) = &self.config else {
            return ImageConfig::default();
        };
        let env = runs.env.iter().flatten().filter_map(|pair| {
            let (name, value) = pair.split_once('=')?;
            let fits = !name.is_empty() && pair.len() <= MAX_ENV_BYTES && !pair.contains('\0');
            fits.then(|| (name.to_owned(), value.to_owned()))
        });
        let given = |text: &String| (!text.is_empty() && text.len() <= 4096).then(|| text.clone());
        let command = runs.entrypoint.iter().flatten();
        let command = command.chain(runs.cmd.iter().flatten());
        ImageConfig {
            env: env.take(MAX_ENV).collect(),
            cwd: given(&runs.working_dir),
            user: given(&runs.user),
            command: command.take(256).cloned().collect(),
            ..ImageConfig::default()
        }
    }
}

/// Reads a document.
pub(super) fn json<T: for<'de> Deserialize<'de>>(
    what: &str,
    bytes: &[u8],
) -> Result<T, ImportError> {
    serde_json::from_slice(bytes).map_err(|source| ImportError::Json {
        what: clip(what),
        source,
    })
}

/// Cuts foreign text down to what an error may carry.
pub(super) fn clip(text: &str) -> String {
    rhizome_guest::wire::clip(text, MAX_SHOWN)
        .escape_debug()
        .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_64_lower_case_digits() {
        let digest = Digest::of(b"abc");
        assert!(digest.to_string().starts_with("sha256:ba7816bf"));
        assert_eq!(Digest::parse(&digest.to_string()).unwrap(), digest);
        for wrong in ["", "sha256:", "sha512:00", "sha256:../../etc/passwd"] {
            assert!(Digest::parse(wrong).is_err(), "{wrong}");
        }
        assert!(Digest::parse(&digest.to_string().to_uppercase()).is_err());
    }

    #[test]
    fn the_image_for_our_guests_is_chosen() {
        let index: Index = serde_json::from_str(
            r#"{"manifests": [
                {"digest": "a", "platform": {"architecture": "arm64", "os": "linux"}},
                {"digest": "b", "platform": {"architecture": "amd64", "os": "linux"},
                 "annotations": {"org.opencontainers.image.ref.name": "one"}},
                {"digest": "c", "platform": {"architecture": "unknown", "os": "unknown"}}]}"#,
        )
        .unwrap();
        assert_eq!(index.choose(None).unwrap().digest, "b");
        assert_eq!(index.choose(Some("one")).unwrap().digest, "b");
        assert!(matches!(
            index.choose(Some("two")),
            Err(ImportError::NoneFits { .. })
        ));
    }

    #[test]
    fn a_configuration_becomes_ours() {
        let config: Config = serde_json::from_str(
            r#"{"architecture": "amd64", "os": "linux", "rootfs": {"diff_ids": ["x"]},
                "config": {"Env": ["PATH=/bin", "NONSENSE", "=x"], "Entrypoint": ["/run"],
                           "Cmd": ["--now"], "WorkingDir": "/srv", "User": "app"}}"#,
        )
        .unwrap();
        config.check(1).unwrap();
        assert!(config.check(2).is_err());
        let runs = config.runs();
        assert_eq!(runs.env, BTreeMap::from([("PATH".into(), "/bin".into())]));
        assert_eq!(runs.command, ["/run", "--now"]);
        assert_eq!(
            (runs.cwd.as_deref(), runs.user.as_deref()),
            (Some("/srv"), Some("app"))
        );
    }
}
