//! The same with QEMU alone: the same machine and guest, `migrate` to a file and `-incoming` from
//! it, no confinement, no file of memory, no store.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Write},
    os::unix::net::UnixStream as StdStream,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use rhizome_sandbox::{
    Accel,
    driver::{VmmDriver, qemu::Qemu},
};

use super::{Host, Result, first_command, median, pss};

pub(crate) struct Plain {
    pub(crate) boot: Duration,
    pub(crate) save: Duration,
    pub(crate) bytes: u64,
    pub(crate) restore: Duration,
    pub(crate) resident: u64,
}

pub(crate) async fn measure(host: &Host, runs: usize) -> Result<Plain> {
    let file = host.home.path().join("plain.state");
    let uri = format!("exec:cat > {}", file.display());
    let (mut boots, mut guest) = (Vec::new(), None);
    for _ in 0..runs {
        drop(guest.take());
        let request = host.request(3)?;
        let begun = Instant::now();
        let vm = Monitor::start(host, &request.dir, None)?;
        let channel = vm.channel().await?;
        boots.push(begun.elapsed());
        guest = Some((vm, channel));
    }
    let (mut vm, channel) = guest.ok_or("there is a run")?;
    let mut saves = Vec::new();
    for _ in 0..runs {
        let begun = Instant::now();
        vm.command(r#"{"execute": "stop"}"#)?;
        vm.command(&format!(
            r#"{{"execute": "migrate", "arguments": {{"uri": "{uri}"}}}}"#
        ))?;
        while !vm
            .command(r#"{"execute": "query-migrate"}"#)?
            .contains("completed")
        {}
        vm.command(r#"{"execute": "cont"}"#)?;
        saves.push(begun.elapsed());
    }
    drop((channel, vm));
    let (mut restores, mut resident) = (Vec::new(), 0);
    for _ in 0..runs {
        let request = host.request(4)?;
        let begun = Instant::now();
        let mut vm = Monitor::start(host, &request.dir, Some(&file))?;
        while vm
            .command(r#"{"execute": "query-status"}"#)?
            .contains("inmigrate")
        {}
        let connected = vm.connect().await?;
        vm.command(r#"{"execute": "cont"}"#)?;
        let _channel = first_command(connected).await?;
        restores.push(begun.elapsed());
        resident = pss(vm.child.id());
    }
    Ok(Plain {
        boot: median(boots),
        save: median(saves),
        bytes: fs::metadata(&file)?.len(),
        restore: median(restores),
        resident,
    })
}

struct Monitor {
    child: Child,
    control: BufReader<StdStream>,
    dir: std::path::PathBuf,
}

impl Monitor {
    fn start(host: &Host, dir: &Path, state: Option<&Path>) -> Result<Self> {
        let cpu = Qemu::new(None).cpu_model(Accel::Tcg);
        let tsc = tsc_khz()?;
        let mut command = Command::new(Qemu::new(None).program()?);
        command
            .current_dir(dir)
            .args([
                "-nodefaults",
                "-no-user-config",
                "-no-reboot",
                "-display",
                "none",
            ])
            .args(["-M", "microvm,rtc=on,pit=off,pic=off", "-bios", "qboot.rom"])
            .args(["-accel", "tcg,thread=multi", "-cpu", cpu, "-smp", "1", "-m"])
            .arg(host.memory_mib.to_string())
            .args(["-serial", "file:console", "-device", "virtio-serial-device"])
            .args([
                "-chardev",
                "socket,id=channel,path=channel,server=on,wait=off",
            ])
            .args(["-device", "virtserialport,chardev=channel,name=rhizome"])
            .args(["-qmp", "unix:control,server=on,wait=off"])
            .args(["-drive", "id=disk0,file=data,format=raw,if=none"])
            .args(["-device", "virtio-blk-device,drive=disk0,serial=disk0"])
            .arg("-kernel")
            .arg(host.parts.join("vmlinuz"))
            .arg("-initrd")
            .arg(host.parts.join("initramfs"))
            .arg("-append")
            .arg(format!(
                "console=ttyS0 quiet panic=-1 reboot=t no_timer_check random.trust_cpu=on \
                 cryptomgr.notests 8250.nr_uarts=1 tsc_early_khz={tsc} tsc=reliable \
                 mitigations=off nokaslr"
            ))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        if let Some(state) = state {
            command
                .arg("-incoming")
                .arg(format!("exec:cat {}", state.display()));
        }
        let child = command.spawn()?;
        let control = loop {
            match StdStream::connect(dir.join("control")) {
                Ok(stream) => break stream,
                Err(_) => std::thread::sleep(Duration::from_millis(2)),
            }
        };
        let mut monitor = Self {
            child,
            control: BufReader::new(control),
            dir: dir.to_owned(),
        };
        monitor.line()?;
        monitor.command(r#"{"execute": "qmp_capabilities"}"#)?;
        Ok(monitor)
    }

    fn command(&mut self, command: &str) -> Result<String> {
        writeln!(self.control.get_mut(), "{command}")?;
        loop {
            let line = self.line()?;
            if line.contains("\"error\"") {
                return Err(line.into());
            }
            if line.contains("\"return\"") {
                return Ok(line);
            }
        }
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.control.read_line(&mut line)?;
        match line.is_empty() {
            true => Err("QEMU hung up".into()),
            false => Ok(line),
        }
    }

    async fn connect(&self) -> Result<tokio::net::UnixStream> {
        Ok(tokio::net::UnixStream::connect(self.dir.join("channel")).await?)
    }

    async fn channel(&self) -> Result<rhizome_sandbox::channel::GuestChannel> {
        first_command(self.connect().await?).await
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn tsc_khz() -> Result<u64> {
    let cpuinfo = BufReader::new(File::open("/proc/cpuinfo")?);
    for line in cpuinfo.lines() {
        let line = line?;
        if let Some((_, value)) = line
            .split_once(':')
            .filter(|_| line.starts_with("bogomips"))
        {
            let (whole, part) = value
                .trim()
                .split_once('.')
                .ok_or("bogomips have a point")?;
            return Ok((whole.parse::<u64>()? * 1000 + part.parse::<u64>()? * 10) / 2);
        }
    }
    Err("the host tells no bogomips".into())
}
