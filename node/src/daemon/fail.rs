//! From the errors of the crates below to those of the API: a status, a code, their hint.
//!
//! One function per family; the message and the causes are the error's own.
use std::{error::Error, fmt, io};

use axum::http::StatusCode;
use rhizome_identity::{InviteError, IssueError, KeyFileError};
use rhizome_memory::{PublishError, RecallError, ReplicaError};
use rhizome_mesh::net::{JoinError, Refusal, ReplicaTimeout};
use rhizome_sandbox::{
    SandboxError,
    channel::{ExecError, FileError, ForwardError},
    chunks::ChunkError,
    image::ImageError,
    life::Refused,
    snapshot::SnapshotError,
};

use crate::{
    agents::AgentKeysError,
    backup::BackupError,
    config::ConfigError,
    error::{ApiError, is_disk_full},
};

pub(crate) fn publish(error: PublishError) -> ApiError {
    let (status, code) = match &error {
        _ if is_disk_full(&error) => return full(&error),
        PublishError::Denied { .. } => (StatusCode::FORBIDDEN, "denied"),
        PublishError::Restored(_) => (StatusCode::CONFLICT, "restored"),
        PublishError::NoMesh => (StatusCode::CONFLICT, "no_mesh"),
        PublishError::UnknownSpace(_) => (StatusCode::NOT_FOUND, "unknown_space"),
        PublishError::NoKey { .. } => (StatusCode::FORBIDDEN, "no_key"),
        PublishError::NothingToRedact(_) => (StatusCode::NOT_FOUND, "not_found"),
        PublishError::NotRedactable(_) => (StatusCode::FORBIDDEN, "denied"),
        PublishError::LongReason { .. } => (StatusCode::BAD_REQUEST, "bad_request"),
        PublishError::OverShare(_) => (StatusCode::TOO_MANY_REQUESTS, "over_share"),
        PublishError::Compose(_) | PublishError::TooLarge { .. } | PublishError::Fragment(_) => {
            (StatusCode::BAD_REQUEST, "bad_draft")
        }
        _ => (StatusCode::INTERNAL_SERVER_ERROR, "publish_failed"),
    };
    ApiError::of(status, code, &error).maybe_hint(error.hint())
}

pub(crate) fn replica(error: ReplicaError) -> ApiError {
    if is_disk_full(&error) {
        return full(&error);
    }
    let status = StatusCode::INTERNAL_SERVER_ERROR;
    ApiError::of(status, "store_failed", &error).maybe_hint(error.hint())
}

pub(crate) fn recall(error: RecallError) -> ApiError {
    let (status, code) = match error {
        RecallError::Blank | RecallError::TooLong { .. } => (StatusCode::BAD_REQUEST, "bad_query"),
        _ => (StatusCode::INTERNAL_SERVER_ERROR, "recall_failed"),
    };
    ApiError::of(status, code, &error).maybe_hint(error.hint())
}

pub(crate) fn replicas(error: &ReplicaTimeout, id: &str) -> ApiError {
    let mut failed = ApiError::of(StatusCode::GATEWAY_TIMEOUT, "replicas_timeout", error)
        .maybe_hint(error.hint());
    let durable = ApiError::not_found(format!("the fragment {id} is durable on this node"));
    failed = failed.caused_by(Some(&durable));
    failed
}

pub(crate) fn issue(error: IssueError) -> ApiError {
    ApiError::of(StatusCode::FORBIDDEN, "not_allowed", &error).maybe_hint(error.hint())
}

pub(crate) fn key_file(error: KeyFileError) -> ApiError {
    if is_disk_full(&error) {
        return full(&error);
    }
    let status = StatusCode::INTERNAL_SERVER_ERROR;
    ApiError::of(status, "key_file", &error).maybe_hint(error.hint())
}

pub(crate) fn backup(error: &BackupError) -> ApiError {
    let (status, code) = match error {
        _ if is_disk_full(error) => return full(error),
        BackupError::NoRecipient | BackupError::Recipient(_) => {
            (StatusCode::BAD_REQUEST, "bad_recipient")
        }
        BackupError::Changed { .. } => (StatusCode::CONFLICT, "changed"),
        _ => (StatusCode::INTERNAL_SERVER_ERROR, "backup_failed"),
    };
    ApiError::of(status, code, error).maybe_hint(error.hint())
}

pub(crate) fn agent_keys(error: &AgentKeysError) -> ApiError {
    let (status, code) = match error {
        _ if is_disk_full(error) => return full(error),
        AgentKeysError::Name { .. } => (StatusCode::BAD_REQUEST, "bad_name"),
        _ => (StatusCode::INTERNAL_SERVER_ERROR, "key_file"),
    };
    ApiError::of(status, code, error).maybe_hint(error.hint())
}

pub(crate) fn name(error: ConfigError) -> ApiError {
    ApiError::of(StatusCode::BAD_REQUEST, "bad_name", &error)
}

pub(crate) fn invite(error: &InviteError) -> ApiError {
    ApiError::of(StatusCode::BAD_REQUEST, "bad_invite", error).hint(error.hint())
}

