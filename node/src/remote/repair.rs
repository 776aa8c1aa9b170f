//! Copies of snapshots that are kept up: made again when their node stays away, let go of when
//! there are too many.
//!
//! [`core`] decides, without clocks or sockets of its own; this is the shell around it, which looks
//! from time to time: a copy that is missing for ten minutes can be missing for one more.
pub(crate) mod core;

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

use axum::http::StatusCode;
use futures::future::join_all;
use rhizome_identity::{NodeId, Role};
use rhizome_sandbox::{SandboxId, chunks::PackId, silent};
use tokio::sync::mpsc;
use tracing::{debug, info};

use self::core::{Kept, Repair, Repairs};
use super::{
    hold::{Keeping, pin_of},
    notes::{Copy, CopyState, Ledger},
    placement::Wish,
    record::{Found, Rest},
};
use crate::{
    control::audit::Note,
    daemon::{
        caller::Caller,
        fail,
        node::{Node, blocking},
    },
    error::ApiError,
};

/// How often it is looked at most.
const LOOK: Duration = Duration::from_secs(60);
/// And at least, where the grace is short.
const LEAST_LOOK: Duration = Duration::from_secs(1);
/// Looks in one grace.
const LOOKS: u32 = 5;
/// Repairs whose end is not yet taken note of.
const RESULTS: usize = 64;

type Ended = (SandboxId, PackId, bool);

/// Keeps up copies until the node stops.
pub(crate) async fn keep_up(node: Arc<Node>) {
    if node.sandboxes().is_err() {
        return;
    }
    let grace = node.config.replica_grace;
    let look = (grace / LOOKS).clamp(LEAST_LOOK, LOOK);
    let (started, mut repairs) = (Instant::now(), Repairs::new(node.id(), grace));
    let (end, mut ended) = mpsc::channel::<Ended>(RESULTS);
    loop {
        tokio::select! {
            biased; // Stopping first.
            () = node.stop.cancelled() => return,
            Some((sandbox, manifest, ok)) = ended.recv() => {
                repairs.ended(started.elapsed(), &sandbox, &manifest, ok);
                continue;
            }
            () = tokio::time::sleep(look) => {}
        }
        let ledger = match node.ledger_if_any().await {
            Ok(ledger) => ledger,
            Err(error) => {
                debug!(%error, "copies could not be looked through");
                continue;
            }
        };
        let connected: BTreeSet<_> = node.connected().into_iter().collect();
        let kept = node.kept(&ledger, &connected).await;
        let now = started.elapsed();
        repairs.update(now, connected, kept);
        for repair in repairs.tick(now) {
            let (node, end) = (Arc::clone(&node), end.clone());
            let tasks = node.tasks.clone();
            tasks.spawn(async move {
                let done = node.mend_copies(&repair).await;
                if let Err(error) = &done {
                    debug!(%error, "a copy was not made up for");
                }
                let (sandbox, manifest) = match repair {
                    Repair::Copy {
                        sandbox, manifest, ..
                    }
                    | Repair::LetGo {
                        sandbox, manifest, ..
                    } => (sandbox, manifest),
                };
                let _ = end.send((sandbox, manifest, done.is_ok())).await;
            });
        }
    }
}

impl Node {
    /// Returns the snapshots that this node holds and that have a number of copies.
    async fn kept(&self, ledger: &Ledger, connected: &BTreeSet<NodeId>) -> Vec<Kept> {
        let me = self.id();
        let mine: Vec<_> = ledger
            .found
            .iter()
            .filter(|found| {
                let record = &found.record;
                record.rest != Rest::Ended && record.replicas > 0 && found.holders.contains(&me)
            })
            .collect();
        let asked: BTreeSet<_> = mine
            .iter()
            .flat_map(|found| found.holders.iter())
            .filter(|node| connected.contains(node))
            .copied()
            .collect();
        let asking = asked.into_iter().map(async |node| {
            let facts = self.facts_of(node).await;
            facts.ok().map(|facts| (node, facts))
        });
        let facts: Vec<_> = join_all(asking).await.into_iter().flatten().collect();
        let own = self.held_snapshots();
        mine.into_iter()
            .map(|found| {
                let record = &found.record;
                let manifest = record.snapshot.manifest.to_string();
                // A list that is full may have left it out.
                let lacks = |snapshots: &[String]| {
                    snapshots.len() < super::facts::MAX_LISTED && !snapshots.contains(&manifest)
                };
                let mut bare: BTreeSet<_> = facts
                    .iter()
                    .filter(|(node, facts)| found.holders.contains(node) && lacks(&facts.snapshots))
                    .map(|(node, _)| *node)
                    .collect();
                if !own.contains(&manifest) {
                    bare.insert(me);
                }
                let authority = self.replica.authority();
                let role = authority.role_in(&me, &found.space);
                Kept {
                    sandbox: record.sandbox,
                    manifest: record.snapshot.manifest,
                    wanted: record.replicas.into(),
                    runner: record.runner,
                    holders: found.holders.iter().copied().collect(),
                    bare,
                    coming: ledger.coming(found),
                    able: role.is_some_and(Role::can_write),
                }
            })
            .collect()
    }

