#!/usr/bin/env python3
"""Writes rhizome/_models.py from docs/openapi.json.

    python3 tools/generate.py          write the file
    python3 tools/generate.py --check  say whether the file is what would be written
"""
from __future__ import annotations

import json
import keyword
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
DOCUMENT = HERE.parents[2] / "docs" / "openapi.json"
MODELS = HERE.parent / "rhizome" / "_models.py"
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


def main() -> int:
    text = Generator(json.loads(DOCUMENT.read_text())).text()
    if "--check" in sys.argv[1:]:
        if MODELS.is_file() and MODELS.read_text() == text:
            return 0
        print("rhizome/_models.py is not what docs/openapi.json makes: run tools/generate.py", file=sys.stderr)
        return 1
    MODELS.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
