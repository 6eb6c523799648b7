"""Imports an engine once and forks the ranks of every test from itself: an import takes seconds, and ranks share few
cores. Used by environment.launch: zygote.py MODULE,MODULE...

Reads one JSON object a line: program, arguments of each rank, environ of each rank, and a folder where rank N's output
goes to N.out and N.log. Answers with the ranks' exit codes (negative: a signal) once all have ended.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import sys
import traceback
from pathlib import Path


def become(program: str, arguments: list[str], environ: dict[str, str], stem: str) -> int:
    """In the child: the program, as if it had been started by itself."""
    for descriptor, suffix in ((1, ".out"), (2, ".log")):
        file = os.open(stem + suffix, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(file, descriptor)
    os.environ.clear()
    os.environ.update(environ)
    sys.argv = [program, *arguments]
    try:
        runpy.run_path(program, run_name="__main__")
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def main() -> None:
    for name in sys.argv[1].split(","):
        importlib.import_module(name)
    for line in sys.stdin:
        request = json.loads(line)
        ranks = []
        for rank, (arguments, environ) in enumerate(zip(request["arguments"], request["environ"], strict=True)):
            pid = os.fork()
            if pid == 0:
                os.setpgid(0, 0)
                code = become(request["program"], arguments, environ, str(Path(request["folder"]) / str(rank)))
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
            ranks.append(pid)
        print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in ranks]), flush=True)


if __name__ == "__main__":
    main()
