"""Specs in configuration files, each declared once, next to its code: `@RULES.add(name="hampel", ...)`.

An `Entry` has a name, aliases, parameters, a meaning and a source; a `Catalog` has all entries of one kind. Parsers,
error messages and listings are derived from them. A parameter's default is that of the code's argument, unless the
entry specifies another.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from inspect import Parameter as Argument
from inspect import signature
from typing import Any, Final, Generic, TypeVar

LARGEST = 2**63 - 1
SAFE = 1e300
OBJECT = re.compile(r"(?:[^:,=+\s]+\.py|[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):[A-Za-z_]\w*")
"""Matches `file.py:object` or `package.module:object`."""
_KEY = re.compile(r"[A-Za-z_]\w{0,60}")
_WHOLE = re.compile(r"-?[0-9]{1,20}")
_NUMBER = re.compile(r"-?[0-9]{1,20}(?:\.[0-9]{1,20})?(?:e[+-]?[0-9]{1,3})?")
_LONGEST = 60
_ALIKE = 0.65
"""The similarity that a misspelled word and a name must have for a hint."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The range from `least` to `most`; `above` and `below` exclude the ends."""

    least: float
    most: float
    above: bool = False
    below: bool = False

    def hold(self, value: float) -> bool:
        low = self.least < value if self.above else self.least <= value
        return low and (value < self.most if self.below else value <= self.most)

    def schema(self, kind: str) -> Mapping[str, Any]:
        ends = {
            "exclusiveMinimum" if self.above else "minimum": self.least,
            "exclusiveMaximum" if self.below else "maximum": self.most,
        }
        return {"type": kind, **{key: end for key, end in ends.items() if abs(end) < LARGEST}}


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of value: a description of what is allowed, or a function that returns it, and a reader that raises
    ValueError otherwise.

    The error has the reason if the description does not explain it; the caller adds file and key.
    """

    words: str | Callable[[], str]
    read: Callable[[Any], Any]
    schema: Mapping[str, Any] = field(default_factory=lambda: {"type": "string"}, compare=False)
    """A JSON Schema of the values in a file: as strict as that can say, and never stricter than `read`."""
    means: str = ""
    """The purpose of a key in a file, in one line without a full stop, for new files and the reference."""

    def key(self, means: str) -> Kind:
        """Return the same kind, as the value of a key with this purpose."""
        return replace(self, means=means)

    @property
    def allowed(self) -> str:
        return self.words if isinstance(self.words, str) else self.words()


def whole(least: int, most: int = LARGEST) -> Kind:
    bounds = Bounds(least, most)

    def read(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not bounds.hold(value):
            raise ValueError
        return value

    words = f"a whole number from {least}" + (f" to {most}" if most < LARGEST else "")
    return Kind(words, read, bounds.schema("integer"))


def number(least: float, most: float = math.inf, *, above: bool = False, below: bool = False) -> Kind:
    """A finite number within `Bounds`. The result is always a float."""
    bounds = Bounds(least, most, above, below)

    def read(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > SAFE or not bounds.hold(value):
            raise ValueError
        return float(value)

    low = f"a number above {least:g}" if above else f"a number from {least:g}"
    high = "" if math.isinf(most) else f", below {most:g}" if below else f" up to {most:g}"
    return Kind(low + high, read, bounds.schema("number"))


ANY_NUMBER = number(-1e30, 1e30)


def spelled(words: str | Callable[[], str], parse: Callable[[str], object]) -> Kind:
    """A spec in a file. The result is its canonical spelling: `str` of the parsed spec."""

    def read(value: Any) -> str:
        if not isinstance(value, str):
            raise ValueError("not a text")  # noqa: TRY004 - a reader has one way to refuse
        return str(parse(value))

    return Kind(words, read)


USUAL: Final = object()
"""Marks the default of the code's argument."""
MISSING: Final = Argument.empty
"""Marks a parameter without a default, which is required."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter `key=value` in a spec. By default it has the default of the code's argument; None means that the code
    chooses a value.
    """

    name: str
    kind: Kind
    means: str
    default: Any = USUAL
    argument: str = ""
    """The name of the argument in the code; by default the parameter's name in lower case."""

    @property
    def in_words(self) -> str:
        default = "" if self.default in (None, MISSING) else f"={self.default:g}"
        return f"{self.name}{default} ({self.kind.allowed}): {self.means}"

    def bound(self, arguments: Mapping[str, Argument]) -> Parameter:
        argument = self.argument or self.name.lower()
        default = arguments[argument].default if self.default is USUAL else self.default
        return replace(self, argument=argument, default=default)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A name that a spec may use: how it is written, what it means, and where it comes from."""

    name: str
    means: str
    """A one-line description of what it does."""
    source: str = ""
    """The paper."""
    written: str = ""
    """The spelling, if it is more than the name, such as `top-k:X`."""
    aliases: tuple[str, ...] = ()
    """Other names for it, used for hints: lower-case letters and digits only."""
    parameters: tuple[Parameter, ...] = ()
    example: str = ""
    """A complete spec; by default the name with its parameters' defaults."""
    place: int = 0
    """Its position in lists: lower ones come first."""
    made: Callable[..., Any] = field(default=dict, repr=False)
    """The class or function itself. The catalog sets this."""

    @property
    def settings(self) -> str:
        """Return the part after the colon in a spec that shows all parameters, such as `momentum=0.5,rate=0.7`."""
        if self.example:
            return self.example.partition(":")[2]
        defaults = {param.name: param.default for param in self.parameters if param.default not in (None, MISSING)}
        return ",".join(f"{key}={value:g}" for key, value in defaults.items())

    @property
    def shown(self) -> str:
        """Return a spec that shows what may be written."""
        return self.example or ":".join(filter(None, (self.name, self.settings)))

    @property
    def usage(self) -> str:
        """Return how it is written with positional parameters: `hinge:A,B`, or `constant[:C]` if there is a default."""
        if not self.parameters:
            return self.name
        tail = ":" + ",".join(parameter.name for parameter in self.parameters)
        return self.name + (tail if any(parameter.default is MISSING for parameter in self.parameters) else f"[{tail}]")

    @property
    def hints(self) -> Mapping[str, str]:
        """Return what to write instead of each alias."""
        return dict.fromkeys(self.aliases, self.written or self.name)

    @property
    def in_words(self) -> str:
        """Describe each parameter: its default, what is allowed, and what it means; empty if there are none."""
        return "; ".join(parameter.in_words for parameter in self.parameters)

    def make(self, values: Mapping[str, Any]) -> Any:
        """Return the object that a spec with these values denotes."""
        return self.made(**{parameter.argument: values[parameter.name] for parameter in self.parameters})

    def checked(self, **values: float) -> None:
        """Check the arguments of direct calls too, as strictly as a spec's. Raises ValueError."""
        for key in self.parameters:
            if key.argument in values:
                try:
                    key.kind.read(values[key.argument])
                except ValueError:
                    raise ValueError(f"{key.argument} is {key.kind.allowed}, not {values[key.argument]!r}") from None


