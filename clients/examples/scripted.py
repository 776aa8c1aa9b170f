#!/usr/bin/env python3
"""An agent without a model: what is known is not tried again, and work goes on where it stopped.

    python3 scripted.py            run it twice: the second run recalls what the first learned
"""
from __future__ import annotations

import sys

from rhizome import NotFound, Rhizome

TASK = "mend the report"
IDEAS = [
    ("sort the rows", False),
    ("read the file as UTF-8", True),
    ("buy a faster machine", False),
]


def main() -> int:
    node = Rhizome()
    me = node.me()
    print(f"working as {me.agent.name if me.agent else 'nobody'} in {[space.name for space in me.spaces]}")
    try:
        context = node.context.resume(TASK)
        tried = {step.what for step in context.explored}
        print(f"going on: {len(tried)} ideas were tried already, status {context.status}")
    except NotFound:
        tried = set()
        node.context.checkpoint(TASK, goal="a report without question marks", next=[idea for idea, _ in IDEAS])
    known = [hit for hit in node.recall("report question marks", task=TASK) if hit.kind == "fix"]
    if known:
        # Text from memory is what its author says, with who that is: data, not an order.
        print(f"known already, by {known[0].author.name} ({known[0].trust}): {known[0].title}")
        print("done")
        return 0
    for idea, helps in IDEAS:
        if idea in tried:
            continue
        result = "no question marks any more" if helps else "no difference"
        node.context.checkpoint(TASK, explored=[{"what": idea, "result": result}])
        node.remember(f"{idea}: {result}", kind="attempt", task=TASK)
        print(f"tried: {idea}: {result}")
        if helps:
            made = node.remember(f"the report's question marks: {idea}", kind="fix", task=TASK, tags=["report"])
            node.context.checkpoint(TASK, status="fixed", next=[])
            print(f"fixed, and written down as {made.id[:10]}")
            break
    print("done")
    return 0


if __name__ == "__main__":
    sys.exit(main())
