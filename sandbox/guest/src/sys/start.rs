//! Starting a program without a copy of ourselves.
//!
//! `fork` copies what the agent has mapped and makes it pay again for each page that it writes
//! next; and a child that then joins a control group makes the kernel wait until every processor
//! has been seen idle. Neither is needed: the child here runs on a stack of its own in our memory,
//! with the thread that started it held until it is its program, and is born into its group. In
//! emulation, where code that runs for the first time is what costs, that is most of what the
//! first command after a resume took (ADR 0031).

use std::{
    ffi::{CStr, CString, OsStr, c_char, c_int, c_void},
    io,
    mem::MaybeUninit,
    os::{fd::BorrowedFd, unix::ffi::OsStrExt},
    ptr,
};

use rustix::{
    fs::{Gid, Mode, OFlags, Uid},
    process::Pid,
};

/// Stack of a child until it is its program, in bytes.
const STACK_BYTES: usize = 64 * 1024;
/// Flags of `clone`: our memory, and its thread of ours held until it is its program.
const CLONE_VM: u64 = 0x100;
const CLONE_VFORK: u64 = 0x4000;
/// Signals have no handlers of ours; `clone3` alone.
const CLONE_CLEAR_SIGHAND: u64 = 0x1_0000_0000;
/// It is born into a control group; `clone3` alone.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;
const SIGCHLD: u8 = 17;
const SIGPIPE: c_int = 13;
const SIG_SETMASK: c_int = 2;
/// `SIG_DFL`
const DEFAULT: usize = 0;
/// What a child ends with that cannot become its program; nobody sees it.
const NEVER_STARTED: c_int = 127;

/// `sigset_t`: 1024 signals.
type SignalSet = [u64; 16];
/// A piece of a stack.
type Unused = MaybeUninit<u128>;

unsafe extern "C" {
    fn execve(path: *const c_char, argv: *const *const c_char, env: *const *const c_char) -> c_int;
    fn _exit(status: c_int) -> !;
    fn signal(number: c_int, handler: usize) -> usize;
    fn pthread_sigmask(how: c_int, set: *const SignalSet, old: *mut SignalSet) -> c_int;
    fn clone(
        run: extern "C" fn(*mut c_void) -> c_int,
        stack: *mut c_void,
        flags: c_int,
        argument: *mut c_void,
        ...
    ) -> c_int;
}

/// A program to be started.
pub(crate) struct Start<'a> {
    pub(crate) program: &'a OsStr,
    pub(crate) argv: Vec<&'a OsStr>,
    pub(crate) env: Vec<(&'a OsStr, &'a OsStr)>,
    pub(crate) dir: &'a OsStr,
    /// Standard input, output and error.
    pub(crate) stdio: [BorrowedFd<'a>; 3],
    /// The directory of the control group that it runs in.
    pub(crate) group: Option<BorrowedFd<'a>>,
    /// Its standard input is a terminal that it is to lead. Otherwise it leads a process group.
    pub(crate) terminal: bool,
    /// Supplementary groups, if it changes who it is.
    pub(crate) groups: &'a [Gid],
    /// Who it becomes.
    pub(crate) user: Option<(Uid, Gid)>,
}

/// What the child reads; all of it is made before there is a child.
struct Plan<'a> {
    start: &'a Start<'a>,
    program: CString,
    dir: CString,
    argv: Vec<*const c_char>,
    env: Vec<*const c_char>,
    /// Whether it has to join its group itself.
    joins: bool,
    /// Why it did not become its program; the child writes it.
    failed: Option<rustix::io::Errno>,
}

