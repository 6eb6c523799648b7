"""`roce-ring`: finds the verbs, prints help by task, and turns every expected error into one sentence on stderr.

Exit status: 0 ok, 1 something was found wrong, 2 usage or could not look, 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from inspect import cleandoc
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from ..errors import RoceRingError

# Verb (a module beside this file) -> the task it is listed under, in the order of help.
VERBS = {
    "plan": "Plan a ring",
    "inventory": "Plan a ring",
    "up": "Set the mesh up",
    "verify": "Set the mesh up",
    "down": "Set the mesh up",
    "agent": "Set the mesh up",
    "bench": "Run",
    "status": "Watch",
    "stats": "Watch",
    "watch": "Watch",
    "doctor": "Watch",
    "topo": "Watch",
    "stall": "Watch",
    "tune": "Tune",
    "ladder": "Tune",
    "acs": "Tune",
}


def _version(asked: bool) -> None:
    if asked:
        from .. import __version__

        print(f"roce-ring {__version__}")
        raise typer.Exit


# click's UsageError, wherever this version of Typer keeps it.
_USAGE: Any = typer.BadParameter.__base__


@contextmanager
def _usage_in_json() -> Iterator[None]:
    """Typer says on stderr what is wrong with the arguments."""
    try:
        yield
    except _USAGE as error:
        _print_error("usage", error.format_message(), "see 'roce-ring --help', or --help of the verb")
        raise


class _Verbs(TyperGroup):
    """Typer by itself says nothing at Ctrl-C, and calls it a failure when a reader (head, less) has seen enough."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        with _usage_in_json():
            return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            with _usage_in_json():
                return super().invoke(ctx)
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            raise typer.Exit(130) from None
        except BrokenPipeError:
            raise typer.Exit(0) from None


def build() -> typer.Typer:
    """The program with all its verbs."""
    app = typer.Typer(cls=_Verbs, no_args_is_help=False, pretty_exceptions_enable=False, add_completion=False)

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
    groups = [group.typer_instance for group in app.registered_groups if group.typer_instance]
    for command in [one for each in (app, *groups) for one in each.registered_commands]:
        command.help = command.help or _paragraphs(command.callback.__doc__ or "") if command.callback else ""
    return app


def _paragraphs(text: str) -> str:
    """Typer would keep the source's line ends in all paragraphs but the first."""
    return "\n\n".join(" ".join(one.split()) for one in cleandoc(text).split("\n\n"))


def main() -> None:
    if sys.stdout is None:  # what Python makes of a closed one
        say("standard output is closed, so there is nowhere to print to")
        sys.exit(2)
    status: Any = 2
    try:
        build()(prog_name="roce-ring")
    except SystemExit as ended:
        status = ended.code
    except RoceRingError as error:
        say(error.message, error.hint)
        _print_error(error.code, error.message, error.hint)
    except KeyboardInterrupt:
        status = 130
    except OSError:
        if not (problem := _undelivered("\n")):
            raise
        say(problem)
    if problem := _undelivered():
        say(problem)
        status = 2
    sys.exit(status)


def say(message: str, hint: str = "") -> None:
    print(f"roce-ring: {message}", file=sys.stderr)
    if hint:
        print(f"  fix: {hint}", file=sys.stderr)


def _print_error(code: str, message: str, hint: str) -> None:
    """With --json a program reads standard output: it must find a document there whatever happens."""
    if "--json" in sys.argv[1:]:
        from ..mesh.failure import print_error

        print_error(code, message, hint)


def _undelivered(more: str = "") -> str:
    """Why standard output does not take what was printed, and `more`: unbuffered, what failed is not tried again by
    itself. A reader that went away has seen enough: that is nothing."""
    try:
        if more:
            sys.stdout.write(more)
        sys.stdout.flush()
        return ""
    except BrokenPipeError:
        reason = ""
    except OSError as error:
        reason = f"standard output cannot be written: {(error.strerror or str(error)).lower()}"
    # What is still buffered goes nowhere, or Python would fail once more on it when it ends.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return reason


if __name__ == "__main__":
    main()
