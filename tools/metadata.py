"""The README and the addresses of a wheel or an sdist, as hatchling asks for them while it builds.

On the page of an index the README's links to files of this checkout lead nowhere. With `publisher` in pyproject.toml,
an address at which the project is published, they become absolute; without it their text stays, and pictures go.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?://|#)([^)]+)\)")


class Addresses(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        """Set `readme` and `urls`. Exits with a sentence: `publisher` is no address."""
        home = self.config.get("publisher", "")
        if not isinstance(home, str) or (home and not re.fullmatch(r"https://[^\s/]+/\S*[^\s/]", home)):
            allowed = 'allowed: an address such as "https://HOST/NAME/p2pfl", or "" for none'
            sys.exit(f"pyproject.toml: tool.hatch.metadata.hooks.custom.publisher is {home!r}; {allowed}")
        number, _, commit = metadata["version"].partition("+")
        place = commit.split(".")[0].removeprefix("g") if commit else f"v{number}"
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": absolute(text, home, place)}
        if home:
            pages = {"Documentation": "docs/index.md", "Changelog": "CHANGELOG.md", "Security": "SECURITY.md"}
            metadata["urls"] = {"Source": home} | {name: f"{home}/blob/{place}/{page}" for name, page in pages.items()}


def absolute(text: str, home: str, place: str) -> str:
    """Return a Markdown text whose relative links lead to files of the tag or commit `place` below `home`."""

    def link(found: re.Match[str]) -> str:
        picture, words, path = found.groups()
        if not home:
            return "" if picture else words
        return f"{picture}[{words}]({home}/{'raw' if picture else 'blob'}/{place}/{path})"

    return LINK.sub(link, text)
