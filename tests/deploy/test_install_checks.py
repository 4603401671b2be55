"""What install.sh finds out and refuses before it changes anything."""

from __future__ import annotations

import os
import re
import shutil
import stat

import pytest


@pytest.fixture
def disguise(tmp_path):
    """Environment in which a command of the system answers something else."""

    def disguise(name, script):
        folder = tmp_path / "disguise"
        folder.mkdir(exist_ok=True)
        (folder / name).write_text(f"#!/bin/sh\n{script}\n", encoding="ascii")
        (folder / name).chmod(0o755)
        return {"PATH": f"{folder}:{os.environ['PATH']}"}

    return disguise


@pytest.fixture
def rehearse(install, tmp_path):
    """A dry run into a folder that must not come into being."""

    def rehearse(*arguments, env=None):
        outcome = install("--dry-run", "--root", tmp_path / "root", *arguments, env=env)
        assert not (tmp_path / "root").exists()
        return outcome

    return rehearse


def test_the_admin_key_stays_behind_and_the_members_come_along(rehearse, for_pi1):
    for name in ("admin.key", "invites.json", "members.toml"):
        (for_pi1 / name).write_text("#\n", encoding="ascii")
    outcome = rehearse("--torch", "none", "--node", "pi1", for_pi1)
    assert outcome.code == 0, outcome.err
    assert "./members.toml" in outcome.out + outcome.err
    assert not re.search(r"admin\.key|invites\.json", outcome.out + outcome.err)


def test_shellcheck_has_nothing_to_say(deploy, run, tool):
    outcome = run(tool("shellcheck"), deploy / "install.sh", deploy.parent / ".ci/run")
    assert (outcome.code, outcome.out) == (0, "")


def test_help_names_every_option(deploy, install):
    script = (deploy / "install.sh").read_text(encoding="utf-8")
    cases = re.findall(r"^ +(--?[a-z|\- ]+)\)", script, flags=re.MULTILINE)
    options = {option.strip() for case in cases for option in case.split("|")}
    assert {"--node", "--dry-run", "-h"} < options
    shown = install("--help").out
    assert not [option for option in options if option not in shown]


def test_a_dry_run_says_the_steps_and_takes_none(rehearse, for_pi1):
    outcome = rehearse("--torch", "none", for_pi1)
    assert outcome.code == 0
    for step in ("-m venv", "pip", "p2pfl@.service", "federation.toml", "p2pfl check"):
        assert step in outcome.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--tourch", "cpu"], "no such option: --tourch"),
        (["--torch", "gpu"], "--torch gpu"),
        (["--node"], "--node needs a value"),
        (["--node", "../pi1"], "not the name of a node"),
        (["--start"], "not with --root"),
        (["--source", "./nothing.whl", "--torch", "none"], "no such file"),
        (["--torch", "none", "/nowhere"], "no federation.toml"),
    ],
)
def test_a_mistake_in_the_call_is_named(rehearse, arguments, said):
    outcome = rehearse(*arguments)
    assert outcome.code == 2
    assert said in outcome.err


def test_of_several_nodes_one_must_be_named(rehearse, five_boards):
    outcome = rehearse("--torch", "none", five_boards)
    assert outcome.code == 2
    assert "--node" in outcome.err
    assert rehearse("--torch", "none", "--node", "pi3", five_boards).code == 0


def test_a_node_without_a_key_is_refused_with_the_command_that_makes_one(rehearse, for_pi1):
    (for_pi1 / "pi1/node.key").unlink()
    outcome = rehearse("--torch", "none", for_pi1)
    assert outcome.code == 2
    assert "p2pfl key" in outcome.err


def test_addresses_of_one_machine_alone_are_warned_of(rehearse, for_pi1):
    for file in (for_pi1 / "federation.toml", for_pi1 / "pi1/node.toml"):
        text = file.read_text(encoding="utf-8").replace("192.168.1.11", "127.0.0.1").replace("0.0.0.0", "127.0.0.1")
        file.write_text(text, encoding="utf-8")
    outcome = rehearse("--torch", "none", for_pi1)
    assert "`listen` lets no other machine in" in outcome.err
    assert "other machines cannot dial" in outcome.err


