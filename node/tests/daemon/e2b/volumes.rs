//! Volumes: made, filled and read through the door, and mounted in sandboxes as these are made.
use serde_json::{Value, json};

use super::wire::{Answer, Body, Door, debian_is_missing, send, start};
use crate::sandbox::qemu_is_missing;

/// A volume, and what opens it.
struct Volume<'a> {
    door: &'a Door,
    id: String,
    token: String,
}

impl<'a> Volume<'a> {
    fn create(door: &'a Door, name: &str) -> Self {
        let made = door.ask("POST", "/volumes", Some(json!({"name": name})));
        assert_eq!(made.status, 201, "{made:?}");
        let text = |name: &str| made.body[name].as_str().unwrap().to_owned();
        Self {
            door,
            id: text("volumeID"),
            token: text("token"),
        }
    }

    fn send(&self, method: &str, what: &str, body: &[u8]) -> Answer<Body> {
        let token = format!("Bearer {}", self.token);
        let path = format!("/volumecontent/{}/{what}", self.id);
        send(
            &self.door.0,
            method,
            &path,
            &[("authorization", &token)],
            body,
        )
    }

    fn ask(&self, method: &str, what: &str, body: &[u8]) -> (u16, Value) {
        self.send(method, what, body).json()
    }

    /// Returns the names in a directory.
    fn listed(&self, what: &str) -> Vec<String> {
        let (status, listed) = self.ask("GET", what, b"");
        assert_eq!(status, 200, "{listed}");
        let paths = listed.as_array().unwrap().iter();
        paths
            .map(|entry| entry["path"].as_str().unwrap().to_owned())
            .collect()
    }
}

