"""`p2pfl completion`: the script by which a shell completes commands, options and files. click generates it."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")

EPILOG = """\b
Examples, one for each shell; then open a new terminal:
  p2pfl completion bash >> ~/.bashrc
  p2pfl completion zsh >> ~/.zshrc
  p2pfl completion fish > ~/.config/fish/completions/p2pfl.fish

\b
Without touching your own files, for all users of the machine (as root):
  p2pfl completion bash > /usr/share/bash-completion/completions/p2pfl
  p2pfl completion zsh > /usr/local/share/zsh/site-functions/_p2pfl
  p2pfl completion fish > /usr/share/fish/vendor_completions.d/p2pfl.fish
"""


@click.command(epilog=EPILOG)
@click.argument("shell", metavar="bash|zsh|fish", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print a script that completes p2pfl's commands, options and file names in your shell.

    The shell reads it once, when it starts. In .zshrc it has to stand below `compinit`. `p2pfl` has to be on the
    PATH; `python -m p2pfl` is not completed.
    """
    from p2pfl.cli.main import cli  # noqa: PLC0415 - the commands are imported by it

    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"this version of click knows no completion for {shell}")
    script = kind(cli, {}, "p2pfl", "_P2PFL_COMPLETE").source()
    # click's script for fish would cut a description at its first comma.
    click.echo(script.replace('(string split "," $completion)', '(string split --max 1 "," $completion)'))
