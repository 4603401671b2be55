"""The command line, as the tests of commands have it."""

from tests.cli.conftest import p2pfl

__all__ = ["p2pfl"]
