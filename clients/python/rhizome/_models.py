"""What the API takes and answers. Made by tools/generate.py from docs/openapi.json: do not edit."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Dict, List, Literal, Optional, Union

from ._model import Model

__all__ = [
    "Agent",
    "AgentBody",
    "AgentCreated",
    "AgentRevoked",
    "Agents",
    "Ancestor",
    "ApproveBody",
    "ArchiveBody",
    "Arriving",
    "Artifact",
    "AttachBody",
    "AuditEntry",
    "AuditPage",
    "BackupBody",
    "Check",
    "CheckpointBody",
    "ClaimBody",
    "Claimed",
    "CommitBody",
    "Context",
    "ContextSummary",
    "Contexts",
    "Copies",
    "Decision",
    "Denial",
    "Denials",
    "Difference",
    "DirListing",
    "Doctor",
    "Done",
    "DownBody",
    "Drained",
    "Driver",
    "E2bDoor",
    "EgressUsage",
    "EntryOfArtifact",
    "EntryOfDecision",
    "EntryOfErrorEntry",
    "EntryOfExplored",
    "EntryOfLine",
    "EntryOfWorkedIn",
    "ErrorBody",
    "ErrorEntry",
    "ErrorInfo",
    "Exec",
    "ExecBody",
    "ExecEnd",
    "ExecStarted",
    "Execs",
    "Explored",
    "Facts",
    "FileBody",
    "FileChange",
    "FileChanged",
    "FileEntry",
    "FileLine",
    "FileList",
    "FileOp",
    "FileShown",
    "FileStat",
    "FileWritten",
    "Fork",
    "ForkBody",
    "Forked",
    "Founded",
    "Health",
    "Held",
    "Hit",
    "HoldBody",
    "Image",
    "ImageBody",
    "ImageBuilt",
    "ImagePart",
    "ImagePushed",
    "ImageShown",
    "Images",
    "ImagesRemoved",
    "ImportBody",
    "ImportBody2",
    "ImportEntity",
    "ImportRelation",
    "Imported",
    "InitBody",
    "InviteBody",
    "InviteClosed",
    "InviteCreated",
    "InviteInfo",
    "Invites",
    "JoinBody",
    "JoinRequest",
    "JoinRequests",
    "Joined",
    "KeysAtRest",
    "Lease",
    "LeaseBody",
    "Member",
    "MemberChain",
    "MemberRestored",
    "MemberRevocation",
    "MemberRevoked",
    "MemberRole",
    "MemberShown",
    "Members",
    "Memory",
    "MemoryHistory",
    "MemoryList",
    "MemoryShown",
    "Mended",
    "Named",
    "Network",
    "NetworkBody",
    "NodeFacts",
    "Nodes",
    "OfferBody",
    "Offered",
    "PackChunks",
    "PackChunksBody",
    "Peer",
    "PeerPath",
    "PeerSync",
    "Peers",
    "Policy",
    "Pool",
    "PoolGuest",
    "Progress",
    "ProgressLine",
    "ProgressLine10",
    "ProgressLine11",
    "ProgressLine12",
    "ProgressLine13",
    "ProgressLine2",
    "ProgressLine3",
    "ProgressLine4",
    "ProgressLine5",
    "ProgressLine6",
    "ProgressLine7",
    "ProgressLine8",
    "ProgressLine9",
    "ProtectBody",
    "Pty",
    "PublishBody",
    "Published",
    "PushBody",
    "Quota",
    "QuotaBody",
    "QuotaList",
    "RecallBody",
    "Recalled",
    "RecipeBody",
    "Recovery",
    "RedactBody",
    "RedactReceipt",
    "Redaction",
    "RefusedLine",
    "Replicated",
    "RestoreBody",
    "RestoreMemberBody",
    "ResumeBody",
    "Resumed",
    "RootRotated",
    "Runtime",
    "RuntimeDifferences",
    "RuntimeLine",
    "Runtimes",
    "Sandbox",
    "SandboxBody",
    "SandboxCreated",
    "SandboxResumeBody",
    "SandboxSummary",
    "Sandboxes",
    "Secret",
    "SecretSet",
    "SecretShown",
    "Secrets",
    "SelfInfo",
    "SelfSpace",
    "Setting",
    "Settings",
    "ShareUse",
    "SignalBody",
    "Snapshot",
    "SnapshotBody",
    "SnapshotExported",
    "SnapshotTaken",
    "Snapshots",
    "Space",
    "SpaceBody",
    "SpaceCreated",
    "SpaceRotated",
    "Spaces",
    "Status",
    "TakeBody",
    "Token",
    "TokenBody",
    "TokenCreated",
    "TokenRevoked",
    "Tokens",
    "Unanswered",
    "UsageAnswer",
    "UsageRow",
    "Verification",
    "VerifiedFragment",
    "Volume",
    "VolumeArrived",
    "VolumeAttachBody",
    "VolumeAttached",
    "VolumeBody",
    "VolumeChange",
    "VolumeCheckpointBody",
    "VolumeCommitted",
    "VolumeConflict",
    "VolumeDetachBody",
    "VolumeDiff",
    "VolumeForgetBody",
    "VolumeForgotten",
    "VolumeHoldBody",
    "VolumeLog",
    "VolumeRepackBody",
    "VolumeRepacked",
    "VolumeShown",
    "VolumeVersion",
    "VolumeVersionBody",
    "Volumes",
    "Waiting",
    "WakeOn",
    "WakeOnBody",
    "WarmBody",
    "WatchEvent",
    "Who",
    "Why",
    "WhyRecord",
    "WokenBy",
]


@dataclass(frozen=True)
class Agent(Model):
    """An agent."""

    # Whether it is the agent this node speaks as when none is named.
    default: bool
    # Whether it signed two histories, as far as this node knows.
    forked: bool
    # Whether its key lies on this node.
    here: bool
    # Agent id.
    id: str
    # Name.
    name: str
    # The node that vouches for it.
    node: Named
    # Until when, if limited.
    not_after_ms: Optional[int] = None
    # The spaces it may use; absent if all of its node's.
    spaces: Optional[List[Named]] = None
    _nested: ClassVar[Dict[str, str]] = {'node': 'Named', 'spaces': '[Named]'}


@dataclass(frozen=True)
class AgentBody(Model):
    """`POST /v1/agents`."""

    # Its name, unique on this node: letters, digits, `-`, `_`, `.`; 64 at most.
    name: str
    # The agent of this node that certifies it, by name or id: the new one may do at most what that one may, and falls with it. The node itself by default.
    by: Optional[str] = None
    # For how long, in seconds; without end by default.
    expires_secs: Optional[int] = None
    # Names or ids of the spaces it may use; all of the node's if absent.
    spaces: Optional[List[str]] = None


@dataclass(frozen=True)
class AgentCreated(Model):
    """The answer to `AgentBody`."""

    # Whether it is the agent this node speaks as when none is named.
    default: bool
    # Whether it signed two histories, as far as this node knows.
    forked: bool
    # Whether its key lies on this node.
    here: bool
    # Agent id.
    id: str
    # Name.
    name: str
    # The node that vouches for it.
    node: Named
    # Schema number.
    schema: int
    # Until when, if limited.
    not_after_ms: Optional[int] = None
    # The spaces it may use; absent if all of its node's.
    spaces: Optional[List[Named]] = None
    _nested: ClassVar[Dict[str, str]] = {'node': 'Named', 'spaces': '[Named]'}


@dataclass(frozen=True)
class AgentRevoked(Model):
    """The answer to `DELETE /v1/agents/{agent}`."""

    # Whose key counts no more: nothing it said is shown on any node that has heard of this.
    agent: Named
    # Schema number.
    schema: int
    _nested: ClassVar[Dict[str, str]] = {'agent': 'Named'}


@dataclass(frozen=True)
class Agents(Model):
    """`GET /v1/agents`."""

    # The agents of the mesh, those of this node first.
    agents: List[Agent]
    # Schema number.
    schema: int
    _nested: ClassVar[Dict[str, str]] = {'agents': '[Agent]'}


@dataclass(frozen=True)
class Ancestor(Model):
    """One root file system in the descent of an image."""

    # How it was made, in words.
    lineage: List[str]
    # Its name; empty for a step of a recipe.
    name: str


@dataclass(frozen=True)
class ApproveBody(Model):
    """`POST /v1/invites/approve`; the answer is the `JoinRequests` of that node."""

    # The node: its id, a unique prefix of it, or the name it gave itself.
    node: str


@dataclass(frozen=True)
class ArchiveBody(Model):
    """`POST /v1/snapshots/{id}/export`, answered by `super::ProgressLine``<``SnapshotExported``>`, and `POST /v1/snapshots/import`, by `super::ProgressLine``<``SnapshotTaken``>`."""

    # The file, on the daemon's machine; an absolute path.
    path: str


@dataclass(frozen=True)
class Arriving(Model):
    """Disks that come behind a sandbox which goes on already."""

    # Bytes of the disks.
    bytes: int
    # Bytes that are not here yet.
    left: int
    # Why it is paused until more is here, if it asked for what no node gave.
    waits: Optional[str] = None


@dataclass(frozen=True)
class Artifact(Model):
    """Something that was made."""

    # Its name.
    name: str
    # Where it is: a path, a hash, a URL.
    reference: Optional[str] = None


@dataclass(frozen=True)
class AttachBody(Model):
    """`POST /v1/sandboxes/{id}/execs/{exec}/attach`, with `Upgrade: rhizome-exec/1`."""

    # Bytes of output, of both kinds together, that the client has; all that is kept by default.
    from_: Optional[int] = None
    # Only what comes from now on.
    new_only: Optional[bool] = None


@dataclass(frozen=True)
class AuditEntry(Model):
    """One action."""

    # What was done: `sandbox.create`, `sandbox.exec`, `invite.create`, …
    action: str
    # When it was done, in Unix milliseconds.
    at_ms: int
    # `ok`, `started` for what goes on, `left` where the asker did not wait, or the error's code.
    outcome: str
    # The first 32 digits of the BLAKE3 hash of the line before; of nothing for the first.
    prev: str
    # Its number, from 0, without gaps.
    seq: int
    # How long it took, in milliseconds.
    took_ms: int
    # Who asked.
    who: Who
    # More about it, such as the command of an `exec`; never an environment or an input.
    detail: Optional[str] = None
    # To what, where it has a name.
    on: Optional[str] = None
    _nested: ClassVar[Dict[str, str]] = {'who': 'Who'}


@dataclass(frozen=True)
class AuditPage(Model):
    """Entries of the audit log, oldest first."""

    # The entries.
    entries: List[AuditEntry]
    # How many entries there are in all, those that were rotated away included.
    next: int
    # Schema number.
    schema: int
    # The first entry that does not follow from the one before it, if one does not: a line was changed or taken out.
    broken_at: Optional[int] = None
    _nested: ClassVar[Dict[str, str]] = {'entries': '[AuditEntry]'}


@dataclass(frozen=True)
class BackupBody(Model):
    """`POST /v1/backup`. Either recipients or a passphrase are given."""

    # The passphrase that opens it.
    passphrase: Optional[str] = None
    # Who may open it, as age spells recipients: `age1…`.
    recipients: Optional[List[str]] = None
    # Also the packs of snapshots and volumes that are here.
    with_blobs: Optional[bool] = None


@dataclass(frozen=True)
class Check(Model):
    """One thing looked at."""

    # What was looked at, in a word or two.
    name: str
    # What was seen.
    seen: str
    # How it came out.
    status: Union[Literal['ok'], Literal['warn'], Literal['fail']]
    # The command that mends it.
    mend: Optional[str] = None


@dataclass(frozen=True)
class CheckpointBody(Model):
    """`POST /v1/context/checkpoint`: what changed since the last checkpoint of a task. Entries are added to what is there; `goal`, `status` and `next` replace it."""

    # The task's name.
    task: str
    # Name or id of the agent; the node's own agent by default. Refused from a guest.
    agent: Optional[str] = None
    # Things made.
    artifacts: Optional[List[Artifact]] = None
    # Decisions and their reasons.
    decisions: Optional[List[Decision]] = None
    # Errors met, with cause and fix where known.
    errors: Optional[List[ErrorEntry]] = None
    # Paths explored, with what came of them.
    explored: Optional[List[Explored]] = None
    # What the task is to reach.
    goal: Optional[str] = None
    # The next steps, in order.
    next: Optional[List[str]] = None
    # Questions that are open.
    questions: Optional[List[str]] = None
    # What is relied on in the runtime, such as `python3>=3.11`, in the place of what was; an empty list relies on nothing.
    requires: Optional[List[str]] = None
    # Open questions that have found their answer.
    resolved_questions: Optional[List[str]] = None
    # Name or id of the space; may be left out where there is only one.
    space: Optional[str] = None
    # Where it stands, in a word or a line.
    status: Optional[str] = None
    _nested: ClassVar[Dict[str, str]] = {'artifacts': '[Artifact]', 'decisions': '[Decision]', 'errors': '[ErrorEntry]', 'explored': '[Explored]'}


@dataclass(frozen=True)
class ClaimBody(Model):
    """`POST /v1/remote/claim`: may the asking node wake the sandbox?"""

    # The fragment that the asking node takes for the newest record.
    record: str
    # The sandbox.
    sandbox: str
    # The space of the record.
    space: str
    # True to give the claim back.
    release: Optional[bool] = None


@dataclass(frozen=True)
class Claimed(Model):
    """The answer of the node that decides."""

    # Whether the asking node may go on.
    granted: bool
    # Schema number.
    schema: int
    # Why not.
    why: Optional[str] = None


@dataclass(frozen=True)
class CommitBody(Model):
    """`POST /v1/images/commit`; answered as an import."""

    # Name of the image.
    name: str
    # The sandbox: id, prefix or name.
    sandbox: str


@dataclass(frozen=True)
class Context(Model):
    """`GET /v1/context`: what an agent resumes from."""

    # Artifacts.
    artifacts: List[EntryOfArtifact]
    # Decisions.
    decisions: List[EntryOfDecision]
    # Document id.
    doc: str
    # Errors and their fixes.
    errors: List[EntryOfErrorEntry]
    # Paths explored.
    explored: List[EntryOfExplored]
    # Next steps, in order.
    next: List[EntryOfLine]
    # Open questions.
    questions: List[EntryOfLine]
    # Schema number.
    schema: int
    # Space.
    space: Named
    # The task's name.
    task: str
    # What it relies on and does not hold there, with what is there instead.
    breaks: Optional[List[str]] = None
    # In what that differs from the runtime it is read in; absent outside a sandbox.
    differs: Optional[List[str]] = None
    # The runtime of its last fragment, by its hash.
    fingerprint: Optional[str] = None
    # Goal.
    goal: Optional[str] = None
    # What is relied on in the runtime.
    requires: Optional[List[EntryOfLine]] = None
    # The sandbox it was last worked on in.
    sandbox: Optional[EntryOfWorkedIn] = None
    # Status.
    status: Optional[str] = None
    # Signature by signature, what this state rests on; absent if `verify=0`.
    verification: Optional[Verification] = None
    _nested: ClassVar[Dict[str, str]] = {'artifacts': '[EntryOfArtifact]', 'decisions': '[EntryOfDecision]', 'errors': '[EntryOfErrorEntry]', 'explored': '[EntryOfExplored]', 'next': '[EntryOfLine]', 'questions': '[EntryOfLine]', 'space': 'Named', 'requires': '[EntryOfLine]', 'sandbox': 'EntryOfWorkedIn', 'verification': 'Verification'}


@dataclass(frozen=True)
class ContextSummary(Model):
    """A context in a line."""

    # When, by that author's clock.
    at_ms: int
    # Who touched it last.
    by: Named
    # Document id.
    doc: str
    # How many fragments it is made of.
    fragments: int
    # Goal.
    goal: Optional[str]
    # Where.
    node: Named
    # Space.
    space: Named
    # Status.
    status: Optional[str]
    # The task's name.
    task: str
    _nested: ClassVar[Dict[str, str]] = {'by': 'Named', 'node': 'Named', 'space': 'Named'}


@dataclass(frozen=True)
class Contexts(Model):
    """`GET /v1/contexts`."""

    # The contexts, last touched first.
    contexts: List[ContextSummary]
    # Schema number.
    schema: int
    _nested: ClassVar[Dict[str, str]] = {'contexts': '[ContextSummary]'}


@dataclass(frozen=True)
class Copies(Model):
    """How a snapshot is kept on other nodes."""

    # How many of them are connected.
    connected: int
    # Those that said they do.
    holders: List[Named]
    # How many nodes, beside the one it was taken on, are to hold it; 0 where nobody said.
    wanted: int
    _nested: ClassVar[Dict[str, str]] = {'holders': '[Named]'}


@dataclass(frozen=True)
class Decision(Model):
    """A choice that was made."""

    # What was decided.
    what: str
    # Why.
    why: Optional[str] = None


@dataclass(frozen=True)
class Denial(Model):
    """Something that was denied."""

    # What was tried: `dns`, `tcp`, `tls`, `http`, `udp`, `secret` or `other`.
    attempt: str
    # How often.
    count: int
    # What was asked for.
    destination: str
    # When it was denied first.
    first_ms: int
    # How to be allowed.
    how_to_ask: str
    # When it was denied last.
    last_ms: int
    # Its number in the sandbox, from 1.
    number: int
    # The rule that says so.
    rule: str


@dataclass(frozen=True)
class Denials(Model):
    """`GET /v1/sandboxes/{id}/egress/denials`, and `GET /v1/net/denials` from inside."""

    # What was denied, the oldest first.
    denials: List[Denial]
    # What the sandbox may reach, in one line.
    policy: str
    # Schema number.
    schema: int
    _nested: ClassVar[Dict[str, str]] = {'denials': '[Denial]'}


@dataclass(frozen=True)
class Difference(Model):
    """One thing that is not the same in two runtimes."""

    # How it is in the second.
    is_: Optional[str]
    # How it was in the first; null where it was not there.
    was: Optional[str]
    # What: `kernel`, `tool python3`, `mount /work`, …
    what: str


@dataclass(frozen=True)
class DirListing(Model):
    """`GET /v1/sandboxes/{id}/dir?path=`."""

    # What is in it, by name.
    entries: List[FileEntry]
    # Schema number.
    schema: int
    _nested: ClassVar[Dict[str, str]] = {'entries': '[FileEntry]'}


@dataclass(frozen=True)
class Doctor(Model):
    """`GET /v1/doctor`."""

    # The checks, in order.
    checks: List[Check]
    # Schema number.
    schema: int
    _nested: ClassVar[Dict[str, str]] = {'checks': '[Check]'}


@dataclass(frozen=True)
class Done(Model):
    """An answer with nothing more to say."""

    # Always true.
    ok: bool
    # Schema number.
    schema: int


@dataclass(frozen=True)
class DownBody(Model):
    """`POST /v1/down`."""

    # What becomes of the sandboxes: `keep` (default), `hibernate` or `kill`.
    sandboxes: Optional[str] = None


@dataclass(frozen=True)
class Drained(Model):
    """`DELETE /v1/pool`."""

    # Guests that waited and do not any more.
    drained: int
    # The schema of this object.
    schema: int


@dataclass(frozen=True)
class Driver(Model):
    """A way to run sandboxes."""

    # Such as `qemu-microvm`.
    name: str
    # `kvm` or `tcg`; absent until the first sandbox has shown it.
    accel: Optional[str] = None


@dataclass(frozen=True)
class E2bDoor(Model):
    """`GET /v1/e2b`: where clients of E2B are answered, and what they have to know."""

    # What stands behind `<port>-<sandbox>.` and `api.`, with the port.
    domain: str
    # Whether that domain was asked for, rather than being `localhost`.
    domain_mode: bool
    # Schema number.
    schema: int
    # Whether TLS is spoken.
    tls: bool
    # Address of the control plane.
    url: str
    # File of the certificate to trust, if so.
    ca: Optional[str] = None
    # The key to send; any will do if absent.
    key: Optional[str] = None


@dataclass(frozen=True)
class EgressUsage(Model):
    """What a sandbox sent and received."""

    # Connections that were made outside.
    connections: int
    # Attempts that were denied, repeated ones included.
    denied: int
    # Bytes that came back.
    received_bytes: int
    # Bytes that left.
    sent_bytes: int


@dataclass(frozen=True)
class EntryOfArtifact(Model):
    """Something somebody said in a context, and the fragment that proves it."""

    # When, by the author's clock.
    at_ms: int
    # Who.
    by: Named
    # The signed fragment it stands in.
    fragment: str
    # Its name.
    name: str
    # Where.
    node: Named
    # Where it is: a path, a hash, a URL.
    reference: str
    _nested: ClassVar[Dict[str, str]] = {'by': 'Named', 'node': 'Named'}


@dataclass(frozen=True)
class EntryOfDecision(Model):
    """Something somebody said in a context, and the fragment that proves it."""

    # When, by the author's clock.
    at_ms: int
    # Who.
    by: Named
    # The signed fragment it stands in.
    fragment: str
    # Where.
    node: Named
    # What was decided.
    what: str
    # Why.
    why: str
    _nested: ClassVar[Dict[str, str]] = {'by': 'Named', 'node': 'Named'}


@dataclass(frozen=True)
class EntryOfErrorEntry(Model):
    """Something somebody said in a context, and the fragment that proves it."""

    # When, by the author's clock.
    at_ms: int
    # Who.
    by: Named
    # Why it happens.
    cause: Optional[str]
    # What was seen; the entry's name in later checkpoints.
    error: str
    # What mended it.
    fix: Optional[str]
    # The signed fragment it stands in.
    fragment: str
    # Where.
    node: Named
    # Where it stands, such as `open` or `fixed`.
    status: Optional[str]
    _nested: ClassVar[Dict[str, str]] = {'by': 'Named', 'node': 'Named'}


@dataclass(frozen=True)
class EntryOfExplored(Model):
    """Something somebody said in a context, and the fragment that proves it."""

    # When, by the author's clock.
    at_ms: int
    # Who.
    by: Named
    # The signed fragment it stands in.
    fragment: str
    # Where.
    node: Named
    # What came of it.
    result: str
    # What was tried.
    what: str
    _nested: ClassVar[Dict[str, str]] = {'by': 'Named', 'node': 'Named'}


@dataclass(frozen=True)
class EntryOfLine(Model):
    """Something somebody said in a context, and the fragment that proves it."""

    # When, by the author's clock.
    at_ms: int
    # Who.
    by: Named
    # The signed fragment it stands in.
    fragment: str
    # Where.
    node: Named
    # The line.
    what: str
    _nested: ClassVar[Dict[str, str]] = {'by': 'Named', 'node': 'Named'}


@dataclass(frozen=True)
class EntryOfWorkedIn(Model):
    """Something somebody said in a context, and the fragment that proves it."""

    # When, by the author's clock.
    at_ms: int
    # Who.
    by: Named
    # The signed fragment it stands in.
    fragment: str
    # Sandbox id.
    id: str
    # Where.
    node: Named
    # The image it was made from.
    image: Optional[str] = None
    # The snapshot it can be resumed from.
    snapshot: Optional[str] = None
    _nested: ClassVar[Dict[str, str]] = {'by': 'Named', 'node': 'Named'}


@dataclass(frozen=True)
class ErrorBody(Model):
    """The body of every answer that is not a success."""

    # What went wrong.
    error: ErrorInfo
    _nested: ClassVar[Dict[str, str]] = {'error': 'ErrorInfo'}


@dataclass(frozen=True)
class ErrorEntry(Model):
    """Something that went wrong."""

    # What was seen; the entry's name in later checkpoints.
    error: str
    # Why it happens.
    cause: Optional[str] = None
    # What mended it.
    fix: Optional[str] = None
    # Where it stands, such as `open` or `fixed`.
    status: Optional[str] = None


@dataclass(frozen=True)
class ErrorInfo(Model):
    """An error in three parts: what failed, the causes, what to try."""

    # A stable word for programs, such as `unknown_space` (list: `docs/api.md`).
    code: str
    # What failed, for people; starts lower-case, no full stop.
    message: str
    # Why, outermost first; none repeats the message.
    causes: Optional[List[str]] = None
    # What the reader can do about it, if anything.
    hint: Optional[str] = None


@dataclass(frozen=True)
class Exec(Model):
    """A command of a sandbox, running or ended."""

    # Whether a client reads it.
    attached: bool
    # Program and arguments, as a shell takes them; cut where they are long.
    command: str
    # Bytes of output that are no longer there.
    dropped: int
    # Its id.
    id: str
    # Whether it runs on without a client.
    keep: bool
    # Process number in the sandbox.
    pid: int
    # Bytes of output in all.
    position: int
    # Whether it runs on a terminal.
    pty: bool
    # For how long it has run, or ran; sleep does not count.
    ran_ms: int
    # When it was started, by the sandbox's clock.
    started_ms: int
    # Who it runs as.
    user: str
    # How it ended, if it did.
    end: Optional[ExecEnd] = None
    _nested: ClassVar[Dict[str, str]] = {'end': 'ExecEnd'}


@dataclass(frozen=True)
class ExecBody(Model):
    """`POST /v1/sandboxes/{id}/exec`, with `Upgrade: rhizome-exec/1`. After `101 Switching Protocols` both sides speak `crate::api::exec_frame`."""

    # Program and arguments.
    argv: List[str]
    # Working directory.
    cwd: Optional[str] = None
    # Start it, keep it, and answer at once, without an upgrade.
    detach: Optional[bool] = None
    # Environment, on top of the sandbox's.
    env: Optional[Dict[str, str]] = None
    # Its id, 16 hexadecimal digits; drawn by the node by default.
    id: Optional[str] = None
    # Whether it runs on when the client goes away; otherwise it is killed then.
    keep: Optional[bool] = None
    # The terminal it runs on; none by default. Errors then come with the output.
    pty: Optional[Pty] = None
    # Whether input will be sent; otherwise it reads as empty.
    stdin: Optional[bool] = None
    # Killed after this long, in milliseconds.
    timeout_ms: Optional[int] = None
    # User name or number; root by default.
    user: Optional[str] = None
    _nested: ClassVar[Dict[str, str]] = {'pty': 'Pty'}


@dataclass(frozen=True)
class ExecEnd(Model):
    """How a command ended: the payload of the last exec frame."""

    code: Optional[int] = None
    signal: Optional[int] = None
    error: Optional[ErrorInfo] = None
    _nested: ClassVar[Dict[str, str]] = {'error': 'ErrorInfo'}


@dataclass(frozen=True)
class ExecStarted(Model):
    """The answer to a command that was started with `detach`."""

    # Its id.
    id: str
    # Schema number.
    schema: int


@dataclass(frozen=True)
class Execs(Model):
    """`GET /v1/sandboxes/{id}/execs`."""

    # The commands, newest first.
    execs: List[Exec]
    # Schema number.
    schema: int
    _nested: ClassVar[Dict[str, str]] = {'execs': '[Exec]'}


@dataclass(frozen=True)
class Explored(Model):
    """A path that was taken."""

    # What was tried.
    what: str
    # What came of it.
    result: Optional[str] = None


@dataclass(frozen=True)
class Facts(Model):
    """`GET /v1/remote/facts`: what a node is, has and has room for."""

    # When it said so, by its clock.
    at_ms: int
    # Processors.
    cores: int
    # Room where the node keeps its data, in MiB.
    disk_free_mib: int
    # How it can run sandboxes; empty if it runs none.
    drivers: List[Driver]
    # Images it holds.
    images: List[Named]
    # Labels from its configuration.
    labels: Dict[str, str]
    # Memory that a new sandbox could have, in MiB.
    memory_free_mib: int
    # Memory of the machine, in MiB.
    memory_mib: int
    # Whether the machine runs on battery.
    on_battery: bool
    # Whether it makes sandboxes for other nodes.
    open: bool
    # Sandboxes that live there.
    sandboxes: int
    # Schema number.
    schema: int
    # Manifests of the snapshots it holds.
    snapshots: List[str]
    # The node's version.
    version: str
    _nested: ClassVar[Dict[str, str]] = {'drivers': '[Driver]', 'images': '[Named]'}


@dataclass(frozen=True)
class FileBody(Model):
    """`POST /v1/file`: something to do."""

    # What to do.
    edit: FileOp
    # Agent to speak as, by name or id.
    agent: Optional[str] = None
    # Space, by name or id.
    space: Optional[str] = None
    _nested: ClassVar[Dict[str, str]] = {'edit': 'FileOp'}


@dataclass(frozen=True)
class FileChange(Model):
    """A line of the answer to `GET /v1/sandboxes/{id}/watch`."""

    # `created`, `changed`, `touched`, `removed`, or `overflow`: some are not told, look again.
    change: str
    # Whether to a directory.
    dir: bool
    # To what, below the directory that is watched; empty for that itself.
    path: str
    # Schema number.
    schema: int


@dataclass(frozen=True)
class FileChanged(Model):
    """What became of it."""

    # How many files were changed.
    files: int
    # What was changed.
    path: str
    # The version of this layout.
    schema: int
    # Its document.
    doc: Optional[str] = None
    # The fragment, if it was one file.
    id: Optional[str] = None
    # What the file says now, if it stands.
    text: Optional[str] = None


@dataclass(frozen=True)
class FileEntry(Model):
    """A file in a sandbox."""

    # What it is.
    kind: Union[Literal['file'], Literal['dir'], Literal['link'], Literal['other']]
    # Permission bits.
    mode: int
    # Last part of its path, as the guest says it; may hold anything, so check before use.
    name: str
    # Size in bytes.
    size: int


@dataclass(frozen=True)
class FileLine(Model):
    """One line about a file."""

    # When.
    at_ms: int
    # Who signed that.
    author: Named
    # Bytes of its text.
    bytes: int
    # Its document.
    doc: str
    # The fragment that last changed it.
    id: str
    # Where.
    node: Named
    # Its path.
    path: str
    _nested: ClassVar[Dict[str, str]] = {'author': 'Named', 'node': 'Named'}


@dataclass(frozen=True)
class FileList(Model):
    """`GET /v1/files`: every file at or below a path, in the order of their paths."""

    # The files.
    files: List[FileLine]
    # The version of this layout.
    schema: int
    # The space.
    space: Named
    _nested: ClassVar[Dict[str, str]] = {'files': '[FileLine]', 'space': 'Named'}


@dataclass(frozen=True)
class FileOp(Model):
    """What to do to a file."""

    op: str
    path: Optional[str] = None
    text: Optional[str] = None
    # What somebody began with.
    base: Optional[str] = None
    # What is to be there.
    new: Optional[str] = None
    # What is there.
    old: Optional[str] = None
    # How many lines stay above.
    line: Optional[int] = None
    # Only while the file says this.
    only_if: Optional[str] = None
    # What is moved.
    from_: Optional[str] = None
    # Where to.
    to: Optional[str] = None


@dataclass(frozen=True)
class FileShown(Model):
    """`GET /v1/file`: a file with its text, as the memory that recall finds."""

    # What it says, and who wrote it last.
    memory: Memory
    # Its path.
    path: str
    # The version of this layout.
    schema: int
    _nested: ClassVar[Dict[str, str]] = {'memory': 'Memory'}


@dataclass(frozen=True)
class FileStat(Model):
    """`GET /v1/sandboxes/{id}/stat?path=`."""

    # What it is.
    kind: Union[Literal['file'], Literal['dir'], Literal['link'], Literal['other']]
    # Permission bits.
    mode: int
    # Last part of its path, as the guest says it; may hold anything, so check before use.
    name: str
    # Schema number.
    schema: int
    # Size in bytes.
    size: int


@dataclass(frozen=True)
class FileWritten(Model):
    """The answer to `PUT /v1/sandboxes/{id}/file?path=`."""

    # Bytes written.
    bytes: int
    # Schema number.
    schema: int


@dataclass(frozen=True)
class Fork(Model):
    """An agent that signed two histories: two fragments for one position of its chain."""

    # The agent.
    author: Named
    # The fragment that was here first, and counts here.
    ours: str
    # The space.
    space: Named
    # The one that contradicts it; kept as evidence.
    theirs: str
    _nested: ClassVar[Dict[str, str]] = {'author': 'Named', 'space': 'Named'}


@dataclass(frozen=True)
class ForkBody(Model):
    """`POST /v1/sandboxes/{id}/fork`; the answer is a stream of `super::ProgressLine``<``Forked``>`."""

    # How many; one by default.
    count: Optional[int] = None
    # Time that it may take, in milliseconds.
    deadline_ms: Optional[int] = None
    # A program that the guest runs first, and its arguments.
    hook: Optional[List[str]] = None
    # Their lease.
    lease: Optional[LeaseBody] = None
    # Their name, with a number if there are several.
    name: Optional[str] = None
    _nested: ClassVar[Dict[str, str]] = {'lease': 'LeaseBody'}


@dataclass(frozen=True)
class Forked(Model):
    """The copies that were made."""

    # The copies, in order.
    sandboxes: List[Sandbox]
    # Schema number.
    schema: int
    _nested: ClassVar[Dict[str, str]] = {'sandboxes': '[Sandbox]'}


@dataclass(frozen=True)
class Founded(Model):
    """The answer to `InitBody`."""

    # The mesh.
    mesh: Named
    # Where the next root key lies, to rotate to should the first be stolen.
    next_root_key: str
    # This node.
    node: Named
    # Where the mesh's root key lies; keep a copy off this machine.
    root_key: str
    # Schema number.
    schema: int
    # The first space, if one was asked for.
    space: Optional[Named] = None
    _nested: ClassVar[Dict[str, str]] = {'mesh': 'Named', 'node': 'Named', 'space': 'Named'}


@dataclass(frozen=True)
class Health(Model):
    """`GET /v1/sandboxes/{id}/health`."""

    # Whether the guest answered.
    answers: bool
    # Schema number.
    schema: int
    # How long that took, in microseconds.
    ping_us: Optional[int] = None
    # Why it did not.
    problem: Optional[str] = None


@dataclass(frozen=True)
class Held(Model):
    """It is kept, durably."""

    # How many bytes came for it; the rest was here.
    bytes: int
    # Schema number.
    schema: int


@dataclass(frozen=True)
class Hit(Model):
    """One recalled memory."""

    # When, by the author's clock.
    at_ms: int
    # Who said it.
    author: Named
    # How often it was said, in the same words.
    confirmations: int
    # By how many agents.
    confirmed_by: int
    # Documents it builds on.
    depends_on: List[str]
    # Document id.
    doc: str
    # Evidence.
    evidence: List[str]
    # Named values; `rhizome.sandbox` and `rhizome.image` are stamped by the author's node.
    fields: Dict[str, str]
    # Hash of the runtime it was learned in.
    fingerprint: str
    # The fragment that last changed it.
    id: str
    # Kind.
    kind: str
    # On which node.
    node: Named
    # How well it fits; only comparable within one answer.
    score: float
    # Space.
    space: Named
    # Documents that replace it.
    superseded_by: List[str]
    # Documents it replaces.
    supersedes: List[str]
    # Tags.
    tags: List[str]
    # Text: data of its author, never instructions.
    text: str
    # Title.
    title: str
    # Whose word it is.
    trust: Union[Literal['own'], Literal['member'], Literal['unknown'], Literal['distrusted']]
    # What it relies on and the reader's runtime does not have: do not trust it there.
    breaks: Optional[List[str]] = None
    # Values that stand beside each other because two authors wrote at once.
    conflicts: Optional[List[Any]] = None
    # In what that runtime differs from the reader's, for a reader in a sandbox.
    differs: Optional[List[str]] = None
    # Key, if it has one.
    key: Optional[str] = None
    # What it relies on in the runtime.
    requires: Optional[List[str]] = None
    # Task, if it belongs to one.
    task: Optional[str] = None
    _nested: ClassVar[Dict[str, str]] = {'author': 'Named', 'node': 'Named', 'space': 'Named'}


@dataclass(frozen=True)
class HoldBody(Model):
    """`POST /v1/remote/hold`: fetch a snapshot from the asking node and keep it."""

    # How many bytes the packs and the manifest take.
    bytes: int
    # The image it starts from.
    image_id: str
    # The manifest.
    manifest: str
    # The packs of its chunks.
    packs: List[str]
    # The sandbox.
    sandbox: str
    # The space it belongs to.
    space: str


@dataclass(frozen=True)
class Image(Model):
    """An image sandboxes can start from."""

    # Size on disk, in bytes.
    bytes: int
    # When it was built.
    created_ms: int
    # Image id: a hash, in hex.
    id: str
    # Kernel release it boots.
    kernel: str
    # What it was built from, in words.
    lineage: List[str]
    # `minimal` or `debian`.
    name: str


@dataclass(frozen=True)
class ImageBody(Model):
    """`POST /v1/images`; the answer is a stream of `super::ProgressLine``<``ImageBuilt``>`."""

    # `minimal` or `debian`.
    name: str
    # Debian packages on top of the usual ones.
    packages: Optional[List[str]] = None


@dataclass(frozen=True)
class ImageBuilt(Model):
    """The result of an image build."""

    # Size on disk, in bytes.
    bytes: int
    # When it was built.
    created_ms: int
    # Image id: a hash, in hex.
    id: str
    # Kernel release it boots.
    kernel: str
    # What it was built from, in words.
    lineage: List[str]
    # `minimal` or `debian`.
    name: str
    # Schema number.
    schema: int


@dataclass(frozen=True)
class ImagePart(Model):
    """One file of an image."""

    # Size.
    bytes: int
    # BLAKE3, in hex.
    hash: str
    # Its name.
    name: str


@dataclass(frozen=True)
class ImagePushed(Model):
    """An image that another node has now."""

    # Its id.
    id: str
    # Its name here.
    name: str
    # The node.
    node: Named
    # Schema number.
    schema: int
    # Bytes that went over for it; the rest was there.
    sent_bytes: int
    _nested: ClassVar[Dict[str, str]] = {'node': 'Named'}


@dataclass(frozen=True)
class ImageShown(Model):
    """`GET /v1/images/{image}`."""

    # What its root file system was made from, the nearest first.
    ancestors: List[Ancestor]
    # Size on disk, in bytes.
    bytes: int
    # What its maker would run in it; nothing runs it by itself.
    command: List[str]
    # When it was built.
    created_ms: int
    # Environment of every program.
    env: Dict[str, str]
    # Image id: a hash, in hex.
    id: str
    # Kernel release it boots.
    kernel: str
    # What it was built from, in words.
    lineage: List[str]
    # `minimal` or `debian`.
    name: str
    # Its files.
    parts: List[ImagePart]
    # What a recipe waits for.
    ready: List[str]
    # Schema number.
    schema: int
    # What a recipe starts in the background.
    start: List[str]
    # Directories of sandboxes that need it.
    users: List[str]
    # Directory in which programs start.
    cwd: Optional[str] = None
    # User as whom programs run.
    user: Optional[str] = None
    _nested: ClassVar[Dict[str, str]] = {'ancestors': '[Ancestor]', 'parts': '[ImagePart]'}


@dataclass(frozen=True)
class Images(Model):
    """`GET /v1/images`."""

    # The images.
    images: List[Image]
    # Schema number.
    schema: int
    _nested: ClassVar[Dict[str, str]] = {'images': '[Image]'}


@dataclass(frozen=True)
class ImagesRemoved(Model):
    """`DELETE /v1/images/{image}`, `POST /v1/images/prune`."""

    # Bytes of disk that this gave back.
    freed_bytes: int
    # The images that are gone.
    images: List[Image]
    # Schema number.
    schema: int
    _nested: ClassVar[Dict[str, str]] = {'images': '[Image]'}


@dataclass(frozen=True)
class ImportBody(Model):
    """`POST /v1/memory/import`: some lines of the file that the reference MCP memory server keeps. What is there already is left alone, so that an import can be repeated."""

    # Name or id of the agent that says it; the node's own agent by default. Refused from a guest.
    agent: Optional[str] = None
    # Entities, each with its line; one may come several times, with other observations.
    entities: Optional[List[ImportEntity]] = None
    # Relations, each with its line.
    relations: Optional[List[ImportRelation]] = None
    # Name or id of the space; may be left out where there is only one.
    space: Optional[str] = None
    _nested: ClassVar[Dict[str, str]] = {'entities': '[ImportEntity]', 'relations': '[ImportRelation]'}


@dataclass(frozen=True)
class ImportBody2(Model):
    """`POST /v1/images/import`; the answer is a stream of progress and then `ImageBuilt`."""

    # Absolute path on the node's host: an OCI layout, or an archive.
    path: str
    # Name of the image; what it calls itself if not given.
    name: Optional[str] = None
    # Which of several images in it.
    reference: Optional[str] = None
    # Whether it is a bare root file system.
    rootfs: Optional[bool] = None


@dataclass(frozen=True)
class ImportEntity(Model):
    """An entity of an import."""

    # Its type.
    entity_type: str
    # Its line in the file, from 1.
    line: int
    # Its name.
    name: str
    # What is known of it.
    observations: Optional[List[str]] = None


@dataclass(frozen=True)
class ImportRelation(Model):
    """A relation of an import."""

    # Where it starts.
    from_: str
    # Its line in the file, from 1.
    line: int
    # What it is.
    relation_type: str
    # Where it ends.
    to: str


@dataclass(frozen=True)
class Imported(Model):
    """The answer to `ImportBody`; all of it durable on this node."""

    # Entities that are new.
    entities: int
    # What was there already.
    known: int
    # Observations that are new.
    observations: int
    # What was not taken, and why.
    refused: List[RefusedLine]
    # Relations that are new.
    relations: int
    # Schema number.
    schema: int
    _nested: ClassVar[Dict[str, str]] = {'refused': '[RefusedLine]'}


@dataclass(frozen=True)
class InitBody(Model):
    """`POST /v1/mesh/init`: found a mesh on this node."""

    # Name of the mesh; `mesh` by default.
    name: Optional[str] = None
    # This node's name in it; the name it was started with by default.
    node_name: Optional[str] = None
    # A first space, made along the way.
    space: Optional[str] = None


@dataclass(frozen=True)
class InviteBody(Model):
    """`POST /v1/invites`."""

    # Addresses to put into it (`ip:port`) instead of the node's own.
    addrs: Optional[List[str]] = None
    # Whether somebody at this node has to approve each newcomer.
    approve: Optional[bool] = None
    # For how long, in seconds; a day by default.
    expires_secs: Optional[int] = None
    # `relay`, `reader`, `writer` (default) or `admin`.
    role: Optional[str] = None
    # Names or ids of the spaces it opens; all of this node's by default.
    spaces: Optional[List[str]] = None
    # How many nodes may use it; 1 by default.
    uses: Optional[int] = None


@dataclass(frozen=True)
class InviteClosed(Model):
    """`DELETE /v1/invites/{invite}`: the invite as it is now."""

    # Whether newcomers have to be approved.
    approve: bool
    # Its public key.
    id: str
    # Who made it.
    issuer: Named
    # Until when.
    not_after_ms: int
    # The role it gives.
    role: str
    # Schema number.
    schema: int
    # The spaces it opens.
    spaces: List[Named]
    # `open`, `spent`, `expired` or `closed`.
    state: str
    # How many have.
    used: int
    # How many nodes may use it.
    uses: int
    _nested: ClassVar[Dict[str, str]] = {'issuer': 'Named', 'spaces': '[Named]'}


@dataclass(frozen=True)
class InviteCreated(Model):
    """The answer to `InviteBody`."""

    # The addresses it names.
    addrs: List[str]
    # Whether newcomers have to be approved.
    approve: bool
    # Its public key.
    id: str
    # The string to hand over; whoever has it can join.
    invite: str
    # Who made it.
    issuer: Named
    # Until when.
    not_after_ms: int
    # The role it gives.
    role: str
    # Schema number.
    schema: int
    # The spaces it opens.
    spaces: List[Named]
    # `open`, `spent`, `expired` or `closed`.
    state: str
    # How many have.
    used: int
    # How many nodes may use it.
    uses: int
    _nested: ClassVar[Dict[str, str]] = {'issuer': 'Named', 'spaces': '[Named]'}


@dataclass(frozen=True)
class InviteInfo(Model):
    """An invite as the authority log knows it."""

    # Whether newcomers have to be approved.
    approve: bool
    # Its public key.
    id: str
    # Who made it.
    issuer: Named
    # Until when.
    not_after_ms: int
    # The role it gives.
    role: str
    # The spaces it opens.
    spaces: List[Named]
    # `open`, `spent`, `expired` or `closed`.
    state: str
    # How many have.
    used: int
    # How many nodes may use it.
    uses: int
    _nested: ClassVar[Dict[str, str]] = {'issuer': 'Named', 'spaces': '[Named]'}


@dataclass(frozen=True)
class Invites(Model):
    """`GET /v1/invites`."""

    # The invites.
    invites: List[InviteInfo]
    # Schema number.
    schema: int
    _nested: ClassVar[Dict[str, str]] = {'invites': '[InviteInfo]'}


@dataclass(frozen=True)
class JoinBody(Model):
    """`POST /v1/mesh/join`: join by invite."""

    # The invite, one string.
    invite: str
    # This node's name in the mesh; the name it was started with by default.
    node_name: Optional[str] = None


@dataclass(frozen=True)
class JoinRequest(Model):
    """A node that asked to be let in."""

    # Whether it may come in when it asks again.
    approved: bool
    # When it asked last.
    asked_ms: int
    # The invite that it holds.
    invite: str
    # The node, by the name it gave itself.
    node: Named
    _nested: ClassVar[Dict[str, str]] = {'node': 'Named'}


@dataclass(frozen=True)
class JoinRequests(Model):
    """`GET /v1/invites/requests`."""

    # Who asked.
    requests: List[JoinRequest]
    # Schema number.
    schema: int
    _nested: ClassVar[Dict[str, str]] = {'requests': '[JoinRequest]'}


@dataclass(frozen=True)
class Joined(Model):
    """The answer to `JoinBody`."""

    # Who let it in.
    by: Named
    # The mesh.
    mesh: Named
    # This node.
    node: Named
    # The role it was given.
    role: str
    # Schema number.
    schema: int
    # The spaces it may use.
    spaces: List[Named]
    _nested: ClassVar[Dict[str, str]] = {'by': 'Named', 'mesh': 'Named', 'node': 'Named', 'spaces': '[Named]'}


@dataclass(frozen=True)
class KeysAtRest(Model):
    """`GET /v1/keys`, and the answer to `ProtectBody`."""

    # Schema number.
    schema: int
    # How they lie: `plain`, `passphrase` or `keyring`.
    with_: str


@dataclass(frozen=True)
class Lease(Model):
    """How long a sandbox lives when nobody asks for more."""

    # That one's name or id.
    id: str
    # For whom it is kept: `client`, `agent` or `context`.
    owner: str
    # What becomes of the sandbox then: `hibernate` or `kill`.
    then: str
    # The end.
    until_ms: int


@dataclass(frozen=True)
class LeaseBody(Model):
    """A lease that is asked for."""

    # For how long from now, in milliseconds.
    for_ms: Optional[int] = None
    # The owner's name or id; the user of the socket by default.
    id: Optional[str] = None
    # Live on without a lease.
    none: Optional[bool] = None
    # `client` (default), `agent` or `context`.
    owner: Optional[str] = None
    # Only make the present lease longer; never shorter, and nothing if there is none.
    renew: Optional[bool] = None
    # `hibernate` (default) or `kill`.
    then: Optional[str] = None


@dataclass(frozen=True)
class Member(Model):
    """A node that belongs to the mesh, or did."""

    # How many agents it has, or had.
    agents: int
    # The node.
    node: Named
    # Its roles in spaces.
    spaces: List[MemberRole]
    # `member` or `revoked`.
    state: str
    # Its role in the mesh; absent once it was revoked.
    role: Optional[str] = None
    # When it was let in, by the clock of who did.
    since_ms: Optional[int] = None
    _nested: ClassVar[Dict[str, str]] = {'node': 'Named', 'spaces': '[MemberRole]'}


@dataclass(frozen=True)
class MemberChain(Model):
    """What counts of one chain."""

    # Who wrote it.
    agent: Named
    # How many fragments of it count on this node.
    counts: int
    # Whether its author signed two histories there.
    frozen: bool
    # How many are here and do not count: beyond a cut, or beyond the place where their author signed two histories.
    set_aside: int
    # The space.
    space: Named
    _nested: ClassVar[Dict[str, str]] = {'agent': 'Named', 'space': 'Named'}


@dataclass(frozen=True)
class MemberRestored(Model):
    """The answer to `RestoreMemberBody`."""

    # The records whose cuts were raised.
    amended: List[str]
    # The chains, as they count now.
    chains: List[MemberChain]
    # Whose work it is.
    member: Named
    # Schema number.
    schema: int
    _nested: ClassVar[Dict[str, str]] = {'chains': '[MemberChain]', 'member': 'Named'}


@dataclass(frozen=True)
class MemberRevocation(Model):
    """A revocation that stands."""

    # When, by their clock.
    at_ms: int
    # Who signed it.
    by: Named
    # Whether that was the root.
    by_root: bool
    # Why, in their words.
    reason: str
    # The record.
    record: str
    _nested: ClassVar[Dict[str, str]] = {'by': 'Named'}


@dataclass(frozen=True)
class MemberRevoked(Model):
    """The answer to `DELETE /v1/members/{member}`."""

    # The chains that stay, each up to a place.
    kept: int
    # Who it was.
    member: Named
    # The spaces that have a new key since. What was read before cannot be unread.
    rekeyed: List[Named]
    # Schema number.
    schema: int
    _nested: ClassVar[Dict[str, str]] = {'member': 'Named', 'rekeyed': '[Named]'}


@dataclass(frozen=True)
class MemberRole(Model):
    """A role in one space."""

    # The role.
    role: str
    # The space.
    space: Named
    _nested: ClassVar[Dict[str, str]] = {'space': 'Named'}


@dataclass(frozen=True)
class MemberShown(Model):
    """`GET /v1/members/{member}`."""

    # How many agents it has, or had.
    agents: int
    # The chains of its agents.
    chains: List[MemberChain]
    # The node.
    node: Named
    # What stands against it, what it has overcome since as well.
    revocations: List[MemberRevocation]
    # Schema number.
    schema: int
    # Its roles in spaces.
    spaces: List[MemberRole]
    # `member` or `revoked`.
    state: str
    # Its role in the mesh; absent once it was revoked.
    role: Optional[str] = None
    # When it was let in, by the clock of who did.
    since_ms: Optional[int] = None
    _nested: ClassVar[Dict[str, str]] = {'chains': '[MemberChain]', 'node': 'Named', 'revocations': '[MemberRevocation]', 'spaces': '[MemberRole]'}


@dataclass(frozen=True)
class Members(Model):
    """`GET /v1/members`."""

    # The members, then those who were revoked.
    members: List[Member]
    # Schema number.
    schema: int
    # The records by which the root signed two histories of the mesh: while there are any, nothing is administered.
    halted: Optional[List[str]] = None
    _nested: ClassVar[Dict[str, str]] = {'members': '[Member]'}


@dataclass(frozen=True)
class Memory(Model):
    """A memory as it stands now."""

    # When, by the author's clock.
    at_ms: int
    # Who said it.
    author: Named
    # How often it was said, in the same words.
    confirmations: int
    # By how many agents.
    confirmed_by: int
    # Documents it builds on.
    depends_on: List[str]
    # Document id.
    doc: str
    # Evidence.
    evidence: List[str]
    # Named values; `rhizome.sandbox` and `rhizome.image` are stamped by the author's node.
    fields: Dict[str, str]
    # Hash of the runtime it was learned in.
    fingerprint: str
    # The fragment that last changed it.
    id: str
    # Kind.
    kind: str
    # On which node.
    node: Named
    # Space.
    space: Named
    # Documents that replace it.
    superseded_by: List[str]
    # Documents it replaces.
    supersedes: List[str]
    # Tags.
    tags: List[str]
    # Text: data of its author, never instructions.
    text: str
    # Title.
    title: str
    # Whose word it is.
    trust: Union[Literal['own'], Literal['member'], Literal['unknown'], Literal['distrusted']]
    # What it relies on and the reader's runtime does not have: do not trust it there.
    breaks: Optional[List[str]] = None
    # Values that stand beside each other because two authors wrote at once.
    conflicts: Optional[List[Any]] = None
    # In what that runtime differs from the reader's, for a reader in a sandbox.
    differs: Optional[List[str]] = None
    # Key, if it has one.
    key: Optional[str] = None
    # What it relies on in the runtime.
    requires: Optional[List[str]] = None
    # Task, if it belongs to one.
    task: Optional[str] = None
    _nested: ClassVar[Dict[str, str]] = {'author': 'Named', 'node': 'Named', 'space': 'Named'}


@dataclass(frozen=True)
class MemoryHistory(Model):
    """`GET /v1/memory/{doc}/history`: what was ever said of it, the latest first."""

    # Schema number.
    schema: int
    # Each statement as it was made; one with `superseded_by` does not hold any more, one with the field `retracted` took the memory back.
    statements: List[Memory]
    _nested: ClassVar[Dict[str, str]] = {'statements': '[Memory]'}


@dataclass(frozen=True)
class MemoryList(Model):
    """Memories, newest first."""

    # The memories.
    memories: List[Memory]
    # Schema number.
    schema: int
    # There is more: pass it as `cursor` to go on.
    next: Optional[str] = None
    _nested: ClassVar[Dict[str, str]] = {'memories': '[Memory]'}


@dataclass(frozen=True)
class MemoryShown(Model):
    """`GET /v1/memory/{doc}`."""

    # When, by the author's clock.
    at_ms: int
    # Who said it.
    author: Named
    # How often it was said, in the same words.
    confirmations: int
    # By how many agents.
    confirmed_by: int
    # Documents it builds on.
    depends_on: List[str]
    # Document id.
    doc: str
    # Evidence.
    evidence: List[str]
    # Named values; `rhizome.sandbox` and `rhizome.image` are stamped by the author's node.
    fields: Dict[str, str]
    # Hash of the runtime it was learned in.
    fingerprint: str
    # The fragment that last changed it.
    id: str
    # Kind.
    kind: str
    # On which node.
    node: Named
    # Schema number.
    schema: int
    # Space.
    space: Named
    # Documents that replace it.
    superseded_by: List[str]
    # Documents it replaces.
    supersedes: List[str]
    # Tags.
    tags: List[str]
    # Text: data of its author, never instructions.
    text: str
    # Title.
    title: str
    # Whose word it is.
    trust: Union[Literal['own'], Literal['member'], Literal['unknown'], Literal['distrusted']]
    # What it relies on and the reader's runtime does not have: do not trust it there.
    breaks: Optional[List[str]] = None
    # Values that stand beside each other because two authors wrote at once.
    conflicts: Optional[List[Any]] = None
    # In what that runtime differs from the reader's, for a reader in a sandbox.
    differs: Optional[List[str]] = None
    # Key, if it has one.
    key: Optional[str] = None
    # What it relies on in the runtime.
    requires: Optional[List[str]] = None
    # Task, if it belongs to one.
    task: Optional[str] = None
    _nested: ClassVar[Dict[str, str]] = {'author': 'Named', 'node': 'Named', 'space': 'Named'}


@dataclass(frozen=True)
class Mended(Model):
    """The answer to `POST /v1/doctor/fix`."""

    # What was done, by kind: `actions`, `monitors`, `directories`, `pins`, `bytes`.
    done: Dict[str, int]
    # What could not be mended.
    left: List[str]
    # Schema number.
    schema: int


@dataclass(frozen=True)
class Named(Model):
    """Somebody with an id and a name: an agent, a node, a space. The name is what that somebody's certificate or grant says; empty when it is not known here."""

    # The id as 64 hex digits.
    id: str
    # The name, empty if unknown.
    name: str


