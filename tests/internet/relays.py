"""Relays on public machines: one behind nginx with TLS, as docs/how-to says, and one by itself."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from internet_in_a_box import Internet
from lan_in_a_box import Host
from ward import P2PFL

PAGE = (Path(__file__).parents[2] / "docs/how-to/proxies-and-tls.md").read_text(encoding="utf-8")
KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "30")


class Authority:
    """A certificate authority of the test's own; processes trust it with `environment`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self._openssl("req", "-x509", *KEY, "-keyout", "authority.key", "-out", "authority.crt", "-subj", "/CN=a")
        self.environment = {"SSL_CERT_FILE": str(folder / "authority.crt")}

    def sign(self, name: str) -> tuple[Path, Path]:
        """Return the certificate and the key of that name."""
        self._openssl("req", "-new", *KEY[:-2], "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        (self.folder / "names").write_text(f"subjectAltName=DNS:{name}")
        signer = ("-CA", "authority.crt", "-CAkey", "authority.key", "-days", "30", "-extfile", "names")
        self._openssl("x509", "-req", "-in", f"{name}.csr", *signer, "-out", f"{name}.crt")
        return self.folder / f"{name}.crt", self.folder / f"{name}.key"

    def _openssl(self, *words: str) -> None:
        subprocess.run(["openssl", *words], cwd=self.folder, check=True, capture_output=True)


def start_nginx(host: Host, folder: Path, name: str, certificate: tuple[Path, Path], behind: str) -> None:
    """Start nginx with the configuration of the page, for what listens at `behind`."""
    folder.mkdir()
    changes = {
        "site.example.org;\n    ssl": f"{name};\n    ssl",
        "/etc/letsencrypt/live/site.example.org/fullchain.pem": str(certificate[0]),
        "/etc/letsencrypt/live/site.example.org/privkey.pem": str(certificate[1]),
        "listen 443 ssl;": "listen 443 ssl; listen [::]:443 ssl;",
        "127.0.0.1:8470": behind,
    }
    text = re.search(r"```nginx\n(.*?)```", PAGE, re.DOTALL)[1]
    for before, after in changes.items():
        assert before in text
        text = text.replace(before, after)
    head = f"daemon off; pid {folder}/pid; error_log stderr; events {{}}\nhttp {{ access_log off;\n"
    (folder / "nginx.conf").write_text(f"{head}{text}}}\n", encoding="utf-8")
    with (folder / "log").open("wb") as log:
        host.start("nginx", "-p", folder, "-c", folder / "nginx.conf", stdout=log, stderr=log)


class Relay:
    """A relay on a public machine that can be killed and started again."""

    def __init__(self, net: Internet, folder: Path, name: str, *, listen: str = "") -> None:
        self.net, self.folder, self.name = net, folder, f"{name}.example.org"
        self.host = net.host(name)
        net.give_name(self.name, self.host)
        self.listen = listen or f"{self.name}:443"
        self.url = f"{'wss' if listen else 'ws'}://{self.name}{'' if listen else ':443'}/p2pfl"
        folder.mkdir()
        self.process: subprocess.Popen[bytes]

    def serve(self, federation: Path) -> None:
        self._federation = federation
        self.start()

    def start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            words = ("relay", "--listen", self.listen, "--federation", self._federation)
            self.process = self.host.start(*P2PFL, *words, stdout=log, stderr=log)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def two_relays(net: Internet, folder: Path, authority: Authority) -> tuple[Relay, Relay]:
    """Relay A behind nginx with TLS, relay B by itself, without; both at port 443."""
    a, b = Relay(net, folder / "a", "relaya", listen="127.0.0.1:8443"), Relay(net, folder / "b", "relayb")
    start_nginx(a.host, folder / "nginx", a.name, authority.sign(a.name), "127.0.0.1:8443")
    return a, b
