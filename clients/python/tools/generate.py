#!/usr/bin/env python3
"""Writes rhizome/_models.py from docs/openapi.json, and rhizome/_async_client.py from _client.py.

    python3 tools/generate.py          write the files
    python3 tools/generate.py --check  say whether the files are what would be written
"""
from __future__ import annotations

import json
import keyword
import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
DOCUMENT = HERE.parents[2] / "docs" / "openapi.json"
PACKAGE = HERE.parent / "rhizome"
MODELS = PACKAGE / "_models.py"
CLIENT = PACKAGE / "_client.py"
ASYNC_CLIENT = PACKAGE / "_async_client.py"
REF = "#/components/schemas/"

HEAD = '''"""What the API takes and answers. Made by tools/generate.py from docs/openapi.json: do not edit."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Dict, List, Literal, Optional, Union

from ._model import Model

__all__ = [
%s
]
'''


def python_name(name: str) -> str:
    return name + "_" if keyword.iskeyword(name) else name


class Generator:
    def __init__(self, document: dict) -> None:
        self.schemas: dict = document["components"]["schemas"]

    def is_model(self, schema: dict) -> bool:
        """Whether a schema becomes a class; others are written out where they are used."""
        return bool(self.properties(schema))

    def properties(self, schema: dict) -> dict[str, tuple[dict, bool]]:
        """The fields of an object, and whether each is always there."""
        fields: dict[str, tuple[dict, bool]] = {}
        required = set(schema.get("required", []))
        for name, field in schema.get("properties", {}).items():
            fields[name] = (field, name in required)
        for part in schema.get("allOf", []):
            for name, field in self.properties(self.resolved(part)).items():
                fields.setdefault(name, field)
        branches = schema.get("oneOf", []) + schema.get("anyOf", [])
        several = [self.properties(self.resolved(branch)) for branch in branches]
        for branch in several:
            for name, (field, always) in branch.items():
                everywhere = always and all(name in other for other in several)
                if name in fields and fields[name][0] != field:
                    field = {"anyOf": [fields[name][0], field]} if "const" not in field else {"type": "string"}
                fields[name] = (field, everywhere)
        return fields

    def resolved(self, schema: dict) -> dict:
        reference = schema.get("$ref")
        return self.schemas[reference.removeprefix(REF)] if reference else schema

    def hint(self, schema: object) -> str:
        """The type of a value, as Python says it."""
        if not isinstance(schema, dict):
            return "Any"
        if "$ref" in schema:
            name = schema["$ref"].removeprefix(REF)
            target = self.schemas[name]
            return name if self.is_model(target) else self.hint(target)
        if "const" in schema:
            return f"Literal[{schema['const']!r}]"
        if "enum" in schema:
            return "Literal[" + ", ".join(repr(value) for value in schema["enum"]) + "]"
        branches = schema.get("anyOf") or schema.get("oneOf")
        if branches:
            null = any(branch.get("type") == "null" for branch in branches)
            hints = [self.hint(branch) for branch in branches if branch.get("type") != "null"]
            hints = list(dict.fromkeys(hints))
            if "Any" in hints or any(hint.startswith("Dict") for hint in hints):
                return "Any"
            union = hints[0] if len(hints) == 1 else "Union[" + ", ".join(hints) + "]"
            return f"Optional[{union}]" if null else union
        kind = schema.get("type")
        if isinstance(kind, list):
            others = [other for other in kind if other != "null"]
            inner = self.hint({**schema, "type": others[0]}) if len(others) == 1 else "Any"
            return f"Optional[{inner}]" if "null" in kind and inner != "Any" else inner
        if kind == "array":
            return f"List[{self.hint(schema.get('items'))}]"
        if kind == "object":
            values = schema.get("additionalProperties")
            return f"Dict[str, {self.hint(values) if isinstance(values, dict) else 'Any'}]"
        return {"string": "str", "integer": "int", "number": "float", "boolean": "bool"}.get(str(kind), "Any")

    def nested(self, schema: object) -> str | None:
        """The class that a value, or each item of it, is made into: `Name`, `[Name]`, `{Name}`."""
        if not isinstance(schema, dict):
            return None
        if "$ref" in schema:
            name = schema["$ref"].removeprefix(REF)
            return name if self.is_model(self.schemas[name]) else self.nested(self.schemas[name])
        for branch in schema.get("anyOf", []):
            if isinstance(branch, dict) and branch.get("type") != "null":
                found = self.nested(branch)
                if found:
                    return found
        if schema.get("type") == "array" or "array" in (schema.get("type") or []):
            inner = self.nested(schema.get("items"))
            return f"[{inner}]" if inner else None
        values = schema.get("additionalProperties")
        inner = self.nested(values) if isinstance(values, dict) else None
        return f"{{{inner}}}" if inner else None

    def model(self, name: str, schema: dict) -> str:
        fields = self.properties(schema)
        ordered = sorted(fields.items(), key=lambda item: not item[1][1])
        lines = ["@dataclass(frozen=True)", f"class {name}(Model):"]
        about = " ".join(schema.get("description", f"`{name}` of the API.").split())
        about = about.replace("\\", "\\\\").replace('"""', "'''")
        lines += [f'    """{about}"""' if not about.endswith('"') else f'    """{about} """', ""]
        nested = {}
        for field, (kind, always) in ordered:
            hint = self.hint(kind)
            text = " ".join(kind.get("description", "").split()) if isinstance(kind, dict) else ""
            if text:
                lines.append(f"    # {text}")
            if always:
                lines.append(f"    {python_name(field)}: {hint}")
            else:
                optional = hint if hint == "Any" or hint.startswith("Optional[") else f"Optional[{hint}]"
                lines.append(f"    {python_name(field)}: {optional} = None")
            made = self.nested(kind)
            if made:
                nested[field] = made
        if nested:
            pairs = ", ".join(f"{field!r}: {made!r}" for field, made in nested.items())
            lines.append(f"    _nested: ClassVar[Dict[str, str]] = {{{pairs}}}")
        return "\n".join(lines)

    def text(self) -> str:
        models = {name: schema for name, schema in sorted(self.schemas.items()) if self.is_model(schema)}
        names = "\n".join(f'    "{name}",' for name in models)
        parts = [HEAD % names]
        parts += [self.model(name, schema) + "\n" for name, schema in models.items()]
        return "\n\n".join(parts)