pub(crate) fn join(error: &JoinError) -> ApiError {
    let (status, code) = match error {
        _ if is_disk_full(error) => return full(error),
        JoinError::Unreachable { .. } => (StatusCode::BAD_GATEWAY, "inviter_unreachable"),
        JoinError::TimedOut(_) => (StatusCode::GATEWAY_TIMEOUT, "inviter_silent"),
        JoinError::Refused(refusal) => (StatusCode::FORBIDDEN, refused(*refusal)),
        JoinError::Expired { .. } => (StatusCode::FORBIDDEN, "invite_expired"),
        JoinError::AlreadyMember { .. } => (StatusCode::CONFLICT, "already_in_mesh"),
        JoinError::OwnInvite => (StatusCode::BAD_REQUEST, "own_invite"),
        _ => (StatusCode::BAD_GATEWAY, "join_failed"),
    };
    ApiError::of(status, code, error).maybe_hint(error.hint())
}

fn refused(refusal: Refusal) -> &'static str {
    match refusal {
        Refusal::Unknown => "invite_unknown",
        Refusal::Expired => "invite_expired",
        Refusal::Spent => "invite_spent",
        Refusal::Closed => "invite_closed",
        Refusal::WrongMesh => "invite_wrong_mesh",
        Refusal::ApprovalNeeded => "invite_needs_approval",
        _ => "invite_refused",
    }
}

pub(crate) fn sandbox(error: &SandboxError) -> ApiError {
    let (status, code) = match error {
        _ if is_disk_full(error) => return full(error),
        SandboxError::Unknown { .. } => (StatusCode::NOT_FOUND, "unknown_sandbox"),
        SandboxError::Ambiguous { .. } => (StatusCode::BAD_REQUEST, "ambiguous_sandbox"),
        SandboxError::Invalid { .. } => (StatusCode::BAD_REQUEST, "bad_request"),
        SandboxError::NameTaken { .. } => (StatusCode::CONFLICT, "name_taken"),
        SandboxError::LimitReached { .. } => (StatusCode::TOO_MANY_REQUESTS, "limit_reached"),
        SandboxError::OverQuota(_) => (StatusCode::TOO_MANY_REQUESTS, "quota_exceeded"),
        SandboxError::NotRunning { .. } | SandboxError::Cancelled { .. } => {
            (StatusCode::GONE, "sandbox_gone")
        }
        SandboxError::StateLost { .. } => (StatusCode::GONE, "state_lost"),
        SandboxError::Refused { why, .. } => (StatusCode::CONFLICT, refusal(*why)),
        SandboxError::Arriving { .. } => (StatusCode::CONFLICT, "disk_arriving"),
        SandboxError::Contract { .. } => (StatusCode::CONFLICT, "contract_broken"),
        SandboxError::NoSnapshot { .. } => (StatusCode::CONFLICT, "no_snapshot"),
        SandboxError::UnknownSnapshot { .. } => (StatusCode::NOT_FOUND, "unknown_snapshot"),
        SandboxError::Lease(_) => (StatusCode::BAD_REQUEST, "bad_request"),
        SandboxError::Quiesce { .. } => (StatusCode::BAD_GATEWAY, "guest_failed"),
        SandboxError::Snapshot(SnapshotError::Incompatible(_)) => {
            (StatusCode::CONFLICT, "incompatible")
        }
        SandboxError::Snapshot(SnapshotError::Archive { .. }) => {
            (StatusCode::BAD_REQUEST, "bad_snapshot")
        }
        SandboxError::Snapshot(SnapshotError::Sealed) => (StatusCode::FORBIDDEN, "no_key"),
        SandboxError::Snapshot(SnapshotError::Io { source, .. })
            if matches!(
                source.kind(),
                io::ErrorKind::AlreadyExists
                    | io::ErrorKind::NotFound
                    | io::ErrorKind::PermissionDenied
            ) =>
        {
            (StatusCode::BAD_REQUEST, "bad_path")
        }
        SandboxError::Chunks(lost) | SandboxError::Snapshot(SnapshotError::Chunks(lost))
            if lost.is_missing() =>
        {
            (StatusCode::BAD_GATEWAY, "packs_missing")
        }
        SandboxError::Snapshot(_) | SandboxError::Chunks(_) => {
            (StatusCode::INTERNAL_SERVER_ERROR, "snapshot_failed")
        }
        SandboxError::Exec { source, .. } => exec_code(source),
        SandboxError::File { source, .. } => file_code(source),
        SandboxError::Network { .. } => (StatusCode::BAD_GATEWAY, "network_failed"),
        SandboxError::Image(source) => image_code(source),
        SandboxError::Stopping => (StatusCode::SERVICE_UNAVAILABLE, "stopping"),
        _ => (StatusCode::INTERNAL_SERVER_ERROR, "sandbox_failed"),
    };
    ApiError::of(status, code, error).maybe_hint(error.hint())
}

