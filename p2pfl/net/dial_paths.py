"""Paths to an address: directly or through an HTTP proxy, each from TCP to TLS. What comes after is the line's.

Failures say in words for a person why nothing was reached, and what to do about it. TLS brings a line through proxies
and firewalls. It proves nothing to p2pfl: the handshake inside does, so a certificate that a node has made for itself
and pins is as good as one that is bought.

A node file names a proxy, or for wss:// the environment does (`HTTPS_PROXY`, but for what is in `NO_PROXY`). Addresses
of this machine or of a LAN are always dialed directly.
"""

from __future__ import annotations

import asyncio
import base64
import errno
import hashlib
import ipaddress
import logging
import os
import re
import socket
import ssl
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from urllib.request import getproxies, proxy_bypass

import aiohttp

from p2pfl.config.model import NodeConfig
from p2pfl.config.tables import PROXY
from p2pfl.crypto.identity import read_private
from p2pfl.errors import UserError
from p2pfl.limits import PROXY_ANSWER_BYTES, PROXY_SILENCE_S
from p2pfl.net.address import Address
from p2pfl.net.transport import GoneError

SET_CLOCK = "set the clock of this machine (timedatectl set-ntp true)"
EXPIRED, NOT_YET_VALID, OTHER_NAMES, UNKNOWN_SIGNERS = 10, 9, (62, 64), (2, 18, 19, 20, 21, 27)
"""OpenSSL's codes for what is wrong with a certificate (`X509_V_ERR_...`)."""
BEHIND = (502, 503, 504)
"""The answers of a web server that does not reach the node behind it."""


NO_TLS = 400
"""The answer of a web server to a plain request where it expects TLS, among others."""


class DialError(Enum):
    """The reason why a dial reached nobody. A table shows its value."""

    NAME = "the name is unknown"
    REFUSED = "nothing listens on that port"
    SILENT = "no answer"
    PROXY = "the proxy does not let it through"
    CERTIFICATE = "its certificate is not accepted"
    NOT_A_NODE = "something other than p2pfl answers"


class UnreachedError(GoneError):
    """Nothing was reached. `remedy` says what to do; it is empty if that depends on what runs there."""

    def __init__(self, kind: DialError, text: str, remedy: str = "") -> None:
        super().__init__(f"{text}: {remedy}" if remedy else text)
        self.kind, self.text, self.remedy = kind, text, remedy


def of_socket(error: OSError, host: str, what: str = "") -> UnreachedError:
    """Return the reason why a TCP connection to `host` failed; `what` begins the text if it is not the member."""
    if isinstance(error, socket.gaierror):
        remedy = "correct the address, or the DNS of this machine"
        return UnreachedError(DialError.NAME, f"{what}the name {host} is unknown", remedy)
    text = what + (os.strerror(error.errno) if error.errno else str(error) or type(error).__name__)
    return UnreachedError(DialError.REFUSED if error.errno == errno.ECONNREFUSED else DialError.SILENT, text)


def of_tls(error: ssl.SSLError, host: str, whose: str = "its") -> UnreachedError:
    """Return the reason why TLS with `host` failed."""
    now = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    if not isinstance(error, ssl.SSLCertVerificationError):
        if error.reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNEXPECTED_MESSAGE", "PACKET_LENGTH_TOO_LONG"):
            text, remedy = "no TLS is spoken there", "ws:// or host:port in place of wss://, or a certificate there"
            return UnreachedError(DialError.CERTIFICATE, text, remedy)
        return UnreachedError(DialError.CERTIFICATE, f"TLS fails: {error.reason or type(error).__name__}")
    match error.verify_code:
        case code if code == EXPIRED:
            text = f"{whose} certificate has expired by the clock of this machine ({now})"
            remedy = f"renew it there; or, if that is not the time, {SET_CLOCK}"
        case code if code == NOT_YET_VALID:
            text = f"{whose} certificate is not valid yet by the clock of this machine ({now})"
            remedy = f"{SET_CLOCK}; or wait, if that is the time"
        case code if code in OTHER_NAMES:
            text, remedy = f"{whose} certificate is not for {host}", "use the name in it, or pin it: #sha256=..."
        case code if code in UNKNOWN_SIGNERS:
            text = f"{whose} certificate is signed by nobody whom this machine trusts"
            remedy = "pin it with #sha256=... at the end of the address, or add its authority to this machine"
        case _:
            text, remedy = f"{whose} certificate is not accepted ({error.verify_message})", "renew it there, or pin it"
    return UnreachedError(DialError.CERTIFICATE, text, remedy)


