"""`p2pfl deploy push` with an ssh that is played: who gets which node, what is sent, what is refused in time."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tarfile
import time
import zipfile

import pytest

from p2pfl.cli.main import main

SSH = """#!/bin/sh
# Says what it was called with, keeps what it was sent, and answers as the file of its host says.
for word; do
    case $word in pi@*) host=${word#pi@} ;; esac
    echo "$word" >>"$(dirname "$0")/words"
done
case "$*" in *--probe*) kept=probe ;; *) kept=install ;; esac
cat >"$(dirname "$0")/$host.$kept.tar"
if [ -f "$(dirname "$0")/$host.$kept" ]; then . "$(dirname "$0")/$host.$kept"; fi
"""


def wheel(folder, name, tag, needs=()):
    """An empty package, with what it needs."""
    about = "".join(f"Requires-Dist: {need}\n" for need in needs)
    file = folder / f"{name}-{tag}.whl"
    distribution, version = name.split("-")
    with zipfile.ZipFile(file, "w") as archive:
        said = f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\nProvides-Extra: lan\n{about}"
        archive.writestr(f"{name}.dist-info/METADATA", said)
        archive.writestr(f"{name}.dist-info/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n")
        archive.writestr(f"{name}.dist-info/RECORD", "")
    return file


@pytest.fixture
def push(five_boards, tmp_path, monkeypatch, capsys):
    """Push to boards that have an aarch64 with Python 3.12; return the exit code and what was said."""
    machine, index = tmp_path / "machine", tmp_path / "index"
    machine.mkdir()
    index.mkdir()
    (machine / "ssh").write_text(SSH, encoding="ascii")
    (machine / "ssh").chmod(0o755)
    needs = ("numb", "older; python_version < '3.12'", "intel; platform_machine == 'x86_64'")
    source = wheel(index, "p2pfl_gossip-9.1", "py3-none-any", needs)
    for tag in ("cp312-cp312-manylinux_2_36_aarch64", "cp312-cp312-manylinux_2_38_aarch64", "cp311-cp311-linux_x86_64"):
        wheel(index, "numb-1.0", tag)
    for name, value in {"NO_INDEX": "1", "FIND_LINKS": str(index), "CONFIG_FILE": "/dev/null"}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    monkeypatch.setenv("PATH", f"{machine}:{os.environ['PATH']}")

    class Push:
        five, bundles = five_boards, tmp_path / "five.bundles"

        def answer(self, host, text, when="probe"):
            (machine / f"{host}.{when}").write_text(text, encoding="ascii")

        def __call__(self, *words, torch="none"):
            with pytest.raises(SystemExit) as left:
                main(["deploy", "push", str(self.five), "--source", str(source), "--torch", torch, *words])
            return left.value.code, capsys.readouterr().err

        def words(self):
            return (machine / "words").read_text(encoding="utf-8")

        def sent(self, host, when="install"):
            with tarfile.open(machine / f"{host}.{when}.tar") as archive:
                return {entry.name: entry for entry in archive if entry.isfile()}

        def touched(self):
            return sorted(path.name.partition(".")[0] for path in machine.glob("*.install.tar"))

    found = Push()
    for host in ("pi1", "pi2", "pi3.local"):
        found.answer(host, f"echo probe aarch64 3.12 2.36 4000000 {time.time():.0f}")
    return found


def test_each_board_gets_its_own_key_alone_by_stdin_and_nobody_else_may_read_it(push):
    for name in ("invites.json", "more/other.key", "pi1/state/log", "pi1/tls.key", "task.py"):
        (push.five / name).parent.mkdir(exist_ok=True)
        (push.five / name).write_text("x", encoding="ascii")
    code, said = push("pi@pi1", "pi2=pi@pi2", "pi@pi3.local")
    assert code == 0, said
    for host, name in ("pi1", "pi1"), ("pi2", "pi2"), ("pi3.local", "pi3"):
        sent = push.sent(host)
        ours = {path.removeprefix("federation/") for path in sent if path.startswith("federation/")}
        own = {"node.toml", "node.key", *(["tls.key"] if name == "pi1" else [])}
        assert ours == {"federation.toml", "task.py", *(f"{name}/{file}" for file in own)}
        assert {entry.mode for entry in sent.values()} == {0o600}
        assert not [path for path in push.sent(host, "probe") if not path.startswith("bundle/")]
        assert (push.five / name / "node.key").read_text(encoding="ascii").strip() not in push.words()
    assert "BatchMode=yes" in push.words()


def test_a_bundle_is_made_once_for_a_kind_of_board_with_what_that_board_needs_and_its_hashes(push):
    code, said = push("pi@pi1", "pi@pi2")
    assert (code, said.count("bundle for aarch64, Python 3.12")) == (0, 1)
    (bundle,) = push.bundles.iterdir()
    assert sorted(file.name for file in (bundle / "wheels").iterdir()) == [
        "numb-1.0-cp312-cp312-manylinux_2_36_aarch64.whl",
        "p2pfl_gossip-9.1-py3-none-any.whl",
    ]
    for line in (bundle / "SHA256SUMS").read_text(encoding="ascii").splitlines():
        digest, _, name = line.partition("  ")
        assert hashlib.sha256((bundle / name).read_bytes()).hexdigest() == digest
    made = bundle.stat().st_mtime_ns
    push("pi@pi1")
    assert [path.stat().st_mtime_ns for path in push.bundles.iterdir()] == [made]


def test_the_hashes_of_a_release_hold(push, tmp_path):
    good = hashlib.sha256((tmp_path / "index/numb-1.0-cp312-cp312-manylinux_2_36_aarch64.whl").read_bytes()).hexdigest()
    for digest, expected in ("0" * 64, 2), (good, 0):
        (tmp_path / "index/requirements.txt").write_text(f"numb==1.0 --hash=sha256:{digest}\n", encoding="ascii")
        code, said = push("pi@pi1")
        assert (code, "HASHES" in said) == (expected, expected == 2)


@pytest.mark.parametrize(
    ("targets", "said"),
    [
        (
            ["pi@pi1", "pi@nowhere"],
            "names no node of five-boards (found 'pi@nowhere'); allowed: NODE=USER@HOST with one",
        ),
        (["pi@pi1", "pi1=pi@pi2"], "the same node or host twice (found 'pi1=pi@pi2')"),
        (["pi@pi1", "pi2=pi@pi1"], "the same node or host twice"),
        (["pi1=-oProxyCommand=x"], "names no node"),
    ],
)
def test_a_board_that_names_no_node_or_one_twice_is_refused_before_anybody_is_called(push, targets, said):
    code, text = push(*targets)
    assert code == 2
    assert said in text
    assert not push.touched()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (
            "echo ssh: connect to host pi2 port 22: No route to host; exit 255",
            "pi@pi2: ssh: connect to host pi2 port 22",
        ),
        ("echo error: this Python cannot make virtual environments: apt install python3-venv; exit 2", "python3-venv"),
        ("echo error: sudo asks for a password; exit 2", "pi@pi2: sudo asks for a password"),
        ("echo probe aarch64 3.12 2.36 4000000 1000", "days from this computer's: ssh pi@pi2 sudo date -s"),
        ("echo probe aarch64 3.12 2.36 1000 $(date +%s)", "too little room in /opt or /var/tmp: 0 MB free"),
        (
            "echo probe aarch64 3.13 2.36 4000000 $(date +%s)",
            "pip cannot get the packages for aarch64 with Python 3.13",
        ),
    ],
)
def test_one_unfit_board_is_named_and_none_is_changed(push, answer, said):
    push.answer("pi2", answer)
    code, text = push("pi@pi1", "pi@pi2")
    assert code == 2
    assert said in text
    assert not push.touched()


def test_an_address_of_the_boards_own_machine_is_refused(push):
    file = push.five / "federation.toml"
    file.write_text(re.sub(r"192\.168\.1\.12", "127.0.0.1", file.read_text("utf-8")), "utf-8")
    code, text = push("pi@pi2")
    assert code == 2
    assert "the address of pi2 is one of its own machine alone" in text


def test_a_torch_without_cuda_needs_its_index_elsewhere_than_on_aarch64(push):
    push.answer("pi1", "echo probe x86_64 3.11 2.36 4000000 $(date +%s)")
    code, text = push("pi@pi1", torch="cpu")
    assert code == 2
    assert "allowed: cpu with --torch-index URL" in text


def test_the_first_board_that_fails_ends_the_push(push):
    push.answer("pi2", "echo '* switching'; echo deep; echo error: no; exit 1", "install")
    code, text = push("pi@pi1", "pi@pi2", "pi@pi3.local")
    assert code == 1
    assert push.touched() == ["pi1", "pi2"]
    for line in (
        "pi2  switching",
        "pi2  error: no",
        "pi2  | deep",
        "pi2 failed with 1; not touched: pi3",
    ):
        assert line in text


@pytest.fixture
def check_bundle(deploy, run, tmp_path):
    """Let install.sh look at the bundle of this machine, after `change`; `SUMS` makes its hashes anew."""
    bundle = tmp_path / "bundle"
    (bundle / "wheels").mkdir(parents=True)
    (bundle / "wheels/a.whl").write_text("a", encoding="ascii")
    (bundle / "KIND").write_text(f"{os.uname().machine} 3.11 2.17 1.0\n", encoding="ascii")
    sums = "(cd $bundle && find . -type f ! -name SHA256SUMS -printf '%P\\n' | sort | xargs sha256sum >SHA256SUMS)"
    script = (deploy / "install.sh").read_text(encoding="utf-8").partition('\nparse_arguments "$@"\n')[0]
    python = shutil.which("python3.11") or shutil.which("python3")

    def check(change):
        steps = (
            f"parse_arguments --python {python}; bundle={bundle}\n{sums}\n{change.replace('SUMS', sums)}\ncheck_bundle"
        )
        return run("bash", "-c", f"{script}\n{steps}; echo $fresh")

    return check


def test_a_bundle_names_its_environment_by_version_and_content(check_bundle):
    outcome = check_bundle(":")
    assert outcome.code == 0, outcome.err
    assert re.search(r"env/1\.0-[0-9a-f]{12}\n$", outcome.out)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("echo b >$bundle/wheels/a.whl", "a file is not what its hash says"),
        ("touch $bundle/wheels/more.whl", "the files are not those of SHA256SUMS"),
        ("rm $bundle/wheels/a.whl", "the files are not those of SHA256SUMS"),
        ("sed -i 's/^[^ ]*/sparc/' $bundle/KIND; SUMS", "the bundle is for sparc; this machine is "),
        ("sed -i 's/3.11/3.99/' $bundle/KIND; SUMS", "the bundle is for Python 3.99; here is Python 3"),
        ("sed -i 's/2.17/2.99/' $bundle/KIND; SUMS", "the bundle is for glibc 2.99 or newer; here is glibc 2."),
    ],
)
def test_a_bundle_that_was_changed_or_is_for_another_board_is_refused(check_bundle, change, said):
    outcome = check_bundle(change)
    assert outcome.code == 2
    assert said in outcome.err