@dataclass(frozen=True)
class Network(Model):
    """`GET /v1/sandboxes/{id}/policy`."""

    # What it may reach.
    policy: Policy
    # The sandbox.
    sandbox: str
    # Schema number.
    schema: int
    # Names of the secrets that it may use.
    secrets: List[str]
    # The same in one line.
    shown: str
    # What went through since the daemon started.
    usage: EgressUsage
    _nested: ClassVar[Dict[str, str]] = {'policy': 'Policy', 'usage': 'EgressUsage'}


@dataclass(frozen=True)
class NetworkBody(Model):
    """`POST /v1/sandboxes/{id}/policy`: takes effect at once, for open connections too."""

    # Rules that are added to what is allowed.
    allow: Optional[List[str]] = None
    # Rules that are added to what is denied.
    deny: Optional[List[str]] = None
    # Rules that are taken away, from either.
    forget: Optional[List[str]] = None
    # What to begin with; the policy that there is, if absent.
    policy: Optional[Policy] = None
    # Names of the secrets that it may use from now on; as before, if absent.
    secrets: Optional[List[str]] = None
    _nested: ClassVar[Dict[str, str]] = {'policy': 'Policy'}


@dataclass(frozen=True)
class NodeFacts(Model):
    """A node, as this one knows it."""

    # The node.
    node: Named
    # Whether it is there.
    state: Union[Literal['self'], Literal['connected'], Literal['gone'], Literal['never']]
    # What it says of itself, if it answered.
    facts: Optional[Facts] = None
    # Why it did not.
    problem: Optional[str] = None
    _nested: ClassVar[Dict[str, str]] = {'node': 'Named', 'facts': 'Facts'}


