//! Making the change that a publish or a checkpoint will sign.

use automerge::{ActorId, Automerge, Change, ChangeHash};

use super::{
    ComposeContext, ComposeError, Composed, View,
    documents::{Document, Pending, Promise, lock},
    live::Live,
};
use crate::{
    BoundsError, ContextPatch, Draft, FileEdit, FilePath, FileText, FragmentId, Kind,
    document::{
        DocKey, Shape, Statement, WriteError, actor, context_doc, file_doc, first_statement,
        genesis, keyed_doc, single_doc, to_canonical, write_file, write_memory, write_patch,
    },
    fence::{
        MAX_AUTHOR_BYTES, MAX_CHANGE, MAX_CHANGES_PER_AUTHOR, MAX_FILE_OPS,
        MAX_FILE_OPS_PER_AUTHOR, fenced,
    },
    fragment::MAX_DEPS,
    item::{MAX_TASK, at_most, not_empty},
};

/// Most composed changes of one document that are not yet applied.
const MAX_PENDING: usize = 256;

/// What is to be said.
#[derive(Debug, Clone, Copy)]
pub(crate) enum What<'a> {
    /// A memory.
    Draft(&'a Draft),
    /// A change of the working context of a task.
    Patch(&'a str, &'a ContextPatch),
    /// An edit of a file.
    File(&'a FilePath, &'a FileEdit),
}

/// What a new change builds on.
struct Base {
    document: Automerge,
    heads: Vec<ChangeHash>,
}

impl View {
    /// Composes what is said on a document that others may write as well, and has `name` make a
    /// fragment of it. Meanwhile nobody else composes on the document, so that the next change
    /// finds this one's fragment named.
    ///
    /// If `name` fails, nothing was composed.
    pub(crate) fn compose_named<T, E: From<ComposeError>>(
        &self,
        ctx: ComposeContext,
        what: What<'_>,
        name: impl FnOnce(&Composed) -> Result<(FragmentId, Promise, T), E>,
    ) -> Result<(Composed, T), E> {
        let key = key_of(&ctx, what)?;
        self.with_document(&key, |document| {
            let composed = compose_fenced(document, &key, ctx, what)?;
            match name(&composed) {
                Ok((id, promise, named)) => {
                    if let Some(last) = document.pending.last_mut() {
                        last.fragment = Some((id, promise));
                    }
                    Ok((composed, named))
                }
                Err(error) => {
                    document.release(&composed.change);
                    Err(error)
                }
            }
        })
    }

    /// Composes what is said, and leaves it to the caller to name it.
    pub(super) fn compose_unnamed(
        &self,
        ctx: ComposeContext,
        what: What<'_>,
    ) -> Result<Composed, ComposeError> {
        if let What::Draft(draft) = what
            && draft.key.is_none()
        {
            return Self::compose_new(ctx, draft);
        }
        let key = key_of(&ctx, what)?;
        self.with_document(&key, |document| compose_fenced(document, &key, ctx, what))
    }

    /// Runs `work` with a document locked and loaded.
    fn with_document<T, E: From<ComposeError>>(
        &self,
        key: &DocKey,
        work: impl FnOnce(&mut Document) -> Result<T, E>,
    ) -> Result<T, E> {
        let cell = self.documents.cell(key);
        let mut document = lock(&cell);
        while document.live.is_none() {
            if self.documents.is_uncommitted(key) {
                // It has changed and was let go of since: its rows can be read after the commit.
                drop(document);
                drop(self.applying());
                document = lock(&cell);
            } else {
                document.live = Some(self.load(key)?);
            }
        }
        let done = work(&mut document);
        let bytes = document.live.as_ref().map_or(0, |live| live.bytes);
        drop(document);
        self.documents.keep(key, bytes);
        done
    }

    fn load(&self, key: &DocKey) -> Result<Live, ComposeError> {
        let tables = self.shared.store.read()?;
        let row = &key.to_bytes()[..];
        let saved = tables.saved.get(row).map_err(super::ViewError::from)?;
        let index = tables.index.get(row).map_err(super::ViewError::from)?;
        let saved = saved.as_ref().map(|row| row.value());
        Ok(Live::from_rows(
            key,
            saved,
            index.as_ref().map(|row| row.value()),
        )?)
    }
}

