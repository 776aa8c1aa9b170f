//! Which requests are actions, and what they are called.

use axum::http::Method;

/// An action that a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Action<'a> {
    /// Its name: the noun, a dot, the verb.
    pub(super) noun: &'a str,
    pub(super) verb: &'a str,
    /// What it is done to, where the path names it.
    pub(super) on: Option<&'a str>,
}

impl Action<'_> {
    pub(super) fn name(&self) -> String {
        format!("{}.{}", self.noun, self.verb)
    }
}

/// Returns what `method` on `path` does, or `None` for what changes nothing or is a fragment of its
/// own: memories and contexts.
pub(super) fn action<'a>(method: &Method, path: &'a str) -> Option<Action<'a>> {
    if *method == Method::GET || *method == Method::HEAD {
        return None;
    }
    let mut parts = path.split('/').filter(|part| !part.is_empty());
    if parts.next() != Some("v1") {
        return None;
    }
    let rest: Vec<&str> = parts.take(5).collect();
    let (noun, verb, on) = match rest[..] {
        ["memory" | "recall" | "context" | "file", ..] => return None,
        // Each call is noted by itself.
        ["mcp", ..] => return None,
        ["mesh", verb] => ("mesh", verb, None),
        ["keys"] => ("keys", "protect", None),
        ["down"] => ("daemon", "down", None),
        ["quotas"] if *method == Method::DELETE => ("quota", "remove", None),
        ["quotas"] => ("quota", "set", None),
        // What follows is a token: whoever reads it here could use it.
        ["wake", ..] => ("webhook", "call", None),
        ["wake-on"] => ("sandbox", "wake-on", None),
        ["snapshots", "import"] => ("snapshot", "import", None),
        [many] => (singular(many), "create", None),
        ["images", verb] if *method == Method::POST => ("image", verb, None),
        [many, on] if *method == Method::DELETE => (singular(many), removed(many), Some(on)),
        [many, on] => (singular(many), "change", Some(on)),
        [many, on, "file"] if *method == Method::DELETE => {
            (singular(many), "remove-file", Some(on))
        }
        [many, on, "file"] => (singular(many), "write-file", Some(on)),
        [many, on, "dir"] => (singular(many), "make-dir", Some(on)),
        // Reading a command on, or signalling it.
        [many, on, "execs", _, verb] => (singular(many), verb, Some(on)),
        [many, on, verb, ..] => (singular(many), verb, Some(on)),
        [] => return None,
    };
    Some(Action { noun, verb, on })
}

fn singular(many: &str) -> &str {
    match many {
        "sandboxes" => "sandbox",
        many => many.strip_suffix('s').unwrap_or(many),
    }
}

fn removed(many: &str) -> &'static str {
    if many == "sandboxes" {
        "kill"
    } else {
        "remove"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_have_the_names_that_people_know() {
        for (method, path, name, on) in [
            ("POST", "/v1/sandboxes", "sandbox.create", None),
            ("DELETE", "/v1/sandboxes/box", "sandbox.kill", Some("box")),
            (
                "POST",
                "/v1/sandboxes/box/exec",
                "sandbox.exec",
                Some("box"),
            ),
            (
                "POST",
                "/v1/sandboxes/box/execs/0011223344556677/signal",
                "sandbox.signal",
                Some("box"),
            ),
            (
                "PUT",
                "/v1/sandboxes/box/file",
                "sandbox.write-file",
                Some("box"),
            ),
            (
                "POST",
                "/v1/sandboxes/box/hibernate",
                "sandbox.hibernate",
                Some("box"),
            ),
            ("POST", "/v1/mesh/join", "mesh.join", None),
            ("POST", "/v1/invites", "invite.create", None),
            ("DELETE", "/v1/images/abc", "image.remove", Some("abc")),
            ("POST", "/v1/down", "daemon.down", None),
            ("POST", "/v1/resume", "resume.create", None),
            ("POST", "/v1/quotas", "quota.set", None),
            ("DELETE", "/v1/quotas", "quota.remove", None),
            ("POST", "/v1/wake/5ec4e7", "webhook.call", None),
            ("POST", "/v1/wake-on", "sandbox.wake-on", None),
            ("POST", "/v1/images/push", "image.push", None),
        ] {
            let method: Method = method.parse().unwrap();
            let action = action(&method, path).unwrap();
            assert_eq!((&action.name()[..], action.on), (name, on), "{path}");
        }
        for (method, path) in [
            (Method::GET, "/v1/sandboxes"),
            (Method::POST, "/v1/memory"),
            (Method::POST, "/v1/context/checkpoint"),
            (Method::POST, "/"),
            (Method::POST, "/elsewhere"),
        ] {
            assert_eq!(action(&method, path), None, "{path}");
        }
    }
}
