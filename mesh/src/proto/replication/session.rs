//! Reconciliation sessions: asking, answering, asking again.
//!
//! The side that opens a session keeps its questions until they are answered; the other side keeps
//! nothing and answers each question from its set. A question that is asked again gets a new
//! number, so a late answer to the old one counts for nothing.

use std::collections::BTreeMap;

use bytes::Bytes;
use rhizome_memory::Lane;

use super::{
    Config, Context, Holdings,
    frame::{Frame, MAX_PARTS_BYTES, Ranges, RangesRole},
    peer::Peer,
};
use crate::proto::{
    Mono,
    reconcile::{self, Answer, Part, Salt, SessionKey},
};

/// Most pieces of one answer.
const MAX_PIECES: usize = 8;
/// Most unanswered questions of one session; ranges beyond are left to the next session.
const MAX_OPEN_QUESTIONS: usize = 16;
/// Most questions of one session: a peer that keeps finding differences is not descended after
/// without end.
const MAX_QUESTIONS: u32 = 256;
/// How often a question is asked.
const MAX_TRIES: u32 = 3;

/// A session that we opened.
#[derive(Debug)]
pub(super) struct Session {
    salt: Salt,
    key: SessionKey,
    questions: BTreeMap<u32, Question>,
    asked: u32,
    differed: bool,
}

#[derive(Debug)]
struct Question {
    role: RangesRole,
    parts: Bytes,
    asked_at: Mono,
    tries: u32,
    /// One bit for every piece of the answer that arrived.
    pieces: u8,
}

impl Session {
    pub(super) fn deadline(&self, config: &Config) -> Option<Mono> {
        self.questions
            .values()
            .map(|q| q.asked_at + config.answer_timeout * q.tries)
            .min()
    }

    fn ask(
        &mut self,
        cx: &mut Context<'_>,
        lane: Lane,
        role: RangesRole,
        parts: Bytes,
        tries: u32,
    ) {
        self.asked += 1;
        let question = self.asked;
        cx.send(&Frame::Ranges(Ranges {
            lane,
            salt: self.salt,
            role,
            question,
            index: 0,
            count: 1,
            parts: parts.clone(),
        }));
        let asked = Question {
            role,
            parts,
            asked_at: cx.now,
            tries,
            pieces: 0,
        };
        self.questions.insert(question, asked);
    }
}

impl Peer {
    /// Opens the sessions that are due.
    pub(super) fn open_sessions(&mut self, cx: &mut Context<'_>, held: &impl Holdings) {
        while let Some(lane) = self.next_lane(cx.now) {
            let state = self.lanes.get_mut(&lane).expect("a lane that is due");
            state.due = None;
            state.expecting = 0;
            let salt: Salt = cx.node.rng.bytes();
            let key = SessionKey::new(&salt);
            let Some(parts) = held.with_set(lane, |set| reconcile::open(set, &key)) else {
                continue;
            };
            let mut session = Session {
                salt,
                key,
                questions: BTreeMap::new(),
                asked: 0,
                differed: false,
            };
            session.ask(cx, lane, RangesRole::Open, encoded(&parts), 1);
            self.sessions.insert(lane, session);
        }
    }

    /// Asks again what got no answer, and ends sessions that get none.
    pub(super) fn repeat_questions(&mut self, cx: &mut Context<'_>) {
        let timeout = cx.node.config.answer_timeout;
        let mut dead = Vec::new();
        for (lane, session) in &mut self.sessions {
            let late: Vec<u32> = session
                .questions
                .iter()
                .filter(|(_, q)| q.asked_at + timeout * q.tries <= cx.now)
                .map(|(number, _)| *number)
                .collect();
            for number in late {
                let Some(question) = session.questions.remove(&number) else {
                    continue;
                };
                if question.tries >= MAX_TRIES || session.asked >= MAX_QUESTIONS {
                    dead.push(*lane);
                    break;
                }
                session.ask(cx, *lane, question.role, question.parts, question.tries + 1);
            }
        }
        for lane in dead {
            self.sessions.remove(&lane);
            self.differed(cx, lane);
        }
    }

    pub(super) fn ranges(&mut self, cx: &mut Context<'_>, ranges: &Ranges, held: &impl Holdings) {
        let Ok(parts) = reconcile::decode(&ranges.parts) else {
            return self.misbehaved(cx, "sent a malformed reconciliation message");
        };
        match ranges.role {
            RangesRole::Open | RangesRole::Ask => self.question(cx, ranges, &parts, held),
            RangesRole::Answer => self.answer(cx, ranges, &parts, held),
            RangesRole::Tell => {
                let key = SessionKey::new(&ranges.salt);
                let told = held.with_set(ranges.lane, |set| reconcile::answer(set, &key, &parts));
                if let Some(told) = told {
                    self.enqueue(ranges.lane, told.send, held);
                }
            }
        }
    }

