"""The façades against a daemon: memory, contexts, watch, errors."""
from __future__ import annotations

import asyncio
import os
import threading
import unittest
from unittest import mock

from rhizome import AsyncRhizome, Conflict, Denied, IdempotencyMismatch, InvalidRequest, NotFound, Rhizome, Unauthorized

from .support import SOCKET, TOKEN, URL, needs_node


@needs_node
class OverTcp(unittest.TestCase):
    def setUp(self) -> None:
        self.node = Rhizome(url=URL, token=TOKEN)

    def test_remember_and_recall(self) -> None:
        made = self.node.remember("the build needs a clean cache", "because of the linker", tags=["build"])
        hits = self.node.recall("why does the build need a cache")
        self.assertIn(made.doc, [hit.doc for hit in hits])
        hit = next(hit for hit in hits if hit.doc == made.doc)
        self.assertEqual((hit.title, hit.tags, hit.trust), ("the build needs a clean cache", ["build"], "own"))
        self.assertEqual(self.node.memory(made.doc).text, "because of the linker")
        self.assertEqual(self.node.why(made.id).state, "applied")

    def test_who_one_is(self) -> None:
        me = self.node.me()
        self.assertEqual([space.name for space in me.spaces], ["findings"])

    def test_all_pages_are_listed(self) -> None:
        for number in range(5):
            self.node.remember(f"page {number}", task="pages")
        titles = [memory.title for memory in self.node.memories(task="pages")]
        self.assertEqual(titles, [f"page {number}" for number in reversed(range(5))])

    def test_a_key_makes_once(self) -> None:
        first = self.node.remember("once", idempotency_key="python-once")
        self.assertEqual(self.node.remember("once", idempotency_key="python-once"), first)
        with self.assertRaises(IdempotencyMismatch) as raised:
            self.node.remember("twice", idempotency_key="python-once")
        self.assertIsNotNone(raised.exception.hint)

    def test_errors_are_typed(self) -> None:
        with self.assertRaises(InvalidRequest) as raised:
            self.node.remember("x", kind="nonsense")
        self.assertEqual(raised.exception.code, "unknown_kind")
        with self.assertRaises(Denied):
            self.node.remember("x", space="private")
        with self.assertRaises(Denied):
            self.node.sandboxes.list()
        with self.assertRaises(NotFound):
            self.node.memory("00" * 32)
        with self.assertRaises(Unauthorized):
            Rhizome(url=URL, token="rzt_wrong").me()
        with mock.patch.dict(os.environ, {"RHIZOME_TOKEN": ""}), self.assertRaises(Unauthorized):
            Rhizome(url=URL).me()

    def test_contexts(self) -> None:
        self.node.context.checkpoint(
            "mend the build",
            goal="a green build",
            explored=["the cache", {"what": "the linker", "result": "too old"}],
            errors=[{"error": "undefined symbol", "fix": "a newer linker"}],
            next=["upgrade it"],
        )
        context = self.node.context.resume("mend the build")
        self.assertEqual(context.goal, "a green build")
        self.assertEqual([step.what for step in context.explored], ["the cache", "the linker"])
        self.assertEqual(context.errors[0].fix, "a newer linker")
        self.assertEqual(context.verification.total, context.verification.ok)
        self.assertIn("mend the build", [one.task for one in self.node.context.list()])
        with self.assertRaises(NotFound):
            self.node.context.show("no such task")

    def test_files(self) -> None:
        files = self.node.files
        path = "/memories/python/notes.md"
        made = files.create(path, "one\ntwo\n", idempotency_key="python-file")
        self.assertEqual((made.path, made.text), (path, "one\ntwo\n"))
        # The same request is the same file; another one finds it there.
        self.assertEqual(files.create(path, "one\ntwo\n", idempotency_key="python-file"), made)
        with self.assertRaises(Conflict) as raised:
            files.create(path, "other")
        self.assertEqual(raised.exception.code, "exists")
        self.assertEqual(files.str_replace(path, "two", "2").text, "one\n2\n")
        self.assertEqual(files.insert(path, 0, "zero\n").text, "zero\none\n2\n")
        with self.assertRaises(Conflict) as raised:
            files.str_replace(path, "o", "0")
        self.assertEqual(raised.exception.code, "ambiguous")
        shown = files.view(path)
        self.assertEqual((shown.memory.text, shown.memory.kind, shown.memory.trust), ("zero\none\n2\n", "file", "own"))
        self.assertEqual(files.write(path, "all new").text, "all new")
        files.write("/memories/python/more.md", "more")
        self.assertEqual([file.path for file in files.list("/memories/python")], ["/memories/python/more.md", path])
        self.assertEqual(files.rename("/memories/python", "/memories/snake").files, 2)
        self.assertEqual(files.list("/memories/python"), [])
        self.assertIn("/memories/snake/notes.md", [hit.title for hit in self.node.recall("all new", kinds=["file"])])
        self.assertEqual(files.delete("/memories/snake").files, 2)
        with self.assertRaises(NotFound):
            files.view("/memories/snake/notes.md")
        for bad in ["/memories/../etc/passwd", "/memoriesX", "/memories/%2e%2e/x"]:
            with self.assertRaises(InvalidRequest) as refused:
                files.view(bad)
            self.assertEqual(refused.exception.code, "bad_path")
        with self.assertRaises(Denied):
            files.write(path, "x", space="private")

    def test_watch_goes_on(self) -> None:
        first = self.node.remember("watched 0", task="watched")
        events = self.node.watch(after=0)
        event = next(event for event in events if event.id == first.id)
        self.assertEqual(event.title, "watched 0")
        done = threading.Event()

        def later() -> None:
            self.node.remember("watched 1", task="watched")
            done.set()

        threading.Thread(target=later).start()
        event = next(event for event in events if event.title == "watched 1")
        self.assertTrue(event.own)
        events.close()
        done.wait(30)
        told = [event.title for event in self.node.watch(after=0, follow=False) if event.task == "watched"]
        self.assertEqual(told, ["watched 0", "watched 1"])


