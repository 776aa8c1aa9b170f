"""The façades with sandboxes."""
from __future__ import annotations

import unittest

from rhizome import AsyncRhizome, Gone, NotFound, Rhizome, RhizomeError

from .support import TOKEN, URL, needs_node, needs_sandboxes

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))


@needs_node
@needs_sandboxes
class InSandboxes(unittest.IsolatedAsyncioTestCase):
    async def test_a_life(self) -> None:
        node = Rhizome(url=URL, token=TOKEN)
        with node.sandboxes.create(name="python") as box:
            heard = []
            ended = box.exec("echo out; echo err >&2; exit 7", on_output=lambda out, piece: heard.append((out, piece)))
            self.assertEqual((ended.stdout, ended.stderr, ended.code), (b"out\n", b"err\n", 7))
            self.assertEqual(sorted(heard), [(False, b"err\n"), (True, b"out\n")])
            self.assertEqual(box.exec(["cat"], input=b"x" * 200_000).stdout, b"x" * 200_000)
            with self.assertRaises(RhizomeError):
                box.exec("false").check()
            with self.assertRaises(NotFound):
                box.exec(["/no/such/program"])
            self.assertEqual(box.write("/tmp/a.png", PNG, mode=0o600), len(PNG))
            self.assertEqual(box.read("/tmp/a.png"), PNG)
            self.assertIn("a.png", [entry.name for entry in box.listdir("/tmp")])
            self.assertEqual([one.id for one in node.sandboxes.list()], [box.id])
            box.hibernate()
            self.assertEqual(box.info().state, "hibernated")
            box.resume()
            self.assertEqual(box.read("/tmp/a.png"), PNG)
            (copy,) = box.fork(1)
            self.assertEqual(copy.read("/tmp/a.png"), PNG)
            copy.kill()
            async with AsyncRhizome(url=URL, token=TOKEN) as same:
                found = await same.sandboxes.get("python")
                ended = await found.exec(["cat"], input="hello")
                self.assertEqual(ended.text, "hello")
                self.assertEqual(await found.read("/tmp/a.png"), PNG)
        with self.assertRaises((Gone, NotFound)):
            box.exec("true")


if __name__ == "__main__":
    unittest.main()
