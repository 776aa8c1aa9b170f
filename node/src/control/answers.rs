//! What the API says of usage and quotas.
use std::collections::BTreeMap;

use axum::http::StatusCode;
use rhizome_identity::{AgentId, SpaceId};
use rhizome_memory::now_ms;
use rhizome_sandbox::SandboxInfo;

use super::{
    quota::{Key, Per, QuotaError, Resource, Standing, Whose},
    usage::{
        UsageError, account_of,
        ledger::{Account, HOUR_MS, Ledger, Used},
    },
};
use crate::{
    api::types::{
        Named, SCHEMA,
        usage::{
            Amounts, By, OwnUsage, Quota, QuotaBody, QuotaList, QuotaParams, UsageAnswer,
            UsageParams, UsageRow,
        },
    },
    daemon::{
        caller::Guest,
        names::Names,
        node::{Node, blocking},
    },
    error::{ApiError, is_disk_full},
};

/// What rows are told apart by.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum RowKey {
    Agent(Option<String>),
    Space(Option<String>),
    Sandbox(Account),
}

/// What of an account is asked for.
#[derive(Debug, Default)]
struct Filter {
    agent: Option<String>,
    space: Option<String>,
}

impl Filter {
    fn takes(&self, account: &Account) -> bool {
        let agent = |wanted: &String| account.agent.as_ref() == Some(wanted);
        let space = |wanted: &String| account.spaces.contains(wanted);
        self.agent.as_ref().is_none_or(agent) && self.space.as_ref().is_none_or(space)
    }
}

/// Adds up the rows of an answer.
fn rows_of(
    ledger: &Ledger,
    by: By,
    (from_ms, until_ms): (Option<u64>, u64),
    filter: &Filter,
) -> BTreeMap<RowKey, (Used, u64, u64)> {
    let mut rows: BTreeMap<RowKey, (Used, u64, u64)> = BTreeMap::new();
    let keys = |account: &Account| -> Vec<RowKey> {
        match by {
            By::Agent => vec![RowKey::Agent(account.agent.clone())],
            By::Sandbox => vec![RowKey::Sandbox(account.clone())],
            By::Space if account.spaces.is_empty() => vec![RowKey::Space(None)],
            By::Space => {
                let spaces = account.spaces.iter();
                let wanted = spaces
                    .filter(|space| filter.space.as_ref().is_none_or(|wanted| wanted == *space));
                wanted
                    .map(|space| RowKey::Space(Some(space.clone())))
                    .collect()
            }
        }
    };
    let mut add = |account: &Account, used: &Used| {
        if filter.takes(account) {
            for key in keys(account) {
                rows.entry(key).or_default().0.add(used);
            }
        }
    };
    match (from_ms, by) {
        // The totals forget nothing.
        (None, By::Agent | By::Space) if until_ms == u64::MAX => {
            ledger
                .ever()
                .iter()
                .for_each(|(account, used)| add(account, used));
        }
        _ => {
            let from_ms = from_ms.unwrap_or(0);
            ledger
                .rows(from_ms, until_ms)
                .for_each(|(account, used)| add(account, used));
        }
    }
    for held in ledger
        .held()
        .values()
        .filter(|held| filter.takes(&held.account))
    {
        for key in keys(&held.account) {
            let row = rows.entry(key).or_default();
            row.1 = row.1.saturating_add(held.disk_bytes);
            row.2 += u64::from(held.runs);
        }
    }
    rows
}

fn amounts(used: &Used, disk_bytes: u64, running: u64) -> Amounts {
    Amounts {
        cpu_ms: used.cpu_ms,
        ram_mib_s: used.ram_mib_ms / 1_000,
        disk_mib_s: used.disk_mib_ms / 1_000,
        disk_bytes,
        sent_bytes: used.sent_bytes,
        received_bytes: used.received_bytes,
        sandbox_ms: used.run_ms,
        running,
    }
}

