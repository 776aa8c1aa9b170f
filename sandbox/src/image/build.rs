//! Builds an image by a recipe: each step in a sandbox of what the steps before it made.
//!
//! After every RUN the sandbox's files become a root file system, found again by the hash of its
//! base, of all steps up to it and of what they copied. So a build begins at the first step that
//! changed, or that never ran.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use super::{
    ImageConfig, ImageError, ImageInfo, MINIMAL, check_name,
    commit::{Taken, keep_tail, take, text_of},
    recipe::{Does, Recipe, Step},
    rootfs::Rootfs,
};
use crate::{
    Progress, ProgressEvent, SandboxId, SandboxSpec, Sandboxes,
    channel::{ExecEvent, ExecRequest, ExitStatus},
    egress::Policy,
    progress::step,
    staging::{hash_file, link_or_copy},
};

/// Most files that one COPY takes.
const MAX_FILES: usize = 20_000;
/// Deepest tree that is copied.
const MAX_DEPTH: usize = 64;

impl Sandboxes {
    /// Builds the image `name` by a recipe whose COPY steps read from `context`, and whose commands
    /// reach what `network` says.
    ///
    /// # Errors
    /// [`ImageError::Step`] with the last words of the command that failed; the steps before it
    /// are kept and not run again.
    pub async fn build_image(
        &self,
        recipe: &Recipe,
        context: &Path,
        name: &str,
        network: Policy,
        progress: Progress,
    ) -> Result<ImageInfo, ImageError> {
        check_name(name)?;
        let base = self.images().resolve(&recipe.from, &progress).await?;
        let mut chain = Chain {
            config: base.info.config.clone(),
            state: base.info.root.clone().unwrap_or_else(|| MINIMAL.to_owned()),
        };
        // What each step is keyed by, and the last of them whose result is there.
        let (to_hash, within) = (recipe.clone(), context.to_owned());
        let start = chain.clone();
        let states = tokio::task::spawn_blocking(move || start.follow(&to_hash, &within))
            .await
            .unwrap_or_else(|error| {
                Err(ImageError::io(Path::new("."))(std::io::Error::other(error)))
            })?;
        let roots = self.images().roots().clone();
        let known = states.iter().rposition(|state| roots.find(state).is_some());
        let mut rootfs = known.and_then(|at| roots.find(&states[at]));
        let done = known.map_or(0, |at| at + 1);
        if done > 0 {
            let told = format_args!("the first {done} steps are as before");
            step(&progress, "recipe", told);
        }
        let last = recipe
            .steps
            .iter()
            .rposition(|step| !matches!(step.does, Does::Configure(_)));
        for step in &recipe.steps[..done] {
            chain.configure(step);
        }
        if last.is_some_and(|last| last >= done) {
            let image = match &rootfs {
                Some(rootfs) => {
                    self.images()
                        .assemble(Some(rootfs.clone()), &progress)
                        .await?
                }
                None => base.clone(),
            };
            let spec = SandboxSpec {
                image: image.info.id.clone(),
                network,
                ..SandboxSpec::default()
            };
            let made = self.create(spec, progress.clone()).await;
            let sandbox = made.map_err(ImageError::sandbox)?.id;
            let work = Work {
                sandboxes: self,
                sandbox,
                context,
                progress: &progress,
                total: recipe.steps.len(),
            };
            let parent = rootfs.as_ref().map(|rootfs| rootfs.key.clone());
            let parent = parent.or_else(|| base.info.root.clone());
            let built = work.run(recipe, &states, done, parent, &mut chain).await;
            let killed = self.kill(&sandbox).await.map_err(ImageError::sandbox);
            rootfs = Some(built?);
            killed?;
        } else {
            for step in &recipe.steps[done..] {
                chain.configure(step);
            }
        }
        let lineage = vec![format!(
            "recipe: {} steps from {}",
            recipe.steps.len(),
            base.info.name
        )];
        let named = self
            .name_it(rootfs, &base, name, chain, lineage, &progress)
            .await?;
        Ok(self.images().assemble(Some(named), &progress).await?.info)
    }

    /// Gives the last step's files a name and a configuration.
    async fn name_it(
        &self,
        rootfs: Option<Rootfs>,
        base: &super::Image,
        name: &str,
        chain: Chain,
        lineage: Vec<String>,
        progress: &Progress,
    ) -> Result<Rootfs, ImageError> {
        let roots = self.images().roots();
        let parent = match (rootfs, &base.info.root) {
            (Some(rootfs), _) => rootfs,
            (None, Some(key)) => roots.find(key).ok_or_else(|| ImageError::Unknown {
                wanted: base.info.name.clone(),
            })?,
            (None, None) => {
                return Err(ImageError::Guest {
                    what: "a recipe from `minimal` needs a step that makes files".to_owned(),
                });
            }
        };
        let config = serde_json::to_string(&chain.config).expect("a configuration becomes JSON");
        let key = Rootfs::key_of(&format!("recipe {} {config}", parent.key), name);
        if let Some(known) = roots.find(&key) {
            return Ok(known);
        }
        let staged = roots.stage(progress).await?;
        let image = staged.image();
        link_or_copy(&parent.path, &image).map_err(ImageError::io(&image))?;
        let rootfs = Rootfs {
            key,
            name: name.to_owned(),
            format: parent.format,
            parent: Some(parent.key),
            lineage,
            config: chain.config,
            ..Rootfs::default()
        };
        staged.commit(rootfs).await
    }
}