def of_answer(error: Exception) -> UnreachedError:
    """Return the reason why something that accepts connections is not a node."""
    if isinstance(error, aiohttp.WSServerHandshakeError):
        if error.status in BEHIND:
            text = f"the web server there does not reach the node behind it ({error.status})"
            return UnreachedError(
                DialError.NOT_A_NODE, text, "start the node, or correct the address in its configuration"
            )
        text = f"a web server answers {error.status} in place of a WebSocket"
        remedy = "is the path in the address right?"
        if error.status == NO_TLS:
            remedy = "wss:// if TLS is spoken there, or its configuration does not pass WebSockets on"
        return UnreachedError(DialError.NOT_A_NODE, text, remedy)
    remedy = "wss:// if TLS is spoken there; or another program has that port"
    if isinstance(error, aiohttp.ServerDisconnectedError | ConnectionResetError):
        return UnreachedError(DialError.NOT_A_NODE, "the connection was closed in place of an answer", remedy)
    if isinstance(error, aiohttp.ClientResponseError):  # its text quotes what came
        return UnreachedError(DialError.NOT_A_NODE, "what answers there does not speak HTTP", remedy)
    known = isinstance(error, OSError) and error.errno
    return UnreachedError(DialError.NOT_A_NODE, os.strerror(known) if known else type(error).__name__)


log = logging.getLogger("p2pfl.net")

LOOK_S = 60.0
"""How often a node looks whether its certificate was renewed."""


class Trust:
    """The contexts in which this process dials. The system's certificates are read once, when they are first needed."""

    def __init__(self) -> None:
        self._system: ssl.SSLContext | None = None
        self._pinned: ssl.SSLContext | None = None

    def context(self, pin: str) -> ssl.SSLContext:
        if not pin:
            self._system = self._system or ssl.create_default_context()
            return self._system
        if self._pinned is None:
            self._pinned = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            self._pinned.minimum_version = ssl.TLSVersion.TLSv1_2
            self._pinned.check_hostname = False
            self._pinned.verify_mode = ssl.CERT_NONE  # `require_pin` compares the certificate itself
        return self._pinned


def require_pin(address: Address, connection: ssl.SSLObject) -> None:
    """Raises UnreachedError if the certificate is not the pinned one."""
    digest = fingerprint(connection.getpeercert(binary_form=True) or b"")
    if address.pin and digest != address.pin:
        text = f"its certificate has sha256={digest}, and another one is pinned in its address"
        remedy = "compare it with `p2pfl check` there: it was renewed, or something on the way opens TLS"
        raise UnreachedError(DialError.CERTIFICATE, text, remedy)


def fingerprint(certificate: bytes) -> str:
    """Return the SHA-256 of a certificate in DER, 64 hexadecimal digits."""
    return hashlib.sha256(certificate).hexdigest()


class OwnCertificate:
    """The certificate and key with which a node listens. `pin` is the certificate's fingerprint at the start."""

    def __init__(self, cert: Path, key: Path) -> None:
        """Read both files. Raises UserError if they cannot be used."""
        self.cert, self.key = cert, key
        self._looked_at, self._changed_at = time.monotonic(), self._changes()
        try:
            mode = key.stat().st_mode
            if mode & stat.S_IRWXO:
                text, allowed = "others may read this secret key", f"chmod 600 {key}"
                raise UserError(text, file=key, value=f"mode {stat.S_IMODE(mode):o}", allowed=allowed)
            self.context = self._load()
            pem = cert.read_text(encoding="ascii", errors="replace")
            first = pem[pem.index("-----BEGIN CERTIFICATE-----") :].partition("-----END CERTIFICATE-----")
            self.pin = fingerprint(ssl.PEM_cert_to_DER_cert(first[0] + first[1]))
        except ssl.SSLError as error:
            raise self._not_usable(error.reason or "no PEM") from None
        except ValueError:
            raise self._not_usable("no block BEGIN CERTIFICATE") from None
        except OSError as error:
            raise UserError(f"cannot be read: {error.strerror}", file=error.filename or cert) from None

    def current(self) -> ssl.SSLContext:
        """Return the context; read a renewed certificate first. If the new one cannot be used, the old one stays."""
        if (now := time.monotonic()) - self._looked_at >= LOOK_S:
            before, self._looked_at, self._changed_at = self._changed_at, now, self._changes()
            try:
                if before != self._changed_at:
                    self.context = OwnCertificate(self.cert, self.key).context
            except UserError as error:
                log.warning("the renewed certificate is not used, the old one stays: %s", error)
        return self.context

    def _changes(self) -> list[int]:
        return [file.stat().st_ctime_ns if file.exists() else 0 for file in (self.cert, self.key)]

    def _not_usable(self, reason: str) -> UserError:
        text, allowed = f"not a certificate with its key: {reason}", "both in PEM, the key without password"
        return UserError(text, file=self.cert, key=str(self.key), allowed=allowed)

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_TICKET
        context.num_tickets = 0
        context.load_cert_chain(self.cert, self.key, password=_no_password)
        return context


