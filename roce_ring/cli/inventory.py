"""`roce-ring inventory`: one node's facts, as JSON for the planner. Its options live in `mesh/inventory.py` alone."""

from __future__ import annotations

import typer


def register(app: typer.Typer) -> None:
    """Add `inventory` to the command line."""
    forwarded = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}

    @app.command(context_settings=forwarded, help="Print this node's facts for the planner; reads only.")
    def inventory(context: typer.Context) -> None:
        from roce_ring.mesh.inventory import main

        raise typer.Exit(main(context.args, prog="roce-ring inventory"))
