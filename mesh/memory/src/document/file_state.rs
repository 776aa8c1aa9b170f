//! Files: what their changes add up to, and how they are written.

use automerge::{
    ActorId, Automerge, ChangeHash, ObjId, ROOT, ReadDoc, Value,
    transaction::{Transactable, Transaction},
};
use serde::{Deserialize, Serialize};

use super::{
    At, ChangeMeta, DocIndex, DocKey,
    genesis::{FILE, TEXT},
    statement::{parse, register, to_canonical, written_by},
    write::{WriteError, write},
};
use crate::{
    FileEdit, FilePath, FileSummary, FileText, Hlc, Kind, MAX_FILE_SHOWN, MemoryItem, file,
};

/// The field that marks a file that was deleted, as it marks a memory that was taken back.
const RETRACTED: &str = crate::RETRACTED_FIELD;

/// What the register of a file says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FileMark {
    /// Where it is: the document's id is a hash.
    pub(crate) path: FilePath,
    /// Whether it was deleted.
    pub(crate) deleted: bool,
    /// Where it was before somebody moved it here.
    pub(crate) from: Option<FilePath>,
}

/// Returns what readers get of a file, and its line in a list; `None` if it says nothing yet.
///
/// Of marks written without knowing of each other the later by clock is shown, but one that lets
/// the file stand before one that deletes it: nobody's edit vanishes because another deleted what
/// it had not seen edited. Of changes that do not `count` neither mark nor characters are shown;
/// what they took away is gone.
pub(crate) fn file_material(
    key: &DocKey,
    document: &Automerge,
    index: &DocIndex,
    counts: &dyn Fn(&ChangeMeta) -> bool,
) -> Option<(MemoryItem, FileSummary)> {
    let mut marks = register::<At<FileMark>>(document, index, FILE);
    marks.retain(|(_, change)| counts(change));
    marks.sort_by_key(|(mark, _)| mark.value.deleted);
    let (At { value: mark, .. }, change) = marks.into_iter().next()?;
    let mut text = String::new();
    if !mark.deleted
        && let Ok(Some((_, object))) = document.get(ROOT, TEXT)
    {
        text = text_of(document, &object, index, counts)?;
    }
    let summary = FileSummary {
        doc: key.doc,
        space: key.space,
        path: mark.path.clone(),
        bytes: text.len() as u64,
        deleted: mark.deleted,
        from: mark.from,
        id: change.fragment,
        author: change.author,
        node: change.node,
        hlc: change.hlc,
    };
    let mut item = MemoryItem {
        id: change.fragment,
        doc: key.doc,
        space: key.space,
        kind: Kind::File,
        title: mark.path.to_string(),
        text,
        tags: Vec::new(),
        key: Some(mark.path.to_string()),
        task: None,
        evidence: Vec::new(),
        supersedes: Vec::new(),
        superseded_by: Vec::new(),
        depends_on: Vec::new(),
        fields: std::collections::BTreeMap::new(),
        author: change.author,
        node: change.node,
        at_ms: change.hlc.unix_ms(),
        hlc: change.hlc,
        fingerprint: change.fingerprint,
        conflicts: Vec::new(),
        retracted: mark.deleted,
        confirmations: 0,
        confirmed_by: 0,
        buried: String::new(),
    };
    if mark.deleted {
        item.fields.insert(RETRACTED.to_owned(), "1".to_owned());
    }
    if item.text.len() > MAX_FILE_SHOWN {
        let end = item.text.floor_char_boundary(MAX_FILE_SHOWN);
        item.text.truncate(end);
        item.fields
            .insert("truncated".to_owned(), summary.bytes.to_string());
    }
    Some((item, summary))
}

/// Returns the text that the changes which count add up to.
fn text_of(
    document: &Automerge,
    object: &ObjId,
    index: &DocIndex,
    counts: &dyn Fn(&ChangeMeta) -> bool,
) -> Option<String> {
    if index.changes().iter().all(counts) {
        return document.text(object).ok();
    }
    let mut text = String::new();
    for element in document.list_range(object, ..) {
        let shown = written_by(index, &element.id()).is_some_and(|(_, change)| counts(change));
        let value = Value::from(element.value);
        if let Some(character) = value.as_str().filter(|_| shown) {
            text.push_str(character);
        }
    }
    Some(text)
}

/// Writes upon `heads` of `document` what `edit` says, and returns the change and the texts.
pub(crate) fn write_file(
    document: &mut Automerge,
    actor: ActorId,
    heads: &[ChangeHash],
    at: Hlc,
    path: &FilePath,
    edit: &FileEdit,
) -> Result<(Vec<u8>, FileText), WriteError> {
    let mut texts = None;
    let change = write(document, actor, heads, |write, _| {
        texts = Some(edited(write, at, path, edit)?);
        Ok(())
    })?;
    Ok((change, texts.ok_or(WriteError::Empty)?))
}

fn edited(
    write: &mut Transaction<'_>,
    at: Hlc,
    path: &FilePath,
    edit: &FileEdit,
) -> Result<FileText, WriteError> {
    let (_, object) = write.get(ROOT, TEXT)?.ok_or(WriteError::Empty)?;
    let marks = write.get_all(ROOT, FILE)?;
    let stands = marks
        .iter()
        .filter_map(|(value, _)| parse::<At<FileMark>>(value))
        .any(|mark| !mark.value.deleted);
    let plan = file::plan(edit, &write.text(&object)?, stands)?;
    let mark = FileMark {
        path: path.clone(),
        deleted: plan.deleted,
        from: match edit {
            FileEdit::Create { from, .. } => from.clone(),
            _ => None,
        },
    };
    let mark = to_canonical(&At { at, value: mark });
    write.put(ROOT, FILE, mark.as_str())?;
    // From the end on: what is spliced leaves the places before it as they are.
    for splice in plan.splices.iter().rev() {
        let delete = isize::try_from(splice.delete).unwrap_or(isize::MAX);
        write.splice_text(&object, splice.at, delete, &splice.insert)?;
    }
    Ok(plan.text)
}