@pytest.mark.long
@pytest.mark.parametrize(
    ("place", "relative"),
    [
        *((place, False) for place in ("data", "data/deep/secret.csv", "pi1/data", "federation.toml", "pi1")),
        ("pi1/data", True),
    ],
)
def test_a_link_that_leaves_the_folder_is_refused_since_root_would_copy_what_it_names(
    rehearse, for_pi1, tmp_path, place, relative
):
    link, outside = for_pi1 / place, tmp_path / "outside"
    if link.exists():
        link.rename(outside)
    else:
        outside.write_text("secret", encoding="ascii")
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(os.path.relpath(outside, link.parent) if relative else outside)
    outcome = rehearse("--torch", "none", "--node", "pi1", for_pi1)
    assert outcome.code == 2
    assert f"{link}: a link" in outcome.err
    assert "leave" in outcome.err


def test_a_link_is_refused_as_well_that_leaves_by_way_of_another(rehearse, for_pi1):
    (for_pi1 / "up").symlink_to("..")
    (for_pi1 / "a").symlink_to("up/secret")
    outcome = rehearse("--torch", "none", for_pi1)
    assert outcome.code == 2
    assert "a link that leaves the folder" in outcome.err


def test_a_link_into_the_folder_by_an_absolute_path_is_refused_since_the_copy_would_name_the_original(
    rehearse, for_pi1
):
    (for_pi1 / "again.toml").symlink_to(for_pi1 / "federation.toml")
    outcome = rehearse("--torch", "none", for_pi1)
    assert outcome.code == 2
    assert "again.toml: a link by an absolute path" in outcome.err


def test_a_link_within_the_folder_and_what_stays_behind_are_nobodys_business(rehearse, for_pi1, five_boards):
    (for_pi1 / "data").mkdir()
    (for_pi1 / "data/again.toml").symlink_to("../federation.toml")
    for stays in ("pi1/state", "pi2", "pi1/__pycache__"):
        (for_pi1 / stays).mkdir()
        (for_pi1 / stays / "link").symlink_to("/etc/shadow")
    (for_pi1 / "pi2/node.toml").touch()
    outcome = rehearse("--torch", "none", "--node", "pi1", for_pi1)
    assert (outcome.code, outcome.err) == (0, "")


def test_the_copy_follows_no_link_that_was_put_there_after_the_look(deploy, run, for_pi1, tmp_path):
    """Else whoever owns the folder could swap a file for a link in time."""
    script = (deploy / "install.sh").read_text(encoding="utf-8").partition('\nparse_arguments "$@"\n')[0]
    home = tmp_path / "home"
    (home / "pi1").mkdir(parents=True)
    (tmp_path / "secret").write_text("secret", encoding="ascii")
    (for_pi1 / "data").mkdir()
    (for_pi1 / "data/rows.csv").write_text("1,2", encoding="ascii")
    for link in ("link", "data/link", "pi1/link"):
        (for_pi1 / link).symlink_to(tmp_path / "secret")
    settings = f"dry_run='' root={tmp_path} node=pi1 federation={for_pi1} home={home} staged={home}"
    outcome = run("bash", "-c", f"{script}\n{settings}\nhold_federation && choose_shared && copy_shared && copy_own")
    assert outcome.code == 0, outcome.err
    assert (home / "data/rows.csv").read_text(encoding="ascii") == "1,2"
    assert stat.S_IMODE((home / "data/rows.csv").stat().st_mode) == 0o640
    assert {str(path.relative_to(home)) for path in home.rglob("*") if path.is_symlink()} == {
        "link",
        "data/link",
        "pi1/link",
    }


@pytest.mark.parametrize("place", ["", "pi1", "data"])
def test_the_copy_follows_no_link_that_has_taken_the_place_of_a_folder_since_the_look(
    deploy, run, for_pi1, tmp_path, place
):
    """The look and the copy are minutes apart: the software is installed between them."""
    script = (deploy / "install.sh").read_text(encoding="utf-8").partition('\nparse_arguments "$@"\n')[0]
    home, other = tmp_path / "home", tmp_path / "other"
    (home / "pi1").mkdir(parents=True)
    (for_pi1 / "data").mkdir()
    (for_pi1 / "data/rows.csv").write_text("1,2", encoding="ascii")
    shutil.copytree(for_pi1, other)
    for folder in (other, other / "data", other / "pi1"):
        (folder / "secret").write_text("secret", encoding="ascii")
    (other / "federation.toml").write_text("secret", encoding="ascii")
    settings = f"dry_run='' root={tmp_path} node=pi1 federation={for_pi1} home={home} staged={home}"
    swap = f"mv {for_pi1 / place} {tmp_path}/away; ln -s {other / place} {for_pi1 / place}"
    steps = f"hold_federation; choose_shared; check_contents; {swap}; copy_shared; copy_own"
    outcome = run("bash", "-c", f"{script}\n{settings}\n{steps}")
    assert outcome.code == 0, outcome.err
    copied = {str(path.relative_to(home)) for path in home.rglob("*") if path.is_file() and not path.is_symlink()}
    assert "federation.toml" in copied
    assert not [name for name in copied if name.endswith("secret")]
    assert "secret" not in (home / "federation.toml").read_text(encoding="utf-8")
    assert ("pi1/node.key" in copied) == (place != "pi1")


