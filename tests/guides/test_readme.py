"""README.md is one page, and what it says to type works as it stands."""

from __future__ import annotations

import re
import shutil

import page_kit as pages
import pytest
from lan_in_a_box import Lan, why_not

TEXT = pages.read("README.md")
BLOCKS = pages.blocks(TEXT)


def block_with(words):
    (found,) = [block for _, block in BLOCKS if words in block]
    return found


def test_it_is_one_page():
    assert len(TEXT.split()) <= 700


def test_the_two_commands_stand_alone_and_make_has_them():
    """Tools read them from the page."""
    assert block_with("make demo") == "make demo\nmake test\n"
    makefile = pages.read("Makefile")
    assert "\ndemo: " in makefile
    assert "\ntest: " in makefile


def test_its_model_is_ten_lines_and_learns(capsys):
    """With fewer nodes and rounds here; as it stands below."""
    code = block_with("import torch")
    assert len(code.splitlines()) == 10
    exec(compile(code.replace("nodes=8", "nodes=3").replace("rounds=40", "rounds=3"), "README.md", "exec"), {})
    assert float(capsys.readouterr().out) > 0.5


def tables(folder):
    """The tables that the tutorial makes."""
    (code,) = [
        block
        for _, block in pages.blocks(pages.read("docs/tutorials/own-table.md"))
        if block.startswith("# make_tables")
    ]
    (folder / "make_tables.py").write_text(code, encoding="utf-8")
    pages.shell(folder, "python make_tables.py")


@pytest.mark.long
@pytest.mark.timeout(600)
def test_its_table_is_learned_from_in_three_commands(tmp_path):
    tables(tmp_path)
    pages.shell(tmp_path, block_with("--task csv"))
    assert (tmp_path / "hospitals" / "report.json").is_file()


FIVE = block_with("ssh")


def test_five_machines_take_five_commands_and_the_page_on_them_has_the_same():
    assert len(FIVE.splitlines()) == 5
    assert ("sh", FIVE) in pages.blocks(pages.read("docs/how-to/several-machines.md"))


@pytest.mark.long
@pytest.mark.slow
def test_the_first_three_commands_for_five_machines_give_a_federation_without_mistakes(tmp_path):
    prepare = "\n".join(FIVE.splitlines()[:3])
    assert "no mistakes" in pages.shell(tmp_path, prepare)
    assert "\ndiscovery = true" in (tmp_path / "ward/federation.toml").read_text(encoding="utf-8")
    assert '\n# listen = "0.0.0.0:0"' in (tmp_path / "ward/pi5/node.toml").read_text(encoding="utf-8")


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.skipif(why_not() is not None, reason=f"no LAN in a box: {why_not()}")
def test_five_machines_learn_by_its_five_commands(tmp_path):
    """Each machine is a network namespace with a folder of its own; ssh and scp go there."""
    pytest.importorskip("zeroconf", reason="the extra lan has it")
    with Lan() as lan:
        tools, machines = tmp_path / ".tools", tmp_path / "machines"
        tools.mkdir()
        for number in range(1, 6):
            lan.host(f"pi{number}")
            (machines / f"pi{number}").mkdir(parents=True)
        lan.write_ssh(tools, machines)
        assert shutil.which("sh")
        pages.shell(tmp_path, FIVE.replace("rounds = 2000", "rounds = 40"), timeout_s=540)
    for number in range(1, 6):
        folder = machines / f"pi{number}" / "ward"
        assert (folder / f"pi{number}/state/result.json").is_file()
        assert len(list(folder.glob("pi*"))) == 1, "a machine has another one's key"


OTHER = ("127.0.0.1:8470", "import", "answers", "COMMAND")
"""Words after `p2pfl` where it is a host's name, a module, the program itself, or any command."""
WAYS = ("--gossipy", "--blazefl", "--simulators")
"""Options that a benchmark makes from names."""
ALL = sorted(
    str(page.relative_to(pages.ROOT))
    for page in (pages.ROOT / "README.md", *(pages.ROOT / "docs").rglob("*.md"))
    if "decisions" not in page.parts and "is made from" not in page.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("page", ALL)
def test_every_command_option_and_file_that_a_page_names_is_there(page):
    text = pages.read(page)
    commands = [words for words in pages.commands(text) if words[0] not in OTHER]
    assert [mistake for words in commands if (mistake := pages.command_mistake(words))] == []
    for file, options in re.findall(r"python (benchmarks/\w+\.py)([^`\n]*)", text):
        script = pages.read(file)
        assert [name for name in re.findall(r"--[a-z-]+", options) if name not in script and name not in WAYS] == []
    named = re.findall(r"(?<![\w:])benchmarks/[\w/*.-]*\w", text)
    assert [name for name in named if not list(pages.ROOT.glob(name))] == []
    for file in re.findall(r"(?:core|engine|wire|net|storage|features|methods)/[\w/]+\.py", text):
        assert (pages.ROOT / "p2pfl" / file).is_file() or list(pages.ROOT.glob(f"tests/{file}")), file
