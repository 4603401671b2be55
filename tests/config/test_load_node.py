"""What only one node knows: defaults where there is no file, mistakes where there is a wrong one."""

from __future__ import annotations

import pytest

from p2pfl.config import Compute, load_config, load_node, node_file, node_mistakes
from p2pfl.errors import UserError


@pytest.fixture
def federation(valid_text, write):
    return load_config(write(valid_text))


def configured(federation, text, name="pi1"):
    file = node_file(federation, name)
    file.parent.mkdir(exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file


def test_without_a_file_everything_has_its_default(federation, tmp_path):
    node = load_node(tmp_path / "pi1", federation)
    assert (node.name, node.path) == ("pi1", tmp_path / "pi1" / "node.toml")
    assert (node.key_file, node.state_dir) == (tmp_path / "pi1" / "node.key", tmp_path / "pi1" / "state")
    assert (node.listen, node.status_listen) == ("0.0.0.0:8470", "127.0.0.1:0")
    assert (node.durability, node.snapshot_s, node.threads, node.nice, node.data) == ("auto", 60.0, 1, 0, {})


def test_a_member_without_an_address_listens_on_any_port(valid_text, write):
    federation = load_config(write(valid_text.replace('address = "10.0.0.1:8470"', "")))
    assert load_node(node_file(federation, "pi1"), federation).listen == "0.0.0.0:0"


def test_paths_are_relative_to_the_file_and_data_is_free(federation, tmp_path):
    file = configured(federation, '[node]\nkey_file = "../keys/k"\n[data]\npath = "x.npz"\nrows = [1, 2]\n')
    node = load_node(file, federation)
    assert node.key_file == tmp_path / "pi1" / ".." / "keys" / "k"
    assert node.data == {"path": "x.npz", "rows": [1, 2]}


def test_reload_s_is_gone_and_says_what_to_do(federation):
    (mistake,) = node_mistakes(configured(federation, '[data]\npath = "x.npz"\nreload_s = 30\n'), federation)
    assert (mistake.key, mistake.value) == ("data.reload_s", 30)


def test_none_turns_the_status_page_off(federation):
    assert load_node(configured(federation, '[node]\nstatus_listen = "none"\n'), federation).status_listen is None


def test_a_file_elsewhere_says_by_name_whose_it_is(federation, tmp_path):
    (tmp_path / "other.toml").write_text("[node]\nthreads = 2\n", encoding="utf-8")
    node = load_node(tmp_path / "other.toml", federation, "pi2")
    assert (node.name, node.threads) == ("pi2", 2)


@pytest.mark.parametrize(
    ("line", "key", "value", "allowed"),
    [
        ('listen = "8470"', "node.listen", "8470", "host:port"),
        ('status_listen = "off"', "node.status_listen", "off", '"none"'),
        ('durability = "exchagne"', "node.durability", "exchagne", "auto, exchange, snapshot"),
        ("threads = 0", "node.threads", 0, "from 1"),
        ("nice = 20", "node.nice", 20, "0 to 19"),
        ("thread = 1", "node.thread", 1, "threads"),
    ],
)
def test_a_wrong_line_is_located(federation, line, key, value, allowed):
    file = configured(federation, f"[node]\n{line}\n")
    (mistake,) = node_mistakes(file, federation)
    assert (mistake.file, mistake.key, mistake.value) == (str(file), key, value)
    assert allowed in mistake.allowed
    with pytest.raises(UserError):
        load_node(file, federation)


def test_all_mistakes_are_found_at_once(federation):
    file = configured(federation, "data = 3\nnods = 1\n[node]\nnice = -1\n")
    assert [mistake.key for mistake in node_mistakes(file, federation)] == ["nods", "data", "node.nice"]


def test_a_name_that_is_no_member_lists_the_members(federation, tmp_path):
    with pytest.raises(UserError, match=r"'pi9'.*pi0, pi1, pi2"):
        load_node(tmp_path / "pi9", federation)


@pytest.mark.parametrize(
    ("shared", "own", "found"), [("true", None, True), ("true", "false", False), ("false", "true", True)]
)
def test_a_node_may_differ_from_the_federation_in_whether_it_looks_for_others(valid_text, write, shared, own, found):
    federation = load_config(write(valid_text.replace("# discovery = false", f"discovery = {shared}")))
    text = "" if own is None else f'[network]\ndiscovery = {own}\ninterfaces = "eth0"\n'
    node = load_node(configured(federation, text), federation)
    assert node.discovery is found
    assert node.interfaces == (() if own is None else ("eth0",))


@pytest.mark.parametrize("device", ["auto", "cpu", "cuda", "cuda:1", "mps"])
def test_where_a_node_trains_is_its_own_business(federation, device):
    keys = f'device = "{device}"\nprecision = "bf16"\nmicro_batch_size = 4\ncompile = true'
    file = configured(federation, f"[node]\n{keys}\n")
    compute = load_node(file, federation).compute
    expected = Compute(device=device, precision="bf16", micro_batch_size=4, compile=True, file=file)
    assert (compute, compute.file) == (expected, file)
    (mistake,) = node_mistakes(configured(federation, f'[node]\ndevice = "{device}:x"\n'), federation)
    assert (mistake.key, mistake.value) == ("node.device", f"{device}:x")