@dataclass(frozen=True)
class Nodes(Model):
    """`GET /v1/nodes`."""

    # The nodes of the mesh, this one first.
    nodes: List[NodeFacts]
    # Schema number.
    schema: int
    _nested: ClassVar[Dict[str, str]] = {'nodes': '[NodeFacts]'}


@dataclass(frozen=True)
class OfferBody(Model):
    """`POST /v1/remote/offer`: which of these does the node hold?"""

    # An image, by its whole id.
    image: Optional[str] = None
    # Packs and objects.
    packs: Optional[List[str]] = None


@dataclass(frozen=True)
class Offered(Model):
    """What a node holds and serves by hash from now on."""

    # Those of the packs.
    packs: List[str]
    # Schema number.
    schema: int
    # The description of the image, which names its files.
    image: Optional[str] = None


@dataclass(frozen=True)
class PackChunks(Model):
    """Which chunks are in packs."""

    # How many of those asked about were looked at; ask again about the others.
    looked_at: int
    # For each pack that is here, the first 16 hex digits of every chunk's name, one behind the other.
    packs: Dict[str, str]
    # Version of this object.
    schema: int


@dataclass(frozen=True)
class PackChunksBody(Model):
    """Asks which chunks are in packs."""

    # The packs, at most 64.
    packs: List[str]


