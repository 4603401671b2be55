"""`p2pfl relay`: one relay as a process, with its sockets and its log."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Sequence
from pathlib import Path

import click

from p2pfl.console.output import log_to_stderr
from p2pfl.errors import UserError
from p2pfl.features.relay.frames import names_called
from p2pfl.features.relay.server import Admissions, ListedFederation, RelayServer, read_listed
from p2pfl.features.relay.switchboard import Switchboard
from p2pfl.features.relay.tickets import make_token as make_token_file
from p2pfl.net.address import Address, parse_address
from p2pfl.net.dial_paths import SOON_DAYS, OwnCertificate
from p2pfl.net.limits import Limits
from p2pfl.net.transport import Counters, Refusals
from p2pfl.net.websocket import WebSocketTransport

log = logging.getLogger("p2pfl.relay")

STOPPED = 130
INVALID = "is not valid by the clock of this machine (timedatectl set-ntp true, if that is wrong)"
EXPECTED = 64
"""The members that may come at once without being held up as strangers."""


GONE = ("--month-gb", "--state", "--members", "--metrics")


def _refuse_gone(_context: click.Context, _option: click.Parameter, value: object) -> None:
    if value is not None:
        instead = "--mbit, and the machine's own count of traffic (vnstat); the log says who is refused and why"
        raise UserError("are gone", key=", ".join(GONE), allowed=instead)


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
@click.option(*GONE, hidden=True, expose_value=False, callback=_refuse_gone)
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
) -> int:
    """Pass sealed sessions on between members that open no port.

    Members dial the relay, so they need no open port; `[network] relays` in their federation.toml names it. It serves
    only the federations that it is given, and sees who talks to whom, when and how much, but not what: sessions are
    sealed between the members. With --cert it takes TLS and plain connections on one port. It keeps nothing on disk.
    Exit code 130 after it was stopped.
    """
    if make_token is not None:
        make_token_file(make_token)
        text = f"wrote {make_token}: copy it to the relay and to every node, where node.toml names it as relay_token"
        click.echo(text, err=True)
        return 0
    if not federations and not tokens:
        allowed = "--federation federation.toml, or --token FILE"
        raise UserError("serves nobody: it is no open relay", key="--federation, --token", allowed=allowed)
    log_to_stderr("%(asctime)s %(levelname)s %(name)s: %(message)s", logging.INFO)
    listed = read_listed(federations, tokens)
    refusals = Refusals(Counters.of(()), log, lambda kind, peer, text: None)  # noqa: ARG005 - it has no members
    admissions = Admissions(listed, [name for text in names for name in names_called(text)])
    server = RelayServer(admissions, Switchboard(), refusals, rate=None if mbit is None else mbit * 125_000)
    transport = WebSocketTransport(Limits(), refusals, log, certificate=own_certificate(cert, key))
    return asyncio.run(_run(server, transport, refusals, listed, parse_address(listen, "--listen")))


async def _run(
    server: RelayServer,
    transport: WebSocketTransport,
    refusals: Refusals,
    listed: Sequence[ListedFederation],
    address: Address,
) -> int:
    """Serve until SIGINT or SIGTERM; return the exit code. Raises UserError if an address is wrong."""
    transport.expect(EXPECTED)
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    try:
        await transport.open(address, server.meet)
        log.info("listening on port %d for %s", transport.port, ", ".join(one.name for one in listed))
        async with asyncio.TaskGroup() as tasks:
            work = [tasks.create_task(server.run()), tasks.create_task(refusals.begin_hours())]
            await stopped.wait()
            for task in work:
                task.cancel()
    finally:
        await transport.close()
    return STOPPED


def own_certificate(cert: Path | None, key: Path | None) -> OwnCertificate | None:
    """Return the certificate with which the relay listens; None if it has none. Raises UserError: it cannot be used."""
    if cert is None and key is None:
        return None
    if cert is None or key is None:
        raise UserError("one is of no use without the other", key="--cert, --key", allowed="both or none")
    certificate = OwnCertificate(cert, key)
    if certificate.days_left < SOON_DAYS:
        when = f"expires in {certificate.days_left:.0f} days" if certificate.days_left >= 0 else INVALID
        log.warning("the certificate %s %s: renew it, unless members pin it", cert, when)
    log.info("its certificate has sha256=%s", certificate.pin)
    return certificate
