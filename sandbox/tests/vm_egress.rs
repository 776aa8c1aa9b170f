//! The boundary around a real guest: what its own tools see, and what leaves.
#![allow(clippy::unwrap_used, reason = "what a test prepares has to work")]

#[path = "egress_support/client.rs"]
#[allow(dead_code, reason = "each test file uses a part of it")]
mod client;
#[path = "egress_support/world.rs"]
#[allow(dead_code, reason = "each test file uses a part of it")]
mod world;

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use rhizome_sandbox::{
    Accel, SandboxConfig,
    channel::{ChannelLimits, ExecOutput, ExecRequest, ExitStatus, GuestChannel},
    driver::{Disk, Vm, VmRequest, VmmDriver, qemu::Qemu},
    egress::{Secret, SecretParts},
    image::ImageStore,
    silent,
};
use world::{Guarded, listen, mirror};

const SITE: &str = "93.184.216.34";
const OTHER: &str = "151.101.1.69";
const VALUE: &str = "sk-live-0123456789abcdef";

async fn sh(channel: &GuestChannel, script: &str) -> (Duration, ExecOutput) {
    let request = ExecRequest {
        argv: ["sh", "-c", script].map(str::to_owned).to_vec(),
        ..ExecRequest::default()
    };
    let begun = Instant::now();
    let output = channel
        .exec(request)
        .await
        .unwrap()
        .output(1 << 20)
        .await
        .unwrap();
    (begun.elapsed(), output)
}

async fn said(channel: &GuestChannel, script: &str) -> String {
    let (took, output) = sh(channel, script).await;
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    eprintln!("$ {script}\n{text}({took:?}, {:?})", output.status);
    text
}