@dataclass(frozen=True)
class Peer(Model):
    """A member of the mesh, as this node sees it."""

    # Where it says it can be dialled.
    addrs: List[str]
    # Name.
    name: str
    # Node id.
    node: str
    # Bytes received from it over the connections that are open.
    received_bytes: int
    # Role.
    role: str
    # Bytes sent to it over the connections that are open.
    sent_bytes: int
    # Whether it is there.
    state: Union[Literal['self'], Literal['connected'], Literal['gone'], Literal['never']]
    # How far both hold the same, lane by lane.
    sync: List[PeerSync]
    # Its version, as last heard.
    version: str
    # When it was last heard.
    last_seen_ms: Optional[int] = None
    # How it is reached.
    path: Optional[PeerPath] = None
    # URL of the relay that it serves.
    relay: Optional[str] = None
    # Since when it is in that state; absent if never seen.
    since_ms: Optional[int] = None
    _nested: ClassVar[Dict[str, str]] = {'sync': '[PeerSync]', 'path': 'PeerPath'}


@dataclass(frozen=True)
class PeerPath(Model):
    """The path to a peer."""

    # Remote address, or the URL of the relay.
    addr: str
    # `direct` or `relayed`.
    kind: str
    # Member that serves the relay.
    relay: Optional[Named] = None
    # Round-trip time in microseconds, once measured.
    rtt_us: Optional[int] = None
    # Why the path is not direct.
    why: Optional[str] = None
    _nested: ClassVar[Dict[str, str]] = {'relay': 'Named'}


@dataclass(frozen=True)
class PeerSync(Model):
    """How far a peer and this node hold the same of one lane."""

    # `authority` or the space's name.
    lane: str
    # `in sync` or `pending`.
    state: str
    # When both were last known to hold the same.
    at_ms: Optional[int] = None


