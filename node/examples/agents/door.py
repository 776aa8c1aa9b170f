"""The door from a sandbox to its node: the same verbs as `rhizome memory` and `rhizome context`.

An agent's whole memory is these few HTTP calls to a fixed local address. Nothing here holds a key:
the node signs what the agent publishes, and stamps the sandbox, its image and its runtime.
"""

import json
import os
import urllib.error
import urllib.parse
import urllib.request


class DoorError(Exception):
    """What the node answered instead of a result: a code, a message and perhaps a hint."""

    def __init__(self, status, error):
        self.code = error.get("code", str(status))
        hint = error.get("hint")
        super().__init__(error.get("message", "no message") + (f" ({hint})" if hint else ""))


class Door:
    def __init__(self, url=None):
        self.url = (url or os.environ.get("RHIZOME_URL", "http://127.0.0.1:4580")).rstrip("/")

    def _open(self, method, path, body=None, query=None, timeout=60):
        query = {k: v for k, v in (query or {}).items() if v is not None}
        url = self.url + path + ("?" + urllib.parse.urlencode(query) if query else "")
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
        try:
            return urllib.request.urlopen(request, timeout=timeout)
        except urllib.error.HTTPError as refused:
            try:
                error = json.load(refused)["error"]
            except (ValueError, KeyError):
                error = {}
            raise DoorError(refused.code, error) from None

    def _call(self, *args, **kwargs):
        with self._open(*args, **kwargs) as answer:
            return json.load(answer)

    def myself(self):
        return self._call("GET", "/v1/self")

    def publish(self, kind, title, text="", **rest):
        """Publishes one memory; returns its `id` and `doc` once it is durable on this node."""
        return self._call("POST", "/v1/memory", dict(kind=kind, title=title, text=text, **rest))

    def recall(self, query, **rest):
        return self._call("POST", "/v1/recall", dict(query=query, **rest))["hits"]

    def checkpoint(self, task, **patch):
        return self._call("POST", "/v1/context/checkpoint", dict(task=task, **patch))

    def resume(self, task):
        """Returns the context of `task`, or None if nobody has worked on it."""
        try:
            return self._call("GET", "/v1/context", query={"task": task})
        except DoorError as error:
            if error.code == "not_found":
                return None
            raise

    def watch(self, after=None, timeout=120):
        """Yields what is published in the space, from `after` on, as it arrives."""
        query = {"follow": 1, "after": after}
        with self._open("GET", "/v1/watch", query=query, timeout=timeout) as stream:
            for line in stream:
                if line.strip():
                    yield json.loads(line)