/// Speaks TLS with busybox, which believes any certificate.
fn https(address: &str, name: &str, request: &str) -> String {
    format!(
        "printf '{request}' >/tmp/request; rm -f /tmp/answer; \
         nc {address} 443 -e sh -c 'exec 3<&0 </tmp/request >/tmp/answer 2>/tmp/errors; ssl_client -n {name} -s 3'; \
         cat /tmp/answer /tmp/errors"
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guest_reaches_what_is_allowed_and_is_told_of_the_rest() {
    let qemu = Qemu::new(None);
    if let Err(error) = qemu.program() {
        eprintln!("skipped: a_guest_reaches_what_is_allowed_and_is_told_of_the_rest: {error}");
        return;
    }
    let seen = Arc::new(Mutex::new(Vec::new()));
    let policy = "allow site.example, api.example";
    let mut guarded = Guarded::new(policy);
    guarded.world.name("site.example", &[SITE]);
    guarded.world.name("api.example", &[SITE]);
    let plain = Arc::clone(&seen);
    let port = listen(move |stream| mirror(stream, Arc::clone(&plain))).await;
    guarded.world.server(&format!("{SITE}:80"), port);
    let port = guarded
        .authority
        .serve("api.example", Arc::clone(&seen))
        .await;
    guarded.world.server(&format!("{SITE}:443"), port);

    let machine = Machine::start(&guarded, None).await;
    let channel = machine.session(&guarded).await;

    // Names, and what is asked of the world for them.
    let text = said(
        &channel,
        "nslookup site.example; cat /etc/resolv.conf; ip addr show dev rz0; ip route",
    )
    .await;
    assert!(text.contains(&format!("Address: {SITE}")), "{text}");
    assert!(text.contains("nameserver 10.107.0.1"), "{text}");
    let text = said(&channel, "nslookup evil.example").await;
    assert!(text.contains("can't find evil.example"), "{text}");
    assert_eq!(
        guarded.event().await,
        "dns evil.example: no rule that allows it"
    );
    assert_eq!(
        guarded
            .world
            .looked_up
            .lock()
            .unwrap()
            .iter()
            .filter(|name| *name != "site.example")
            .count(),
        0
    );

    // HTTP by its Host. (The `wget` of this busybox dies of a pointer of its own.)
    let get = |host: &str, address: &str| {
        format!("printf 'GET / HTTP/1.1\\r\\nHost: {host}\\r\\n\\r\\n' | nc -w 20 {address} 80")
    };
    assert!(
        said(&channel, &get("site.example", SITE))
            .await
            .contains("hello")
    );
    assert!(
        said(&channel, &get("site.example", "site.example"))
            .await
            .contains("hello")
    );
    let text = said(&channel, &get("evil.example", SITE)).await;
    assert!(
        text.contains("HTTP/1.1 403 ") && text.contains("policy allow <sandbox> evil.example"),
        "{text}"
    );
    assert_eq!(
        guarded.event().await,
        "http evil.example:80: no rule that allows it"
    );
    let (took, output) = sh(&channel, &get("site.example", OTHER)).await;
    assert!(took < Duration::from_secs(15), "{took:?}");
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("refused"),
        "{output:?}"
    );
    assert!(
        guarded
            .event()
            .await
            .starts_with(&format!("tcp {OTHER}:80: "))
    );
    let (took, output) = sh(
        &channel,
        "ping -c 1 -W 5 10.107.0.1 && ! ping -c 1 -W 5 8.8.8.8",
    )
    .await;
    assert!(
        output.status == ExitStatus::Code(0) && took < Duration::from_secs(15),
        "{took:?} {output:?}"
    );
    assert!(guarded.event().await.starts_with("other ping 8.8.8.8"));

    // TLS by its greeting.
    said(&channel, "nslookup api.example").await;
    let dialled = guarded.world.dialled().len();
    said(
        &channel,
        &https(
            SITE,
            "evil.example",
            "GET / HTTP/1.1\\r\\nHost: evil.example\\r\\n\\r\\n",
        ),
    )
    .await;
    assert_eq!(
        guarded.event().await,
        "tls evil.example:443: no rule that allows it"
    );
    assert_eq!(guarded.world.dialled().len(), dialled);

    // A session that breaks, and another one: the device goes on.
    channel.close();
    let channel = machine.session(&guarded).await;
    assert!(
        said(&channel, &get("site.example", SITE))
            .await
            .contains("hello")
    );
    machine.vm.kill().await;
}

/// A guest, of the minimal image or with a root of its own.
struct Machine {
    vm: Vm,
    _home: tempfile::TempDir,
}

impl Machine {
    async fn start(guarded: &Guarded, root: Option<(PathBuf, String)>) -> Self {
        let home = tempfile::tempdir().unwrap();
        let mut config = SandboxConfig::new(home.path());
        config.images_dir = images();
        let image = ImageStore::open(&config)
            .unwrap()
            .build_minimal(silent())
            .await
            .unwrap();
        let parts = config.images_dir.join("images").join(&image.id[..16]);
        let dir = home.path().join("vm");
        fs::create_dir(&dir).unwrap();
        let mut kernel_args = vec!["rhizome.hostname=case".to_owned()];
        if let Some((_, format)) = &root {
            kernel_args.push("rhizome.root=disk0".to_owned());
            kernel_args.push(format!("rhizome.rootfstype={format}"));
            kernel_args.push("rhizome.upper=tmpfs".to_owned());
        }
        let request = VmRequest {
            id: guarded.id,
            console: home.path().join("console.log"),
            kernel: parts.join("vmlinuz"),
            initramfs: parts.join("initramfs"),
            memory_mib: if root.is_some() { 512 } else { 256 },
            disks: root
                .into_iter()
                .map(|(path, _)| Disk {
                    path,
                    writable: false,
                })
                .collect(),
            vcpus: 1,
            accel: Accel::Tcg,
            kernel_args,
            dir,
        };
        let vm = Qemu::new(None).start(&request).await.unwrap();
        Self { vm, _home: home }
    }

    async fn session(&self, guarded: &Guarded) -> GuestChannel {
        let stream = self.vm.connect().await.unwrap();
        let (channel, _) = GuestChannel::start(stream, ChannelLimits::default())
            .await
            .unwrap();
        assert_eq!(channel.ready().warnings, Vec::<String>::new());
        channel
            .set_time(std::time::SystemTime::now())
            .await
            .unwrap();
        let begun = Instant::now();
        guarded
            .boundaries
            .attach(&guarded.id, &channel)
            .await
            .unwrap();
        eprintln!("the network was up after {:?}", begun.elapsed());
        channel
    }
}

fn images() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("images")
}