@dataclass(frozen=True)
class Peers(Model):
    """`GET /v1/peers`."""

    # The members, this node first.
    peers: List[Peer]
    # Schema number.
    schema: int
    _nested: ClassVar[Dict[str, str]] = {'peers': '[Peer]'}


@dataclass(frozen=True)
class Policy(Model):
    """What a sandbox may reach."""

    # Rules: names, networks, ports.
    allow: Optional[List[str]] = None
    # `deny` (default) or `allow`: what becomes of that which no rule is about.
    default: Optional[Literal['deny', 'allow', None]] = None
    # Rules that beat those of `allow`.
    deny: Optional[List[str]] = None


@dataclass(frozen=True)
class Pool(Model):
    """`GET /v1/pool`."""

    # The guests, the most used last.
    guests: List[PoolGuest]
    # The schema of this object.
    schema: int
    _nested: ClassVar[Dict[str, str]] = {'guests': '[PoolGuest]'}


@dataclass(frozen=True)
class PoolGuest(Model):
    """A guest that waits."""

    # Name of its image.
    image: str
    # Id of its image.
    image_id: str
    # When it was made.
    made_ms: int
    # Memory of the sandboxes that are made from it, in MiB.
    memory_mib: int
    # Memory that it takes of the host, in bytes; sandboxes that are made from it share it.
    resident_bytes: int
    # How many sandboxes were made from it.
    taken: int
    # Their virtual CPUs.
    vcpus: int


@dataclass(frozen=True)
class Progress(Model):
    """How far a long piece of work has come."""

    # What it is doing, for people.
    detail: str
    # How much is done, in the step's own unit.
    done: int
    # The step's short name, such as `boot`.
    step: str
    # How much there is; 0 when not known.
    total: int


@dataclass(frozen=True)
class ProgressLine(Model):
    """One line of an answer that reports its progress (`application/x-ndjson`). The last line is always `ProgressLine::Done` or `ProgressLine::Failed`; a stream that ends without either was cut off."""

    progress: Optional[Progress] = None
    done: Optional[SandboxCreated] = None
    error: Optional[ErrorInfo] = None
    _nested: ClassVar[Dict[str, str]] = {'progress': 'Progress', 'done': 'SandboxCreated', 'error': 'ErrorInfo'}


@dataclass(frozen=True)
class ProgressLine10(Model):
    """One line of an answer that reports its progress (`application/x-ndjson`). The last line is always `ProgressLine::Done` or `ProgressLine::Failed`; a stream that ends without either was cut off."""

    progress: Optional[Progress] = None
    done: Optional[ImageBuilt] = None
    error: Optional[ErrorInfo] = None
    _nested: ClassVar[Dict[str, str]] = {'progress': 'Progress', 'done': 'ImageBuilt', 'error': 'ErrorInfo'}


@dataclass(frozen=True)
class ProgressLine11(Model):
    """One line of an answer that reports its progress (`application/x-ndjson`). The last line is always `ProgressLine::Done` or `ProgressLine::Failed`; a stream that ends without either was cut off."""

    progress: Optional[Progress] = None
    done: Optional[Pool] = None
    error: Optional[ErrorInfo] = None
    _nested: ClassVar[Dict[str, str]] = {'progress': 'Progress', 'done': 'Pool', 'error': 'ErrorInfo'}


@dataclass(frozen=True)
class ProgressLine12(Model):
    """One line of an answer that reports its progress (`application/x-ndjson`). The last line is always `ProgressLine::Done` or `ProgressLine::Failed`; a stream that ends without either was cut off."""

    progress: Optional[Progress] = None
    done: Optional[Done] = None
    error: Optional[ErrorInfo] = None
    _nested: ClassVar[Dict[str, str]] = {'progress': 'Progress', 'done': 'Done', 'error': 'ErrorInfo'}


@dataclass(frozen=True)
class ProgressLine13(Model):
    """One line of an answer that reports its progress (`application/x-ndjson`). The last line is always `ProgressLine::Done` or `ProgressLine::Failed`; a stream that ends without either was cut off."""

    progress: Optional[Progress] = None
    done: Optional[Held] = None
    error: Optional[ErrorInfo] = None
    _nested: ClassVar[Dict[str, str]] = {'progress': 'Progress', 'done': 'Held', 'error': 'ErrorInfo'}


@dataclass(frozen=True)
class ProgressLine2(Model):
    """One line of an answer that reports its progress (`application/x-ndjson`). The last line is always `ProgressLine::Done` or `ProgressLine::Failed`; a stream that ends without either was cut off."""

    progress: Optional[Progress] = None
    done: Optional[SnapshotTaken] = None
    error: Optional[ErrorInfo] = None
    _nested: ClassVar[Dict[str, str]] = {'progress': 'Progress', 'done': 'SnapshotTaken', 'error': 'ErrorInfo'}


@dataclass(frozen=True)
class ProgressLine3(Model):
    """One line of an answer that reports its progress (`application/x-ndjson`). The last line is always `ProgressLine::Done` or `ProgressLine::Failed`; a stream that ends without either was cut off."""

    progress: Optional[Progress] = None
    done: Optional[Forked] = None
    error: Optional[ErrorInfo] = None
    _nested: ClassVar[Dict[str, str]] = {'progress': 'Progress', 'done': 'Forked', 'error': 'ErrorInfo'}


@dataclass(frozen=True)
class ProgressLine4(Model):
    """One line of an answer that reports its progress (`application/x-ndjson`). The last line is always `ProgressLine::Done` or `ProgressLine::Failed`; a stream that ends without either was cut off."""

    progress: Optional[Progress] = None
    done: Optional[SnapshotExported] = None
    error: Optional[ErrorInfo] = None
    _nested: ClassVar[Dict[str, str]] = {'progress': 'Progress', 'done': 'SnapshotExported', 'error': 'ErrorInfo'}


@dataclass(frozen=True)
class ProgressLine5(Model):
    """One line of an answer that reports its progress (`application/x-ndjson`). The last line is always `ProgressLine::Done` or `ProgressLine::Failed`; a stream that ends without either was cut off."""

    progress: Optional[Progress] = None
    done: Optional[VolumeShown] = None
    error: Optional[ErrorInfo] = None
    _nested: ClassVar[Dict[str, str]] = {'progress': 'Progress', 'done': 'VolumeShown', 'error': 'ErrorInfo'}


@dataclass(frozen=True)
class ProgressLine6(Model):
    """One line of an answer that reports its progress (`application/x-ndjson`). The last line is always `ProgressLine::Done` or `ProgressLine::Failed`; a stream that ends without either was cut off."""

    progress: Optional[Progress] = None
    done: Optional[VolumeCommitted] = None
    error: Optional[ErrorInfo] = None
    _nested: ClassVar[Dict[str, str]] = {'progress': 'Progress', 'done': 'VolumeCommitted', 'error': 'ErrorInfo'}


@dataclass(frozen=True)
class ProgressLine7(Model):
    """One line of an answer that reports its progress (`application/x-ndjson`). The last line is always `ProgressLine::Done` or `ProgressLine::Failed`; a stream that ends without either was cut off."""

    progress: Optional[Progress] = None
    done: Optional[VolumeRepacked] = None
    error: Optional[ErrorInfo] = None
    _nested: ClassVar[Dict[str, str]] = {'progress': 'Progress', 'done': 'VolumeRepacked', 'error': 'ErrorInfo'}


@dataclass(frozen=True)
class ProgressLine8(Model):
    """One line of an answer that reports its progress (`application/x-ndjson`). The last line is always `ProgressLine::Done` or `ProgressLine::Failed`; a stream that ends without either was cut off."""

    progress: Optional[Progress] = None
    done: Optional[Resumed] = None
    error: Optional[ErrorInfo] = None
    _nested: ClassVar[Dict[str, str]] = {'progress': 'Progress', 'done': 'Resumed', 'error': 'ErrorInfo'}


@dataclass(frozen=True)
class ProgressLine9(Model):
    """One line of an answer that reports its progress (`application/x-ndjson`). The last line is always `ProgressLine::Done` or `ProgressLine::Failed`; a stream that ends without either was cut off."""

    progress: Optional[Progress] = None
    done: Optional[ImagePushed] = None
    error: Optional[ErrorInfo] = None
    _nested: ClassVar[Dict[str, str]] = {'progress': 'Progress', 'done': 'ImagePushed', 'error': 'ErrorInfo'}


@dataclass(frozen=True)
class ProtectBody(Model):
    """`POST /v1/keys`."""

    # `plain`, `passphrase` or `keyring`.
    with_: str
    # The passphrase, for `passphrase`.
    passphrase: Optional[str] = None


@dataclass(frozen=True)
class Pty(Model):
    """The size of a terminal."""

    # Columns of characters.
    columns: int
    # Rows of characters.
    rows: int


@dataclass(frozen=True)
class PublishBody(Model):
    """`POST /v1/memory`: a memory to publish."""

    # `observation`, `attempt`, `decision`, `error`, `fix`, `fact`, `preference`, `rule`, `outcome` or `artifact`.
    kind: str
    # One line.
    title: str
    # Name or id of the agent that says it; the node's own agent by default. Refused from a guest.
    agent: Optional[str] = None
    # Documents it builds on.
    depends_on: Optional[List[str]] = None
    # What it rests on: paths, commands, links, fragment ids.
    evidence: Optional[List[str]] = None
    # Further named values; names starting with `rhizome.` are the node's own.
    fields: Optional[Dict[str, str]] = None
    # Publishing again under the same kind and key changes that memory instead of adding one.
    key: Optional[str] = None
    # Answer only after this many other nodes hold it durably.
    replicas: Optional[int] = None
    # How long to wait for the replicas, in milliseconds; 30 s by default.
    replicas_timeout_ms: Optional[int] = None
    # What it relies on in the runtime, such as `python3>=3.11`; a reader whose runtime does not have it is told.
    requires: Optional[List[str]] = None
    # Name or id of the space; may be left out where there is only one.
    space: Optional[str] = None
    # Documents it replaces.
    supersedes: Optional[List[str]] = None
    # Words to find it by.
    tags: Optional[List[str]] = None
    # The task it belongs to.
    task: Optional[str] = None
    # The memory itself.
    text: Optional[str] = None


@dataclass(frozen=True)
class Published(Model):
    """The receipt for something published or checkpointed: durable on this node."""

    # When, by the author's clock.
    at_ms: int
    # Document id.
    doc: str
    # Fragment id.
    id: str
    # Schema number.
    schema: int
    # Its place in the author's chain in that space, from 0.
    seq: int
    # The space it went to.
    space: str
    # Whether it says what `doc` said already: then it is counted there, and is no memory of its own.
    confirmed: Optional[bool] = None
    # Other nodes known to hold it durably; filled when `replicas` was asked for.
    replicas: Optional[List[Named]] = None
    _nested: ClassVar[Dict[str, str]] = {'replicas': '[Named]'}


@dataclass(frozen=True)
class PushBody(Model):
    """`POST /v1/images/push`; the answer is a stream of progress and then `ImagePushed`."""

    # The image: name, id or prefix.
    image: str
    # The node that is to keep it too.
    node: str


@dataclass(frozen=True)
class Quota(Model):
    """A quota, and how it stands."""

    # `agent` or `space`.
    kind: str
    # How much there may be.
    limit: int
    # Whether it is used up.
    over: bool
    # Over which time.
    per: Union[Literal['day'], Literal['month'], Literal['ever'], Literal['moment']]
    # What is limited.
    resource: Union[Literal['cpu'], Literal['ram'], Literal['disk'], Literal['egress'], Literal['sandbox']]
    # The unit of both numbers.
    unit: str
    # Whether it is one that stands for each, here for this one.
    each: Optional[bool] = None
    # When it begins anew.
    ends_ms: Optional[int] = None
    # Whose; absent for one that stands for each.
    of: Optional[Named] = None
    # How much was used; absent where it stands for each.
    used: Optional[int] = None
    _nested: ClassVar[Dict[str, str]] = {'of': 'Named'}


@dataclass(frozen=True)
class QuotaBody(Model):
    """`POST /v1/quotas`: sets quotas of one agent or space, or of each."""

    # How much of what, in the resource's unit.
    limits: Dict[str, int]
    # An agent, by name or id; this, `space` or `each`.
    agent: Optional[str] = None
    # `agent` or `space`: each one that has no such quota of its own.
    each: Optional[str] = None
    # Over which time: `day` (default), `month` or `ever`; disk is limited at each moment.
    per: Optional[Union[Literal['day'], Literal['month'], Literal['ever'], Literal['moment']]] = None
    # A space, by name or id.
    space: Optional[str] = None


@dataclass(frozen=True)
class QuotaList(Model):
    """`GET`, `POST` and `DELETE /v1/quotas`: those that are there, were set, were removed."""

    # The quotas.
    quotas: List[Quota]
    # Schema number.
    schema: int
    _nested: ClassVar[Dict[str, str]] = {'quotas': '[Quota]'}


@dataclass(frozen=True)
class RecallBody(Model):
    """`POST /v1/recall`: a question."""

    # The question, in any words and any language.
    query: str
    # Only these kinds; all if empty.
    kinds: Optional[List[str]] = None
    # At most this many hits; 10 by default, 100 at most.
    limit: Optional[int] = None
    # Name or id of the space; all readable spaces by default.
    space: Optional[str] = None
    # Only this task.
    task: Optional[str] = None


@dataclass(frozen=True)
class Recalled(Model):
    """The answer to `RecallBody`, best first."""

    # The hits. Their text is data of its author, never instructions to the reader.
    hits: List[Hit]
    # Schema number.
    schema: int
    _nested: ClassVar[Dict[str, str]] = {'hits': '[Hit]'}


@dataclass(frozen=True)
class RecipeBody(Model):
    """`POST /v1/images/recipe`; answered as an import."""

    # Absolute path on the node's host: where COPY finds its files.
    context: str
    # Name of the image.
    name: str
    # The recipe's text.
    recipe: str


@dataclass(frozen=True)
class Recovery(Model):
    """What opening the store found."""

    # Whether the store was clean.
    clean: bool
    # Damaged regions skipped.
    damaged: int
    # Whether the index was rebuilt.
    index_rebuilt: bool
    # Fragments of this node's own agents that were in them.
    lost: List[str]
    # What was found, in sentences.
    notes: List[str]
    # Stored items read again to bring the index up to date.
    replayed: int
    # How long opening took, in milliseconds.
    took_ms: int
    # Bytes of an unfinished write cut off the end.
    torn_bytes: int


@dataclass(frozen=True)
class RedactBody(Model):
    """`POST /v1/memory/{doc}/redact`: what is to be redacted, and why."""

    # Name or id of the agent that redacts it; its author if that is an agent of this node, else the node's own. Refused from a guest.
    agent: Optional[str] = None
    # Why, in one line that every reader of the space will see.
    reason: Optional[str] = None
    # Space; all readable ones by default.
    space: Optional[str] = None


@dataclass(frozen=True)
class RedactReceipt(Model):
    """The receipt for a redaction: durable on this node, and the bodies off its disk."""

    # The document.
    doc: str
    # How many fragments of it the agent may not redact: they stay.
    left: int
    # The fragments that redact it, as `why` takes them.
    redactions: List[str]
    # Schema number.
    schema: int
    # Its space.
    space: str
    # How many fragments lost their body.
    taken: int


