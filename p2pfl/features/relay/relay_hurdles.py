"""What stands in the way to a relay, in words: those of `net.hurdles` are about nodes."""

from __future__ import annotations

from p2pfl.net.address import Address
from p2pfl.net.hurdles import Hurdle, UnreachedError


def at_relay(error: UnreachedError, address: Address) -> UnreachedError:
    """Return the reason why nothing was reached at the address of a relay."""
    text, remedy = error.text, error.remedy
    if error.hurdle is Hurdle.CERTIFICATE and address.pin and "pinned" in text:
        text = text.replace("in its address", "in [network] relays")
        remedy = (
            "compare it with what `p2pfl relay` logs at its start: it was renewed, or something on the way opens TLS"
        )
    elif error.hurdle is Hurdle.CERTIFICATE:
        remedy = remedy.replace("at the end of the address", "at the end of its URL")
    elif error.hurdle is Hurdle.NAME:
        remedy = "correct [network] relays, or the DNS of this machine"
    elif error.hurdle is Hurdle.NOT_A_NODE:
        text = text.replace("does not reach the node behind it", "does not reach the relay behind it")
        remedy = remedy.replace("start the node", "start the relay").replace("address", "URL")
    elif address.tls and ConnectionResetError.__name__ in text:
        text = text.replace(ConnectionResetError.__name__, "the connection was closed in place of TLS")
        remedy = "ws:// in place of wss://, if the relay has no certificate"
    elif not remedy:
        remedy = f"is the relay running, and does its firewall let port {address.port} in?"
    return UnreachedError(error.hurdle, text, remedy)
