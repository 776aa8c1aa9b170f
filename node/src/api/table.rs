//! The table of routes: each is registered and described in one line, so that none is undocumented.
//!
//! What a route takes and answers is read off the types of its handler; only its summary is said in
//! words. `api::openapi` makes the document of it.
use std::sync::Arc;

use axum::{
    Router,
    handler::Handler,
    http::Method,
    routing::{MethodFilter, on},
};

use super::openapi::{Describe, Operation};
use crate::daemon::node::Node;

// Chapters of the document.
pub(crate) const MEMORY: &str = "memory";
pub(crate) const MEMORY_FILES: &str = "files of memory";
pub(crate) const CONTEXTS: &str = "contexts";
pub(crate) const SANDBOXES: &str = "sandboxes";
pub(crate) const COMMANDS: &str = "commands";
pub(crate) const FILES: &str = "files";
pub(crate) const SNAPSHOTS: &str = "snapshots";
pub(crate) const IMAGES: &str = "images";
pub(crate) const NETWORK: &str = "network";
pub(crate) const VOLUMES: &str = "volumes";
pub(crate) const USAGE: &str = "usage";
pub(crate) const RUNTIMES: &str = "runtimes";
pub(crate) const MESH: &str = "mesh";
pub(crate) const NODE: &str = "node";
pub(crate) const MCP: &str = "mcp";
pub(crate) const BETWEEN: &str = "between nodes";

/// Routes, and what is said of each.
#[derive(Debug, Default)]
pub(crate) struct Table {
    router: Router<Arc<Node>>,
    described: Vec<Described>,
}

/// A route as the document tells it.
#[derive(Debug, Clone)]
pub(crate) struct Described {
    pub(crate) method: Method,
    pub(crate) path: &'static str,
    /// One line, without a full stop.
    pub(crate) summary: &'static str,
    pub(crate) tag: &'static str,
    /// Whether it makes something, so that a request may carry an idempotency key.
    pub(crate) creates: bool,
    /// Whether its answer must not be kept: it holds what is told once.
    pub(crate) untold: bool,
    /// The field of its answer that is a list, and what names an item of it.
    pub(crate) lists: Option<Listing>,
    /// What is not in the types: an upgrade, a body that the handler reads on its own.
    pub(crate) more: Option<fn(&mut Operation<'_>)>,
    /// Reads the handler's types.
    pub(crate) describe: fn(&mut Operation<'_>),
}

/// A list that is told a page at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Listing {
    /// The field that holds it.
    pub(crate) field: &'static str,
    /// A pointer to what names an item, such as `/id`.
    pub(crate) key: &'static str,
    /// Whether the handler reads `limit` and `cursor` itself.
    pub(crate) by_handler: bool,
}

impl Table {
    /// Adds the route `method` `path`; `tag` is the chapter it belongs to.
    pub(crate) fn route<H, T, M>(
        mut self,
        tag: &'static str,
        method: Method,
        path: &'static str,
        handler: H,
        summary: &'static str,
    ) -> Self
    where
        H: Handler<T, Arc<Node>> + Describe<M>,
        T: 'static,
    {
        let filter = MethodFilter::try_from(method.clone()).expect("routes have usual methods");
        self.router = self.router.route(path, on(filter, handler));
        self.described.push(Described {
            method,
            path,
            summary,
            tag,
            creates: false,
            untold: false,
            lists: None,
            more: None,
            describe: <H as Describe<M>>::describe,
        });
        self
    }

    /// The route just added makes something.
    pub(crate) fn creates(mut self) -> Self {
        self.last().creates = true;
        self
    }

    /// The answer of the route just added holds something that is told once and kept nowhere.
    pub(crate) fn told_once(mut self) -> Self {
        self.last().untold = true;
        self
    }

    /// The route just added answers the list `field`, whose items `key` names.
    pub(crate) fn lists(mut self, field: &'static str, key: &'static str) -> Self {
        self.last().lists = Some(Listing {
            field,
            key,
            by_handler: false,
        });
        self
    }

    /// As [`Self::lists`], of a handler that reads `limit` and `cursor` itself.
    pub(crate) fn pages(mut self, field: &'static str, key: &'static str) -> Self {
        self.last().lists = Some(Listing {
            field,
            key,
            by_handler: true,
        });
        self
    }

    /// Says more of the route just added than its types do.
    pub(crate) fn also(mut self, more: fn(&mut Operation<'_>)) -> Self {
        self.last().more = Some(more);
        self
    }

    /// Adds all routes of `other`.
    pub(crate) fn merge(mut self, other: Self) -> Self {
        self.router = self.router.merge(other.router);
        self.described.extend(other.described);
        self
    }

    /// Returns the routes, and what is said of each.
    pub(crate) fn into_parts(self) -> (Router<Arc<Node>>, Vec<Described>) {
        (self.router, self.described)
    }

    fn last(&mut self) -> &mut Described {
        self.described.last_mut().expect("a route was added before")
    }
}

/// Returns every table's routes with those who may ask them; each route once.
pub(crate) fn combine(tables: Vec<(&'static str, Table)>) -> Vec<(Described, Vec<&'static str>)> {
    let mut all: Vec<(Described, Vec<&'static str>)> = Vec::new();
    for (caller, table) in tables {
        for described in table.described {
            let known = all.iter_mut().find(|(known, _)| {
                known.method == described.method && known.path == described.path
            });
            match known {
                Some((_, callers)) if !callers.contains(&caller) => callers.push(caller),
                Some(_) => {}
                None => all.push((described, vec![caller])),
            }
        }
    }
    all
}

/// Whether `path` is one of `template`, whose parts in braces stand for any.
pub(crate) fn is_for(template: &str, path: &str) -> bool {
    let mut parts = path.split('/');
    let all = template.split('/').all(|wanted| {
        let part = parts.next();
        match wanted.starts_with('{') {
            true => part.is_some_and(|part| !part.is_empty()),
            false => part == Some(wanted),
        }
    });
    all && parts.next().is_none()
}
