"""The settings that a federation file gives as specs: rule, compressor, learning method. Their own packages define the
specs, and are imported when a file has one.
"""

from __future__ import annotations

from p2pfl.specs import Kind, spelled

# ruff: noqa: PLC0415 - keeps the import light for readers of other keys


def rule() -> Kind:
    def allowed() -> str:
        from p2pfl.aggregate import allowed

        return allowed()

    def parse(text: str) -> object:
        from p2pfl.aggregate import parse_rule

        return parse_rule(text)

    return spelled(allowed, parse)


def compressor() -> Kind:
    def allowed() -> str:
        from p2pfl.compress.spelling import allowed

        return allowed()

    def parse(text: str) -> object:
        from p2pfl.compress.spelling import parse

        return parse(text)

    return spelled(allowed, parse)


def method() -> Kind:
    def allowed() -> str:
        from p2pfl.methods import allowed

        return allowed()

    def parse(text: str) -> object:
        from p2pfl.methods import parse_method

        return parse_method(text)

    return spelled(allowed, parse)
