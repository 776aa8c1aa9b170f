"""Drives the volumes of a running node through the unmodified newest E2B Python SDK.

Needs: pip install e2b; E2B_API_KEY, E2B_API_URL, E2B_SANDBOX_URL and E2B_VOLUME_API_URL in the environment.
Prints PASS or FAIL per check, then 'N passed, N failed'; exits 1 if any failed.
"""
import io, sys
from e2b import Sandbox, Volume

results = []


def check(name, condition=True):
    results.append(bool(condition))
    print(("PASS " if condition else "FAIL ") + name, flush=True)


v = Volume.create("probe")
check("create " + v.volume_id)
check("list volumes", any(x.volume_id == v.volume_id for x in Volume.list()))
v = Volume.connect(v.volume_id)
check("make_dir", v.make_dir("/d").type == "directory")
png = b"\x89PNG\r\n\x1a\n" + bytes(range(256))
check("write", v.write_file("/d/p.png", png).size == len(png))
check("read", bytes(v.read_file("/d/p.png", format="bytes")) == png)
v.write_file("/big", io.BytesIO(b"z" * 3_000_000))
check("3 MB", sum(len(x) for x in v.read_file("/big", format="stream")) == 3_000_000)
check("text", v.write_file("/记忆", "共享的记忆") and v.read_file("/记忆") == "共享的记忆")
check("list", [e.path for e in v.list("/", depth=2)] == ["/big", "/d", "/d/p.png", "/记忆"])
check("info", v.get_info("/d/p.png").name == "p.png" and v.get_info("/d").type == "directory")
check("mode", v.update_metadata("/big", mode=0o600, uid=7).mode == 0o600 and v.get_info("/big").uid == 7)
check("exists", v.exists("/big") and not v.exists("/nope"))
v.remove("/big")
check("remove", not v.exists("/big"))
s = Sandbox.create("base", timeout=300, volume_mounts={"/mnt/v": v})
check("mounted", bytes(s.files.read("/mnt/v/d/p.png", format="bytes")) == png)
s.commands.run("echo inside > /mnt/v/inside")
check("seen from outside", v.read_file("/inside") == "inside\n")
s.kill()
check("stays", v.read_file("/inside") == "inside\n")
check("destroy", Volume.destroy(v.volume_id) and not Volume.destroy(v.volume_id))
print(f"{sum(results)} passed, {len(results) - sum(results)} failed")
sys.exit(0 if all(results) else 1)