E = TypeVar("E", bound=Entry)
Made = TypeVar("Made", bound=Callable[..., Any])


class Catalog(Mapping[str, E], Generic[E]):
    """All entries of one kind by name; `what` is the word for this kind, `gone` says what to use in place of names that
    the version before had.
    """

    def __init__(self, what: str, kind: type[E], gone: Mapping[str, str] | None = None) -> None:
        self.what, self.kind, self.gone = what, kind, gone or {}
        self.entries: dict[str, E] = {}

    def add(self, kind: type[E] | None = None, /, **fields: Any) -> Callable[[Made], Made]:
        """Return a decorator for the class or function that an entry with these fields describes."""

        def put(made: Made) -> Made:
            entry = (kind or self.kind)(made=made, **fields)
            if entry.parameters:
                arguments = signature(made).parameters
                entry = replace(entry, parameters=tuple(parameter.bound(arguments) for parameter in entry.parameters))
            self.entries[entry.name] = entry
            return made

        return put

    def __getitem__(self, name: str) -> E:
        return self.entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self.entries, key=lambda name: self.entries[name].place))

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def usages(self) -> str:
        """Describe all entries, with positional parameters."""
        return ", ".join(entry.usage for entry in self.values()) + _where(
            parameter for entry in self.values() for parameter in entry.parameters
        )

    def require(self, word: str, text: str | None = None, besides: Mapping[str, Entry] | None = None) -> E:
        """Return the entry with this name. Raises ValueError: there is none; the error says what to use instead,
        suggests a similar name, or lists all.

        Suggestions may include the entries `besides`. `text` is shown instead of the word.
        """
        if word in self.entries:
            return self.entries[word]
        if instead := self.gone.get(word.lower()):
            raise ValueError(f"the {self.what} {word} is gone: use {instead}")
        meant: list[Entry] = [*self.values(), *(besides or {}).values()]
        hints = {alias: hint for entry in meant for alias, hint in entry.hints.items()}
        near = hints.get("".join(filter(str.isalnum, word.lower())))
        if not near:
            close = get_close_matches(word[:_LONGEST].strip().lower(), self.entries, n=1, cutoff=_ALIKE)
            near = close[0] if close else ""
        hint = f"did you mean {near}?" if near else f"there are {', '.join(self)}"
        raise ValueError(f"unknown {self.what} {short(word if text is None else text)!r}: {hint}")

    def read(self, text: str) -> tuple[E, dict[str, Any]]:
        """Return the entry and all values of `NAME[:key=value,...]`. Raises ValueError, which says what is valid."""
        name, colon, rest = text.partition(":")
        entry = self.require(name)
        return entry, read_parameters(name, rest if colon else None, entry.parameters, example=entry.settings)

    def read_by_place(self, text: str) -> tuple[E, list[float]]:
        """Return the entry and all values of `NAME[:X,...]`. Raises ValueError, which says what would be valid."""
        name, colon, rest = text.partition(":")
        entry = self.require(name)
        try:
            values = [float(part) for part in rest.split(",")] if colon else []
            values += [parameter.default for parameter in entry.parameters[len(values) :]]
            numbers = [parameter.kind.read(value) for parameter, value in zip(entry.parameters, values, strict=True)]
        except ValueError:
            raise ValueError(f"{self.what} {name}: write {entry.usage}{_where(entry.parameters)}") from None
        return entry, numbers

    def own(self, text: str) -> tuple[str, str | None] | None:
        """Return the name of a user's own object and the part after its comma, or None if it names none."""
        name, comma, rest = text.partition(",")
        if not OBJECT.fullmatch(name) or name.partition(":")[0] in self.entries:
            return None
        return name, rest if comma else None