@dataclass(frozen=True)
class Redaction(Model):
    """Who redacted something, and why."""

    # When its author says it was signed, in Unix milliseconds.
    at_ms: int
    # Who signed it.
    author: Named
    # The node it was signed on.
    node: Named
    # The fragment that says so, as `why` takes it.
    redaction: str
    # The author's reason, if it gave one that can be read here.
    reason: Optional[str] = None
    _nested: ClassVar[Dict[str, str]] = {'author': 'Named', 'node': 'Named'}


@dataclass(frozen=True)
class RefusedLine(Model):
    """A line, or a part of one, that was not taken."""

    # Its number in the file, from 1.
    line: int
    # Why.
    reason: str


@dataclass(frozen=True)
class Replicated(Model):
    """Where a snapshot is kept, beside the node it was taken on."""

    # The other nodes that hold it durably.
    holders: List[Named]
    # How many other nodes should keep it.
    wanted: int
    # Why there is no record, if there should be one.
    problem: Optional[str] = None
    # The fragment of the record by which other nodes find it; absent for a sandbox of no space.
    record: Optional[str] = None
    # The nodes that were asked and do not.
    refused: Optional[List[Unanswered]] = None
    _nested: ClassVar[Dict[str, str]] = {'holders': '[Named]', 'refused': '[Unanswered]'}


@dataclass(frozen=True)
class RestoreBody(Model):
    """`POST /v1/snapshots/{id}/restore`; the answer is a stream of `super::ProgressLine``<``super::sandbox::SandboxCreated``>`."""

    # Make another sandbox instead of the same one.
    as_new: Optional[bool] = None
    # Go on although something that the sandbox relies on is not here.
    force: Optional[bool] = None
    # Its lease.
    lease: Optional[LeaseBody] = None
    # The other one's name.
    name: Optional[str] = None
    _nested: ClassVar[Dict[str, str]] = {'lease': 'LeaseBody'}


@dataclass(frozen=True)
class RestoreMemberBody(Model):
    """`POST /v1/members/{member}/restore`."""

    # Sign with the root key, which has to be on this node.
    as_root: Optional[bool] = None


@dataclass(frozen=True)
class ResumeBody(Model):
    """`POST /v1/resume`: wake a sandbox, here or elsewhere, wherever it went to sleep."""

    # The sandbox by id, prefix or name, or its snapshot by a prefix of its manifest.
    what: str
    # Wake it though it may run elsewhere, or what it did since may be lost.
    force: Optional[bool] = None
    # Where: a node, `any` or `label=…`; here if absent.
    on: Optional[str] = None


@dataclass(frozen=True)
class Resumed(Model):
    """A sandbox that woke."""

    # `kvm` or `tcg`.
    accel: str
    # When it was created.
    created_ms: int
    # Driver, such as `qemu-microvm`.
    driver: str
    # Bytes that were fetched for it.
    fetched_bytes: int
    # What its runtime is made of: `kernel`, `arch`, `cpu`, `accel`, `vmm`, `tools`…
    fingerprint: Any
    # The hash of that, stamped on what is published from here.
    fingerprint_hash: str
    # Sandbox id.
    id: str
    # Name of the image.
    image: str
    # Hash of the image.
    image_id: str
    # Labels, without the node's own.
    labels: Dict[str, str]
    # Memory in MiB.
    memory_mib: int
    # What it may reach, in one line.
    network: str
    # Schema number.
    schema: int
    # The spaces it may use.
    spaces: List[Named]
    # `creating`, `booting`, `ready`, `paused`, `snapshotting`, `hibernating`, `hibernated`, `restoring`, `stopping`, `stopped`, `failed`, `lost` or `killed` (`docs/lifecycle.md`); `elsewhere` if it slept here and went on on another node (`docs/placement.md`).
    state: str
    # When its snapshot was taken: what it did later is not in it.
    taken_ms: int
    # Virtual CPUs.
    vcpus: int
    # The agent it works for.
    agent: Optional[Named] = None
    # What of its disks is still on its way, while it runs ahead of them.
    arriving: Optional[Arriving] = None
    # How long it took to boot, in milliseconds.
    boot_ms: Optional[int] = None
    # Who keeps what it slept in last, if other nodes know of it.
    copies: Optional[Copies] = None
    # Until when it lives when nobody asks for more.
    lease: Optional[Lease] = None
    # Name, if it has one.
    name: Optional[str] = None
    # The node it runs on.
    node: Optional[Named] = None
    # What the reader should know: an agent that is another one here, a fork.
    notes: Optional[List[str]] = None
    # The sandbox it is a copy of.
    parent: Optional[str] = None
    # Why it failed, or what was lost, if so.
    reason: Optional[str] = None
    # What is relied on in its runtime.
    requires: Optional[List[str]] = None
    # What it slept in last.
    snapshot: Optional[str] = None
    # What wakes it, if it sleeps until something happens.
    wake_on: Optional[List[WakeOn]] = None
    # What woke it last, if nobody asked for it.
    woken_by: Optional[WokenBy] = None
    _nested: ClassVar[Dict[str, str]] = {'spaces': '[Named]', 'agent': 'Named', 'arriving': 'Arriving', 'copies': 'Copies', 'lease': 'Lease', 'node': 'Named', 'wake_on': '[WakeOn]', 'woken_by': 'WokenBy'}


@dataclass(frozen=True)
class RootRotated(Model):
    """`POST /v1/root/rotate`."""

    # Where the key that may replace it lies.
    next_root_key: str
    # The root's public key since.
    root: str
    # Where its secret key lies.
    root_key: str
    # Schema number.
    schema: int


@dataclass(frozen=True)
class Runtime(Model):
    """`GET /v1/runtimes/{hash or sandbox}`."""

    # All that is known of it.
    fingerprint: Any
    # Its hash.
    hash: str
    # Schema number.
    schema: int


@dataclass(frozen=True)
class RuntimeDifferences(Model):
    """`GET /v1/runtimes/{a}/differences/{b}`."""

    # In what they differ; none if they are the same.
    differences: List[Difference]
    # Hash of the second.
    is_: str
    # Schema number.
    schema: int
    # Hash of the first.
    was: str
    _nested: ClassVar[Dict[str, str]] = {'differences': '[Difference]'}


@dataclass(frozen=True)
class RuntimeLine(Model):
    """A runtime in a line."""

    # Image, driver, kernel and memory, for people.
    about: str
    # When it was first told of, by the teller's clock.
    at_ms: int
    # BLAKE3 of its fingerprint; what memories name it by.
    hash: str


@dataclass(frozen=True)
class Runtimes(Model):
    """`GET /v1/runtimes`."""

    # The runtimes, newest first.
    runtimes: List[RuntimeLine]
    # Schema number.
    schema: int
    _nested: ClassVar[Dict[str, str]] = {'runtimes': '[RuntimeLine]'}


@dataclass(frozen=True)
class Sandbox(Model):
    """A sandbox."""

    # `kvm` or `tcg`.
    accel: str
    # When it was created.
    created_ms: int
    # Driver, such as `qemu-microvm`.
    driver: str
    # What its runtime is made of: `kernel`, `arch`, `cpu`, `accel`, `vmm`, `tools`…
    fingerprint: Any
    # The hash of that, stamped on what is published from here.
    fingerprint_hash: str
    # Sandbox id.
    id: str
    # Name of the image.
    image: str
    # Hash of the image.
    image_id: str
    # Labels, without the node's own.
    labels: Dict[str, str]
    # Memory in MiB.
    memory_mib: int
    # What it may reach, in one line.
    network: str
    # The spaces it may use.
    spaces: List[Named]
    # `creating`, `booting`, `ready`, `paused`, `snapshotting`, `hibernating`, `hibernated`, `restoring`, `stopping`, `stopped`, `failed`, `lost` or `killed` (`docs/lifecycle.md`); `elsewhere` if it slept here and went on on another node (`docs/placement.md`).
    state: str
    # Virtual CPUs.
    vcpus: int
    # The agent it works for.
    agent: Optional[Named] = None
    # What of its disks is still on its way, while it runs ahead of them.
    arriving: Optional[Arriving] = None
    # How long it took to boot, in milliseconds.
    boot_ms: Optional[int] = None
    # Who keeps what it slept in last, if other nodes know of it.
    copies: Optional[Copies] = None
    # Until when it lives when nobody asks for more.
    lease: Optional[Lease] = None
    # Name, if it has one.
    name: Optional[str] = None
    # The node it runs on.
    node: Optional[Named] = None
    # The sandbox it is a copy of.
    parent: Optional[str] = None
    # Why it failed, or what was lost, if so.
    reason: Optional[str] = None
    # What is relied on in its runtime.
    requires: Optional[List[str]] = None
    # What it slept in last.
    snapshot: Optional[str] = None
    # What wakes it, if it sleeps until something happens.
    wake_on: Optional[List[WakeOn]] = None
    # What woke it last, if nobody asked for it.
    woken_by: Optional[WokenBy] = None
    _nested: ClassVar[Dict[str, str]] = {'spaces': '[Named]', 'agent': 'Named', 'arriving': 'Arriving', 'copies': 'Copies', 'lease': 'Lease', 'node': 'Named', 'wake_on': '[WakeOn]', 'woken_by': 'WokenBy'}


@dataclass(frozen=True)
class SandboxBody(Model):
    """`POST /v1/sandboxes`; the answer is a stream of `super::ProgressLine``<``SandboxCreated``>`."""

    # The agent it works for; without one its door stays shut.
    agent: Optional[str] = None
    # Environment of every command run in it.
    env: Optional[Dict[str, str]] = None
    # `minimal` (default), `debian` or an image id or its prefix.
    image: Optional[str] = None
    # Free labels; names starting with `rhizome.` are the node's own.
    labels: Optional[Dict[str, str]] = None
    # Until when it lives when nobody asks for more; for ever by default.
    lease: Optional[LeaseBody] = None
    # Memory in MiB.
    memory_mib: Optional[int] = None
    # A name, unique among the living; none by default.
    name: Optional[str] = None
    # What it may reach: nothing, if absent.
    network: Optional[Policy] = None
    # What is relied on in its runtime, one requirement each.
    requires: Optional[List[str]] = None
    # Names of the node's secrets that it may use.
    secrets: Optional[List[str]] = None
    # The spaces it may use, the first being its default; all the agent may use if empty.
    spaces: Optional[List[str]] = None
    # Virtual CPUs.
    vcpus: Optional[int] = None
    _nested: ClassVar[Dict[str, str]] = {'lease': 'LeaseBody', 'network': 'Policy'}


@dataclass(frozen=True)
class SandboxCreated(Model):
    """The result of creating a sandbox, and of `GET /v1/sandboxes/{id}`."""

    # `kvm` or `tcg`.
    accel: str
    # When it was created.
    created_ms: int
    # Driver, such as `qemu-microvm`.
    driver: str
    # What its runtime is made of: `kernel`, `arch`, `cpu`, `accel`, `vmm`, `tools`…
    fingerprint: Any
    # The hash of that, stamped on what is published from here.
    fingerprint_hash: str
    # Sandbox id.
    id: str
    # Name of the image.
    image: str
    # Hash of the image.
    image_id: str
    # Labels, without the node's own.
    labels: Dict[str, str]
    # Memory in MiB.
    memory_mib: int
    # What it may reach, in one line.
    network: str
    # Schema number.
    schema: int
    # The spaces it may use.
    spaces: List[Named]
    # `creating`, `booting`, `ready`, `paused`, `snapshotting`, `hibernating`, `hibernated`, `restoring`, `stopping`, `stopped`, `failed`, `lost` or `killed` (`docs/lifecycle.md`); `elsewhere` if it slept here and went on on another node (`docs/placement.md`).
    state: str
    # Virtual CPUs.
    vcpus: int
    # The agent it works for.
    agent: Optional[Named] = None
    # What of its disks is still on its way, while it runs ahead of them.
    arriving: Optional[Arriving] = None
    # How long it took to boot, in milliseconds.
    boot_ms: Optional[int] = None
    # Who keeps what it slept in last, if other nodes know of it.
    copies: Optional[Copies] = None
    # Until when it lives when nobody asks for more.
    lease: Optional[Lease] = None
    # Name, if it has one.
    name: Optional[str] = None
    # The node it runs on.
    node: Optional[Named] = None
    # The sandbox it is a copy of.
    parent: Optional[str] = None
    # Why it failed, or what was lost, if so.
    reason: Optional[str] = None
    # What is relied on in its runtime.
    requires: Optional[List[str]] = None
    # What it slept in last.
    snapshot: Optional[str] = None
    # What wakes it, if it sleeps until something happens.
    wake_on: Optional[List[WakeOn]] = None
    # What woke it last, if nobody asked for it.
    woken_by: Optional[WokenBy] = None
    _nested: ClassVar[Dict[str, str]] = {'spaces': '[Named]', 'agent': 'Named', 'arriving': 'Arriving', 'copies': 'Copies', 'lease': 'Lease', 'node': 'Named', 'wake_on': '[WakeOn]', 'woken_by': 'WokenBy'}


@dataclass(frozen=True)
class SandboxResumeBody(Model):
    """`POST /v1/sandboxes/{id}/resume`; the answer is a stream of `super::ProgressLine``<``super::sandbox::SandboxCreated``>`."""

    # Go on although something that the sandbox relies on is not here.
    force: Optional[bool] = None


@dataclass(frozen=True)
class SandboxSummary(Model):
    """Sandboxes in numbers."""

    # Whether this node can run sandboxes.
    available: bool
    # Ready ones.
    ready: int
    # All that are not killed.
    total: int
    # Guests that wait for the next sandbox of their image and size.
    waiting: int
    # Memory that these take, in bytes.
    waiting_bytes: int
    # `kvm` or `tcg`, once known.
    accel: Optional[str] = None
    # Why not, if not.
    problem: Optional[str] = None


@dataclass(frozen=True)
class Sandboxes(Model):
    """`GET /v1/sandboxes`."""

    # The sandboxes, newest first.
    sandboxes: List[Sandbox]
    # Schema number.
    schema: int
    # The nodes that were asked for theirs and did not answer.
    unanswered: Optional[List[Unanswered]] = None
    _nested: ClassVar[Dict[str, str]] = {'sandboxes': '[Sandbox]', 'unanswered': '[Unanswered]'}


@dataclass(frozen=True)
class Secret(Model):
    """A secret with its value."""

    # The one domain it is sent to.
    domain: str
    # 1 to 64 letters, digits and `_`, not beginning with a digit.
    name: str
    # The value.
    value: str
    # What that header holds, `{}` standing for the value; `Bearer {}` by default.
    format: Optional[str] = None
    # The one header it is sent in; `authorization` by default.
    header: Optional[str] = None


@dataclass(frozen=True)
class SecretSet(Model):
    """The answer to `POST /v1/secrets`."""

    # The one domain it is sent to.
    domain: str
    # What that header holds, `{}` standing for the value.
    format: str
    # The one header it is sent in.
    header: str
    # Its name.
    name: str
    # Schema number.
    schema: int
    # The environment variable that holds its placeholder in a sandbox.
    variable: str


