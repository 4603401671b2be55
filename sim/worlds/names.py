"""How a world file names nodes: by member name, by index from 0, or by a range of indices such as "0-9".

Where members are called by numbers that are not their indices, a number could mean two nodes: then only names count.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from p2pfl.config.tables import Mistakes

_INDEX = re.compile(r"[0-9]{1,9}")
_RANGE = re.compile(r"([0-9]{1,9})\s*-\s*([0-9]{1,9})")


class Names:
    """The members of a federation, in its order."""

    def __init__(self, names: Sequence[str]) -> None:
        self.count = len(names)
        self._index = {name: index for index, name in enumerate(names)}
        self.by_index = all(not name.isdigit() or int(name) == index for index, name in enumerate(names))
        some = f"a member's name ({names[0]} to {names[-1]})" if names else "nothing: there are no members"
        self.one = f"{some} or an index from 0 to {self.count - 1}" if self.by_index else some
        """what may name one node, in words."""
        ranges = (
            f', a range such as "0-{min(4, self.count - 1)}", or a list of these' if self.by_index else ", or a list"
        )
        self.allowed = self.one + ranges

    def read(self, value: Any, key: str, mistakes: Mistakes) -> tuple[int, ...]:
        """Indices, ascending, of what `value` names: a text (commas between parts), an index, or a list of these."""
        parts: list[Any] = value if isinstance(value, list) else [value]
        seen: set[int] = set()
        for part in parts:
            for word in part.split(",") if isinstance(part, str) else [part]:
                nodes = self.find(word)
                if not nodes:
                    shown = word if isinstance(word, str | int | float) else type(word).__name__
                    mistakes.add("no such node", key, _short(shown), self.allowed)
                    return ()
                repeated = seen.intersection(nodes)
                if repeated:
                    mistakes.add("names a node twice", key, _short(word), "each node once")
                    return ()
                seen.update(nodes)
        if not seen:
            mistakes.add("names no node", key, None, self.allowed)
        return tuple(sorted(seen))

    def find(self, word: object) -> Sequence[int]:
        """The indices that one word stands for; none if it is not understood."""
        if isinstance(word, str):
            word = word.strip()
            if word in self._index:
                return [self._index[word]]
            if not self.by_index:
                return []
            if _INDEX.fullmatch(word):
                return self._within(int(word), int(word))
            ends = _RANGE.fullmatch(word)
            return self._within(int(ends[1]), int(ends[2])) if ends else []
        if isinstance(word, int) and not isinstance(word, bool) and self.by_index:
            return self._within(word, word)
        return []

    def _within(self, first: int, last: int) -> Sequence[int]:
        return range(first, last + 1) if 0 <= first <= last < self.count else []


def _short(value: object) -> object:
    if isinstance(value, int) and value.bit_length() > 64:  # Python refuses to write out the longest
        return "a very large number"
    return value if len(str(value)) <= 100 else str(value)[:100] + "..."
