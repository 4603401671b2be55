"""Why nothing was reached at an address, in words for a person, with what to do about it."""

from __future__ import annotations

import errno
import os
import socket
import ssl
import time
from enum import Enum

import aiohttp

from p2pfl.net.line import GoneError

SET_CLOCK = "set the clock of this machine (timedatectl set-ntp true)"
EXPIRED, NOT_YET_VALID, OTHER_NAMES, UNKNOWN_SIGNERS = 10, 9, (62, 64), (2, 18, 19, 20, 21, 27)
"""OpenSSL's codes for what is wrong with a certificate (`X509_V_ERR_...`)."""
BEHIND = (502, 503, 504)
"""The answers of a web server that does not reach the node behind it."""


NO_TLS = 400
"""The answer of a web server to a plain request where it expects TLS, among others."""


class Hurdle(Enum):
    """What stood in the way. The value is how a table shows it."""

    NAME = "the name is unknown"
    REFUSED = "nothing listens on that port"
    SILENT = "no answer"
    PROXY = "the proxy does not let it through"
    CERTIFICATE = "its certificate is not accepted"
    NOT_A_NODE = "something other than p2pfl answers"


class UnreachedError(GoneError):
    """Nothing was reached. `remedy` says what to do; it is empty if that depends on what runs there."""

    def __init__(self, hurdle: Hurdle, text: str, remedy: str = "") -> None:
        super().__init__(f"{text}: {remedy}" if remedy else text)
        self.hurdle, self.text, self.remedy = hurdle, text, remedy


def of_socket(error: OSError, host: str, what: str = "") -> UnreachedError:
    """Return the reason why a TCP connection to `host` failed; `what` begins the text if it is not the member."""
    if isinstance(error, socket.gaierror):
        remedy = "correct the address, or the DNS of this machine"
        return UnreachedError(Hurdle.NAME, f"{what}the name {host} is unknown", remedy)
    text = what + (os.strerror(error.errno) if error.errno else str(error) or type(error).__name__)
    return UnreachedError(Hurdle.REFUSED if error.errno == errno.ECONNREFUSED else Hurdle.SILENT, text)


def of_tls(error: ssl.SSLError, host: str, whose: str = "its") -> UnreachedError:
    """Return the reason why TLS with `host` failed."""
    now = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    if not isinstance(error, ssl.SSLCertVerificationError):
        if error.reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNEXPECTED_MESSAGE", "PACKET_LENGTH_TOO_LONG"):
            text, remedy = "no TLS is spoken there", "ws:// or host:port in place of wss://, or a certificate there"
            return UnreachedError(Hurdle.CERTIFICATE, text, remedy)
        return UnreachedError(Hurdle.CERTIFICATE, f"TLS fails: {error.reason or type(error).__name__}")
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
    return UnreachedError(Hurdle.CERTIFICATE, text, remedy)


def of_answer(error: Exception) -> UnreachedError:
    """Return the reason why something that accepts connections is not a node."""
    if isinstance(error, aiohttp.WSServerHandshakeError):
        if error.status in BEHIND:
            text = f"the web server there does not reach the node behind it ({error.status})"
            return UnreachedError(
                Hurdle.NOT_A_NODE, text, "start the node, or correct the address in its configuration"
            )
        text = f"a web server answers {error.status} in place of a WebSocket"
        remedy = "is the path in the address right?"
        if error.status == NO_TLS:
            remedy = "wss:// if TLS is spoken there, or its configuration does not pass WebSockets on"
        return UnreachedError(Hurdle.NOT_A_NODE, text, remedy)
    remedy = "wss:// if TLS is spoken there; or another program has that port"
    if isinstance(error, aiohttp.ServerDisconnectedError | ConnectionResetError):
        return UnreachedError(Hurdle.NOT_A_NODE, "the connection was closed in place of an answer", remedy)
    if isinstance(error, aiohttp.ClientResponseError):  # its text quotes what came
        return UnreachedError(Hurdle.NOT_A_NODE, "what answers there does not speak HTTP", remedy)
    known = isinstance(error, OSError) and error.errno
    return UnreachedError(Hurdle.NOT_A_NODE, os.strerror(known) if known else type(error).__name__)