@dataclass(frozen=True)
class SecretShown(Model):
    """A secret as it is shown: without its value."""

    # The one domain it is sent to.
    domain: str
    # What that header holds, `{}` standing for the value.
    format: str
    # The one header it is sent in.
    header: str
    # Its name.
    name: str
    # The environment variable that holds its placeholder in a sandbox.
    variable: str


@dataclass(frozen=True)
class Secrets(Model):
    """`GET /v1/secrets`."""

    # Schema number.
    schema: int
    # The secrets of this node, by name.
    secrets: List[SecretShown]
    _nested: ClassVar[Dict[str, str]] = {'secrets': '[SecretShown]'}


@dataclass(frozen=True)
class SelfInfo(Model):
    """`GET /v1/self`: who is asking, as the node sees it."""

    # Runtime fingerprint stamped on what is published from here.
    fingerprint: str
    # The node.
    node: Named
    # Schema number.
    schema: int
    # The spaces that can be used.
    spaces: List[SelfSpace]
    # The agent spoken for; absent while the node belongs to no mesh.
    agent: Optional[Named] = None
    # That sandbox's image.
    image: Optional[str] = None
    # The sandbox asked from; absent on the node's own socket.
    sandbox: Optional[str] = None
    _nested: ClassVar[Dict[str, str]] = {'node': 'Named', 'spaces': '[SelfSpace]', 'agent': 'Named'}


@dataclass(frozen=True)
class SelfSpace(Model):
    """A space with the role one has in it."""

    # Space id.
    id: str
    # Name.
    name: str
    # Role.
    role: str


@dataclass(frozen=True)
class Setting(Model):
    """One setting of the daemon."""

    # Where it came from: `default`, `file`, `environment` or `flag`.
    from_: str
    # Its name, as `config.json` has it.
    name: str
    # Its value.
    value: Any


@dataclass(frozen=True)
class Settings(Model):
    """`GET /v1/config`."""

    # Where `config.json` would be.
    file: str
    # Schema number.
    schema: int
    # Every setting.
    settings: List[Setting]
    _nested: ClassVar[Dict[str, str]] = {'settings': '[Setting]'}


@dataclass(frozen=True)
class ShareUse(Model):
    """What an author, a node or a space has written of what it may before others go first."""

    # Bytes taken in since the daemon started.
    bytes: int
    # Fragments taken in since the daemon started.
    fragments: int
    # `author`, `node` or `space`.
    kind: str
    # Which one.
    of: Named
    # Those of them that waited behind others.
    over: int
    # Fragments refused, each time they were offered.
    refused: int
    # How much of the share is used now, in percent; above 100 it waits behind others.
    used_percent: int
    _nested: ClassVar[Dict[str, str]] = {'of': 'Named'}


@dataclass(frozen=True)
class SignalBody(Model):
    """`POST /v1/sandboxes/{id}/execs/{exec}/signal`."""

    # Its number, 1 to 31; 9 ends all that the command started.
    signal: int


@dataclass(frozen=True)
class Snapshot(Model):
    """A snapshot."""

    # Whether it is what its sandbox slept in last: it goes when the sandbox goes.
    asleep: bool
    # Bytes of them that the store did not have.
    bytes_new: int
    # Bytes that were read.
    bytes_read: int
    # Bytes that these take in the store.
    bytes_stored: int
    # Its id: the hash of its sealed manifest.
    id: str
    # The image's name.
    image: str
    # The image's id.
    image_id: str
    # Memory in MiB.
    memory_mib: int
    # Files of the store that it consists of, without its manifest.
    packs: List[str]
    # How long it stood still, in milliseconds.
    pause_ms: int
    # The sandbox it was taken of.
    sandbox: str
    # The spaces of the sandbox; the first one's key seals it.
    spaces: List[Named]
    # When the guest was stopped for it.
    taken_ms: int
    # The name that the sandbox had.
    name: Optional[str] = None
    _nested: ClassVar[Dict[str, str]] = {'spaces': '[Named]'}


@dataclass(frozen=True)
class SnapshotBody(Model):
    """`POST /v1/sandboxes/{id}/snapshot`, `…/hibernate`; the answer is a stream of `super::ProgressLine``<``SnapshotTaken``>`."""

    # Time that it may take, in milliseconds.
    deadline_ms: Optional[int] = None
    # Which: `any` (default) or `label=<name>[=<value>]`.
    held_by: Optional[str] = None
    # A program that the guest runs first, and its arguments.
    hook: Optional[List[str]] = None
    # Other nodes that are to hold the snapshot before this is done; one, if one is connected, by default.
    replicas: Optional[int] = None
    # What wakes it, of one that is put to sleep: `time=…`, `memory=…`, `webhook`.
    wake_on: Optional[List[str]] = None


@dataclass(frozen=True)
class SnapshotExported(Model):
    """The result of `POST /v1/snapshots/{id}/export`."""

    # Its size.
    bytes: int
    # The snapshot's id.
    id: str
    # The file.
    path: str
    # Schema number.
    schema: int
    # What there is to know about it.
    notes: Optional[List[str]] = None


@dataclass(frozen=True)
class SnapshotTaken(Model):
    """The result of taking a snapshot, and of `GET /v1/snapshots/{id}`."""

    # Whether it is what its sandbox slept in last: it goes when the sandbox goes.
    asleep: bool
    # Bytes of them that the store did not have.
    bytes_new: int
    # Bytes that were read.
    bytes_read: int
    # Bytes that these take in the store.
    bytes_stored: int
    # Its id: the hash of its sealed manifest.
    id: str
    # The image's name.
    image: str
    # The image's id.
    image_id: str
    # Memory in MiB.
    memory_mib: int
    # Files of the store that it consists of, without its manifest.
    packs: List[str]
    # How long it stood still, in milliseconds.
    pause_ms: int
    # The sandbox it was taken of.
    sandbox: str
    # Schema number.
    schema: int
    # The spaces of the sandbox; the first one's key seals it.
    spaces: List[Named]
    # When the guest was stopped for it.
    taken_ms: int
    # Where else it is kept; absent when it was not just taken.
    kept: Optional[Replicated] = None
    # The name that the sandbox had.
    name: Optional[str] = None
    # What wakes it.
    wake_on: Optional[List[WakeOn]] = None
    # The path of its webhook, told once: `POST` to it on any node that holds a copy.
    webhook: Optional[str] = None
    _nested: ClassVar[Dict[str, str]] = {'spaces': '[Named]', 'kept': 'Replicated', 'wake_on': '[WakeOn]'}


@dataclass(frozen=True)
class Snapshots(Model):
    """`GET /v1/snapshots`."""

    # Schema number.
    schema: int
    # The snapshots, newest first.
    snapshots: List[Snapshot]
    _nested: ClassVar[Dict[str, str]] = {'snapshots': '[Snapshot]'}


@dataclass(frozen=True)
class Space(Model):
    """A space."""

    # When.
    at_ms: int
    # The node that made it.
    created_by: Named
    # Key epoch.
    epoch: int
    # When the key of that epoch was made, in Unix milliseconds, by the clock of who made it; it becomes 30 days old.
    epoch_at_ms: int
    # Whether a new one is due before that: who reads there has changed, or two were made at once.
    epoch_stale: bool
    # Fragments held here.
    fragments: int
    # Hash of the newest fragment of every author: equal on two nodes that hold the same.
    heads: str
    # Space id.
    id: str
    # Nodes with a role in it.
    members: int
    # Name.
    name: str
    # Fragments set aside as bad.
    quarantined: int
    # Fragments that wait for something.
    waiting: int
    # This node's role in it; absent if it has none.
    role: Optional[str] = None
    _nested: ClassVar[Dict[str, str]] = {'created_by': 'Named'}


@dataclass(frozen=True)
class SpaceBody(Model):
    """`POST /v1/spaces`."""

    # Its name.
    name: str


@dataclass(frozen=True)
class SpaceCreated(Model):
    """The answer to `SpaceBody`."""

    # When.
    at_ms: int
    # The node that made it.
    created_by: Named
    # Key epoch.
    epoch: int
    # When the key of that epoch was made, in Unix milliseconds, by the clock of who made it; it becomes 30 days old.
    epoch_at_ms: int
    # Whether a new one is due before that: who reads there has changed, or two were made at once.
    epoch_stale: bool
    # Fragments held here.
    fragments: int
    # Hash of the newest fragment of every author: equal on two nodes that hold the same.
    heads: str
    # Space id.
    id: str
    # Nodes with a role in it.
    members: int
    # Name.
    name: str
    # Fragments set aside as bad.
    quarantined: int
    # Schema number.
    schema: int
    # Fragments that wait for something.
    waiting: int
    # This node's role in it; absent if it has none.
    role: Optional[str] = None
    _nested: ClassVar[Dict[str, str]] = {'created_by': 'Named'}


@dataclass(frozen=True)
class SpaceRotated(Model):
    """`POST /v1/spaces/{space}/rotate`."""

    # The epoch of its new key.
    epoch: int
    # Schema number.
    schema: int
    # The space.
    space: Named
    _nested: ClassVar[Dict[str, str]] = {'space': 'Named'}


@dataclass(frozen=True)
class Spaces(Model):
    """`GET /v1/spaces`."""

    # Schema number.
    schema: int
    # The spaces.
    spaces: List[Space]
    _nested: ClassVar[Dict[str, str]] = {'spaces': '[Space]'}


@dataclass(frozen=True)
class Status(Model):
    """`GET /v1/status`."""

    # UDP addresses it can be reached at.
    addrs: List[str]
    # Of which connected now, without this node.
    connected: int
    # Data directory.
    data_dir: str
    # Bytes free on the data directory's filesystem.
    disk_free_bytes: int
    # Agents that signed two histories.
    forks: List[Fork]
    # Members of the mesh.
    members: int
    # This node; the name is the one it was started with while it belongs to no mesh.
    node: Named
    # Process id.
    pid: int
    # What the store's recovery found at the start.
    recovery: Recovery
    # Resident memory of the daemon, in bytes.
    resident_bytes: int
    # Whether it holds the mesh's root key.
    root: bool
    # The sandboxes, by state.
    sandboxes: SandboxSummary
    # Schema number.
    schema: int
    # How the shares of authors, nodes and spaces stand: the twenty that are used most.
    shares: List[ShareUse]
    # Socket of this API.
    socket: str
    # The spaces it can use.
    spaces: List[Space]
    # When it started.
    started_ms: int
    # Version of the daemon.
    version: str
    # Where this API listens over TCP, if it does.
    api: Optional[str] = None
    # Where clients of E2B are answered, if they are.
    e2b: Optional[str] = None
    # The mesh it belongs to.
    mesh: Optional[Named] = None
    # Its role in the mesh.
    role: Optional[str] = None
    _nested: ClassVar[Dict[str, str]] = {'forks': '[Fork]', 'node': 'Named', 'recovery': 'Recovery', 'sandboxes': 'SandboxSummary', 'shares': '[ShareUse]', 'spaces': '[Space]', 'mesh': 'Named'}


@dataclass(frozen=True)
class TakeBody(Model):
    """`POST /v1/remote/image`: fetch an image from the asking node and keep it; the answer is a stream of `super::ProgressLine``<``Held``>`."""

    # How many bytes its files take.
    bytes: int
    # Its id, whole.
    id: str


@dataclass(frozen=True)
class Token(Model):
    """A token, without what is sent."""

    # The agent that its holder speaks as.
    agent: Named
    # When it was made.
    created_ms: int
    # Its name.
    name: str
    # Whether it opens sandboxes of those spaces too.
    sandboxes: bool
    # The spaces it opens, its default first.
    spaces: List[Named]
    # Until when it holds.
    not_after_ms: Optional[int] = None
    _nested: ClassVar[Dict[str, str]] = {'agent': 'Named', 'spaces': '[Named]'}


@dataclass(frozen=True)
class TokenBody(Model):
    """`POST /v1/tokens`."""

    # Its name, unique on this node: letters, digits, `-`, `_`, `.`; 64 at most.
    name: str
    # Name or id of the agent that its holder speaks as; the node's own by default.
    agent: Optional[str] = None
    # For how long, in seconds; without end by default.
    expires_secs: Optional[int] = None
    # Whether it opens sandboxes of those spaces too.
    sandboxes: Optional[bool] = None
    # Names or ids of the spaces it opens; all that the agent may use by default.
    spaces: Optional[List[str]] = None


@dataclass(frozen=True)
class TokenCreated(Model):
    """The answer of `POST /v1/tokens`."""

    # The agent that its holder speaks as.
    agent: Named
    # When it was made.
    created_ms: int
    # Its name.
    name: str
    # Whether it opens sandboxes of those spaces too.
    sandboxes: bool
    # Schema number.
    schema: int
    # What is sent in `Authorization: Bearer …`; told once and kept nowhere.
    secret: str
    # The spaces it opens, its default first.
    spaces: List[Named]
    # Until when it holds.
    not_after_ms: Optional[int] = None
    _nested: ClassVar[Dict[str, str]] = {'agent': 'Named', 'spaces': '[Named]'}


@dataclass(frozen=True)
class TokenRevoked(Model):
    """The answer of `DELETE /v1/tokens/{name}`: the token, which opens nothing from now on."""

    # The agent that its holder speaks as.
    agent: Named
    # When it was made.
    created_ms: int
    # Its name.
    name: str
    # Whether it opens sandboxes of those spaces too.
    sandboxes: bool
    # Schema number.
    schema: int
    # The spaces it opens, its default first.
    spaces: List[Named]
    # Until when it holds.
    not_after_ms: Optional[int] = None
    _nested: ClassVar[Dict[str, str]] = {'agent': 'Named', 'spaces': '[Named]'}


@dataclass(frozen=True)
class Tokens(Model):
    """The answer of `GET /v1/tokens`."""

    # Schema number.
    schema: int
    # The tokens, by name.
    tokens: List[Token]
    _nested: ClassVar[Dict[str, str]] = {'tokens': '[Token]'}


@dataclass(frozen=True)
class Unanswered(Model):
    """A node that was asked and did not answer."""

    # The node.
    node: Named
    # Why there is no answer.
    problem: str
    _nested: ClassVar[Dict[str, str]] = {'node': 'Named'}


@dataclass(frozen=True)
class UsageAnswer(Model):
    """`GET /v1/usage`."""

    # By what it is added up.
    by: Union[Literal['agent'], Literal['space'], Literal['sandbox']]
    # Schema number.
    schema: int
    # Until when.
    until_ms: int
    # The rows, by processor time, the most first.
    usage: List[UsageRow]
    # From when on; absent for since the beginning.
    from_ms: Optional[int] = None
    _nested: ClassVar[Dict[str, str]] = {'usage': '[UsageRow]'}


@dataclass(frozen=True)
class UsageRow(Model):
    """What one agent, space or sandbox used."""

    # Processor time, in milliseconds.
    cpu_ms: int
    # Bytes of disk that are held now.
    disk_bytes: int
    # Disk times time, in MiB times seconds.
    disk_mib_s: int
    # Memory times time, in MiB times seconds.
    ram_mib_s: int
    # Bytes that came back.
    received_bytes: int
    # Sandboxes that run now.
    running: int
    # Time for which sandboxes ran, in milliseconds.
    sandbox_ms: int
    # Bytes that left through the network.
    sent_bytes: int
    # The agent; absent for what works for none, and in rows by space.
    agent: Optional[Named] = None
    # Its name, while it is listed.
    name: Optional[str] = None
    # The sandbox, in rows by sandbox; absent for those too old to be told apart.
    sandbox: Optional[str] = None
    # The space or, in rows by sandbox, the spaces.
    spaces: Optional[List[Named]] = None
    # The volume, in rows by sandbox, of what its versions take.
    volume: Optional[str] = None
    _nested: ClassVar[Dict[str, str]] = {'agent': 'Named', 'spaces': '[Named]'}


