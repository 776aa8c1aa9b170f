//! What a change may do to a document of each shape.

use std::collections::BTreeSet;

use automerge::{
    ActorId, Change, ScalarValue,
    legacy::{Key, ObjectId, Op, OpType},
};
use serde::{Serialize, de::DeserializeOwned};

use super::text::TextCheck;
use crate::{
    Draft, Header,
    context::{
        Artifact, Bounded, Decision, ErrorEntry, Explored, MAX_PATCH_BYTES, MAX_PATCH_ENTRIES,
        Note, SandboxRef,
    },
    document::{
        At, DocIndex, DocKey, FILE, FileMark, MAPS, REGISTERS, STATEMENT, Shape, Statement,
        context_doc, entry_key, file_doc, from_canonical, genesis, keyed_doc, single_doc,
    },
    item::{MAX_TASK, at_most, not_empty},
};

/// What a change does that may do it.
pub(super) struct Allowed {
    /// Which registers it writes, and by which operation.
    pub(super) registers: Vec<(u8, u64)>,
    /// What it states, on a memory.
    pub(super) statement: Option<Draft>,
    /// Which operations put a character into a text: the first of each run, and how many.
    pub(super) inserts: Vec<(u64, u64)>,
}

/// Checks every operation.
pub(super) fn check_schema(
    key: &DocKey,
    index: &DocIndex,
    closure: &BTreeSet<u32>,
    header: &Header,
    change: &Change,
    operations: &[Op],
) -> Result<Allowed, String> {
    let mut check = Check {
        key,
        index,
        closure,
        header,
        change,
        registers: Vec::new(),
        entries: BTreeSet::new(),
        bytes: 0,
        statement: None,
        text: TextCheck::default(),
    };
    for (counter, operation) in (change.start_op().get()..).zip(operations) {
        check.operation(counter, operation)?;
    }
    match key.shape {
        Shape::Memory if check.registers.len() != 1 => {
            Err("a memory states one thing at a time".into())
        }
        // The document's id is a hash: whoever starts it says of which task it is.
        Shape::Context if closure.is_empty() && !check.writes(0) => {
            Err("the first change must name the task".into())
        }
        Shape::File if check.registers.len() != 1 => {
            Err("a change of a file says once where it is".into())
        }
        Shape::Memory | Shape::Context | Shape::File => Ok(Allowed {
            registers: check.registers,
            statement: check.statement,
            inserts: check.text.inserts,
        }),
    }
}

struct Check<'a> {
    key: &'a DocKey,
    index: &'a DocIndex,
    closure: &'a BTreeSet<u32>,
    header: &'a Header,
    change: &'a Change,
    registers: Vec<(u8, u64)>,
    entries: BTreeSet<(usize, usize)>,
    bytes: usize,
    statement: Option<Draft>,
    text: TextCheck,
}

