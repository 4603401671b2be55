"""`p2pfl key`: a node's identity. The secret stays in its file; the public half is what the federation file lists."""

from __future__ import annotations

from pathlib import Path

import click

KEY_FILE = "node.key"


@click.command(epilog="\b\nExample:\n  p2pfl key ward-7/node0/node.key")
@click.argument("path", type=click.Path(path_type=Path))
def key(path: Path) -> None:
    """Make a node's identity in the file PATH, or show the one that is there.

    PATH may be a folder, for node.key in it. What is printed is the public key, for `key` in federation.toml. The file
    itself is secret: it stays on its node, and an existing one is never overwritten.
    """
    from p2pfl.crypto.identity import Identity, public_text  # noqa: PLC0415 - `--help` stays instant

    file = path / KEY_FILE if path.is_dir() else path
    if file.exists():
        identity = Identity.load(file)
    else:
        identity = Identity.generate()
        identity.save(file)
        click.echo(f"made {file}; keep it on this node", err=True)
    click.echo(public_text(identity.public))
