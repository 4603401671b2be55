"""`p2pfl relay`, and `p2pfl new --relay`. What they do is in `server` and `tickets`, which take longer to import."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from p2pfl.console import NewOptions, NewPlan
from p2pfl.errors import UserError

TOKEN_FILE = "relay.token"  # noqa: S105 - the name of a file
ADMIN_FILE = "admin.key"


@click.command(
    epilog="\b\nExamples:\n  p2pfl relay --listen 0.0.0.0:8443 --federation federation.toml\n"
    "  p2pfl relay --make-token relay.token\n  p2pfl relay --listen 0.0.0.0:8443 --token relay.token"
)
@click.option("--listen", metavar="HOST:PORT", default="0.0.0.0:8443", show_default=True, help="Where members dial.")
@click.option(
    "--federation",
    "federations",
    multiple=True,
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Serve this federation, by its admin keys: federation.toml, or a file with its name, seed and admin alone.",
)
@click.option(
    "--token",
    "tokens",
    multiple=True,
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Serve whoever knows this token: for a federation without admin keys.",
)
@click.option(
    "--make-token", metavar="FILE", type=click.Path(path_type=Path), help="Write a new token to FILE, and end."
)
@click.option(
    "--cert", metavar="FILE", type=click.Path(path_type=Path), help="Its certificate: wss:// needs no web server."
)
@click.option("--key", metavar="FILE", type=click.Path(path_type=Path), help="The secret key of the certificate.")
def relay(
    *,
    listen: str,
    federations: tuple[Path, ...],
    tokens: tuple[Path, ...],
    make_token: Path | None,
    cert: Path | None,
    key: Path | None,
) -> int:
    """Pass sealed sessions on between members that open no port.

    Members dial the relay, so they need no open port; `[network] relays` in their federation.toml names it. It serves
    only the federations that it is given, and sees who talks to whom, when and how much, but not what: sessions are
    sealed between the members. With --cert it takes TLS and plain connections on one port. It keeps nothing on disk.
    Exit code 130 after it was stopped.
    """
    from p2pfl.features.relay import server, tickets  # noqa: PLC0415 - `--help` stays instant

    if make_token is not None:
        tickets.make_token(make_token)
        text = f"wrote {make_token}: copy it to the relay and to every node, where node.toml names it as relay_token"
        click.echo(text, err=True)
        return 0
    if not federations and not tokens:
        allowed = "--federation federation.toml, or --token FILE"
        raise UserError("serves nobody: it is no open relay", key="--federation, --token", allowed=allowed)
    listed = server.read_listed(federations, tokens)
    return server.serve(listen, listed, cert=cert, key=key)


class RelayOptions(NewOptions):
    """`p2pfl new --relay`: nodes without addresses that meet at a relay, with what opens it to them."""

    parameters = (
        click.Option(["--relay"], multiple=True, metavar="URL", help="For sites that open no port: they meet there."),
    )
    after = "lan"

    def __init__(self) -> None:
        self._plan: NewPlan | None = None

    def plan(self, plan: NewPlan, said: Mapping[str, Any]) -> None:
        if said["relay"]:
            from p2pfl.config.model import NETWORK  # noqa: PLC0415 - `--help` stays instant

            kind = NETWORK["relays"]
            try:
                plan.relays = kind.read(list(said["relay"]))
            except ValueError as error:
                text = str(error) or "not the URL of a relay"
                raise UserError(text, key="--relay", value=said["relay"][0], allowed=kind.allowed) from None
            self._plan = plan

    def write(self, folder: Path) -> None:
        """Write tickets, signed by the new admin key; without one a token, and its place in each node's file."""
        if self._plan is not None:
            from p2pfl.features.relay.tickets import make_openers  # noqa: PLC0415 - `--help` stays instant

            make_openers(folder, TOKEN_FILE, None if self._plan.admin is None else ADMIN_FILE)

    def tell(self, directory: Path) -> None:
        if self._plan is None:
            return
        option, what = f"--federation {directory / 'federation.toml'}", "copy tickets.toml to every machine"
        if self._plan.admin is None:
            option, what = f"--token {directory / TOKEN_FILE}", f"copy {TOKEN_FILE} to every machine, and to the relay"
        click.echo(f"{what}; on the relay: p2pfl relay {option}", err=True)