impl Node {
    /// Says what was used, what runs read anew.
    pub(crate) async fn usage(&self, params: UsageParams) -> Result<UsageAnswer, ApiError> {
        self.measure().await?;
        let by = params.by.unwrap_or_default();
        let filter = Filter {
            agent: params
                .agent
                .map(|agent| self.any_agent(&agent))
                .transpose()?
                .map(|id| id.to_string()),
            space: params
                .space
                .map(|space| self.any_space(&space))
                .transpose()?
                .map(|id| id.to_string()),
        };
        let now_ms = now_ms();
        let hour = |ms: u64| ms / HOUR_MS * HOUR_MS;
        let until_ms = params.until_ms.map(hour);
        if let (Some(from), Some(until)) = (params.from_ms, until_ms)
            && from > until
        {
            return Err(ApiError::bad_request("the time ends before it begins"));
        }
        let time = (params.from_ms.map(hour), until_ms.unwrap_or(u64::MAX));
        let limits = std::sync::Arc::clone(&self.limits);
        let rows = blocking(move || rows_of(&limits.meter.ledger(), by, time, &filter)).await?;
        let listed = self.sandboxes().map(|all| all.list()).unwrap_or_default();
        let mut usage: Vec<_> = rows
            .into_iter()
            .map(|(key, (used, disk_bytes, running))| {
                self.usage_row(key, amounts(&used, disk_bytes, running), &listed)
            })
            .collect();
        usage.sort_by_key(|row| std::cmp::Reverse(row.used.cpu_ms));
        Ok(UsageAnswer {
            schema: SCHEMA,
            by,
            from_ms: time.0,
            until_ms: until_ms.unwrap_or(now_ms),
            usage,
        })
    }

    fn usage_row(&self, key: RowKey, used: Amounts, listed: &[SandboxInfo]) -> UsageRow {
        let authority = self.replica.authority();
        let names = Names(&authority);
        let agent = |id: String| named::<AgentId>(id, |id| names.agent(id));
        let space = |id: String| named::<SpaceId>(id, |id| names.space(id));
        match key {
            RowKey::Agent(id) => UsageRow {
                agent: id.map(agent),
                used,
                ..UsageRow::default()
            },
            RowKey::Space(id) => UsageRow {
                spaces: id.into_iter().map(space).collect(),
                used,
                ..UsageRow::default()
            },
            RowKey::Sandbox(account) => UsageRow {
                agent: account.agent.map(agent),
                spaces: account.spaces.into_iter().map(space).collect(),
                name: account.sandbox.as_ref().and_then(|id| {
                    let info = listed.iter().find(|info| info.id.to_string() == *id);
                    info.and_then(|info| info.name.clone())
                }),
                sandbox: account.sandbox,
                volume: account.volume,
                used,
            },
        }
    }

    /// Says to a sandbox what it used until the last reading, and which quotas count for it. A
    /// guest that asks a thousand times makes nobody read or write anything.
    pub(crate) fn own_usage(&self, guest: &Guest) -> Result<OwnUsage, ApiError> {
        let info = self.find_sandbox(&guest.sandbox)?;
        let account = Account {
            sandbox: Some(guest.sandbox.clone()),
            ..account_of(&info.labels)
        };
        let mut used = Used::default();
        let (disk_bytes, standing) = {
            // Quotas before sums, as everywhere.
            let quotas = self.limits.quotas();
            let ledger = self.limits.meter.ledger();
            let rows = ledger.rows(0, u64::MAX);
            rows.filter(|(of, _)| of.sandbox == account.sandbox)
                .for_each(|(_, of)| used.add(of));
            let held = ledger.held().get(&guest.sandbox);
            let disk_bytes = held.map_or(0, |held| held.disk_bytes);
            (disk_bytes, quotas.standing(now_ms(), &ledger, &account))
        };
        let used = amounts(&used, disk_bytes, 1);
        let key = RowKey::Sandbox(account);
        Ok(OwnUsage {
            schema: SCHEMA,
            usage: self.usage_row(key, used, std::slice::from_ref(&info)),
            quotas: standing.iter().map(|one| self.quota_of(one)).collect(),
        })
    }

