"""Stands in for ssh where a test says so: takes ssh's arguments, and forwards like it from a local socket to the one
that NODES (a JSON object: destination -> path) names. A destination of another kind says how it fails."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time

FAILURES = {
    "no-route": "ssh: connect to host no-route port 22: No route to host",
    "no-key": "root@no-key: Permission denied (publickey).",
    "no-name": "ssh: Could not resolve hostname no-name: Name or service not known",
}


def pump(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        pass


def main() -> int:
    words = sys.argv[1:]
    assert words[0] == "-N" and words[-2] == "--", words
    destination = words[-1].rpartition("@")[2]
    local, _, remote = words[words.index("-L") + 1].partition(":")
    assert remote == "/run/roce-ring/agent.sock"
    if destination in FAILURES:
        print("Warning: this is the banner of this host", FAILURES[destination], sep="\n", file=sys.stderr)
        return 255
    if destination == "hangs":
        time.sleep(60)
    if destination == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("x" * 200_000, file=sys.stderr, flush=True)  # more than a pipe takes
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(local)
    listener.listen()
    far = json.loads(os.environ["NODES"]).get(destination, "/no/agent")
    while True:
        near, _ = listener.accept()
        away = socket.socket(socket.AF_UNIX)
        try:
            away.connect(far)
        except OSError:
            print("channel 2: open failed: connect failed: open failed", file=sys.stderr, flush=True)
            near.close()
            continue
        for pair in ((near, away), (away, near)):
            threading.Thread(target=pump, args=pair, daemon=True).start()


if __name__ == "__main__":
    sys.exit(main())
