"""The tables of a TOML file: the allowed values of each key, and all mistakes in a file, in the file's order.

`p2pfl.specs` reads numbers, and the part after the name in a spec such as `trimmed-mean:b=1`.
"""

from __future__ import annotations

import base64
import difflib
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from p2pfl.errors import UserError
from p2pfl.foreign import read_file
from p2pfl.limits import MOST_CHARACTERS, MOST_KEY_PARTS, MOST_RELAYS
from p2pfl.specs import Kind, spelled

NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")
ADDRESS = re.compile(r"(?:\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9_][A-Za-z0-9_.-]*):(\d{1,5})")
URL = re.compile(
    r"(?P<scheme>wss?)://(?P<host>\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9_][A-Za-z0-9_.-]*)(?::(?P<port>\d{1,5}))?"
    r"(?P<path>/[A-Za-z0-9._~/-]{0,200})?(?:#sha256=(?P<pin>(?:[0-9A-Fa-f]{2}:?){31}[0-9A-Fa-f]{2}))?"
)
"""Matches the URL of a WebSocket. The pin is the SHA-256 of a certificate, as `openssl x509 -fingerprint` prints it."""
USUAL_PORTS = {"ws": 80, "wss": 443}
PROXY = re.compile(
    r"(?P<scheme>https?)://(?:(?P<user>[^@/\s]+)@)?"
    r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_][A-Za-z0-9_.-]*)(?::(?P<port>\d{1,5}))?/?"
)
HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,252}")
_PART = r"""(?:[A-Za-z0-9_-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')"""
_DEEP_KEY = re.compile(rf"""(?<![A-Za-z0-9_\\-]){_PART}(?:[ \t]*+\.[ \t]*+{_PART}){{{MOST_KEY_PARTS}}}""")
"""Matches a key with more parts, including anything in a string or comment that looks like one. It takes linear time,
because a match starts only at whole parts.
"""
_LONG_NUMBER = re.compile(r"0[xob][0-9A-Fa-f_]{4000}")
"""Matches a number that Python reads and refuses to write."""
MOST_GUESSES = 100
"""The most unknown keys per table for which a similar key is searched, because the search takes a while."""
GONE: Mapping[str, str] = {
    "gossip.memory": 'use compressor = "fragment:8" where memory is short',
    "training.control_variate": 'use method = "variate:beta=0.1"',
    "node.memory_mb": "`p2pfl check` says how much memory a node will take",
    "features": "write a package of your own under p2pfl/features: CONTRIBUTING.md",
    "data.reload_s": "restart the node, which reads its data and goes on",
    "network.share_addresses": "on one LAN use `discovery = true`; or list the address, if others can dial it",
    "network.neighbors": "max_kbit_s under [network] is for all neighbors together",
}
"""Keys of earlier versions, each with what to use instead."""


Kinds = Mapping[str, Kind]
REQUIRED: Any = MISSING
"""Marks a setting without a default in its class."""


ALWAYS, NAMED, CHANGED = "always", "named", "changed"


def setting(default: Any, kind: Kind, means: str, *, counts: str = ALWAYS) -> Any:
    """Declare a field that is a key of a file: its default, what is allowed, and its purpose, in one line without a
    full stop, for new files and the reference; and when it is part of what nodes must agree on (`charter.counting`).
    """
    return field(default=default, metadata={"kind": kind.key(means), "counts": counts})


def kinds_of(config: type[Any]) -> dict[str, Kind]:
    """Return the keys that a class declares by `setting`, in its order."""
    return {key.name: key.metadata["kind"] for key in fields(config) if "kind" in key.metadata}


@dataclass(frozen=True, slots=True)
class Mistakes:
    """The mistakes in one file."""

    file: Path
    errors: list[UserError] = field(default_factory=list)

    def add(self, message: str, key: str, value: object = None, allowed: str | None = None) -> None:
        self.errors.append(UserError(message, file=self.file, key=key, value=value, allowed=allowed))


def read_document(path: Path) -> dict[str, Any]:
    """Parse a TOML file. This is the only place that does, because files may come from others and the parser has no
    limits.

    Raises UserError: it cannot be read, is too large, or is not TOML; if a line is to blame, its file is `path:line`.
    """
    try:
        return parse_document(read_file(path, 4 * MOST_CHARACTERS).decode(), path)
    except UnicodeDecodeError:
        raise UserError("is not UTF-8 text", file=path) from None


def parse_document(text: str, path: Path) -> dict[str, Any]:
    """Parse the text of the TOML file `path`. Raises UserError: it is too large, or is not TOML."""
    _check_bounds(text, path)
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        line = re.search(r"at line (\d+)", str(error))
        raise UserError(f"not TOML: {error}", file=f"{path}:{line[1]}" if line else path) from None
    except (ValueError, RecursionError) as error:  # a number with thousands of digits, or endlessly nested brackets
        raise UserError(f"not TOML that can be read: {error}", file=path) from None


