"""Every message that nodes say to each other, on every channel, with its bytes."""

from __future__ import annotations

import faces  # noqa: F401

from p2pfl.core import Ask, Busy, Done, Hello, LivesTold, Ready, Reply, Request, Resign, Resync
from p2pfl.features.bounds.traffic import CHANNEL as PAUSE
from p2pfl.features.bounds.traffic import Pausing
from p2pfl.features.members import CHANNEL as CHARTER
from p2pfl.features.members import CharterAsked, CharterPart, CharterTold
from p2pfl.features.stats import CHANNEL as STATS
from p2pfl.features.stats import SUMS_CHANNEL as STATS_SUMS
from p2pfl.features.stats import AtQuestion, MemberStatement
from p2pfl.features.status import CHANNEL as VITALS
from p2pfl.features.status import VitalsTold
from p2pfl.features.sums import CHANNEL as STANDINGS
from p2pfl.features.sums import (
    BranchPart,
    Credit,
    Farewell,
    Have,
    Piece,
    Poll,
    Post,
    StatePiece,
    StateWanted,
    SumStanding,
    ThinPost,
    Total,
    Want,
    Wave,
    WideHave,
    Working,
    encode_statement,
)
from p2pfl.features.sums.talk import CHANNEL as SUMS
from p2pfl.features.sums.talk import THIN, WIDE
from p2pfl.features.tables.agreeing import CHANNEL as SCHEMA
from p2pfl.features.tables.agreeing import ProposalPart, ProposalsHeld
from p2pfl.wire import Offer, PartHeld, Receipt, Side, encode

D1, D2, D3 = (bytes([number]) * 16 for number in (1, 2, 3))

HELLO = Hello(
    incarnation=1,
    seq=300,
    pending=None,
    request_digest=b"",
    has_replicas=True,
    chain=D1,
    chain_before=D2,
    version=70000,
    closing=None,
    level=None,
    done=False,
    have_yours=True,
    generation=2,
    life=70001,
    process=70002,
    trained=9,
    bound=40,
    begun=b"\x07",
    through=b"\x02",
)
REQUEST = Request(
    incarnation=1,
    seq=2,
    version=3,
    echo=None,
    weight=0.5,
    staleness=1.0,
    pace_s=0.25,
    terms=(3.0,),
    audit=b"",
    body=b"\x01\x02\x03",
)
REPLY = Reply(
    incarnation=1,
    seq=2,
    request_digest=D3,
    version=4,
    factor=0.125,
    pace_s=2.0,
    terms=(0.125,),
    weight=0.75,
    body=b"\xff",
)