def async_client(source: str) -> str:
    """The same façade with `await` where a request is made."""
    start = source.index("class Rhizome:")
    end = source.index("@dataclass(frozen=True)")
    head, body = source[:end], source[start:]
    head = head[head.index("from __future__") :]
    head = head.replace("import json\nimport time\nfrom dataclasses import dataclass\n", "import asyncio\nimport json\n")
    head = head.replace("from ._sync import Transport", "from ._aio import Transport\nfrom ._client import LONG_TIMEOUT, PAGE, TIMEOUT, WATCH_TIMEOUT, Finished, finished")
    head = head[: head.index("#: Time for an answer")]
    head = head.replace("Iterator,", "AsyncIterator,")
    lines = []
    both = False
    for line in body.splitlines():
        if line.strip() == "# both":
            both = True
            continue
        if re.match(r" +def ", line):
            if not both:
                line = line.replace("def ", "async def ", 1)
            both = False
        lines.append(line)
    text = "\n".join(lines) + "\n"
    for old, new in [
        ("__enter__", "__aenter__"),
        ("__exit__", "__aexit__"),
        ("return self._transport.send(", "return await self._transport.send("),
        ("self._send(calls", "await self._send(calls"),
        ("self._send(\n", "await self._send(\n"),
        ("self._node._send(", "await self._node._send("),
        ("self._change(", "await self._change("),
        ("self._node._transport.run(", "await self._node._transport.run("),
        ("target, body, text_or_bytes(input or b\"\"), patience, heard", "target, body, text_or_bytes(input or b\"\"), heard"),
        ("        patience = None if timeout is None else timeout + TIMEOUT\n", ""),
        ("self._transport.stream(with_query(\"/v1/watch\", query), WATCH_TIMEOUT)", "await self._transport.stream(with_query(\"/v1/watch\", query))"),
        ("for line in answer.lines():", "async for line in answer.lines():"),
        ("time.sleep(", "await asyncio.sleep("),
        ("self.kill()", "await self.kill()"),
        ("Iterator[", "AsyncIterator["),
    ]:
        assert old in text, old
        text = text.replace(old, new)
    for name in ["Rhizome", "Contexts", "Files", "Sandboxes", "Sandbox"]:
        text = re.sub(rf"(?<![\w.$]){name}(?=[(:\"])", f"Async{name}", text)
    text = text.replace("With `with`", "With `async with`")
    about = '"""The façade to await. Made by tools/generate.py from _client.py: do not edit."""\n'
    head = head.replace("from ._client import LONG_TIMEOUT, PAGE, TIMEOUT, WATCH_TIMEOUT,", "from ._client import LONG_TIMEOUT, PAGE, TIMEOUT,")
    return about + head.rstrip() + "\n\n\n" + text


def main() -> int:
    made = {
        MODELS: Generator(json.loads(DOCUMENT.read_text())).text(),
        ASYNC_CLIENT: async_client(CLIENT.read_text()),
    }
    if "--check" in sys.argv[1:]:
        stale = [path for path, text in made.items() if not path.is_file() or path.read_text() != text]
        for path in stale:
            print(f"{path.name} is not what it is made from: run tools/generate.py", file=sys.stderr)
        return 1 if stale else 0
    for path, text in made.items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
