//! The steps of a template's build, as one script and a recipe around it.
use std::{collections::BTreeMap, fmt::Write};

use serde::Deserialize;

use crate::{
    daemon::memory::clip,
    e2b::error::{Answer, E2bError},
};

/// A step as clients write it.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Step {
    #[serde(rename = "type")]
    kind: String,
    args: Vec<String>,
    #[serde(rename = "filesHash")]
    files_hash: Option<String>,
}

impl Step {
    /// Returns the hash of the files that it copies.
    pub(super) fn archive(&self) -> Option<&str> {
        self.files_hash.as_deref().filter(|_| self.kind == "COPY")
    }

    fn arg(&self, at: usize) -> &str {
        self.args.get(at).map(String::as_str).unwrap_or_default()
    }
}

/// What holds from a step on.
#[derive(Debug, Default)]
struct Now {
    user: Option<String>,
    cwd: String,
    env: BTreeMap<String, String>,
}

/// Returns the recipe of a build, or `None` if nothing is to be done.
///
/// All steps are one `RUN`: each would otherwise be an image of its own.
pub(super) fn recipe(
    base: &str,
    steps: &[Step],
    start: Option<&str>,
    ready: Option<&str>,
) -> Answer<Option<String>> {
    let mut recipe = format!("FROM {base}\n");
    let mut script = String::from("set -e\n");
    let mut now = Now {
        cwd: "/".to_owned(),
        ..Now::default()
    };
    let mut copied: Vec<&str> = Vec::new();
    let mut runs = false;
    for (number, step) in steps.iter().enumerate() {
        let wrong = |what: &str| {
            E2bError::bad_request(format!(
                "step {} ({}): {what}",
                number + 1,
                clip(&step.kind)
            ))
        };
        if step.args.iter().any(|arg| arg.contains('\0')) {
            return Err(wrong("a zero byte"));
        }
        let _ = writeln!(
            script,
            "echo 'step {}: {}' >&2",
            number + 1,
            plain(&step.kind)
        );
        match &step.kind[..] {
            "RUN" => {
                if step.arg(0).is_empty() {
                    return Err(wrong("there is no command"));
                }
                runs = true;
                let user = match step.arg(1) {
                    "" => now.user.clone(),
                    user => Some(user.to_owned()),
                };
                run(&mut script, &now, user.as_deref(), step.arg(0));
            }
            "COPY" => {
                let Some(hash) = step.archive() else {
                    return Err(wrong("there is no hash of its files"));
                };
                if !hash.bytes().all(|b| b.is_ascii_hexdigit()) {
                    return Err(wrong("the hash of its files is none"));
                }
                let (from, to) = (step.arg(0), step.arg(1));
                if from.is_empty() || to.is_empty() || from.split('/').any(|part| part == "..") {
                    return Err(wrong("it copies from within the context to a path"));
                }
                runs = true;
                if !copied.contains(&hash) {
                    copied.push(hash);
                    let _ = writeln!(recipe, "COPY {hash} /tmp/.e2b-{hash}");
                }
                copy(&mut script, &now, hash, from, to);
                let target = quoted(&within(&now.cwd, to));
                if !step.arg(2).is_empty() {
                    let _ = writeln!(script, "chown -R {} {target}", quoted(step.arg(2)));
                }
                if !step.arg(3).is_empty() {
                    let _ = writeln!(script, "chmod -R {} {target}", quoted(step.arg(3)));
                }
            }
            "ENV" => {
                for pair in step.args.chunks(2) {
                    let [name, value] = pair else {
                        return Err(wrong("a variable has no value"));
                    };
                    let fits = |c: char| c.is_ascii_alphanumeric() || c == '_';
                    if name.is_empty() || !name.chars().all(fits) || value.contains('\n') {
                        return Err(wrong("a name is letters, digits and `_`; a value one line"));
                    }
                    now.env.insert(name.clone(), value.clone());
                }
            }
            "WORKDIR" => {
                now.cwd = within(&now.cwd, step.arg(0));
                if now.cwd.contains(char::is_whitespace) {
                    return Err(wrong("a directory without spaces is expected"));
                }
                runs = true;
                let _ = writeln!(script, "mkdir -p {}", quoted(&now.cwd));
            }
            "USER" => {
                let user = step.arg(0);
                let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
                if user.is_empty() || !user.chars().all(fits) || user.starts_with('-') {
                    return Err(wrong("there is no such user"));
                }
                runs = true;
                let _ = writeln!(
                    script,
                    "id {user} >/dev/null 2>&1 || useradd -m -s /bin/bash {user}"
                );
                now.user = Some(user.to_owned()).filter(|user| user != "root");
            }
            _ => return Err(wrong("this node does not support such a step")),
        }
    }
    let start = start.filter(|command| !command.trim().is_empty());
    let ready = ready.filter(|command| !command.trim().is_empty());
    let configures = now.cwd != "/" || now.user.is_some() || !now.env.is_empty();
    if !runs && !configures && start.is_none() && ready.is_none() {
        return Ok(None);
    }
    if runs {
        let _ = writeln!(recipe, "RUN {}", one_line(&script));
    }
    for (name, value) in &now.env {
        let _ = writeln!(recipe, "ENV {name}={value}");
    }
    if now.cwd != "/" {
        let _ = writeln!(recipe, "WORKDIR {}", now.cwd);
    }
    if let Some(user) = &now.user {
        let _ = writeln!(recipe, "USER {user}");
    }
    for (word, command) in [("START", start), ("READY", ready)] {
        if let Some(command) = command {
            let _ = writeln!(recipe, "{word} {}", one_line(command));
        }
    }
    Ok(Some(recipe))
}

