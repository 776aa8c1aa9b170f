//! What a change may do to the text of a file.
//!
//! An element is one character, put there once and taken away at most: so what an operation refers
//! to is found by its number, and no value of an element can conflict with another.

use std::collections::{BTreeSet, HashSet};

use automerge::{
    ScalarValue,
    legacy::{ElementId, Key, Op, OpId, OpType},
};

use crate::document::DocIndex;

/// Most runs of inserted characters in one change.
const MAX_RUNS: usize = 2_048;

/// The operations of one change on the text, as far as they were looked at.
#[derive(Debug, Default)]
pub(super) struct TextCheck {
    /// The first operation of each run of inserts, and how many there are.
    pub(super) inserts: Vec<(u64, u64)>,
    removed: HashSet<(u32, u64)>,
}

impl TextCheck {
    /// Checks the operation `counter` of the actor `own`.
    pub(super) fn operation(
        &mut self,
        index: &DocIndex,
        closure: &BTreeSet<u32>,
        own: &[u8],
        counter: u64,
        operation: &Op,
    ) -> Result<(), String> {
        let Key::Seq(element) = &operation.key else {
            return Err("a text has no keys".into());
        };
        match &operation.action {
            OpType::Put(ScalarValue::Str(text)) => {
                if !operation.insert {
                    return Err("a character is never replaced".into());
                }
                let mut chars = text.chars();
                if chars.next().is_none() || chars.next().is_some() {
                    return Err("an element of a text is one character".into());
                }
                if !operation.pred.is_empty() {
                    return Err("an insert overwrites nothing".into());
                }
                if let ElementId::Id(after) = element {
                    self.known(index, closure, own, after)?;
                }
                self.inserted(counter)
            }
            OpType::Delete => {
                let ElementId::Id(removed) = element else {
                    return Err("there is nothing before the first character".into());
                };
                if operation.insert || operation.pred.iter().ne([removed]) {
                    return Err("what is removed is the character and nothing else".into());
                }
                let Some(place) = self.known(index, closure, own, removed)? else {
                    return Err("a change keeps the characters it puts in".into());
                };
                if self.removed.insert((place, removed.counter())) {
                    Ok(())
                } else {
                    Err("a character is removed twice".into())
                }
            }
            _ => Err("a text has only characters".into()),
        }
    }

    fn inserted(&mut self, counter: u64) -> Result<(), String> {
        if let Some((first, count)) = self.inserts.last_mut()
            && *first + *count == counter
        {
            *count += 1;
            return Ok(());
        }
        if self.inserts.len() >= MAX_RUNS {
            return Err("the change inserts in too many places".into());
        }
        self.inserts.push((counter, 1));
        Ok(())
    }

    /// Returns the change that put a character in; `None` if it is this one.
    fn known(
        &self,
        index: &DocIndex,
        closure: &BTreeSet<u32>,
        own: &[u8],
        element: &OpId,
    ) -> Result<Option<u32>, String> {
        let (actor, counter) = (element.actor().to_bytes(), element.counter());
        if actor == own {
            let after = self.inserts.partition_point(|(first, _)| *first <= counter);
            if let Some((first, count)) = after.checked_sub(1).map(|at| self.inserts[at])
                && counter - first < count
            {
                return Ok(None);
            }
        }
        let place = index.by_op(actor, counter);
        let place = place.filter(|place| closure.contains(place));
        match place {
            Some(place) if index.at(place).inserts(counter) => Ok(Some(place)),
            Some(_) => Err("it refers to what is no character".into()),
            None => Err("it refers to a character that it has not seen".into()),
        }
    }
}
