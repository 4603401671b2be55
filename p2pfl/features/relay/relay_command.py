"""`p2pfl relay`: pass sealed sessions on between members that open no port."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import click

from p2pfl.console.output import log_to_stderr


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
@click.option("--name", "names", multiple=True, metavar="HOST:PORT/PATH", help="Serve only who dials this name.")
@click.option("--mbit", type=click.FloatRange(0.01), help="The most that is passed on, in Mbit/s.")
@click.option("--month-gb", type=click.FloatRange(0.001), help="The most for each federation in a month, in GB.")
@click.option(
    "--state", metavar="FOLDER", type=click.Path(path_type=Path), help="Keep the month's volume there over restarts."
)
@click.option(
    "--members", type=click.IntRange(2), default=2000, show_default=True, help="The most members of each federation."
)
@click.option("--metrics", metavar="HOST:PORT", help="Serve /metrics for Prometheus there.")
def relay(
    *,
    listen: str,
    federations: tuple[Path, ...],
    tokens: tuple[Path, ...],
    make_token: Path | None,
    cert: Path | None,
    key: Path | None,
    names: tuple[str, ...],
    mbit: float | None,
    month_gb: float | None,
    state: Path | None,
    members: int,
    metrics: str | None,
) -> int:
    """Pass sealed sessions on between members that open no port.

    Members dial the relay, so they need no open port; `[network] relays` in their federation.toml names it. It serves
    only the federations that it is given, and sees who talks to whom, when and how much, but not what: sessions are
    sealed between the members. With --cert it takes TLS and plain connections on one port. It keeps nothing on disk but
    the month's volume, with --state. Exit code 130 after it was stopped.
    """
    from p2pfl.errors import UserError  # noqa: PLC0415 - `--help` stays instant
    from p2pfl.features.relay import tickets  # noqa: PLC0415 - as above
    from p2pfl.features.relay.relay_process import RelayOptions, run_relay  # noqa: PLC0415 - as above

    if make_token is not None:
        tickets.make_token(make_token)
        text = f"wrote {make_token}: copy it to the relay and to every node, where node.toml names it as relay_token"
        click.echo(text, err=True)
        return 0
    if not federations and not tokens:
        allowed = "--federation federation.toml, or --token FILE"
        raise UserError("serves nobody: it is no open relay", key="--federation, --token", allowed=allowed)
    options = RelayOptions(
        listen=listen,
        federations=federations,
        tokens=tokens,
        cert=cert,
        key=key,
        names=names,
        bytes_per_s=None if mbit is None else mbit * 125_000,
        month_bytes=None if month_gb is None else int(month_gb * 1e9),
        members=members,
        state=state,
        metrics=metrics,
    )
    log_to_stderr("%(asctime)s %(levelname)s %(name)s: %(message)s", logging.INFO)
    return asyncio.run(run_relay(options))
