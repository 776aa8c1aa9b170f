//! `process.Process`: programs of a sandbox, their output, their input, their end.
use std::{sync::Arc, time::Duration};

use axum::{
    Extension, Router,
    extract::{Request, State},
    http::HeaderMap,
    response::Response,
    routing::post,
};
use bytes::Bytes;
use futures::{Stream, stream};
use rhizome_sandbox::channel::{ExecRequest, ExitStatus, PtySize};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until},
};

use super::{
    guest, of_exec,
    processes::{Config, Meta, Process, Said, Selector},
    rpc::{self, Call, Messages, too_late},
    user_of,
};
use crate::{
    api::serve::Patience,
    e2b::{
        Door, Target,
        connect::{self, Code, ConnectError, Shape},
    },
};

/// How often a stream that says nothing says that it is there, if the client does not say.
const KEEPALIVE: Duration = Duration::from_secs(90);
/// Longest and shortest that a client may ask for.
const KEEPALIVE_SECONDS: std::ops::RangeInclusive<u64> = 1..=3600;
/// Time that the guest has to end a program whose time is over, before we say it in its place.
const GRACE: Duration = Duration::from_secs(5);
/// Time in which a program has to take input where the client sets none.
const INPUT_TIMEOUT: Duration = Duration::from_secs(60);

type Shared = State<Arc<Door>>;
type Whose = Extension<Target>;
type Slow = Option<Extension<Patience>>;
type Answer = Result<Response, ConnectError>;

pub(super) fn routes() -> Router<Arc<Door>> {
    Router::new()
        .route("/process.Process/Start", post(start))
        .route("/process.Process/Connect", post(connect))
        .route("/process.Process/StreamInput", post(stream_input))
        .route("/process.Process/SendInput", post(send_input))
        .route("/process.Process/CloseStdin", post(close_stdin))
        .route("/process.Process/SendSignal", post(send_signal))
        .route("/process.Process/Update", post(update))
        .route("/process.Process/List", post(list))
}

#[derive(Debug, Deserialize)]
struct StartRequest {
    process: Config,
    #[serde(default)]
    pty: Option<Pty>,
    #[serde(default)]
    tag: Option<String>,
    /// Absent of old clients, which expect that they can write.
    #[serde(default)]
    stdin: Option<bool>,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default)]
struct Pty {
    size: Option<Size>,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default)]
struct Size {
    cols: u32,
    rows: u32,
}

impl Pty {
    fn size(self) -> Result<PtySize, ConnectError> {
        let size = self.size.unwrap_or(Size { cols: 80, rows: 24 });
        match (u16::try_from(size.rows), u16::try_from(size.cols)) {
            (Ok(rows), Ok(columns)) => Ok(PtySize { rows, columns }),
            _ => Err(ConnectError::invalid("the terminal is too large")),
        }
    }
}