    /// Lists the quotas and how they stand; one that stands for each is followed by those it
    /// stands for.
    pub(crate) async fn quotas(&self) -> Result<QuotaList, ApiError> {
        self.measure().await?;
        let limits = std::sync::Arc::clone(&self.limits);
        let (rules, standing) = blocking(move || {
            let quotas = limits.quotas();
            let ledger = limits.meter.ledger();
            let mut known = std::collections::BTreeSet::new();
            for account in ledger.ever().keys() {
                known.extend(account.agent.iter().cloned().map(Whose::Agent));
                known.extend(account.spaces.iter().cloned().map(Whose::Space));
            }
            known.extend(quotas.iter().map(|(key, _)| key.whose.clone()));
            let now_ms = now_ms();
            let standing: Vec<_> = known
                .iter()
                .filter(|of| !matches!(of, Whose::EachAgent | Whose::EachSpace))
                .flat_map(|of| quotas.standing_of(now_ms, &ledger, of))
                .collect();
            let rules: Vec<_> = quotas
                .iter()
                .map(|(key, limit)| (key.clone(), limit))
                .collect();
            (rules, standing)
        })
        .await?;
        let mut list = Vec::new();
        for (key, limit) in rules {
            if matches!(key.whose, Whose::EachAgent | Whose::EachSpace) {
                list.push(self.quota_rule(&key, limit));
            }
            let of_rule = standing.iter().filter(|one| one.key == key);
            list.extend(of_rule.map(|one| self.quota_of(one)));
        }
        Ok(QuotaList {
            schema: SCHEMA,
            quotas: list,
        })
    }

    /// Sets quotas; durable when this returns. What is over then is put to sleep at the next tick.
    pub(crate) async fn set_quotas(&self, body: QuotaBody) -> Result<QuotaList, ApiError> {
        let whose = self.whose(
            body.agent.as_deref(),
            body.space.as_deref(),
            body.each.as_deref(),
        )?;
        if body.limits.is_empty() {
            return Err(ApiError::bad_request("the request limits nothing")
                .hint("give limits, as in {\"cpu\": 7200}"));
        }
        let per = body.per.unwrap_or_default();
        if per == Per::Moment && body.limits.keys().any(|one| *one != Resource::Disk) {
            return Err(ApiError::bad_request("only disk is limited at each moment")
                .hint("give `per` as `day`, `month` or `ever`"));
        }
        let keys: Vec<_> = body
            .limits
            .into_iter()
            .map(|(resource, limit)| (key_of(whose.clone(), resource, per), limit))
            .collect();
        let limits = std::sync::Arc::clone(&self.limits);
        let set = keys.clone();
        blocking(move || {
            limits.change(|quotas| {
                keys.into_iter()
                    .try_for_each(|(key, limit)| quotas.set(key, limit))
            })
        })
        .await?
        .map_err(|error| quota(&error))?;
        let now_ms = now_ms();
        let standing = {
            let quotas = self.limits.quotas();
            let ledger = self.limits.meter.ledger();
            quotas.standing_of(now_ms, &ledger, &whose)
        };
        let list = set.iter().map(|(key, limit)| {
            let one = standing.iter().find(|one| one.key == *key);
            one.filter(|_| !matches!(whose, Whose::EachAgent | Whose::EachSpace))
                .map_or_else(|| self.quota_rule(key, *limit), |one| self.quota_of(one))
        });
        Ok(QuotaList {
            schema: SCHEMA,
            quotas: list.collect(),
        })
    }

    /// Removes the quotas that match; durable when this returns.
    pub(crate) async fn remove_quotas(&self, params: QuotaParams) -> Result<QuotaList, ApiError> {
        let whose = self.whose(
            params.agent.as_deref(),
            params.space.as_deref(),
            params.each.as_deref(),
        )?;
        let (resource, per) = (params.resource, params.per);
        let matches = move |key: &Key| {
            key.whose == whose
                && resource.is_none_or(|resource| key.resource == resource)
                && per.is_none_or(|per| key.per == per)
        };
        let limits = std::sync::Arc::clone(&self.limits);
        let removed = blocking(move || {
            limits.change(|quotas| {
                let were: BTreeMap<_, _> = quotas
                    .iter()
                    .map(|(key, limit)| (key.clone(), limit))
                    .collect();
                let gone = quotas.remove(&matches).into_iter();
                Ok(gone.map(|key| (were[&key], key)).collect::<Vec<_>>())
            })
        })
        .await?
        .map_err(|error| quota(&error))?;
        if removed.is_empty() {
            return Err(ApiError::not_found("there is no such quota")
                .hint("`rhizome quota list` shows those there are"));
        }
        let list = removed
            .iter()
            .map(|(limit, key)| self.quota_rule(key, *limit));
        Ok(QuotaList {
            schema: SCHEMA,
            quotas: list.collect(),
        })
    }