fn run(script: &mut String, now: &Now, user: Option<&str>, command: &str) {
    let mut line = format!("( cd {}", quoted(&now.cwd));
    for (name, value) in &now.env {
        let _ = write!(line, " && export {name}={}", quoted(value));
    }
    let shell = format!("/bin/bash -l -c {}", quoted(command));
    let _ = match user.filter(|user| *user != "root") {
        Some(user) => {
            let user = quoted(user);
            // Which leaves the environment as it is.
            let home = format!("\"$(getent passwd {user} | cut -d: -f6)\"");
            let said = format!("export HOME={home} USER={user} LOGNAME={user}");
            write!(line, " && {said} && runuser -u {user} -- {shell} )")
        }
        None => write!(line, " && {shell} )"),
    };
    script.push_str(&line);
    script.push('\n');
}

/// Unpacks an archive of the client beside the target, and puts what is meant there.
fn copy(script: &mut String, now: &Now, hash: &str, from: &str, to: &str) {
    let target = quoted(&within(&now.cwd, to));
    let is_pattern = from.contains(['*', '?', '[']);
    let from = from.trim_start_matches("./").trim_end_matches('/');
    let source = if from.is_empty() || from == "." {
        "\"$d\"/.".to_owned()
    } else {
        format!("\"$d\"/{}", pattern(from))
    };
    let _ = write!(
        script,
        "d=$(mktemp -d)\ntar -xf /tmp/.e2b-{hash} --no-same-owner -C \"$d\"\n"
    );
    if is_pattern || to.ends_with('/') {
        let _ = writeln!(script, "mkdir -p {target}");
        let _ = writeln!(
            script,
            "for f in {source}; do if [ -d \"$f\" ]; then cp -a \"$f/.\" {target}/; else cp -a \"$f\" {target}/; fi; done"
        );
    } else {
        let _ = writeln!(
            script,
            "if [ -d {source} ]; then mkdir -p {target}; cp -a {source}/. {target}/; elif [ -d {target} ]; then cp -a {source} {target}/; else mkdir -p \"$(dirname {target})\"; cp -a {source} {target}; fi"
        );
    }
    script.push_str("rm -rf \"$d\"\n");
}