# Every message once at least: prefix, header and body apart. Changing any of these means another protocol: raise its
# version along with them.
GOLDEN = [
    (
        HELLO,
        "7032 0a 01 0000 4b000000 0000000000000000",
        (
            "dc001301cd012cc0c400c3c41001010101010101010101010101010101c41002020202020202020202020202020202"
            "ce00011170c0c0c2c302ce00011171ce000111720928c40107c40102"
        ),
        "",
    ),
    (
        REQUEST,
        "7032 0a 02 0000 2c000000 0300000000000000",
        "99010203c0cb3fe0000000000000cb3ff0000000000000cb3fd000000000000091cb4008000000000000c400",
        "010203",
    ),
    (
        REPLY,
        "7032 0a 03 0000 3b000000 0100000000000000",
        (
            "980102c4100303030303030303030303030303030304cb3fc0000000000000cb4000000000000000"
            "91cb3fc0000000000000cb3fe8000000000000"
        ),
        "ff",
    ),
    (Ready(version=128), "7032 0a 04 0000 0c000000 0000000000000000", "98cc80c0c0000000c400c400", ""),
    (
        Ready(version=9, closing=3, trained=8, bound=40, known=70003, begun=b"\x0f", through=b"\x01"),
        "7032 0a 04 0000 11000000 0000000000000000",
        "980903c00828ce00011173c4010fc40101",
        "",
    ),
    (Ready(version=0, level=2), "7032 0a 04 0000 0b000000 0000000000000000", "9800c002000000c400c400", ""),
    (Resync(incarnation=5), "7032 0a 05 0000 02000000 0000000000000000", "9105", ""),
    (
        Ask(incarnation=1, seq=2, request_digest=D3),
        "7032 0a 06 0000 15000000 0000000000000000",
        "930102c41003030303030303030303030303030303",
        "",
    ),
    (
        Busy(incarnation=1, seq=2, retry_after_s=1.5),
        "7032 0a 07 0000 0c000000 0000000000000000",
        "930102cb3ff8000000000000",
        "",
    ),
    (Done(version=9), "7032 0a 08 0000 02000000 0000000000000000", "9109", ""),
    (LivesTold(lives=((3, 1, 70001),)), "7032 0a 09 0000 0a000000 0000000000000000", "9191930301ce00011171", ""),
    (Resign(process=7, other_ms=9), "7032 0a 0a 0000 03000000 0000000000000000", "920709", ""),
    (
        Offer(least=9, most=9, channels=("charter/1", "vitals/1")),
        "7032 0a 0b 0000 17000000 0000000000000000",
        "93090992a9636861727465722f31a8766974616c732f31",
        "",
    ),
    (
        Side(channel="vitals/1", body=b"x"),
        "7032 0a 0c 0000 0d000000 0000000000000000",
        "92a8766974616c732f31c40178",
        "",
    ),
    (
        PartHeld(size=70000, digest=D1),
        "7032 0a 0d 0000 18000000 0000000000000000",
        "92ce00011170c41001010101010101010101010101010101",
        "",
    ),
    (Receipt(size=128), "7032 0a 0e 0000 03000000 0000000000000000", "91cc80", ""),
]
WAVE = Post(
    author=2, body=encode_statement(Wave(setup=D1, number=0, epoch=1, terms=bytes(32))), signature=bytes([9]) * 64
)
ASIDE = [
    (CHARTER, CharterTold(version=3, fingerprint=D1), f"930103c410{'01' * 16}"),
    (CHARTER, CharterAsked(version=2), "920202"),
    (CHARTER, CharterPart(size=9, offset=4, part=b"ab"), "94030904c4026162"),
    (VITALS, VitalsTold(rows=((3, b"row"), (7, b"x"))), "9201929203c403726f779207c40178"),
    (PAUSE, Pausing(for_s=3600.0), "9201cb40ac200000000000"),
    (SCHEMA, ProposalsHeld(held=b"\x05", agreed=b""), "9301c40105c400"),
    (SCHEMA, ProposalPart(member=2, size=9, offset=4, part=b"ab"), "9502020904c4026162"),
    (SUMS, WAVE, f"941402c4389506c410{'01' * 16}0001c420{'00' * 32}c440{'09' * 64}"),
    (SUMS, Have(digest=2**63 - 1, ids=b"12345678", asks=False), "9415cf7fffffffffffffffc4083132333435363738c2"),
    (SUMS, Poll(wave=WAVE), f"9216941402c4389506c410{'01' * 16}0001c420{'00' * 32}c440{'09' * 64}"),
    (SUMS, Working(wave=D1, is_child=True), f"9317c410{'01' * 16}c3"),
    (SUMS, BranchPart(wave=D1, members=b"\x05", vector=bytes(8)), f"9418c410{'01' * 16}c40105c408{'00' * 8}"),
    (SUMS, Total(setup=D1, number=0, members=b"\x05", vector=bytes(8)), f"9519c410{'01' * 16}00c40105c408{'00' * 8}"),
    (SUMS, Want(total=bytes(32)), f"921ac420{'00' * 32}"),
    (SUMS, Piece(size=9, offset=4, part=b"ab"), "941e0904c4026162"),
    (SUMS, Credit(taken=7), "921f07"),
    (SUMS, Farewell(), "9120"),
    (THIN, ThinPost(author=2, statement=[5, D1, 3, 0], signature=b""), f"942102{'9405c410' + '01' * 16 + '0300'}c400"),
    (WIDE, WideHave(digest=D1, ids=D2, asks=False), f"9422c410{'01' * 16}c410{'02' * 16}c2"),
    (
        STANDINGS,
        SumStanding(member=2, serial=300, sums=4, digest=bytes(32), signature=bytes([9]) * 64),
        f"960102cd012c04c420{'00' * 32}c440{'09' * 64}",
    ),
    (STANDINGS, StateWanted(digest=bytes(32), offset=4), f"9302c420{'00' * 32}04"),
    (STATS, MemberStatement(author=2, body=b"ab", signature=bytes([9]) * 64), f"940102c4026162c440{'09' * 64}"),
    (STATS_SUMS, AtQuestion(question=b"\x07"), "9228c40107"),
    (STANDINGS, StatePiece(digest=bytes(32), size=9, offset=4, part=b"ab"), f"9503c420{'00' * 32}0904c4026162"),
]
ASIDE += [(STATS_SUMS, message, wanted) for channel, message, wanted in ASIDE if channel is SUMS]
"""Every message of every extension channel, and its bytes."""

FRAMES = [b"".join(encode(message)) for message, *_ in GOLDEN]
