"""Runs the cells of one context of the code interpreter in an IPython shell.

Started in a sandbox as `python3 -u driver.py CONTEXT CWD`, CWD as in a URL; part of Rhizome.

One request a line comes on standard input: {"id": N, "code": ..., "env": {...}}.
What happens goes to standard output, one line each: N, a space, and a JSON object as clients of
E2B read it; the last line of a request is N, a space, and a full stop. What the code prints, or
programs that it starts, comes over pipes: standard output is ours alone.

SIGINT interrupts the code that runs, and nothing else.
"""

import base64
import json
import os
import select
import signal
import sys
import threading
import time
import urllib.parse

context, cwd = sys.argv[1], urllib.parse.unquote(sys.argv[2])
requests = os.fdopen(os.dup(0), "rb")
answers = os.fdopen(os.dup(1), "wb", buffering=0)
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
writing = threading.Lock()
current = 0
running = False

# Longest value of a result, in bytes: a plot, not a film.
MAX_RESULT = 8 * 1024 * 1024
READ = 32 * 1024


def interrupt(number, frame):
    if running:
        raise KeyboardInterrupt


signal.signal(signal.SIGINT, interrupt)


def say(message, to=None):
    line = json.dumps(message, default=str, ensure_ascii=False)
    line = line.encode("utf-8", "replace")
    with writing:
        answers.write(b"%d " % (current if to is None else to) + line + b"\n")


class Output:
    """Reads what is written to a descriptor, whoever writes it, and says it."""

    def __init__(self, descriptor, kind):
        self.kind = kind
        self.reader, writer = os.pipe()
        os.dup2(writer, descriptor)
        os.close(writer)
        self.rest = b""
        self.reading = threading.Lock()
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        while True:
            select.select([self.reader], [], [])
            self.take()

    def take(self):
        """Says what is there, without waiting for more."""
        with self.reading:
            while select.select([self.reader], [], [], 0)[0]:
                data = os.read(self.reader, READ)
                if not data:
                    return
                data = self.rest + data
                # Letters are not cut in the middle.
                end = len(data)
                for back in range(1, min(4, len(data)) + 1):
                    byte = data[-back]
                    if byte & 0xC0 == 0x80:
                        continue
                    need = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
                    if need > back:
                        end = len(data) - back
                    break
                self.rest = data[end:]
                self.say(data[:end])

    def flush(self):
        self.take()
        with self.reading:
            rest, self.rest = self.rest, b""
            self.say(rest)

    def say(self, data):
        if data:
            text = data.decode("utf-8", "replace")
            say({"type": self.kind, "text": text, "timestamp": time.time_ns()})


stdout, stderr = Output(1, "stdout"), Output(2, "stderr")
sys.stdout = os.fdopen(1, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)
sys.stderr = os.fdopen(2, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)
sys.stdin = open(os.devnull)

try:
    os.chdir(cwd)
except OSError as error:
    say({"type": "error", "name": type(error).__name__, "value": str(error), "traceback": ""}, 0)

try:
    from IPython.core.displayhook import DisplayHook
    from IPython.core.displaypub import DisplayPublisher
    from IPython.core.interactiveshell import InteractiveShell
except ImportError as error:
    say({"type": "missing", "value": str(error)}, 0)
    sys.exit(3)

NAMES = {
    "text/plain": "text",
    "text/html": "html",
    "text/markdown": "markdown",
    "image/svg+xml": "svg",
    "image/png": "png",
    "image/jpeg": "jpeg",
    "application/pdf": "pdf",
    "text/latex": "latex",
    "application/json": "json",
    "application/javascript": "javascript",
}


def result(data, is_main):
    told = {"type": "result", "is_main_result": is_main}
    extra = {}
    for kind, value in data.items():
        if isinstance(value, bytes):
            value = base64.b64encode(value).decode()
        if isinstance(value, str) and len(value) > MAX_RESULT:
            value = "(%d bytes: too large to show)" % len(value)
            kind = "text/plain"
        name = NAMES.get(kind)
        if name is None:
            extra[kind] = value
        else:
            told[name] = value
    if extra:
        told["extra"] = extra
    sys.stdout.flush()
    sys.stderr.flush()
    stdout.take()
    stderr.take()
    say(told)


class Publisher(DisplayPublisher):
    def publish(self, data, metadata=None, source=None, *, transient=None, update=False, **kwargs):
        result(data, False)

    def clear_output(self, wait=False):
        pass


class Hook(DisplayHook):
    def write_output_prompt(self):
        pass

    def write_format_data(self, format_dict, md_dict=None):
        result(format_dict, True)

    def finish_displayhook(self):
        pass


class Shell(InteractiveShell):
    def enable_gui(self, gui=None):
        pass

    def showtraceback(self, *args, **kwargs):
        # It is told with the result of the cell.
        pass

    def showsyntaxerror(self, *args, **kwargs):
        pass

    def _showtraceback(self, kind, value, lines):
        pass


Shell.display_pub_class = Publisher
Shell.displayhook_class = Hook
# Whatever shows a plot shows it here; a library that is not there does not mind.
os.environ.setdefault("MPLBACKEND", "module://matplotlib_inline.backend_inline")
shell = Shell.instance(user_ns={"__name__": "__main__"}, colors="NoColor")
shell.history_manager.enabled = False
shell.display_formatter.active_types = list(NAMES)
sys.modules["__main__"].__dict__.setdefault("get_ipython", shell.get_ipython)


def error_of(failure):
    try:
        if isinstance(failure, SyntaxError):
            # It is about the cell, not about whoever compiled it.
            lines = shell.SyntaxTB.structured_traceback(type(failure), failure, [])
        else:
            shown = shell.InteractiveTB.structured_traceback
            lines = shown(type(failure), failure, failure.__traceback__, tb_offset=1)
        trace = shell.InteractiveTB.stb2text(lines)
    except Exception:
        import traceback

        trace = "".join(traceback.format_exception(failure))
    return {
        "type": "error",
        "name": type(failure).__name__,
        "value": str(failure),
        "traceback": trace,
    }


def cell(request):
    global running
    kept = {}
    for name, value in (request.get("env") or {}).items():
        kept[name] = os.environ.get(name)
        os.environ[name] = str(value)
    failure = None
    try:
        running = True
        done = shell.run_cell(request["code"], store_history=True)
        running = False
        failure = done.error_before_exec or done.error_in_exec
        shell.events.trigger("post_execute")
    except KeyboardInterrupt as error:
        failure = error
    except SystemExit as error:
        failure = error
    finally:
        running = False
        for name, value in kept.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            pass
    stdout.flush()
    stderr.flush()
    if failure is not None:
        say(error_of(failure))
    say({"type": "number_of_executions", "execution_count": shell.execution_count - 1})


say({"type": "ready"}, 0)
for line in requests:
    try:
        request = json.loads(line)
        current = int(request["id"])
    except (ValueError, KeyError, TypeError):
        continue
    cell(request)
    with writing:
        answers.write(b"%d .\n" % current)
