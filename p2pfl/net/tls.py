"""TLS around a line: how certificates of others are checked, and the own certificate of a node that listens with it.

TLS brings a line through proxies and firewalls. It proves nothing to p2pfl: the handshake inside does, so a certificate
that a node has made for itself and pins is as good as one that is bought.
"""

from __future__ import annotations

import hashlib
import logging
import ssl
import stat
import time
from contextlib import suppress
from pathlib import Path

from p2pfl.config.model import NodeConfig
from p2pfl.errors import UserError
from p2pfl.net.address import Address
from p2pfl.net.hurdles import EXPIRED, NOT_YET_VALID, Hurdle, UnreachedError

log = logging.getLogger("p2pfl.net")

LOOK_S = 60.0
"""How often a node looks whether its certificate was renewed."""
DAY_S = 86400.0
SOON_DAYS = 14.0


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
    found = fingerprint(connection.getpeercert(binary_form=True) or b"")
    if address.pin and found != address.pin:
        text = f"its certificate has sha256={found}, and another one is pinned in its address"
        remedy = "compare it with `p2pfl check` there: it was renewed, or something on the way opens TLS"
        raise UnreachedError(Hurdle.CERTIFICATE, text, remedy)


def fingerprint(certificate: bytes) -> str:
    """Return the SHA-256 of a certificate in DER, 64 hexadecimal digits."""
    return hashlib.sha256(certificate).hexdigest()


class OwnCertificate:
    """The certificate and key with which a node listens. Once renewed, they are read again."""

    def __init__(self, cert: Path, key: Path) -> None:
        """Read both files. Raises UserError if they cannot be used."""
        self.cert, self.key = cert, key
        self.context: ssl.SSLContext
        self.pin: str
        """The fingerprint of the certificate."""
        self.days_left: float
        """How long it is valid, by the clock of this machine; negative if it has expired or is not valid yet."""
        self._read_at = time.monotonic()
        self._state = self._times()
        self._read()

    def current(self) -> ssl.SSLContext:
        """Return the context; read a renewed certificate first. If the new one is not usable, the old one stays."""
        now = time.monotonic()
        if now - self._read_at >= LOOK_S:
            self._read_at = now
            try:
                if (times := self._times()) != self._state:
                    self._state = times
                    self._read()
            except UserError as error:
                log.warning("the renewed certificate is not used, the old one stays: %s", error)
        return self.context

    def _times(self) -> tuple[int, int]:
        """Return when the files were last changed; 0 for one that is not there."""
        found = [0, 0]
        for place, file in enumerate((self.cert, self.key)):
            with suppress(OSError):
                found[place] = file.stat().st_ctime_ns
        return found[0], found[1]

    def _read(self) -> None:
        """Read both files into a new context, so that a pair that does not fit spoils nothing."""
        try:
            mode = self.key.stat().st_mode
            if mode & stat.S_IRWXO:
                text, allowed = "others may read this secret key", f"chmod 600 {self.key}"
                raise UserError(text, file=self.key, value=f"mode {stat.S_IMODE(mode):o}", allowed=allowed)
            context = self._load()
            pem = self.cert.read_text(encoding="ascii", errors="replace")
            first = pem[pem.index("-----BEGIN CERTIFICATE-----") :].partition("-----END CERTIFICATE-----")
            der = ssl.PEM_cert_to_DER_cert(first[0] + first[1])
            days_left = _days_left(context, ssl.DER_cert_to_PEM_cert(der))
        except ssl.SSLError as error:
            raise self._not_usable(error.reason or "no PEM") from None
        except ValueError:
            raise self._not_usable("no block BEGIN CERTIFICATE") from None
        except OSError as error:
            raise UserError(f"cannot be read: {error.strerror}", file=error.filename or self.cert) from None
        self.context, self.pin, self.days_left = context, fingerprint(der), days_left

    def _not_usable(self, reason: str) -> UserError:
        text, allowed = f"not a certificate with its key: {reason}", "both in PEM, the key without password"
        return UserError(text, file=self.cert, key=str(self.key), allowed=allowed)

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION
        context.num_tickets = 0
        context.load_cert_chain(self.cert, self.key, password=_no_password)
        return context


def certificate_of(node: NodeConfig) -> OwnCertificate | None:
    """Return the certificate of a node, None if it has none. Raises UserError if it cannot be used."""
    own = node.network
    return None if own.cert is None or own.key is None else OwnCertificate(own.cert, own.key)


def _no_password() -> str:
    raise UserError("the key of the certificate has a password", allowed="a key without: openssl pkey -in KEY -out NEW")


def _days_left(server: ssl.SSLContext, certificate: str) -> float:
    """Shake hands in memory; return how many days the certificate is valid. Raises SSLError if nobody can."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.load_verify_locations(cadata=certificate)
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    ends = [ssl.MemoryBIO() for _ in range(4)]
    there = server.wrap_bio(ends[0], ends[1], server_side=True)
    here = client.wrap_bio(ends[2], ends[3])
    done = set[int]()
    try:
        while len(done) < 2:
            for number, end, out, into in ((0, here, ends[3], ends[0]), (1, there, ends[1], ends[2])):
                with suppress(ssl.SSLWantReadError):
                    end.do_handshake()
                    done.add(number)
                into.write(out.read())
    except ssl.SSLCertVerificationError as error:
        return -1.0 if error.verify_code in (EXPIRED, NOT_YET_VALID) else float("inf")
    parts = here.getpeercert() or {}
    return (ssl.cert_time_to_seconds(str(parts["notAfter"])) - time.time()) / DAY_S
