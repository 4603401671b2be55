"""`p2pfl new --admin`: create a key that can change the members, and the first signed list of members."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from p2pfl.console.founding import Founding, FoundingPlan

if TYPE_CHECKING:
    from p2pfl.crypto.identity import Identity


class MembersFounding(Founding):
    parameters = (
        click.Option(
            ["--admin"], is_flag=True, help="Also make an admin key: members may then come and go while nodes run."
        ),
    )
    after = "name"

    def __init__(self) -> None:
        self._signer: Identity | None = None

    def plan(self, plan: FoundingPlan, said: Mapping[str, Any]) -> None:
        if said["admin"]:
            from p2pfl.crypto.identity import Identity, public_text  # noqa: PLC0415 - `--help` stays instant

            self._signer = Identity.generate()
            plan.admin = public_text(self._signer.public)
            plan.topology = plan.topology or "keyed-rings"

    def write(self, folder: Path) -> None:
        if self._signer is None:
            return
        from p2pfl.config.load import load_config  # noqa: PLC0415 - `--help` stays instant
        from p2pfl.config.successors import successor  # noqa: PLC0415 - as above
        from p2pfl.features.members.publishing import ADMIN_FILE, publish, require_bearable  # noqa: PLC0415 - as above

        self._signer.save(folder / ADMIN_FILE)
        federation = load_config(folder)
        first = successor(federation)
        require_bearable(federation, first)
        publish(federation, first, self._signer)

    def tell(self, directory: Path) -> None:
        if self._signer is not None:
            secret = directory / "admin.key"
            text = f"made {secret}: it can change the members. Keep it off the nodes, and keep a copy elsewhere"
            click.echo(text, err=True)
