"""`make docs`: every page is listed, every link leads somewhere, no other host is asked, a mistake is one sentence."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tools" / "build_docs.py"

_spec = importlib.util.spec_from_file_location("build_docs", SCRIPT)
build_docs = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(build_docs)


def run(*command, **options):
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, **options)


@pytest.fixture
def checkout(tmp_path):
    """A checkout with two pages in it."""
    root = tmp_path / "checkout"
    (root / "docs/how-to").mkdir(parents=True)
    (root / "docs/index.md").write_text("# Front\n\n[Go](how-to/go.md#how-to-go)\n", encoding="utf-8")
    (root / "docs/how-to/go.md").write_text("# Go\n\n## How to *go*\n\n```\n# [no](link.md)\n```\n", encoding="utf-8")
    (root / "zensical.toml").write_text(
        '[project]\nsite_name = "two pages"\nuse_directory_urls = false\n'
        'nav = [{ "Front" = "index.md" }, { "How-to" = ["how-to/go.md"] }]\n[project.theme]\nfont = false\n',
        encoding="utf-8",
    )
    shutil.copy(ROOT / "pyproject.toml", root)
    return root


def check(root):
    return run(sys.executable, SCRIPT, "--check", "--root", root)


def test_every_page_of_the_docs_is_listed_and_every_link_in_them_leads_somewhere():
    done = check(ROOT)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_every_link_of_the_checkout_leads_somewhere_without_the_pages_that_are_generated():
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    shown = {page: str(page.relative_to(ROOT)) for page in pages}
    assert [fault for page in pages for fault in build_docs.broken_links(page, ROOT, shown[page], folders=True)] == []


def test_mistakes_of_pages_are_a_sentence_each(checkout):
    with (checkout / "docs/how-to/go.md").open("a", encoding="utf-8") as page:
        page.write("\n[x](nowhere.md)\n[x](../index.md#x)\n[x](../../LICENSE)\n")
    (checkout / "docs/how-to/lost.md").write_text("# Lost\n", encoding="utf-8")
    done = check(checkout)
    assert (done.returncode, done.stderr.splitlines()) == (
        2,
        [
            "docs/how-to/lost.md is not listed in nav of zensical.toml",
            "docs/how-to/go.md:9: the link nowhere.md is broken: there is no such file",
            "docs/how-to/go.md:10: the link ../index.md#x is broken: index.md has no heading #x",
            "docs/how-to/go.md:11: the link ../../LICENSE is broken: it leaves docs/, and the site has only that",
        ],
    )
    (checkout / "docs/how-to/lost.md").unlink()
    faults = build_docs.faults_of_pages(checkout / "docs", ["index.md", "how-to/go.md", "index.md", "x.md"])
    assert [fault.partition("nav lists ")[2] for fault in faults[:2]] == [
        "x.md, and docs/ has no such page",
        "index.md 2 times",
    ]


GENERATOR = """
import sys, pathlib
pathlib.Path(sys.argv[1], "made.md").write_text("# Made\\n\\n[Front](../index.md#front)\\n")
"""


@pytest.fixture
def generating(checkout):
    """The same checkout with a page of the reference that is generated."""
    (checkout / "docs/reference").mkdir()
    (checkout / "docs/reference/index.md").write_text("# All\n\n| `made` | a page |\n", encoding="utf-8")
    (checkout / "docs/reference_pages.py").write_text(GENERATOR, encoding="utf-8")
    config = checkout / "zensical.toml"
    text = config.read_text(encoding="utf-8")
    config.write_text(text.replace('["how-to/go.md"]', '["how-to/go.md", "reference/index.md", "reference/made.md"]'))
    return checkout


def test_generated_pages_are_pages_like_others_and_the_site_has_links_to_them(generating, tmp_path):
    build_docs.collect(generating, tmp_path / "pages")
    assert "| [`made`](made.md) | a page |" in (tmp_path / "pages/reference/index.md").read_text(encoding="utf-8")
    assert not (generating / "docs/reference/made.md").exists()


def test_a_page_that_is_written_and_generated_and_a_generator_that_fails_are_mistakes(generating, tmp_path):
    (generating / "docs/reference/made.md").write_text("# Made\n", encoding="utf-8")
    with pytest.raises(build_docs.DocsError, match=r"made\.md is written by hand, and .* generates it too"):
        build_docs.collect(generating, tmp_path / "one")
    (generating / "docs/reference_pages.py").write_text("import nowhere", encoding="utf-8")
    with pytest.raises(build_docs.DocsError, match=r"failed: ModuleNotFoundError: No module named 'nowhere'$"):
        build_docs.collect(generating, tmp_path / "two")


def test_headings_have_the_names_that_links_use():
    text = "# A `b` & c_d\n## Twice\n## Twice\n### [Link](x.md): why?\n```\n# no heading\n```\n"
    assert build_docs.anchors(text) == {"a-b--c_d", "twice", "twice_1", "link-why"}


@pytest.mark.parametrize("there", [None, "0.0.1"])
def test_without_its_extra_it_says_what_to_type(checkout, monkeypatch, there):
    def version(name):
        if there is None:
            raise build_docs.PackageNotFoundError(name)
        return there

    monkeypatch.setattr(build_docs, "version", version)
    with pytest.raises(build_docs.DocsError, match=r"^zensical .*: type `make docs`, or .* install '\.\[docs\]'"):
        build_docs.need_builder(checkout)


@pytest.mark.parametrize(
    ("html", "fault"),
    [
        ('<script src="//x.org/a.js"></script>', "the pages fetch //x.org/a.js"),
        ('<link rel="stylesheet" href="https://x.org/a.css">', "the pages fetch https://x.org/a.css"),
        ('<pre class="mermaid"></pre>', "the pages fetch //mermaid"),
        ('<img src="a.png">', "index.html: a.png leads nowhere"),
        ('<a href="#a">', "index.html: #a leads nowhere"),
    ],
)
def test_a_built_page_that_needs_another_host_or_leads_nowhere_is_a_mistake(tmp_path, html, fault):
    (tmp_path / "index.html").write_text(html, encoding="utf-8")
    (found,) = build_docs.faults_of_site(tmp_path)
    assert found.startswith(fault)


def test_a_built_page_may_lead_to_other_hosts_and_to_what_is_there(tmp_path):
    (tmp_path / "index.html").write_text(
        '<a href="https://x.org"><a href="#b"><p id="b"><a href=".">', encoding="utf-8"
    )
    assert build_docs.faults_of_site(tmp_path) == []


def make_docs(folder):
    tool = shutil.which("make")
    if tool is None:
        pytest.skip("no make")
    """With no options or variables of the make that may run these tests."""
    words = ("docs", f"PYTHON={sys.executable}", "TORCH=default")
    return run("env", "-u", "MAKELEVEL", "-u", "MAKEFLAGS", tool, "-C", folder, *words)


def test_make_docs_outside_a_checkout_is_one_sentence(tmp_path):
    shutil.copy(ROOT / "Makefile", tmp_path)
    done = make_docs(tmp_path)
    assert done.returncode == 2
    assert f"{tmp_path} has no pyproject.toml: make works in a checkout of p2pfl only\n" in done.stderr
    assert not (tmp_path / ".venv").exists()


def test_make_docs_without_a_network_is_one_sentence(tmp_path):
    """The environment is there; its pip reaches nobody."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    python = tmp_path / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\necho 'WARNING: Retrying' >&2\nexit 1\n", encoding="utf-8")
    python.chmod(0o755)
    (tmp_path / ".venv/.torch-default").touch()
    done = make_docs(tmp_path)
    assert done.returncode == 2
    first, *rest = done.stderr.splitlines()
    assert first.startswith("make docs: pip could not install the extra docs, which takes a network once")
    assert all(line.startswith("make: ***") for line in rest)
    assert "Retrying" in (tmp_path / ".venv/pip-docs.log").read_text(encoding="utf-8")


@pytest.fixture
def builder():
    """The builder of the extra `docs`, as pinned."""
    try:
        build_docs.need_builder(ROOT)
    except build_docs.DocsError as missing:
        pytest.skip(f"needs the extra docs: {missing}")


def test_two_pages_become_a_site_that_replaces_the_one_before(checkout, tmp_path, builder):
    out = tmp_path / "out"
    out.mkdir()
    (out / "old.html").touch()
    build_docs.build(checkout, out)
    assert (out / "how-to/go.html").is_file()
    assert not (out / "old.html").exists()


@pytest.mark.slow
def test_the_docs_become_a_site(tmp_path, builder):
    build_docs.build(ROOT, tmp_path / "out")
    assert (tmp_path / "out/index.html").is_file()
