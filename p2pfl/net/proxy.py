"""HTTP proxies, through which a line goes by CONNECT, and the question which addresses are dialed through one.

A node file names a proxy, or the environment does (`HTTPS_PROXY` for wss://, `HTTP_PROXY` for other addresses, but for
those in `NO_PROXY`). Addresses of this machine or of a LAN are always dialed directly.
"""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import unquote

from p2pfl.config.tables import PROXY
from p2pfl.crypto.identity import read_private
from p2pfl.errors import UserError
from p2pfl.net.address import Address
from p2pfl.net.hurdles import Hurdle, UnreachedError

ANSWER_BYTES = 2**14
WANTS_PASSWORD, FORBIDDEN = (407, 401), 403
"""How proxies answer; tinyproxy says 401 to a password that is wrong."""
SCHEMES = re.compile(rb"\r\nproxy-authenticate:[ \t]*([a-z0-9-]+)", re.IGNORECASE)
SILENCE_S = 8.0
"""How long a proxy may be silent before it is named as what stands in the way; the whole dial has a little longer."""
log = logging.getLogger("p2pfl.net")


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
            raise UnreachedError(Hurdle.PROXY, f"the password for the proxy {self}: {error}") from None

    def judge(self, answer: bytes, address: Address) -> None:
        """Raises UnreachedError if the answer to the request is not that they are connected."""
        first = answer.split(b"\r\n", 1)[0].decode("ascii", errors="replace")
        found = re.match(r"HTTP/1\.[01] (\d{3})", first)
        if found is None:
            raise UnreachedError(Hurdle.PROXY, f"what answers at {self} is no HTTP proxy", "correct its address")
        match int(found[1]):
            case status if 200 <= status < 300:
                return
            case status if status in WANTS_PASSWORD:
                has_one = self.credentials or self.password_file is not None
                how = "refuses the user or the password" if has_one else "wants a user and a password"
                text = f"the proxy {self} {how} ({status})"
                remedy = "write user:password into the file that proxy_password_file names in node.toml"
                if (schemes := SCHEMES.findall(answer)) and b"basic" not in [one.lower() for one in schemes]:
                    text = f"the proxy {self} wants a password in a way that p2pfl does not know ({status})"
                    remedy = "ask its administrator for the way named Basic, or to let this machine through without"
            case status if status == FORBIDDEN:
                text = f"the proxy {self} forbids {address.place} (403)"
                remedy = f"its administrator must allow CONNECT to {address.place}; most allow port 443 only"
            case status:
                text = f"the proxy {self} does not reach {address.place} ({status})"
                remedy = "correct the address, or ask the proxy's administrator"
        raise UnreachedError(Hurdle.PROXY, text, remedy)


async def read_answer(reader: asyncio.StreamReader, proxy: Proxy, address: Address) -> None:
    """Read a proxy's answer to the request to be connected. Raises UnreachedError if they are not."""
    try:
        answer = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError) as ended:
        if isinstance(ended, asyncio.IncompleteReadError) and ended.partial:
            proxy.judge(ended.partial, address)
        text = f"the proxy {proxy} closed the connection in place of an answer for {address.place}"
        raise UnreachedError(Hurdle.PROXY, text, "correct the address, or ask the proxy's administrator") from None
    except asyncio.LimitOverrunError:
        raise UnreachedError(Hurdle.PROXY, f"what answers at {proxy} is no HTTP proxy", "correct its address") from None
    proxy.judge(answer, address)


def parse_proxy(text: str, credentials: str = "") -> Proxy:
    """Parse `http://host:port`, perhaps with `user:password@`. Raises ValueError."""
    found = PROXY.fullmatch(text if "://" in text else f"http://{text}")
    if found is None or int(found["port"] or 1) > 65535:
        raise ValueError("not the URL of an HTTP proxy")
    tls = found["scheme"] == "https"
    own = unquote(found["user"] or "")
    port = int(found["port"] or (443 if tls else 80))
    return Proxy(host=found["host"].strip("[]"), port=port, tls=tls, credentials=credentials or own)


@dataclass(frozen=True, slots=True, kw_only=True)
class Proxies:
    """The proxies of one process: `named` in the node file, or else those of the environment."""

    named: Proxy | None = None
    for_tls: Proxy | None = None
    for_plain: Proxy | None = None
    exempt: tuple[str, ...] = ()

    def of(self, address: Address) -> Proxy | None:
        """Return the proxy for an address; None if it is dialed directly."""
        if address.direct or is_near(address.host):
            return None
        if self.named is not None:
            return self.named
        if any(_matches(one, address) for one in self.exempt):
            return None
        return self.for_tls if address.tls else self.for_plain


def proxies_of(proxy: str | None, password_file: Path | None, environment: Mapping[str, str] | None = None) -> Proxies:
    """Return the proxies. `proxy` is the value in the node file: a URL, "none", or None if it names none.

    Raises UserError if the password file cannot be used.
    """
    if proxy == "none":
        return Proxies()
    if proxy is not None:
        if password_file is not None:
            _read_credentials(password_file)
        return Proxies(named=replace(parse_proxy(proxy), password_file=password_file))
    told = os.environ if environment is None else environment

    def lookup(*names: str) -> Proxy | None:
        for name in [case for each in names for case in (each, each.upper())]:
            if text := told.get(name, "").strip():
                try:
                    return parse_proxy(text)
                except ValueError:
                    log.warning("%s is not the URL of an HTTP proxy, such as http://proxy:3128: it is ignored", name)
        return None

    exempt = told.get("no_proxy") or told.get("NO_PROXY") or ""
    return Proxies(
        for_tls=lookup("https_proxy", "all_proxy"),
        for_plain=lookup("http_proxy", "all_proxy"),
        exempt=tuple(one for one in re.split(r"[,\s]+", exempt.lower()) if one),
    )


def _read_credentials(path: Path) -> str:
    text = read_private(path, "password").strip()
    if not re.fullmatch(r"[^:\s]+:\S.*", text):
        found = f"{len(text)} characters of something else"
        raise UserError("not a user and a password", file=path, value=found, allowed="one line, user:password")
    return text


def is_near(host: str) -> bool:
    """Return True for an address of this machine or of a private network, and for a name that only a LAN knows."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return "." not in host.rstrip(".") or host.rstrip(".").lower().endswith(".local")
    return not (getattr(address, "ipv4_mapped", None) or address).is_global


def _matches(entry: str, address: Address) -> bool:
    """Return True if an entry of NO_PROXY covers an address: `*`, a network, a domain, each perhaps with a port."""
    if entry == "*":
        return True
    try:
        network = ipaddress.ip_network(entry, strict=False)
    except ValueError:
        domain, colon, port = entry.rpartition(":")
        if not (colon and port.isdigit()):
            domain, port = entry, str(address.port)
        domain, host = domain.strip("[]").lstrip("*").lstrip("."), address.host.lower().rstrip(".")
        return port == str(address.port) and (host == domain or host.endswith(f".{domain}"))
    try:
        return ipaddress.ip_address(address.host) in network
    except ValueError:
        return False
