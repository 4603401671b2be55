"""Any bytes from a peer, a file or a person are read, or refused with an error of the decoder's list, and nothing else.

Random bytes seldom come far, so most cases are valid bytes, damaged: cut, doubled, overwritten, spliced. What all
decoders have in common is tried with the inputs of `many_inputs.py`: here with some, by `make fuzz` with a million.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import many_inputs
import pytest
from decoders import DECODERS
from many_inputs import CORPUS, Trial, corpus, made, main
from message_kit import ASIDE

from p2pfl.errors import PeerFault

# --- on extension channels ----------------------------------------------------------------------------------------

CHANNELS = list(dict.fromkeys(channel for channel, *_ in ASIDE))


@pytest.mark.parametrize(("channel", "message", "wanted"), ASIDE, ids=lambda value: type(value).__name__)
def test_the_bytes_of_every_message_of_a_side_channel_are_pinned(channel, message, wanted):
    packed = channel.pack(message)
    assert (packed.channel, packed.body.hex()) == (channel.name, wanted)
    assert channel.unpack(packed.body) == message


@pytest.mark.parametrize("channel", CHANNELS, ids=repr)
def test_a_message_above_its_channel_s_bound_is_refused(channel):
    with pytest.raises(PeerFault):
        channel.unpack(bytes(channel.most_bytes + 1))


# --- every decoder ------------------------------------------------------------------------------------------------

ROOT, FEW = Path(__file__).parents[2], 24
READS = re.compile(r"(decode|parse|unpack|read)(_\w+)?|from_(bytes|file|json|text|header|safetensors)|edition_of")
WHERE = ("wire", "net", "crypto", "config", "storage", "features", "learn", "reporting")
ELSEWHERE = {
    "read_answer": "waits for what `Proxy.judge` reads",
    **dict.fromkeys(("read_site", "read_folder", "read_own", "read_tables"), "call those that are tried, with a path"),
    **dict.fromkeys(("NoiseState.unpack", "AlikeState.unpack"), "leave it to `AlikeRounds.unpack`"),
    **dict.fromkeys(("WholeNumbers.decode", "Packing.unpack"), "turn numbers into numbers"),
    "GrownState.read": "its file is as the state of trees that another node gives",
    "read_samples": "checks arrays of the user's task",
    "Gauge.read": "gets figures of this process",
    "read_distances": "gets what `read_far` reads",
}
"""Functions with such a name that get no bytes, or leave them to one that is tried."""


@pytest.mark.parametrize("name", DECODERS)
def test_an_input_is_read_or_refused_and_takes_little(name):
    trial = Trial(DECODERS[name])
    for number in range(FEW):
        raw = made(trial.decoder, 0, number)
        try:
            trial(raw)
        except Exception as error:
            error.add_note(f"a line for the corpus:\n{name}\t{raw!r}")
            raise


@pytest.mark.parametrize(("name", "raw"), corpus(CORPUS))
def test_what_once_failed_is_read_or_refused(name, raw):
    Trial(DECODERS[name])(raw)


def test_every_decoder_of_the_product_is_tried():
    """A new one is called by a sample in `decoders.py`, directly or not, or stands in `ELSEWHERE` with the reason."""
    called = set()

    def note(frame, event, _):
        if event == "call":
            called.add((frame.f_code.co_filename, frame.f_code.co_qualname))

    sys.setprofile(note)
    try:
        for decoder in DECODERS.values():
            for sample in decoder.samples:
                decoder.read(sample)
    finally:
        sys.setprofile(None)
    folders = [*(f"p2pfl/{each}" for each in WHERE), "topologies", "sim"]
    lacking = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))
        for name in functions(path)
        if READS.fullmatch(name.rpartition(".")[2]) and (str(path), name) not in called and name not in ELSEWHERE
    ]
    assert lacking == []


def functions(path):
    """The functions and methods of a module, by their qualified names."""
    for node in ast.parse(path.read_text("utf-8")).body:
        for inner in node.body if isinstance(node, ast.ClassDef) else [node]:
            if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
                yield inner.name if inner is node else f"{node.name}.{inner.name}"


@pytest.mark.parametrize("content", ["chrter\tb'x'\n", "charter\t'x'\n", "charter\n"])
def test_a_wrong_corpus_is_one_clear_sentence(content, tmp_path, monkeypatch, capsys):
    (tmp_path / "corpus.txt").write_text(content)
    monkeypatch.setattr(many_inputs, "CORPUS", tmp_path / "corpus.txt")
    monkeypatch.setattr(sys, "argv", ["many_inputs.py", "--inputs", "1"])
    with pytest.raises(SystemExit, match="2"):
        main()
    said = "corpus.txt:1 is not a decoder's name, a tab and bytes as Python writes them"
    assert said in capsys.readouterr().err.splitlines()[-1]
