//! Images of every origin, each booted: from a sandbox, from somebody else, by a recipe.
#![allow(clippy::unwrap_used, reason = "what a test prepares has to work")]

#[path = "vm_minimal/support.rs"]
mod support;

use std::{
    path::Path,
    sync::{Arc, Mutex},
};

use rhizome_sandbox::{
    OnShutdown, Progress, SandboxInfo, SandboxSpec, Sandboxes,
    egress::Policy,
    image::{ImageError, ImportRequest, Recipe},
};
use support::{open, sh, skipped};
use tokio::io::AsyncReadExt;

async fn run(sandboxes: &Sandboxes, info: &SandboxInfo, script: &str) -> String {
    let handle = sandboxes.exec(&info.id, sh(script)).await.unwrap();
    let output = handle.output(1024 * 1024).await.unwrap();
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

async fn create(sandboxes: &Sandboxes, image: &str) -> SandboxInfo {
    let spec = SandboxSpec {
        image: image.to_owned(),
        ..SandboxSpec::default()
    };
    sandboxes.create(spec, support::progress()).await.unwrap()
}

/// What `docker save` writes for an image of one layer with a shell in it.
fn docker_save(busybox: &[u8], to: &Path) {
    let mut layer = tar::Builder::new(Vec::new());
    let header = |kind, size: usize| {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(0o755);
        header.set_uid(0);
        header.set_gid(0);
        header.set_size(size as u64);
        header
    };
    let file = |bytes: &[u8]| header(tar::EntryType::Regular, bytes.len());
    layer
        .append_data(&mut file(busybox), "bin/busybox", busybox)
        .unwrap();
    for name in ["sh", "tar", "cat", "ls", "sleep"] {
        let mut link = header(tar::EntryType::Symlink, 0);
        layer
            .append_link(&mut link, format!("bin/{name}"), "busybox")
            .unwrap();
    }
    let said = b"imported\n";
    layer
        .append_data(&mut file(said), "etc/origin", &said[..])
        .unwrap();
    let layer = layer.into_inner().unwrap();
    let digest = sha2::Digest::finalize(<sha2::Sha256 as sha2::Digest>::new_with_prefix(&layer));
    let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    let config = serde_json::json!({
        "architecture": "amd64", "os": "linux", "config": {"Env": ["GREETING=hello"]},
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{digest}")]},
    });
    let saved = serde_json::json!([
        {"Config": "config.json", "RepoTags": ["vm-images-imported:1"], "Layers": ["layer.tar"]}
    ]);
    let mut archive = tar::Builder::new(std::fs::File::create(to).unwrap());
    for (name, bytes) in [
        ("layer.tar", layer),
        ("config.json", config.to_string().into_bytes()),
        ("manifest.json", saved.to_string().into_bytes()),
    ] {
        archive
            .append_data(&mut file(&bytes), name, &bytes[..])
            .unwrap();
    }
    archive.finish().unwrap();
}

/// Remembers which steps were told.
fn listening() -> (Progress, Arc<Mutex<Vec<String>>>) {
    let told = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&told);
    let progress: Progress = Arc::new(move |event| {
        eprintln!("{}: {}", event.step, event.detail);
        heard.lock().unwrap().push(event.step.to_owned());
    });
    (progress, told)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn images_are_committed_imported_and_built() {
    if skipped("images_are_committed_imported_and_built") {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let (sandboxes, _doors) = open(home.path()).await;
    let progress = support::progress();

    // From a sandbox.
    let first = create(&sandboxes, "minimal").await;
    run(
        &sandboxes,
        &first,
        "echo kept > /etc/marker; mkdir /opt; ln -s /etc/marker /opt/link",
    )
    .await;
    let committed = sandboxes
        .commit_image(&first.id, "vm-images-committed", progress.clone())
        .await
        .unwrap();
    let mut busybox = Vec::new();
    let mut download = sandboxes
        .read_file(&first.id, "/bin/busybox")
        .await
        .unwrap();
    download.reader.read_to_end(&mut busybox).await.unwrap();
    sandboxes.kill(&first.id).await.unwrap();
    let again = create(&sandboxes, "vm-images-committed").await;
    assert_eq!(again.image_id, committed.id);
    assert_eq!(run(&sandboxes, &again, "cat /opt/link").await, "kept");
    let mounted = run(
        &sandboxes,
        &again,
        "ls /proc/1/status /tmp /run >/dev/null && echo yes",
    )
    .await;
    assert_eq!(mounted, "yes");
    sandboxes.kill(&again.id).await.unwrap();

    // From somebody else, and a recipe on top of that.
    let archive = home.path().join("saved.tar");
    docker_save(&busybox, &archive);
    let request = ImportRequest {
        path: archive,
        ..ImportRequest::default()
    };
    let imported = sandboxes
        .images()
        .import(request, progress.clone())
        .await
        .unwrap();
    assert_eq!(imported.name, "vm-images-imported:1");
    let context = home.path().join("context");
    std::fs::create_dir_all(context.join("tree")).unwrap();
    std::fs::write(context.join("tree/file"), "copied\n").unwrap();
    // Images outlive a run of this test: what is copied differs, so that something has to be built.
    std::fs::write(context.join("tree/run"), home.path().to_str().unwrap()).unwrap();
    sandboxes.images().prune(progress.clone()).await.unwrap();
    let recipe = "FROM vm-images-imported:1\nENV WHO=recipe\nCOPY tree /srv/tree\nRUN echo $WHO $GREETING > /made\nSTART sleep 1; echo up > /run/service; sleep 1000\nREADY cat /run/service\n";
    let parsed = Recipe::parse(recipe).unwrap();
    let (heard, told) = listening();
    let built = sandboxes
        .build_image(
            &parsed,
            &context,
            "vm-images-built",
            Policy::default(),
            heard,
        )
        .await
        .unwrap();
    assert!(told.lock().unwrap().iter().any(|step| step == "boot"));
    let (heard, told) = listening();
    let same = sandboxes
        .build_image(
            &parsed,
            &context,
            "vm-images-built",
            Policy::default(),
            heard,
        )
        .await
        .unwrap();
    assert_eq!(same.id, built.id);
    assert!(
        !told.lock().unwrap().iter().any(|step| step == "boot"),
        "nothing is run again"
    );

    let failing = Recipe::parse(&format!("{recipe}RUN echo out of luck; exit 3\n")).unwrap();
    let error = sandboxes
        .build_image(
            &failing,
            &context,
            "vm-images-failed",
            Policy::default(),
            progress.clone(),
        )
        .await
        .unwrap_err();
    assert!(
        matches!(&error, ImageError::Step { line: 7, tail, .. } if tail.contains("out of luck")),
        "{error:?}"
    );
    let last = create(&sandboxes, "vm-images-built").await;
    sandboxes.start_image(&last.id, &progress).await.unwrap();
    assert_eq!(run(&sandboxes, &last, "cat /run/service").await, "up");
    let seen = run(&sandboxes, &last, "cat /made /srv/tree/file /etc/origin").await;
    assert_eq!(seen, "recipe hello\ncopied\nimported");
    let details = sandboxes.images().show("vm-images-built").unwrap();
    assert!(details.ancestors.len() >= 3, "{:?}", details.ancestors);
    assert_eq!(details.info.config.env["WHO"], "recipe");
    let used = sandboxes
        .images()
        .remove("vm-images-built", progress.clone())
        .await;
    assert!(matches!(used, Err(ImageError::InUse { .. })), "{used:?}");
    sandboxes.kill(&last.id).await.unwrap();
    sandboxes.shutdown(OnShutdown::Kill).await;
}
