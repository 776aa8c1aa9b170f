//! What a request of another node takes: a pure function of the route, and one of the grants.
//!
//! Whatever is not listed is not for peers: a route that is added to the API stays the owner's
//! until a line here says otherwise.
use axum::http::Method;
use rhizome_identity::{Authority, NodeId, Role, SpaceId};

/// What a peer must be to have a request answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need<'a> {
    /// A member of the mesh: every peer is.
    Member,
    /// This much, in every space of the sandbox named.
    Sandbox(&'a str, Role),
    /// The body says which spaces it is about; the route's handler decides.
    Body,
    /// No peer may.
    Never,
}

/// Returns what `method` on `path` takes; `path` is the request's, without its query.
pub(crate) fn need<'a>(method: &Method, path: &'a str) -> Need<'a> {
    let mut parts = path.split('/');
    if (parts.next(), parts.next()) != (Some(""), Some("v1")) {
        return Need::Never;
    }
    let rest: Vec<&str> = parts.collect();
    let is = |wanted: &Method| method == wanted;
    match rest[..] {
        ["sandboxes"] if is(&Method::GET) => Need::Member,
        ["sandboxes"] if is(&Method::POST) => Need::Body,
        // What a sandbox may reach is a hole in its node's wall, not the sandbox's own affair.
        ["sandboxes", sandbox, "policy" | "secrets" | "egress", ..] => {
            Need::Sandbox(sandbox, Role::Admin)
        }
        ["sandboxes", sandbox, ..] if !sandbox.is_empty() => Need::Sandbox(sandbox, Role::Writer),
        ["images"] if is(&Method::GET) => Need::Member,
        ["resume"] if is(&Method::POST) => Need::Body,
        ["volumes", _, "attach" | "detach" | "checkpoint"] if is(&Method::POST) => Need::Body,
        ["remote", "facts"] if is(&Method::GET) => Need::Member,
        ["remote", "offer" | "pack-chunks"] if is(&Method::POST) => Need::Member,
        ["remote", "hold" | "claim" | "image" | "volume"] if is(&Method::POST) => Need::Body,
        _ => Need::Never,
    }
}

/// Why a peer may not do something.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum Denied {
    /// The thing belongs to no space, so no grant speaks of it.
    #[error("it belongs to no space, so it is its own node's alone")]
    NoSpace,
    /// The peer's role in one of the spaces is too low.
    #[error("it takes the role {wanted} in the space `{space}`; the asking node has {}", role(.has))]
    Role {
        /// The space, by name.
        space: String,
        /// What it takes.
        wanted: Role,
        /// What the peer has.
        has: Option<Role>,
    },
}

fn role(has: &Option<Role>) -> String {
    has.map_or_else(|| "none".to_owned(), |role| role.to_string())
}

/// Says whether `peer` has at least the role `wanted` in every one of `spaces`.
pub(crate) fn may(
    authority: &Authority,
    peer: &NodeId,
    spaces: &[SpaceId],
    wanted: Role,
) -> Result<(), Denied> {
    if spaces.is_empty() {
        return Err(Denied::NoSpace);
    }
    let short = spaces.iter().find_map(|space| {
        let has = authority.role_in(peer, space);
        has.is_none_or(|has| has < wanted).then_some((space, has))
    });
    let Some((space, has)) = short else {
        return Ok(());
    };
    let name = authority.space(space).map(|space| space.name.clone());
    Err(Denied::Role {
        space: name.unwrap_or_else(|| space.to_string()),
        wanted,
        has,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(method: &str, path: &'static str) -> Need<'static> {
        need(&method.parse().unwrap(), path)
    }

    #[test]
    fn sandbox_verbs_take_a_writer() {
        let writer = Need::Sandbox("bench", Role::Writer);
        for (method, path) in [
            ("GET", "/v1/sandboxes/bench"),
            ("DELETE", "/v1/sandboxes/bench"),
            ("POST", "/v1/sandboxes/bench/exec"),
            ("GET", "/v1/sandboxes/bench/logs"),
            ("PUT", "/v1/sandboxes/bench/file"),
            ("POST", "/v1/sandboxes/bench/hibernate"),
            ("GET", "/v1/sandboxes/bench/execs/e1/attach"),
        ] {
            assert_eq!(of(method, path), writer, "{method} {path}");
        }
        let admin = Need::Sandbox("bench", Role::Admin);
        assert_eq!(of("PUT", "/v1/sandboxes/bench/policy"), admin);
        assert_eq!(of("PUT", "/v1/sandboxes/bench/secrets/token"), admin);
    }

    #[test]
    fn the_owners_routes_are_no_peers() {
        for (method, path) in [
            ("POST", "/v1/down"),
            ("POST", "/v1/mesh/init"),
            ("POST", "/v1/mesh/join"),
            ("POST", "/v1/invites"),
            ("GET", "/v1/invites"),
            ("POST", "/v1/agents"),
            ("GET", "/v1/agents"),
            ("POST", "/v1/spaces"),
            ("POST", "/v1/memory"),
            ("POST", "/v1/recall"),
            ("GET", "/v1/status"),
            ("GET", "/v1/doctor"),
            ("POST", "/v1/images"),
            ("POST", "/v1/images/push"),
            ("POST", "/v1/wake/00ff"),
            ("POST", "/v1/wake-on"),
            ("POST", "/v1/on/cloud/v1/sandboxes"),
            ("GET", "/v1/nodes"),
            ("DELETE", "/v1/sandboxes"),
            ("POST", "/v1/remote/facts"),
            ("GET", "/v1/sandboxes/"),
            ("GET", "/v2/sandboxes"),
            ("GET", "/v1"),
            ("GET", ""),
            ("GET", "v1/sandboxes"),
            ("GET", "/v1/volumes"),
            ("POST", "/v1/volumes"),
            ("POST", "/v1/volumes/work/import"),
            ("POST", "/v1/volumes/work/export"),
            ("POST", "/v1/volumes/work/forget"),
            ("GET", "/v1/volumes/work/attach"),
            ("POST", "/v1/something/new"),
        ] {
            assert_eq!(of(method, path), Need::Never, "{method} {path}");
        }
    }
}
