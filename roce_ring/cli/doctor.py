"""`roce-ring doctor`: the doctor under the common command. Its options live in `mesh/doctor/doctor.py` alone."""

from __future__ import annotations

import typer


def register(app: typer.Typer) -> None:
    """Add `doctor` to the command line."""
    forwarded = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}

    @app.command(context_settings=forwarded, help="Look for what stops, slows or misleads the ring; changes nothing.")
    def doctor(context: typer.Context) -> None:
        from roce_ring.mesh.doctor.doctor import main

        raise typer.Exit(main(context.args, prog="roce-ring doctor"))
