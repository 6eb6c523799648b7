"""`roce-ring`: finds the verbs, prints help by task, and turns every expected error into one sentence on stderr.

Exit status: 0 ok, 1 something was found wrong, 2 usage or could not look, 130 interrupted.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Annotated

import typer

from ..errors import RoceRingError

# Verb (a module beside this file) -> the task it is listed under, in the order of help.
VERBS = {
    "plan": "Plan a ring",
    "inventory": "Plan a ring",
    "bench": "Run",
    "status": "Watch",
    "stats": "Watch",
    "tune": "Tune",
}


def _version(asked: bool) -> None:
    if asked:
        from .. import __version__

        print(f"roce-ring {__version__}")
        raise typer.Exit


def build() -> typer.Typer:
    """The program with all its verbs."""
    app = typer.Typer(no_args_is_help=False, pretty_exceptions_enable=False, add_completion=False)

    @app.callback(invoke_without_command=True)
    def root(
        context: typer.Context,
        version: Annotated[
            bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
        ] = False,
    ) -> None:
        """All-reduce over a switchless RoCE ring: plan the ring, run and measure on it, watch it, tune it."""
        if context.invoked_subcommand is None:
            print(context.get_help())
            raise typer.Exit(0)

    for verb, task in VERBS.items():
        known = len(app.registered_commands)
        import_module(f"{__package__}.{verb}").register(app)
        for command in app.registered_commands[known:]:
            command.rich_help_panel = task
    return app


def main() -> None:
    try:
        build()(prog_name="roce-ring")
    except RoceRingError as error:
        print(f"roce-ring: {error.message}", file=sys.stderr)
        if error.hint:
            print(f"  fix: {error.hint}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