/// What has been said so far, as one hash, and how programs run by now.
#[derive(Debug, Clone)]
struct Chain {
    config: ImageConfig,
    state: String,
}

impl Chain {
    /// Returns the state after each step.
    fn follow(mut self, recipe: &Recipe, context: &Path) -> Result<Vec<String>, ImageError> {
        let mut states = Vec::new();
        for step in &recipe.steps {
            self.configure(step);
            let what = match &step.does {
                Does::Run(command) => format!("run {command}"),
                Does::Copy { from, to } => format!("copy {} {to}", content_of(context, from)?),
                // It has its effect on the steps behind it and in the image's description.
                Does::Configure(_) => {
                    states.push(self.state.clone());
                    continue;
                }
            };
            let config = serde_json::to_string(&self.config).expect("a configuration becomes JSON");
            self.state = Rootfs::key_of(&format!("step {} {config} {what}", self.state), "");
            states.push(self.state.clone());
        }
        Ok(states)
    }

    fn configure(&mut self, step: &Step) {
        if let Does::Configure(change) = &step.does {
            change.apply(&mut self.config);
        }
    }
}

struct Work<'a> {
    sandboxes: &'a Sandboxes,
    sandbox: SandboxId,
    context: &'a Path,
    progress: &'a Progress,
    total: usize,
}

impl Work<'_> {
    /// Runs all steps from `done` on; returns what the last of them left.
    async fn run(
        &self,
        recipe: &Recipe,
        states: &[String],
        done: usize,
        mut parent: Option<String>,
        chain: &mut Chain,
    ) -> Result<Rootfs, ImageError> {
        let makes_files = |step: &Step| !matches!(step.does, Does::Configure(_));
        let last = recipe.steps.iter().rposition(makes_files);
        let mut made = None;
        for (number, step) in recipe.steps.iter().enumerate().skip(done) {
            chain.configure(step);
            let what = match &step.does {
                Does::Configure(_) => continue,
                Does::Run(command) => {
                    self.tell(number, command);
                    self.command(step.line, command, &chain.config).await?;
                    format!("RUN {command}")
                }
                Does::Copy { from, to } => {
                    self.tell(number, &format!("copying {}", from.display()));
                    self.copy(from, to).await?;
                    format!("COPY {} {to}", from.display())
                }
            };
            if matches!(step.does, Does::Run(_)) || Some(number) == last {
                let taken = Taken {
                    key: states[number].clone(),
                    name: String::new(),
                    parent: parent.clone(),
                    lineage: vec![what],
                    config: chain.config.clone(),
                };
                let rootfs = take(self.sandboxes, &self.sandbox, taken, self.progress).await?;
                parent = Some(rootfs.key.clone());
                made = Some(rootfs);
            }
        }
        Ok(made.expect("a sandbox is made for steps that make files"))
    }

    fn tell(&self, number: usize, detail: &str) {
        (self.progress)(ProgressEvent {
            step: "recipe",
            detail: &detail.chars().take(120).collect::<String>(),
            done: number as u64,
            total: self.total as u64,
        });
    }

    async fn command(
        &self,
        line: usize,
        command: &str,
        config: &ImageConfig,
    ) -> Result<(), ImageError> {
        let request = ExecRequest {
            argv: ["sh", "-c", command].map(str::to_owned).to_vec(),
            env: config.env.clone(),
            cwd: config.cwd.clone(),
            user: config.user.clone(),
            ..ExecRequest::default()
        };
        let started = self.sandboxes.exec(&self.sandbox, request).await;
        let mut running = started.map_err(ImageError::sandbox)?;
        let mut tail = Vec::new();
        let status = loop {
            match running.events.recv().await {
                Some(Ok(ExecEvent::Stdout(bytes) | ExecEvent::Stderr(bytes))) => {
                    keep_tail(&mut tail, &bytes);
                }
                Some(Ok(ExecEvent::Exit(status))) => break status,
                Some(Err(source)) => {
                    let id = self.sandbox;
                    return Err(ImageError::sandbox(crate::SandboxError::Exec {
                        id,
                        source,
                    }));
                }
                None => break ExitStatus::Signal(9),
            }
        };
        if status == ExitStatus::Code(0) {
            return Ok(());
        }
        Err(ImageError::Step {
            line,
            ended: format!("{status:?}"),
            tail: text_of(&tail),
        })
    }

    async fn copy(&self, from: &Path, to: &str) -> Result<(), ImageError> {
        let files = list(self.context, from)?;
        let is_tree = self.context.join(from).is_dir();
        for (path, mode) in files {
            let below = path.strip_prefix(from).unwrap_or(&path).to_string_lossy();
            let target = match (is_tree, below.is_empty()) {
                (true, true) => to.to_owned(),
                (true, false) => format!("{}/{below}", to.trim_end_matches('/')),
                // Into a directory, as `cp` does where the target ends with a slash.
                (false, _) if to.ends_with('/') => {
                    let name = from.file_name().unwrap_or_default().to_string_lossy();
                    format!("{to}{name}")
                }
                (false, _) => to.to_owned(),
            };
            let source = self.context.join(&path);
            let put = if source.is_dir() {
                self.make_dir(&target, mode).await
            } else {
                if let Some((dir, _)) = target.rsplit_once('/').filter(|(dir, _)| !dir.is_empty()) {
                    self.make_dir(dir, 0o755).await?;
                }
                let file = tokio::fs::File::open(&source).await;
                let file = file.map_err(ImageError::io(&source))?;
                let written = self
                    .sandboxes
                    .write_file(&self.sandbox, &target, mode, file);
                written.await.map(drop).map_err(ImageError::sandbox)
            };
            put?;
        }
        Ok(())
    }

    async fn make_dir(&self, path: &str, mode: u32) -> Result<(), ImageError> {
        let made = self.sandboxes.make_dir(&self.sandbox, path, mode).await;
        made.map_err(ImageError::sandbox)
    }
}

