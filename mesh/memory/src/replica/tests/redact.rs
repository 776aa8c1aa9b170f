//! A redaction with the process killed at every step of what the disk does for it.

use super::*;
use crate::{RedactRequest, disk::Disk};

const SECRET: &str = "sk5f1e77aa09c3live";

fn files(dir: &Path) -> Vec<u8> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all.extend(files(&path));
        } else {
            all.extend(std::fs::read(path).unwrap());
        }
    }
    all
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

#[test]
fn killed_at_any_step_it_is_whole_or_as_if_it_had_never_been_asked_for() {
    let mesh = Mesh::of(1);
    for step in 0.. {
        let (disk, dir) = (SimDisk::default(), tempfile::tempdir().unwrap());
        let replica = open_new(&mesh, 0, &disk, dir.path());
        let draft = Draft::new(Kind::Fact, "a secret", format!("it is {SECRET}"));
        let said = mesh.try_publish_draft(0, &replica, draft).unwrap();
        mesh.publish(0, &replica, "after");
        replica.flush().unwrap();
        let wire = mesh.wires(&replica, &[said]).remove(0);
        let body = crate::Fragment::decode(&wire).unwrap().body.unwrap();
        let request = RedactRequest {
            space: mesh.space,
            doc: said.doc,
            reason: String::new(),
            own_only: false,
            fingerprint: Hash::of(b"runtime"),
        };
        disk.kill_after(step);
        let asked = replica.redact(&mesh.nodes[0].agent, &request);
        drop(replica);
        disk.random_power_loss(step as u64);

        let replica = open(&mesh, 0, &disk, dir.path());
        replica.flush().unwrap();
        let is_redacted = replica.redacted(&mesh.space, &said.doc).is_some();
        assert!(
            asked.is_err() || is_redacted,
            "step {step}: what was acknowledged stands"
        );
        let segments = disk.list("segments").unwrap();
        let stored: Vec<u8> = segments
            .iter()
            .flat_map(|file| disk.read(&format!("segments/{file}")).unwrap())
            .collect();
        let shown = replica.memory(&mesh.space, &said.doc).unwrap();
        assert_eq!(shown.is_none(), is_redacted, "step {step}");
        assert_eq!(
            contains(&stored, &body),
            !is_redacted,
            "step {step}: the segments"
        );
        assert_eq!(
            mesh.wires(&replica, &[said]).len(),
            1,
            "step {step}: the header is there"
        );
        if is_redacted {
            let derived = files(dir.path());
            assert!(
                !contains(&derived, SECRET.as_bytes()),
                "step {step}: the view"
            );
        }
        assert_eq!(mesh.ids(&replica), 2 + usize::from(is_redacted));
        if asked.is_ok() && step > 10 {
            return;
        }
    }
}
