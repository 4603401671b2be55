"""The power of all five nodes fails at one instant: whatever their disks then hold, all resume and nothing is lost.

`strace` sees each write and sync of real processes, so that nothing in the code can forget one. A file's bytes are
durable after its own sync, a name after the sync of its folder; what is not may be there, missing, torn, or zeros, each
name and file by itself.
"""

from __future__ import annotations

import random
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from pushes_kit import PUSHES, check_nothing_lost
from real_field import P2PFL, Field

CALLS = (
    "openat,write,writev,pwrite64,pwritev,ftruncate,fsync,fdatasync,rename,renameat,renameat2,unlink,unlinkat,"
    "mkdir,mkdirat,rmdir,link,linkat,symlink,copy_file_range,sendfile,fallocate"
)
LINE = re.compile(r"(?P<began>[\d.]+) (?P<call>\w+)\((?P<given>.*)\) += (?P<result>\d+)(?:<.*>)? <(?P<took>[\d.]+)>")
PATH = re.compile(r'[<"]((?:\\x[0-9a-f]{2})*)[">]')
FOLDER = None
DEADLINE_S = 300
ROUNDS = 30


@dataclass(eq=False)
class Inode:
    """A file; `durable` is its content at its last sync."""

    content: bytearray = field(default_factory=bytearray)
    durable: bytes = b""

    def left(self, chance: random.Random) -> bytes:
        written, kept = bytes(self.content), len(self.durable)
        if not written.startswith(self.durable):
            return chance.choice([written, self.durable, written[: chance.randint(0, len(written))]])
        torn = written[: chance.randint(kept, len(written))]
        return chance.choice([written, self.durable, torn, self.durable + bytes(len(written) - kept)])


class Disk:
    """The folder as it was at first, then as the calls change it."""

    def __init__(self, folder: Path) -> None:
        self.root = folder
        self.names: dict[Path, Inode | None] = {}
        for path in folder.rglob("*"):
            content = None if path.is_dir() else path.read_bytes()
            self.names[path] = FOLDER if content is None else Inode(bytearray(content), content)
        self.durable = dict(self.names)
        self.unsynced: list[dict[Path, Inode | str | None]] = []

    def apply(self, call: str, paths: Sequence[Path], given: str, result: int, data: bytes) -> None:
        path = paths[-1] if paths else None
        match call:
            case "openat":
                if path not in self.names and "O_CREAT" in given:
                    self._change({path: Inode()})
                elif "O_TRUNC" in given and (inode := self.names.get(path)):
                    inode.content.clear()
            case "write":
                self.names[path].content += data[:result]
            case "ftruncate":
                size = int(given.rpartition(", ")[2])
                del self.names[path].content[size:]
            case "fsync" | "fdatasync":
                self._sync(path)
            case "rename":
                self._change({path: self.names[paths[0]], paths[0]: "gone"})
            case "unlink" | "unlinkat":
                self._change({path: "gone"})
            case "mkdir":
                self._change({path: FOLDER})
            case _:
                raise AssertionError(f"{call} of {paths} is not understood")

    def _change(self, changes: dict[Path, Inode | str | None]) -> None:
        self.unsynced.append(changes)
        put(self.names, changes)

    def _sync(self, path: Path) -> None:
        if path in self.names and (inode := self.names[path]):
            inode.durable = bytes(inode.content)
            return
        done = [changes for changes in self.unsynced if any(name.parent == path for name in changes)]
        for changes in done:
            put(self.durable, changes)
            self.unsynced.remove(changes)

    def leave(self, target: Path, chance: random.Random) -> None:
        """Write what a power cut may leave now to the folder `target`."""
        names = dict(self.durable)
        for changes in self.unsynced:
            if chance.random() < 0.5:
                put(names, changes)
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        for path, inode in sorted(names.items()):
            there = target / path.relative_to(self.root)
            if not there.parent.is_dir():
                continue
            if inode is FOLDER:
                there.mkdir(mode=0o700)
            else:
                there.write_bytes(inode.left(chance))
                there.chmod(0o600)