@needs_node
class OverTheSocket(unittest.TestCase):
    def test_the_owner_sees_the_node(self) -> None:
        with Rhizome(socket=SOCKET, space="findings") as node:
            self.assertEqual(node.status().node.name, "one")
            node.remember("over the socket")
            self.assertIn("over the socket", [hit.title for hit in node.recall("socket")])


@needs_node
class Asynchronous(unittest.IsolatedAsyncioTestCase):
    async def test_remember_recall_and_watch(self) -> None:
        async with AsyncRhizome(url=URL, token=TOKEN) as node:
            made = await asyncio.gather(*(node.remember(f"many at once {n}", task="many") for n in range(10)))
            self.assertEqual(len({one.id for one in made}), 10)
            hits = await node.recall("many at once", task="many", limit=20)
            self.assertEqual(len(hits), 10)
            listed = [memory.title async for memory in node.memories(task="many")]
            self.assertEqual(len(listed), 10)

            async def follow() -> str:
                async for event in node.watch(after=0):
                    if event.title == "async watched":
                        return event.id
                return ""

            following = asyncio.ensure_future(follow())
            published = await node.remember("async watched")
            self.assertEqual(await asyncio.wait_for(following, 30), published.id)
            with self.assertRaises(IdempotencyMismatch):
                await node.remember("a", idempotency_key="async-once")
                await node.remember("b", idempotency_key="async-once")
            await node.files.write("/memories/async.md", "from afar")
            self.assertEqual((await node.files.view("/memories/async.md")).memory.text, "from afar")
            self.assertEqual((await node.files.str_replace("/memories/async.md", "afar", "here")).text, "from here")
            await node.context.checkpoint("async task", goal="g")
            self.assertEqual((await node.context.show("async task")).goal, "g")


if __name__ == "__main__":
    unittest.main()
