//! Profiles: the sets of tools that a client may be offered, each a view of the same memories.
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

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
            Self::Clash {
                tool,
                first,
                second,
            } => format!(
                "with `--prefix` (`prefix=1`) they are `{}` and `{}`; or serve one of them, or each \
                 with a server of its own",
                prefixed(first, tool),
                prefixed(second, tool)
            ),
        }
    }
}

/// The profiles of one client, and what it calls their tools.
#[derive(Clone)]
pub(crate) struct Profiles {
    all: Arc<[Arc<dyn Profile>]>,
    /// Names of tools that several profiles have.
    clashing: Arc<BTreeSet<String>>,
}

impl Profiles {
    /// Returns the profiles of `names`, in that order, each once; [`DEFAULT`] if there are none.
    ///
    /// With `prefix`, a tool that two of them have is called by its profile too.
    ///
    /// # Errors
    /// If a profile is unknown, or two tools would have one name.
    pub(crate) fn of(names: &[String], prefix: bool) -> Result<Self, UnknownProfile> {
        let default = [DEFAULT.to_owned()];
        let names = if names.is_empty() { &default } else { names };
        let mut all: Vec<Arc<dyn Profile>> = Vec::new();
        for name in names {
            let known = KNOWN.iter().find(|(known, _)| known == name);
            let (_, make) =
                known.ok_or_else(|| UnknownProfile::Unknown(name.chars().take(80).collect()))?;
            let profile = make();
            if all.iter().all(|other| other.name() != profile.name()) {
                all.push(profile);
            }
        }
        let mut profiles = Self {
            all: all.into(),
            clashing: Arc::default(),
        };
        if prefix {
            profiles.clashing = Arc::new(profiles.clashes().map(|clash| clash.0).collect());
        }
        match profiles.clashes().next() {
            None => Ok(profiles),
            Some((tool, first, second)) => Err(UnknownProfile::Clash {
                tool,
                first,
                second,
            }),
        }
    }

    /// Returns each name that a tool of one profile has and one of an earlier profile too, with both.
    fn clashes(&self) -> impl Iterator<Item = (String, &'static str, &'static str)> + use<> {
        let mut first: BTreeMap<String, &'static str> = BTreeMap::new();
        let mut clashes = Vec::new();
        for (profile, tool) in self.tools() {
            let name = tool.name.into_owned();
            match first.get(&name) {
                Some(first) => clashes.push((name, *first, profile.name())),
                None => {
                    first.insert(name, profile.name());
                }
            }
        }
        clashes.into_iter()
    }

    /// Returns the profiles.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &dyn Profile> {
        self.all.iter().map(|profile| &**profile)
    }

    /// Returns every tool under the name by which the client calls it.
    pub(crate) fn tools(&self) -> impl Iterator<Item = (&dyn Profile, Tool)> {
        self.iter().flat_map(move |profile| {
            profile.tools().into_iter().map(move |mut tool| {
                if self.clashing.contains(&*tool.name) {
                    tool.name = prefixed(profile.name(), &tool.name).into();
                }
                (profile, tool)
            })
        })
    }

    /// Returns the tool that the client calls `name`, and what its profile calls it.
    pub(crate) fn tool(&self, name: &str) -> Option<(&dyn Profile, Tool, String)> {
        let (profile, tool) = self.tools().find(|(_, tool)| tool.name == name)?;
        let own = name
            .strip_prefix(profile.name())
            .and_then(|rest| rest.strip_prefix('_'))
            .filter(|own| self.clashing.contains(*own))
            .unwrap_or(name);
        let own = own.to_owned();
        Some((profile, tool, own))
    }

    /// Says which tools the client calls otherwise than their profiles' instructions do.
    pub(crate) fn renamed(&self) -> Option<String> {
        if self.clashing.is_empty() {
            return None;
        }
        let all = self.tools().map(|(_, tool)| tool.name.into_owned());
        let renamed: Vec<_> = all.filter(|name| self.is_renamed(name)).collect();
        Some(format!(
            "Tools that several profiles have are called by their profile too: {}.",
            renamed.join(", ")
        ))
    }

    fn is_renamed(&self, name: &str) -> bool {
        self.tool(name).is_some_and(|(_, _, own)| own != name)
    }
}

/// Returns what a tool is called that another profile has too.
fn prefixed(profile: &str, tool: &str) -> String {
    format!("{profile}_{tool}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profiles(names: &[&str], prefix: bool) -> Result<Profiles, UnknownProfile> {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        Profiles::of(&names, prefix)
    }

    #[test]
    fn a_profile_is_named_once_and_known() {
        let names = |names: &[&str]| {
            profiles(names, false).map(|found| found.iter().map(Profile::name).collect::<Vec<_>>())
        };
        assert_eq!(names(&[]), Ok(vec!["native"]));
        assert_eq!(names(&["native", "native"]), Ok(vec!["native"]));
        let unknown = names(&["native", "nativ"]).unwrap_err();
        assert_eq!(unknown, UnknownProfile::Unknown("nativ".to_owned()));
        assert!(unknown.hint().contains("native"), "{}", unknown.hint());
    }

    #[test]
    fn tools_of_one_name_are_told_apart_only_when_asked_for() {
        let clash = profiles(&["kg", "mem0"], false).map(drop).unwrap_err();
        let wanted = UnknownProfile::Clash {
            tool: "delete_entities".to_owned(),
            first: "kg",
            second: "mem0",
        };
        assert_eq!(clash, wanted);
        assert!(clash.hint().contains("mem0_delete_entities"));
        let both = profiles(&["kg", "mem0", "native"], true).unwrap();
        let own = |name: &str| {
            let (profile, tool, own) = both.tool(name)?;
            assert_eq!(tool.name, name);
            Some((profile.name(), own))
        };
        let found = |profile, own: &str| Some((profile, own.to_owned()));
        assert_eq!(own("kg_delete_entities"), found("kg", "delete_entities"));
        assert_eq!(
            own("mem0_delete_entities"),
            found("mem0", "delete_entities")
        );
        // What stands alone keeps its name, and has no other.
        assert_eq!(own("create_entities"), found("kg", "create_entities"));
        for none in [
            "delete_entities",
            "kg_create_entities",
            "native_delete_entities",
        ] {
            assert_eq!(own(none), None);
        }
        let told = both.renamed().unwrap();
        assert!(
            told.contains("kg_delete_entities, mem0_delete_entities"),
            "{told}"
        );
        // Nothing clashes, nothing is renamed.
        let alone = profiles(&["kg", "native"], true).unwrap();
        assert!(alone.tool("delete_entities").is_some() && alone.renamed().is_none());
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