/// Checks what is said, and returns the document that it is said on.
fn key_of(ctx: &ComposeContext, what: What<'_>) -> Result<DocKey, ComposeError> {
    match what {
        What::Draft(draft) => {
            draft.check()?;
            let doc = match &draft.key {
                Some(key) => keyed_doc(&ctx.space, draft.kind, key),
                None => single_doc(&ctx.space, &ctx.author, ctx.now),
            };
            Ok(DocKey::memory(ctx.space, doc))
        }
        What::Patch(task, patch) => {
            not_empty("task", task)?;
            at_most("task", task, MAX_TASK)?;
            patch.check()?;
            let doc = context_doc(&ctx.space, task);
            Ok(DocKey::context(ctx.space, doc))
        }
        What::File(path, _) => Ok(DocKey::file(ctx.space, file_doc(&ctx.space, path))),
    }
}

fn compose_fenced(
    document: &mut Document,
    key: &DocKey,
    ctx: ComposeContext,
    what: What<'_>,
) -> Result<Composed, ComposeError> {
    document.forget_settled();
    let is_unnamed = |pending: &Pending| pending.fragment.is_none();
    if document.pending.len() >= MAX_PENDING || document.pending.iter().any(is_unnamed) {
        return Err(ComposeError::Busy);
    }
    let composed = fenced(|| compose_on(document, key, ctx, what))
        .unwrap_or_else(|what| Err(ComposeError::Automerge(what)));
    if composed.is_err() {
        // It may have got a change that there will be no fragment of.
        document.tip = None;
    }
    composed
}

fn compose_on(
    document: &mut Document,
    key: &DocKey,
    ctx: ComposeContext,
    what: What<'_>,
) -> Result<Composed, ComposeError> {
    let actor = actor(&ctx.author, &key.doc);
    let live = loaded(document);
    let budget = own_use(live, &actor);
    if budget.0 >= MAX_CHANGES_PER_AUTHOR || budget.1 + MAX_CHANGE as u64 > MAX_AUTHOR_BYTES {
        return Err(ComposeError::Full {
            changes: budget.0,
            limit: MAX_CHANGES_PER_AUTHOR,
        });
    }
    if key.shape == Shape::File
        && own_operations(live, &actor) > MAX_FILE_OPS_PER_AUTHOR - MAX_FILE_OPS
    {
        return Err(ComposeError::Full {
            changes: budget.0,
            limit: MAX_CHANGES_PER_AUTHOR,
        });
    }
    let is_first = live.index.len() == 0 && document.pending.is_empty();
    let (change, file) = match what {
        What::Draft(draft) if is_first => (checked_size("draft", first(ctx, draft, actor))?, None),
        _ => compose_upon(document, ctx, what, actor)?,
    };
    let composed = Composed {
        doc: key.doc,
        kind: kind_of(what),
        change: change.raw_bytes().to_vec(),
        deps: named_deps(key, document, &change)?,
        file,
    };
    document.pending.push(Pending {
        change,
        fragment: None,
    });
    Ok(composed)
}

/// Writes upon all that is there and on its way; the document's tip then has this change as well.
fn compose_upon(
    document: &mut Document,
    ctx: ComposeContext,
    what: What<'_>,
    actor: ActorId,
) -> Result<(Change, Option<FileText>), ComposeError> {
    let mut base = base(document, &actor)?;
    let (field, written) = match what {
        What::Draft(draft) => (
            "draft",
            write_memory(&mut base.document, actor, &base.heads, ctx.now, draft)
                .map(|change| (change, None)),
        ),
        What::Patch(task, patch) => (
            "patch",
            write_patch(&mut base.document, actor, &base.heads, ctx.now, task, patch)
                .map(|change| (change, None)),
        ),
        What::File(path, edit) => (
            "edit",
            write_file(&mut base.document, actor, &base.heads, ctx.now, path, edit)
                .map(|(change, texts)| (change, Some(texts))),
        ),
    };
    let failed = |error: String| ComposeError::Automerge(error);
    let (written, file) = written.map_err(|error| match error {
        WriteError::File(error) => ComposeError::File(error),
        error => failed(error.to_string()),
    })?;
    let change = Change::from_bytes(written).map_err(|error| failed(error.to_string()))?;
    document.tip = Some(base.document);
    Ok((checked_size(field, change)?, file))
}

