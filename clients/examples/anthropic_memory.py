#!/usr/bin/env python3
"""Anthropic's SDK with its memory tool: the files lie in a Rhizome node, signed and replicated.

    python3 anthropic_memory.py [--recorded] [QUESTION]

Each file under /memories is a memory with the path as its key, so every agent of the space finds it,
with its author. The node's own MCP profile `files` does the same with texts that merge.
"""
from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from typing import Any, Dict, List

import anthropic
from replay import recorded
from rhizome import Rhizome

TASK = "memory files"
ROOT = "/memories"
MODEL = os.environ.get("ANTHROPIC_MODEL", "claude-sonnet-5-5")
BETA = "context-management-2025-06-27"


class Problem(Exception):
    """What the model is told instead of a result."""


class Files:
    """The six commands of the memory tool, on memories of a node."""

    def __init__(self, node: Rhizome) -> None:
        self.node = node

    def do(self, command: Dict[str, Any]) -> str:
        verbs = {
            "view": self.view,
            "create": self.create,
            "str_replace": self.str_replace,
            "insert": self.insert,
            "delete": self.delete,
            "rename": self.rename,
        }
        verb = verbs.get(str(command.get("command")))
        if verb is None:
            raise Problem(f"Unknown command {command.get('command')!r}")
        return verb(command)

    def files(self) -> Dict[str, str]:
        """Every file that stands, by path."""
        kept = self.node.memories(kind="artifact", task=TASK)
        return {
            str(one.key): one.text or ""
            for one in kept
            if one.key and (one.fields or {}).get("removed") != "1" and str(one.key).startswith(ROOT + "/")
        }

    def keep(self, path: str, text: str) -> None:
        self.node.remember(path, text, kind="artifact", key=path, task=TASK, tags=["memory-file"])

    def drop(self, path: str) -> None:
        self.node.remember(path, kind="artifact", key=path, task=TASK, fields={"removed": "1"})

    def path(self, given: Any) -> str:
        path = str(given)
        parts = path.split("/")
        if (path != ROOT and not path.startswith(ROOT + "/")) or ".." in parts or "%2e" in path.lower():
            raise Problem(f"Path must start with {ROOT}, got: {path}")
        return path.rstrip("/") if path != "/" else path

    def text(self, path: str) -> str:
        files = self.files()
        if path not in files:
            raise Problem(f"The path {path} does not exist. Please provide a valid path.")
        return files[path]

    def view(self, command: Dict[str, Any]) -> str:
        path = self.path(command["path"])
        files = self.files()
        if path in files:
            lines = files[path].split("\n")
            first, last = command.get("view_range") or [1, -1]
            numbered = list(enumerate(lines, 1))[first - 1 : None if last == -1 else last]
            shown = "\n".join(f"{number:6}\t{line}" for number, line in numbered)
            return f"Here's the content of {path} with line numbers:\n{shown}"
        below = {name: text for name, text in files.items() if name.startswith(path + "/")}
        if not below and path != ROOT:
            raise Problem(f"The path {path} does not exist. Please provide a valid path.")
        rows = [f"{len(text.encode())}\t{name}" for name, text in sorted(below.items())]
        head = f"Here're the files and directories up to 2 levels deep in {path}, excluding hidden items and node_modules:"
        return "\n".join([head, f"{sum(len(text.encode()) for text in below.values())}\t{path}/", *rows])

    def create(self, command: Dict[str, Any]) -> str:
        path = self.path(command["path"])
        if path in self.files():
            raise Problem(f"File {path} already exists")
        self.keep(path, command["file_text"])
        return f"File created successfully at: {path}"

    def str_replace(self, command: Dict[str, Any]) -> str:
        path, old = self.path(command["path"]), command["old_str"]
        text = self.text(path)
        if text.count(old) != 1:
            many = "Multiple occurrences of" if text.count(old) else "No replacement was performed,"
            raise Problem(f"{many} old_str `{old}` in {path}. Please ensure it is unique")
        self.keep(path, text.replace(old, command["new_str"]))
        return "The memory file has been edited."

    def insert(self, command: Dict[str, Any]) -> str:
        path, at = self.path(command["path"]), int(command["insert_line"])
        lines = self.text(path).split("\n")
        if not 0 <= at <= len(lines):
            raise Problem(f"Invalid `insert_line` parameter: {at}")
        lines[at:at] = command["insert_text"].rstrip("\n").split("\n")
        self.keep(path, "\n".join(lines))
        return f"The file {path} has been edited."

    def delete(self, command: Dict[str, Any]) -> str:
        path = self.path(command["path"])
        if path == ROOT:
            raise Problem(f"Cannot delete the {ROOT} directory itself")
        gone = [name for name in self.files() if name == path or name.startswith(path + "/")]
        if not gone:
            raise Problem(f"The path {path} does not exist. Please provide a valid path.")
        for name in gone:
            self.drop(name)
        return f"Successfully deleted {path}"

    def rename(self, command: Dict[str, Any]) -> str:
        old, new = self.path(command["old_path"]), self.path(command["new_path"])
        if new in self.files():
            raise Problem(f"The destination {new} already exists")
        self.keep(new, self.text(old))
        self.drop(old)
        return f"Successfully renamed {old} to {new}"


def loop(client: anthropic.Anthropic, files: Files, question: str) -> str:
    """Asks the model, does what it asks for, and goes on until it has an answer."""
    messages: List[Dict[str, Any]] = [{"role": "user", "content": question}]
    for _ in range(20):
        said = client.beta.messages.create(
            model=MODEL,
            max_tokens=2_000,
            messages=messages,  # type: ignore[arg-type]
            tools=[{"type": "memory_20250818", "name": "memory"}],
            betas=[BETA],
        )
        messages.append({"role": "assistant", "content": [block.model_dump() for block in said.content]})
        results = []
        for block in said.content:
            if block.type == "tool_use":
                result: Dict[str, Any] = {"type": "tool_result", "tool_use_id": block.id}
                try:
                    result["content"] = files.do(dict(block.input))  # type: ignore[call-overload]
                except Problem as problem:
                    result.update(content=str(problem), is_error=True)
                print(f"memory {dict(block.input).get('command')}: {result['content'].splitlines()[0]}")  # type: ignore[call-overload]
                results.append(result)
        if not results:
            return "".join(block.text for block in said.content if block.type == "text")
        messages.append({"role": "user", "content": results})
    raise SystemExit("the model did not come to an end")


def main() -> int:
    words = [word for word in sys.argv[1:] if word != "--recorded"]
    question = " ".join(words) or "Remember that the staging database is read-only on Fridays."
    with ExitStack() as stack:
        if "--recorded" in sys.argv:
            url = stack.enter_context(recorded("anthropic_memory"))
            client = anthropic.Anthropic(base_url=url, api_key="recorded", max_retries=0)
        else:
            client = anthropic.Anthropic()
        files = Files(Rhizome())
        print(loop(client, files, question))
        for path, text in files.files().items():
            print(f"{path}: {text!r}")
    print("done")
    return 0


if __name__ == "__main__":
    sys.exit(main())