/// Hashes what a COPY copies: names, permission bits, contents.
fn content_of(context: &Path, from: &Path) -> Result<String, ImageError> {
    let mut hasher = blake3::Hasher::new();
    for (path, mode) in list(context, from)? {
        let source = context.join(&path);
        let content = if source.is_dir() {
            "dir".to_owned()
        } else {
            hash_file(&source).map_err(ImageError::io(&source))?
        };
        let name = path.to_string_lossy();
        hasher.update(format!("{} {name} {mode:o} {content}\n", name.len()).as_bytes());
    }
    Ok(hasher.finalize().to_hex().to_string())
}

/// Lists a file, or a tree with its directories, parents before children, in a fixed order.
fn list(context: &Path, from: &Path) -> Result<Vec<(PathBuf, u32)>, ImageError> {
    let mut found = Vec::new();
    let mut open = vec![(from.to_owned(), 0)];
    while let Some((path, depth)) = open.pop() {
        let source = context.join(&path);
        // Links are not followed: they could lead out of the recipe's directory.
        let meta = fs::symlink_metadata(&source).map_err(ImageError::io(&source))?;
        if meta.is_dir() {
            let entries = fs::read_dir(&source).map_err(ImageError::io(&source))?;
            let mut names = Vec::new();
            for entry in entries {
                names.push(entry.map_err(ImageError::io(&source))?.file_name());
            }
            names.sort();
            open.extend(
                names
                    .into_iter()
                    .rev()
                    .map(|name| (path.join(name), depth + 1)),
            );
        } else if !meta.is_file() {
            return Err(ImageError::Copy {
                path: source,
                what: "is neither a file nor a directory",
            });
        }
        found.push((path, meta.permissions().mode() & 0o777));
        if found.len() > MAX_FILES || depth > MAX_DEPTH {
            return Err(ImageError::Copy {
                path: source,
                what: "belongs to a tree that is too large to copy",
            });
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain() -> Chain {
        Chain {
            config: ImageConfig::default(),
            state: "base".into(),
        }
    }

    #[test]
    fn a_state_follows_from_all_before_it_and_from_what_is_copied() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("app")).unwrap();
        fs::write(dir.path().join("app/x"), "1").unwrap();
        let text = "FROM a\nRUN one\nENV A=b\nCOPY app /srv\nRUN two\nSTART x";
        let states = |text: &str| {
            let recipe = Recipe::parse(text).unwrap();
            chain().follow(&recipe, dir.path()).unwrap()
        };
        let first = states(text);
        assert_eq!(first, states(text));
        assert_eq!(first[0], first[1], "a setting makes no files");
        // What changes a step changes it and all behind it, and nothing before.
        let changed = states(&text.replace("A=b", "A=c"));
        assert_eq!(first[..2], changed[..2]);
        assert!(first[2..].iter().zip(&changed[2..]).all(|(a, b)| a != b));
        fs::write(dir.path().join("app/x"), "2").unwrap();
        let copied = states(text);
        assert_eq!(first[..2], copied[..2]);
        assert_ne!(first[2], copied[2]);
    }

    #[test]
    fn links_are_not_copied() {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/etc", dir.path().join("out")).unwrap();
        let error = list(dir.path(), Path::new("out")).unwrap_err();
        assert!(matches!(error, ImageError::Copy { .. }));
        let error = list(dir.path(), Path::new("nothing")).unwrap_err();
        assert!(matches!(error, ImageError::Io { .. }));
    }
}
