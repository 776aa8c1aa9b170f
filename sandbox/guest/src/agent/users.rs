//! Users and groups by name or number, from the guest's own `/etc`.

use std::fs;

/// Who a program runs as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) name: String,
    pub(crate) home: String,
}

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
        let [user, _, uid, gid, _, home, ..] = fields[..] else {
            return None;
        };
        let uid = uid.parse().ok()?;
        (user == name || number == Some(uid)).then(|| User {
            uid,
            gid: gid.parse().unwrap_or(uid),
            name: user.to_owned(),
            home: home.to_owned(),
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
        })
    };
    let mut user = known.or_else(nameless)?;
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
    Some(user)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str =
        "root:x:0:0:root:/root:/bin/sh\nbroken\nann:x:1000:100::/home/ann:/bin/sh\n";
    const GROUP: &str = "root:x:0:\nusers:x:100:ann\n";

    #[test]
    fn users_are_found_by_name_and_number() {
        let ann = User {
            uid: 1000,
            gid: 100,
            name: "ann".to_owned(),
            home: "/home/ann".to_owned(),
        };
        assert_eq!(find_in(PASSWD, GROUP, "ann"), Some(ann.clone()));
        assert_eq!(find_in(PASSWD, GROUP, "1000"), Some(ann.clone()));
        assert_eq!(
            find_in(PASSWD, GROUP, "ann:root"),
            Some(User { gid: 0, ..ann })
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
