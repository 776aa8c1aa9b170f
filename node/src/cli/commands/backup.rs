//! `rhizome backup`, `backup verify`, `restore`.

mod out;

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read, Write},
    path::{Path, PathBuf},
};

use clap::{Args, Subcommand};
use futures::TryStreamExt;
use http_body_util::BodyStream;
use rhizome_identity::{NodeKey, keyfile::KeyKind};
use rhizome_memory::{Replica, ReplicaConfig, now_ms};

pub(crate) use self::out::Out;
use super::{Context, Failure};
use crate::{
    api::types::{
        SCHEMA,
        backup::{BackupBody, BackupChecked, BackupMade},
    },
    backup::{self, BackupError, Checked, Opener, Pack, Sealer},
    cli::ui::{plain, size, utc},
    config::{Config, UpFlags},
    datadir::{self, DataDir},
    prompt,
    vault::Vault,
};

/// What a passphrase is asked for as.
const PASSPHRASE: &str = "passphrase of the backup";

/// Write everything this node needs into one encrypted file, or check one
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:
  rhizome backup                                      asks for a passphrase
  rhizome backup --to /mnt/usb/laptop.age --passphrase-file ~/backup.pass
  rhizome backup --recipient age1... --to - | ssh host 'cat > laptop.age'
  rhizome backup verify laptop.age --identity key.txt
  age --decrypt -i key.txt laptop.age | tar -x        opens it without rhizome

The daemon may run meanwhile. docs/backup.md has a timer."
)]
pub(crate) struct Backup {
    #[command(subcommand)]
    verb: Option<Verb>,
    /// Where to; `-` is standard output, and by default it is a file named after the time
    #[arg(long, value_name = "FILE")]
    to: Option<PathBuf>,
    #[command(flatten)]
    seal: Seal,
    /// Also the packs of snapshots and volumes that are here: they may be large
    #[arg(long)]
    with_blobs: bool,
}

/// What to do with a backup that is there.
#[derive(Debug, Subcommand)]
enum Verb {
    /// Read all of a backup and check every hash, checksum, signature and count; writes nothing
    Verify {
        /// The file; `-` is standard input
        file: PathBuf,
        #[command(flatten)]
        open: Open,
    },
}

/// Make a data directory of a backup
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  rhizome restore laptop.age --data ~/.local/share/rhizome
  rhizome restore laptop.age --data /srv/node --identity key.txt
  rhizome restore laptop.age --verify             the same as `backup verify`

The directory has to be empty or not there. Nothing is in it unless all of the backup is right.
The node fetches what it published since from its peers before it publishes again.")]
pub(crate) struct Restore {
    /// The file; `-` is standard input
    file: PathBuf,
    #[command(flatten)]
    open: Open,
    /// Check it alone, and write nothing
    #[arg(long)]
    verify: bool,
}

/// Who may open a file that is made.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Seal {
    /// Encrypt it for this age recipient, `age1...`; may be given several times
    #[arg(long, value_name = "AGE1", conflicts_with = "passphrase_file")]
    recipient: Vec<String>,
    /// Encrypt it under the passphrase on the first line of this file
    #[arg(long, value_name = "FILE")]
    passphrase_file: Option<PathBuf>,
}

/// Who opens a file.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Open {
    /// The age identity that opens it, as `age-keygen` wrote it
    #[arg(long, value_name = "FILE", conflicts_with = "passphrase_file")]
    identity: Option<PathBuf>,
    /// The file with the passphrase that opens it on its first line
    #[arg(long, value_name = "FILE")]
    passphrase_file: Option<PathBuf>,
}

impl Seal {
    /// Returns whether anything was said.
    pub(crate) fn is_given(&self) -> bool {
        !self.recipient.is_empty() || self.passphrase_file.is_some()
    }

    /// Returns recipients and passphrase, one of them; asks if nothing was said.
    fn body(&self, what: &str) -> Result<BackupBody, Failure> {
        let mut body = BackupBody {
            recipients: self.recipient.clone(),
            ..BackupBody::default()
        };
        if let Some(path) = &self.passphrase_file {
            body.passphrase = Some(backup::first_line(path)?.to_string());
        } else if body.recipients.is_empty() {
            body.passphrase = Some(prompt::new_secret(what)?.to_string());
        }
        Ok(body)
    }