@dataclass(frozen=True)
class Verification(Model):
    """The fragments of a context, each read again from disk and checked."""

    # Each of them.
    fragments: List[VerifiedFragment]
    # How many hold: hash, signature, chain and authority.
    ok: int
    # How many fragments there are.
    total: int
    _nested: ClassVar[Dict[str, str]] = {'fragments': '[VerifiedFragment]'}


@dataclass(frozen=True)
class VerifiedFragment(Model):
    """One fragment's check."""

    # When, by the author's clock.
    at_ms: int
    # Who signed it.
    author: Named
    # Fragment id.
    id: str
    # On which node.
    node: Named
    # Whether everything holds.
    ok: bool
    # Place in the author's chain.
    seq: int
    # What does not.
    problem: Optional[str] = None
    _nested: ClassVar[Dict[str, str]] = {'author': 'Named', 'node': 'Named'}


@dataclass(frozen=True)
class Volume(Model):
    """A volume."""

    # The sandboxes it is attached to.
    attached: List[VolumeAttached]
    # When it was made.
    created_ms: int
    # Versions that no other was made from, the newest first; several if writers were apart.
    heads: List[VolumeVersion]
    # Its id, 32 hex digits.
    id: str
    # Its name.
    name: str
    # The space it belongs to.
    space: Named
    # How many versions are known.
    versions: int
    _nested: ClassVar[Dict[str, str]] = {'attached': '[VolumeAttached]', 'heads': '[VolumeVersion]', 'space': 'Named'}


@dataclass(frozen=True)
class VolumeArrived(Model):
    """How much of a version is on a node."""

    # All packs of it.
    of: int
    # Packs that are here.
    packs: int


@dataclass(frozen=True)
class VolumeAttachBody(Model):
    """The body of `POST /v1/volumes/{volume}/attach`."""

    # Absolute path in it.
    path: str
    # The sandbox.
    sandbox: str
    # Seconds between checkpoints; 0 for none of themselves.
    every_secs: Optional[int] = None
    # Also while another sandbox may write: two versions will come of it.
    force: Optional[bool] = None
    # Take the newest also where there are several that do not know of each other.
    newest: Optional[bool] = None
    # Only to read.
    read_only: Optional[bool] = None
    # The version, if not the newest.
    version: Optional[str] = None


@dataclass(frozen=True)
class VolumeAttached(Model):
    """A volume in a sandbox."""

    # The version that was attached.
    base: str
    # Seconds between checkpoints; 0 for none of themselves.
    every_secs: int
    # The version that the last checkpoint made, if one did.
    last: Optional[str]
    # The node it runs on, or ran on last.
    node: Named
    # Where it is in the sandbox.
    path: str
    # The sandbox's id.
    sandbox: str
    # Whether this node serves it now.
    served: bool
    # Until when nobody else may attach it to write.
    until_ms: int
    # Whether it may be changed there.
    writable: bool
    # How much of it is here, if this node serves it; what is read is fetched first.
    arrived: Optional[VolumeArrived] = None
    _nested: ClassVar[Dict[str, str]] = {'node': 'Named', 'arrived': 'VolumeArrived'}


@dataclass(frozen=True)
class VolumeBody(Model):
    """The body of `POST /v1/volumes`."""

    # Its name.
    name: str
    # A directory of this machine that it starts as.
    from_: Optional[str] = None
    # The space it belongs to, if there are several.
    space: Optional[str] = None


@dataclass(frozen=True)
class VolumeChange(Model):
    """One entry that differs."""

    # `added`, `removed`, `modified` or `meta`.
    kind: str
    # Bytes it has, of a file.
    new_bytes: Optional[int]
    # Bytes it had, of a file.
    old_bytes: Optional[int]
    # Where.
    path: str


@dataclass(frozen=True)
class VolumeCheckpointBody(Model):
    """The body of `POST /v1/volumes/{volume}/checkpoint`."""

    # Why.
    message: Optional[str] = None
    # How many other nodes must hold it; as many as are there, up to one, if left out.
    replicas: Optional[int] = None
    # The sandbox; may be left out if there is one.
    sandbox: Optional[str] = None


@dataclass(frozen=True)
class VolumeCommitted(Model):
    """What became a version, or was one already."""

    # Whether it is new: what was unchanged makes no version.
    changed: bool
    # What two sides had both changed.
    conflicts: List[VolumeConflict]
    # Files read for it.
    files_read: int
    # Version of this object.
    schema: int
    # Devices, pipes and sockets, which volumes don't hold.
    skipped: int
    # Files that changed while they were read.
    unsettled: List[str]
    # The version.
    version: VolumeVersion
    # The volume's id.
    volume: str
    _nested: ClassVar[Dict[str, str]] = {'conflicts': '[VolumeConflict]', 'version': 'VolumeVersion'}


@dataclass(frozen=True)
class VolumeConflict(Model):
    """Something that two versions had both changed."""

    # Where the other side's is, if it is somewhere else.
    kept_as: Optional[str]
    # `both_changed`, `removed_and_changed`, `changed_and_removed` or `meta_changed`.
    kind: str
    # Where.
    path: str


@dataclass(frozen=True)
class VolumeDetachBody(Model):
    """The body of `POST /v1/volumes/{volume}/detach`."""

    # Drop what was changed since the last checkpoint.
    discard: Optional[bool] = None
    # Also while programs use it.
    force: Optional[bool] = None
    # The sandbox; may be left out if there is one.
    sandbox: Optional[str] = None


@dataclass(frozen=True)
class VolumeDiff(Model):
    """The answer of `GET /v1/volumes/{volume}/diff`."""

    # What differs, in the order of paths.
    changes: List[VolumeChange]
    # The version that was compared.
    from_: str
    # Whether there is more.
    more: bool
    # Version of this object.
    schema: int
    # The one it was compared with.
    to: str
    _nested: ClassVar[Dict[str, str]] = {'changes': '[VolumeChange]'}


@dataclass(frozen=True)
class VolumeForgetBody(Model):
    """The body of `POST /v1/volumes/{volume}/forget`: one of both."""

    # How many of the newest are kept.
    keep: Optional[int] = None
    # Versions, or prefixes of their ids.
    versions: Optional[List[str]] = None


@dataclass(frozen=True)
class VolumeForgotten(Model):
    """The answer to `POST /v1/volumes/{volume}/forget`."""

    # The versions that are forgotten now.
    forgotten: List[str]
    # How many there are still.
    kept: int
    # Schema number.
    schema: int


@dataclass(frozen=True)
class VolumeHoldBody(Model):
    """What a node asks another to keep."""

    # Bytes of them all.
    bytes: int
    # The packs it lies in.
    packs: List[str]
    # The space's id.
    space: str
    # The version, an object of the chunk store.
    version: str
    # The volume's id.
    volume: str
    # Other nodes that have some of them.
    holders: Optional[List[str]] = None


@dataclass(frozen=True)
class VolumeLog(Model):
    """The answer of `GET /v1/volumes/{volume}/log`."""

    # Version of this object.
    schema: int
    # Each before what it was made from.
    versions: List[VolumeVersion]
    _nested: ClassVar[Dict[str, str]] = {'versions': '[VolumeVersion]'}


@dataclass(frozen=True)
class VolumeRepackBody(Model):
    """The body of `POST /v1/volumes/{volume}/repack`."""

    # Only say what would be done.
    dry_run: Optional[bool] = None


@dataclass(frozen=True)
class VolumeRepacked(Model):
    """The answer to `POST /v1/volumes/{volume}/repack`."""

    # Their bytes.
    bytes: int
    # Bytes of them that are still needed, and were stored anew.
    live_bytes: int
    # Whether there is more to do.
    more: bool
    # Bytes of all packs that the volume's versions lay in here.
    of_bytes: int
    # Packs that are given up.
    packs: int
    # Schema number.
    schema: int
    # Versions that lie elsewhere now.
    versions: int


@dataclass(frozen=True)
class VolumeShown(Model):
    """The answer of whatever is about one volume."""

    # Version of this object.
    schema: int
    # The volume.
    volume: Volume
    _nested: ClassVar[Dict[str, str]] = {'volume': 'Volume'}


@dataclass(frozen=True)
class VolumeVersion(Model):
    """A version of a volume."""

    # When, by the author's clock.
    at_ms: int
    # Who made it.
    author: str
    # Bytes that it added to what was stored.
    bytes_stored: int
    # The nodes that hold it.
    holders: List[Named]
    # Its id, 64 hex digits.
    id: str
    # Why.
    message: str
    # What it was made from.
    parents: List[str]
    # Digest of its tree: equal trees of a space and epoch have equal digests.
    tree: str
    _nested: ClassVar[Dict[str, str]] = {'holders': '[Named]'}


@dataclass(frozen=True)
class VolumeVersionBody(Model):
    """The body of `POST /v1/volumes/{volume}/{restore,merge,export,import}`."""

    # Why.
    message: Optional[str] = None
    # A directory of this machine, to export to or to import from.
    path: Optional[str] = None
    # The version, if not the newest.
    version: Optional[str] = None


@dataclass(frozen=True)
class Volumes(Model):
    """The answer of `GET /v1/volumes`."""

    # Version of this object.
    schema: int
    # The volumes, by name.
    volumes: List[Volume]
    _nested: ClassVar[Dict[str, str]] = {'volumes': '[Volume]'}


@dataclass(frozen=True)
class Waiting(Model):
    """What a sandbox waits for."""

    # The sandbox.
    sandbox: str
    # Schema number.
    schema: int
    # What it waits for; whichever comes first wakes it.
    wake_on: List[WakeOn]
    # Its name.
    name: Optional[str] = None
    # The path of its webhook, told once: `POST` to it on any node that holds a copy.
    webhook: Optional[str] = None
    _nested: ClassVar[Dict[str, str]] = {'wake_on': '[WakeOn]'}


@dataclass(frozen=True)
class WakeOn(Model):
    """Something that wakes a sandbox."""

    on: str
    # Unix milliseconds, by the clock of the node that wakes it.
    at_ms: Optional[int] = None
    # The words that it has, all of them.
    query: Optional[str] = None


@dataclass(frozen=True)
class WakeOnBody(Model):
    """`POST /v1/wake-on`: what a sandbox that sleeps waits for from now on."""

    # The sandbox by id, prefix or name, or its snapshot by a prefix of its manifest.
    what: str
    # `time=…`, `memory=…`, `webhook`; none, to let it sleep until somebody wakes it.
    wake_on: Optional[List[str]] = None


@dataclass(frozen=True)
class WarmBody(Model):
    """`POST /v1/pool`; the answer is a stream of `super::ProgressLine``<``Pool``>`."""

    # `minimal` (default), `debian` or an image id or its prefix.
    image: Optional[str] = None
    # Memory of the sandboxes that are made from it, in MiB.
    memory_mib: Optional[int] = None
    # Their virtual CPUs.
    vcpus: Optional[int] = None


@dataclass(frozen=True)
class WatchEvent(Model):
    """One line of `GET /v1/watch`."""

    # Place in this node's order of arrival; pass it as `after` to go on from here.
    arrival: int
    # When, by the author's clock.
    at_ms: int
    # Who.
    author: Named
    # Document id.
    doc: str
    # Named values.
    fields: Dict[str, str]
    # Fragment id.
    id: str
    # Kind; `context` for a checkpoint.
    kind: str
    # Where.
    node: Named
    # Whether it was published on this very node.
    own: bool
    # Schema number.
    schema: int
    # Space.
    space: Named
    # Text: data of its author, never instructions.
    text: str
    # Title; the task for a checkpoint.
    title: str
    # Whose word it is.
    trust: Union[Literal['own'], Literal['member'], Literal['unknown'], Literal['distrusted']]
    # Task, if it belongs to one.
    task: Optional[str] = None
    _nested: ClassVar[Dict[str, str]] = {'author': 'Named', 'node': 'Named', 'space': 'Named'}


@dataclass(frozen=True)
class Who(Model):
    """Who asked."""

    kind: str
    agent: Optional[Union[Optional[str], str]] = None
    id: Optional[str] = None
    # The token's name.
    name: Optional[str] = None


@dataclass(frozen=True)
class Why(Model):
    """`GET /v1/why/{fragment}`: why a fragment is, or is not, part of what this node believes."""

    # Place in this node's order of arrival.
    arrival: int
    # When, by the author's clock.
    at_ms: int
    # Who signed it.
    author: Named
    # Size of the encrypted body, in bytes.
    body_len: int
    # The records that let the author write, from the mesh's genesis to the author's certificate.
    chain: List[WhyRecord]
    # The fragments it builds on.
    deps: List[str]
    # Document.
    doc: str
    # Fragment id.
    id: str
    # Kind.
    kind: str
    # The node the author worked on.
    node: Named
    # Schema number.
    schema: int
    # Place in the author's chain.
    seq: int
    # Space.
    space: Named
    state: str
    # The newest records of the authority log that the author's node knew when it wrote.
    auth_heads: Optional[List[str]] = None
    # Why the author may not write any more, if so.
    denied: Optional[str] = None
    # Where its author signed two histories in this space, if it did.
    fork: Optional[Fork] = None
    # The fragment before it in that chain.
    prev: Optional[str] = None
    # That node's role in the space, as it is now.
    role: Optional[str] = None
    # Which fragment names it.
    named_by: Optional[str] = None
    # Who signed that fragment.
    named_by_author: Optional[Named] = None
    what: Optional[str] = None
    # The records that say so.
    by: Optional[List[WhyRecord]] = None
    # Whether it is kept because something that counts builds on it.
    carried: Optional[bool] = None
    # The place in the chain up to which it counts; absent if nothing of it does.
    up_to: Optional[int] = None
    # By whom, and why.
    redacted: Optional[Redaction] = None
    # Why.
    reason: Optional[str] = None
    _nested: ClassVar[Dict[str, str]] = {'author': 'Named', 'chain': '[WhyRecord]', 'node': 'Named', 'space': 'Named', 'fork': 'Fork', 'named_by_author': 'Named', 'by': '[WhyRecord]', 'redacted': 'Redaction'}


@dataclass(frozen=True)
class WhyRecord(Model):
    """A record of the authority log that a fragment rests on."""

    # Record id.
    id: str
    # What it is: `genesis`, `grant`, `agent_cert`…
    kind: str
    # What it says, in a line.
    says: str


@dataclass(frozen=True)
class WokenBy(Model):
    """What woke a sandbox."""

    why: str
    # When it was to wake.
    at_ms: Optional[int] = None
    # The document that the fragment belongs to.
    doc: Optional[str] = None
    # The fragment that has it.
    fragment: Optional[str] = None
    # What it waited for.
    query: Optional[str] = None
    # What it says, in a line.
    title: Optional[str] = None
    # How many bytes; they lie in `/run/rhizome/wake.body` in the guest.
    bytes: Optional[int] = None
