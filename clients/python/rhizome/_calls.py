"""Every call of the façades, as a value: the sync and the async one send the same."""
from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Sequence, TypeVar

from . import _models as models
from ._wire import Call, new_key, part, without_none

T = TypeVar("T")


def _key(given: Optional[str]) -> str:
    return given if given is not None else new_key()


def me() -> Call[models.SelfInfo]:
    return Call("GET", "/v1/self", models.SelfInfo.from_json, safe=True)


def status() -> Call[models.Status]:
    return Call("GET", "/v1/status", models.Status.from_json, safe=True)


def remember(
    title: str,
    text: str,
    kind: str,
    tags: Sequence[str],
    key: Optional[str],
    task: Optional[str],
    evidence: Sequence[str],
    supersedes: Sequence[str],
    depends_on: Sequence[str],
    requires: Sequence[str],
    fields: Optional[Mapping[str, str]],
    replicas: Optional[int],
    agent: Optional[str],
    space: Optional[str],
    idempotency_key: Optional[str],
) -> Call[models.Published]:
    body = without_none(
        kind=kind,
        title=title,
        text=text,
        tags=list(tags),
        key=key,
        task=task,
        evidence=list(evidence),
        supersedes=list(supersedes),
        depends_on=list(depends_on),
        requires=list(requires),
        fields=dict(fields or {}),
        replicas=replicas,
        agent=agent,
        space=space,
    )
    return Call("POST", "/v1/memory", models.Published.from_json, body=body, key=_key(idempotency_key))


def recall(
    query: str, limit: Optional[int], kinds: Sequence[str], task: Optional[str], space: Optional[str]
) -> Call[List[models.Hit]]:
    body = without_none(query=query, limit=limit, kinds=list(kinds), task=task, space=space)
    return Call(
        "POST", "/v1/recall", lambda answer: models.Recalled.from_json(answer).hits, body=body, safe=True
    )


def memories(
    kind: Optional[str], task: Optional[str], space: Optional[str], limit: int, cursor: Optional[str]
) -> Call[models.MemoryList]:
    query = without_none(kind=kind, task=task, space=space, limit=limit, cursor=cursor)
    return Call("GET", "/v1/memory", models.MemoryList.from_json, query=query, safe=True)


def memory(doc: str, space: Optional[str]) -> Call[models.MemoryShown]:
    query = without_none(space=space)
    return Call("GET", f"/v1/memory/{part(doc)}", models.MemoryShown.from_json, query=query, safe=True)


def why(fragment: str) -> Call[models.Why]:
    return Call("GET", f"/v1/why/{part(fragment)}", models.Why.from_json, safe=True)


def context(
    task: str, space: Optional[str], verify: bool, sandbox: Optional[str], resume: bool, force: bool
) -> Call[models.Context]:
    query = without_none(
        task=task,
        space=space,
        verify=None if verify else 0,
        sandbox=sandbox,
        resume=1 if resume else None,
        force=1 if force else None,
    )
    return Call("GET", "/v1/context", models.Context.from_json, query=query, safe=True)


def contexts(space: Optional[str]) -> Call[List[models.ContextSummary]]:
    query = without_none(space=space)
    return Call(
        "GET", "/v1/contexts", lambda answer: models.Contexts.from_json(answer).contexts, query=query, safe=True
    )


def checkpoint(task: str, changes: Dict[str, Any], idempotency_key: Optional[str]) -> Call[models.Published]:
    body = without_none(task=task, **changes)
    path = "/v1/context/checkpoint"
    return Call("POST", path, models.Published.from_json, body=body, key=_key(idempotency_key))


def files(path: str, space: Optional[str]) -> Call[List[models.FileLine]]:
    query = without_none(path=path, space=space)
    return Call("GET", "/v1/files", lambda answer: models.FileList.from_json(answer).files, query=query, safe=True)


def file(path: str, space: Optional[str]) -> Call[models.FileShown]:
    query = without_none(path=path, space=space)
    return Call("GET", "/v1/file", models.FileShown.from_json, query=query, safe=True)


def change_file(
    edit: Dict[str, Any], agent: Optional[str], space: Optional[str], idempotency_key: Optional[str]
) -> Call[models.FileChanged]:
    body = without_none(edit=edit, agent=agent, space=space)
    return Call("POST", "/v1/file", models.FileChanged.from_json, body=body, key=_key(idempotency_key))


def create_sandbox(
    fields: Dict[str, Any], timeout: Optional[float], idempotency_key: Optional[str]
) -> Call[models.SandboxCreated]:
    return Call(
        "POST",
        "/v1/sandboxes",
        models.SandboxCreated.from_json,
        body=without_none(**fields),
        progress=True,
        key=_key(idempotency_key),
        timeout=timeout,
    )


