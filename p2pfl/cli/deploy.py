"""`p2pfl deploy push`: install, update or roll back all boards of a federation over ssh, one after the other.

Each board is sent one archive through ssh's stdin (a bundle, what all nodes share, the folder of its own node) and runs
the install.sh in it, which checks, switches and, if the node does not answer, switches back. All boards are looked at
before the first one is changed.

A bundle has all that one kind of board needs to install p2pfl without a network. It is a folder with wheels,
install.sh, the unit, KIND (processor, Python, C library, version) and SHA256SUMS, the hashes of all these files.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import click

from p2pfl.config.load import load_config
from p2pfl.config.model import FederationConfig
from p2pfl.console import seconds_now
from p2pfl.errors import P2PFLError, UserError
from p2pfl.foreign import printable
from p2pfl.names import DISTRIBUTION
from p2pfl.node.folders import appearing
from p2pfl.plugins import software

CHECKOUT = Path(__file__).parents[2]
IS_CHECKOUT = (CHECKOUT / "pyproject.toml").is_file()
SHARE = CHECKOUT / "deploy" if IS_CHECKOUT else Path(sysconfig.get_path("data")) / "share/p2pfl"
INSTALLER = {f"bundle/{name}": SHARE / name for name in ("install.sh", "p2pfl@.service")}
SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=15", "-o", "ServerAliveInterval=15", "--")
REMOTE = """
set -e
umask 077
folder=$(mktemp -d /var/tmp/p2pfl.XXXXXX)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
tar -x --no-same-owner --no-same-permissions -f -
$([ "$(id -u)" = 0 ] || echo sudo -n) bash bundle/install.sh """
"""What a board's shell runs; the words for install.sh follow."""
PIP = """
import json, runpy, sys
from pip._vendor.packaging import markers
ours, board = markers.default_environment, json.loads(sys.argv.pop(1))
markers.default_environment = lambda: {**ours(), **board}
runpy.run_module("pip", run_name="__main__", alter_sys=True)
"""
"""pip evaluates conditions of requirements ("python_version < '3.14'") for the machine on which it runs: here they are
those of the board.
"""
OLDEST_LIBC, NO_CONNECTION, LAST_LINES = 17, 255, 30


class Kind(NamedTuple):
    """What the packages of a board depend on; `libc` is the second number of its glibc's version."""

    processor: str
    python: str
    libc: int


@click.group(epilog="\b\nExample:\n  p2pfl deploy push five pi@pi1 pi@pi2")
def deploy() -> None:
    """Install and update boards over ssh."""


@deploy.command(epilog="\b\nExample:\n  p2pfl deploy push five pi@pi1 pi@pi2 pi3=pi@192.168.1.13")
@click.argument("federation", metavar="FEDERATION", type=click.Path(path_type=Path))
@click.argument("targets", metavar="[NODE=]USER@HOST...", nargs=-1, required=True)
@click.option("--rollback", is_flag=True, help="Go back to the software before; a second time, forward again.")
@click.option("--torch", metavar="cpu|default|none", default="cpu", show_default=True, help="As for install.sh.")
@click.option("--torch-index", metavar="URL", help="One more index to look for torch in.")
@click.option("--source", metavar="WHAT", help="A wheel or a checkout of p2pfl.  [default: this one]")
def push(
    federation: Path, targets: Sequence[str], torch: str, torch_index: str | None, source: str | None, *, rollback: bool
) -> None:
    """Install the nodes of FEDERATION as services on these boards, or update them. Boards need no internet.

    The node of a board is that with the host's name; NODE=USER@HOST names another. On each board an environment is made
    and tried beside the one that runs, then the service is switched over; if the node does not answer, back. The first
    board that fails ends the push: all others go on as they are. Exit code 1: a board failed.
    """
    if shutil.which("ssh") is None:
        raise UserError("ssh is not installed on this computer")
    described = load_config(federation)
    hosts = _hosts(described, targets)
    if rollback:
        _install(hosts, dict.fromkeys(hosts, INSTALLER), described, ["--rollback"])
        return
    words = ["--probe", f"{seconds_now():.0f}", "--torch", torch]
    words += ["--torch-index", torch_index] if torch_index else []
    with ThreadPoolExecutor(16) as pool:
        probes = dict(zip(hosts, pool.map(partial(_probe, words), hosts.values()), strict=True))
    wanted = ["--extra-index-url", torch_index] if torch_index else []
    if torch == "cpu":  # install.sh says why
        wanted.append(f"torch{'!=2.10.*' if torch_index else '<2.10'}; platform_machine == 'aarch64'")
    extras = ",".join(["lan", *(["torch"] * (torch != "none")), *(["privacy"] * (described.privacy is not None))])
    with tempfile.TemporaryDirectory() as name:
        source = source or (str(CHECKOUT) if IS_CHECKOUT else f"{DISTRIBUTION}=={software()}")
        _pip(source, {}, "wheel", "--no-deps", "--wheel-dir", name, source)
        (wheel,) = Path(name).iterdir()
        folder = described.path.absolute().parent
        bundles = {kind: _bundle(kind, wheel, extras, wanted, folder) for kind, _ in probes.values()}
    for node, (kind, free_mb) in probes.items():
        # Wheels are compressed, and byte code is added.
        needs_mb = 50 + (6 * sum(file.stat().st_size for file in bundles[kind].rglob("*.whl")) >> 20)
        if free_mb < needs_mb:
            text = f"too little room in /opt or /var/tmp: {free_mb} MB free, {needs_mb} MB needed"
            raise UserError(text, file=hosts[node])
    sent = {node: {"bundle": bundles[kind], "federation": folder} for node, (kind, _) in probes.items()}
    _install(hosts, sent, described, ["--start", "federation"])


