//! Files, directories, and what changes in them.
use std::io::Write;

use serde_json::{Value, json};

use crate::e2b::wire::{Sandbox, send};

const PNG: &[u8] = b"\x89PNG\r\n\x1a\n\x00\x00\x00\x0dIHDR\xff\xfe\x00";

pub(super) fn files_come_back_as_they_were_sent(sandbox: &Sandbox) {
    let octets = [("content-type", "application/octet-stream")];
    let put = sandbox
        .ask("POST", "/files?path=p.png", &octets, PNG)
        .json();
    let written = json!([{"path": "/root/p.png", "name": "p.png", "type": "file"}]);
    assert_eq!(put, (200, written));
    let got = sandbox.ask("GET", "/files?path=p.png", &[], b"").bytes();
    assert_eq!(&got[..4], b"\x89PNG");
    assert_eq!(got, PNG);
    let part = [("range", "bytes=1-3")];
    let part = sandbox.ask("GET", "/files?path=p.png", &part, b"");
    let range = format!("bytes 1-3/{}", PNG.len());
    assert_eq!(
        (part.status, part.header("content-range")),
        (206, Some(&*range))
    );
    assert_eq!(part.bytes(), b"PNG");

    let big: Vec<u8> = (0..3_000_000_u32)
        .map(|n| (n % 251).to_le_bytes()[0])
        .collect();
    let put = sandbox.ask("POST", "/files?path=deep/er/big.bin", &octets, &big);
    assert_eq!(put.status, 200);
    let got = sandbox.ask("GET", "/files?path=deep/er/big.bin", &[], b"");
    assert!(got.bytes() == big, "3 MB come back");
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packer.write_all(&big).unwrap();
    let packed = packer.finish().unwrap();
    let mut gzip = vec![("content-encoding", "gzip"), ("x-metadata-purpose", "test")];
    gzip.extend(octets);
    let put = sandbox.ask("POST", "/files?path=unpacked", &gzip, &packed);
    assert_eq!(put.json().1[0]["metadata"], json!({"purpose": "test"}));
    assert!(sandbox.ask("GET", "/files?path=unpacked", &[], b"").bytes() == big);
    let (_, said) = sandbox.filesystem("Stat", &json!({"path": "unpacked"}));
    assert_eq!(said["entry"]["metadata"], json!({"purpose": "test"}));
    // Whole or not at all: what was there before stays.
    let cut = sandbox.ask(
        "POST",
        "/files?path=unpacked",
        &gzip,
        &packed[..packed.len() / 2],
    );
    assert_eq!(cut.status, 400);
    assert!(sandbox.ask("GET", "/files?path=unpacked", &[], b"").bytes() == big);

    let form = "--x\r\ncontent-disposition: form-data; name=\"file\"; filename=\"d/记忆\"\r\n\r\none\r\n\
                --x\r\ncontent-disposition: form-data; name=\"file\"; filename=\"/tmp/two\"\r\n\r\n2\r\n--x--\r\n";
    let kind = [("content-type", "multipart/form-data; boundary=x")];
    let head = b"--x\r\ncontent-disposition: form-data; name=\"file\"; filename=\"f\"\r\n\r\n";
    let large = [&head[..], &big, b"\r\n--x--\r\n"].concat();
    let put = sandbox.ask("POST", "/files?path=form", &kind, &large);
    assert_eq!(put.status, 200);
    assert!(sandbox.ask("GET", "/files?path=form", &[], b"").bytes() == big);
    let (status, put) = sandbox.ask("POST", "/files", &kind, form.as_bytes()).json();
    assert_eq!((status, put.as_array().unwrap().len()), (200, 2), "{put}");
    let got = sandbox.ask("GET", "/files?path=d/%E8%AE%B0%E5%BF%86", &[], b"");
    assert_eq!(got.bytes(), b"one");
    assert_eq!(sandbox.run("cat /tmp/two"), "2");
    let both = sandbox.ask("POST", "/files?path=one", &kind, form.as_bytes());
    assert_eq!(both.status, 400);
    for (path, status) in [
        ("none", 404),
        ("d", 400),
        ("/", 400),
        ("a&username=nobody-at-all", 401),
    ] {
        let refused = sandbox
            .ask("GET", &format!("/files?path={path}"), &[], b"")
            .json();
        assert_eq!(refused.0, status, "{path}: {}", refused.1);
        assert_eq!(refused.1["code"], status);
    }

    // sha256("p.png:read::<token>"), by a program of the sandbox that knows nothing of ours.
    let script = format!(
        "printf 'p.png:read::{}' | sha256sum | cut -c1-64",
        sandbox.token
    );
    let digest = sandbox.run(&script);
    let digest = data_encoding::HEXLOWER
        .decode(digest.trim().as_bytes())
        .unwrap();
    let signature = data_encoding::BASE64_NOPAD.encode(&digest);
    let signature = signature.replace('+', "%2B").replace('/', "%2F");
    let url = format!("/files?path=p.png&signature=v1_{signature}");
    assert_eq!(send(&sandbox.addr, "GET", &url, &[], b"").bytes(), PNG);
    let other = url.replace("p.png", "unpacked");
    assert_eq!(send(&sandbox.addr, "GET", &other, &[], b"").status, 401);
    assert_eq!(send(&sandbox.addr, "POST", &url, &[], b"x").status, 401);
    let full = sandbox.run("mkdir /small && mount -t tmpfs -o size=64k none /small && echo made");
    assert_eq!(full, "made\n");
    let put = sandbox.ask("POST", "/files?path=/small/big", &octets, &big);
    assert_eq!(put.status, 507);
    assert_eq!(sandbox.run("ls -A /small"), "");
}

