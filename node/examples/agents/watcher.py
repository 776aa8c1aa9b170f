"""A scripted agent that learns from others: it watches its space and, once a fix has been published,
asks for it in words of its own.

    python3 watcher.py --until fix --ask "subtracting months gives the wrong year"
"""

import argparse
import json
import time

from door import Door


def stamp(at_ms):
    return time.strftime("%H:%M:%S", time.gmtime(at_ms / 1000))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--until", default="fix", help="stop watching after a memory of this kind")
    parser.add_argument("--ask", required=True, help="the question to recall by")
    args = parser.parse_args()
    door = Door()
    seen = []
    print("watching", flush=True)
    for event in door.watch(after=0):
        if event["kind"] == "context":
            continue
        seen.append(event["kind"])
        author, node = event["author"]["name"], event["node"]["name"]
        print(f"{stamp(event['at_ms'])}Z {author} on {node}: {event['kind']}: {event['title']}", flush=True)
        if event["kind"] == args.until:
            break
    hits = door.recall(args.ask, limit=3, kinds=["fix"])
    for hit in hits:
        print(f"recalled ({hit['score']:.2f}) from {hit['author']['name']}: {hit['title']}", flush=True)
    print(json.dumps({"seen": seen, "best": hits[0] if hits else None}))


main()