fn refusal(why: Refused) -> &'static str {
    match why {
        Refused::Busy(_) => "busy",
        Refused::Paused => "paused",
        Refused::Hibernated => "hibernated",
        Refused::Stopped => "stopped",
        Refused::Lost => "state_lost",
        Refused::Ended(_) => "sandbox_gone",
        Refused::Running => "running",
        _ => "refused",
    }
}

/// The error of a command that could not run, or whose end is not known.
pub(crate) fn exec(error: &ExecError) -> ApiError {
    let (status, code) = exec_code(error);
    ApiError::of(status, code, error).maybe_hint(error.hint())
}

/// The error of a file or directory that could not be used.
pub(crate) fn file(error: &FileError) -> ApiError {
    let (status, code) = file_code(error);
    ApiError::of(status, code, error).maybe_hint(error.hint())
}

/// The error of a port that could not be reached.
pub(crate) fn forward(error: &ForwardError) -> ApiError {
    let (status, code) = match error {
        ForwardError::Refused { .. } => (StatusCode::BAD_GATEWAY, "port_refused"),
        ForwardError::Busy => (StatusCode::TOO_MANY_REQUESTS, "busy"),
        ForwardError::SandboxGone { .. } => (StatusCode::GONE, "sandbox_gone"),
        _ => (StatusCode::BAD_GATEWAY, "guest_failed"),
    };
    ApiError::of(status, code, error).maybe_hint(error.hint())
}

fn exec_code(error: &ExecError) -> (StatusCode, &'static str) {
    match error {
        ExecError::NoSuchProgram { .. } => (StatusCode::NOT_FOUND, "no_such_program"),
        ExecError::NotExecutable { .. } => (StatusCode::BAD_REQUEST, "not_executable"),
        ExecError::NoSuchUser { .. } | ExecError::NoSuchCwd { .. } | ExecError::Invalid { .. } => {
            (StatusCode::BAD_REQUEST, "bad_request")
        }
        ExecError::TooLarge { .. } => (StatusCode::PAYLOAD_TOO_LARGE, "too_large"),
        ExecError::Busy => (StatusCode::TOO_MANY_REQUESTS, "busy"),
        ExecError::NoSuchExec { .. } => (StatusCode::NOT_FOUND, "no_such_exec"),
        ExecError::IdTaken => (StatusCode::CONFLICT, "id_taken"),
        ExecError::TakenOver => (StatusCode::CONFLICT, "taken_over"),
        ExecError::AtRest => (StatusCode::CONFLICT, "at_rest"),
        ExecError::SandboxGone { .. } => (StatusCode::GONE, "sandbox_gone"),
        _ => (StatusCode::BAD_GATEWAY, "guest_failed"),
    }
}

fn file_code(error: &FileError) -> (StatusCode, &'static str) {
    match error {
        FileError::NotFound { .. } => (StatusCode::NOT_FOUND, "no_such_file"),
        FileError::InvalidPath { .. } | FileError::Source { .. } => {
            (StatusCode::BAD_REQUEST, "bad_request")
        }
        FileError::TooManyEntries { .. } => (StatusCode::PAYLOAD_TOO_LARGE, "too_large"),
        FileError::SandboxGone { .. } => (StatusCode::GONE, "sandbox_gone"),
        FileError::OldGuest { .. } => (StatusCode::NOT_IMPLEMENTED, "old_guest"),
        _ => (StatusCode::BAD_GATEWAY, "guest_failed"),
    }
}

pub(crate) fn image(error: &ImageError) -> ApiError {
    if is_disk_full(error) {
        return full(error);
    }
    let (status, code) = match error {
        ImageError::Sandbox(source) => return sandbox(source),
        other => image_code(other),
    };
    ApiError::of(status, code, error).maybe_hint(error.hint())
}

fn image_code(error: &ImageError) -> (StatusCode, &'static str) {
    match error {
        ImageError::Unknown { .. } | ImageError::NotBuilt { .. } => {
            (StatusCode::NOT_FOUND, "unknown_image")
        }
        ImageError::Ambiguous { .. } => (StatusCode::BAD_REQUEST, "ambiguous_image"),
        ImageError::BadName { .. } | ImageError::BadPackage { .. } => {
            (StatusCode::BAD_REQUEST, "bad_name")
        }
        ImageError::InUse { .. } => (StatusCode::CONFLICT, "image_in_use"),
        ImageError::Import { .. } | ImageError::Copy { .. } => {
            (StatusCode::BAD_REQUEST, "bad_image")
        }
        _ => (StatusCode::INTERNAL_SERVER_ERROR, "image_failed"),
    }
}

pub(crate) fn chunks(error: &ChunkError) -> ApiError {
    if is_disk_full(error) {
        return full(error);
    }
    let status = StatusCode::INTERNAL_SERVER_ERROR;
    ApiError::of(status, "chunks_failed", error).maybe_hint(error.hint())
}

fn full<E: Error + fmt::Debug + 'static>(error: &E) -> ApiError {
    ApiError::of(StatusCode::INSUFFICIENT_STORAGE, "disk_full", error)
        .hint("nothing that was acknowledged is lost; make room on the data directory's disk and try again")
}
