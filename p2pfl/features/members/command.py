"""`p2pfl member`, `invite` and `join`: the signed list of members, and the commands that change it.

What they do is in `changes` and `joining`, which take longer to import. `p2pfl new --admin` creates the admin key, and
the first list.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from p2pfl.console import Named, NewOptions, NewPlan
from p2pfl.console.output import Form, format_option
from p2pfl.errors import UserError

if TYPE_CHECKING:
    from p2pfl.crypto.identity import Identity

LINES = {
    "list": "Show the members, including removed ones.",
    "add": "Add a new member, using the request that `p2pfl join` printed.",
    "remove": "Remove a member: within a round, nobody talks to it.",
    "replace": "Put a new machine in the place of one that is gone.",
    "set": "Change the number of rounds, the graph or addresses while nodes run.",
    "hand": "Send the newest list of members to the nodes again, and new tickets for relays.",
}
_federation = click.argument("federation", metavar="FEDERATION", type=click.Path(path_type=Path))
_key = click.option(
    "--key", "key_file", type=click.Path(path_type=Path), help="The admin key; by default admin.key in FEDERATION."
)
_yes = click.option("--yes", is_flag=True, help="Do not ask: for scripts.")
_offline = click.option(
    "--offline", is_flag=True, help="Dial nobody: only write members.toml, for you to copy to the nodes."
)


class MemberCommands(Named):
    def lines(self) -> Mapping[str, str]:
        return LINES

    def find(self, name: str) -> Any:
        commands = {"list": show, "add": add, "remove": remove, "replace": replace, "set": change, "hand": hand_again}
        return commands[name]


@click.group(cls=MemberCommands, epilog="\b\nExamples:\n  p2pfl member list ward\n  p2pfl member remove ward pi4")
def member() -> None:
    """List and change the members of a federation that has an admin key, while its nodes run."""


@click.command("list", epilog="\b\nExamples:\n  p2pfl member list ward\n  p2pfl member list ward --format csv")
@_federation
@format_option("table", "json", "csv")
def show(*, federation: Path, form: Form) -> None:
    """Show the members, including removed ones, and how many neighbors each has."""
    from p2pfl.features.members import changes  # noqa: PLC0415 - `--help` stays instant

    changes.show(federation, form)


@click.command(epilog="\b\nExample:\n  p2pfl member add ward 'p2pfl-request:...'")
@_federation
@click.argument("request", metavar="REQUEST")
@_yes
@_key
@_offline
def add(*, federation: Path, request: str, yes: bool, key_file: Path | None, offline: bool) -> int:
    """Add a new member, by the REQUEST that `p2pfl join` printed on its machine.

    It shows the key and address, and asks for confirmation: the two people should compare the key. Exit code 1: you did
    not confirm, and nothing was changed.
    """
    from p2pfl.features.members import changes  # noqa: PLC0415 - `--help` stays instant

    return int(not changes.admit(federation, request, key_file, yes=yes, offline=offline))


@click.command(epilog="\b\nExample:\n  p2pfl member remove ward pi4")
@_federation
@click.argument("name", metavar="NAME")
@_key
@_offline
def remove(*, federation: Path, name: str, key_file: Path | None, offline: bool) -> None:
    """Remove the member NAME: within a round, nobody talks to it. Its key cannot be used again."""
    from p2pfl.features.members import changes  # noqa: PLC0415 - `--help` stays instant

    changes.remove(federation, name, key_file, offline=offline)


@click.command(
    epilog="\b\nExamples:\n  p2pfl invite ward pi2 --replace\n  p2pfl member replace ward 'p2pfl-request:...'"
)
@_federation
@click.argument("request", metavar="REQUEST")
@_yes
@_key
@_offline
def replace(*, federation: Path, request: str, yes: bool, key_file: Path | None, offline: bool) -> int:
    """Put a new machine in the place of one that is gone: the same name and neighbors, another key.

    REQUEST is what `p2pfl join` printed on the new machine, for an invite made with --replace. As with add, it asks for
    confirmation first.
    """
    from p2pfl.features.members import changes  # noqa: PLC0415 - `--help` stays instant

    return int(not changes.admit(federation, request, key_file, replaces=True, yes=yes, offline=offline))


@click.command(
    "set",
    epilog="\b\nExamples:\n  p2pfl member set ward --rounds 200\n  p2pfl member set ward --address pi2=10.0.0.7:8470",
)
@_federation
@click.option("--rounds", type=click.IntRange(1), help="Rounds of each node.")
@click.option("--topology", help="Another graph: a spec, or a graph file in FEDERATION.")
@click.option(
    "--address",
    "addresses",
    multiple=True,
    metavar="NAME=HOST:PORT",
    help="Where a member is now; NAME= removes it: the member dials, or is found on the LAN.",
)
@_key
@_offline
def change(
    *,
    federation: Path,
    rounds: int | None,
    topology: str | None,
    addresses: tuple[str, ...],
    key_file: Path | None,
    offline: bool,
) -> None:
    """Change the number of rounds, the graph or addresses while nodes run."""
    from p2pfl.features.members import changes  # noqa: PLC0415 - `--help` stays instant

    if rounds is None and topology is None and not addresses:
        raise UserError("nothing to change", key="member set", allowed="--rounds, --topology or --address")
    changes.change(federation, key_file, rounds, topology, addresses, offline=offline)


@click.command("hand", epilog="\b\nExample:\n  p2pfl member hand ward")
@_federation
@_key
@_offline
def hand_again(*, federation: Path, key_file: Path | None, offline: bool) -> int:
    """Send the newest list of members to the nodes again, in case a change has reached nobody.

    The list comes from members.toml, or is a newer one from a node, which is then written there. Where the federation
    has relays, also writes tickets.toml anew: tickets hold for a year, and only new machines need a copy by hand. Exit
    code 1: no node could be reached.
    """
    from p2pfl.features.members import changes  # noqa: PLC0415 - `--help` stays instant

    return int(not changes.hand_again(federation, key_file, offline=offline))


@click.command(epilog="\b\nExamples:\n  p2pfl invite ward pi4\n  p2pfl invite ward pi2 --replace")
@click.argument("federation", metavar="FEDERATION", type=click.Path(path_type=Path))
@click.argument("name", metavar="NAME")
@click.option("--replace", "replacing", is_flag=True, help="The machine takes the place of the member NAME.")
@_key
def invite(*, federation: Path, name: str, replacing: bool, key_file: Path | None) -> int:
    """Print the line with which the new machine NAME asks to become a member.

    On the new machine: p2pfl join 'LINE'. On a terminal, with the admin key, this then waits ten minutes: it hands the
    machine the federation's files, and asks you whether to add it. The line contains no code and no signing key. Its
    only secret is a token, valid for three days and for one request. Exit code 1: nobody asked, or you did not confirm.
    """
    from p2pfl.features.members import joining  # noqa: PLC0415 - `--help` stays instant

    return int(not joining.invite(federation, name, replacing=replacing, key_file=key_file))


@click.command(epilog="\b\nExamples:\n  p2pfl join 'p2pfl:...' --from /media/usb/ward\n  p2pfl run ward --node pi4")
@click.argument("line", metavar="LINE")
@click.argument("directory", metavar="[DIR]", required=False, type=click.Path(path_type=Path))
@click.option("--from", "source", type=click.Path(path_type=Path), help="A copy of federation.toml and its task file.")
@click.option("--address", metavar="HOST:PORT", help="Where others reach this machine; by default it finds out.")
@click.option("--yes", is_flag=True, help="Take the inviter's files, code too, without asking: for scripts.")
def join(*, line: str, directory: Path | None, source: Path | None, address: str | None, yes: bool) -> int:
    """Create this machine's key and the folder DIR from the LINE that `p2pfl invite` printed.

    By default DIR has the federation's name. The key never leaves this machine. While the inviter waits, this fetches
    federation.toml and the task's file, shows them, and asks the inviter to add this machine. Otherwise it prints a
    one-line request for `p2pfl member add`: give the location of a copy with --from, or copy the files into DIR. They
    must be the files for which the invite was made. Exit code 1: you did not want them, and nothing was changed.
    """
    from p2pfl.features.members import joining  # noqa: PLC0415 - `--help` stays instant

    return int(not joining.join(line, directory, source, address, yes=yes))


class MembersOptions(NewOptions):
    parameters = (
        click.Option(
            ["--admin"], is_flag=True, help="Also make an admin key: members may then come and go while nodes run."
        ),
    )
    after = "base_port"

    def __init__(self) -> None:
        self._signer: Identity | None = None

    def plan(self, plan: NewPlan, said: Mapping[str, Any]) -> None:
        if said["admin"]:
            from p2pfl.crypto.identity import Identity, public_text  # noqa: PLC0415 - `--help` stays instant

            self._signer = Identity.generate()
            plan.admin = public_text(self._signer.public)
            plan.topology = plan.topology or "keyed-rings"

    def write(self, folder: Path) -> None:
        if self._signer is not None:
            from p2pfl.features.members import changes  # noqa: PLC0415 - `--help` stays instant

            changes.begin(folder, self._signer)

    def tell(self, directory: Path) -> None:
        if self._signer is not None:
            secret = directory / "admin.key"
            text = f"made {secret}: it can change the members. Keep it off the nodes, and keep a copy elsewhere"
            click.echo(text, err=True)