#[test]
fn volumes_are_filled_and_read_by_path() {
    let name = "volumes_are_filled_and_read_by_path";
    if qemu_is_missing(name) {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let daemon = start(&home.path().join("node"), &[]);
    daemon.found("findings");
    let door = Door::of(&daemon);
    let volume = Volume::create(&door, "work");
    let again = door.ask("POST", "/volumes", Some(json!({"name": "work"})));
    assert_eq!(again.status, 409, "{again:?}");

    // Its own token opens it, and nothing else: not the node's key, not another volume's.
    let other = Volume::create(&door, "other");
    for headers in [
        &[("x-api-key", "anything")][..],
        &[("authorization", &format!("Bearer {}", other.token))],
        &[],
    ] {
        let path = format!("/volumecontent/{}/dir?path=/", volume.id);
        let refused = door.ask_with("GET", &path, None, headers);
        assert_eq!(refused.status, 401, "{refused:?}");
        assert_eq!(refused.header("should-retry"), Some("false"));
    }
    assert!(volume.listed("dir?path=/").is_empty());
    let (status, root) = volume.ask("GET", "path?path=/", b"");
    assert_eq!((status, &root["type"]), (200, &json!("directory")));

    let png = b"\x89PNG\r\n\x1a\n\x00\xff";
    let (status, put) = volume.ask("PUT", "file?path=/a/b/p.png&mode=384&uid=7", png);
    assert_eq!(status, 201, "{put}");
    assert_eq!(
        (
            &put["path"],
            &put["name"],
            &put["size"],
            &put["mode"],
            &put["uid"]
        ),
        (
            &json!("/a/b/p.png"),
            &json!("p.png"),
            &json!(10),
            &json!(0o600),
            &json!(7)
        )
    );
    assert_eq!(volume.send("GET", "file?path=a/b/p.png", b"").bytes(), png);
    // Larger than what is held at once; and it keeps its owner when it is replaced.
    let big: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
    let (status, put) = volume.ask("PUT", "file?path=/a/b/p.png", &big);
    assert_eq!(
        (status, &put["uid"], &put["mode"]),
        (201, &json!(7), &json!(0o600))
    );
    assert_eq!(volume.send("GET", "file?path=/a/b/p.png", b"").bytes(), big);

    let (status, made) = volume.ask("POST", "dir?path=/c", b"");
    assert_eq!(
        (status, &made["type"]),
        (201, &json!("directory")),
        "{made}"
    );
    assert_eq!(volume.ask("POST", "dir?path=/c", b"").0, 400);
    assert_eq!(volume.ask("POST", "dir?path=/c&force=true", b"").0, 201);
    assert_eq!(volume.ask("POST", "dir?path=/x/y", b"").0, 404);
    assert_eq!(volume.ask("POST", "dir?path=/x/y&force=true", b"").0, 201);
    assert_eq!(volume.listed("dir?path=/"), ["/a", "/c", "/x"]);
    assert_eq!(
        volume.listed("dir?path=/&depth=9"),
        ["/a", "/a/b", "/a/b/p.png", "/c", "/x", "/x/y"]
    );
    let (status, owned) = volume.ask("PATCH", "path?path=/c", br#"{"mode": 448, "gid": 9}"#);
    assert_eq!(
        (status, &owned["mode"], &owned["gid"]),
        (200, &json!(0o700), &json!(9)),
        "{owned}"
    );
    assert_eq!(volume.ask("GET", "path?path=/c", b"").1["mode"], 0o700);

    for (method, what, status) in [
        ("GET", "path?path=/nothing", 404),
        ("GET", "file?path=/a", 400),
        ("GET", "file?path=/a/b/p.png/more", 404),
        ("GET", "dir?path=/a/b/p.png", 404),
        ("GET", "path?path=/a/../c", 400),
        ("PUT", "file?path=/a", 400),
        ("PUT", "file?path=/a/b/p.png/more", 404),
        ("PUT", "file?path=/", 400),
        ("PATCH", "path?path=/nothing", 404),
        ("DELETE", "path?path=/nothing", 404),
        ("GET", "nothing", 404),
    ] {
        let (found, said) = volume.ask(method, what, b"{}");
        assert_eq!(found, status, "{method} {what}: {said}");
        assert_eq!(said["code"], status, "{method} {what}");
    }
    assert_eq!(volume.ask("DELETE", "path?path=/a", b"").0, 204);
    assert_eq!(volume.listed("dir?path=/"), ["/c", "/x"]);

    // What an upload that breaks sent is nowhere.
    let path = format!("/volumecontent/{}/file?path=/cut", volume.id);
    let token = format!("Bearer {}", volume.token);
    let headers = [("authorization", &*token), ("content-encoding", "gzip")];
    let cut = send(&door.0, "PUT", &path, &headers, b"\x1f\x8b\x08").json();
    assert_eq!(cut.0, 400, "{cut:?}");
    assert_eq!(volume.listed("dir?path=/"), ["/c", "/x"]);

    // Every change is a version, so nothing that was there is lost.
    let log = daemon.get("/v1/volumes/work/log");
    let messages = log["versions"].as_array().unwrap().iter();
    let messages: Vec<_> = messages.map(|version| &version["message"]).collect();
    assert_eq!(messages[0], "removed a");
    assert!(
        messages.contains(&&json!("wrote a/b/p.png")),
        "{messages:?}"
    );

    let path = format!("/volumes/{}", volume.id);
    assert_eq!(door.ask("DELETE", &path, None).status, 204);
    assert_eq!(door.ask("DELETE", &path, None).status, 404);
    assert_eq!(volume.ask("GET", "dir?path=/", b"").0, 404);
    let listed = daemon.get("/v1/volumes");
    let names = listed["volumes"].as_array().unwrap().iter();
    assert_eq!(names.map(|one| &one["name"]).collect::<Vec<_>>(), ["other"]);
    // Its name is free again, and what comes is empty.
    assert!(
        Volume::create(&door, "work")
            .listed("dir?path=/")
            .is_empty()
    );
    daemon.stop();
}

#[test]
fn a_volume_goes_from_sandbox_to_sandbox() {
    let name = "a_volume_goes_from_sandbox_to_sandbox";
    if qemu_is_missing(name) {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let daemon = start(&home.path().join("node"), &[]);
    if debian_is_missing(name, &daemon) {
        return;
    }
    daemon.found("findings");
    let door = Door::of(&daemon);
    let volume = Volume::create(&door, "work");
    assert_eq!(
        volume.ask("PUT", "file?path=/in/put", b"from outside\n").0,
        201
    );
    let wanted = json!({
        "templateID": "base", "timeout": 600,
        "volumeMounts": [{"name": "work", "path": "/mnt/work"}],
    });
    let first = door.create(wanted.clone());
    assert_eq!(
        door.info(&first.id)["volumeMounts"],
        json!([{"name": "work", "path": "/mnt/work"}])
    );
    assert_eq!(first.run("cat /mnt/work/in/put"), "from outside\n");
    first.run("echo from a sandbox > /mnt/work/out && rm -r /mnt/work/in");
    // What it wrote is read at once, and while it may write nobody else does.
    assert_eq!(
        volume.send("GET", "file?path=/out", b"").bytes(),
        b"from a sandbox\n"
    );
    assert_eq!(volume.listed("dir?path=/"), ["/out"]);
    let (status, busy) = volume.ask("PUT", "file?path=/x", b"1");
    assert_eq!(status, 409, "{busy}");
    let second = door.ask("POST", "/v2/sandboxes", Some(wanted.clone()));
    assert_eq!(second.status, 409, "{second:?}");
    let path = format!("/volumes/{}", volume.id);
    assert_eq!(door.ask("DELETE", &path, None).status, 409);

    // It goes on over a pause.
    assert_eq!(first.control("POST", "/pause", &json!({})), 204);
    assert_eq!(
        volume.send("GET", "file?path=/out", b"").bytes(),
        b"from a sandbox\n"
    );
    let connect = json!({"timeout": 600});
    assert_eq!(first.control("POST", "/connect", &connect), 200);
    assert_eq!(first.run("cat /mnt/work/out"), "from a sandbox\n");

    // What was written last is there for the next, which has it at once.
    first.run("echo last > /mnt/work/last");
    assert_eq!(first.control("DELETE", "", &json!({})), 204);
    let second = door.create(wanted);
    assert_eq!(
        second.run("cat /mnt/work/last /mnt/work/out"),
        "last\nfrom a sandbox\n"
    );
    assert_eq!(second.control("DELETE", "", &json!({})), 204);
    assert_eq!(volume.ask("PUT", "file?path=/x", b"1").0, 201);
    assert_eq!(door.ask("DELETE", &path, None).status, 204);
    daemon.stop();
}
