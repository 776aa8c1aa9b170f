//! From a request to a command that can be started: who, where, what, with which terminal.

use std::{
    ffi::{OsStr, OsString},
    fs::{self, File, OpenOptions},
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::{
            ffi::{OsStrExt, OsStringExt},
            fs::PermissionsExt,
        },
    },
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

use rhizome_guest::wire::{Exec, FailureCode, PtySize};
use rustix::{
    fs::{Gid, Mode, Uid},
    pipe::{PipeFlags, pipe_with},
    pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt},
    termios::{Winsize, tcsetwinsize},
};

use crate::{
    agent::{
        Agent,
        failure::Failed,
        groups::Group,
        reaper::Child,
        users::{self, User},
    },
    sys::{self, Start},
};

const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
const DEFAULT_TERM: &str = "xterm-256color";
/// The group that terminals belong to, in every distribution.
const TTY_GROUP: u32 = 5;
/// What a program without input reads; held open, since finding it costs more than a program's
/// other files together.
static NOTHING: OnceLock<File> = OnceLock::new();

/// A program that can be started.
pub(super) struct Prepared<'a> {
    program: PathBuf,
    argv: Vec<&'a OsStr>,
    env: Vec<(OsString, OsString)>,
    cwd: PathBuf,
    user: User,
    /// Whether the user is not the agent's own.
    changes: bool,
    pty: Option<PtySize>,
    stdin: bool,
}

/// A program that was started, with our ends of what it reads and writes.
pub(super) struct Started {
    pub(super) child: Arc<Child>,
    pub(super) terminal: Option<File>,
    pub(super) stdin: Option<OwnedFd>,
    /// Its output and its errors, unless it has a terminal.
    pub(super) outputs: Option<[OwnedFd; 2]>,
    pub(super) user: String,
}

pub(super) fn prepare<'a>(agent: &Agent, request: &'a Exec) -> Result<Prepared<'a>, Failed> {
    let user = users::find(&request.user)
        .ok_or_else(|| Failed::new(FailureCode::NoSuchUser, "no such user or group"))?;
    let env = environment(agent, &user, request);
    let cwd = if request.cwd.is_empty() {
        let home = PathBuf::from(&user.home);
        if home.is_dir() {
            home
        } else {
            PathBuf::from("/")
        }
    } else {
        PathBuf::from(OsString::from_vec(request.cwd.clone()))
    };
    if !cwd.is_dir() {
        return Err(Failed::new(FailureCode::NoSuchCwd, "no such directory"));
    }
    let argv: Vec<&OsStr> = request
        .argv
        .iter()
        .map(|word| OsStr::from_bytes(word))
        .collect();
    let path = env
        .iter()
        .find(|(name, _)| name == "PATH")
        .map_or(OsStr::new(""), |(_, path)| path);
    let program = find_program(argv.first().copied().unwrap_or_default(), path, &cwd)?;
    // Only in tests are we anyone else: an ordinary process can't change who it is. As root, a
    // program of root's needs no change.
    let changes = rustix::process::getuid().is_root() && (user.uid != 0 || user.gid != 0);
    Ok(Prepared {
        program,
        argv,
        env,
        cwd,
        user,
        changes,
        pty: request.pty,
        stdin: request.stdin,
    })
}

