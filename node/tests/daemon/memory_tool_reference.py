"""Runs calls of the memory tool, a JSON list on stdin, with Anthropic's own directory."""

import json
import sys
import tempfile

from anthropic.tools import BetaLocalFilesystemMemoryTool

with tempfile.TemporaryDirectory() as directory:
    tool = BetaLocalFilesystemMemoryTool(directory)
    answers = []
    for call in json.load(sys.stdin):
        try:
            answers.append({"text": tool.call(call), "error": False})
        except Exception as error:
            answers.append({"text": str(error), "error": True})
json.dump(answers, sys.stdout)