def _check_bounds(text: str, path: Path) -> None:
    if len(text) > MOST_CHARACTERS:
        raise UserError("is too large to be read", file=path, allowed=f"at most {MOST_CHARACTERS:,} characters")
    if long := _LONG_NUMBER.search(text):
        line = text.count("\n", 0, long.start()) + 1
        raise UserError("a number has too many digits", file=f"{path}:{line}", value=_brief(long[0]))
    if deep := _DEEP_KEY.search(text):
        line, key = text.count("\n", 0, deep.start()) + 1, _brief(deep[0])
        raise UserError(
            "a key has too many parts", file=f"{path}:{line}", value=key, allowed=f"at most {MOST_KEY_PARTS}"
        )


def unknown_keys(table: Mapping[str, Any], prefix: str, known: Iterable[str], mistakes: Mistakes) -> None:
    words, unknown = list(known), 0
    for key, value in table.items():
        if key not in words and prefix + key in GONE:
            mistakes.add(f"is gone: {GONE[prefix + key]}", prefix + key, _brief(value))
        elif key not in words:
            unknown += 1
            close = difflib.get_close_matches(key, words, n=1, cutoff=0.6) if unknown <= MOST_GUESSES else []
            meant = f"; did you mean {close[0]!r}?" if close else ""
            mistakes.add(f"unknown key{meant}", prefix + key, _brief(value), ", ".join(words))


def read_table(
    table: Any, prefix: str, kinds: Mapping[str, Kind], mistakes: Mistakes, *, whose: str = ""
) -> dict[str, Any]:
    """Read the valid values of a table. `prefix` ends in a dot; `whose` begins each message about a value."""
    if not isinstance(table, dict):
        mistakes.add("must be a table", prefix.rstrip("."), _brief(table), f"[{prefix.rstrip('.')}]")
        return {}
    unknown_keys(table, prefix, kinds, mistakes)
    values = {}
    for key, kind in kinds.items():
        if key in table:
            try:
                values[key] = kind.read(table[key])
            except ValueError as reason:
                simple = isinstance(table[key], str | int | float) and not isinstance(table[key], bool)
                message = whose + (str(reason) or ("impossible value" if simple else "wrong type"))
                mistakes.add(message, prefix + key, _brief(table[key]), kind.allowed)
    return values


def read_row(table: dict[str, Any], prefix: str, kinds: Mapping[str, Kind], mistakes: Mistakes) -> dict[str, Any]:
    """Read the valid values of a member's table; a message about one begins with the member's name."""
    require(table, prefix, ("name", "key"), kinds, mistakes)
    called = table.get("name")
    whose = f"{called}: " if isinstance(called, str) and NAME.fullmatch(called) else ""
    return read_table(table, prefix, kinds, mistakes, whose=whose)


def exclusive(table: Any, prefix: str, first: str, second: str, mistakes: Mistakes) -> None:
    """Refuse a table that has both of these keys."""
    if isinstance(table, dict) and first in table and second in table:
        mistakes.add(
            f"cannot be combined with {prefix}{first}", prefix + second, _brief(table[second]), "one of the two"
        )


def require(table: Any, prefix: str, keys: Iterable[str], kinds: Mapping[str, Kind], mistakes: Mistakes) -> None:
    for key in keys:
        if isinstance(table, dict) and key not in table:
            mistakes.add("is missing", prefix + key, None, kinds[key].allowed)


def _kind(allowed: str, **schema: Any) -> Callable[[Callable[[Any], Any]], Callable[[], Kind]]:
    """Make a kind of value from its reader, which raises ValueError, and its schema, by default that of a text."""
    return lambda read: lambda: Kind(allowed, read, schema or {"type": "string"})


@_kind("text")
def text(value: Any) -> str:
    """A kind of value: any text that is not empty."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError
    return value


def matching(pattern: re.Pattern[str], allowed: str) -> Kind:
    def read(value: Any) -> str:
        if not isinstance(value, str) or not pattern.fullmatch(value):
            raise ValueError
        return value

    return Kind(allowed, read, {"type": "string", "pattern": f"^({pattern.pattern})$"})


def name() -> Kind:
    """A kind of value: a node's name. It also names a folder, so it has no separator and no leading dot."""
    return matching(NAME, "1 to 64 of A-Z a-z 0-9 . _ -, not starting with a dot")


def choice(*words: str) -> Kind:
    kind = matching(re.compile("|".join(map(re.escape, words))), ", ".join(words))
    return replace(kind, schema={"type": "string", "enum": [*words]})


@_kind("true or false", type="boolean")
def flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError  # noqa: TRY004 - as of all kinds
    return value