def _where(parameters: Iterable[Parameter]) -> str:
    """Describe the values that each parameter may have."""
    kinds = {parameter.name: parameter.kind.allowed for parameter in parameters}
    return "".join(f", {name} {allowed}" for name, allowed in kinds.items())


def read_parameters(
    name: str, text: str | None, parameters: tuple[Parameter, ...] | None, *, example: str = ""
) -> dict[str, float | None]:
    """Return all values from the text after the colon; `text` is None if there is no colon, `parameters` if they are
    those of an object that has not been imported yet.

    Raises ValueError, which names the word, what is wrong with it and what would be valid.
    """
    kinds = {param.name: param.kind for param in parameters or ()}
    values: dict[str, float | None] = {}
    for part in [] if text is None else text.split(","):
        key, equals, value = part.partition("=")
        if parameters is None:
            if not equals or not _KEY.fullmatch(key):
                raise ValueError(f"{short(name)}: {short(part)!r} is not a parameter: write key=number")
        elif key not in kinds or not equals:
            known = f"none of its parameters {', '.join(kinds)}, as in {example}" if kinds else "there: it takes none"
            raise ValueError(f"{short(name)}: {short(part)!r} is {known}")
        if key in values:
            raise ValueError(f"{short(name)}: {key} appears twice")
        values[key] = read_number(f"{short(name)}: {short(part)}", kinds.get(key, ANY_NUMBER), value)
    return values if parameters is None else {param.name: values.get(param.name, param.default) for param in parameters}


def read_number(part: str, kind: Kind, text: str) -> float:
    """Parse a number as written in a spec. Raises ValueError, which names `part` and what to write."""
    if not _NUMBER.fullmatch(text):
        raise ValueError(f"{part}: write {kind.allowed}")
    try:
        return kind.read(int(text) if _WHOLE.fullmatch(text) else float(text))  # type: ignore[no-any-return]
    except ValueError:
        raise ValueError(f"{part}: write {kind.allowed}") from None


def short(text: str) -> str:
    """Shorten a text for a one-line message."""
    plain = "".join(letter if letter.isprintable() else "?" for letter in text[: _LONGEST + 1])
    return plain if len(plain) <= _LONGEST else plain[: _LONGEST - 3] + "..."