/// Starts a program and returns its process. It is its program when this returns.
///
/// # Errors
/// Whatever keeps it from being its program; nothing is left then but a child to be taken in.
pub(crate) fn start(what: &Start<'_>) -> io::Result<Pid> {
    let text = |bytes: &[u8]| CString::new(bytes).map_err(io::Error::other);
    let words = what.argv.iter().map(|word| text(word.as_bytes()));
    let words: Vec<CString> = words.collect::<io::Result<_>>()?;
    let pairs = what.env.iter().map(|(name, value)| {
        let mut pair = name.as_bytes().to_vec();
        pair.push(b'=');
        pair.extend_from_slice(value.as_bytes());
        text(&pair)
    });
    let pairs: Vec<CString> = pairs.collect::<io::Result<_>>()?;
    let mut plan = Plan {
        start: what,
        program: text(what.program.as_bytes())?,
        dir: text(what.dir.as_bytes())?,
        argv: pointers(&words),
        env: pointers(&pairs),
        joins: what.group.is_some(),
        failed: None,
    };
    // Of a type that is aligned as a stack is.
    let mut stack = Vec::<u128>::with_capacity(STACK_BYTES / size_of::<u128>());
    let pid = born(&mut plan, stack.spare_capacity_mut())?;
    // The child read them until here.
    drop((words, pairs));
    match plan.failed {
        None => Ok(pid),
        Some(error) => Err(error.into()),
    }
}

/// Returns the addresses of texts, with the end that the kernel looks for.
fn pointers(texts: &[CString]) -> Vec<*const c_char> {
    let all = texts.iter().map(|text| text.as_ptr());
    all.chain([ptr::null()]).collect()
}

/// Makes the child and waits until it is its program, or has failed.
fn born(plan: &mut Plan<'_>, stack: &mut [Unused]) -> io::Result<Pid> {
    let mut old = SignalSet::default();
    let all = [u64::MAX; 16];
    // SAFETY: both sets are of the size that the C library gives them. With every signal held, no
    // handler of this thread runs in the child, on whose stack it has no business.
    unsafe { pthread_sigmask(SIG_SETMASK, &raw const all, &raw mut old) };
    let made = make(plan, stack);
    // SAFETY: as above.
    unsafe { pthread_sigmask(SIG_SETMASK, &raw const old, ptr::null_mut()) };
    Pid::from_raw(made?).ok_or_else(|| io::Error::other("a child has no process number"))
}

fn make(plan: &mut Plan<'_>, stack: &mut [Unused]) -> io::Result<i32> {
    #[cfg(target_arch = "x86_64")]
    {
        plan.joins = false;
        match clone3(plan, stack) {
            Ok(pid) => return Ok(pid),
            // A kernel without it, or a group that nobody can be born into: as before.
            Err(_) => plan.joins = plan.start.group.is_some(),
        }
    }
    let top = stack.as_mut_ptr_range().end;
    let flags = c_int::try_from(CLONE_VM | CLONE_VFORK | u64::from(SIGCHLD)).expect("they fit");
    // SAFETY: `become_program` gets the plan, which outlives it: this thread is held until the
    // child has left our memory. It has all of `stack`, which nobody else uses, and which ends
    // where the C library expects its beginning.
    let pid = unsafe {
        clone(
            become_program,
            top.cast(),
            flags,
            ptr::from_mut(plan).cast(),
        )
    };
    if pid < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(pid)
}