def several(kind: Kind, allowed: str, *, least: int = 0, most: int = MOST_CHARACTERS, twice: str = "") -> Kind:
    """A kind of value: one text or a list, as a tuple. `twice` is the error if two are the same but for pins."""

    def read(value: Any) -> tuple[Any, ...]:
        values = [value] if isinstance(value, str) else value
        if not isinstance(values, list) or not least <= len(values) <= most:
            raise ValueError
        items = tuple(kind.read(each) for each in values)
        if twice and len({item.partition("#")[0] if isinstance(item, str) else item for item in items}) < len(items):
            raise ValueError(twice)
        return items

    return Kind(allowed, read, {"anyOf": [kind.schema, list_of(kind, least)]})


def list_of(kind: Kind, least: int = 0) -> Mapping[str, Any]:
    """Return the JSON Schema of a list of such values."""
    return {"type": "array", "items": kind.schema, "minItems": least}


def texts() -> Kind:
    """A kind of value: one string or a list of strings, none empty; the result is always a tuple."""

    def read(value: Any) -> str:
        if isinstance(value, str) and not value.strip():
            raise ValueError("an empty text")
        return str(text().read(value))

    return several(Kind("", read), "text, or a list of texts", least=1)


def hosts() -> Kind:
    """A kind of value: host names, possibly none, in lower case."""
    host = matching(HOST, "")
    lower = Kind("", lambda value: host.read(value).lower().rstrip("."))
    return several(lower, 'a name of this machine such as "pi1.local", or a list of them')


@_kind('the names of two neighbors, such as ["node0", "node1"]', type="array", minItems=2, maxItems=2)
def pair(value: Any) -> tuple[str, str]:
    """A kind of value: two different names."""
    if not isinstance(value, list) or len(value) != 2:
        raise ValueError
    first, second = (name().read(each) for each in value)
    if first == second:
        raise ValueError(f"{first} twice: an edge joins two nodes")
    return first, second


def address(least_port: int) -> Kind:
    def read(value: Any) -> str:
        match = ADDRESS.fullmatch(value) if isinstance(value, str) else None
        if not match or not least_port <= int(match[1]) <= 65535:
            raise ValueError
        host = str(value).rpartition(":")[0]
        bare = host.strip("[]")
        if not is_host(bare) or (bare != host) != (":" in bare):
            raise ValueError
        return str(value)

    return Kind(f'"host:port" with a port from {least_port} to 65535', read)


def member_address() -> Kind:
    """A kind of value: where a member is reached, by TCP or at the URL of a WebSocket."""
    plain = address(1)

    def read(value: Any) -> str:
        scheme, separator, rest = value.partition("://") if isinstance(value, str) else ("", "", "")
        if not separator:
            return str(plain.read(value))
        if scheme in ("http", "https"):
            right = without_password(f"{scheme.replace('http', 'ws')}://{rest[:80]}")
            raise ValueError(f"the scheme is ws or wss, not {scheme}: {right}")
        match = URL.fullmatch(value)
        if match is None or not is_host(match["host"].strip("[]")) or not 1 <= port_of(value) <= 65535:
            raise ValueError
        if match["pin"] and scheme == "ws":
            raise ValueError("a certificate is pinned, and ws:// has none: wss://")
        return str(value)

    return Kind(f'{plain.allowed}, or "wss://host:port/path", with "#sha256=..." to pin a certificate', read)


HOURS = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)")


@_kind('"HH:MM-HH:MM", such as "20:00-06:00"')
def hours(value: Any) -> str:
    """A kind of value: the hours from one time of day to another one, perhaps over midnight."""
    match = HOURS.fullmatch(value) if isinstance(value, str) else None
    if match is None or match[1] + match[2] == match[3] + match[4]:
        raise ValueError
    return str(value)


@_kind('"http://host:port", or "none"')
def proxy(value: Any) -> str:
    """A kind of value: the URL of an HTTP proxy, without a password, or "none"."""
    match = PROXY.fullmatch(value) if isinstance(value, str) else None
    if value == "none":
        return "none"
    if match is not None and match["user"]:
        raise ValueError("user and password belong in a file that proxy_password_file names")
    if match is None or not 1 <= int(match["port"] or 1) <= 65535:
        raise ValueError
    return str(value)


def port_of(address: str) -> int:
    """Return the port of a valid address."""
    match = URL.fullmatch(address)
    if match is None:
        return int(address.rpartition(":")[2])
    return int(match["port"] or USUAL_PORTS[match["scheme"]])


MOST_URL = 256


def relays() -> Kind:
    """A kind of value: the URLs of relays, none twice; the result is a tuple."""
    example = '"wss://relay.example.org/p2pfl", with "#sha256=..." to pin a certificate'
    allowed = f"a list of at most {MOST_RELAYS} URLs such as {example}"
    return several(Kind("", _read_relay), allowed, most=MOST_RELAYS, twice="a relay appears twice")