    async fn mend_copies(&self, repair: &Repair) -> Result<(), ApiError> {
        let (sandbox, manifest) = match repair {
            Repair::Copy {
                sandbox, manifest, ..
            }
            | Repair::LetGo {
                sandbox, manifest, ..
            } => (sandbox, manifest),
        };
        let records = self.records(&Caller::Owner).await?;
        let found = records.into_iter().find(|found| {
            let record = &found.record;
            record.sandbox == *sandbox
                && record.snapshot.manifest == *manifest
                && record.rest != Rest::Ended
        });
        let Some(found) = found else {
            // It slept again, or was ended, meanwhile.
            return Ok(());
        };
        match repair {
            Repair::Copy { count, except, .. } => self.copy_again(&found, *count, except).await,
            Repair::LetGo { others, .. } => self.let_go_of_copy(&found, others).await,
        }
    }

    /// Has `count` more nodes hold a snapshot.
    async fn copy_again(
        &self,
        found: &Found,
        count: usize,
        except: &BTreeSet<NodeId>,
    ) -> Result<(), ApiError> {
        let record = &found.record;
        let wish = record.held_by.as_deref().map(Wish::parse).transpose()?;
        let wish = wish.flatten().unwrap_or(Wish::Any);
        let except: Vec<_> = except.iter().copied().collect();
        let keeping = Keeping {
            sandbox: record.sandbox,
            space: found.space,
            snapshot: &record.snapshot,
            image_id: &record.image_id,
            except: &except,
        };
        let asked = std::sync::Mutex::new(Vec::new());
        let before = |node: &NodeId| {
            let node = *node;
            asked
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner)
                .push(node);
            self.say_copy(found, node, CopyState::Coming)
        };
        let copies = self
            .replicate(keeping, Some(count), &wish, before, &silent())
            .await;
        let asked = asked
            .into_inner()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        for node in asked {
            let state = match copies.holders.contains(&node) {
                true => CopyState::Held,
                false => CopyState::Gone,
            };
            self.say_copy(found, node, state).await;
        }
        let made = copies.holders.len();
        let on = Some(record.sandbox.to_string());
        let outcome = if made == count {
            "ok"
        } else {
            "replicas_missing"
        };
        let note = Note::of_daemon("snapshot.copy", on, outcome);
        let note = note.detail(format!("{made} of {count} missing copies were made again"));
        self.audit.note(note).await;
        if made < count {
            let refused = copies.refused.iter();
            let causes = refused.map(|one| format!("node `{}`: {}", one.node, one.problem));
            let message = format!("{made} of {count} missing copies could be made again");
            return Err(
                ApiError::new(StatusCode::BAD_GATEWAY, "replicas_missing", message)
                    .with_causes(causes.collect()),
            );
        }
        info!(sandbox = %record.sandbox, copies = made, "copies were made again");
        Ok(())
    }

    /// Holds a snapshot no more, once all of `others` say that they do.
    async fn let_go_of_copy(&self, found: &Found, others: &[NodeId]) -> Result<(), ApiError> {
        let record = &found.record;
        let manifest = record.snapshot.manifest.to_string();
        for node in others {
            let facts = self.facts_of(*node).await?;
            if !facts.snapshots.contains(&manifest) {
                return Err(ApiError::new(
                    StatusCode::CONFLICT,
                    "replicas_missing",
                    "a node that is said to hold it does not",
                ));
            }
        }
        // Said first: who is told of a copy that is gone asks another; who counts on one does not.
        self.say_copy(found, self.id(), CopyState::Gone).await;
        let store = self.sandboxes()?.chunks().clone();
        let pin = pin_of(&record.sandbox, &record.snapshot.manifest);
        blocking(move || store.unpin(&pin))
            .await?
            .map_err(|error| fail::chunks(&error))?;
        info!(sandbox = %record.sandbox, "a copy too many was let go of");
        Ok(())
    }

    /// Publishes how it stands with a copy.
    pub(crate) async fn say_copy(&self, found: &Found, node: NodeId, state: CopyState) {
        let record = &found.record;
        let copy = Copy {
            sandbox: record.sandbox,
            manifest: record.snapshot.manifest,
            node,
            state,
        };
        let name = {
            let authority = self.replica.authority();
            crate::daemon::names::Names(&authority)
                .node(&node)
                .to_string()
        };
        let draft = copy.draft(&record.called(), &name);
        if let Err(error) = self.publish_draft(found.space, draft).await {
            debug!(sandbox = %record.sandbox, %error, "a copy could not be written down");
        }
    }
}