def put(names: dict[Path, Inode | None], changes: dict[Path, Inode | str | None]) -> None:
    for path, inode in changes.items():
        if inode == "gone":
            names.pop(path, None)
        else:
            names[path] = inode


def calls(traces: Sequence[Path], root: Path) -> Iterator[tuple[str, list[Path], str, int, bytes]]:
    """The calls of all threads about files in the folder, in the order in which they were over."""
    prefix = "".join(f"\\x{byte:02x}" for byte in bytes(root))
    lines = [line for trace in traces for line in trace.read_text(encoding="ascii").splitlines() if prefix in line]
    found = [call for call in map(LINE.fullmatch, lines) if call]
    for call in sorted(found, key=lambda call: float(call["began"]) + float(call["took"])):
        strings = [bytes.fromhex(each.replace("\\x", "")) for each in PATH.findall(call["given"])]
        data = strings.pop() if call["call"] == "write" else b""
        paths = [path for each in strings if (path := Path(each.decode())).is_relative_to(root) and path != root.parent]
        if paths and "(deleted)" not in call["given"]:
            yield call["call"], paths, call["given"], int(call["result"]), data


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Five nodes ran to their end in the folder `ward`; returns it, a copy of what it was before, and all calls."""
    if shutil.which("strace") is None:
        pytest.skip("needs strace, a package of Debian")
    there = tmp_path_factory.mktemp("cuts").resolve()
    task = 'name = "pushes.py:task"'
    field = Field(there / "ward", 5, task=task, compressor="q4", rounds=ROUNDS, method="plain", linger_s=20.0)
    (field.folder / "pushes.py").write_text(PUSHES, encoding="utf-8")
    (field.folder / "go").touch()
    shutil.copytree(field.folder, there / "before")
    trace = ["strace", "-ff", "-ttt", "-T", "-y", "-xx", "-s", str(1 << 27), "-e", f"trace={CALLS}", "-o", there / "t"]
    run = subprocess.run([*trace, *P2PFL, "launch", field.folder], capture_output=True, timeout=DEADLINE_S, check=False)
    if run.returncode and b"ptrace" in run.stderr:
        pytest.skip("strace may not trace here")
    assert run.returncode == 0, run.stderr[-2000:]
    done = list(calls(sorted(there.glob("t.*")), field.folder))
    shutil.move(field.folder, there / "after")
    shutil.copytree(there / "before", field.folder)
    return field.folder, there / "after", done


def test_the_record_makes_the_folder_that_the_nodes_left_and_no_durable_file_is_in_a_folder_that_is_not(recorded):
    folder, after, done = recorded
    disk = Disk(folder)
    for call in done:
        disk.apply(*call)
        gone = [path for path, inode in disk.durable.items() if inode and path.parent not in {folder, *disk.durable}]
        assert not gone, "it is durable, and the name of its folder is not"
    left = {path.relative_to(folder): inode and bytes(inode.content) for path, inode in disk.names.items()}
    assert left == {path.relative_to(after): None if path.is_dir() else path.read_bytes() for path in after.rglob("*")}


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("cuts", [4, pytest.param(200, marks=pytest.mark.long)])
def test_after_a_power_cut_of_all_nodes_all_resume_and_nothing_is_lost(recorded, cuts):
    folder, _, done = recorded
    seed = random.SystemRandom().randrange(2**32)
    chance = random.Random(seed)
    print(f"seed {seed}")  # noqa: T201 - of the cuts; the record is another each time
    resumed = 0
    for instant in sorted(chance.sample(range(len(done)), cuts)):
        shutil.rmtree(folder)
        shutil.copytree(folder.with_name("before"), folder)
        disk = Disk(folder)
        for call in done[:instant]:
            disk.apply(*call)
        disk.leave(folder, chance)
        command = [*P2PFL, "launch", folder]
        run = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
        print(f"after call {instant} of {len(done)}: {run.stdout[-1000:]}{run.stderr[-3000:]}")  # noqa: T201
        assert run.returncode == 0
        resumed += sum("resuming after round" in log.read_text() for log in folder.glob("*/node.log"))
        check_nothing_lost(folder)
    assert resumed
