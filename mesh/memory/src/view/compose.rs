//! Making the change that a publish or a checkpoint will sign.

use automerge::{Change, ChangeHash};

use super::{ComposeContext, ComposeError, Composed, View, live::Live};
use crate::{
    BoundsError, ContextPatch, DocId, Draft, FragmentId, Kind,
    document::{
        DocKey, Shape, actor, context_doc, genesis, keyed_doc, single_doc, write_memory,
        write_patch,
    },
    fence::{MAX_AUTHOR_BYTES, MAX_CHANGE, MAX_CHANGES_PER_AUTHOR, fenced},
    fragment::MAX_DEPS,
    item::{MAX_TASK, at_most, not_empty},
};

/// Most composed changes of one document that are not yet applied.
const MAX_PENDING: usize = 256;

/// A change that was composed and is on its way to be durable.
#[derive(Debug)]
pub(super) struct Pending {
    change: Change,
    fragment: Option<FragmentId>,
}

/// What a new change builds on.
struct Base {
    document: automerge::Automerge,
    heads: Vec<ChangeHash>,
    /// Changes that are on their way, and the fragments they came in.
    named: Vec<(ChangeHash, FragmentId)>,
}

impl View {
    pub(super) fn compose_draft(
        &mut self,
        ctx: ComposeContext,
        draft: &Draft,
    ) -> Result<Composed, ComposeError> {
        let Some(key) = &draft.key else {
            return compose_new(ctx, draft);
        };
        draft.check()?;
        let doc = keyed_doc(&ctx.space, draft.kind, key);
        let key = DocKey::memory(ctx.space, doc);
        let actor = actor(&ctx.author, &doc);
        self.compose_with(&key, ctx, draft.kind, "draft", |base| {
            write_memory(&mut base.document, actor, &base.heads, ctx.now, draft)
                .map_err(|error| error.to_string())
        })
    }

    pub(super) fn compose_patch(
        &mut self,
        ctx: ComposeContext,
        task: &str,
        patch: &ContextPatch,
    ) -> Result<Composed, ComposeError> {
        not_empty("task", task)?;
        at_most("task", task, MAX_TASK)?;
        patch.check()?;
        let doc = context_doc(&ctx.space, task);
        let key = DocKey::context(ctx.space, doc);
        let actor = actor(&ctx.author, &doc);
        self.compose_with(&key, ctx, Kind::Context, "patch", |base| {
            write_patch(&mut base.document, actor, &base.heads, ctx.now, task, patch)
                .map_err(|error| error.to_string())
        })
    }

    fn compose_with(
        &mut self,
        key: &DocKey,
        ctx: ComposeContext,
        kind: Kind,
        field: &'static str,
        write: impl FnOnce(&mut Base) -> Result<Vec<u8>, String>,
    ) -> Result<Composed, ComposeError> {
        let live = self.live_document(key)?;
        let composed = self.compose_on(&live, key, ctx, kind, field, write);
        self.live.put(*key, live);
        composed
    }

    fn compose_on(
        &mut self,
        live: &Live,
        key: &DocKey,
        ctx: ComposeContext,
        kind: Kind,
        field: &'static str,
        write: impl FnOnce(&mut Base) -> Result<Vec<u8>, String>,
    ) -> Result<Composed, ComposeError> {
        let mut base = self.base(key, live, &ctx)?;
        let budget = own_use(live, &ctx, &key.doc);
        if budget.0 >= MAX_CHANGES_PER_AUTHOR || budget.1 + MAX_CHANGE as u64 > MAX_AUTHOR_BYTES {
            return Err(ComposeError::Full {
                changes: budget.0,
                limit: MAX_CHANGES_PER_AUTHOR,
            });
        }

        let change = fenced(|| write(&mut base))
            .and_then(|written| written)
            .map_err(ComposeError::Automerge)?;
        check_size(field, &change)?;
        let parsed = Change::from_bytes(change.clone())
            .map_err(|error| ComposeError::Automerge(error.to_string()))?;
        let deps = named_deps(key, live, &base, &parsed)?;
        self.pending.entry(*key).or_default().push(Pending {
            change: parsed,
            fragment: None,
        });
        Ok(Composed {
            doc: key.doc,
            kind,
            change,
            deps,
        })
    }

