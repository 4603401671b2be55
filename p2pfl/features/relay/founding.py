"""`p2pfl new --relay`: nodes without addresses that meet at a relay, with what opens it to them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from p2pfl.console.founding import Founding, FoundingPlan
from p2pfl.console.wall_clock import seconds_now

TOKEN_FILE = "relay.token"  # noqa: S105 - the name of a file
ADMIN_FILE = "admin.key"


class RelayFounding(Founding):
    parameters = (
        click.Option(
            ["--relay"],
            multiple=True,
            metavar="URL",
            help="For sites that open no port: they meet there.",
        ),
    )
    after = "lan"

    def __init__(self) -> None:
        self._plan: FoundingPlan | None = None

    def plan(self, plan: FoundingPlan, said: Mapping[str, Any]) -> None:
        if said["relay"]:
            from p2pfl.config.model import NETWORK  # noqa: PLC0415 - `--help` stays instant
            from p2pfl.errors import UserError  # noqa: PLC0415 - as above

            kind = NETWORK["relays"]
            try:
                plan.relays = kind.read(list(said["relay"]))
            except ValueError as error:
                text = str(error) or "not the URL of a relay"
                raise UserError(text, key="--relay", value=said["relay"][0], allowed=kind.allowed) from None
            self._plan = plan

    def write(self, folder: Path) -> None:
        """Write tickets, signed by the new admin key; without one a token, and its place in each node's file."""
        if self._plan is None:
            return
        from p2pfl.config.load import load_config  # noqa: PLC0415 - `--help` stays instant
        from p2pfl.crypto.identity import Identity  # noqa: PLC0415 - as above
        from p2pfl.features.relay.ticket_files import write_tickets  # noqa: PLC0415 - as above
        from p2pfl.features.relay.tickets import make_token  # noqa: PLC0415 - as above

        federation = load_config(folder)
        if self._plan.admin is not None:
            write_tickets(federation, Identity.load(folder / ADMIN_FILE), now_s=seconds_now())
            return
        make_token(folder / TOKEN_FILE)
        for member in federation.members:
            with (folder / member.name / "node.toml").open("a", encoding="utf-8") as file:
                file.write(f'\n[network]\nrelay_token = "../{TOKEN_FILE}"\n')

    def tell(self, directory: Path) -> None:
        if self._plan is None:
            return
        if self._plan.admin is None:
            option, what = f"--token {directory / TOKEN_FILE}", f"copy {TOKEN_FILE} to every machine, and to the relay"
        else:
            option, what = f"--federation {directory / 'federation.toml'}", "copy tickets.toml to every machine"
        click.echo(f"{what}; on the relay: p2pfl relay {option}", err=True)
