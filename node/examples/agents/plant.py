"""Takes a copy of the library `isodate` from its Debian package and plants one fault in it.

Subtracting a duration from a date must carry the borrowed years with their sign; the fault turns
the sign round, so that `date - Duration` lands years away as soon as it crosses a January.
"""

import pathlib
import shutil
import subprocess
import sys

SOURCE = pathlib.Path("/usr/lib/python3/dist-packages/isodate")
SOUND = "newyear = other.year - self.years + carry"
FAULTY = "newyear = other.year - self.years - carry"


def main():
    work = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "/root/work")
    if work.exists():
        shutil.rmtree(work)
    work.mkdir(parents=True)
    shutil.copytree(SOURCE, work / "isodate", ignore=shutil.ignore_patterns("__pycache__"))
    module = work / "isodate" / "duration.py"
    text = module.read_text()
    if text.count(SOUND) != 1:
        sys.exit(f"{module}: the line to spoil is not there; is this another version of isodate?")
    module.write_text(text.replace(SOUND, FAULTY))
    identity = ["-c", "user.name=agent", "-c", "user.email=agent@sandbox"]
    for command in (["init", "-q"], ["add", "-A"], [*identity, "commit", "-q", "-m", "isodate as found"]):
        subprocess.run(["git", "-C", work, *command], check=True)
    print(f"isodate is in {work}, with one fault in it")


main()