def certificate_of(node: NodeConfig) -> OwnCertificate | None:
    """Return the certificate of a node, None if it has none. Raises UserError if it cannot be used."""
    own = node.network
    return None if own.cert is None or own.key is None else OwnCertificate(own.cert, own.key)


def _no_password() -> str:
    raise UserError("the key of the certificate has a password", allowed="a key without: openssl pkey -in KEY -out NEW")


WANTS_PASSWORD, FORBIDDEN = (407, 401), 403
"""How proxies answer; tinyproxy says 401 to a password that is wrong."""
SCHEMES = re.compile(rb"\r\nproxy-authenticate:[ \t]*([a-z0-9-]+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Proxy:
    host: str
    port: int
    tls: bool = False
    """True if the connection to the proxy itself is inside TLS."""
    credentials: str = field(default="", repr=False)
    """`user:password`; empty if it asks for none."""
    password_file: Path | None = None
    """The file with the credentials, which is read for each connection: passwords are renewed."""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}"

    def request(self, address: Address) -> bytes:
        """Return the request to be connected with an address. Raises UnreachedError if its password is gone."""
        lines = [f"CONNECT {address.place} HTTP/1.1", f"Host: {address.place}"]
        if own := self._own():
            lines.append("Proxy-Authorization: Basic " + base64.b64encode(own.encode()).decode())
        return "\r\n".join([*lines, "", ""]).encode()

    def _own(self) -> str:
        if self.password_file is None:
            return self.credentials
        try:
            return _read_credentials(self.password_file)
        except UserError as error:
            raise UnreachedError(DialError.PROXY, f"the password for the proxy {self}: {error}") from None

    def judge(self, answer: bytes, address: Address) -> None:
        """Raises UnreachedError if the answer to the request is not that they are connected."""
        first = answer.split(b"\r\n", 1)[0].decode("ascii", errors="replace")
        status_line = re.match(r"HTTP/1\.[01] (\d{3})", first)
        if status_line is None:
            raise UnreachedError(DialError.PROXY, f"what answers at {self} is no HTTP proxy", "correct its address")
        match int(status_line[1]):
            case status if 200 <= status < 300:
                return
            case status if status in WANTS_PASSWORD:
                has_one = self.credentials or self.password_file is not None
                how = "refuses the user or the password" if has_one else "wants a user and a password"
                text = f"the proxy {self} {how} ({status})"
                remedy = "write user:password into the file that proxy_password_file names in node.toml"
                if (schemes := SCHEMES.findall(answer)) and b"basic" not in [scheme.lower() for scheme in schemes]:
                    text = f"the proxy {self} wants a password in a way that p2pfl does not know ({status})"
                    remedy = "ask its administrator for the way named Basic, or to let this machine through without"
            case status if status == FORBIDDEN:
                text = f"the proxy {self} forbids {address.place} (403)"
                remedy = f"its administrator must allow CONNECT to {address.place}; most allow port 443 only"
            case status:
                text = f"the proxy {self} does not reach {address.place} ({status})"
                remedy = "correct the address, or ask the proxy's administrator"
        raise UnreachedError(DialError.PROXY, text, remedy)