pub(super) fn paths_are_made_moved_listed_and_removed(sandbox: &Sandbox) {
    let at = |path: &str| json!({ "path": path });
    let (status, made) = sandbox.filesystem("MakeDir", &at("n/m"));
    assert_eq!(
        (status, &made["entry"]["type"]),
        (200, &json!("FILE_TYPE_DIRECTORY"))
    );
    let (status, again) = sandbox.filesystem("MakeDir", &at("n/m"));
    assert_eq!((status, &again["code"]), (409, &json!("already_exists")));
    sandbox.run("cd n; echo hi > f; chmod 640 f; ln -s f link; mkdir m/deep");
    let (_, stat) = sandbox.filesystem("Stat", &at("n/f"));
    let entry = &stat["entry"];
    assert_eq!(entry["permissions"], "-rw-r-----");
    assert_eq!(
        (&entry["owner"], &entry["group"]),
        (&json!("root"), &json!("root"))
    );
    assert_eq!(
        (&entry["size"], &entry["mode"]),
        (&json!("3"), &json!(0o640))
    );
    assert!(entry["modifiedTime"].as_str().unwrap().ends_with('Z'));
    let names = |depth: u32| {
        let (_, listed) = sandbox.filesystem("ListDir", &json!({"path": "n", "depth": depth}));
        let entries = listed["entries"].as_array().unwrap().clone();
        entries
            .iter()
            .map(|entry| entry["name"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(names(1), ["f", "link", "m"]);
    assert_eq!(names(2), ["f", "link", "m", "deep"]);
    let (_, link) = sandbox.filesystem("Stat", &at("n/link"));
    assert_eq!(link["entry"]["isSymlink"], true);
    assert_eq!(link["entry"]["symlinkTarget"], "/root/n/f");
    let moved = json!({"source": "n/f", "destination": "o/g"});
    let (status, moved) = sandbox.filesystem("Move", &moved);
    assert_eq!(
        (status, &moved["entry"]["path"]),
        (200, &json!("/root/o/g"))
    );
    assert_eq!(sandbox.filesystem("Remove", &at("n")).0, 200);
    assert_eq!(sandbox.filesystem("Remove", &at("n")).0, 200);
    let (status, gone) = sandbox.filesystem("Stat", &at("n"));
    assert_eq!((status, &gone["code"]), (404, &json!("not_found")));
    // What an image holds is on another file system than what is written.
    let image = json!({"source": "/usr/share/zoneinfo", "destination": "zones"});
    let (_, there) = sandbox.filesystem("Stat", &at("/usr/share/zoneinfo"));
    if !there["entry"].is_null() {
        assert_eq!(sandbox.filesystem("Move", &image).0, 200);
    }
}

pub(super) fn parts_become_one_file(sandbox: &Sandbox) {
    let octets = [("content-type", "application/octet-stream")];
    for (path, bytes) in [("part1", &b"one "[..]), ("part2", b"two "), ("part3", PNG)] {
        let path = format!("/files?path={path}");
        assert_eq!(sandbox.ask("POST", &path, &octets, bytes).status, 200);
    }
    let kind = [("content-type", "application/json")];
    let compose = |body: &Value| {
        let body = body.to_string();
        sandbox
            .ask("POST", "/files/compose", &kind, body.as_bytes())
            .json()
    };
    // What lacks a part is not begun.
    let lacks = json!({"destination": "whole", "source_paths": ["part1", "nothing"]});
    assert_eq!(compose(&lacks).0, 404);
    assert_eq!(
        sandbox.ask("GET", "/files?path=whole", &[], b"").status,
        404
    );
    assert_eq!(compose(&json!({"destination": "whole"})).0, 400);
    let directory = json!({"destination": "whole", "source_paths": ["/tmp"]});
    assert_eq!(compose(&directory).0, 400);

    // In the order in which they are named, one of them twice, and into one of them.
    let parts = json!({
        "destination": "part1", "source_paths": ["part2", "part1", "part2", "part3"],
    });
    let (status, composed) = compose(&parts);
    assert_eq!((status, &composed["path"]), (200, &json!("/root/part1")));
    let whole = sandbox.ask("GET", "/files?path=part1", &[], b"").bytes();
    assert_eq!(whole, [b"two one two ", PNG].concat());
    for gone in ["part2", "part3"] {
        let path = format!("/files?path={gone}");
        assert_eq!(sandbox.ask("GET", &path, &[], b"").status, 404, "{gone}");
    }
}

pub(super) fn changes_are_kept_and_streamed(sandbox: &Sandbox) {
    sandbox.run("mkdir -p w/sub");
    let watch = json!({"path": "w", "recursive": true, "includeEntry": true});
    let (status, made) = sandbox.filesystem("CreateWatcher", &watch);
    assert_eq!(status, 200, "{made}");
    let mut stream = sandbox.stream("/filesystem.Filesystem/WatchDir", &watch, &[]);
    assert!(stream.next().1["start"].is_object());
    let octets = [("content-type", "application/octet-stream")];
    sandbox.ask("POST", "/files?path=w/sub/z", &octets, b"2");
    let is = |kind: &'static str| {
        move |said: &Value| {
            said["filesystem"]["name"] == "sub/z" && said["filesystem"]["type"] == kind
        }
    };
    let told = stream.until(is("EVENT_TYPE_WRITE"));
    assert_eq!(told["filesystem"]["entry"]["size"], "1");
    sandbox.run("mv w/sub/z w/sub/y");
    stream.until(is("EVENT_TYPE_RENAME"));
    let (_, kept) = sandbox.filesystem("GetWatcherEvents", &made);
    let kept = kept["events"].as_array().unwrap();
    assert!(
        kept.iter().any(|event| event["name"] == "sub/z"),
        "{kept:?}"
    );
    assert!(
        !kept
            .iter()
            .any(|event| event["name"].as_str().unwrap().contains(".rhizome-"))
    );
    let (_, drained) = sandbox.filesystem("GetWatcherEvents", &made);
    assert!(drained["events"].as_array().unwrap().len() < kept.len());
    assert_eq!(sandbox.filesystem("RemoveWatcher", &made).0, 200);
    assert_eq!(sandbox.filesystem("GetWatcherEvents", &made).0, 404);
    assert_eq!(
        sandbox
            .filesystem("CreateWatcher", &json!({"path": "p.png"}))
            .0,
        400
    );
}
