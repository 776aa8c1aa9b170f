//! From a score for words to an order for readers.
//!
//! The score of a document is its BM25 score, times:
//! - [`REMEDY`] for a fix or a rule: who asks about an error wants what mends it;
//! - 1 + [`NEIGHBOUR`] × (best other score of the same task / best score of all): what was learned
//!   in the same episode belongs together;
//! - nothing for a doubtful author: its text stands below all that is trusted, whatever it says;
//! - [`SUPERSEDED`] if something replaces it; and if what replaces it was found too, never more
//!   than [`BELOW`] of that one's score.

use std::collections::BTreeMap;

use super::Hit;
use crate::{DocId, Kind, Standing};

const REMEDY: f32 = 1.1;
const NEIGHBOUR: f32 = 0.25;
const SUPERSEDED: f32 = 0.5;
const BELOW: f32 = 0.99;
/// The longest chain of replacements whose order is kept.
const MAX_CHAIN: usize = 4;

/// Puts `hits`, which carry BM25 scores, in their final order.
pub(super) fn rank(hits: &mut [Hit]) {
    let best = hits.iter().map(|hit| hit.score).fold(0.0, f32::max);
    let mut tasks: BTreeMap<String, Vec<f32>> = BTreeMap::new();
    for hit in hits.iter() {
        if let Some(task) = &hit.item.task
            && hit.standing == Standing::Trusted
        {
            tasks.entry(task.clone()).or_default().push(hit.score);
        }
    }
    for scores in tasks.values_mut() {
        scores.sort_by(|a, b| b.total_cmp(a));
    }
    for hit in hits.iter_mut() {
        let neighbour = hit.item.task.as_ref().and_then(|task| {
            let scores = tasks
                .get(task)
                .filter(|_| hit.standing == Standing::Trusted)?;
            // The best of the others: the second, if this one is the best itself.
            if scores[0] > hit.score {
                scores.first()
            } else {
                scores.get(1)
            }
        });
        if let Some(neighbour) = neighbour.filter(|_| best > 0.0) {
            hit.score *= 1.0 + NEIGHBOUR * neighbour / best;
        }
        if matches!(hit.item.kind, Kind::Fix | Kind::Rule) && hit.standing == Standing::Trusted {
            hit.score *= REMEDY;
        }
        if !hit.item.superseded_by.is_empty() {
            hit.score *= SUPERSEDED;
        }
    }
    // What replaces may itself be replaced: a few rounds carry a place down such a chain.
    for _ in 0..MAX_CHAIN {
        let scores: BTreeMap<DocId, f32> =
            hits.iter().map(|hit| (hit.item.doc, hit.score)).collect();
        for hit in hits.iter_mut() {
            for replacement in hit
                .item
                .superseded_by
                .iter()
                .filter_map(|doc| scores.get(doc))
            {
                hit.score = hit.score.min(replacement * BELOW);
            }
        }
    }
    hits.sort_by(|a, b| {
        b.standing
            .cmp(&a.standing)
            .then(b.score.total_cmp(&a.score))
            .then(b.item.hlc.cmp(&a.item.hlc))
            .then(a.item.doc.cmp(&b.item.doc))
    });
}