#[derive(Debug, Deserialize)]
struct OfProcess {
    process: Selector,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Input {
    stdin: Option<String>,
    pty: Option<String>,
}

#[derive(Debug, Deserialize)]
struct InputRequest {
    process: Selector,
    #[serde(default)]
    input: Input,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct StreamInputRequest {
    start: Option<OfProcess>,
    data: Option<DataOf>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct DataOf {
    input: Input,
}

#[derive(Debug, Deserialize)]
struct SignalRequest {
    process: Selector,
    #[serde(default)]
    signal: Value,
}

#[derive(Debug, Deserialize)]
struct UpdateRequest {
    process: Selector,
    #[serde(default)]
    pty: Option<Pty>,
}

async fn start(
    State(door): Shared,
    Extension(target): Whose,
    slow: Slow,
    request: Request,
) -> Response {
    let started = async {
        let call: Call<StartRequest> = rpc::opening(request).await?;
        let keepalive = keepalive(&call.headers, KEEPALIVE);
        let (request, meta) = exec_request(&door, &target, &call).await?;
        let (process, listener) = door
            .envd
            .processes
            .start(&door, &target.sandbox, request, meta)
            .await?;
        // The guest ends it when its time is over, wherever its client is by then.
        let deadline = call.timeout.map(|timeout| Instant::now() + timeout + GRACE);
        Ok(events(&door, &process, listener, keepalive, deadline))
    };
    let started = started.await;
    rpc::streamed(slow.as_deref(), started)
}

async fn exec_request(
    door: &Door,
    target: &Target,
    call: &Call<StartRequest>,
) -> Result<(ExecRequest, Meta), ConnectError> {
    let config = &call.message.process;
    if config.cmd.is_empty() {
        return Err(ConnectError::invalid("there is no command to run"));
    }
    let user = user_of(&call.headers, target)?;
    let cwd = config.cwd.clone().filter(|cwd| !cwd.is_empty());
    let cwd = match cwd.or_else(|| target.record.cwd.clone()) {
        Some(cwd) if !cwd.starts_with('/') => {
            let guest = guest(door, &target.sandbox).await?;
            let found = guest.look(&user, &cwd).await;
            Some(found.map_err(|error| super::of_file(&error))?.path)
        }
        cwd => cwd,
    };
    let mut env = target.record.envs.clone();
    env.extend(config.envs.clone());
    let pty = call.message.pty.map(Pty::size).transpose()?;
    let mut argv = vec![config.cmd.clone()];
    argv.extend(config.args.iter().cloned());
    let request = ExecRequest {
        argv,
        env,
        cwd,
        user: Some(user).filter(|user| !user.is_empty()),
        stdin: call.message.stdin.unwrap_or(true),
        timeout: call.timeout,
        pty,
        // A client that goes away ends nothing.
        keep: true,
        id: None,
    };
    let meta = Meta {
        config: config.clone(),
        tag: call.message.tag.clone().filter(|tag| !tag.is_empty()),
    };
    Ok((request, meta))
}

async fn connect(
    State(door): Shared,
    Extension(target): Whose,
    slow: Slow,
    request: Request,
) -> Response {
    let connected = async {
        let call: Call<OfProcess> = rpc::opening(request).await?;
        let keepalive = keepalive(&call.headers, KEEPALIVE);
        let (process, listener) = door
            .envd
            .processes
            .find(&door, &target.sandbox, &call.message.process)
            .await?;
        // Its own time is the program's; this client's only ends its listening.
        let deadline = call.timeout.map(|timeout| Instant::now() + timeout);
        Ok(events(&door, &process, listener, keepalive, deadline))
    };
    let connected = connected.await;
    rpc::streamed(slow.as_deref(), connected)
}

/// What a stream of events goes through.
struct Telling {
    first: Option<u32>,
    listener: mpsc::Receiver<Said>,
    has_terminal: bool,
    keepalive: Duration,
    deadline: Option<Instant>,
    stop: tokio_util::sync::CancellationToken,
    /// Frames that are still to be said, then nothing.
    over: Option<Vec<Bytes>>,
}

fn events(
    door: &Door,
    process: &Arc<Process>,
    listener: mpsc::Receiver<Said>,
    keepalive: Duration,
    deadline: Option<Instant>,
) -> impl Stream<Item = Bytes> + use<> {
    let telling = Telling {
        first: Some(process.pid),
        listener,
        has_terminal: process.has_terminal,
        keepalive,
        deadline,
        stop: door.node.stop.clone(),
        over: None,
    };
    stream::unfold(telling, |mut telling| async move {
        let frame = telling.next().await?;
        Some((frame, telling))
    })
}

impl Telling {
    async fn next(&mut self) -> Option<Bytes> {
        if let Some(over) = &mut self.over {
            return (!over.is_empty()).then(|| over.remove(0));
        }
        if let Some(pid) = self.first.take() {
            return Some(event(json!({ "start": { "pid": pid } })));
        }
        let quiet = Instant::now() + self.keepalive;
        let deadline = self.deadline.unwrap_or(quiet + self.keepalive);
        let said = tokio::select! {
            biased;
            said = self.listener.recv() => said,
            () = self.stop.cancelled() => None,
            () = sleep_until(deadline), if self.deadline.is_some() => {
                Some(Said::Lost(too_late()))
            }
            () = sleep_until(quiet) => {
                return Some(event(json!({ "keepalive": {} })));
            }
        };
        let lost = || ConnectError::new(Code::Unavailable, "the node stops");
        let frames = match said.unwrap_or_else(|| Said::Lost(lost())) {
            Said::Stdout(bytes) if self.has_terminal => return Some(data("pty", &bytes)),
            Said::Stdout(bytes) => return Some(data("stdout", &bytes)),
            Said::Stderr(bytes) => return Some(data("stderr", &bytes)),
            // As `envd`, which sends no end of a program that ran out of its time.
            Said::End(ExitStatus::TimedOut) => vec![connect::end(Some(&too_late()))],
            Said::End(status) => vec![event(json!({ "end": ended(status) })), connect::end(None)],
            Said::Lost(error) => vec![connect::end(Some(&error))],
        };
        let over = self.over.insert(frames);
        Some(over.remove(0))
    }
}

fn event(event: Value) -> Bytes {
    connect::message(&json!({ "event": event }))
}

fn data(of: &str, bytes: &[u8]) -> Bytes {
    event(json!({ "data": { of: data_encoding::BASE64.encode(bytes) } }))
}

/// Returns an `EndEvent`, as Go tells of a process's end.
fn ended(status: ExitStatus) -> Value {
    match status {
        ExitStatus::Code(code) => {
            let mut end = json!({
                "exitCode": code,
                "exited": true,
                "status": format!("exit status {code}"),
            });
            if code != 0 {
                end["error"] = format!("exit status {code}").into();
            }
            end
        }
        ExitStatus::Signal(number) => {
            let status = format!("signal: {}", signal_name(number));
            json!({ "exitCode": -1, "exited": false, "status": status, "error": status })
        }
        ExitStatus::TimedOut => {
            json!({ "exitCode": -1, "exited": false, "status": "signal: killed" })
        }
    }
}

fn signal_name(number: i32) -> String {
    match number {
        1 => "hangup",
        2 => "interrupt",
        3 => "quit",
        4 => "illegal instruction",
        5 => "trace/breakpoint trap",
        6 => "aborted",
        7 => "bus error",
        8 => "floating point exception",
        9 => "killed",
        10 => "user defined signal 1",
        11 => "segmentation fault",
        12 => "user defined signal 2",
        13 => "broken pipe",
        14 => "alarm clock",
        15 => "terminated",
        other => return format!("signal {other}"),
    }
    .to_owned()
}

async fn stream_input(
    State(door): Shared,
    Extension(target): Whose,
    slow: Slow,
    request: Request,
) -> Response {
    let fed = feed(&door, &target, request).await;
    let answered = fed.map(|()| {
        let frames = [connect::message(&json!({})), connect::end(None)];
        stream::iter(frames)
    });
    rpc::streamed(slow.as_deref(), answered)
}

async fn feed(door: &Arc<Door>, target: &Target, request: Request) -> Result<(), ConnectError> {
    let (parts, body) = request.into_parts();
    connect::check_shape(&parts.headers, Shape::Stream)?;
    let deadline = connect::timeout(&parts.headers)?.map(|timeout| Instant::now() + timeout);
    let mut messages = Messages::of(body);
    let work = async {
        let mut process = None;
        while let Some(message) = messages.next().await? {
            let message: StreamInputRequest = rpc::parse(&message)?;
            match (message.start, message.data, &process) {
                (Some(start), _, None) => {
                    let found = &door.envd.processes;
                    let found = found.find(door, &target.sandbox, &start.process).await?;
                    process = Some(found.0);
                }
                (Some(_), _, Some(_)) => {
                    return Err(ConnectError::invalid("the stream starts twice"));
                }
                (None, Some(data), Some(process)) => give(process, &data.input).await?,
                (None, Some(_), None) => {
                    return Err(ConnectError::invalid("the stream names no process"));
                }
                // Only to keep the connection open.
                (None, None, _) => {}
            }
        }
        Ok(())
    };
    let done = rpc::until(deadline, work).await;
    done.unwrap_or_else(|| Err(too_late()))
}

async fn give(process: &Process, input: &Input) -> Result<(), ConnectError> {
    let (encoded, terminal) = match (&input.stdin, &input.pty) {
        (Some(stdin), None) => (stdin, false),
        (None, Some(pty)) => (pty, true),
        _ => return Err(ConnectError::invalid("input is `stdin` or `pty`")),
    };
    if terminal != process.has_terminal {
        return Err(ConnectError::invalid(match terminal {
            true => "the process has no terminal",
            false => "the process has a terminal: send its input as `pty`",
        }));
    }
    if !process.takes_input {
        return Err(ConnectError::new(
            Code::FailedPrecondition,
            "the process was started without standard input",
        ));
    }
    let bytes = data_encoding::BASE64
        .decode(encoded.as_bytes())
        .map_err(|error| ConnectError::invalid(format!("input is not base64: {error}")))?;
    process.write(&bytes).await
}

async fn send_input(State(door): Shared, Extension(target): Whose, request: Request) -> Answer {
    let call: Call<InputRequest> = rpc::unary(request).await?;
    let timeout = call.timeout.unwrap_or(INPUT_TIMEOUT);
    Call::<()>::within(Some(timeout), async {
        let processes = &door.envd.processes;
        let which = &call.message.process;
        let (process, listener) = processes.find(&door, &target.sandbox, which).await?;
        drop(listener);
        give(&process, &call.message.input).await?;
        Ok(json!({}))
    })
    .await
}

async fn close_stdin(State(door): Shared, Extension(target): Whose, request: Request) -> Answer {
    let call: Call<OfProcess> = rpc::unary(request).await?;
    Call::<()>::within(call.timeout, async {
        let processes = &door.envd.processes;
        let which = &call.message.process;
        let (process, listener) = processes.find(&door, &target.sandbox, which).await?;
        drop(listener);
        if process.has_terminal {
            return Err(ConnectError::new(
                Code::FailedPrecondition,
                "a terminal's input ends with ^D",
            ));
        }
        let closed = process.input().close_stdin().await;
        closed.map_err(|error| of_exec(&error))?;
        Ok(json!({}))
    })
    .await
}

async fn send_signal(State(door): Shared, Extension(target): Whose, request: Request) -> Answer {
    let call: Call<SignalRequest> = rpc::unary(request).await?;
    Call::<()>::within(call.timeout, async {
        let number = match &call.message.signal {
            Value::String(name) if name == "SIGNAL_SIGKILL" => 9,
            Value::String(name) if name == "SIGNAL_SIGTERM" => 15,
            Value::Number(number) if [Some(9), Some(15)].contains(&number.as_i64()) => {
                if number.as_i64() == Some(9) { 9 } else { 15 }
            }
            _ => {
                return Err(ConnectError::invalid(
                    "the signal is SIGNAL_SIGKILL or SIGNAL_SIGTERM",
                ));
            }
        };
        let processes = &door.envd.processes;
        let which = &call.message.process;
        let status = processes.running(&door, &target.sandbox, which).await?;
        let guest = guest(&door, &target.sandbox).await?;
        let signalled = guest.signal_exec(status.id, number).await;
        signalled.map_err(|error| of_exec(&error))?;
        Ok(json!({}))
    })
    .await
}

async fn update(State(door): Shared, Extension(target): Whose, request: Request) -> Answer {
    let call: Call<UpdateRequest> = rpc::unary(request).await?;
    Call::<()>::within(call.timeout, async {
        let Some(pty) = call.message.pty else {
            return Ok(json!({}));
        };
        let size = pty.size()?;
        let processes = &door.envd.processes;
        let which = &call.message.process;
        let (process, listener) = processes.find(&door, &target.sandbox, which).await?;
        drop(listener);
        if !process.has_terminal {
            return Err(ConnectError::new(
                Code::FailedPrecondition,
                "the process has no terminal",
            ));
        }
        let resized = process.input().resize(size).await;
        resized.map_err(|error| of_exec(&error))?;
        Ok(json!({}))
    })
    .await
}

async fn list(State(door): Shared, Extension(target): Whose, request: Request) -> Answer {
    let call: Call<Value> = rpc::unary(request).await?;
    Call::<()>::within(call.timeout, async {
        let all = door.envd.processes.list(&door, &target.sandbox).await?;
        let told = all.into_iter().map(|(status, meta)| {
            let mut told = json!({ "config": meta.config, "pid": status.pid });
            if let Some(tag) = &meta.tag {
                told["tag"] = tag.as_str().into();
            }
            told
        });
        Ok(json!({ "processes": told.collect::<Vec<_>>() }))
    })
    .await
}

/// Returns how often a stream says that it is there, as a client asks, or as `default` has it.
pub(super) fn keepalive(headers: &HeaderMap, default: Duration) -> Duration {
    let said = headers
        .get("keepalive-ping-interval")
        .and_then(|said| said.to_str().ok()?.trim().parse::<u64>().ok());
    said.map_or(default, |seconds| {
        let (least, most) = (*KEEPALIVE_SECONDS.start(), *KEEPALIVE_SECONDS.end());
        Duration::from_secs(seconds.clamp(least, most))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_told_as_go_tells_it() {
        let zero = ended(ExitStatus::Code(0));
        assert_eq!(zero["exitCode"], 0);
        assert_eq!(zero["status"], "exit status 0");
        assert!(zero.get("error").is_none());
        assert_eq!(ended(ExitStatus::Code(3))["error"], "exit status 3");
        let killed = ended(ExitStatus::Signal(9));
        assert_eq!(killed["exitCode"], -1);
        assert_eq!(killed["status"], "signal: killed");
        assert_eq!(
            ended(ExitStatus::Signal(15))["status"],
            "signal: terminated"
        );
        assert_eq!(ended(ExitStatus::Signal(34))["status"], "signal: signal 34");
    }

    #[test]
    fn requests_are_read_as_clients_spell_them() {
        let start: StartRequest = rpc::parse(
            br#"{"process":{"cmd":"/bin/bash","args":["-l","-c","true"],"envs":{"A":"b"},"cwd":"x","more":1},
                "pty":{"size":{"cols":80,"rows":24}},"tag":"t","stdin":false}"#,
        )
        .unwrap();
        assert_eq!(start.process.args, ["-l", "-c", "true"]);
        let size = start.pty.unwrap().size().unwrap();
        assert_eq!((size.columns, size.rows), (80, 24));
        let of: OfProcess = rpc::parse(br#"{"process":{"pid":7}}"#).unwrap();
        assert_eq!(of.process, Selector::Pid(7));
        let of: OfProcess = rpc::parse(br#"{"process":{"tag":"t"}}"#).unwrap();
        assert_eq!(of.process, Selector::Tag("t".to_owned()));
        for wrong in [
            &b"{\"process\":{}}"[..],
            b"{}",
            b"[",
            b"{\"process\":{\"pid\":-1}}",
        ] {
            let error = rpc::parse::<OfProcess>(wrong).unwrap_err();
            assert_eq!(error.code, Code::InvalidArgument);
        }
        let large = Pty {
            size: Some(Size {
                cols: 70_000,
                rows: 1,
            }),
        };
        assert!(large.size().is_err());
    }

    #[test]
    fn keepalives_come_as_often_as_was_asked_within_reason() {
        let of = |said: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("Keepalive-Ping-Interval", said.parse().unwrap());
            keepalive(&headers, KEEPALIVE)
        };
        assert_eq!(of("50"), Duration::from_secs(50));
        assert_eq!(of("0"), Duration::from_secs(1));
        assert_eq!(of("99999999"), Duration::from_secs(3600));
        assert_eq!(of("x"), KEEPALIVE);
    }
}
