//! Users and groups by name or number, from the guest's own `/etc`.

use std::fs;

/// Who a program runs as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) name: String,
    pub(crate) home: String,
    pub(crate) shell: String,
    /// The groups that name it as a member, beside its own.
    pub(crate) groups: Vec<u32>,
}

const DEFAULT_SHELL: &str = "/bin/sh";
/// Groups of one user that count.
const MAX_GROUPS: usize = 64;

/// Finds `name`, `uid`, `name:group` or `uid:gid`; root for nothing.
pub(crate) fn find(wanted: &str) -> Option<User> {
    let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let group = fs::read_to_string("/etc/group").unwrap_or_default();
    find_in(&passwd, &group, wanted)
}

fn find_in(passwd: &str, groups: &str, wanted: &str) -> Option<User> {
    let (name, group) = match wanted.split_once(':') {
        Some((name, group)) => (name, Some(group)),
        None => (wanted, None),
    };
    let name = if name.is_empty() { "root" } else { name };
    let number: Option<u32> = name.parse().ok();
    let known = passwd.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let [user, _, uid, gid, _, home, ref shell @ ..] = fields[..] else {
            return None;
        };
        let shell = shell.first().filter(|shell| !shell.is_empty());
        let uid = uid.parse().ok()?;
        (user == name || number == Some(uid)).then(|| User {
            uid,
            gid: gid.parse().unwrap_or(uid),
            name: user.to_owned(),
            home: home.to_owned(),
            shell: (*shell.unwrap_or(&DEFAULT_SHELL)).to_owned(),
            groups: Vec::new(),
        })
    });
    let nameless = || {
        // An image may have no /etc/passwd at all, but it has a root.
        let uid = if name == "root" { 0 } else { number? };
        let home = if uid == 0 { "/root" } else { "/" };
        Some(User {
            uid,
            gid: uid,
            name: name.to_owned(),
            home: home.to_owned(),
            shell: DEFAULT_SHELL.to_owned(),
            groups: Vec::new(),
        })
    };
    let mut user = known.or_else(nameless)?;
    if group.is_none() {
        let member = |line: &str| {
            let fields: Vec<&str> = line.split(':').collect();
            let [_, _, gid, members, ..] = fields[..] else {
                return None;
            };
            let named = members
                .trim_end()
                .split(',')
                .any(|member| member == user.name);
            named.then(|| gid.parse().ok())?
        };
        user.groups = groups.lines().filter_map(member).take(MAX_GROUPS).collect();
    }
    if let Some(group) = group {
        user.gid = group.parse().ok().or_else(|| {
            groups.lines().find_map(|line| {
                let fields: Vec<&str> = line.split(':').collect();
                let [name, _, gid, ..] = fields[..] else {
                    return None;
                };
                if name == group {
                    gid.parse().ok()
                } else {
                    None
                }
            })
        })?;
    }
    if !user.groups.contains(&user.gid) {
        user.groups.insert(0, user.gid);
    }
    Some(user)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str =
        "root:x:0:0:root:/root:/bin/sh\nbroken\nann:x:1000:100::/home/ann:/bin/sh\n";
    const GROUP: &str = "root:x:0:\nusers:x:100:ann\nsudo:x:27:bob,ann\n";

    #[test]
    fn users_are_found_by_name_and_number() {
        let ann = User {
            uid: 1000,
            gid: 100,
            name: "ann".to_owned(),
            home: "/home/ann".to_owned(),
            shell: "/bin/sh".to_owned(),
            groups: vec![100, 27],
        };
        assert_eq!(find_in(PASSWD, GROUP, "ann"), Some(ann.clone()));
        assert_eq!(find_in(PASSWD, GROUP, "1000"), Some(ann.clone()));
        assert_eq!(
            find_in(PASSWD, GROUP, "ann:root"),
            Some(User {
                gid: 0,
                groups: vec![0],
                ..ann
            })
        );
        assert_eq!(find_in(PASSWD, GROUP, "").map(|user| user.uid), Some(0));
        assert_eq!(
            find_in("", "", "").map(|user| user.home),
            Some("/root".to_owned())
        );
    }

    #[test]
    fn unknown_numbers_are_users_and_unknown_names_are_not() {
        assert_eq!(
            find_in(PASSWD, GROUP, "4242:7").map(|user| (user.uid, user.gid)),
            Some((4242, 7))
        );
        assert_eq!(find_in(PASSWD, GROUP, "bob"), None);
        assert_eq!(find_in(PASSWD, GROUP, "ann:wheel"), None);
    }
}