@pytest.mark.long
@pytest.mark.parametrize("place", ["pipe", "data/pipe", "pi1/pipe"])
def test_what_is_neither_file_nor_folder_is_refused(rehearse, for_pi1, place):
    (for_pi1 / place).parent.mkdir(exist_ok=True)
    os.mkfifo(for_pi1 / place)
    outcome = rehearse("--torch", "none", for_pi1)
    assert outcome.code == 2
    assert f"{place}: neither a file nor a folder" in outcome.err


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_a_hard_link_to_a_file_of_somebody_else_is_refused(rehearse, for_pi1, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("secret", encoding="ascii")
    (for_pi1 / "mine.csv").hardlink_to(secret)
    assert rehearse("--torch", "none", for_pi1).code == 0
    os.chown(secret, 12345, -1)
    outcome = rehearse("--torch", "none", for_pi1)
    assert outcome.code == 2
    assert "mine.csv: a second name of a file that belongs to somebody else" in outcome.err


@pytest.mark.parametrize(
    ("arguments", "requirement"),
    [
        ([], "torch<2.10"),
        (["--torch-index", "file:///wheels"], "torch!=2.10.* --extra-index-url file:///wheels"),
        (["--torch", "default"], "[torch]"),
    ],
)
def test_a_board_gets_a_torch_that_it_can_run_without_cuda(rehearse, disguise, arguments, requirement):
    env = disguise("uname", '[ "$1" = -m ] && echo aarch64 || echo Linux')
    outcome = rehearse(*arguments, env=env)
    assert outcome.code == 0, outcome.err
    (line,) = [line for line in outcome.out.splitlines() if " --upgrade " in line]
    assert line.endswith(requirement)


@pytest.mark.parametrize(
    ("file", "torch", "extras"),
    [("federation.toml", "default", "[torch,lan]"), ("pi1/node.toml", "none", "[lan]")],
)
def test_nodes_that_look_for_each_other_get_what_that_needs(rehearse, for_pi1, file, torch, extras):
    with (for_pi1 / file).open("a", encoding="utf-8") as text:
        text.write("\n[network]\ndiscovery = true\n")
    outcome = rehearse("--torch", torch, for_pi1)
    assert outcome.code == 0, outcome.err
    (line,) = [line for line in outcome.out.splitlines() if " --upgrade " in line]
    assert line.endswith(extras)


def test_elsewhere_a_torch_without_cuda_needs_its_index(rehearse, disguise):
    outcome = rehearse(env=disguise("uname", '[ "$1" = -m ] && echo x86_64 || echo Linux'))
    assert outcome.code == 2
    assert "--torch-index" in outcome.err


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo 32", "32-bit"),
        (
            'case "$2" in *struct*) echo 64 ;; *version_info*) exit 1 ;; *) echo Python 3.9.2 ;; esac',
            "3.9.2 is too old",
        ),
        ('case "$2" in *struct*) echo 64 ;; *ensurepip*) exit 1 ;; esac', "apt install python3-venv"),
    ],
)
def test_an_unfit_python_is_refused_with_what_to_do(rehearse, disguise, script, said):
    outcome = rehearse("--torch", "none", "--python", "unfit-python", env=disguise("unfit-python", script))
    assert outcome.code == 2
    assert said in outcome.err


@pytest.mark.long
def test_without_its_unit_it_does_nothing(deploy, run, tmp_path):
    shutil.copy(deploy / "install.sh", tmp_path)
    outcome = run(tmp_path / "install.sh", "--torch", "none", "--root", tmp_path / "root")
    assert outcome.code == 2
    assert "p2pfl@.service is missing" in outcome.err