    /// Returns what encrypts for those who are meant.
    pub(crate) fn sealer(&self, what: &str) -> Result<Sealer, Failure> {
        sealer_of(&self.body(what)?)
    }
}

fn sealer_of(body: &BackupBody) -> Result<Sealer, Failure> {
    Ok(match &body.passphrase {
        Some(passphrase) => Sealer::for_passphrase(passphrase),
        None => Sealer::for_recipients(&body.recipients)?,
    })
}

impl Open {
    /// Returns what opens a file that begins with `head`; asks if nothing was said.
    pub(crate) fn opener(&self, head: &[u8], what: &str) -> Result<Opener, Failure> {
        if let Some(path) = &self.identity {
            return Ok(Opener::from_identities(path)?);
        }
        if let Some(path) = &self.passphrase_file {
            return Ok(Opener::from_passphrase(&backup::first_line(path)?));
        }
        if !head.windows(11).any(|piece| piece == b"\n-> scrypt ") {
            let hint = "give the identity with `--identity`";
            return Err(Failure::usage(
                "it is not encrypted under a passphrase",
                hint,
            ));
        }
        Ok(Opener::from_passphrase(&prompt::secret(what)?))
    }
}

pub(crate) async fn backup(context: &Context, args: Backup) -> Result<(), Failure> {
    if let Some(Verb::Verify { file, open }) = args.verb {
        return check(context, file, &open, None).await;
    }
    let to = args.to.unwrap_or_else(|| {
        let at = utc(now_ms()).replace([':', '-'], "");
        PathBuf::from(format!("rhizome-{at}.age"))
    });
    let mut out = Out::open(&to)?;
    let mut body = args.seal.body(PASSPHRASE)?;
    body.with_blobs = args.with_blobs;
    match context.client.post_download("/v1/backup", &body).await {
        Ok(response) => {
            let mut pieces = BodyStream::new(response.into_body());
            while let Some(frame) = pieces.try_next().await.map_err(|error| broken(&error))? {
                if let Some(piece) = frame.data_ref() {
                    out.write_all(piece)?;
                }
            }
        }
        // Without a daemon nothing changes meanwhile, and the directory can be read right here.
        Err(Failure::Unreachable { .. }) => {
            context.ui.status("no daemon runs; reading its directory");
            let dir = data_dir(context)?;
            out = tokio::task::spawn_blocking(move || copy(&dir, &body, out))
                .await
                .map_err(|error| Failure::Protocol(error.to_string()))??;
        }
        Err(error) => return Err(error),
    }
    let bytes = out.finish()?;
    let made = BackupMade {
        schema: SCHEMA,
        path: to.display().to_string(),
        bytes,
    };
    if to == Path::new("-") {
        context.ui.status(&format!("wrote {}", size(bytes)));
        return Ok(());
    }
    if context.ui.is_json() {
        return context.ui.object(&made);
    }
    context
        .ui
        .line(&format!("wrote {} to {}", size(bytes), made.path))?;
    context
        .ui
        .status("it holds the keys of this node; `rhizome backup verify` checks it");
    Ok(())
}

fn broken(error: &hyper::Error) -> Failure {
    Failure::Refused {
        code: "backup_failed".to_owned(),
        message: "the daemon gave the backup up".to_owned(),
        causes: vec![error.to_string()],
        hint: Some("its log says why; nothing was left of the file".to_owned()),
    }
}

/// Makes a backup of a directory that no daemon runs on.
fn copy(dir: &Path, body: &BackupBody, out: Out) -> Result<Out, Failure> {
    let begin = || -> Result<_, crate::daemon::StartError> {
        use crate::daemon::StartError;
        let data = DataDir::lock(dir)?;
        let config = Config::load(data.path(), UpFlags::default())?;
        let vault = Vault::open(data.path())?;
        let key = vault
            .load(&data.join("node.key"), KeyKind::Node)
            .map_err(StartError::Key)?;
        let key = NodeKey::from(key);
        let opened = Replica::open(&data.join("store"), key.clone(), ReplicaConfig::default());
        Ok((
            data,
            config,
            vault,
            key,
            opened.map_err(StartError::Replica)?,
        ))
    };
    if !dir.join("node.key").exists() {
        let message = format!("there is no node in `{}`", dir.display());
        return Err(Failure::usage(
            message,
            "name its directory with `--data-dir`",
        ));
    }
    let (data, config, vault, key, replica) = begin()?;
    let pack = Pack::collect(
        data.path(),
        &vault,
        &key,
        &config.name,
        &replica,
        body.with_blobs,
    )?;
    let sealed = pack.write(sealer_of(body)?.seal(out)?)?;
    Ok(sealed.finish()?)
}