def sandboxes() -> Call[List[models.Sandbox]]:
    return Call(
        "GET", "/v1/sandboxes", lambda answer: models.Sandboxes.from_json(answer).sandboxes, safe=True
    )


def sandbox(id: str) -> Call[models.SandboxCreated]:
    return Call("GET", f"/v1/sandboxes/{part(id)}", models.SandboxCreated.from_json, safe=True)


def kill(id: str) -> Call[models.Done]:
    return Call("DELETE", f"/v1/sandboxes/{part(id)}", models.Done.from_json)


def verb(id: str, verb: str) -> Call[models.SandboxCreated]:
    path = f"/v1/sandboxes/{part(id)}/{verb}"
    return Call("POST", path, models.SandboxCreated.from_json, body={})


def hibernate(id: str, fields: Dict[str, Any], timeout: Optional[float]) -> Call[models.SnapshotTaken]:
    path = f"/v1/sandboxes/{part(id)}/hibernate"
    body = without_none(**fields)
    return Call("POST", path, models.SnapshotTaken.from_json, body=body, progress=True, timeout=timeout)


def snapshot(
    id: str, fields: Dict[str, Any], timeout: Optional[float], idempotency_key: Optional[str]
) -> Call[models.SnapshotTaken]:
    path = f"/v1/sandboxes/{part(id)}/snapshot"
    body = without_none(**fields)
    key = _key(idempotency_key)
    return Call("POST", path, models.SnapshotTaken.from_json, body=body, progress=True, key=key, timeout=timeout)


def resume(id: str, force: bool, timeout: Optional[float]) -> Call[models.SandboxCreated]:
    path = f"/v1/sandboxes/{part(id)}/resume"
    body = {"force": True} if force else {}
    return Call("POST", path, models.SandboxCreated.from_json, body=body, progress=True, timeout=timeout)


def fork(
    id: str, count: int, name: Optional[str], timeout: Optional[float], idempotency_key: Optional[str]
) -> Call[List[models.Sandbox]]:
    return Call(
        "POST",
        f"/v1/sandboxes/{part(id)}/fork",
        lambda answer: models.Forked.from_json(answer).sandboxes,
        body=without_none(count=count, name=name),
        progress=True,
        key=_key(idempotency_key),
        timeout=timeout,
    )


def lease(id: str, fields: Dict[str, Any]) -> Call[models.SandboxCreated]:
    path = f"/v1/sandboxes/{part(id)}/lease"
    return Call("POST", path, models.SandboxCreated.from_json, body=without_none(**fields))


def read(id: str, path: str) -> Call[bytes]:
    return Call("GET", f"/v1/sandboxes/{part(id)}/file", bytes, query={"path": path}, raw=True, safe=True)


def write(id: str, path: str, data: bytes, mode: Optional[int]) -> Call[int]:
    query = without_none(path=path, mode=None if mode is None else f"{mode:o}")
    # Written whole or not at all, so writing it again changes nothing.
    return Call(
        "PUT",
        f"/v1/sandboxes/{part(id)}/file",
        lambda answer: models.FileWritten.from_json(answer).bytes,
        query=query,
        data=data,
        safe=True,
    )


def listdir(id: str, path: str) -> Call[List[models.FileEntry]]:
    return Call(
        "GET",
        f"/v1/sandboxes/{part(id)}/dir",
        lambda answer: models.DirListing.from_json(answer).entries,
        query={"path": path},
        safe=True,
    )


def exec_body(
    argv: Sequence[str],
    env: Optional[Mapping[str, str]],
    cwd: Optional[str],
    user: Optional[str],
    timeout: Optional[float],
    has_input: bool,
) -> Dict[str, Any]:
    return without_none(
        argv=list(argv),
        env=dict(env) if env else None,
        cwd=cwd,
        user=user,
        stdin=has_input or None,
        timeout_ms=None if timeout is None else int(timeout * 1000),
    )


def changes(**fields: Any) -> Dict[str, Any]:
    """The fields of a checkpoint; plain words become entries."""
    entries = {
        "explored": "what",
        "decisions": "what",
        "errors": "error",
        "artifacts": "name",
    }
    made: Dict[str, Any] = {}
    for name, value in fields.items():
        if value is None:
            continue
        if name in entries:
            value = [{entries[name]: item} if isinstance(item, str) else dict(item) for item in value]
        elif not isinstance(value, str):
            value = list(value)
        made[name] = value
    return made
