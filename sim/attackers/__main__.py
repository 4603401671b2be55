"""One liar as a process: the counterpart of `p2pfl run` for an honest node, with the same files and the same output."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from p2pfl.cli.main import main
from p2pfl.cli.run import be_node
from p2pfl.console.output import Form, format_option

if TYPE_CHECKING:
    from sim.attackers.liar import Liar


@click.command(epilog="\b\nExample:\n  python -m sim.attackers ward-7 --node node2 --attack sign-flip")
@click.argument("federation", metavar="FEDERATION", type=click.Path(path_type=Path))
@click.option("--node", "name", required=True, metavar="NAME", help="Which member of the federation lies.")
@click.option("--attack", required=True, metavar="SPEC", help="How it lies: `p2pfl list attacks`.")
@click.option("--with", "league", multiple=True, metavar="NAME", help="Another liar, which it does not lie to; repeat.")
@click.option(
    "--config", type=click.Path(path_type=Path), help="Its node.toml; by default NAME/node.toml beside FEDERATION."
)
@click.option("--launched", is_flag=True, hidden=True, help="Sketch the model in each line; stop when stdin ends.")
@click.option("-v", "--verbose", is_flag=True, help="Log sessions and exchanges too.")
@format_option("table", "json")
def lie(
    *,
    federation: Path,
    name: str,
    attack: str,
    league: tuple[str, ...],
    config: Path | None,
    launched: bool,
    verbose: bool,
    form: Form,
) -> None:
    """Run a member that lies to its neighbors until its rounds are done, to test your own federation."""
    from sim.attackers.offer import attack_of  # noqa: PLC0415 - `--help` stays instant

    attack_of(attack)

    def maker() -> partial[Liar]:
        from sim.attackers.liar import Liar  # noqa: PLC0415 - after the thread limits are set

        return partial(Liar, attack=attack_of(attack), league=league)

    be_node(federation, name, config=config, launched=launched, verbose=verbose, form=form, maker=maker)


if __name__ == "__main__":
    main(command=lie, name="python -m sim.attackers")
