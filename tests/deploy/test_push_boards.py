"""Five empty boards, in a box: namespaces of network and files, each with an sshd and a player of systemd, no way out.

What p2pfl needs is not installed on them but lent by this environment: the rest is as on a board.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from lan_in_a_box import Lan, why_not

ROOT = Path(__file__).parents[2]
NAMES = ("pi1", "pi2", "pi3", "pi4", "pi5")
PYTHON = "/usr/bin/python3"
BOARD = r"""
set -e
exec >"$1/log" 2>&1
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/sshd /run/systemd/system "$1/opt" "$1/lib" "$1/home"
mkdir -m 1777 "$1/tmp"
cp -a /etc "$1/etc"
cp "$2/key.pub" "$1/etc"
rm -rf "$1/etc/systemd/system"
for place in etc:/etc opt:/opt lib:/var/lib tmp:/var/tmp home:/home bin:/usr/local/bin; do
    mount --bind "$1/${place%:*}" "${place#*:}"
done
useradd --create-home pi
usermod -p '*' pi
echo 'pi ALL=(ALL) NOPASSWD: ALL' >/etc/sudoers.d/pi
exec /usr/sbin/sshd -D -e -f /dev/null -h "$2/host" -o AuthorizedKeysFile=/etc/key.pub -o StrictModes=no -o UsePAM=no
"""
SYSTEMCTL = r"""#!/bin/bash
# Plays systemd for this board's one unit: a process, with its number in /run/unit, which is ready once it listens.
verb=$1 name=NAME
runs() { kill -0 "$(cat /run/unit 2>/dev/null)" 2>/dev/null; }
case $verb in
list-units) if runs; then echo "p2pfl@$name.service loaded active running"; fi ;;
start | enable)
    runs && exit
    for opened in {3..30}; do eval "exec $opened>&-"; done
    cd /var/lib/p2pfl || exit 1
    command=$(sed -n 's/^ExecStart=//p' '/etc/systemd/system/p2pfl@.service')
    setsid setpriv --reuid p2pfl --regid p2pfl --clear-groups ${command//%i/$name} </dev/null >>/run/log 2>&1 &
    echo $! >/run/unit
    until [ -f "$name/state/address.json" ]; do runs || exit 1; sleep .1; done ;;
stop)
    runs && kill "$(cat /run/unit)"
    while runs; do sleep .05; done ;;