/// Takes the document's tip, or puts what is on its way on top of the document, so that changes
/// composed in a row follow each other.
fn base(document: &mut Document, actor: &ActorId) -> Result<Base, ComposeError> {
    let mut tip = match document.tip.take() {
        Some(tip) => tip,
        None => {
            let changes: Vec<Change> = document
                .pending
                .iter()
                .map(|pending| pending.change.clone())
                .collect();
            let live = document.live.as_mut().expect("it was loaded");
            let mut tip = live.parts()?.0.clone();
            if !changes.is_empty() {
                tip.apply_changes(changes)
                    .map_err(|error| ComposeError::Automerge(error.to_string()))?;
            }
            tip
        }
    };
    let mut heads = tip.get_heads();
    heads.sort_unstable();
    tip.set_actor(actor.clone());
    let own = tip.get_last_local_change().map(|change| change.hash());
    let own_is_covered = own.is_some_and(|own| !heads.contains(&own));
    if heads.len() + usize::from(own_is_covered) > MAX_DEPS {
        // A header holds so many; ours must be among them, the others follow in later changes.
        heads.retain(|head| Some(*head) != own);
        heads.truncate(MAX_DEPS - 1);
        heads.extend(own);
        heads.sort_unstable();
    }
    Ok(Base {
        document: tip,
        heads,
    })
}

fn loaded(document: &Document) -> &Live {
    document.live.as_ref().expect("it was loaded")
}

fn kind_of(what: What<'_>) -> Kind {
    match what {
        What::Draft(draft) => draft.kind,
        What::Patch(..) => Kind::Context,
        What::File(..) => Kind::File,
    }
}

/// Returns the fragments of what `change` builds on, as its header has to name them.
///
/// These are more than the heads it was written upon: automerge adds its author's last change where
/// others have built on that since.
fn named_deps(
    key: &DocKey,
    document: &Document,
    change: &Change,
) -> Result<Vec<FragmentId>, ComposeError> {
    if change.deps() == [genesis(key.shape).hash] {
        return Ok(Vec::new());
    }
    let live = loaded(document);
    let fragment = |hash: &ChangeHash| {
        let applied = live.index.by_hash(hash);
        let applied = applied.map(|position| live.index.at(position).fragment);
        let mut pending = document.pending.iter();
        let on_its_way = || {
            let pending = pending.find(|pending| pending.change.hash() == *hash)?;
            pending.fragment.as_ref().map(|(fragment, _)| *fragment)
        };
        applied.or_else(on_its_way)
    };
    let deps: Option<Vec<FragmentId>> = change.deps().iter().map(fragment).collect();
    deps.ok_or_else(|| ComposeError::Automerge("a head without a fragment".to_owned()))
}

/// Composes the first change of a document of its own.
pub(super) fn compose_new(ctx: ComposeContext, draft: &Draft) -> Result<Composed, ComposeError> {
    draft.check()?;
    let doc = single_doc(&ctx.space, &ctx.author, ctx.now);
    let change = first(ctx, draft, actor(&ctx.author, &doc));
    let change = checked_size("draft", change)?;
    Ok(Composed {
        doc,
        kind: draft.kind,
        change: change.raw_bytes().to_vec(),
        deps: Vec::new(),
        file: None,
    })
}

fn first(ctx: ComposeContext, draft: &Draft, actor: ActorId) -> Change {
    let statement = to_canonical(&Statement {
        at: ctx.now,
        draft: draft.clone(),
    });
    first_statement(actor, &statement)
}

fn checked_size(field: &'static str, change: Change) -> Result<Change, ComposeError> {
    let size = change.raw_bytes().len();
    if size > MAX_CHANGE {
        return Err(BoundsError::TooLong {
            field,
            size,
            limit: MAX_CHANGE,
        }
        .into());
    }
    Ok(change)
}

/// Returns how many changes this author made on the document, and their bytes.
fn own_use(live: &Live, actor: &ActorId) -> (u64, u64) {
    let actor = <[u8; 16]>::try_from(actor.to_bytes()).expect("our actors have 16 bytes");
    live.index.last_of(&actor).map_or((0, 0), |last| {
        (live.index.at(last).seq, live.index.at(last).author_bytes)
    })
}

/// Returns how many operations this author's changes of the document have.
fn own_operations(live: &Live, actor: &ActorId) -> u64 {
    let actor = <[u8; 16]>::try_from(actor.to_bytes()).expect("our actors have 16 bytes");
    let last = live.index.last_of(&actor);
    last.map_or(0, |last| live.index.at(last).author_ops)
}
