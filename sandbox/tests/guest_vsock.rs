//! The guest's agent behind a virtio socket, as under Cloud Hypervisor: in an emulated machine with
//! PCI, whose socket another program offers (`vhost-device-vsock`, on `PATH` or named by
//! `RHIZOME_VHOST_DEVICE_VSOCK`), with the same handshake.
#![allow(clippy::unwrap_used, reason = "what a test prepares has to work")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use rhizome_sandbox::{
    SandboxConfig,
    channel::{ChannelLimits, DoorStream, ExecRequest, GuestChannel},
    driver::qemu::Qemu,
    image::ImageStore,
    silent,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
    sync::mpsc::Receiver,
};

const BOOTS_WITHIN: Duration = Duration::from_secs(120);

/// A program that goes with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn helper() -> Option<PathBuf> {
    let named = std::env::var_os("RHIZOME_VHOST_DEVICE_VSOCK").map(PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path).map(|dir| dir.join("vhost-device-vsock"));
    named.into_iter().chain(on_path).find(|path| path.is_file())
}

fn start(program: &Path, args: &[String], dir: &Path) -> Running {
    let log = fs::File::create(dir.join("log")).unwrap();
    let mut command = Command::new(program);
    command
        .args(args)
        .current_dir(dir)
        .stdin(Stdio::null())
        .stdout(log.try_clone().unwrap())
        .stderr(log);
    Running(command.spawn().unwrap())
}

/// Connects to the agent's port once the guest listens there.
async fn connect(dir: &Path) -> UnixStream {
    let begun = Instant::now();
    loop {
        assert!(begun.elapsed() < BOOTS_WITHIN, "the guest does not listen");
        if let Ok(mut stream) = UnixStream::connect(dir.join("guest.sock")).await {
            // Refused before the guest's kernel has the device.
            let _ = stream.write_all(b"CONNECT 1024\n").await;
            let mut answer = Vec::new();
            while !answer.ends_with(b"\n") {
                match stream.read_u8().await {
                    Ok(byte) => answer.push(byte),
                    Err(_) => break,
                }
            }
            if answer.starts_with(b"OK ") {
                return stream;
            }
        }
        // Nothing tells that it is about to.
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn talk(dir: &Path) -> (GuestChannel, Receiver<DoorStream>) {
    let stream = connect(dir).await;
    GuestChannel::start(stream, ChannelLimits::default())
        .await
        .unwrap()
}

async fn sh(channel: &GuestChannel, script: &str) -> String {
    let request = ExecRequest {
        argv: ["sh", "-c", script].map(str::to_owned).to_vec(),
        ..ExecRequest::default()
    };
    let handle = channel.exec(request).await.unwrap();
    let output = handle.output(16 << 20).await.unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_behind_a_virtio_socket_serves_one_host_after_the_other() {
    let (Some(helper), Ok(qemu)) = (helper(), Qemu::new(None).program()) else {
        eprintln!("skipped: the agent behind a virtio socket: no `vhost-device-vsock` or QEMU");
        return;
    };
    let home = tempfile::tempdir().unwrap();
    let dir = home.path();
    let mut config = SandboxConfig::new(dir);
    config.images_dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("images");
    let store = ImageStore::open(&config).unwrap();
    let image = store.build_minimal(silent()).await.unwrap();
    let parts = config.images_dir.join("images").join(&image.id[..16]);

    let vm = "guest-cid=3,uds-path=guest.sock,socket=vhost.sock";
    let _socket = start(&helper, &["--vm".into(), vm.into()], dir);
    let begun = Instant::now();
    while !dir.join("vhost.sock").exists() {
        assert!(begun.elapsed() < Duration::from_secs(10));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let part = |name: &str| parts.join(name).display().to_string();
    let args = [
        "-nodefaults",
        "-no-reboot",
        "-display",
        "none",
        "-M",
        "q35,memory-backend=ram",
        "-object",
        "memory-backend-memfd,id=ram,size=256M,share=on",
        "-m",
        "256",
        "-accel",
        "tcg",
        "-cpu",
        "Nehalem-v1,+rdrand",
        "-kernel",
        &part("vmlinuz"),
        "-initrd",
        &part("initramfs"),
        "-append",
        "console=ttyS0 quiet panic=-1 mitigations=off rhizome.channel=vsock:1024",
        "-serial",
        "file:console",
        "-chardev",
        "socket,id=vsock,path=vhost.sock",
        "-device",
        "vhost-user-vsock-pci,chardev=vsock",
    ]
    .map(str::to_owned);
    let _machine = start(&qemu, &args, dir);

    let (channel, doors) = talk(dir).await;
    eprintln!("the guest answers after {:?}", begun.elapsed());
    let here = sh(&channel, "echo $$ > /tmp/here; cat /tmp/here").await;
    // As many bytes as fill every buffer on the way.
    let bytes = sh(
        &channel,
        "dd if=/dev/zero bs=64k count=128 2>/dev/null | tr '\\0' x",
    )
    .await;
    assert_eq!(bytes.len(), 8 << 20);

    // One that comes while another is there takes its place: the one before may be gone unseen.
    let (second, _more) = talk(dir).await;
    channel.closed().await;
    drop(doors);
    assert_eq!(sh(&second, "cat /tmp/here").await, here);

    // Every module of this machine was found, and loaded.
    let console = fs::read_to_string(dir.join("console")).unwrap();
    assert!(!console.contains("module"), "{console}");
}
