//! The clients of MCP whose configuration we know: where it lies and what it looks like.
use std::path::PathBuf;

use serde_json::{Value, json};

/// How a client writes down a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// JSON: an object of this name, the servers in it by name, each `{command, args}`.
    Json(&'static str),
    /// As [`Self::Json`], each with `"type": "stdio"` too.
    JsonTyped(&'static str),
    /// As [`Self::Json`], command and arguments in one list, as `opencode` has it.
    JsonOneList(&'static str),
    /// TOML: a table of this name, the servers in it by name.
    Toml(&'static str),
}

/// The directory under which a client's file lies.
#[derive(Debug, Clone, Copy)]
enum Base {
    Home,
    /// `$XDG_CONFIG_HOME`, or what macOS has in its place.
    Config,
    /// What this variable says, or a directory of the home.
    Var(&'static str, &'static str),
}

/// A client.
#[derive(Debug, Clone, Copy)]
pub(super) struct Client {
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    pub(super) shape: Shape,
    base: Base,
    path: &'static str,
    /// The file of one project, under its directory.
    project: Option<&'static str>,
}

/// Every client, in the order in which they are listed.
pub(super) const CLIENTS: &[Client] = &[
    client(
        "claude-code",
        "Claude Code",
        SERVERS,
        Base::Home,
        ".claude.json",
    )
    .in_project(".mcp.json"),
    client(
        "claude-desktop",
        "Claude Desktop",
        SERVERS,
        Base::Config,
        "Claude/claude_desktop_config.json",
    ),
    client("cursor", "Cursor", SERVERS, Base::Home, ".cursor/mcp.json")
        .in_project(".cursor/mcp.json"),
    client(
        "vscode",
        "VS Code",
        Shape::JsonTyped("servers"),
        Base::Config,
        "Code/User/mcp.json",
    )
    .in_project(".vscode/mcp.json"),
    client(
        "windsurf",
        "Windsurf",
        SERVERS,
        Base::Home,
        ".codeium/windsurf/mcp_config.json",
    ),
    client(
        "codex",
        "Codex",
        Shape::Toml("mcp_servers"),
        Base::Var("CODEX_HOME", ".codex"),
        "config.toml",
    ),
    client(
        "gemini",
        "Gemini CLI",
        SERVERS,
        Base::Home,
        ".gemini/settings.json",
    )
    .in_project(".gemini/settings.json"),
    client(
        "zed",
        "Zed",
        Shape::Json("context_servers"),
        Base::Config,
        "zed/settings.json",
    ),
    client(
        "lm-studio",
        "LM Studio",
        SERVERS,
        Base::Home,
        ".lmstudio/mcp.json",
    ),
    client(
        "opencode",
        "opencode",
        Shape::JsonOneList("mcp"),
        Base::Config,
        "opencode/opencode.json",
    ),
];

const SERVERS: Shape = Shape::Json("mcpServers");

const fn client(
    name: &'static str,
    title: &'static str,
    shape: Shape,
    base: Base,
    path: &'static str,
) -> Client {
    Client {
        name,
        title,
        shape,
        base,
        path,
        project: None,
    }
}

impl Client {
    const fn in_project(mut self, path: &'static str) -> Self {
        self.project = Some(path);
        self
    }

    /// Returns the file of the user, `var` being what the environment says; `None` without a home.
    pub(super) fn user_file(&self, var: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
        let absolute = |name: &str| var(name).filter(|path| path.is_absolute());
        let base = match self.base {
            Base::Home => absolute("HOME")?,
            Base::Config if cfg!(target_os = "macos") && self.name != "zed" => {
                absolute("HOME")?.join("Library/Application Support")
            }
            Base::Config => match absolute("XDG_CONFIG_HOME") {
                Some(config) => config,
                None => absolute("HOME")?.join(".config"),
            },
            Base::Var(name, fallback) => match absolute(name) {
                Some(base) => base,
                None => absolute("HOME")?.join(fallback),
            },
        };
        Some(base.join(self.path))
    }

    /// Returns the file of the project in the working directory, if the client has such.
    pub(super) fn project_file(&self) -> Option<PathBuf> {
        self.project.map(PathBuf::from)
    }

    /// Returns what the client's file says of a server that is started by `command`.
    pub(super) fn entry(&self, command: &str, args: &[String]) -> Value {
        match self.shape {
            Shape::Json(_) | Shape::Toml(_) => json!({"command": command, "args": args}),
            Shape::JsonTyped(_) => json!({"type": "stdio", "command": command, "args": args}),
            Shape::JsonOneList(_) => {
                let mut all = vec![command.to_owned()];
                all.extend_from_slice(args);
                json!({"type": "local", "command": all, "enabled": true})
            }
        }
    }
}

/// Returns the client called `name`.
pub(super) fn find(name: &str) -> Option<&'static Client> {
    CLIENTS.iter().find(|client| client.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_lie_where_the_environment_says() {
        let var = |name: &str| match name {
            "HOME" => Some("/home/ada".into()),
            "CODEX_HOME" => Some("relative".into()),
            _ => None,
        };
        let file = |name| find(name).unwrap().user_file(var).unwrap();
        assert_eq!(file("cursor"), PathBuf::from("/home/ada/.cursor/mcp.json"));
        assert_eq!(file("codex"), PathBuf::from("/home/ada/.codex/config.toml"));
        if cfg!(target_os = "linux") {
            assert_eq!(
                file("zed"),
                PathBuf::from("/home/ada/.config/zed/settings.json")
            );
        }
        assert!(find("cursor").unwrap().user_file(|_| None).is_none());
        assert!(find("emacs").is_none());
    }
}