async def read_answer(reader: asyncio.StreamReader, proxy: Proxy, address: Address) -> None:
    """Read a proxy's answer to the request to be connected. Raises UnreachedError if they are not."""
    try:
        answer = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError) as ended:
        if isinstance(ended, asyncio.IncompleteReadError) and ended.partial:
            proxy.judge(ended.partial, address)
        text = f"the proxy {proxy} closed the connection in place of an answer for {address.place}"
        raise UnreachedError(DialError.PROXY, text, "correct the address, or ask the proxy's administrator") from None
    except asyncio.LimitOverrunError:
        answer = b""  # no HTTP proxy says so much
    proxy.judge(answer, address)


def parse_proxy(text: str) -> Proxy:
    """Parse `http://host:port`, perhaps with `user:password@`. Raises ValueError."""
    match = PROXY.fullmatch(text if "://" in text else f"http://{text}")
    if match is None or int(match["port"] or 1) > 65535:
        raise ValueError("not the URL of an HTTP proxy")
    tls = match["scheme"] == "https"
    port = int(match["port"] or (443 if tls else 80))
    return Proxy(host=match["host"].strip("[]"), port=port, tls=tls, credentials=unquote(match["user"] or ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class Proxies:
    """The proxies of one process: `named` in the node file, or else that of the environment, for TLS alone."""

    named: Proxy | None = None
    for_tls: Proxy | None = None

    def of(self, address: Address) -> Proxy | None:
        """Return the proxy for an address; None if it is dialed directly."""
        if address.direct or is_near(address.host):
            return None
        if self.named is not None:
            return self.named
        return self.for_tls if address.tls and not proxy_bypass(address.place) else None


def proxies_of(proxy: str | None, password_file: Path | None) -> Proxies:
    """Return the proxies. `proxy` is the value in the node file: a URL, "none", or None if it names none.

    Raises UserError if the password file cannot be used.
    """
    if proxy == "none":
        return Proxies()
    if proxy is not None:
        if password_file is not None:
            _read_credentials(password_file)
        return Proxies(named=replace(parse_proxy(proxy), password_file=password_file))
    urls = getproxies()
    if not (text := urls.get("https") or urls.get("all")):
        return Proxies()
    try:
        return Proxies(for_tls=parse_proxy(text))
    except ValueError:
        log.warning("HTTPS_PROXY is not the URL of an HTTP proxy, such as http://proxy:3128: it is ignored")
        return Proxies()


def _read_credentials(path: Path) -> str:
    text = read_private(path, "password").strip()
    if not re.fullmatch(r"[^:\s]+:\S.*", text):
        content = f"{len(text)} characters of something else"
        raise UserError("not a user and a password", file=path, value=content, allowed="one line, user:password")
    return text


def is_near(host: str) -> bool:
    """Return True for an address of this machine or of a private network, and for a name that only a LAN knows."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return "." not in host.rstrip(".") or host.rstrip(".").lower().endswith(".local")
    return not (getattr(address, "ipv4_mapped", None) or address).is_global


NEXT_ADDRESS_S = 1.0
"""When one of a host's addresses has not answered for this long, the next one is tried."""
GOODBYE_S = 1.0
"""How long the end of TLS may take."""

MakeProtocol = Callable[[], asyncio.Protocol]


async def _open(host: str, port: int, protocol: asyncio.Protocol, tls: dict[str, Any]) -> asyncio.Transport:
    connected = await _connect(host, port)
    loop = asyncio.get_running_loop()
    try:
        transport, _ = await loop.create_connection(lambda: protocol, sock=connected, **tls)
    except BaseException:
        connected.close()
        raise
    return transport


async def _connect(host: str, port: int) -> socket.socket:
    """Return a socket connected to the first address of a host that answers. A further one is tried beside the earlier
    ones, whose answers may only be slow. Raises OSError.

    asyncio's own race between the addresses leaves sockets open when it is cancelled.
    """
    loop = asyncio.get_running_loop()
    places = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    failed: OSError = socket.gaierror(socket.EAI_NONAME, "no address")
    trying = set[asyncio.Task[socket.socket]]()
    try:
        while places or trying:
            if places:
                trying.add(loop.create_task(_reach(*places.pop(0))))
            patience_s = NEXT_ADDRESS_S if places else None
            await asyncio.wait(trying, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
            for task in [task for task in trying if task.done()]:
                trying.discard(task)
                try:
                    return task.result()
                except OSError as error:
                    failed = failed if isinstance(failed, ConnectionRefusedError) else error
    finally:
        for task in trying:
            task.add_done_callback(_close)
            task.cancel()
    raise failed


def _close(task: asyncio.Task[socket.socket]) -> None:
    if not task.cancelled() and task.exception() is None:
        task.result().close()


async def _reach(family: int, kind: int, protocol: int, _: str, place: Any) -> socket.socket:
    raw = socket.socket(family, kind, protocol)
    try:
        raw.settimeout(0.0)
        await asyncio.get_running_loop().sock_connect(raw, place)
    except BaseException:
        raw.close()
        raise
    return raw


@dataclass(frozen=True, slots=True)
class Outlet:
    """The proxies by which one process dials, and whom it trusts."""

    proxies: Proxies = field(default_factory=lambda: proxies_of(None, None))
    trust: Trust = field(default_factory=Trust)

    async def connect(self, address: Address, make: MakeProtocol) -> asyncio.Protocol:
        """Return the protocol that `make` makes, connected. The caller sets the deadline. Raises UnreachedError."""
        protocol, proxy = make(), self.proxies.of(address)
        try:
            if proxy is None:
                transport = await _open(address.host, address.port, protocol, self._tls(address))
            else:
                transport = await self._through(proxy, address, protocol)
        except ssl.SSLError as error:
            raise of_tls(error, address.host) from None
        except OSError as error:
            raise of_socket(error, address.host) from None
        if address.tls:
            try:
                require_pin(address, transport.get_extra_info("ssl_object"))
            except UnreachedError:
                transport.abort()
                raise
        return protocol

    def _tls(self, address: Address) -> dict[str, Any]:
        if not address.tls:
            return {}
        name = address.host.rstrip(".")
        return {"ssl": self.trust.context(address.pin), "server_hostname": name, "ssl_shutdown_timeout": GOODBYE_S}

    async def _through(self, proxy: Proxy, address: Address, protocol: asyncio.Protocol) -> asyncio.Transport:
        transport, settings = await self._tunnel(proxy, address), self._tls(address)
        if not settings:
            transport.set_protocol(protocol)
            protocol.connection_made(transport)
            return transport
        context = settings.pop("ssl")
        try:
            inside = await asyncio.get_running_loop().start_tls(transport, protocol, context, **settings)
        except BaseException:
            transport.abort()
            raise
        if inside is None:  # it was lost at once
            raise UnreachedError(DialError.NOT_A_NODE, "the connection was closed in place of an answer")
        protocol.connection_made(inside)
        return inside

    async def _tunnel(self, proxy: Proxy, address: Address) -> asyncio.Transport:
        """Return a connection with the address through the proxy."""
        request, reader = proxy.request(address), asyncio.StreamReader(limit=PROXY_ANSWER_BYTES)
        tls = self._tls(Address(proxy.host, proxy.port, tls=proxy.tls))
        transport: asyncio.Transport | None = None
        try:
            async with asyncio.timeout(PROXY_SILENCE_S):
                transport = await _open(proxy.host, proxy.port, asyncio.StreamReaderProtocol(reader), tls)
                transport.write(request)
                await read_answer(reader, proxy, address)
        except BaseException as error:
            if transport is not None:
                transport.abort()
            match error:
                case TimeoutError():
                    text, remedy = f"the proxy {proxy} does not answer", "correct its address, or ask who runs it"
                    raise UnreachedError(DialError.PROXY, text, remedy) from None
                case ssl.SSLError():
                    cause = of_tls(error, proxy.host, f"the proxy {proxy}: its")
                    raise UnreachedError(DialError.PROXY, cause.text, cause.remedy) from None
                case OSError():
                    cause = of_socket(error, proxy.host, f"the proxy {proxy} does not answer: ")
                    remedy = "correct the proxy's address, or ask who runs it"
                    raise UnreachedError(DialError.PROXY, cause.text, remedy) from None
            raise
        return transport


def outlet_of(node: NodeConfig) -> Outlet:
    """Return how a node dials. Raises UserError if the file with the proxy's password cannot be used."""
    return Outlet(proxies_of(node.network.proxy, node.network.proxy_password_file))
