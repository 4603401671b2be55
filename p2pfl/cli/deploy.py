"""`p2pfl deploy push`: install, update or roll back all boards of a federation over ssh, one after the other.

Each board is sent one archive through ssh's stdin (a bundle, see `p2pfl.cli.bundle`; what all nodes share; the folder
of its own node) and runs the install.sh in it, which checks, switches and, if the node does not answer, switches back.
All boards are looked at before the first one is changed.
"""

from __future__ import annotations

import shlex
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from shutil import which
from typing import NamedTuple

import click

from p2pfl.cli.bundle import Kind, installer, make_bundle, needs_bytes, own_wheel
from p2pfl.config.load import load_config
from p2pfl.config.model import FederationConfig
from p2pfl.console import seconds_now
from p2pfl.errors import P2PFLError, UserError
from p2pfl.foreign import printable
from p2pfl.net.address import is_loopback, parse_address

SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=15", "-o", "ServerAliveInterval=15", "--")
REMOTE = """
[ "$(id -u)" = 0 ] || sudo -n true 2>/dev/null || {
    echo "error: sudo asks for a password: let $(id -un) do without (NOPASSWD in /etc/sudoers.d), or push to root@..."
    exit 2; }
umask 077
trap '' HUP PIPE
folder=$(mktemp -d /var/tmp/p2pfl.XXXXXX) || { echo "error: /var/tmp cannot be written"; exit 2; }
trap 'rm -rf "$folder"' EXIT
tar -xf - -C "$folder" || { echo "error: the files did not arrive whole"; exit 1; }
cd /
as_root=; [ "$(id -u)" = 0 ] || as_root='sudo -n'
$as_root bash "$folder/bundle/install.sh" """
"""What a board's shell runs; the words for install.sh follow."""
CLOCK_S = 86_400
NO_CONNECTION, LAST_LINES = 255, 30

Files = Sequence[tuple[Path, str]]
"""What a board is sent: files or folders, each with its name there."""


class Board(NamedTuple):
    node: str
    host: str


Probe = tuple[Kind, int]
"""A board's kind, and its free bytes."""


@click.group(epilog="\b\nExample:\n  p2pfl deploy push five pi@pi1 pi@pi2")
def deploy() -> None:
    """Install and update boards over ssh."""


@deploy.command(epilog="\b\nExample:\n  p2pfl deploy push five pi@pi1 pi@pi2 pi3=pi@192.168.1.13")
@click.argument("federation", metavar="FEDERATION", type=click.Path(path_type=Path))
@click.argument("targets", metavar="[NODE=]USER@HOST...", nargs=-1, required=True)
@click.option("--rollback", is_flag=True, help="Go back to the software before; a second time, forward again.")
@click.option(
    "--torch",
    type=click.Choice(["cpu", "default", "none"]),
    default="cpu",
    show_default=True,
    help="cpu: without CUDA. default: pip's choice. none: for tasks without torch.",
)
@click.option("--torch-index", metavar="URL", help="One more index to look for torch in.")
@click.option(
    "--source", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="A wheel of p2pfl.  [default: this]"
)
@click.option("--bundle", type=click.Path(path_type=Path), help="Where to keep bundles.  [default: FEDERATION.bundles]")
def push(
    *,
    federation: Path,
    targets: tuple[str, ...],
    rollback: bool,
    torch: str,
    torch_index: str | None,
    source: Path | None,
    bundle: Path | None,
) -> None:
    """Install the nodes of FEDERATION as services on these boards, or update them. Boards need no internet.

    The node of a board is that with the host's name; NODE=USER@HOST names another. On each board an environment is made
    and tried beside the one that runs, then the service is switched over; if the node does not answer, back. The first
    board that fails ends the push: all others go on as they are. Exit code 1: a board failed.
    """
    if which("ssh") is None:
        raise UserError("ssh is not installed on this computer")
    described = load_config(federation)
    boards, folder = _boards(described, targets), described.path.absolute().parent
    if rollback:
        _install({board: _files([]) for board in boards}, ["--rollback"])
        return
    probes, bundles, own = _probe_all(boards), dict[Kind, Path](), folder / "requirements.txt"
    extras = ",".join(["lan", *(["torch"] * (torch != "none")), *(["privacy"] * (described.privacy is not None))])
    with tempfile.TemporaryDirectory() as name:
        wheel = source or own_wheel(Path(name))
        for kind in dict.fromkeys(kind for kind, _ in probes.values()):
            click.echo(f"bundle for {kind.processor}, Python {kind.python}: {wheel.name}", err=True)
            words = [*_torch_words(torch, torch_index, kind), *(("-r", own) if own.is_file() else ())]
            place = bundle or folder.with_name(f"{folder.name}.bundles")
            bundles[kind] = make_bundle(kind, wheel, extras, words, place)
    for board, (kind, free) in probes.items():
        if free < (needs := needs_bytes(bundles[kind])):
            text = f"too little room in /opt or /var/tmp: {free >> 20} MB free, {needs >> 20} MB needed"
            raise UserError(text, file=board.host)
    every = {board: _files([(bundles[kind], "bundle")], described, board.node) for board, (kind, _) in probes.items()}
    _install(every, ["--start", "$folder/federation"])