/// Finds a root of Debian that was built earlier: a test does not take the minutes for it.
fn debian() -> Option<(PathBuf, String)> {
    let found = fs::read_dir(images().join("rootfs"))
        .ok()?
        .flatten()
        .map(|entry| entry.path());
    let manifest = |dir: &PathBuf| fs::read_to_string(dir.join("rootfs.json")).ok();
    // Others are what the tests of images leave, with a busybox and nothing else.
    let is_debian = |text: String| text.contains("\"suite\"");
    let dir = found
        .into_iter()
        .find(|dir| manifest(dir).is_some_and(is_debian))?;
    let text = manifest(&dir)?;
    let format = if text.contains("squashfs") {
        "squashfs"
    } else {
        "erofs"
    };
    Some((dir.join("root.img"), format.to_owned()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guest_uses_a_secret_that_it_never_sees() {
    let missing = match (Qemu::new(None).program(), debian()) {
        (Err(error), _) => Some(error.to_string()),
        (_, None) => Some("no Debian image has been built here".to_owned()),
        (Ok(_), Some(_)) => None,
    };
    if let Some(missing) = missing {
        eprintln!("skipped: a_guest_uses_a_secret_that_it_never_sees: {missing}");
        return;
    }
    let seen = Arc::new(Mutex::new(Vec::new()));
    let policy = "allow api.example";
    let mut guarded = Guarded::new(policy);
    guarded.world.name("api.example", &[SITE]);
    let port = guarded
        .authority
        .serve("api.example", Arc::clone(&seen))
        .await;
    guarded.world.server(&format!("{SITE}:443"), port);
    let machine = Machine::start(&guarded, debian()).await;
    let channel = machine.session(&guarded).await;
    a_secret_is_used_and_never_seen(&mut guarded, &channel, policy, &seen).await;
    let placeholder = guarded.boundaries.env(&guarded.id)["RHIZOME_SECRET_API_KEY"].clone();
    assert!(
        memory_holds(&machine.vm, &placeholder),
        "the search finds what is there"
    );
    assert!(!memory_holds(&machine.vm, VALUE));
    machine.vm.kill().await;
}

async fn a_secret_is_used_and_never_seen(
    guarded: &mut Guarded,
    channel: &GuestChannel,
    policy: &str,
    seen: &Arc<Mutex<Vec<String>>>,
) {
    let parts = SecretParts {
        name: "API_KEY".into(),
        domain: "api.example".into(),
        header: "authorization".into(),
        format: "Bearer {}".into(),
        value: VALUE.to_owned().into(),
    };
    let secret = Secret::try_from(parts).unwrap();
    let placeholder = secret.placeholder();
    guarded.set(policy, vec![secret]);
    // Its authority is new to the guest.
    guarded
        .boundaries
        .attach(&guarded.id, channel)
        .await
        .unwrap();
    let text = said(
        channel,
        "cat /run/rhizome/ca.pem /usr/local/share/ca-certificates/rhizome-sandbox.crt",
    )
    .await;
    assert_eq!(text.matches("BEGIN CERTIFICATE").count(), 2, "{text}");
    let env: String = guarded
        .boundaries
        .env(&guarded.id)
        .iter()
        .map(|(name, value)| format!("export {name}={value}; "))
        .collect();
    assert!(env.contains(&placeholder));
    // Each of these checks certificates, by the bundle that it knows of.
    let python = |path: &str| {
        format!(
            "python3 -c \"import os, urllib.request as u; r = u.Request('https://api.example{path}', headers={{'Authorization': os.environ['RHIZOME_SECRET_API_KEY']}}); print(u.urlopen(r, timeout=60).read().decode())\""
        )
    };
    for script in [
        python("/"),
        "git -c http.extraHeader=\"Authorization: Bearer $RHIZOME_SECRET_API_KEY\" ls-remote https://api.example/".to_owned(),
    ] {
        seen.lock().unwrap().clear();
        let text = said(channel, &format!("{env}{script}")).await;
        let last = seen.lock().unwrap().last().cloned();
        let last = last.unwrap_or_else(|| panic!("{text} {:?}", guarded.events.try_recv()));
        assert!(last.contains(&format!("authorization: Bearer {VALUE}\r\n")), "{last}");
    }
    // A server that says it back does not bring it in.
    let text = said(channel, &format!("{env}{}", python("/mirror"))).await;
    assert!(!text.contains(&VALUE[..10]), "{text}");
    assert!(
        guarded
            .event()
            .await
            .starts_with("secret an answer of api.example")
    );
}

/// Whether the guest's memory, all of it, holds `needle`.
fn memory_holds(vm: &Vm, needle: &str) -> bool {
    let fds = fs::read_dir(format!("/proc/{}/fd", vm.pid)).unwrap();
    let is_ram = |path: &PathBuf| {
        fs::read_link(path).is_ok_and(|link| link.to_string_lossy().contains("rhizome-ram"))
    };
    let ram = fds.flatten().map(|fd| fd.path()).find(is_ram).unwrap();
    // Memory is zero for the most part, which ends lines here, so that none of them is long.
    let found = std::process::Command::new("grep")
        .args(["-z", "-q", "-a", "-F", "--", needle])
        .arg(ram)
        .status()
        .unwrap();
    match found.code() {
        Some(0) => true,
        Some(1) => false,
        other => panic!("grep ended with {other:?}"),
    }
}
