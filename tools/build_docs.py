"""Build the site from docs/ with zensical, for `make docs`. Every mistake in a page is reported in one sentence.

    python tools/build_docs.py              the site, in docs-out/
    python tools/build_docs.py --check      only looks at pages, links and zensical.toml, without zensical

The reference pages that docs/reference_pages.py generates from the program are added to the ones in docs/.

zensical itself reports broken links. This script checks what zensical accepts: pages that the navigation does not list,
links to files that the site does not have, and anything that a reader's browser would fetch from another host.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from html.parser import HTMLParser
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).parents[1]
BUILDER = "zensical"
GENERATOR = "docs/reference_pages.py"
FETCHED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "link": "href"}
"""Attributes whose address a browser fetches when it opens the page."""
NOT_FETCHED = {"canonical", "next", "prev", "alternate"}
"""Values of rel for which a browser does not fetch the address of a <link>."""
ELSEWHERE = re.compile(r"(?:[a-z][a-z0-9+.-]*:)?//", re.IGNORECASE)


class DocsError(Exception):
    """A mistake that a writer or builder of the pages can correct."""


def configuration(root: Path) -> dict:
    """Read the `[project]` table of zensical.toml. Raises DocsError if `root` is not a checkout."""
    for name in ("zensical.toml", "docs/index.md"):
        if not (root / name).is_file():
            raise DocsError(f"{root} has no {name}: the docs can be built in a checkout of p2pfl only")
    return tomllib.loads((root / "zensical.toml").read_text(encoding="utf-8"))["project"]


def pages_in_navigation(nav: list) -> list[str]:
    """Return all pages below `nav`, in order."""
    pages = []
    for entry in nav:
        for value in entry.values() if isinstance(entry, dict) else [entry]:
            pages += [value] if isinstance(value, str) else pages_in_navigation(value)
    return pages


BLOCK = re.compile(r"^( *)(```+|~~~+).*?^\1\2", re.DOTALL | re.MULTILINE)
"""Matches a block of code."""


def without_code(text: str) -> str:
    """Return the text with code blanked out, keeping line numbers: nothing in code is a link or a heading."""
    text = BLOCK.sub(lambda code: "\n" * code[0].count("\n"), text)
    return re.sub(r"(`+)[^\n]*?[^`]\1(?!`)", "`code`", text)


def anchors(text: str) -> set[str]:
    """Return the names of all headings of a page, as the site and code hosts derive them."""
    outside = BLOCK.sub("", text)
    count: Counter[str] = Counter()
    names = set(re.findall(r'\bid="([^"]+)"', outside))
    for heading in re.findall(r"^#{1,6} +(.+?) *#*$", outside, re.MULTILINE):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", plain.lower()).strip().replace(" ", "-")
        names.add(f"{name}_{count[name]}" if count[name] else name)
        count[name] += 1
    return names


def links(text: str) -> list[tuple[int, str]]:
    """Return the line and target of every link and picture on a page."""
    return [
        (number, target)
        for number, line in enumerate(without_code(text).splitlines(), 1)
        for target in re.findall(r"\]\(<?([^)\s>]+)>?(?: +\"[^\"]*\")?\)", line)
    ]


def broken_links(page: Path, top: Path, shown: str, *, folders: bool = False) -> list[str]:
    """Return a sentence for every link on `page` that points to no file or heading below `top` (nor to a folder, with
    `folders`).
    """
    faults = []
    for line, target in links(page.read_text(encoding="utf-8")):
        parts = urlsplit(target)
        if parts.scheme or parts.netloc:
            continue
        file = (page.parent / unquote(parts.path)).resolve() if parts.path else page.resolve()
        if not file.is_relative_to(top.resolve()):
            why = f"it leaves {top.name}/, and the site has only that"
        elif not (file.is_file() or (folders and file.is_dir())):
            why = "there is no such file"
        elif parts.fragment and file.suffix == ".md" and parts.fragment not in anchors(file.read_text("utf-8")):
            why = f"{file.name} has no heading #{parts.fragment}"
        else:
            continue
        faults.append(f"{shown}:{line}: the link {target} is broken: {why}")
    return faults


def faults_of_pages(docs: Path, nav: list) -> list[str]:
    """Return a sentence for every mistake in the pages below `docs` that zensical would ignore or report at length."""
    listed = Counter(pages_in_navigation(nav))
    there = sorted(page.relative_to(docs).as_posix() for page in docs.rglob("*.md"))
    return [
        *(f"docs/{page} is not listed in nav of zensical.toml" for page in there if page not in listed),
        *(f"zensical.toml: nav lists {page}, and docs/ has no such page" for page in listed if page not in there),
        *(f"zensical.toml: nav lists {page} {times} times" for page, times in listed.items() if times > 1),
        *(fault for page in there for fault in broken_links(docs / page, docs, f"docs/{page}")),
    ]


class _Built(HTMLParser):
    """The addresses in one built page: the ones that a browser fetches, the ones that a reader may follow, and the
    page's anchors.
    """

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.followed: list[str] = []
        self.names: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        has = {name: value or "" for name, value in attrs}
        self.names |= {has[name] for name in ("id", "name") if name in has}
        address = has.get(FETCHED.get(tag, ""))
        if address and not set(has.get("rel", "").split()) & NOT_FETCHED:
            self.fetched.append(address)
        if tag == "a" and "href" in has:
            self.followed.append(has["href"])
        if "mermaid" in has.get("class", "").split():
            self.fetched.append("//mermaid")  # the theme fetches a script to draw it


def faults_of_site(site: Path) -> list[str]:
    """Return a sentence for everything in the built site that leads nowhere or is fetched from another host."""
    built = {}
    for file in sorted(site.rglob("*.html")):
        built[file.resolve()] = parser = _Built()
        parser.feed(file.read_text(encoding="utf-8"))
    elsewhere = sorted({url for page in built.values() for url in page.fetched if ELSEWHERE.match(url)})
    faults = [f"the pages fetch {url}: nothing may come from another host" for url in elsewhere]
    for file, page in built.items():
        shown = file.relative_to(site.resolve()).as_posix()
        if shown == "404.html":  # a server delivers it for any address, so its own addresses start from the root
            continue
        for address in page.fetched + page.followed:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            leads = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            leads = leads / "index.html" if leads.is_dir() else leads
            name = unquote(parts.fragment)
            if not leads.is_file() or (name and leads in built and name not in built[leads].names and name != "__top"):
                faults.append(f"{shown}: {address} leads nowhere")
    for file in sorted(site.rglob("*.css")):
        text = file.read_text(encoding="utf-8")
        if re.search(r"@import|url\(\s*[\"']?(?:https?:)?//", text):
            faults.append(f"{file.relative_to(site)} fetches from another host")
    return faults


def pinned_version(root: Path) -> str:
    """Return the version of the builder that the extra `docs` in pyproject.toml names."""
    extras = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    return next(extra.partition("==")[2] for extra in extras["docs"] if extra.startswith(f"{BUILDER}=="))


def need_builder(root: Path) -> None:
    """Check that the pinned builder is installed. Raises DocsError."""
    pinned = pinned_version(root)
    try:
        there = version(BUILDER)
    except PackageNotFoundError:
        there = None
    if there != pinned:
        text = f"{BUILDER} {there} is installed, not {pinned}" if there else f"{BUILDER} {pinned} is not installed"
        raise DocsError(f"{text}: type `make docs`, or `{sys.executable} -m pip install '.[docs]'` in the checkout")


def generate(root: Path, folder: Path) -> None:
    """Write the pages that are generated from the program into `folder`. Raises DocsError."""
    done = subprocess.run(
        [sys.executable, root / GENERATOR, folder],
        env=os.environ | {"PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise DocsError(f"{GENERATOR} failed: {last}")


def collect(root: Path, folder: Path) -> None:
    """Copy all pages of the checkout `root` into the new `folder`, and generate the others. Raises DocsError."""
    project = configuration(root)
    shutil.copytree(root / "docs", folder, ignore=shutil.ignore_patterns("*.py", "__pycache__", ".*"))
    if (root / GENERATOR).is_file():
        with tempfile.TemporaryDirectory() as generated:
            generate(root, Path(generated))
            index = folder / "reference/index.md"
            for page in sorted(Path(generated).iterdir()):
                if (folder / "reference" / page.name).exists():
                    raise DocsError(f"docs/reference/{page.name} is written by hand, and {GENERATOR} generates it too")
                shutil.copy(page, folder / "reference")
                named, linked = f"| `{page.stem}` |", f"| [`{page.stem}`]({page.name}) |"  # no such file in a checkout
                index.write_text(index.read_text(encoding="utf-8").replace(named, linked), encoding="utf-8")
    if faults := faults_of_pages(folder, project["nav"]):
        raise DocsError("\n".join(faults))


def build(root: Path, out: Path) -> None:
    """Check the pages of the checkout `root` and build them into `out`, which is replaced. Raises DocsError."""
    work = root / "build" / "docs"
    shutil.rmtree(work, ignore_errors=True)
    collect(root, work / "docs")
    need_builder(root)
    shutil.copy(root / "zensical.toml", work)
    done = subprocess.run(
        [sys.executable, "-m", BUILDER, "build", "--clean", "--strict"],
        cwd=work,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise DocsError(f"{BUILDER} refused the pages:\n{done.stdout}")
    if faults := faults_of_site(work / "site"):
        raise DocsError("\n".join(faults))
    shutil.rmtree(out, ignore_errors=True)
    shutil.move(work / "site", out)


def main() -> int:
    """Run `make docs`; return 2 for a mistake that a person can correct."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="only look at pages and links; build nothing")
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout (default: this one)")
    parser.add_argument("--out", type=Path, help="the folder of the site (default: docs-out in the checkout)")
    options = parser.parse_args()
    try:
        if options.check:
            with tempfile.TemporaryDirectory() as folder:
                collect(options.root, Path(folder) / "docs")
        else:
            out = options.out or options.root / "docs-out"
            build(options.root, out)
            print(f"the site: {out / 'index.html'}; with search: {sys.executable} -m http.server --directory {out}")
    except DocsError as mistake:
        print(mistake, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
