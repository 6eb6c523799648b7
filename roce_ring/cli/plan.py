"""`roce-ring plan`: the planner program under the common command. Its options live in `mesh/plan.py` alone."""

from __future__ import annotations

import typer


def register(app: typer.Typer) -> None:
    """Add `plan` to the command line."""
    forwarded = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}

    @app.command(context_settings=forwarded, help="Plan the ring from facts: order, paths, rules, environment lines.")
    def plan(context: typer.Context) -> None:
        from roce_ring.mesh.plan import main

        raise typer.Exit(main(context.args, prog="roce-ring plan"))