/// A recipe has one instruction a line.
fn one_line(script: &str) -> String {
    if script.lines().count() == 1 && !script.trim_end().ends_with('\\') {
        return script.trim().to_owned();
    }
    let encoded = data_encoding::BASE64.encode(script.as_bytes());
    format!("printf %s {encoded} | base64 -d > /tmp/.e2b-script && sh /tmp/.e2b-script")
}

fn within(cwd: &str, path: &str) -> String {
    let path = path.strip_prefix("./").unwrap_or(path);
    match path {
        "." | "" => cwd.to_owned(),
        path if path.starts_with('/') => path.to_owned(),
        path => format!("{}/{path}", cwd.trim_end_matches('/')),
    }
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Quotes all but what makes a pattern.
fn pattern(text: &str) -> String {
    let mut shown = String::new();
    for c in text.chars() {
        match c {
            '*' | '?' | '[' | ']' => shown.push(c),
            c => shown.push_str(&quoted(&c.to_string())),
        }
    }
    shown
}

fn plain(text: &str) -> String {
    text.chars()
        .filter(char::is_ascii_alphanumeric)
        .take(16)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(kind: &str, args: &[&str]) -> Step {
        Step {
            kind: kind.to_owned(),
            args: args.iter().map(|arg| (*arg).to_owned()).collect(),
            files_hash: (kind == "COPY").then(|| "ab".repeat(32)),
        }
    }

    fn script_of(recipe: &str) -> String {
        let line = recipe
            .lines()
            .find(|line| line.starts_with("RUN "))
            .unwrap();
        let encoded = line.split_whitespace().nth(3).unwrap();
        String::from_utf8(data_encoding::BASE64.decode(encoded.as_bytes()).unwrap()).unwrap()
    }

    #[test]
    fn steps_become_one_run_and_a_configuration() {
        let steps = [
            step("ENV", &["A", "it's"]),
            step("WORKDIR", &["/srv"]),
            step("COPY", &["app/*.py", "lib/", "", "0755"]),
            step("USER", &["ada"]),
            step("RUN", &["echo $A\nls"]),
            step("RUN", &["id", "root"]),
        ];
        let recipe = recipe("debian", &steps, Some("serve"), None)
            .unwrap()
            .unwrap();
        assert_eq!(
            recipe
                .lines()
                .filter(|line| line.starts_with("RUN "))
                .count(),
            1
        );
        assert!(recipe.starts_with("FROM debian\nCOPY "));
        for line in ["ENV A=it's", "WORKDIR /srv", "USER ada", "START serve"] {
            assert!(recipe.lines().any(|have| have == line), "{line}: {recipe}");
        }
        let script = script_of(&recipe);
        assert!(script.contains(r"export A='it'\''s'"), "{script}");
        assert!(script.contains("runuser -u 'ada' -- /bin/bash -l -c 'echo $A\nls'"));
        assert!(script.contains("getent passwd 'ada'"), "{script}");
        assert!(script.contains("&& /bin/bash -l -c 'id' )"));
        assert!(script.contains("chmod -R '0755' '/srv/lib/'"));
        let parsed = rhizome_sandbox::image::Recipe::parse(&recipe).unwrap();
        assert_eq!(parsed.from, "debian");
    }

    #[test]
    fn nothing_to_do_is_no_recipe_and_nonsense_is_refused() {
        assert_eq!(recipe("debian", &[], None, Some(" ")).unwrap(), None);
        for bad in [
            step("RUN", &[]),
            step("COPY", &["../x", "/y"]),
            step("COPY", &["", "/y"]),
            step("ENV", &["A"]),
            step("ENV", &["A B", "c"]),
            step("USER", &["a;b"]),
            step("USER", &["--help"]),
            step("WORKDIR", &["/a b"]),
            step("VOLUME", &["/x"]),
            step("RUN", &["a\0b"]),
        ] {
            assert!(
                recipe("debian", std::slice::from_ref(&bad), None, None).is_err(),
                "{bad:?}"
            );
        }
    }
}
