"""What `check` and `doctor` say of addresses, certificates and proxies, from a federation's files."""

from __future__ import annotations

import shutil
from functools import partial

import pytest

from p2pfl.cli import FolderCheck
from p2pfl.cli.main import main
from p2pfl.config import federation_mistakes, load_config, load_node, node_mistakes
from p2pfl.crypto.identity import Identity
from p2pfl.features.lan import AnswerKind, _as_object, _print, examine
from p2pfl.net import OwnCertificate, WebSocketTransport
from p2pfl.node import Inspected


@pytest.fixture
def p2pfl(capsys):
    """Runs a command; returns its exit code and what it says."""

    def p2pfl(*arguments):
        with pytest.raises(SystemExit) as caught:
            main([str(argument) for argument in arguments])
        said = capsys.readouterr()
        return caught.value.code, said.out + said.err

    return p2pfl


@pytest.fixture
def ward(p2pfl, tmp_path):
    """A federation of two nodes; `change(file, before, after)` edits one of its files."""
    folder = tmp_path / "ward"
    p2pfl("new", folder, "--nodes", "2")

    class Ward:
        path = folder

        def change(self, file, before, after):
            text = (folder / file).read_text()
            assert before in text
            (folder / file).write_text(text.replace(before, after))

        def own(self, text):
            file = folder / "node0/node.toml"
            file.write_text(file.read_text() + text)

        @property
        def address(self):
            return load_config(folder).members[0].address

        def found(self):
            inspected = Inspected(load_config(folder), [])
            FolderCheck().before_launch(inspected)
            return inspected

    return Ward()


def mistakes(ward):
    return [str(one) for one in node_mistakes(ward.path / "node0", load_config(ward.path))]


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ('cert = "tls.crt"', "network.cert: is of no use without network.key"),
        ('proxy = "socks5://proxy:1080"', '"http://host:port", or "none"'),
        ('proxy = "http://ann:secret@proxy:3128"', "user and password belong in a file"),
        ('proxy_password_file = "p"', "is of no use without network.proxy"),
        ('hours = "20-6"', "HH:MM-HH:MM"),
        ('hours = "20:00-20:00"', "HH:MM-HH:MM"),
        ("max_kbit_s = 31", "32"),
        ("month_gb = 0", "above 0"),
        ("neighbors.node1.max_kbit_s = 50", "network.neighbors: is gone"),
        ("share_addresses = true", "network.share_addresses: is gone"),
    ],
)
def test_mistakes_in_the_own_network_are_named_with_what_is_allowed(ward, lines, says):
    ward.own(f"\n[network]\n{lines}\n")
    (said,) = mistakes(ward)
    assert says in said
    assert "secret" not in said


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("https://example.org/p2pfl", "the scheme is ws or wss, not https: wss://example.org/p2pfl"),
        ("wss://example.org/p2pfl#sha256=12", "wss://host:port/path"),
        ("ws://example.org#sha256=" + "ab" * 32, "ws:// has none"),
        ("wss://example.org:99999", "wss://host:port/path"),
        ("wss://example.org:0", "wss://host:port/path"),
        ("wss://ann:secret@example.org", "(found 'wss://...@example.org')"),
        ("https://ann:secret@example.org", "not https: wss://...@example.org"),
        ("wss://ex\u00e4mple.org", "wss://host:port/path"),
        ("wss://::1", "wss://host:port/path"),
    ],
)
def test_a_wrong_url_is_named_with_the_right_one(ward, address, says):
    ward.change("federation.toml", ward.address, address)
    (said,) = federation_mistakes(ward.path)
    assert says in str(said)
    assert "secret" not in str(said)


def test_check_looks_at_certificates(ward, certificates):
    port = ward.address.rpartition(":")[2]
    shutil.copy(certificates.cert("good"), ward.path / "node0" / "tls.crt")
    shutil.copy(certificates.key("good"), ward.path / "node0" / "tls.key")
    (ward.path / "node0" / "tls.key").chmod(0o600)
    assert not mistakes(ward)
    ward.change("federation.toml", ward.address, f"wss://localhost:{port}/p2pfl")
    assert "listens on" in ward.found().warnings[0]
    ward.own('\n[network]\ncert = "tls.crt"\nkey = "tls.key"\n')
    assert not ward.found().warnings
    ward.change("federation.toml", ward.address, f"wss://localhost:{port}/p2pfl#sha256={'ab' * 32}")
    assert "not the certificate that is pinned" in str(ward.found().mistakes[0])


async def test_the_doctor_names_the_proxy_that_stands_in_the_way(
    ward, federation, certificates, proxy, *, monkeypatch, capsys
):
    """It forbids everything, also for addresses of this machine."""
    monkeypatch.setattr("p2pfl.net.dial_paths.is_near", lambda _: False)
    certificate = OwnCertificate(certificates.cert("good"), certificates.key("good"))
    described = load_config(ward.path)
    federation.identities[1] = Identity.load(ward.path / "node1" / "node.key")
    door = partial(WebSocketTransport, certificate=certificate)
    async with proxy(403) as own, federation.node(1, transport=door) as b:
        monkeypatch.setenv("HTTPS_PROXY", own.url)
        address = f"wss://localhost:{b.links.port}/p2pfl#sha256={certificate.pin}"
        ward.change("federation.toml", described.members[1].address, address)
        described = load_config(ward.path)
        found = await examine(described, load_node(ward.path / "node0", described), listen_s=1.0)
    patient = next(one for one in found.patients if not one.here)
    (by_proxy,) = patient.places
    assert by_proxy.answer.kind is AnswerKind.PROXY
    assert "forbids localhost" in by_proxy.answer.detail
    _print(_as_object(found), found.patients)
    said = capsys.readouterr().out
    for words in ("a proxy does not let it through", "forbids localhost", f"proxy {own.url}"):
        assert words in " ".join(said.split())
    assert "sha256" not in said
