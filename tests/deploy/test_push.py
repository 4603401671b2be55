"""`p2pfl deploy push`, with an ssh that is played: who gets which node, what is sent, what is refused in time.

And from five empty boards on, in a box: namespaces of network and files, each with an sshd and a player of systemd, no
way out. What p2pfl needs is not installed on them but lent by this environment: the rest is as on a board.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
from functools import partial
from pathlib import Path

import pytest

from p2pfl.cli.main import main
from tests.deploy.conftest import BOARDS

sys.path.insert(0, str(Path(__file__).parents[1]))
from lan_in_a_box import Lan, why_not

SSH = """#!/bin/sh
# Keeps what it was called with and what it was sent, and answers as the file of its host says.
cd "${0%/*}" && host=${8#pi@}.install
case $9 in *--probe*) host=${8#pi@}.probe ;; esac
echo "$@" >>words
cat >$host.tar
if [ -f $host ]; then . ./$host; else echo probe aarch64 3.12 2.36 4000000; fi
"""


def program(file, text):
    file.parent.mkdir(exist_ok=True, parents=True)
    file.write_text(text, encoding="ascii")
    file.chmod(0o755)


def make_wheel(folder, name, tag="py3-none-any", *, needs=(), files=None):
    """A package with nothing but these files, and what it needs."""
    said = "Metadata-Version: 2.1\nName: {}\nVersion: {}\nProvides-Extra: lan\n".format(*name.split("-"))
    every = {
        **(files or {}),
        f"{name}.dist-info/METADATA": said + "".join(f"Requires-Dist: {need}\n" for need in needs),
        f"{name}.dist-info/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n",
        f"{name}.dist-info/RECORD": "",
    }
    with zipfile.ZipFile(folder / f"{name}-{tag}.whl", "w") as archive:
        for path, text in every.items():
            archive.writestr(path, text)
    return archive.filename


@pytest.fixture
def push(tmp_path, monkeypatch, capsys):
    """Push from a computer that finds ssh and wheels in `tmp_path`; return the exit code and what was said."""
    path, offline = f"{tmp_path}/bin:{os.environ['PATH']}", {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": "/dev/null"}
    for name, value in {**offline, "PIP_FIND_LINKS": str(tmp_path), "PATH": path}.items():
        monkeypatch.setenv(name, value)

    def push(source, *words):
        with pytest.raises(SystemExit) as left:
            main(["deploy", "push", str(tmp_path / "five"), "--torch", "none", "--source", source, *words])
        return left.value.code, capsys.readouterr().err

    return push


@pytest.fixture
def played(push, five_boards, tmp_path):
    """Push to boards that have an aarch64 with Python 3.12."""
    program(tmp_path / "bin/ssh", SSH)
    for tag in ("cp312-cp312-manylinux_2_36_aarch64", "cp312-cp312-manylinux_2_38_aarch64", "cp311-cp311-linux_x86_64"):
        make_wheel(tmp_path, "numb-1.0", tag)
    needs = ("numb", "older; python_version < '3.12'", "intel; platform_machine == 'x86_64'")
    return partial(push, make_wheel(tmp_path, "p2pfl_gossip-9.1", needs=needs))


def test_each_board_gets_its_own_key_alone_and_by_stdin(played, five_boards, tmp_path):
    for name in ("invites.json", "more/other.key", "old/node.key", "pi1/state/log", "pi1/tls.key", ".git/x", "task.py"):
        (five_boards / name).parent.mkdir(exist_ok=True)
        (five_boards / name).write_text("x", encoding="ascii")
    code, said = played("pi@pi1", "pi2=pi@pi2", "pi@pi3.local")
    assert code == 0, said
    for host, name in ("pi1", "pi1"), ("pi2", "pi2"), ("pi3.local", "pi3"):
        with tarfile.open(tmp_path / f"bin/{host}.install.tar") as archive:
            sent = {entry.name for entry in archive if entry.isfile() and not entry.name.startswith("bundle/")}
        own = {f"federation/{name}/{file}" for file in ("node.toml", "node.key", *["tls.key"] * (name == "pi1"))}
        assert sent == {"federation/federation.toml", "federation/task.py", *own}
        key = (five_boards / name / "node.key").read_bytes().strip()
        assert not [file for file in ("words", f"{host}.probe.tar") if key in (tmp_path / "bin" / file).read_bytes()]


def test_a_bundle_is_made_once_for_a_kind_of_board_with_what_that_board_needs_and_its_hashes(played, tmp_path):
    code, said = played("pi@pi1", "pi@pi2")
    assert (code, said.count("bundle for aarch64, Python 3.12")) == (0, 1)
    (bundle,) = (tmp_path / "five.bundles").iterdir()
    assert sorted(file.name for file in (bundle / "wheels").iterdir()) == [
        "numb-1.0-cp312-cp312-manylinux_2_36_aarch64.whl",
        "p2pfl_gossip-9.1-py3-none-any.whl",
    ]
    subprocess.run(["sha256sum", "--strict", "-c", "SHA256SUMS"], cwd=bundle, check=True)
    assert "bundle for" not in played("pi@pi1")[1]
    (tmp_path / "five/requirements.txt").write_text("numb", encoding="ascii")
    played("pi@pi1")
    assert [path == bundle for path in bundle.parent.iterdir()] == [False]


@pytest.mark.parametrize(
    ("targets", "answer", "said"),
    [
        (["pi@nowhere"], "", "no node of five-boards, or twice (found 'pi@nowhere'); allowed: NODE=USER@HOST"),
        (["pi2=pi@pi1"], "", "or twice (found 'pi2=pi@pi1')"),
        (["pi@pi2"], "echo ssh: No route to host; exit 255", "pi@pi2: ssh: No route to host: `ssh pi@pi2` must work"),
        (["pi@pi2"], "echo error: no venv; exit 2", "pi@pi2: no venv"),
        (["pi@pi2"], "echo probe aarch64 3.12 2.36 1000", "pi@pi2: too little room in /opt or /var/tmp: 0 MB free"),
        (["pi@pi2"], "echo probe aarch64 3.13 2.36 4000000", "pip cannot get the packages for aarch64 with Python 3.1"),
    ],
)
def test_one_unfit_board_is_named_and_none_is_changed(played, tmp_path, targets, answer, said):
    (tmp_path / "bin/pi2.probe").write_text(answer, encoding="ascii")
    code, text = played("pi@pi1", *targets)
    assert code == 2
    assert said in text
    assert not [*tmp_path.glob("bin/*.install.tar")]


SUMS = "(cd $bundle && find . -type f ! -name SHA256SUMS -printf '%P\\n' | sort | xargs sha256sum >SHA256SUMS)"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("echo b >$bundle/wheels/a.whl", "a file is not what its hash says"),
        ("touch $bundle/wheels/more.whl", "the files are not those of SHA256SUMS"),
        (f"sed -i 's/^[^ ]*/sparc/' $bundle/KIND; {SUMS}", "the bundle is for sparc; this machine is "),
        (f"sed -i 's/ 3[.0-9]*/ 3.99/' $bundle/KIND; {SUMS}", "the bundle is for Python 3.99; here is Python 3"),
        (f"sed -i 's/2.17/2.99/' $bundle/KIND; {SUMS}", "the bundle is for glibc 2.99 or newer; here is glibc 2."),
        ("probe=1000; probe", "days from that of your computer; there: ssh HOST sudo date -s"),
    ],
)
def test_a_board_refuses_a_wrong_bundle_and_a_clock_years_off(deploy, run, tmp_path, change, said):
    bundle = tmp_path / "bundle"
    (bundle / "wheels").mkdir(parents=True)
    (bundle / "wheels/a.whl").write_text("a", encoding="ascii")
    (bundle / "KIND").write_text(f"{os.uname().machine} {sys.version[:4]} 2.17 1.0\n", encoding="ascii")
    script = (deploy / "install.sh").read_text(encoding="utf-8").partition('\nparse_arguments "$@"\n')[0]
    steps = f"parse_arguments --python {sys.executable}\nbundle={bundle}\n{SUMS}\n{change}\ncheck_bundle"
    outcome = run("bash", "-c", f"{script}\n{steps}")
    assert outcome.code == 2
    assert said in outcome.err


BOARD = r"""
set -e
exec >"$1/log" 2>&1
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/sshd /run/systemd/system "$1/opt" "$1/lib" "$1/home"
mkdir -m 1777 "$1/tmp"
cp -a /etc "$1/etc"
cp "$2/key.pub" "$1/etc"
for place in etc:/etc opt:/opt lib:/var/lib tmp:/var/tmp home:/home bin:/usr/local/bin; do
    mount --bind "$1/${place%:*}" "${place#*:}"
done
useradd --create-home --password '*' pi
echo 'pi ALL=(ALL) NOPASSWD: ALL' >/etc/sudoers.d/pi
exec /usr/sbin/sshd -D -e -f /dev/null -h "$2/host" -o AuthorizedKeysFile=/etc/key.pub -o StrictModes=no -o UsePAM=no
"""
SYSTEMCTL = r"""#!/bin/bash
# Plays systemd for this board's one unit: a process, with its number in /run/unit, which is ready once it listens.
name=NAME
runs() { kill -0 "$(cat /run/unit 2>/dev/null)" 2>/dev/null; }
case $1 in
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
"""


class Boards(Lan):
    """A laptop with the federation `five`, and the boards that it reaches by ssh, as pi@NAME."""

    folder: Path

    def edit(self, how):
        subprocess.run(["sed", "-i", how, self.folder / "five/federation.toml"], check=True)

    def on(self, name, command):
        words = [self.folder / "bin/ssh", f"root@{name}", command]
        return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()

    def train_on(self, *names):
        status = "runuser -u p2pfl -- /opt/p2pfl/venv/bin/p2pfl status /var/lib/p2pfl --format csv"
        for name in names:
            rounds, end = set(), time.monotonic() + 60
            while len(rounds) < 2:
                rounds |= {*re.findall(rf"(?m)^http[^,]*,{name},\w+,([1-9]\d*)", self.on(name, status))}
                assert time.monotonic() < end, self.on(name, "tail -n 20 /run/log")

    def environments(self, name):
        """The versions of its environments, and of that in use."""
        return self.on(name, "cd /opt/p2pfl; { ls env; readlink venv; } | sed 's/env.//; s/-.*//'").split()

    def release(self, version, where="p2pfl/cli/run.py", line=""):
        """A wheel of this p2pfl, with a line put at the end of a file; it needs nothing but what is lent."""
        (built,) = self.folder.glob("built/*.whl")
        head, name = "-".join(built.name.split("-")[:2]), f"p2pfl_gossip-{version}"
        with zipfile.ZipFile(built) as old:
            kept = [path for path in old.namelist() if not path.endswith(("METADATA", "WHEEL", "RECORD"))]
            files = {path.replace(head, name): old.read(path) for path in kept}
        files[where] += f"\n{line}\n".encode()
        return make_wheel(self.folder, name, files=files)


@pytest.fixture
def boards(push, tmp_path, tool):
    if reason := why_not():
        pytest.skip(reason)
    for name in "/usr/sbin/sshd", "ssh", "sudo", "setpriv":
        tool(name)
    same = f"import ensurepip, sys; sys.exit(sys.version_info[:2] != {sys.version_info[:2]})"
    if subprocess.run(["/usr/bin/python3", "-c", same], capture_output=True, check=False).returncode:
        pytest.skip("Debian's Python has no venv, or is another version than this one, whose packages are lent")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path / "built"]
    subprocess.run(build, cwd=Path(__file__).parents[2], check=True, capture_output=True)
    make_wheel(tmp_path, "lent-1.0", files={"lent.pth": f"{Path(pytest.__file__).parents[1]}\n"})
    for key in "host", "key":
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / key], check=True)
    config = f"IdentityFile {tmp_path}/key\nStrictHostKeyChecking no\nUserKnownHostsFile /dev/null\nLogLevel ERROR\n"
    with pytest.raises(SystemExit):
        main(["new", str(tmp_path / "five"), "--nodes", ",".join(BOARDS), "--lan"])
    with Boards() as box:
        box.folder = tmp_path
        box.edit('s/^rounds = .*/rounds = 1000000/; s/"task.py:task"/"quadratic"\\nstep_s = 0.02/')
        (tmp_path / "five/requirements.txt").write_text("lent\n", encoding="ascii")
        ssh = f'exec ip netns exec {box.host("laptop").namespace} {shutil.which("ssh")} -F {tmp_path}/config "$@"'
        program(tmp_path / "bin/ssh", f"#!/bin/sh\n{ssh}\n")
        for name in BOARDS:
            program(tmp_path / name / "bin/systemctl", SYSTEMCTL.replace("NAME", name))
            host = box.host(name)
            host.start("bash", "-c", BOARD, "board", tmp_path / name, tmp_path)
            config += f"Host {name}\n  HostName {host.ipv4}\n"
        (tmp_path / "config").write_text(config, encoding="ascii")
        end = time.monotonic() + 60
        while any(box.on(name, "echo there") != "there" for name in BOARDS):
            assert time.monotonic() < end, (tmp_path / BOARDS[0] / "log").read_text(encoding="utf-8")
        yield box


BROKEN = {
    "raises where it is tried": ("p2pfl/node/application.py", "raise ImportError('worn')", "worn"),
    "reads no such state": ("p2pfl/engine/changes.py", "FORMAT = 2", "state has format 3, this software reads 2"),
    "ends when it runs": ("p2pfl/cli/run.py", "raise SystemExit('broken')", "switching back to env/9.0-"),
}


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_from_five_empty_boards_to_a_federation_and_through_good_and_bad_updates(boards, push):
    assert push(boards.release("9.0"), *(f"pi@{name}" for name in BOARDS))[0] == 0
    boards.train_on(*BOARDS)
    assert boards.environments("pi1") == ["9.0", "9.0"]
    listed = boards.on("pi1", "cd /var/lib/p2pfl; stat -c '%a %U' pi1 pi1/node.key; ls */node.key; ls /var/tmp")
    assert listed.splitlines() == ["700 p2pfl", "600 p2pfl", "pi1/node.key"]

    number = boards.on("pi1", "cat /run/unit")
    boards.edit("s/^rounds = 1/rounds = 2/")
    for how, (where, line, expected) in BROKEN.items():
        code, said = push(boards.release("9.1", where, line), "pi@pi1", "pi@pi2")
        assert code == 1, how
        assert all(text in said for text in (expected, "pi1  comparing hashes", "not touched: pi2")), said
        assert boards.environments("pi1") == ["9.0", "9.0"]
        assert "rounds = 1000000" in boards.on("pi1", "cat /var/lib/p2pfl/federation.toml")
        assert (boards.on("pi1", "cat /run/unit") == number) == (how != "ends when it runs"), how
    boards.edit("s/^rounds = 2/rounds = 1/")
    boards.train_on("pi1", "pi2")
    assert push(boards.release("9.2"), "pi@pi1")[0] == 0
    assert boards.environments("pi1") == ["9.0", "9.2", "9.2"]
    boards.train_on("pi1", "pi2")  # two versions together
    assert push("", "--rollback", "pi@pi1")[0] == 0
    assert boards.environments("pi1") == ["9.0", "9.2", "9.0"]
    boards.train_on("pi1")
    assert push(boards.release("9.3"), "pi@pi1")[0] == 0
    assert boards.environments("pi1") == ["9.0", "9.3", "9.3"]
