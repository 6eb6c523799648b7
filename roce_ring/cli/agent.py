"""`roce-ring agent`: this node's agent, in the foreground (systemd runs it so)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from ..errors import ConfigError, RoceRingError
from .nodes import TlsFiles, refuse_given, tls_of

STATE_DIR = Path("/var/lib/roce-ring")
RUN_DIR = Path("/run/roce-ring")
DATAPLANES = ("auto", "cx7", "soft")


def register(app: typer.Typer) -> None:
    @app.command()
    def agent(
        context: typer.Context,
        state_dir: Annotated[Path, typer.Option(help="Where the plan and what is ours are remembered.")] = STATE_DIR,
        run_dir: Annotated[Path, typer.Option(help="Where the sockets are.")] = RUN_DIR,
        dataplane: Annotated[
            str, typer.Option(help="cx7 (ConnectX-7), soft (Soft-RoCE), or auto: by the devices' driver.")
        ] = "auto",
        listen: Annotated[str, typer.Option(help="Also answer at HOST:PORT, with mutual TLS.")] = "",
        tls: TlsFiles = None,
        tls_names: Annotated[
            str, typer.Option(help="Names in certificates that may call over TLS, joined by commas.")
        ] = "",
        group: Annotated[
            str, typer.Option(help="Group whose sessions may hold leases.", show_default="root only")
        ] = "",
        admin_group: Annotated[
            str, typer.Option(help="Group that may change this node.", show_default="root only")
        ] = "",
    ) -> None:
        """Run this node's mesh agent: it sets its part of the plan up, proves it, watches it, and takes it back."""
        import logging

        from .. import __version__
        from ..control.address import parse_address
        from ..mesh.agent.agent import Agent
        from ..mesh.agent.server import AgentServer
        from ..mesh.agent.state import StateError

        logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", stream=sys.stderr)
        if dataplane not in DATAPLANES:
            raise ConfigError(f"--dataplane {dataplane!r}: expected one of {', '.join(DATAPLANES)}")
        files = tls_of(tls, tls_names.split(",") if tls_names else ())
        where = None
        if listen:
            if files is None:
                raise ConfigError(
                    f"--listen {listen}: whoever reaches it could change this node, so it needs mutual TLS",
                    "give --tls and --tls-names, or leave it out: ssh reaches the socket",
                )
            where = parse_address(listen, files, "--listen"), files
        else:
            refuse_given(
                context, ("tls", "tls_names"), "is for --listen, which is not there", "give --listen HOST:PORT"
            )
        groups = _group(group), _group(admin_group)
        try:
            state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            served = AgentServer(lambda: Agent(state_dir, dataplane, version=__version__), run_dir, where, *groups)
        except StateError as error:
            raise RoceRingError("setup", str(error)) from None
        except OSError as error:
            why, fix = (error.strerror or str(error)).lower(), "run it as root, or change --state-dir"
            if isinstance(error, (FileExistsError, NotADirectoryError)):  # of mkdir: what is there is something else
                why, fix = "not a directory", "name a directory with --state-dir; it is made if it is missing"
            raise RoceRingError("setup", f"the agent cannot start: {error.filename or state_dir}: {why}", fix) from None
        try:
            served.run()
        finally:
            served.close()


def _group(name: str) -> int | None:
    import grp

    if not name:
        return None
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        raise ConfigError(f"there is no group {name!r} on this host", f"groupadd --system {name}") from None
