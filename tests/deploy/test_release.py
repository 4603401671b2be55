"""What is built: the version by git's tags, the README's links by the publisher's key, an sdist that has all files."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HATCHLING = (sys.executable, "-m", "hatchling")


def git(folder, *words):
    name = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    subprocess.run(["git", *name, *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path):
    """A git repository with what a wheel is made of, one module standing for each package."""
    folder = tmp_path / "checkout"
    (folder / "tools").mkdir(parents=True)
    for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE", "tools/metadata.py", "tools/release.py"):
        shutil.copy(ROOT / name, folder / name)
    for package in ("p2pfl", "topologies", "sim"):
        (folder / package).mkdir()
        (folder / package / "__init__.py").write_text("", encoding="utf-8")
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message", "All")
    return folder


@pytest.fixture
def metadata(checkout):
    def read(publisher=""):
        file = checkout / "pyproject.toml"
        text = re.sub(r"(?m)^publisher = .*", f"publisher = {json.dumps(publisher)}", file.read_text("utf-8"))
        file.write_text(text, encoding="utf-8")
        done = subprocess.run([*HATCHLING, "metadata"], cwd=checkout, capture_output=True, text=True, check=False)
        return json.loads(done.stdout) if done.returncode == 0 else done.stderr.strip()

    return read


def version(folder):
    done = subprocess.run([*HATCHLING, "version"], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_the_version_is_that_of_the_tag_and_names_the_commit_after_it(checkout):
    assert re.fullmatch(r"0\.2\.0\.post1\.dev1\+g[0-9a-f]{8}", version(checkout))  # a clone without tags
    git(checkout, "tag", "v0.3.0")
    git(checkout, "tag", "vnext")  # no version
    assert version(checkout) == "0.3.0"
    git(checkout, "commit", "--quiet", "--allow-empty", "--message", "More")
    assert re.fullmatch(r"0\.3\.0\.post1\.dev1\+g[0-9a-f]{8}", version(checkout))


def test_a_checkout_without_git_says_that_its_commit_is_unknown(checkout):
    shutil.rmtree(checkout / ".git")
    assert version(checkout) == "0.2.0+unknown"


def test_without_a_publisher_the_metadata_names_no_address_and_no_dead_link(metadata):
    found = metadata()
    links = re.findall(r"\]\(([^)]+)\)", found["readme"]["text"])
    assert "urls" not in found
    assert all(link.startswith("https://") for link in links)
    assert "[tutorial]" not in found["readme"]["text"]
    assert "tutorial" in found["readme"]["text"]


def test_with_a_publisher_all_links_lead_to_files_of_this_commit(metadata, checkout):
    git(checkout, "tag", "v0.3.0")
    git(checkout, "update-index", "--assume-unchanged", "pyproject.toml")
    found = metadata("https://example.org/ward/p2pfl")
    text = found["readme"]["text"]
    ours = re.findall(r"\]\(https://example\.org/ward/p2pfl/(blob|raw)/v0\.3\.0/([^)#]+)", text)
    relative = re.findall(r"\]\((?!https?://|#)", (ROOT / "README.md").read_text("utf-8"))
    assert len(ours) == len(relative) > 40
    assert all((ROOT / path).exists() for _, path in ours)
    assert ("raw", "docs/images/demo.png") in ours
    assert found["urls"]["Source"] == "https://example.org/ward/p2pfl"


def test_a_publisher_that_is_no_address_is_one_sentence(metadata):
    said = metadata("p2pfl.example")
    assert said.startswith("pyproject.toml: tool.hatch.metadata.hooks.custom.publisher is 'p2pfl.example'; allowed: ")
    assert "\n" not in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "this commit has no tag; needed: git tag vMAJOR.MINOR.PATCH, such as v0.2.0"),
        (["tag", "v1.x"], "this commit has the tag v1.x, which is no version; needed: "),
        (["rm", "README.md"], "there are uncommitted changes"),
    ],
)
def test_a_commit_that_is_no_release_is_one_sentence(checkout, words, said):
    if words:
        git(checkout, *words)
    if "uncommitted" in said:
        git(checkout, "tag", "v0.3.0")
    done = subprocess.run(
        [sys.executable, "tools/release.py"], cwd=checkout, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert f"make release: {said}" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (checkout / "dist").exists()


def test_no_git_is_one_sentence(checkout):
    shutil.rmtree(checkout / ".git")
    done = subprocess.run(
        [sys.executable, "tools/release.py"], cwd=checkout, capture_output=True, text=True, check=False
    )
    assert done.stderr == "make release: this is no git checkout, so nothing says its version\n"


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="only a git checkout says which files it has")
def test_an_sdist_has_every_file_of_the_checkout_and_builds_the_same_wheel(tmp_path):
    subprocess.run([*HATCHLING, "build", "-d", tmp_path], cwd=ROOT, check=True, capture_output=True)
    (sdist,), (wheel,) = tmp_path.glob("*.tar.gz"), tmp_path.glob("*.whl")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (inside,) = [path for path in tmp_path.iterdir() if path.is_dir()]
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    missing = {name for name in tracked if (ROOT / name).exists() and not (inside / name).exists()}
    assert missing <= {".gitattributes"}
    again = tmp_path / "again"
    subprocess.run([*HATCHLING, "build", "-t", "wheel", "-d", again], cwd=inside, check=True, capture_output=True)
    (other,) = again.iterdir()
    with zipfile.ZipFile(wheel) as first, zipfile.ZipFile(other) as second:
        assert sorted(first.namelist()) == sorted(second.namelist())
        (about,) = [name for name in first.namelist() if name.endswith("METADATA")]
        assert first.read(about) == second.read(about)
        authors = Parser().parsestr(first.read(about).decode())["Author"]
    assert authors == "the p2pfl authors"