    fn whose(
        &self,
        agent: Option<&str>,
        space: Option<&str>,
        each: Option<&str>,
    ) -> Result<Whose, ApiError> {
        match (agent, space, each) {
            (Some(agent), None, None) => Ok(Whose::Agent(self.any_agent(agent)?.to_string())),
            (None, Some(space), None) => Ok(Whose::Space(self.any_space(space)?.to_string())),
            (None, None, Some("agent")) => Ok(Whose::EachAgent),
            (None, None, Some("space")) => Ok(Whose::EachSpace),
            _ => Err(
                ApiError::bad_request("it is not clear whose quota is meant")
                    .hint("give one of `agent`, `space` and `each` (`agent` or `space`)"),
            ),
        }
    }

    /// Returns an agent that may have used something here: one of this node's, or any by its id,
    /// also after it was removed.
    fn any_agent(&self, wanted: &str) -> Result<AgentId, ApiError> {
        match wanted.parse() {
            Ok(id) => Ok(id),
            Err(_) => Names(&self.replica.authority()).find_agent(&self.id(), wanted),
        }
    }

    fn any_space(&self, wanted: &str) -> Result<SpaceId, ApiError> {
        match wanted.parse() {
            Ok(id) => Ok(id),
            Err(_) => Names(&self.replica.authority()).find_space(wanted),
        }
    }

    fn quota_rule(&self, key: &Key, limit: u64) -> Quota {
        Quota {
            kind: kind(&key.whose).to_owned(),
            of: self.limits.named(&key.whose),
            each: matches!(key.whose, Whose::EachAgent | Whose::EachSpace),
            resource: key.resource,
            per: key.per,
            limit,
            unit: key.resource.unit().to_owned(),
            used: None,
            over: false,
            ends_ms: key.per.ends_ms(now_ms()),
        }
    }

    fn quota_of(&self, standing: &Standing) -> Quota {
        Quota {
            of: self.limits.named(&standing.of),
            used: Some(standing.used),
            over: standing.is_over(),
            ..self.quota_rule(&standing.key, standing.limit)
        }
    }
}

/// Disk is held at a moment, whatever time was meant.
fn key_of(whose: Whose, resource: Resource, per: Per) -> Key {
    let per = match resource {
        Resource::Disk => Per::Moment,
        _ => per,
    };
    Key {
        whose,
        resource,
        per,
    }
}

fn kind(whose: &Whose) -> &'static str {
    match whose {
        Whose::Agent(_) | Whose::EachAgent => "agent",
        Whose::Space(_) | Whose::EachSpace => "space",
    }
}

fn named<I: std::str::FromStr>(id: String, name: impl Fn(&I) -> Named) -> Named {
    match id.parse() {
        Ok(parsed) => name(&parsed),
        Err(_) => Named {
            id,
            name: String::new(),
        },
    }
}

fn failed(code: &str, error: &(dyn std::error::Error + 'static)) -> ApiError {
    let status = StatusCode::INTERNAL_SERVER_ERROR;
    ApiError::of(status, code, error)
}

/// What was used cannot be written down.
pub(super) fn unwritten(error: &UsageError) -> ApiError {
    if is_disk_full(error) {
        return full(error);
    }
    failed("usage_failed", error)
}

fn quota(error: &QuotaError) -> ApiError {
    let answer = match error {
        _ if is_disk_full(error) => return full(error),
        QuotaError::TooMany => ApiError::of(StatusCode::CONFLICT, "too_many", error),
        _ => failed("quotas_failed", error),
    };
    answer.maybe_hint(error.hint())
}

fn full(error: &(dyn std::error::Error + 'static)) -> ApiError {
    ApiError::of(StatusCode::INSUFFICIENT_STORAGE, "disk_full", error)
        .hint("make room on the data directory's disk and try again")
}