impl Check<'_> {
    fn operation(&mut self, counter: u64, operation: &Op) -> Result<(), String> {
        if let ObjectId::Id(object) = &operation.obj
            && self.key.shape == Shape::File
        {
            let genesis = genesis(Shape::File);
            if object.actor() != &genesis.actor || !genesis.is_text(object.counter()) {
                return Err("there is no such text".into());
            }
            let own = self.change.actor_id().to_bytes();
            return self
                .text
                .operation(self.index, self.closure, own, counter, operation);
        }
        let OpType::Put(ScalarValue::Str(text)) = &operation.action else {
            return Err("only strings may be put".into());
        };
        let Key::Map(name) = &operation.key else {
            return Err("there are no lists".into());
        };
        if operation.insert {
            return Err("there are no lists".into());
        }
        match (&operation.obj, self.key.shape) {
            (ObjectId::Root, Shape::Memory) => {
                if name != STATEMENT {
                    return Err("a memory has no such register".into());
                }
                self.register(0, counter, operation)?;
                self.statement(text)
            }
            (ObjectId::Root, Shape::File) => {
                if name != FILE {
                    return Err("a file has no such register".into());
                }
                self.register(0, counter, operation)?;
                let mark = self.stamped::<FileMark>(text)?.value;
                if file_doc(&self.key.space, &mark.path) == self.key.doc {
                    Ok(())
                } else {
                    Err("the document is of another file".into())
                }
            }
            (ObjectId::Root, Shape::Context) => {
                let register = REGISTERS.iter().position(|register| register == name);
                let register = register.ok_or("a context has no such register")?;
                self.register(
                    u8::try_from(register).expect("there are few registers"),
                    counter,
                    operation,
                )?;
                self.context_value(register, text)
            }
            (ObjectId::Id(id), shape) => {
                let genesis = genesis(shape);
                let map = if id.actor() == &genesis.actor {
                    genesis.map_at(id.counter())
                } else {
                    None
                };
                let map = map
                    .filter(|_| shape == Shape::Context)
                    .ok_or("there is no such map")?;
                if !operation.pred.is_empty() {
                    return Err("an entry cannot be overwritten".into());
                }
                let place = self
                    .place(name)
                    .ok_or("an entry's key must begin with its writer")?;
                if !self.entries.insert((map, place)) {
                    return Err("an entry is written twice".into());
                }
                self.entry(map, text)
            }
        }
    }

    fn writes(&self, register: u8) -> bool {
        self.registers
            .iter()
            .any(|(written, _)| *written == register)
    }

    /// A register may be written over operations that wrote it, and that this change had seen.
    fn register(&mut self, register: u8, counter: u64, operation: &Op) -> Result<(), String> {
        if self.writes(register) {
            return Err("a register is written twice".into());
        }
        let mut seen = BTreeSet::new();
        for overwritten in operation.pred.iter() {
            let position = self
                .index
                .by_op(overwritten.actor().to_bytes(), overwritten.counter());
            let position = position.filter(|position| self.closure.contains(position));
            let position = position.ok_or("it overwrites what it has not seen")?;
            let writes = (register, overwritten.counter());
            if !self.index.at(position).registers.contains(&writes)
                || !seen.insert((position, writes))
            {
                return Err("it overwrites what is not there".into());
            }
        }
        self.registers.push((register, counter));
        Ok(())
    }

    /// Returns the place of one of this change's own entries.
    fn place(&self, name: &str) -> Option<usize> {
        let actor: &ActorId = self.change.actor_id();
        let place = usize::from_str_radix(name.rsplit('.').next()?, 16).ok()?;
        (place < MAX_PATCH_ENTRIES && name == entry_key(actor, self.change.seq(), place))
            .then_some(place)
    }

    fn statement(&mut self, text: &str) -> Result<(), String> {
        let Statement { at, draft } = canonical(text)?;
        draft.check().map_err(|error| error.to_string())?;
        if at != self.header.hlc || draft.kind != self.header.kind {
            return Err("the statement and its header differ".into());
        }
        let space = &self.key.space;
        let doc = match &draft.key {
            Some(key) => keyed_doc(space, draft.kind, key),
            None if self.closure.is_empty() => single_doc(space, &self.header.author, at),
            None => return Err("a memory without a key is stated once".into()),
        };
        if doc == self.key.doc {
            self.statement = Some(draft);
            Ok(())
        } else {
            Err("the document has another name".into())
        }
    }

    fn context_value(&mut self, register: usize, text: &str) -> Result<(), String> {
        match register {
            0 => {
                let At {
                    value: Note { text: task },
                    ..
                } = self.stamped::<Note>(text)?;
                check_task(&task)?;
                if context_doc(&self.key.space, &task) != self.key.doc {
                    return Err("the document is of another task".into());
                }
            }
            1 => self
                .stamped::<Note>(text)
                .and_then(|at| self.bounded(&at.value))?,
            2 => self
                .stamped::<Note>(text)
                .and_then(|at| self.bounded(&at.value))?,
            3 => self.lines(text, "too many steps")?,
            4 => self
                .stamped::<SandboxRef>(text)
                .and_then(|at| self.bounded(&at.value))?,
            _ => self.lines(text, "too many requirements")?,
        }
        Ok(())
    }

    fn lines(&mut self, text: &str, too_many: &str) -> Result<(), String> {
        let lines = self.stamped::<Vec<String>>(text)?.value;
        if lines.len() > MAX_PATCH_ENTRIES {
            return Err(too_many.into());
        }
        for text in lines {
            self.bounded(&Note { text })?;
        }
        Ok(())
    }

    fn entry(&mut self, map: usize, text: &str) -> Result<(), String> {
        match MAPS[map] {
            "explored" => self.bounded(&canonical::<Explored>(text)?),
            "decisions" => self.bounded(&canonical::<Decision>(text)?),
            "errors" => self.bounded(&canonical::<ErrorEntry>(text)?),
            "artifacts" => self.bounded(&canonical::<Artifact>(text)?),
            _ => self.bounded(&canonical::<Note>(text)?),
        }
    }

    fn stamped<T: DeserializeOwned + Serialize>(&self, text: &str) -> Result<At<T>, String> {
        let value: At<T> = canonical(text)?;
        if value.at == self.header.hlc {
            Ok(value)
        } else {
            Err("the value and its header differ".into())
        }
    }

    fn bounded(&mut self, value: &impl Bounded) -> Result<(), String> {
        value
            .check(&mut |field, text| {
                self.bytes += text.len();
                at_most(field, text, crate::context::MAX_ENTRY_TEXT)
            })
            .map_err(|error| error.to_string())?;
        if self.bytes > MAX_PATCH_BYTES {
            Err("the checkpoint is too large".into())
        } else {
            Ok(())
        }
    }
}

pub(crate) fn check_task(task: &str) -> Result<(), String> {
    not_empty("task", task)
        .and_then(|()| at_most("task", task, MAX_TASK))
        .map_err(|error| error.to_string())
}

fn canonical<T: DeserializeOwned + Serialize>(text: &str) -> Result<T, String> {
    from_canonical(text).ok_or_else(|| "a value is not what its place holds".into())
}