def _boards(federation: FederationConfig, targets: Sequence[str]) -> list[Board]:
    """Return the board of each target. Raises UserError: it names no node, or one twice, or one nobody can reach."""
    members = {member.name: member for member in federation.present}
    boards: list[Board] = []
    for target in targets:
        given, _, host = target.rpartition("=")
        bare = host.rpartition("@")[2]
        node = given or next((name for name in (bare, bare.partition(".")[0]) if name in members), bare)
        if node not in members:
            allowed = f"NODE=USER@HOST with one of {', '.join(sorted(members))}"
            raise UserError(f"this names no node of {federation.name}", key="HOST", value=target, allowed=allowed)
        if not bare or host.startswith("-") or any(node == board.node or host == board.host for board in boards):
            raise UserError("no host for ssh, or the same node or host twice", key="HOST", value=target)
        if (address := members[node].address) and is_loopback(parse_address(address, "address").host):
            allowed = "the board's address; or discovery = true in [network], and no address"
            text = f"the address of {node} is one of its own machine alone"
            raise UserError(text, file=federation.path, key="address", value=address, allowed=allowed)
        boards.append(Board(node, host))
    return boards


def _torch_words(torch: str, index: str | None, kind: Kind) -> list[str | Path]:
    """Return pip's words for torch. Raises UserError: a torch without CUDA needs an index."""
    if torch == "cpu" and index is None and kind.processor != "aarch64":
        allowed = "cpu with --torch-index URL, default (with gigabytes of CUDA), or none for a task without torch"
        text = f"for {kind.processor} a torch without CUDA is only in PyTorch's own index"
        raise UserError(text, key="--torch", value=torch, allowed=allowed)
    is_aarch64 = torch == "cpu" and kind.processor == "aarch64"  # install.sh says why
    words = [] if index is None else ["--extra-index-url", index]
    return [*words, *(["torch!=2.10.*" if index else "torch<2.10"] if is_aarch64 else [])]


def _probe_all(boards: Sequence[Board]) -> dict[Board, Probe]:
    """Look at all boards at once. Raises an ExceptionGroup of UserErrors: some cannot be used."""
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(_probe, boards))
    if failures := [answer for answer in answers if isinstance(answer, UserError)]:
        raise ExceptionGroup("boards", failures)
    return {board: answer for board, answer in zip(boards, answers, strict=True) if not isinstance(answer, UserError)}