pub(crate) async fn restore(context: &Context, args: Restore) -> Result<(), Failure> {
    let dir = match args.verify {
        true => None,
        false => Some(data_dir(context)?),
    };
    check(context, args.file, &args.open, dir).await
}

/// Checks a backup and puts it into `dir`, if there is one.
async fn check(
    context: &Context,
    file: PathBuf,
    open: &Open,
    dir: Option<PathBuf>,
) -> Result<(), Failure> {
    let failed = |source| Failure::File {
        path: file.clone(),
        source,
    };
    let input: Box<dyn Read + Send> = match file == Path::new("-") {
        true => Box::new(io::stdin()),
        false => Box::new(File::open(&file).map_err(failed)?),
    };
    let mut input = BufReader::new(input);
    let opener = open.opener(input.fill_buf().map_err(failed)?, PASSPHRASE)?;
    let into = dir.clone();
    let checked = tokio::task::spawn_blocking(move || match into {
        Some(dir) => backup::restore(input, &opener, &dir),
        None => backup::verify(input, &opener),
    });
    let checked = checked
        .await
        .map_err(|error| Failure::Protocol(error.to_string()))??;
    tell(context, &file, dir.as_deref(), checked)
}

fn tell(
    context: &Context,
    file: &Path,
    dir: Option<&Path>,
    checked: Checked,
) -> Result<(), Failure> {
    let Checked {
        contents,
        counts,
        mesh,
        bytes,
    } = checked;
    let members = mesh.as_ref().map_or(0, |(_, _, members)| *members);
    let ui = context.ui;
    if ui.is_json() {
        return ui.object(&BackupChecked {
            schema: SCHEMA,
            path: file.display().to_string(),
            data_dir: dir.map(|dir| dir.display().to_string()),
            files: contents.count(),
            node: contents.node,
            name: contents.name,
            made_ms: contents.made_ms,
            made_by: contents.made_by,
            mesh: mesh.map(|(id, _, _)| id),
            members,
            bytes,
            fragments: counts.fragments,
            records: counts.records,
            damaged: counts.damaged,
        });
    }
    ui.line(&format!(
        "{}: node {} as of {}, {} files, {}",
        if dir.is_some() { "restored" } else { "sound" },
        plain(&contents.name),
        utc(contents.made_ms),
        contents.count(),
        size(bytes)
    ))?;
    if let Some((_, name, _)) = &mesh {
        ui.line(&format!(
            "mesh {}: {members} members; {} fragments and {} authority records, every signature right",
            plain(name),
            counts.fragments,
            counts.records
        ))?;
    }
    if counts.damaged > 0 {
        ui.line(&format!(
            "the store was damaged in {} places when the backup was made; peers give back what was there",
            counts.damaged
        ))?;
    }
    let Some(dir) = dir else { return Ok(()) };
    ui.status(&format!(
        "start it with `rhizome --data-dir {} up`; never run it beside the node it was made from",
        dir.display()
    ));
    ui.status(match members {
        0 => "it was in no mesh",
        1 => "it knew of no other member: if others joined since, wait until they have found it before you publish",
        _ => "it publishes in a space once a peer was asked for what is missing; if there is none any more: `rhizome member accept-copy`",
    });
    Ok(())
}

fn data_dir(context: &Context) -> Result<PathBuf, Failure> {
    let dir = context
        .data_dir
        .clone()
        .or_else(datadir::this_users_data_dir);
    let hint = "name a directory with `--data-dir`";
    dir.ok_or_else(|| Failure::usage("there is no home to keep the node's data in", hint))
}

impl From<BackupError> for Failure {
    fn from(error: BackupError) -> Self {
        let hint = error.hint();
        Self::of("backup", &error, hint)
    }
}
