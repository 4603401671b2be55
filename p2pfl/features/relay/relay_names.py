"""The names of a relay: the part of its URL that a member signs, so that no relay can use that signature at another."""

from __future__ import annotations

from p2pfl.config.tables import USUAL_PORTS
from p2pfl.net.address import Address, parse_address


def name_dialed(address: Address) -> str:
    """Return the name under which a member dials a relay: host, port and path, whatever the scheme and the pin."""
    return f"{address.place.lower()}{address.path}"


def names_called(text: str) -> tuple[str, ...]:
    """Return the names that `--name` stands for: a URL, or one without its scheme, port or path.

    At the usual port of its scheme, a name may also lack the port. Raises UserError: it is neither.
    """
    address = parse_address(text if "://" in text else f"wss://{text}", "--name")
    name = name_dialed(address)
    port = f":{USUAL_PORTS['wss' if address.tls else 'ws']}"
    host, _, path = name.partition("/")
    return (name, f"{host.removesuffix(port)}/{path}") if host.endswith(port) else (name,)
