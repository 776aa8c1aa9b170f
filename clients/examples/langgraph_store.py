#!/usr/bin/env python3
"""A LangGraph store whose items are memories of a Rhizome node.

    python3 langgraph_store.py

An item is a memory with a key, so what one graph puts another one finds, on whatever machine, signed by
who put it; and a search ranks by words.
"""
from __future__ import annotations

import json
import sys
from datetime import datetime, timezone
from typing import Any, Iterable, List, Optional, Tuple

from langgraph.graph import END, START, StateGraph
from langgraph.store.base import BaseStore, GetOp, Item, ListNamespacesOp, Op, PutOp, Result, SearchItem, SearchOp
from rhizome import Rhizome, models
from typing_extensions import TypedDict

KIND = "fact"
FIELD = "langgraph.value"


def key_of(namespace: Tuple[str, ...], key: str) -> str:
    return json.dumps([*namespace, key], ensure_ascii=False)


class RhizomeStore(BaseStore):
    """Items in a space of a node; namespaces are in their keys."""

    def __init__(self, node: Rhizome, task: str = "langgraph") -> None:
        self.node = node
        self.task = task

    def batch(self, ops: Iterable[Op]) -> List[Result]:
        return [self._do(op) for op in ops]

    async def abatch(self, ops: Iterable[Op]) -> List[Result]:
        import asyncio

        return await asyncio.to_thread(self.batch, list(ops))

    def _do(self, op: Op) -> Result:
        if isinstance(op, GetOp):
            wanted = key_of(op.namespace, op.key)
            return next((self._item(one) for one in self._all() if one.key == wanted), None)
        if isinstance(op, PutOp):
            value = "" if op.value is None else json.dumps(op.value, ensure_ascii=False)
            words = "" if op.value is None else " ".join(str(part) for part in op.value.values())
            self.node.remember(
                f"{'/'.join(op.namespace)}: {op.key}"[:200],
                words,
                kind=KIND,
                key=key_of(op.namespace, op.key),
                task=self.task,
                fields={FIELD: value},
            )
            return None
        if isinstance(op, SearchOp):
            found: Iterable[Any]
            if op.query:
                found = self.node.recall(op.query, task=self.task, limit=100)
            else:
                found = self._all()
            items = [self._item(one, getattr(one, "score", None)) for one in found if self._stands(one)]
            items = [item for item in items if item.namespace[: len(op.namespace_prefix)] == op.namespace_prefix]
            for name, wanted in (op.filter or {}).items():
                items = [item for item in items if item.value.get(name) == wanted]
            return items[op.offset : op.offset + op.limit]
        if isinstance(op, ListNamespacesOp):
            spaces = sorted({self._item(one).namespace for one in self._all()})
            if op.max_depth is not None:
                spaces = sorted({space[: op.max_depth] for space in spaces})
            return spaces[op.offset : op.offset + op.limit]
        raise NotImplementedError(type(op).__name__)

    def _all(self) -> Iterable[models.Memory]:
        return (one for one in self.node.memories(kind=KIND, task=self.task) if self._stands(one))

    def _stands(self, one: Any) -> bool:
        return bool(one.key and (one.fields or {}).get(FIELD))

    def _item(self, one: Any, score: Optional[float] = None) -> SearchItem:
        *namespace, key = json.loads(one.key)
        when = datetime.fromtimestamp(one.at_ms / 1000, timezone.utc)
        return SearchItem(
            namespace=tuple(namespace),
            key=key,
            value=json.loads(one.fields[FIELD]),
            created_at=when,
            updated_at=when,
            score=score,
        )


class State(TypedDict):
    question: str
    answer: str


def main() -> int:
    store = RhizomeStore(Rhizome())
    store.put(("users", "ada"), "diet", {"text": "eats no nuts"})
    store.put(("users", "ada"), "city", {"text": "lives in Porto"})
    store.put(("users", "ben"), "diet", {"text": "eats everything"})

    def answer(state: State, *, store: BaseStore) -> State:
        hits = store.search(("users", "ada"), query=state["question"])
        return {"question": state["question"], "answer": hits[0].value["text"] if hits else "nobody knows"}

    graph = StateGraph(State)
    graph.add_node("answer", answer)
    graph.add_edge(START, "answer")
    graph.add_edge("answer", END)
    said = graph.compile(store=store).invoke({"question": "nuts", "answer": ""})
    print(said["answer"])
    assert said["answer"] == "eats no nuts", said
    item = store.get(("users", "ada"), "city")
    assert isinstance(item, Item) and item.value == {"text": "lives in Porto"}, item
    assert store.list_namespaces() == [("users", "ada"), ("users", "ben")], store.list_namespaces()
    store.delete(("users", "ada"), "city")
    assert store.get(("users", "ada"), "city") is None
    assert [one.key for one in store.search(("users", "ben"))] == ["diet"]
    print("done")
    return 0


if __name__ == "__main__":
    sys.exit(main())