def _read_relay(value: Any) -> str:
    if isinstance(value, str) and value.startswith(("http://", "https://")):
        raise ValueError(f"a relay is at {without_password(f'ws{value[4:]}')}")
    if not isinstance(value, str) or "://" not in value:
        raise ValueError
    url, hash_sign, pin = str(member_address().read(value)).partition("#")
    if len(url) > MOST_URL:
        raise ValueError
    scheme, _, place = url.partition("://")
    return f"{scheme}://{place}{'' if '/' in place else RELAY_PATH}{hash_sign}{pin}"


RELAY_PATH = "/p2pfl"


def is_host(text: str) -> bool:
    """Return True if the text could be an IP address or a host name; the resolver decides whether it exists."""
    try:
        return bool(text.encode("idna")) and not set(text) & set("[]/\\@?#% \t\r\n")
    except UnicodeError:
        return False


def or_none(kind: Kind) -> Kind:
    """Extend `kind` by the word "none" for None."""
    words = f'{kind.allowed}, or "none"'
    return Kind(words, lambda value: None if value == "none" else kind.read(value), or_word(kind, "none"))


AUTO = "auto"


def or_auto(kind: Kind) -> Kind:
    """Extend `kind` by the word "auto"."""
    words = f'{kind.allowed}, or "{AUTO}"'
    return Kind(words, lambda value: value if value == AUTO else kind.read(value), or_word(kind, AUTO))


def or_word(kind: Kind, word: str) -> Mapping[str, Any]:
    """Return the JSON Schema of such a value, or of one word."""
    return {"anyOf": [kind.schema, {"type": "string", "enum": [word]}]}


PUBLIC_KEY = re.compile(r"[A-Za-z0-9_-]{43}")
PUBLIC_KEY_IN_WORDS = "the public key that `p2pfl key` prints, 43 characters"


@_kind(PUBLIC_KEY_IN_WORDS)
def public_key(value: Any) -> bytes:
    """A kind of value: a public key in base64url. Most typing errors do not yield a point on the curve."""
    from nacl.bindings import crypto_core_ed25519_is_valid_point  # noqa: PLC0415 - few files have keys

    if not isinstance(value, str) or not PUBLIC_KEY.fullmatch(value):
        raise ValueError
    try:
        public = from_text(value)
    except ValueError:
        public = b""
    if not public or not crypto_core_ed25519_is_valid_point(public):
        raise ValueError("not a valid key: it looks mistyped")
    return public


def public_keys() -> Kind:
    """A kind of value: at least one public key, none of them twice; the result is a tuple."""
    allowed = f"a list of public keys, each as {PUBLIC_KEY_IN_WORDS}"
    keys = several(public_key(), allowed, least=1, twice="a key appears twice")
    return Kind(allowed, lambda value: keys.read(None if isinstance(value, str) else value), list_of(public_key(), 1))


def _brief(value: Any) -> Any:
    """Shorten a value for one line of an error."""
    if isinstance(value, list) and value and all(isinstance(item, str) for item in value) and len(str(value)) <= 100:
        return value
    if isinstance(value, dict | list):
        return f"a {'table' if isinstance(value, dict) else 'list'} of {len(value)}"
    if isinstance(value, int) and value.bit_length() > 300:  # Python refuses to print longer integers
        return f"a whole number of {value.bit_length()} bits"
    if isinstance(value, str):
        value = without_password(value)
    return value if len(str(value)) <= 100 else str(value)[:100] + "..."


def without_password(text: str) -> str:
    """Return the text without the user and password of a URL: it is going to be shown."""
    return re.sub(r"(?<=://)[^/\s]*@", "...@", text)


def to_text(raw: bytes) -> str:
    """Write bytes in base64url without padding."""
    return base64.urlsafe_b64encode(raw).decode("ascii").rstrip("=")


def from_text(value: str) -> bytes:
    """Decode bytes. Raises ValueError: the text is not exactly what `to_text` writes for some bytes."""
    raw = base64.b64decode(value + "=" * (-len(value) % 4), altchars=b"-_", validate=True)
    if to_text(raw) != value:
        raise ValueError(value)
    return raw


def _spec(package: str, parse: str) -> Kind:
    """A spec that its own package defines, which is imported when a file has one."""

    def call(name: str, *arguments: str) -> Any:
        return getattr(import_module(package), name)(*arguments)

    return spelled(partial(call, "allowed"), partial(call, parse))


rule = partial(_spec, "p2pfl.aggregate", "parse_rule")
compressor = partial(_spec, "p2pfl.compress", "parse")
method = partial(_spec, "p2pfl.methods", "parse_method")
