//! Backups.
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::schema_number;

/// `POST /v1/backup`. Either recipients or a passphrase are given.
#[derive(Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct BackupBody {
    /// Who may open it, as age spells recipients: `age1…`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub recipients: Vec<String>,
    /// The passphrase that opens it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub passphrase: Option<String>,
    /// Also the packs of snapshots and volumes that are here.
    pub with_blobs: bool,
}

impl std::fmt::Debug for BackupBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BackupBody")
            .field("recipients", &self.recipients)
            .field("with_blobs", &self.with_blobs)
            .finish_non_exhaustive()
    }
}

/// What `rhizome backup` says with `--json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BackupMade {
    /// Schema number.
    #[serde(default = "schema_number")]
    pub schema: u32,
    /// Where it is; `-` for standard output.
    pub path: String,
    /// Its length in bytes.
    pub bytes: u64,
}

/// What `rhizome backup verify` and `rhizome restore` say with `--json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BackupChecked {
    /// Schema number.
    #[serde(default = "schema_number")]
    pub schema: u32,
    /// The file.
    pub path: String,
    /// Where it was restored; absent if it was verified alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_dir: Option<String>,
    /// The node it is of: its id.
    pub node: String,
    /// … and its name.
    pub name: String,
    /// When it was made, in Unix milliseconds.
    pub made_ms: u64,
    /// The version of the program that made it.
    pub made_by: String,
    /// The mesh's id; absent if the node was in none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mesh: Option<String>,
    /// How many members the mesh had.
    pub members: usize,
    /// How many files it holds.
    pub files: usize,
    /// Their length together, in bytes.
    pub bytes: u64,
    /// How many fragments its store holds.
    pub fragments: u64,
    /// How many authority records.
    pub records: u64,
    /// Regions of the store that were damaged when it was made; peers give back what was in them.
    pub damaged: u64,
}
