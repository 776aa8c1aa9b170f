//! `rhizome memory import`: the file of the reference MCP memory server, line by line.

use std::{
    fs::File,
    io::{self, BufRead, BufReader},
    path::PathBuf,
};

use clap::Args;

use super::{Context, Failure};
use crate::{
    api::types::{
        SCHEMA,
        import::{ImportBody, ImportEntity, ImportRelation, ImportReport, Imported, RefusedLine},
    },
    cli::ui::plain,
    mcp::kg::import::{Line, MAX_LINE, parse},
};

/// A request carries about so many bytes of names and texts: what the daemon reads at once is more.
const BATCH_BYTES: usize = 256 * 1024;
/// … and so many entities and relations.
const BATCH_ITEMS: usize = 500;
/// Damaged lines that are named one by one for people; `--json` has them all.
const MAX_NAMED: usize = 20;

/// What to import.
#[derive(Debug, Args)]
pub(crate) struct Import {
    /// The file: one JSON object a line, `{"type":"entity",…}` or `{"type":"relation",…}`
    file: PathBuf,
    /// Agent to speak as, by name or id; the node's own by default
    #[arg(long)]
    agent: Option<String>,
    /// Space, by name or id; may be left out where there is only one
    #[arg(long)]
    space: Option<String>,
}

/// What is gathered for the next request.
#[derive(Debug, Default)]
struct Batch {
    body: ImportBody,
    bytes: usize,
}

impl Batch {
    fn items(&self) -> usize {
        self.body.entities.len() + self.body.relations.len()
    }

    fn is_full(&self) -> bool {
        self.bytes >= BATCH_BYTES || self.items() >= BATCH_ITEMS
    }
}

/// Sends what a file says, and counts.
struct Importer<'a> {
    context: &'a Context,
    agent: Option<String>,
    space: Option<String>,
    batch: Batch,
    report: ImportReport,
}

impl Importer<'_> {
    async fn take(&mut self, number: u64, line: Line) -> Result<(), Failure> {
        match line {
            Line::Blank => {}
            Line::Relation(relation) => {
                self.batch.bytes +=
                    relation.from.len() + relation.to.len() + relation.relation_type.len();
                self.batch.body.relations.push(ImportRelation {
                    line: number,
                    from: relation.from,
                    to: relation.to,
                    relation_type: relation.relation_type,
                });
            }
            Line::Entity(entity) => {
                let part = |observations| ImportEntity {
                    line: number,
                    name: entity.name.clone(),
                    entity_type: entity.entity_type.clone(),
                    observations,
                };
                let mut observations = Vec::new();
                self.batch.bytes += entity.name.len() + entity.entity_type.len();
                for text in entity.observations {
                    self.batch.bytes += text.len() + entity.name.len();
                    observations.push(text);
                    // One that is known well is told in several parts.
                    if self.batch.is_full() {
                        let some = std::mem::take(&mut observations);
                        self.batch.body.entities.push(part(some));
                        self.send().await?;
                    }
                }
                self.batch.body.entities.push(part(observations));
            }
        }
        if self.batch.is_full() {
            self.send().await?;
        }
        Ok(())
    }

    async fn send(&mut self) -> Result<(), Failure> {
        let Batch { body, .. } = std::mem::take(&mut self.batch);
        if body.entities.is_empty() && body.relations.is_empty() {
            return Ok(());
        }
        let body = ImportBody {
            agent: self.agent.clone(),
            space: self.space.clone(),
            ..body
        };
        let answer: Imported = self.context.client.post("/v1/memory/import", &body).await?;
        self.report.entities += answer.entities;
        self.report.observations += answer.observations;
        self.report.relations += answer.relations;
        self.report.known += answer.known;
        self.report.damaged.extend(answer.refused);
        Ok(())
    }
}

pub(crate) async fn run(context: &Context, args: Import) -> Result<(), Failure> {
    let file = File::open(&args.file).map_err(|error| unreadable(&args.file, error))?;
    let total = file.metadata().map_or(0, |metadata| metadata.len());
    let mut file = BufReader::new(file);
    let mut importer = Importer {
        context,
        agent: args.agent,
        space: args.space,
        batch: Batch::default(),
        report: ImportReport {
            schema: SCHEMA,
            lines: 0,
            entities: 0,
            observations: 0,
            relations: 0,
            known: 0,
            damaged: Vec::new(),
        },
    };
    let mut steps = context.ui.progress();
    let (mut line, mut done) = (Vec::new(), 0);
    loop {
        let read =
            read_line(&mut file, &mut line).map_err(|error| unreadable(&args.file, error))?;
        if read == 0 {
            break;
        }
        done += read;
        importer.report.lines += 1;
        let number = importer.report.lines;
        match parse(&line) {
            Ok(read) => importer.take(number, read).await?,
            Err(reason) => importer.report.damaged.push(RefusedLine {
                line: number,
                reason,
            }),
        }
        if number.is_multiple_of(500) {
            steps.at("import", &format!("line {number}"), Some((done, total)));
        }
    }
    importer.send().await?;
    drop(steps);
    let mut report = importer.report;
    report.damaged.sort_by_key(|damaged| damaged.line);
    tell(context, &report)
}

/// Reads one line into `line`, at most a little more than can be used of it; returns how many bytes
/// it has in the file, 0 at the end.
fn read_line(file: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<u64> {
    line.clear();
    let mut read = 0;
    loop {
        let some = file.fill_buf()?;
        if some.is_empty() {
            return Ok(read);
        }
        let end = some.iter().position(|byte| *byte == b'\n');
        let length = end.map_or(some.len(), |end| end + 1);
        let room = (MAX_LINE + 1).saturating_sub(line.len());
        line.extend_from_slice(&some[..end.unwrap_or(length).min(room)]);
        file.consume(length);
        read += length as u64;
        if end.is_some() {
            return Ok(read);
        }
    }
}

fn tell(context: &Context, report: &ImportReport) -> Result<(), Failure> {
    let ui = context.ui;
    if ui.is_json() {
        return ui.object(report);
    }
    ui.line(&format!(
        "imported {} entities, {} observations and {} relations from {} lines; {} were there already",
        report.entities, report.observations, report.relations, report.lines, report.known
    ))?;
    for damaged in report.damaged.iter().take(MAX_NAMED) {
        ui.line(&format!(
            "line {}: {}",
            damaged.line,
            plain(&damaged.reason)
        ))?;
    }
    let rest = report.damaged.len().saturating_sub(MAX_NAMED);
    if rest > 0 {
        ui.line(&format!(
            "{rest} more lines could not be used; `--json` names them"
        ))?;
    }
    Ok(())
}

fn unreadable(path: &std::path::Path, source: io::Error) -> Failure {
    Failure::File {
        path: path.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_without_end_takes_bounded_room() {
        let text = [vec![b'x'; MAX_LINE + 100_000], b"\nnext".to_vec()].concat();
        let mut file = BufReader::new(&text[..]);
        let mut line = Vec::new();
        let read = read_line(&mut file, &mut line).unwrap();
        assert_eq!(read, MAX_LINE as u64 + 100_001);
        assert_eq!(line.len(), MAX_LINE + 1);
        assert!(parse(&line).unwrap_err().contains("at most"));
        assert_eq!(read_line(&mut file, &mut line).unwrap(), 4);
        assert_eq!(line, b"next");
        assert_eq!(read_line(&mut file, &mut line).unwrap(), 0);
    }
}