def _hosts(federation: FederationConfig, targets: Sequence[str]) -> dict[str, str]:
    """Return the host of each node. Raises UserError: a target names no node, or a node or host is there twice."""
    names, hosts = sorted(member.name for member in federation.present), dict[str, str]()
    for target in targets:
        given, _, host = target.rpartition("=")
        bare = host.rpartition("@")[2]
        node = given or (bare if bare in names else bare.partition(".")[0])
        if node not in names or node in hosts or host in hosts.values():
            allowed = f"NODE=USER@HOST with one of {', '.join(names)}, each node and host once"
            raise UserError(f"no node of {federation.name}, or twice", key="HOST", value=target, allowed=allowed)
        hosts[node] = host
    return hosts


def _probe(words: Sequence[str], host: str) -> tuple[Kind, int]:
    """Return a board's kind, and its free megabytes. Raises UserError: it cannot be used."""
    code, said = _run(host, INSTALLER, words)
    pattern = re.compile(r"probe (\w+) (3\.\d+) 2\.(\d+) (\d+)")
    answer = next(filter(None, map(pattern.fullmatch, said)), None)
    if code or answer is None:
        hint = f": `ssh {host}` must work without a question (ssh-copy-id)" if code == NO_CONNECTION else ""
        last = next(filter(None, reversed(said)), "no answer").removeprefix("error: ")
        raise UserError(last + hint, file=host)
    processor, python, libc, free_kb = answer.groups()
    return Kind(processor, python, int(libc)), int(free_kb) >> 10


def _bundle(kind: Kind, wheel: Path, extras: str, wanted: Sequence[str], folder: Path) -> Path:
    """Return the bundle for this kind of board, beside the federation's folder, made if it is not there yet; an older
    one goes. `wanted` are pip's words for what is wanted beside the wheel with its extras.

    Raises UserError: pip does not find it.
    """
    own = [file for file in [folder / "requirements.txt"] if file.is_file()]
    parts = [*kind, extras, *wanted, *map(_digest, [wheel, *INSTALLER.values(), *own])]
    place, prefix = folder.with_name(f"{folder.name}.bundles"), f"{kind.processor}-py{kind.python}-"
    bundle = place / f"{prefix}{hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]}"
    if bundle.is_dir():
        return bundle
    click.echo(f"bundle for {kind.processor}, Python {kind.python}: {wheel.name}", err=True)
    place.mkdir(exist_ok=True)
    older = [*place.glob(f"{prefix}*")]
    with appearing(bundle) as made:
        required = [word for file in own for word in ("-r", str(file))]
        _fetch(kind, [f"{DISTRIBUTION}[{extras}] @ {wheel.as_uri()}", *wanted, *required], made / "wheels")
        for file in INSTALLER.values():
            shutil.copyfile(file, made / file.name)
        version = wheel.name.split("-")[1]
        (made / "KIND").write_text(f"{kind.processor} {kind.python} 2.{kind.libc} {version}\n", "ascii")
        inside = sorted(file for file in made.rglob("*") if file.is_file())
        sums = "".join(f"{_digest(file)}  {file.relative_to(made).as_posix()}\n" for file in inside)
        (made / "SHA256SUMS").write_text(sums, "utf-8")
    for each in older:
        shutil.rmtree(each)
    return bundle


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _fetch(kind: Kind, wanted: Sequence[str], folder: Path) -> None:
    """Let pip put the wheels that such a board runs into `folder`."""
    tags = [f"manylinux_2_{minor}" for minor in range(kind.libc, OLDEST_LIBC - 1, -1)] + ["manylinux2014", "linux"]
    platforms = [f"--platform={tag}_{kind.processor}" for tag in tags]
    board = ["--only-binary", ":all:", "--implementation", "cp", "--python-version", kind.python, *platforms]
    markers = {
        "platform_machine": kind.processor,
        "platform_system": "Linux",
        "sys_platform": "linux",
        "os_name": "posix",
        "python_version": kind.python,
        "python_full_version": f"{kind.python}.0",
    }
    what = f"the packages for {kind.processor} with Python {kind.python}"
    _pip(what, markers, "download", "--dest", str(folder), *board, *wanted)


