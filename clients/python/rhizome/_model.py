"""What every model is made from: plain JSON in, a frozen dataclass out."""
from __future__ import annotations

import dataclasses
import keyword
import sys
from typing import Any, ClassVar, Dict, Mapping, Type, TypeVar

M = TypeVar("M", bound="Model")


class Model:
    """An object of the API. Fields that this release does not know are left out."""

    _nested: ClassVar[Dict[str, str]] = {}

    @classmethod
    def from_json(cls: Type[M], value: Mapping[str, Any]) -> M:
        """Makes the object of parsed JSON."""
        made: Dict[str, Any] = {}
        for field in dataclasses.fields(cls):  # type: ignore[arg-type]
            name = field.name
            wire = name[:-1] if name.endswith("_") and keyword.iskeyword(name[:-1]) else name
            if wire not in value:
                required = field.default is dataclasses.MISSING
                if required:
                    made[name] = None
                continue
            nested = cls._nested.get(wire)
            made[name] = _made(cls, nested, value[wire]) if nested else value[wire]
        return cls(**made)

    def to_json(self) -> Dict[str, Any]:
        """Returns plain JSON, without what is absent."""
        made: Dict[str, Any] = {}
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            name = field.name
            wire = name[:-1] if name.endswith("_") and keyword.iskeyword(name[:-1]) else name
            if value is not None:
                made[wire] = _plain(value)
        return made


def _made(cls: type, nested: str, value: Any) -> Any:
    if value is None:
        return None
    if nested.startswith("["):
        return [_made(cls, nested[1:-1], item) for item in value]
    if nested.startswith("{"):
        return {key: _made(cls, nested[1:-1], item) for key, item in value.items()}
    target = getattr(sys.modules[cls.__module__], nested)
    return target.from_json(value) if isinstance(value, Mapping) else value


def _plain(value: Any) -> Any:
    if isinstance(value, Model):
        return value.to_json()
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value
