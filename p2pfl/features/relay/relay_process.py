"""One relay as a process: its sockets, its log and its metrics."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from p2pfl.console.wall_clock import seconds_now
from p2pfl.errors import UserError
from p2pfl.features.relay.admissions import Admissions, ListedFederation, read_listed
from p2pfl.features.relay.month_file import MonthFile, month_of
from p2pfl.features.relay.relay_names import names_called
from p2pfl.features.relay.relay_server import RelayServer
from p2pfl.features.relay.switchboard import Switchboard
from p2pfl.net.address import cannot_listen, parse_address
from p2pfl.net.limits import Limits
from p2pfl.net.line import Counters
from p2pfl.net.refusals import Refusals
from p2pfl.net.tls import SOON_DAYS, OwnCertificate
from p2pfl.net.websocket import WebSocketTransport

log = logging.getLogger("p2pfl.relay")

STOPPED = 130
INVALID = "is not valid by the clock of this machine (timedatectl set-ntp true, if that is wrong)"
EXPECTED = 64
"""The members that may come at once without being held up as strangers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayOptions:
    """The options of `p2pfl relay`."""

    listen: str
    federations: tuple[Path, ...] = ()
    tokens: tuple[Path, ...] = ()
    cert: Path | None = None
    key: Path | None = None
    names: tuple[str, ...] = ()
    bytes_per_s: float | None = None
    month_bytes: int | None = None
    members: int = 2000
    state: Path | None = None
    metrics: str | None = None


async def run_relay(options: RelayOptions) -> int:
    """Serve until SIGINT or SIGTERM; return the exit code. Raises UserError if a file or an address is wrong."""
    listed = read_listed(options.federations, options.tokens)
    address = parse_address(options.listen, "--listen")
    board = Switchboard(month_bytes=options.month_bytes, most_members=options.members)
    refusals = Refusals(Counters.of(()), log, lambda kind, peer, text: None)  # noqa: ARG005 - it has no members
    names = [name for text in options.names for name in names_called(text)]
    server = RelayServer(Admissions(listed, names), board, refusals, rate=options.bytes_per_s)
    certificate = own_certificate(options)
    transport = WebSocketTransport(Limits(), refusals, log, certificate=certificate)
    transport.expect(EXPECTED)
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    async with AsyncExitStack() as until_over:
        until_over.push_async_callback(transport.close)
        if options.metrics is not None:
            await until_over.enter_async_context(Metrics(options.metrics, server, transport))
        if options.state is not None:
            await until_over.enter_async_context(_month_kept(MonthFile(options.state), board, listed))
        await transport.open(address, server.meet)
        log.info("listening on port %d for %s", transport.port, ", ".join(one.name for one in listed))
        if certificate is not None:
            log.info("its certificate has sha256=%s", certificate.pin)
        async with asyncio.TaskGroup() as tasks:
            work = tasks.create_task(server.run())
            hours = tasks.create_task(refusals.begin_hours())
            await stopped.wait()
            work.cancel()
            hours.cancel()
    return STOPPED


@asynccontextmanager
async def _month_kept(file: MonthFile, board: Switchboard, listed: Sequence[ListedFederation]) -> AsyncIterator[None]:
    """Begin with the month's volume that the file has, and keep it there."""
    now_s = seconds_now()
    board.begin_month(month_of(now_s))
    before = file.read(now_s)
    for one in listed:
        board.tenant(one.name).month_bytes = before.get(one.name, 0)

    def volumes() -> Mapping[str, int]:
        board.begin_month(month_of(seconds_now()))
        return {tenant.name: tenant.month_bytes for tenant in board.tenants.values()}

    keeping = asyncio.create_task(file.keep(volumes, seconds_now))
    try:
        yield
    finally:
        keeping.cancel()
        file.write(volumes(), seconds_now())


def own_certificate(options: RelayOptions) -> OwnCertificate | None:
    """Return the certificate with which the relay listens; None if it has none. Raises UserError: it cannot be used."""
    if options.cert is None and options.key is None:
        return None
    if options.cert is None or options.key is None:
        raise UserError("one is of no use without the other", key="--cert, --key", allowed="both or none")
    found = OwnCertificate(options.cert, options.key)
    if found.days_left < SOON_DAYS:
        when = f"expires in {found.days_left:.0f} days" if found.days_left >= 0 else INVALID
        log.warning("the certificate %s %s: renew it, unless members pin it", options.cert, when)
    return found


class Metrics:
    """`/metrics` in Prometheus' text format, on an address of its own."""

    def __init__(self, listen: str, server: RelayServer, transport: WebSocketTransport) -> None:
        self._address = parse_address(listen, "--metrics")
        self._server, self._transport = server, transport
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> None:
        app = web.Application()
        app.router.add_get("/metrics", self._answer)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, self._address.host, self._address.port).start()
        except OSError as error:
            await self._runner.cleanup()
            raise cannot_listen(self._address, error, "--metrics") from None

    async def __aexit__(self, *_: object) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _answer(self, _request: web.Request) -> web.Response:
        return web.Response(text=metrics_text(self._server, self._transport.doorway.turned_away))


def metrics_text(server: RelayServer, turned_away: int) -> str:
    """Return all figures; names of federations are those in the relay's own files."""
    lines = []
    for name, kind, means, value in (
        ("members", "gauge", "Members registered now.", lambda one: len(one.seats)),
        ("lines", "gauge", "Lines between two members that are open now.", lambda one: one.lines),
        ("held_bytes", "gauge", "Bytes that wait for a member to read them.", lambda one: one.held_bytes),
        ("passed_bytes_total", "counter", "Bytes passed on since the start.", lambda one: one.passed_bytes),
        ("month_bytes", "gauge", "Bytes passed on this month.", lambda one: one.month_bytes),
        ("lines_refused_total", "counter", "Lines that were not opened.", lambda one: one.refused),
    ):
        lines += [f"# HELP p2pfl_relay_{name} {means}", f"# TYPE p2pfl_relay_{name} {kind}"]
        for tenant in server.board.tenants.values():
            lines.append(f'p2pfl_relay_{name}{{federation="{tenant.name}"}} {value(tenant)}')
    lines += ["# HELP p2pfl_relay_refused_total Registrations refused.", "# TYPE p2pfl_relay_refused_total counter"]
    lines += [f'p2pfl_relay_refused_total{{reason="{why}"}} {n}' for why, n in sorted(server.refused.items())]
    for name, means, count in (
        ("faults_total", "Connections ended for what no member sends.", server.faults),
        ("turned_away_total", "Connections of strangers that were dropped.", turned_away),
    ):
        lines += [f"# HELP p2pfl_relay_{name} {means}", f"# TYPE p2pfl_relay_{name} counter"]
        lines.append(f"p2pfl_relay_{name} {count}")
    return "\n".join(lines) + "\n"
