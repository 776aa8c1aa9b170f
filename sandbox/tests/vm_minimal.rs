//! Real microVMs of the minimal image.
//!
//! One sandbox serves every case that leaves it alive: a boot under emulation takes seconds. On a
//! host without QEMU each test says so by name and passes.
#![allow(clippy::unwrap_used, reason = "what a test prepares has to work")]

#[path = "vm_minimal/support.rs"]
mod support;

use std::{collections::BTreeMap, path::Path, sync::Arc, time::Duration};

use rhizome_sandbox::{
    OnShutdown, SandboxError, SandboxInfo, SandboxSpec, SandboxState, Sandboxes,
    channel::{ExecError, ExecEvent, ExecOutput, ExecRequest, ExitStatus},
    silent,
};
use support::{collect, open, sh, skipped};
use tokio::io::AsyncReadExt;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_minimal_sandbox_does_what_a_sandbox_does() {
    if skipped("a_minimal_sandbox_does_what_a_sandbox_does") {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let (sandboxes, mut doors) = open(home.path()).await;
    let spec = SandboxSpec {
        name: Some("case".into()),
        env: BTreeMap::from([("COLOUR".into(), "green".into())]),
        ..SandboxSpec::default()
    };
    let info = sandboxes
        .create(spec.clone(), support::progress())
        .await
        .unwrap();
    eprintln!("ready after {:?} ms, {}", info.boot_ms, info.accel);

    it_describes_itself(&sandboxes, &info).await;
    it_passes_on_output_and_codes(&sandboxes, &info).await;
    it_takes_input(&sandboxes, &info).await;
    it_keeps_files(&sandboxes, &info).await;
    it_streams_much(&sandboxes, &info).await;
    a_client_that_never_reads_holds_up_nobody_else(&sandboxes, &info).await;
    it_has_no_network_but_its_door(&sandboxes, &info, &mut doors).await;

    let taken = sandboxes.create(spec, silent()).await.unwrap_err();
    assert!(matches!(taken, SandboxError::NameTaken { .. }), "{taken}");
    a_killed_monitor_ends_its_execs_within_five_seconds(&sandboxes, &info, home.path()).await;
    sandboxes.shutdown(OnShutdown::Kill).await;
}

async fn run(sandboxes: &Sandboxes, info: &SandboxInfo, script: &str) -> ExecOutput {
    let handle = sandboxes.exec(&info.id, sh(script)).await.unwrap();
    handle.output(1024 * 1024).await.unwrap()
}

async fn it_describes_itself(sandboxes: &Sandboxes, info: &SandboxInfo) {
    assert_eq!(info.state, SandboxState::Ready);
    assert!(info.boot_ms.is_some());
    let print = &info.fingerprint;
    assert_eq!(print.image_id, info.image_id);
    assert_eq!(print.network, "none");
    assert!(print.vmm.starts_with("qemu "), "{}", print.vmm);
    assert!(print.tools.contains_key("busybox"), "{:?}", print.tools);
    assert!(print.cpu_features.contains("sse2"), "{print:?}");
    assert!(print.env.contains("PATH"), "{:?}", print.env);
    assert!(print.mounts["/"].writable, "{:?}", print.mounts);
    assert!(!print.clock_source.is_empty() && !print.locale.is_empty());
    let said = run(sandboxes, info, "uname -r; uname -m; hostname").await;
    let said = String::from_utf8(said.stdout).unwrap();
    assert_eq!(said, format!("{}\n{}\ncase\n", print.kernel, print.arch));
    assert_eq!(
        sandboxes.get(&info.id.to_string()[..10]).unwrap().id,
        info.id
    );
}

async fn it_passes_on_output_and_codes(sandboxes: &Sandboxes, info: &SandboxInfo) {
    let output = run(
        sandboxes,
        info,
        "echo out; echo err >&2; echo $COLOUR; exit 7",
    )
    .await;
    assert_eq!(output.status, ExitStatus::Code(7));
    assert_eq!(output.stdout, b"out\ngreen\n");
    assert_eq!(output.stderr, b"err\n");

    let output = run(sandboxes, info, "kill -SEGV $$").await;
    assert_eq!(output.status, ExitStatus::Signal(11));

    let request = ExecRequest {
        timeout: Some(Duration::from_millis(300)),
        ..sh("sleep 100")
    };
    let handle = sandboxes.exec(&info.id, request).await.unwrap();
    assert_eq!(
        handle.output(1024).await.unwrap().status,
        ExitStatus::TimedOut
    );

    let request = ExecRequest {
        argv: vec!["no-such-program".into()],
        ..ExecRequest::default()
    };
    let error = sandboxes.exec(&info.id, request).await.unwrap_err();
    let missing = matches!(
        &error,
        SandboxError::Exec {
            source: ExecError::NoSuchProgram { .. },
            ..
        }
    );
    assert!(missing, "{error:?}");

    let handle = sandboxes
        .exec(&info.id, sh("exec sleep 100"))
        .await
        .unwrap();
    handle.signal(15).await.unwrap();
    assert_eq!(
        handle.output(1024).await.unwrap().status,
        ExitStatus::Signal(15)
    );
}

async fn it_takes_input(sandboxes: &Sandboxes, info: &SandboxInfo) {
    let request = ExecRequest {
        stdin: true,
        ..sh("cat; echo over")
    };
    let handle = sandboxes.exec(&info.id, request).await.unwrap();
    handle.write_stdin("one\n").await.unwrap();
    handle.write_stdin("two\n").await.unwrap();
    handle.close_stdin().await.unwrap();
    let output = handle.output(1024).await.unwrap();
    assert_eq!(output.stdout, b"one\ntwo\nover\n");
}

async fn it_keeps_files(sandboxes: &Sandboxes, info: &SandboxInfo) {
    let content: Vec<u8> = (0..1_500_000_u32)
        .flat_map(|n| n.to_le_bytes())
        .take(3_000_001)
        .collect();
    let path = "/root/deep/er/data.bin";
    let written = sandboxes
        .write_file(&info.id, path, 0o640, &content[..])
        .await
        .unwrap();
    assert_eq!(written, content.len() as u64);
    let stat = sandboxes.stat(&info.id, path).await.unwrap();
    assert_eq!((stat.size, stat.mode & 0o7777), (written, 0o640));
    let mut file = sandboxes.read_file(&info.id, path).await.unwrap();
    let mut back = Vec::new();
    file.reader.read_to_end(&mut back).await.unwrap();
    assert!(back == content, "{} bytes came back", back.len());
    let sum = run(sandboxes, info, &format!("wc -c < {path}")).await;
    assert_eq!(sum.stdout, b"3000001\n");

    sandboxes
        .make_dir(&info.id, "/root/tree/leaf", 0o755)
        .await
        .unwrap();
    let names = sandboxes.list_dir(&info.id, "/root").await.unwrap();
    let names: Vec<_> = names.iter().map(|entry| entry.name.as_str()).collect();
    assert!(
        names.contains(&"deep") && names.contains(&"tree"),
        "{names:?}"
    );
    let error = sandboxes
        .read_file(&info.id, "/no/such/file")
        .await
        .unwrap_err();
    assert!(matches!(error, SandboxError::File { .. }), "{error:?}");
}

async fn it_streams_much(sandboxes: &Sandboxes, info: &SandboxInfo) {
    const SIZE: usize = 8 * 1024 * 1024;
    let script = "dd if=/dev/zero bs=65536 count=128 2>/dev/null";
    let handle = sandboxes.exec(&info.id, sh(script)).await.unwrap();
    let (bytes, status) = collect(handle).await.unwrap();
    assert_eq!((bytes, status), (SIZE, ExitStatus::Code(0)));
}

async fn a_client_that_never_reads_holds_up_nobody_else(sandboxes: &Sandboxes, info: &SandboxInfo) {
    let deaf = sandboxes.exec(&info.id, sh("yes")).await.unwrap();
    let mut other = run(sandboxes, info, "echo first").await;
    assert_eq!(other.stdout, b"first\n");
    other = run(
        sandboxes,
        info,
        "dd if=/dev/zero bs=65536 count=16 2>/dev/null | wc -c",
    )
    .await;
    assert_eq!(other.stdout, b"1048576\n");
    deaf.kill().await.unwrap();
    let (_, status) = collect(deaf).await.unwrap();
    assert_eq!(status, ExitStatus::Signal(9));
}

async fn it_has_no_network_but_its_door(
    sandboxes: &Sandboxes,
    info: &SandboxInfo,
    doors: &mut tokio::sync::mpsc::Receiver<rhizome_sandbox::DoorConnection>,
) {
    let links = run(sandboxes, info, "ls /sys/class/net").await;
    assert_eq!(links.stdout, b"lo\nrz0\n");
    // Nothing is allowed: what is tried fails at once, and is told.
    let mut events = sandboxes.egress_events().unwrap();
    let tried = run(
        sandboxes,
        info,
        "nslookup example.org; nc -w 20 192.0.2.1 80",
    )
    .await;
    let said = String::from_utf8_lossy(&tried.stderr).into_owned();
    assert!(said.contains("refused"), "{said} {tried:?}");
    let event = events.recv().await.unwrap();
    assert_eq!(event.sandbox, info.id);
    assert_eq!(event.denial.denied.destination, "example.org");
    assert_eq!(
        events.recv().await.unwrap().denial.denied.destination,
        "192.0.2.1:80"
    );
    assert_eq!(sandboxes.egress().denials(&info.id).len(), 2);
    it_reaches_what_its_policy_comes_to_allow(sandboxes, info).await;
    let request = sh("printf 'GET /v1/self HTTP/1.0\\r\\n\\r\\n' | nc 127.0.0.1 4580");
    let handle = sandboxes.exec(&info.id, request).await.unwrap();
    let mut door = doors.recv().await.unwrap();
    assert_eq!(door.sandbox, info.id);
    let mut asked = [0; 12];
    door.stream.read_exact(&mut asked).await.unwrap();
    assert_eq!(&asked, b"GET /v1/self");
    tokio::io::AsyncWriteExt::write_all(&mut door.stream, b"hello from the node\n")
        .await
        .unwrap();
    drop(door);
    let output = handle.output(1024).await.unwrap();
    assert_eq!(output.stdout, b"hello from the node\n");
}

async fn it_reaches_what_its_policy_comes_to_allow(sandboxes: &Sandboxes, info: &SandboxInfo) {
    let policy = "allow 192.0.2.0/24".parse().unwrap();
    let changed = sandboxes
        .set_network(&info.id, policy, Vec::new())
        .await
        .unwrap();
    assert_eq!(changed.fingerprint.network, "allow 192.0.2.0/24");
    // Nobody is at that address; that it is tried is no denial any more.
    run(sandboxes, info, "nc -w 1 192.0.2.1 80").await;
    assert_eq!(sandboxes.egress().denials(&info.id).len(), 2);
    let none = rhizome_sandbox::egress::Policy::none();
    let closed = sandboxes.set_network(&info.id, none, Vec::new()).await;
    assert_eq!(closed.unwrap().fingerprint.network, "none");
}

async fn a_killed_monitor_ends_its_execs_within_five_seconds(
    sandboxes: &Sandboxes,
    info: &SandboxInfo,
    home: &Path,
) {
    let request = sh("echo begun; sleep 1000");
    let mut handle = sandboxes.exec(&info.id, request).await.unwrap();
    let begun = handle.events.recv().await.unwrap().unwrap();
    assert_eq!(begun, ExecEvent::Stdout("begun\n".into()));

    support::kill(support::monitor_pid(home, info));
    let lost = tokio::time::timeout(Duration::from_secs(5), handle.events.recv());
    let lost = lost
        .await
        .expect("the exec ends within five seconds")
        .unwrap();
    assert!(
        matches!(lost, Err(ExecError::SandboxGone { .. })),
        "{lost:?}"
    );

    // The state follows once the monitor is reaped; a request waits for just that, and never
    // meets a fresh guest.
    let error = sandboxes.exec(&info.id, sh("true")).await.unwrap_err();
    assert!(matches!(error, SandboxError::StateLost { .. }), "{error:?}");
    let state = sandboxes.get("case").unwrap().state;
    let by_signal = matches!(&state, SandboxState::Lost { what } if what.contains("signal: 9"));
    assert!(by_signal, "{state}");
    // What is left of it goes with the same turn; ending it waits for that.
    sandboxes.kill(&info.id).await.unwrap();
    assert!(!support::vm_dir(home, info).exists());
    assert!(sandboxes.stat(&info.id, "/").await.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandbox_can_be_killed_while_it_boots() {
    if skipped("a_sandbox_can_be_killed_while_it_boots") {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let (sandboxes, _doors) = open(home.path()).await;
    let booting = Arc::new(tokio::sync::Notify::new());
    let seen = Arc::clone(&booting);
    let progress: rhizome_sandbox::Progress = Arc::new(move |event| {
        if event.step == "boot" {
            seen.notify_one();
        }
    });
    let maker = sandboxes.clone();
    let made = tokio::spawn(async move { maker.create(SandboxSpec::default(), progress).await });
    booting.notified().await;
    let info = sandboxes.list().remove(0);
    sandboxes.kill(&info.id).await.unwrap();
    let error = made.await.unwrap().unwrap_err();
    assert!(matches!(error, SandboxError::Cancelled { .. }), "{error:?}");
    let state = sandboxes.get(&info.id.to_string()).unwrap().state;
    assert_eq!(state, SandboxState::Killed);
    assert!(!support::vm_dir(home.path(), &info).exists());
    sandboxes.shutdown(OnShutdown::Kill).await;
}