def _pip(what: str, markers: Mapping[str, str], verb: str, *words: str) -> None:
    """Let pip say itself what is wrong, on stderr. Raises UserError: pip failed."""
    command = [sys.executable, "-c", PIP, json.dumps(markers), "--disable-pip-version-check", verb, "--quiet", *words]
    if subprocess.run(command, check=False).returncode:  # noqa: S603
        raise UserError(f"pip cannot get {what}")


def _install(
    hosts: Mapping[str, str],
    sent: Mapping[str, Mapping[str, Path]],
    federation: FederationConfig,
    words: Sequence[str],
) -> None:
    """Run install.sh on one board after the other, and show its steps. Raises P2PFLError: one failed."""
    for index, (node, host) in enumerate(hosts.items()):
        begun, head = time.monotonic(), f"{node:{max(map(len, hosts))}}  "
        code, said = _run(host, sent[node], ["--node", node, *words], partial(_allow, federation, node), head)
        if code:
            click.echo("\n".join(said[-LAST_LINES:]), err=True)
            raise P2PFLError(f"{node} failed with {code}; not touched: {', '.join([*hosts][index + 1 :]) or 'none'}")
        click.echo(f"{head}runs, {time.monotonic() - begun:.0f} s", err=True)


def _allow(federation: FederationConfig, node: str, entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Leave out what is no business of this node's board: state, what belongs to other nodes, and all other secrets."""
    match entry.name.split("/"):
        case ["federation", name, *inside] if name == node:
            is_left_out = inside == ["state"]
        case ["federation", name, *_]:
            files = [federation.path.parent / name / file for file in ("node.key", "node.toml")]
            is_node = name in {member.name for member in federation.members} or any(file.exists() for file in files)
            is_left_out = is_node or name == "invites.json" or name.startswith(".") or entry.name.endswith(".key")
        case _:
            is_left_out = False
    return None if is_left_out else entry


def _run(
    host: str,
    files: Mapping[str, Path],
    words: Sequence[str],
    allow: Callable[[tarfile.TarInfo], tarfile.TarInfo | None] | None = None,
    head: str = "",
) -> tuple[int, list[str]]:
    """Run install.sh on a board, and return its exit code and what it printed; with a `head`, its steps are shown."""
    said: list[str] = []
    command = [*SSH, host, f"sh -c {shlex.quote(f'{REMOTE}{shlex.join(words)} </dev/null 2>&1')}"]
    with subprocess.Popen(  # noqa: S603 - the host begins with no dash
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        assert process.stdin is not None  # noqa: S101 - it is a pipe
        with suppress(BrokenPipeError), process.stdin as stream, tarfile.open(fileobj=stream, mode="w|") as archive:
            for name, path in files.items():
                archive.add(path, name, filter=allow)
        for line in process.stdout or ():
            said.append(printable(line.decode(errors="replace").rstrip()))
            if head and said[-1].startswith(("* ", "warning: ", "error: ")):
                click.echo(head + said[-1].removeprefix("* "), err=True)
    return process.returncode, said