def _probe(board: Board) -> Probe | UserError:
    said: list[str] = []
    code = _run(board, _files([]), ["--probe"], said.append)
    *_, words = [[], *(line.split()[1:] for line in said if line.startswith("probe "))]
    if code or len(words) != 5:
        last = next((line.removeprefix("error: ") for line in reversed(said) if line.strip()), "no answer")
        hint = f": `ssh {board.host}` must work without a question (ssh-copy-id)" if code == NO_CONNECTION else ""
        return UserError(last + hint, file=board.host)
    off_s = int(words[4]) - seconds_now()
    if abs(off_s) > CLOCK_S:
        text = (
            f"its clock is {off_s / CLOCK_S:+.0f} days from this computer's: ssh {board.host} sudo date -s @$(date +%s)"
        )
        return UserError(text, file=board.host)
    return Kind(*words[:3]), int(words[3]) << 10


def _files(more: Files, federation: FederationConfig | None = None, node: str = "") -> Files:
    """Return what a board is sent: of secrets at most its node's own."""
    files = [*more] or [(file, f"bundle/{file.name}") for file in installer()]
    if federation is None:
        return files
    others = {member.name for member in federation.members} - {node}
    for entry in sorted(federation.path.parent.iterdir()):
        is_node = entry.name in others or any((entry / name).exists() for name in ("node.key", "node.toml"))
        if entry.name == node or not (is_node or entry.name == "invites.json" or entry.name.startswith(".")):
            files.append((entry, f"federation/{entry.name}"))
    return files


def _run(board: Board, files: Files, words: Sequence[str], heard: Callable[[str], None]) -> int:
    """Run install.sh on a board, pass on each line that it prints, and return its exit code."""
    quoted = " ".join(f'"{word}"' if word.startswith("$folder/") else shlex.quote(word) for word in words)
    command = [*SSH, board.host, f"sh -c {shlex.quote(f'{REMOTE}{quoted} </dev/null 2>&1')}"]
    with subprocess.Popen(  # noqa: S603 - the host begins with no dash
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        assert process.stdin is not None  # noqa: S101 - it is a pipe
        with suppress(BrokenPipeError), process.stdin as stream, tarfile.open(fileobj=stream, mode="w|") as archive:
            for path, name in files:
                archive.add(path, name, filter=partial(_private, board.node))
        for line in process.stdout or ():
            heard(printable(line.decode(errors="replace").rstrip()))
    return process.returncode


def _private(node: str, entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Leave out what stays here, and nobody but its owner may read the rest."""
    _, *inside = entry.name.split("/")
    is_state, is_other_key = inside == [node, "state"], entry.name.endswith(".key") and inside[:1] != [node]
    if is_state or is_other_key or "__pycache__" in inside:
        return None
    return entry.replace(mode=0o700 if entry.isdir() else 0o600, uid=0, gid=0, uname="", gname="", deep=False)


def _install(every: Mapping[Board, Files], words: Sequence[str]) -> None:
    """Run install.sh on one board after the other, and show its steps. Raises P2PFLError: one failed."""
    shown = set[str]()
    for index, (board, files) in enumerate(every.items()):
        log, begun, head = list[str](), time.monotonic(), f"{board.node:{max(len(one.node) for one in every)}}  "

        def heard(line: str, head: str = head, log: list[str] = log) -> None:
            if not line.startswith(("* ", "warning: ", "error: ")):
                log.append(f"{head}| {line}")
            elif line not in shown:
                click.echo(head + line.removeprefix("* "), err=True)
            if line.startswith("warning: "):  # what `check` says of the federation, it says on each board
                shown.add(line)

        if code := _run(board, files, ["--node", board.node, *words], heard):
            click.echo("\n".join(log[-LAST_LINES:]), err=True)
            rest = ", ".join(one.node for one in [*every][index + 1 :])
            raise P2PFLError(f"{board.node} failed with {code}" + (f"; not touched: {rest}" if rest else ""))
        click.echo(f"{head}runs, {time.monotonic() - begun:.0f} s", err=True)
