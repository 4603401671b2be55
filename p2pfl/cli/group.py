"""A command whose subcommands are known by name and one line each, and imported only when they are called."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

import click


class Named(click.Group):
    """Subclasses say which there are, by `lines`, and import one, by `find`."""

    def lines(self) -> Mapping[str, str]:
        """Name to what `--help` says of it, in the order of the listing."""
        raise NotImplementedError

    def find(self, name: str) -> Any:
        """One of those in `lines`."""
        raise NotImplementedError

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(self.lines())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - as above
        found = self.find(cmd_name) if cmd_name in self.lines() else None
        return found if isinstance(found, click.Command) else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            if close := difflib.get_close_matches(args[0], self.lines(), n=1):
                raise click.UsageError(f"{error.message} Did you mean {close[0]!r}?", ctx) from None
            raise

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - as above
        with formatter.section("Commands"):
            formatter.write_dl(list(self.lines().items()))
