//! Programs that run for the host: found, started, fed, heard, ended.

use std::{
    ffi::{OsStr, OsString},
    fs, io,
    io::{Read, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::{
            ffi::{OsStrExt, OsStringExt},
            fs::PermissionsExt,
            process::CommandExt,
        },
    },
    path::{Path, PathBuf},
    process::{Child as Spawned, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use rhizome_guest::wire::{Exec, Exit, FailureCode, Frame, Kind, MAX_PAYLOAD};
use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, eventfd, poll},
    process::Signal,
};

use super::{
    Agent,
    failure::Failed,
    spawn,
    stream::Stream,
    users::{self, User},
};

const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// What is still read after a program's end: more than a pipe holds. What it left running in the
/// background may write for ever.
const MAX_AFTER_END: usize = 1024 * 1024;

/// Runs one program and stays until its end.
pub(crate) fn run(agent: &Arc<Agent>, stream: &Arc<Stream>, frame: &Frame) {
    if let Err(Failed(failure)) = try_run(agent, stream, frame) {
        stream.send(Kind::Failed, &failure);
    }
}

/// Signals the group of the program on `stream`.
pub(crate) fn signal(agent: &Agent, stream: &Stream, number: i32) {
    if let (Some(child), Some(signal)) = (stream.child.get(), Signal::from_named_raw(number)) {
        agent.reaper.signal(child, signal);
    }
}

fn try_run(agent: &Arc<Agent>, stream: &Arc<Stream>, frame: &Frame) -> Result<(), Failed> {
    let request: Exec = frame.message()?;
    let limit = (request.timeout_ms > 0).then(|| Duration::from_millis(request.timeout_ms));
    let mut command = prepare(agent, request)?;
    let over = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).map_err(io::Error::from)?);
    let (mut spawned, child) = agent.reaper.spawn(&mut command).map_err(not_executable)?;
    // It would keep the pipes' other ends open.
    drop(command);

    // From here on the program runs: whatever happens, it is seen to its end.
    let _ = stream.child.set(Arc::clone(&child));
    {
        let (agent, child, over) = (Arc::clone(agent), Arc::clone(&child), Arc::clone(&over));
        stream.on_reset(move || {
            agent.reaper.signal(&child, Signal::KILL);
            ring(&over);
        });
    }
    stream.send_empty(Kind::Started);
    let pumps = start_pumps(stream, &mut spawned, &over);
    if pumps.is_err() {
        agent.reaper.signal(&child, Signal::KILL);
    }
    let exit = child.wait(limit).unwrap_or_else(|| {
        agent.reaper.signal(&child, Signal::KILL);
        child.wait(None);
        Exit::TimedOut
    });
    ring(&over);
    stream.close_input();
    for pump in pumps? {
        // A pump that panicked has said all that it will.
        let _ = pump.join();
    }
    stream.send(Kind::Exit, &exit);
    Ok(())
}

type Pump = std::thread::JoinHandle<()>;

fn start_pumps(
    stream: &Arc<Stream>,
    spawned: &mut Spawned,
    over: &Arc<OwnedFd>,
) -> Result<Vec<Pump>, Failed> {
    let mut pumps = Vec::new();
    let outputs = [
        (Kind::Stdout, spawned.stdout.take().map(OwnedFd::from)),
        (Kind::Stderr, spawned.stderr.take().map(OwnedFd::from)),
    ];
    for (kind, pipe) in outputs {
        if let Some(pipe) = pipe {
            let (stream, over) = (Arc::clone(stream), Arc::clone(over));
            pumps.push(spawn("output", move || {
                pump_out(&stream, kind, pipe, &over)
            })?);
        }
    }
    if let Some(pipe) = spawned.stdin.take() {
        let (stream, over) = (Arc::clone(stream), Arc::clone(over));
        pumps.push(spawn("input", move || {
            pump_in(&stream, pipe.into(), &over)
        })?);
    }
    Ok(pumps)
}

fn prepare(agent: &Agent, request: Exec) -> Result<Command, Failed> {
    let user = users::find(&request.user)
        .ok_or_else(|| Failed::new(FailureCode::NoSuchUser, "no such user or group"))?;
    let env = environment(agent, &user, request.env);
    let cwd = if request.cwd.is_empty() {
        let home = PathBuf::from(&user.home);
        if home.is_dir() {
            home
        } else {
            PathBuf::from("/")
        }
    } else {
        PathBuf::from(OsString::from_vec(request.cwd))
    };
    if !cwd.is_dir() {
        return Err(Failed::new(FailureCode::NoSuchCwd, "no such directory"));
    }
    let mut argv = request.argv.into_iter().map(OsString::from_vec);
    let name = argv.next().unwrap_or_default();
    let path = env
        .iter()
        .find(|(name, _)| name == "PATH")
        .map_or(OsStr::new(""), |(_, path)| path);
    let program = find_program(&name, path, &cwd)?;
    let mut command = Command::new(program);
    command
        .arg0(name)
        .args(argv)
        .env_clear()
        .envs(env)
        .current_dir(cwd)
        .process_group(0)
        .stdin(if request.stdin {
            Stdio::piped()
        } else {
            Stdio::null()
        })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    if !rustix::process::getuid().is_root() {
        // Only in tests: an ordinary process can't change who it is.
        return Ok(command);
    }
    // Setting a user also drops our supplementary groups.
    command.gid(user.gid).uid(user.uid);
    Ok(command)
}

