#!/usr/bin/env python3
"""Anthropic's SDK with its memory tool: the files lie in a Rhizome node, signed and replicated.

    python3 anthropic_memory.py [--recorded] [QUESTION]

Each file under /memories is a text that several agents may edit at once, on any node of the space:
what both wrote stands. Every change is signed, and recall finds the files beside all other memories.
"""
from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from typing import Any, Dict, List

import anthropic
from replay import recorded
from rhizome import NotFound, Rhizome, RhizomeError

ROOT = "/memories"
MODEL = os.environ.get("ANTHROPIC_MODEL", "claude-sonnet-5-5")
BETA = "context-management-2025-06-27"


class Files:
    """The six commands of the memory tool, on the files of a node."""

    def __init__(self, node: Rhizome) -> None:
        self.files = node.files

    def do(self, command: Dict[str, Any]) -> str:
        verbs = {
            "view": self.view,
            "create": self.create,
            "str_replace": self.str_replace,
            "insert": self.insert,
            "delete": self.delete,
            "rename": self.rename,
        }
        return verbs[str(command.get("command"))](command)

    def view(self, command: Dict[str, Any]) -> str:
        path = command["path"]
        below = self.files.list(path)
        if any(file.path == path for file in below):
            lines = (self.files.view(path).memory.text or "").split("\n")
            first, last = command.get("view_range") or [1, -1]
            numbered = list(enumerate(lines, 1))[first - 1 : None if last == -1 else last]
            shown = "\n".join(f"{number:6}\t{line}" for number, line in numbered)
            return f"Here's the content of {path} with line numbers:\n{shown}"
        if not below and path.rstrip("/") != ROOT:
            raise NotFound("not_found", f"The path {path} does not exist. Please provide a valid path.")
        head = f"Here're the files and directories up to 2 levels deep in {path}, excluding hidden items and node_modules:"
        rows = [f"{file.bytes}\t{file.path}" for file in below]
        return "\n".join([head, f"{sum(file.bytes for file in below)}\t{path}", *rows])

    def create(self, command: Dict[str, Any]) -> str:
        self.files.create(command["path"], command["file_text"])
        return f"File created successfully at: {command['path']}"

    def str_replace(self, command: Dict[str, Any]) -> str:
        self.files.str_replace(command["path"], command["old_str"], command.get("new_str", ""))
        return "The memory file has been edited."

    def insert(self, command: Dict[str, Any]) -> str:
        self.files.insert(command["path"], int(command["insert_line"]), command["insert_text"])
        return f"The file {command['path']} has been edited."

    def delete(self, command: Dict[str, Any]) -> str:
        self.files.delete(command["path"])
        return f"Successfully deleted {command['path']}"

    def rename(self, command: Dict[str, Any]) -> str:
        self.files.rename(command["old_path"], command["new_path"])
        return f"Successfully renamed {command['old_path']} to {command['new_path']}"


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
                except RhizomeError as error:
                    # What failed, why, and what to try: the model can act on it.
                    result.update(content=str(error), is_error=True)
                except (KeyError, TypeError, ValueError) as error:
                    result.update(content=f"this is no command of the tool: {error!r}", is_error=True)
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
        node = Rhizome()
        print(loop(client, Files(node), question))
        for file in node.files.list():
            print(f"{file.path}, last by {file.author.name}: {node.files.view(file.path).memory.text!r}")
    print("done")
    return 0


if __name__ == "__main__":
    sys.exit(main())