/// `struct clone_args`, as of Linux 5.7.
#[cfg(target_arch = "x86_64")]
#[repr(C)]
#[derive(Debug, Default)]
struct CloneArgs {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

/// The C library has no wrapper that a child could return from on another stack.
#[cfg(target_arch = "x86_64")]
fn clone3(plan: &mut Plan<'_>, stack: &mut [Unused]) -> rustix::io::Result<i32> {
    const CLONE3: i64 = 435;
    let mut arguments = CloneArgs {
        flags: CLONE_VM | CLONE_VFORK | CLONE_CLEAR_SIGHAND,
        exit_signal: SIGCHLD.into(),
        stack: stack.as_mut_ptr().addr() as u64,
        stack_size: size_of_val(stack) as u64,
        ..CloneArgs::default()
    };
    if let Some(group) = &plan.start.group {
        arguments.flags |= CLONE_INTO_CGROUP;
        arguments.cgroup = u64::from(std::os::fd::AsRawFd::as_raw_fd(group).unsigned_abs());
    }
    let answer: i64;
    // SAFETY: the child begins after `syscall` with our registers, `rax` = 0 and the stack it was
    // given, whose top is aligned to 16 bytes as a call needs it; it calls `become_program`, which
    // does not return to here. The parent is held until then, so `plan` and `stack` outlive what
    // the child does with them, and goes on with its own stack and registers, of which the kernel
    // changes `rax`, `rcx` and `r11` alone.
    unsafe {
        std::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r13",
            "call r12",
            "ud2",
            "2:",
            inlateout("rax") CLONE3 => answer,
            in("rdi") &raw const arguments,
            in("rsi") size_of::<CloneArgs>(),
            in("r12") become_program as extern "C" fn(*mut c_void) -> c_int,
            in("r13") ptr::from_mut(plan),
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    let answer = i32::try_from(answer).unwrap_or(i32::MIN);
    if answer < 0 {
        return Err(rustix::io::Errno::from_raw_os_error(-answer.max(-4095)));
    }
    Ok(answer)
}

/// What the child does. It shares our memory, and a lock that another thread of ours holds would
/// never be released to it: it makes plain system calls, takes no lock and allocates nothing.
extern "C" fn become_program(plan: *mut c_void) -> c_int {
    // SAFETY: it is the plan of `born`, whose thread is held and does not use it meanwhile.
    let plan = unsafe { &mut *plan.cast::<Plan<'_>>() };
    if let Err(error) = prepare(plan) {
        plan.failed = Some(error);
    } else {
        // SAFETY: path, words and variables are C strings in lists that end with a null pointer,
        // and belong to the plan.
        unsafe {
            execve(plan.program.as_ptr(), plan.argv.as_ptr(), plan.env.as_ptr());
        }
        let error = io::Error::last_os_error().raw_os_error();
        plan.failed = Some(rustix::io::Errno::from_raw_os_error(error.unwrap_or(1)));
    }
    // SAFETY: it ends this process, with nothing of ours run.
    unsafe { _exit(NEVER_STARTED) }
}

/// All that comes before the program.
fn prepare(plan: &Plan<'_>) -> rustix::io::Result<()> {
    let start = plan.start;
    let [input, output, error] = &start.stdio;
    // None of them is one of the three: those are open, so ours were opened above them.
    rustix::stdio::dup2_stdin(input)?;
    rustix::stdio::dup2_stdout(output)?;
    rustix::stdio::dup2_stderr(error)?;
    let dir: &CStr = &plan.dir;
    rustix::process::chdir(dir)?;
    if plan.joins
        && let Some(group) = &start.group
    {
        let procs = rustix::fs::openat(group, c"cgroup.procs", OFlags::WRONLY, Mode::empty())?;
        rustix::io::write(&procs, b"0")?;
    }
    if start.terminal {
        rustix::process::setsid()?;
        rustix::process::ioctl_tiocsctty(rustix::stdio::stdin())?;
    } else {
        rustix::process::setpgid(None, None)?;
    }
    if let Some((user, group)) = start.user {
        // Calls of the thread, which is all that there is of the process here.
        rustix::thread::set_thread_groups(start.groups)?;
        rustix::thread::set_thread_gid(group)?;
        rustix::thread::set_thread_uid(user)?;
    }
    let none = SignalSet::default();
    // SAFETY: `signal` makes the default what a broken pipe does, which we ignore and a program
    // does not expect ignored; handlers of ours end with `execve`. Neither call takes a lock.
    unsafe {
        signal(SIGPIPE, DEFAULT);
        pthread_sigmask(SIG_SETMASK, &raw const none, ptr::null_mut());
    }
    Ok(())
}
