//! Profiles: the sets of tools that a client may be offered, each a view of the same memories.
use std::sync::Arc;

use futures::future::BoxFuture;
use rmcp::{
    ErrorData,
    model::{CallToolResult, JsonObject, ReadResourceResult, Resource, Tool},
};

use super::{files::Files, kg::Kg, mem0::Mem0, native::Native, session::Session};
use crate::api::types::memory::WatchEvent;

/// The profile of whoever names none.
pub(crate) const DEFAULT: &str = "native";
type Make = fn() -> Arc<dyn Profile>;
/// Every profile, by the name that a user gives; each costs nothing until it is named.
const KNOWN: &[(&str, Make)] = &[
    ("native", || Arc::new(Native)),
    ("files", || Arc::new(Files)),
    ("kg", || Arc::new(Kg)),
    ("mem0", || Arc::new(Mem0)),
];

/// One set of tools and resources.
pub(crate) trait Profile: Send + Sync + 'static {
    /// Returns the name that users give.
    fn name(&self) -> &'static str;

    /// Returns its tools.
    fn tools(&self) -> Vec<Tool>;

    /// Returns whether `session` may use `tool` at all; one that it may not is not listed to it.
    fn offers(&self, _session: &Session, _tool: &str) -> bool {
        true
    }

    /// Returns a few lines for the model about how the tools belong together; empty for none.
    fn instructions(&self) -> &'static str {
        ""
    }

    /// Calls `tool`; `None`: it is not a tool of this profile.
    ///
    /// What the model should read is an `Ok` with [`CallToolResult::is_error`]
    /// ([`super::answer`]); an `Err` is for requests that are no call of the tool.
    fn call<'a>(
        &'a self,
        session: &'a Session,
        tool: &'a str,
        arguments: JsonObject,
    ) -> BoxFuture<'a, Option<Result<CallToolResult, ErrorData>>>;

    /// Returns the resources that `session` may read.
    fn resources(&self, _session: &Session) -> Vec<Resource> {
        Vec::new()
    }

    /// Reads a resource; `None`: it is not one of this profile.
    fn read<'a>(
        &'a self,
        _session: &'a Session,
        _uri: &'a str,
    ) -> BoxFuture<'a, Option<Result<ReadResourceResult, ErrorData>>> {
        Box::pin(async { None })
    }

    /// Returns whether `uri` is one that `session` may watch.
    fn is_resource(&self, session: &Session, uri: &str) -> bool {
        let known = self.resources(session);
        known.iter().any(|resource| resource.uri == uri)
    }

    /// Returns whether what `tool` does leaves no signed fragment behind: the node's log then says
    /// that it was done.
    fn leaves_no_fragment(&self, _tool: &str) -> bool {
        false
    }

    /// Returns whether `event`, which `session` may read, changes the resource `uri` of this profile.
    fn changes(&self, _session: &Session, _uri: &str, _event: &WatchEvent) -> bool {
        false
    }
}

/// Why a set of profiles cannot be served.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum UnknownProfile {
    /// There is none of that name.
    #[error("there is no profile `{0}`")]
    Unknown(String),
    /// Two of them have a tool of the same name.
    #[error("the profiles `{first}` and `{second}` both have a tool `{tool}`")]
    Clash {
        /// The tool.
        tool: String,
        /// The profile that was named first.
        first: &'static str,
        /// The other.
        second: &'static str,
    },
}

impl UnknownProfile {
    /// Returns what the reader can do.
    pub(crate) fn hint(&self) -> String {
        match self {
            Self::Unknown(_) => {
                let names: Vec<_> = KNOWN.iter().map(|(name, _)| *name).collect();
                format!("the profiles are: {}", names.join(", "))
            }
            Self::Clash { .. } => "serve one of them, or each with a server of its own".to_owned(),
        }
    }
}

/// Returns the profiles of `names`, in that order, each once; [`DEFAULT`] if there are none.
pub(crate) fn profiles(names: &[String]) -> Result<Vec<Arc<dyn Profile>>, UnknownProfile> {
    let default = [DEFAULT.to_owned()];
    let names = if names.is_empty() { &default } else { names };
    let mut found: Vec<Arc<dyn Profile>> = Vec::new();
    for name in names {
        let known = KNOWN.iter().find(|(known, _)| known == name);
        let (_, make) =
            known.ok_or_else(|| UnknownProfile::Unknown(name.chars().take(80).collect()))?;
        let profile = make();
        if found.iter().any(|other| other.name() == profile.name()) {
            continue;
        }
        for tool in profile.tools() {
            let first = found
                .iter()
                .find(|other| other.tools().iter().any(|its| its.name == tool.name));
            if let Some(first) = first {
                return Err(UnknownProfile::Clash {
                    tool: tool.name.into_owned(),
                    first: first.name(),
                    second: profile.name(),
                });
            }
        }
        found.push(profile);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_is_named_once_and_known() {
        let names = |names: &[&str]| {
            let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
            profiles(&names).map(|found| found.iter().map(|one| one.name()).collect::<Vec<_>>())
        };
        assert_eq!(names(&[]), Ok(vec!["native"]));
        assert_eq!(names(&["native", "native"]), Ok(vec!["native"]));
        let unknown = names(&["native", "nativ"]).unwrap_err();
        assert_eq!(unknown, UnknownProfile::Unknown("nativ".to_owned()));
        assert!(unknown.hint().contains("native"), "{}", unknown.hint());
    }

    #[test]
    fn no_profile_has_two_tools_of_one_name() {
        for (_, make) in KNOWN {
            let mut names: Vec<_> = make().tools().into_iter().map(|tool| tool.name).collect();
            let all = names.len();
            names.sort();
            names.dedup();
            assert_eq!(names.len(), all);
        }
    }
}