    fn question(
        &mut self,
        cx: &mut Context<'_>,
        ranges: &Ranges,
        parts: &[Part],
        held: &impl Holdings,
    ) {
        let lane = ranges.lane;
        let key = SessionKey::new(&ranges.salt);
        let Some(answer) = held.with_set(lane, |set| reconcile::answer(set, &key, parts)) else {
            return;
        };
        if ranges.role == RangesRole::Open {
            if answer.is_equal() {
                self.in_sync(cx, lane);
            } else if let Some(state) = self.lanes.get_mut(&lane) {
                // The peer is at it: a session of ours would find the same.
                if !state.progress {
                    state.due = None;
                }
            }
        }
        let (answer, mut groups) = self.take_up(cx, lane, answer, held);
        if groups.is_empty() {
            // Silence would look like loss.
            groups.push(answer.parts);
        }
        groups.truncate(MAX_PIECES);
        let count = u8::try_from(groups.len()).expect("at most eight");
        for (index, group) in (0..).zip(groups) {
            cx.send(&Frame::Ranges(Ranges {
                lane,
                salt: ranges.salt,
                role: RangesRole::Answer,
                question: ranges.question,
                index,
                count,
                parts: encoded(&group),
            }));
        }
    }

    fn answer(
        &mut self,
        cx: &mut Context<'_>,
        ranges: &Ranges,
        parts: &[Part],
        held: &impl Holdings,
    ) {
        let lane = ranges.lane;
        let Some(session) = self.sessions.get_mut(&lane) else {
            return;
        };
        if session.salt != ranges.salt {
            return;
        }
        let Some(question) = session.questions.get_mut(&ranges.question) else {
            return;
        };
        let count = usize::from(ranges.count);
        if count == 0 || count > MAX_PIECES || ranges.index >= ranges.count {
            return self.misbehaved(cx, "sent a malformed answer");
        }
        let bit = 1 << ranges.index;
        if question.pieces & bit != 0 {
            return;
        }
        question.pieces |= bit;
        if question.pieces.count_ones() >= u32::from(ranges.count) {
            session.questions.remove(&ranges.question);
        }
        let key = session.key.clone();
        let Some(answer) = held.with_set(lane, |set| reconcile::answer(set, &key, parts)) else {
            self.sessions.remove(&lane);
            return;
        };
        let differed = !parts.is_empty() || !answer.is_equal();
        let (_, groups) = self.take_up(cx, lane, answer, held);
        let session = self.sessions.get_mut(&lane).expect("found above");
        session.differed |= differed;
        for group in groups {
            if !group.iter().any(Part::is_question) {
                cx.send(&Frame::Ranges(Ranges {
                    lane,
                    salt: session.salt,
                    role: RangesRole::Tell,
                    question: 0,
                    index: 0,
                    count: 1,
                    parts: encoded(&group),
                }));
            } else if session.questions.len() < MAX_OPEN_QUESTIONS && session.asked < MAX_QUESTIONS
            {
                session.ask(cx, lane, RangesRole::Ask, encoded(&group), 1);
            }
        }
        if session.questions.is_empty() {
            let differed = session.differed;
            self.sessions.remove(&lane);
            if differed {
                self.differed(cx, lane);
            } else {
                self.in_sync(cx, lane);
            }
        }
    }

    /// Queues what the peer lacks, and packs what to say next.
    fn take_up(
        &mut self,
        cx: &mut Context<'_>,
        lane: Lane,
        mut answer: Answer,
        held: &impl Holdings,
    ) -> (Answer, Vec<Vec<Part>>) {
        self.enqueue(lane, std::mem::take(&mut answer.send), held);
        if let Some(state) = self.lanes.get_mut(&lane)
            && answer.wanted > 0
        {
            state.expecting += answer.wanted;
            state.last_items = cx.now;
        }
        let groups = reconcile::pack(std::mem::take(&mut answer.parts), MAX_PARTS_BYTES);
        (answer, groups)
    }
}

fn encoded(parts: &[Part]) -> Bytes {
    let mut bytes = Vec::new();
    reconcile::encode(parts, &mut bytes);
    bytes.into()
}
