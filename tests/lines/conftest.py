"""Certificates made at test time, a proxy that knows CONNECT, and nodes that talk over loopback."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import pytest
from nodes import Federation

NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


@dataclass(frozen=True, slots=True)
class Certificates:
    """Files in PEM: an authority, and certificates that it has signed, each `name.crt` with `name.key`."""

    folder: Path

    def cert(self, name: str) -> Path:
        return self.folder / f"{name}.crt"

    def key(self, name: str) -> Path:
        return self.folder / f"{name}.key"


@pytest.fixture(scope="session")
def certificates(tmp_path_factory):
    """`good` for localhost and 127.0.0.1, `other` for another name, `expired`; `authority` has signed all three."""
    if shutil.which("openssl") is None:
        pytest.skip("needs the program openssl, which makes the certificates of these tests")
    folder = tmp_path_factory.mktemp("certificates")

    def openssl(*words: object) -> None:
        subprocess.run(["openssl", *map(str, words)], cwd=folder, check=True, capture_output=True)

    signs = ("-addext", "keyUsage=critical,keyCertSign", "-subj", "/CN=a")  # which Python 3.13 asks for
    openssl("req", "-x509", *NEW_KEY, "-days", 30, "-keyout", "authority.key", "-out", "authority.crt", *signs)
    for name, host, days in (
        ("good", "DNS:localhost,IP:127.0.0.1", 30),
        ("other", "DNS:example.org", 30),
        ("expired", "DNS:localhost,IP:127.0.0.1", 0),
    ):
        openssl("req", "-new", *NEW_KEY, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        (folder / "names").write_text(f"subjectAltName={host}\nauthorityKeyIdentifier=keyid")
        signer = ("-CA", "authority.crt", "-CAkey", "authority.key", "-days", days, "-extfile", "names")
        openssl("x509", "-req", "-in", f"{name}.csr", *signer, "-out", f"{name}.crt")
    return Certificates(folder)


@pytest.fixture
def trusted(certificates, monkeypatch):
    """This machine trusts the authority."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates.cert("authority")))


@pytest.fixture
def federation() -> Federation:
    return Federation()


class ProxyOfTests:
    """A proxy that knows CONNECT. It answers `status` in place of connecting, or wants `credentials` (base64)."""

    def __init__(self, status: int = 200, credentials: str = "", tls: ssl.SSLContext | None = None) -> None:
        self.status, self.credentials, self._tls = status, credentials, tls
        self.asked: list[str] = []
        self.url = ""
        self._pumps: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, ssl=self._tls)
        self.url = f"{'http' if self._tls is None else 'https'}://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        place = head.split()[1]
        self.asked.append(place)
        status = 407 if self.credentials and f"Basic {self.credentials}\r\n" not in head else self.status
        writer.write(f"HTTP/1.1 {status} so it is\r\n\r\n".encode())
        if status != 200:
            writer.close()
            return
        # Names are resolved by the proxy, here always to this machine.
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", int(place.rpartition(":")[2]))
        for source, sink in ((reader, far_writer), (far_reader, writer)):
            self._pumps.add(asyncio.create_task(_pump(source, sink)))


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()
    except OSError:
        pass
    finally:
        sink.transport.abort()


@pytest.fixture
def proxy() -> type[ProxyOfTests]:
    return ProxyOfTests