fn environment(
    agent: &Agent,
    user: &User,
    wanted: Vec<(Vec<u8>, Vec<u8>)>,
) -> Vec<(OsString, OsString)> {
    let mut env: Vec<(OsString, OsString)> = [
        ("PATH", DEFAULT_PATH.to_owned()),
        ("HOME", user.home.clone()),
        ("USER", user.name.clone()),
        ("LOGNAME", user.name.clone()),
        ("LANG", "C.UTF-8".to_owned()),
        (
            "RHIZOME_URL",
            format!("http://127.0.0.1:{}", agent.door_port),
        ),
    ]
    .map(|(name, value)| (name.into(), value.into()))
    .into();
    for (name, value) in wanted {
        let (name, value) = (OsString::from_vec(name), OsString::from_vec(value));
        match env.iter_mut().find(|(known, _)| *known == name) {
            Some(known) => known.1 = value,
            None => env.push((name, value)),
        }
    }
    env
}

/// Finds a program as `execvp` does, but tells the reasons apart.
fn find_program(name: &OsStr, path: &OsStr, cwd: &Path) -> Result<PathBuf, Failed> {
    let as_path = Path::new(name);
    if name.as_bytes().contains(&b'/') {
        let program = cwd.join(as_path);
        return match fs::metadata(&program) {
            Ok(found) if is_program(&found) => Ok(program),
            Ok(found) if found.is_dir() => {
                Err(Failed::new(FailureCode::NotExecutable, "it is a directory"))
            }
            Ok(_) => Err(Failed::new(
                FailureCode::NotExecutable,
                "it is not executable",
            )),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                Err(Failed::new(FailureCode::NotExecutable, error))
            }
            Err(_) => Err(no_program()),
        };
    }
    let mut refused = false;
    for dir in path.as_bytes().split(|byte| *byte == b':') {
        // An empty entry means the working directory, by an old rule.
        let program = cwd.join(OsStr::from_bytes(dir)).join(as_path);
        if let Ok(found) = fs::metadata(&program) {
            if is_program(&found) {
                return Ok(program);
            }
            refused |= found.is_file();
        }
    }
    if refused {
        return Err(Failed::new(
            FailureCode::NotExecutable,
            "it is not executable",
        ));
    }
    Err(no_program())
}

fn is_program(found: &fs::Metadata) -> bool {
    found.is_file() && found.permissions().mode() & 0o111 != 0
}

fn no_program() -> Failed {
    Failed::new(FailureCode::NoSuchProgram, "no such program")
}

fn not_executable(error: io::Error) -> Failed {
    match error.kind() {
        // The file was there a moment ago: what is missing is what it names.
        io::ErrorKind::NotFound => Failed::new(
            FailureCode::NotExecutable,
            "its interpreter or loader is missing",
        ),
        io::ErrorKind::WouldBlock | io::ErrorKind::OutOfMemory => {
            Failed::new(FailureCode::TooMany, error)
        }
        io::ErrorKind::ArgumentListTooLong => Failed::new(FailureCode::Invalid, error),
        _ => Failed::new(FailureCode::NotExecutable, error),
    }
}

fn pump_out(stream: &Stream, kind: Kind, pipe: OwnedFd, over: &OwnedFd) {
    if rustix::io::ioctl_fionbio(&pipe, true).is_err() {
        return;
    }
    let mut pipe = fs::File::from(pipe);
    let mut buffer = vec![0; MAX_PAYLOAD];
    let mut after_end = 0;
    while after_end < MAX_AFTER_END {
        let Ok(ended) = wait_for(&pipe, PollFlags::IN, over) else {
            return;
        };
        match pipe.read(&mut buffer) {
            Ok(0) => return,
            Ok(len) => {
                if ended {
                    after_end += len;
                }
                if !stream.send_data(kind, &buffer[..len]) {
                    return;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && !ended => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

fn pump_in(stream: &Stream, pipe: OwnedFd, over: &OwnedFd) {
    if rustix::io::ioctl_fionbio(&pipe, true).is_err() {
        return;
    }
    let mut pipe = fs::File::from(pipe);
    while let Some(frame) = stream.next() {
        if frame.kind != Kind::Stdin {
            // Its end: closing the pipe tells the program.
            break;
        }
        let mut data = frame.payload.as_slice();
        while !data.is_empty() {
            match wait_for(&pipe, PollFlags::OUT, over) {
                Ok(false) => {}
                // The program is gone; what is left is for nobody.
                Ok(true) | Err(_) => return,
            }
            match pipe.write(data) {
                Ok(len) => data = &data[len..],
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                    ) => {}
                Err(_) => {
                    // The program closed its input and runs on; take the rest and drop it, so
                    // that the host is not left waiting.
                    drop(pipe);
                    while stream.next().is_some() {}
                    return;
                }
            }
        }
    }
}

/// Waits until `pipe` is ready or the program's end; returns whether it has ended.
fn wait_for(pipe: &fs::File, ready: PollFlags, over: &OwnedFd) -> io::Result<bool> {
    loop {
        let mut fds = [
            PollFd::from_borrowed_fd(pipe.as_fd(), ready),
            PollFd::new(over, PollFlags::IN),
        ];
        match poll(&mut fds, None) {
            Ok(_) => return Ok(!fds[1].revents().is_empty()),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Tells all pumps of a program that it has ended. Nobody reads the bell, so it rings for ever.
fn ring(over: &OwnedFd) {
    // Fails only when it has been rung 2^64 times.
    let _ = rustix::io::write(over, &1_u64.to_ne_bytes());
}