impl Prepared<'_> {
    /// Starts it, in `group` if there is one.
    pub(super) fn start(self, agent: &Agent, group: Option<&Group>) -> Result<Started, Failed> {
        if let Some(size) = self.pty {
            let (ours, theirs) = open_terminal(size, &self.user)?;
            let stdio = [theirs.as_fd(); 3];
            return Ok(Started {
                child: self.run(agent, group, stdio)?,
                terminal: Some(ours),
                stdin: None,
                outputs: None,
                user: self.user.name,
            });
        }
        let pipe = || pipe_with(PipeFlags::CLOEXEC).map_err(io::Error::from);
        let (input, stdin) = match self.stdin {
            true => pipe().map(|(theirs, ours)| (Some(theirs), Some(ours)))?,
            false => (None, None),
        };
        let (our_output, output) = pipe()?;
        let (our_errors, errors) = pipe()?;
        let input = match &input {
            Some(input) => input.as_fd(),
            None => nothing()?,
        };
        Ok(Started {
            child: self.run(agent, group, [input, output.as_fd(), errors.as_fd()])?,
            terminal: None,
            stdin,
            outputs: Some([our_output, our_errors]),
            user: self.user.name,
        })
    }

    fn run(
        &self,
        agent: &Agent,
        group: Option<&Group>,
        stdio: [BorrowedFd<'_>; 3],
    ) -> Result<Arc<Child>, Failed> {
        let groups: Vec<Gid> = match self.changes {
            true => self
                .user
                .groups
                .iter()
                .copied()
                .map(Gid::from_raw)
                .collect(),
            false => Vec::new(),
        };
        let user = (Uid::from_raw(self.user.uid), Gid::from_raw(self.user.gid));
        let pairs = self.env.iter();
        let start = Start {
            program: self.program.as_os_str(),
            argv: self.argv.clone(),
            env: pairs.map(|(name, value)| (&**name, &**value)).collect(),
            dir: self.cwd.as_os_str(),
            stdio,
            group: group.map(Group::dir),
            terminal: self.pty.is_some(),
            groups: &groups,
            user: self.changes.then_some(user),
        };
        // A guest that is about to be copied starts nothing.
        let ((), child) = agent.sleep.unless_at_rest(|| {
            let started = agent.reaper.take_on(|| Ok(((), sys::start(&start)?)));
            started.map_err(not_executable)
        })?;
        Ok(child)
    }
}

/// Opens what has nothing to read, once.
fn nothing() -> io::Result<BorrowedFd<'static>> {
    if NOTHING.get().is_none() {
        let file = OpenOptions::new().read(true).open("/dev/null")?;
        // Another thread may have been first, and one is as good as the other.
        let _ = NOTHING.set(file);
    }
    Ok(NOTHING.get().expect("it was just set").as_fd())
}

/// Opens a terminal; returns our end and the program's.
fn open_terminal(size: PtySize, user: &User) -> Result<(File, File), Failed> {
    let open = || -> io::Result<(File, File)> {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        unlockpt(&ours)?;
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let theirs = ioctl_tiocgptpeer(&ours, flags)?;
        resize(&ours, size)?;
        if rustix::process::getuid().is_root() {
            let owner = Some(Uid::from_raw(user.uid));
            rustix::fs::fchown(&theirs, owner, Some(Gid::from_raw(TTY_GROUP)))?;
            rustix::fs::fchmod(&theirs, Mode::from_raw_mode(0o620))?;
        }
        Ok((File::from(ours), File::from(theirs)))
    };
    open().map_err(|error| Failed::new(FailureCode::Unsupported, format!("no terminal: {error}")))
}

pub(super) fn resize(terminal: impl rustix::fd::AsFd, size: PtySize) -> io::Result<()> {
    let size = Winsize {
        ws_row: size.rows,
        ws_col: size.columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    Ok(tcsetwinsize(terminal, size)?)
}

fn environment(agent: &Agent, user: &User, request: &Exec) -> Vec<(OsString, OsString)> {
    let mut env: Vec<(OsString, OsString)> = [
        ("PATH", DEFAULT_PATH.to_owned()),
        ("HOME", user.home.clone()),
        ("USER", user.name.clone()),
        ("LOGNAME", user.name.clone()),
        ("SHELL", user.shell.clone()),
        ("LANG", "C.UTF-8".to_owned()),
        (
            "RHIZOME_URL",
            format!("http://127.0.0.1:{}", agent.door_port),
        ),
    ]
    .map(|(name, value)| (name.into(), value.into()))
    .into();
    if let Some(path) = agent.sleep.generation_file() {
        env.push(("RHIZOME_GENERATION".into(), path.into()));
    }
    if request.pty.is_some() {
        env.push(("TERM".into(), DEFAULT_TERM.into()));
    }
    for (name, value) in request.env.iter().cloned() {
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