is-active) if runs; then echo active; else echo failed; exit 3; fi ;;
esac
exit 0
"""


class Boards(Lan):
    """A laptop with the federation `five`, and the boards that it reaches by ssh, as pi@NAME."""

    def __init__(self, folder):
        super().__init__()
        self.folder, self.five = folder, folder / "five"

    def __enter__(self):
        super().__enter__()
        folder = self.folder
        self.laptop = self.host("laptop")
        for key in "host", "key":
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / key], check=True)
        config = f"IdentityFile {folder}/key\nStrictHostKeyChecking no\nUserKnownHostsFile /dev/null\nLogLevel ERROR\n"
        for name in NAMES:
            (folder / name / "bin").mkdir(parents=True)
            for program, text in (
                ("systemctl", SYSTEMCTL.replace("NAME", name)),
                ("journalctl", "#!/bin/sh\ntail -n 20 /run/log\n"),
            ):
                self.script(folder / name / "bin" / program, text)
            host = self.host(name)
            host.start("bash", "-c", BOARD, "board", folder / name, folder)
            config += f"Host {name}\n  HostName {host.ipv4}\n"
        (folder / "config").write_text(config, encoding="ascii")
        ssh = f'exec ip netns exec {self.laptop.namespace} {shutil.which("ssh")} -F {folder}/config "$@"\n'
        self.script(folder / "bin/ssh", f"#!/bin/sh\n{ssh}")
        end = time.monotonic() + 60
        while any(self.on(name, "echo there") != "there" for name in NAMES):
            assert time.monotonic() < end, (folder / NAMES[0] / "log").read_text(encoding="utf-8")
        return self

    def script(self, file, text):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="ascii")
        file.chmod(0o755)

    def p2pfl(self, *words):
        path, wheels = f"{self.folder}/bin:{os.environ['PATH']}", {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": self.folder}
        environment = os.environ | wheels | {"PATH": path, "PYTHONPATH": str(ROOT), "PIP_CONFIG_FILE": "/dev/null"}
        words = [sys.executable, "-m", "p2pfl.cli.main", *map(str, words)]
        return subprocess.run(words, capture_output=True, text=True, env=environment, check=False, timeout=900)

    def push(self, *words, names=NAMES):
        return self.p2pfl("deploy", "push", self.five, *(f"pi@{name}" for name in names), "--torch", "none", *words)

    def on(self, name, *command):
        done = subprocess.run(
            [self.folder / "bin/ssh", f"root@{name}", *command], capture_output=True, text=True, check=False
        )
        return done.stdout.strip()

    def round(self, name):
        rows = self.on(name, "runuser -u p2pfl -- /opt/p2pfl/venv/bin/p2pfl status /var/lib/p2pfl --format csv")
        found = re.search(rf"^http[^,]*,{name},\w+,(\d+)", rows, re.MULTILINE)
        return int(found[1]) if found else -1

    def trains_on(self, name):
        before, end = self.round(name), time.monotonic() + 60
        while self.round(name) <= max(before, 0):
            assert time.monotonic() < end, self.on(name, "tail -n 20 /run/log")
        return True

    def environments(self, name):
        return sorted(self.on(name, "ls /opt/p2pfl/env").split()), self.on(name, "readlink /opt/p2pfl/venv")

    def release(self, version, where="", line=""):
        """A wheel of this p2pfl, with a line put at the end of a file; it needs nothing but what is lent."""
        (built,) = self.folder.glob("built/*.whl")
        head = built.name.split("-")[1]
        file = self.folder / f"releases/p2pfl_gossip-{version}-py3-none-any.whl"
        file.parent.mkdir(exist_ok=True)
        with zipfile.ZipFile(built) as old, zipfile.ZipFile(file, "w") as new:
            for name in old.namelist():
                content = old.read(name)
                if name.endswith("METADATA"):
                    text = content.decode().replace(f"Version: {head}\n", f"Version: {version}\n", 1)
                    content = re.sub("(?m)^Requires-Dist: .*\n", "", text).encode()
                content += f"\n{line}\n".encode() if name == where else b""
                new.writestr(name.replace(f"p2pfl_gossip-{head}", f"p2pfl_gossip-{version}"), content)
        return file


@pytest.fixture
def boards(tmp_path, tool):
    if reason := why_not():
        pytest.skip(reason)
    for program in "/usr/sbin/sshd", "ssh", "sudo", "setpriv":
        tool(program)
    same = f"import ensurepip, sys; sys.exit(sys.version_info[:2] != {sys.version_info[:2]})"
    if subprocess.run([PYTHON, "-c", same], capture_output=True, check=False).returncode:
        pytest.skip(f"{PYTHON} has no venv, or is another version than this one, whose packages are lent to boards")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path / "built"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    with zipfile.ZipFile(tmp_path / "lent-1.0-py3-none-any.whl", "w") as archive:
        site = next(path for path in sys.path if path.endswith("site-packages"))
        archive.writestr("lent.pth", f"{site}\n")
        archive.writestr("lent-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: lent\nVersion: 1.0\n")
        archive.writestr("lent-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("lent-1.0.dist-info/RECORD", "")
    with Boards(tmp_path) as box:
        done = box.p2pfl("new", box.five, "--nodes", ",".join(NAMES), "--lan")
        assert done.returncode == 0, done.stderr
        text = (box.five / "federation.toml").read_text(encoding="utf-8")
        text = re.sub(
            r"(?m)^rounds = \d+", "rounds = 1000000", text.replace('"task.py:task"', '"quadratic"\nstep_s = 0.02')
        )
        (box.five / "federation.toml").write_text(text, encoding="utf-8")
        (box.five / "requirements.txt").write_text("lent\n", encoding="ascii")
        yield box


BROKEN = {
    "raises where it is tried": ("p2pfl/node/application.py", "raise ImportError('worn')", "worn"),
    "reads no such state": ("p2pfl/engine/changes.py", "FORMAT = 2", "state has format 3, this software reads 2"),
    "ends when it runs": ("p2pfl/cli/run.py", "raise SystemExit('broken')", "switching back to env/9.0-"),
}


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_from_five_empty_boards_to_a_federation_and_through_good_and_bad_updates(boards):
    begun = time.monotonic()

    def push(*words, names=("pi1",), code=0):
        done = boards.push(*words, names=names)
        sys.stderr.write(f"after {time.monotonic() - begun:.0f} s: {words}\n{done.stderr}")
        assert done.returncode == code
        return done.stderr

    push("--source", boards.release("9.0"), names=NAMES)
    assert all(boards.trains_on(name) for name in NAMES)
    (nine,), link = boards.environments("pi1")
    assert link == f"env/{nine}"
    listed = boards.on("pi1", "cd /var/lib/p2pfl; stat -c '%a %U' pi1 pi1/node.key; ls */node.key; ls /var/tmp")
    assert listed.splitlines() == ["700 p2pfl", "600 p2pfl", "pi1/node.key"]

    file, number = boards.five / "federation.toml", boards.on("pi1", "cat /run/unit")
    before = file.read_text(encoding="utf-8")
    file.write_text(before.replace("rounds = 1000000", "rounds = 2000000"), encoding="utf-8")
    for how, (where, line, expected) in BROKEN.items():
        said = push("--source", boards.release("9.1", where, line), names=("pi1", "pi2"), code=1)
        assert expected in said, how
        assert "not touched: pi2" in said
        assert boards.environments("pi1") == ([nine], link)
        assert "rounds = 1000000" in boards.on("pi1", "cat /var/lib/p2pfl/federation.toml")
        was_stopped = boards.on("pi1", "cat /run/unit") != number
        assert was_stopped == (how == "ends when it runs"), how
    file.write_text(before, encoding="utf-8")
    assert all(boards.trains_on(name) for name in ("pi1", "pi2"))

    push("--source", boards.release("9.2"))
    both, link = boards.environments("pi1")
    assert [one.partition("-")[0] for one in both] == ["9.0", "9.2"]
    assert link.startswith("env/9.2-")
    assert all(boards.trains_on(name) for name in ("pi1", "pi2")), "two versions together"
    push("--rollback")
    assert boards.environments("pi1") == (both, f"env/{nine}")
    assert boards.trains_on("pi1")
    push("--source", boards.release("9.3"))
    assert [one.partition("-")[0] for one in boards.environments("pi1")[0]] == ["9.0", "9.3"]