    fn live_document(&mut self, key: &DocKey) -> Result<Live, ComposeError> {
        if let Some(live) = self.live.take(key) {
            return Ok(live);
        }
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

    /// Puts what is on its way on top of the document, so that changes composed in a row follow
    /// each other.
    fn base(
        &mut self,
        key: &DocKey,
        live: &Live,
        ctx: &ComposeContext,
    ) -> Result<Base, ComposeError> {
        let mut document = live.document.clone();
        let mut named: Vec<(ChangeHash, FragmentId)> = Vec::new();
        if let Some(pending) = self.pending.get_mut(key) {
            pending.retain(|pending| live.index.by_hash(&pending.change.hash()).is_none());
            if pending.len() >= MAX_PENDING
                || pending.iter().any(|pending| pending.fragment.is_none())
            {
                return Err(ComposeError::Busy);
            }
            named = pending
                .iter()
                .filter_map(|pending| Some((pending.change.hash(), pending.fragment?)))
                .collect();
            let changes: Vec<Change> = pending
                .iter()
                .map(|pending| pending.change.clone())
                .collect();
            if !changes.is_empty() {
                fenced(|| {
                    document
                        .apply_changes(changes)
                        .map_err(|error| error.to_string())
                })
                .and_then(|applied| applied)
                .map_err(ComposeError::Automerge)?;
            }
        }
        let mut heads = document.get_heads();
        heads.sort_unstable();
        document.set_actor(actor(&ctx.author, &key.doc));
        let own = document.get_last_local_change().map(|change| change.hash());
        let own_is_covered = own.is_some_and(|own| !heads.contains(&own));
        if heads.len() + usize::from(own_is_covered) > MAX_DEPS {
            // A header holds so many; ours must be among them, the others follow in later changes.
            heads.retain(|head| Some(*head) != own);
            heads.truncate(MAX_DEPS - 1);
            heads.extend(own);
            heads.sort_unstable();
        }
        Ok(Base {
            document,
            heads,
            named,
        })
    }

    pub(super) fn reserve_pending(&mut self, key: &DocKey, change: &[u8], id: FragmentId) {
        let pending = self.pending.get_mut(key).into_iter().flatten();
        for pending in pending.filter(|pending| pending.change.raw_bytes() == change) {
            pending.fragment = Some(id);
        }
    }

    /// Forgets a composed change, and what was composed upon it.
    pub(super) fn release_pending(&mut self, key: &DocKey, change: &[u8]) {
        if let Some(pending) = self.pending.get_mut(key) {
            if let Some(place) = pending
                .iter()
                .position(|pending| pending.change.raw_bytes() == change)
            {
                pending.truncate(place);
            }
            if pending.is_empty() {
                self.pending.remove(key);
            }
        }
    }

    /// Forgets a composed change that has its verdict.
    pub(super) fn settle_pending(&mut self, key: &DocKey, id: &FragmentId) {
        if let Some(pending) = self.pending.get_mut(key) {
            pending.retain(|pending| pending.fragment != Some(*id));
            if pending.is_empty() {
                self.pending.remove(key);
            }
        }
    }
}

/// Returns the fragments of what `change` builds on, as its header has to name them.
///
/// These are more than the heads it was written upon: automerge adds its author's last change where
/// others have built on that since.
fn named_deps(
    key: &DocKey,
    live: &Live,
    base: &Base,
    change: &Change,
) -> Result<Vec<FragmentId>, ComposeError> {
    if change.deps() == [genesis(key.shape).hash] {
        return Ok(Vec::new());
    }
    let fragment = |hash: &ChangeHash| {
        let applied = live.index.by_hash(hash);
        let applied = applied.map(|position| live.index.at(position).fragment);
        let on_its_way = || base.named.iter().find(|(pending, _)| pending == hash);
        applied.or_else(|| on_its_way().map(|(_, fragment)| *fragment))
    };
    let deps: Option<Vec<FragmentId>> = change.deps().iter().map(fragment).collect();
    deps.ok_or_else(|| ComposeError::Automerge("a head without a fragment".to_owned()))
}

/// Composes the first change of a document of its own.
pub(super) fn compose_new(ctx: ComposeContext, draft: &Draft) -> Result<Composed, ComposeError> {
    draft.check()?;
    let doc = single_doc(&ctx.space, &ctx.author, ctx.now);
    let genesis = genesis(Shape::Memory);
    let mut document = genesis.document.clone();
    let actor = actor(&ctx.author, &doc);
    let change = write_memory(&mut document, actor, &[genesis.hash], ctx.now, draft)
        .map_err(|error| ComposeError::Automerge(error.to_string()))?;
    check_size("draft", &change)?;
    Ok(Composed {
        doc,
        kind: draft.kind,
        change,
        deps: Vec::new(),
    })
}

fn check_size(field: &'static str, change: &[u8]) -> Result<(), ComposeError> {
    if change.len() > MAX_CHANGE {
        return Err(BoundsError::TooLong {
            field,
            size: change.len(),
            limit: MAX_CHANGE,
        }
        .into());
    }
    Ok(())
}

/// Returns how many changes this author made on the document, and their bytes.
fn own_use(live: &Live, ctx: &ComposeContext, doc: &DocId) -> (u64, u64) {
    let actor = actor(&ctx.author, doc);
    let actor = <[u8; 16]>::try_from(actor.to_bytes()).expect("our actors have 16 bytes");
    live.index.last_of(&actor).map_or((0, 0), |last| {
        (live.index.at(last).seq, live.index.at(last).author_bytes)
    })
}
