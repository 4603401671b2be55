"""`p2pfl deploy push` with an ssh that is played: who gets which node, what is sent, what is refused in time."""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile

import pytest

from p2pfl.cli.main import main
from tests.deploy.conftest import make_wheel

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


@pytest.fixture
def push(five_boards, tmp_path, monkeypatch, capsys):
    """Push to boards that have an aarch64 with Python 3.12; return the exit code and what was said."""
    machine, index = tmp_path / "machine", tmp_path / "index"
    machine.mkdir()
    index.mkdir()
    (machine / "ssh").write_text(SSH, encoding="ascii")
    (machine / "ssh").chmod(0o755)
    needs = ("numb", "older; python_version < '3.12'", "intel; platform_machine == 'x86_64'")
    source = make_wheel(index, "p2pfl_gossip-9.1", needs=needs)
    for tag in ("cp312-cp312-manylinux_2_36_aarch64", "cp312-cp312-manylinux_2_38_aarch64", "cp311-cp311-linux_x86_64"):
        make_wheel(index, "numb-1.0", tag)
    for name, value in {"NO_INDEX": "1", "FIND_LINKS": str(index), "CONFIG_FILE": "/dev/null"}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    monkeypatch.setenv("PATH", f"{machine}:{os.environ['PATH']}")

    class Push:
        five, bundles = five_boards, tmp_path / "five.bundles"

        def answer(self, host, text, when="probe"):
            (machine / f"{host}.{when}").write_text(text, encoding="ascii")

        def __call__(self, *words):
            with pytest.raises(SystemExit) as left:
                main(["deploy", "push", str(self.five), "--source", str(source), "--torch", "none", *words])
            return left.value.code, capsys.readouterr().err

        def words(self):
            return (machine / "words").read_text(encoding="utf-8")

        def sent(self, host, when="install"):
            with tarfile.open(machine / f"{host}.{when}.tar") as archive:
                return [entry.name for entry in archive if entry.isfile()]

        def touched(self):
            return sorted(path.name.partition(".")[0] for path in machine.glob("*.install.tar"))

    found = Push()
    for host in ("pi1", "pi2", "pi3.local"):
        found.answer(host, "echo probe aarch64 3.12 2.36 4000000")
    return found


def test_each_board_gets_its_own_key_alone_and_by_stdin(push):
    for name in ("invites.json", "more/other.key", "old/node.key", "pi1/state/log", "pi1/tls.key", ".git/x", "task.py"):
        (push.five / name).parent.mkdir(exist_ok=True)
        (push.five / name).write_text("x", encoding="ascii")
    code, said = push("pi@pi1", "pi2=pi@pi2", "pi@pi3.local")
    assert code == 0, said
    for host, name in ("pi1", "pi1"), ("pi2", "pi2"), ("pi3.local", "pi3"):
        ours = {path.removeprefix("federation/") for path in push.sent(host) if path.startswith("federation/")}
        own = {"node.toml", "node.key", *(["tls.key"] if name == "pi1" else [])}
        assert ours == {"federation.toml", "task.py", *(f"{name}/{file}" for file in own)}
        assert push.sent(host, "probe") == ["bundle/install.sh", "bundle/p2pfl@.service"]
        assert (push.five / name / "node.key").read_text(encoding="ascii").strip() not in push.words()


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
    assert "bundle for" not in push("pi@pi1")[1]
    (push.five / "requirements.txt").write_text("numb", encoding="ascii")
    push("pi@pi1")
    assert [path == bundle for path in push.bundles.iterdir()] == [False]


@pytest.mark.parametrize(
    ("targets", "answer", "said"),
    [
        (["pi@nowhere"], "", "no node of five-boards, or twice (found 'pi@nowhere'); allowed: NODE=USER@HOST"),
        (["pi1=pi@pi2"], "", "or twice (found 'pi1=pi@pi2')"),
        (["pi2=pi@pi1"], "", "or twice (found 'pi2=pi@pi1')"),
        (["pi@pi2"], "echo ssh: No route to host; exit 255", "pi@pi2: ssh: No route to host: `ssh pi@pi2` must work"),
        (["pi@pi2"], "echo error: no venv; exit 2", "pi@pi2: no venv"),
        (["pi@pi2"], "echo probe aarch64 3.12 2.36 1000", "pi@pi2: too little room in /opt or /var/tmp: 0 MB free"),
        (["pi@pi2"], "echo probe aarch64 3.13 2.36 4000000", "pip cannot get the packages for aarch64 with Python 3.1"),
    ],
)
def test_one_unfit_board_is_named_and_none_is_changed(push, targets, answer, said):
    push.answer("pi2", answer)
    code, text = push("pi@pi1", *targets)
    assert code == 2
    assert said in text
    assert not push.touched()


def test_the_first_board_that_fails_ends_the_push(push):
    push.answer("pi2", "echo '* switching'; echo deep; echo error: no; exit 1", "install")
    code, text = push("pi@pi1", "pi@pi2", "pi@pi3.local")
    assert (code, push.touched()) == (1, ["pi1", "pi2"])
    for line in ("pi2  switching", "pi2  error: no", "deep", "pi2 failed with 1; not touched: pi3"):
        assert line in text


SUMS = "(cd $bundle && find . -type f ! -name SHA256SUMS -printf '%P\\n' | sort | xargs sha256sum >SHA256SUMS)"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("echo b >$bundle/wheels/a.whl", "a file is not what its hash says"),
        ("touch $bundle/wheels/more.whl", "the files are not those of SHA256SUMS"),
        (f"sed -i 's/^[^ ]*/sparc/' $bundle/KIND; {SUMS}", "the bundle is for sparc; this machine is "),
        (f"sed -i 's/3.11/3.99/' $bundle/KIND; {SUMS}", "the bundle is for Python 3.99; here is Python 3"),
        (f"sed -i 's/2.17/2.99/' $bundle/KIND; {SUMS}", "the bundle is for glibc 2.99 or newer; here is glibc 2."),
        ("probe=1000; probe", "days from that of your computer; there: ssh HOST sudo date -s"),
    ],
)
def test_a_board_refuses_a_bundle_that_was_changed_or_is_for_another_and_a_clock_years_off(
    deploy, run, tmp_path, change, said
):
    bundle = tmp_path / "bundle"
    (bundle / "wheels").mkdir(parents=True)
    (bundle / "wheels/a.whl").write_text("a", encoding="ascii")
    (bundle / "KIND").write_text(f"{os.uname().machine} 3.11 2.17 1.0\n", encoding="ascii")
    script = (deploy / "install.sh").read_text(encoding="utf-8").partition('\nparse_arguments "$@"\n')[0]
    python = shutil.which("python3.11") or shutil.which("python3")
    steps = f"parse_arguments --python {python}\nbundle={bundle}\n{SUMS}\n{change}\ncheck_bundle"
    outcome = run("bash", "-c", f"{script}\n{steps}")
    assert outcome.code == 2
    assert said in outcome.err
