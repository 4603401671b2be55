"""Every decoder of bytes from a peer, a file or a person: how it is called, valid inputs, and the errors it may raise.

`many_inputs.py` makes bad inputs of the valid ones. A form turns an input into a tree of values and back, so that what
is behind a length, a checksum or a signature is reached, too; where there is a signature, the call signs.
"""

from __future__ import annotations

import asyncio
import atexit
import gzip
import io
import json
import logging
import os
import re
import shutil
import tempfile
import tomllib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

import msgspec
import numpy as np
import safetensors.numpy
from charter_kit import ADMIN, added, after, first, key_of, ward
from message_kit import ASIDE, D1, FRAMES
from message_kit import REQUEST as SENT
from msgspec import msgpack, structs
from run_reports import point, report
from tree_world import schema_of, settings_of, site_of
from vitals_kit import ROW

from p2pfl import aggregate, compress, config, crypto, learn, methods, net, node, reporting, storage, wire
from p2pfl.crypto.identity import Identity, public_text
from p2pfl.errors import PeerFault, StorageError, UserError
from p2pfl.features import members, privacy, relay, shared_noise, stats, status, sums, tables
from p2pfl.features import trees as tree_rounds
from p2pfl.features.bounds import MonthCount
from p2pfl.foreign import UNREADABLE, read_json
from p2pfl.learn import privacy as accounts
from p2pfl.learn import table, trees
from sim import load_sweep, parse_attack, read_world
from topologies import TopologyError, build, read_counts, read_far, read_topology, write_topology


class Form(NamedTuple):
    load: Callable[[bytes], Any]
    dump: Callable[[Any], bytes]


class Decoder(NamedTuple):
    name: str
    read: Callable[[bytes], object]
    samples: tuple[bytes, ...]
    form: Form | None
    refuses: tuple[type[Exception], ...]


DECODERS: dict[str, Decoder] = {}
FOLDER = Path(tempfile.mkdtemp(dir=os.environ.get("FUZZ_FOLDER")))
atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)
FAULT, USER, VALUE = (PeerFault,), (UserError, StorageError, TopologyError, ExceptionGroup), (ValueError, UserError)


def add(name, form, refuses, read, *samples):
    given = tuple(each.encode() if isinstance(each, str) else bytes(each) for each in samples)
    DECODERS[name] = Decoder(name, read, given, form, refuses)


def add_text(name, read, *samples, refuses=(ValueError,)):
    """A text as the command line has it."""
    add(name, TEXT, refuses, lambda raw: read(raw.decode("utf-8", "surrogateescape")), *samples)


def add_file(name, form, read, *samples):
    """A file of that name; `read` takes its path."""

    def call(raw):
        path_to(name).touch(0o600)
        path_to(name).write_bytes(raw)
        return read(path_to(name))

    add(name, form, USER, call, *samples)


def path_to(name):
    (FOLDER / name).parent.mkdir(exist_ok=True)
    return FOLDER / name


def written(name, write, *arguments, **options):
    """Return what `write` has put into the file."""
    write(*arguments, **options)
    return path_to(name).read_bytes()


def then(read, use):
    """Call `use` with what was read: it may refuse nothing any more."""

    def call(raw):
        try:
            found = read(raw)
        except (ValueError, UserError) as error:
            raise PeerFault(str(error)) from None
        return use(found)

    return call


def again(read, say=str, of=lambda found: found):
    """Read what was read once more from what it says of itself. A text that is refused has a short reason."""

    def call(raw):
        try:
            found = read(raw)
        except ValueError as error:
            reason = str(error)
            assert len(reason) < 400
            assert reason.isprintable()
            raise
        assert of(read(say(found))) == of(found)
        return found

    return call


def shown(errors):
    """Show every mistake, as `p2pfl check` does."""
    return [str(error) for error in errors]


# -- forms -------------------------------------------------------------------------------------------------------------


def behind(size):
    """So many bytes, and msgpack behind them."""
    return Form(lambda raw: [raw[:size], msgpack.decode(raw[size:])], lambda tree: tree[0] + msgpack.encode(tree[1]))


def dump_toml(tree):
    value = config.toml_value
    text = "\n".join(f"{value(str(key))} = {value(each)}" for key, each in tree.items())
    return re.sub(r'"(0xF+)"', r"\1", text).encode()


def load_tensors(raw):
    """The head, in which JSON may stand in a text, and the values."""
    size = int.from_bytes(raw[:8], "little")
    head = json.loads(raw[8 : 8 + size])
    if learn.PREPROCESSING in head["__metadata__"]:
        head["__metadata__"][learn.PREPROCESSING] = json.loads(head["__metadata__"][learn.PREPROCESSING])
    return [head, raw[8 + size :]]


def dump_tensors(tree):
    head, about = tree[0], tree[0]["__metadata__"]
    if learn.PREPROCESSING in about:
        head = head | {"__metadata__": about | {learn.PREPROCESSING: json.dumps(about[learn.PREPROCESSING])}}
    head = json.dumps(head).encode()
    return len(head).to_bytes(8, "little") + head + tree[1]


def load_frame(raw):
    _, version, code, flags, size, _ = wire.LAYOUT.unpack(raw[:18])
    return [version, code, flags, msgpack.decode(raw[18 : 18 + size]), raw[18 + size :]]


def dump_frame(tree):
    version, code, flags, head, body = tree
    packed = msgpack.encode(head)
    return wire.LAYOUT.pack(b"p2", version, code, flags, len(packed), len(body)) + packed + body


def load_npz(raw):
    return {name: [each.dtype.str, each.tolist()] for name, each in np.load(io.BytesIO(raw)).items()}


def dump_npz(tree):
    np.savez(held := io.BytesIO(), **{name: np.array(values, kind) for name, (kind, values) in tree.items()})
    return held.getvalue()


MSGPACK = Form(msgpack.decode, msgpack.encode)
JSON = Form(json.loads, lambda tree: json.dumps(tree).encode())
LINES = Form(lambda raw: [*map(json.loads, raw.splitlines())], lambda tree: b"\n".join([*map(JSON.dump, tree), b""]))
TOML = Form(lambda raw: tomllib.loads(raw.decode()), dump_toml)
TEXT = Form(
    lambda raw: re.findall(r"\w+|\s+|[^\w\s]", raw.decode()),
    lambda tree: "".join(map(str, tree)).encode(errors="surrogatepass"),
)
ROW_FORM = Form(lambda raw: msgpack.decode(raw[:-64]), lambda tree: msgpack.encode(tree) + bytes(64))
TENSORS, FRAME, NPZ = Form(load_tensors, dump_tensors), Form(load_frame, dump_frame), Form(load_npz, dump_npz)

# -- what peers say ----------------------------------------------------------------------------------------------------

WARD = replace(ward(3), path=FOLDER / "federation.toml")
REALM, TOKEN = config.realm_of(WARD), bytes(range(16))
BOB, ALICE = (Identity(bytes([number]) * 32) for number in (1, 2))
BINDING = crypto.FederationBinding(federation_id=bytes(32), sections=(("task", bytes(32)),))
M1 = crypto.Initiator(ALICE, BOB.public, BINDING).first()
TAGGED = Form(lambda raw: [raw[:32]], lambda tree: tree[0] + crypto.opening_tag(BOB.public, tree[0]))
CHUNKS = wire.split(structs.replace(SENT, body=bytes(70_000)), chunk_bytes=lambda: 20_000)
SIGNED_ROW = reporting.sign(ROW, ADMIN, bytes(32))


def say_again(raw):
    for message in wire.Assembler(300_000).feed(raw):
        assert isinstance(message, wire.Unknown) or wire.encode(message), "what was accepted can be said again"


def feed_all(raw):
    """Feed chunks to one assembler: after the first fault there are only faults."""
    assembler, fault = wire.Assembler(300_000), None
    for chunk in msgpack.decode(raw, type=list[bytes]):
        try:
            assembler.feed(chunk)
        except PeerFault as error:
            fault = error
        else:
            assert fault is None
            assert 0 <= assembler.pending_bytes <= 300_000
    if fault is not None:
        raise fault


add("frame", FRAME, FAULT, say_again, *FRAMES)
add("chunks", MSGPACK, (PeerFault, msgspec.DecodeError), feed_all, msgpack.encode([*map(bytes, CHUNKS), *FRAMES]))
add("handshake", TAGGED, FAULT, lambda raw: crypto.Responder(BOB, lambda _: True, BINDING).first(raw), M1)
add("notice", None, FAULT, again(net.unpack_notice, net.Notice.pack), net.Notice(net.Word.OPEN, bytes(16), 7).pack())
add("vitals", ROW_FORM, FAULT, reporting.read, SIGNED_ROW)
add("vitals, signed", None, FAULT, partial(reporting.prove, key=ADMIN.public, realm=bytes(32)), SIGNED_ROW)
for channel in dict.fromkeys(channel for channel, *_ in ASIDE):
    bodies = (channel.pack(message).body for own, message, _ in ASIDE if own is channel)
    add(f"channel {channel}", MSGPACK, FAULT, lambda raw, own=channel: own.pack(own.unpack(raw)), *bodies)

KEYS = sums.Keys(life=1, serial=1, box=bytes(32), masks=bytes(64), seeds=bytes(32))
OPENING = sums.SetupOpening(members=b"\7", keys=bytes(48))
LIST = sums.MemberList(setup=D1, number=0, members=b"\5", terms=bytes(32), total=bytes(32))
REVEAL = sums.Reveal(setup=D1, number=0, own=bytes(32), shares=((1, bytes(32)), (2, bytes(32))))
LARGE = [message for _, message, _ in ASIDE if isinstance(message, sums.BranchPart | sums.Total)]
QUESTION = stats.Question(serial=3, columns=("age", "dose"), by="ward")
ANSWER = stats.SiteAnswer(question=bytes(32), least_rows=5, refusal="")


def take_pieces(raw):
    piece = sums.Piece(size=max(1, len(raw)), offset=0, part=raw or b"\0")
    return sums.Incoming().take(piece, max(0, len(raw) - 64) // 8)


def sign_statement(raw):
    return stats.verified(WARD, 1, raw, key_of(1).sign(stats.DOMAIN + config.federation_id(WARD) + raw))


add("sum statement", MSGPACK, UNREADABLE, sums.decode_statement, *map(msgpack.encode, (KEYS, OPENING, LIST, REVEAL)))
add("large sum", MSGPACK, FAULT, take_pieces, *map(msgpack.encode, LARGE))
add("statistics", MSGPACK, FAULT, sign_statement, *map(msgpack.encode, (QUESTION, ANSWER)))

CHARTERS = [first(WARD), added(after(WARD, first(WARD)), 3)]
PACKED, STATED = [each.packed() for each in CHARTERS], [each.statement for each in CHARTERS]
CHALLENGE = relay.Challenge(version=1, nonce=bytes(32), clock_s=7)
TICKET = relay.Ticket.sign(ADMIN, realm=REALM, key=key_of(1).public, until=2**33)
OPENS = {"keys": [key_of(1).public], "removed": [key_of(2).public], "issued": 7, "until": 2**33}
SHEET = relay.Credentials.sign(ADMIN, realm=REALM, **OPENS)
REGISTERED = relay.register(key_of(1), CHALLENGE, relay="relay", ticket=TICKET.packed())
SAID = [relay.pack_struct(*each) for each in ((relay.FrameKind(1), CHALLENGE), (relay.FrameKind(2), REGISTERED))]
SAID += [relay.pack_number(relay.FrameKind(kind), 3, 2) for kind in (4, 8, 9)]


def sign_charter(raw):
    signed = ADMIN.public + ADMIN.sign(config.SIGNED + config._digest(raw)) + raw
    return config.unpack(signed, admin=WARD.admin, realm=REALM)


def in_relay_frame(raw):
    frame, kinds = relay.unpack(raw), relay.FrameKind
    shape = {kinds.CHALLENGE: relay.Challenge, kinds.REGISTER: relay.Registration}.get(frame.kind)
    return relay.struct_in(frame, frame.kind, shape) if shape else (relay.refusal_in(frame), relay.closing_in(frame))


open_sheet = partial(relay.Credentials.unpack, realm=REALM, admin=WARD.admin)
add("charter", behind(96), (config.CharterError,), config.edition_of, *PACKED)
add("charter, signed", MSGPACK, (config.CharterError,), sign_charter, *STATED)
add("relay frame", behind(5), FAULT, in_relay_frame, *SAID)
add("ticket", behind(96), FAULT, then(relay.Ticket.unpack, relay.Ticket.is_genuine), TICKET.packed())
add("tickets' head", behind(96), (relay.TicketError,), relay.CredentialsHead.unpack, SHEET.head.packed())
add("tickets", behind(len(relay.CREDENTIALS_MAGIC)), (relay.TicketError,), open_sheet, SHEET.packed())


def decode_body(codec, raw):
    found = codec.decode(raw, 300)
    assert found.shape == (300,)
    assert np.isfinite(found).all()


VECTOR = np.random.default_rng(2).standard_normal(300).astype(np.float32)
for spec in (*compress.EXAMPLES, "top-k:0.3+rotate+q2", "top-k:7", "random-k:5+sign", "top-k:0.02+bf16+zstd"):
    codec = compress.make_compressor(spec)
    add(f"body {spec}", None, FAULT, partial(decode_body, codec), codec.encode(VECTOR, chance=5))

# -- tables and trees on which nodes agree -----------------------------------------------------------------------------

CSV = "age,dose,ward,state\n" + "".join(f"{40 + n},{n}.5,{'ab'[n % 2]},{('ill', 'well')[n % 2]}\n" for n in range(12))
TABLE, LAYOUT = path_to("table.csv"), table.make_layout({}, {})
TABLE.write_text(CSV)
SHAPE = {"target": "state", "numeric": ["age", "dose"], "categories": {"ward": ["a", "b"]}, "classes": ["ill", "well"]}
SCHEMA = table.make_schema(SHAPE)
PROPOSAL = table.propose(table.look_at(TABLE, LAYOUT), node="pi1", federation="ward")
NAMES = table.names_in(PROPOSAL)
OTHERS = [msgspec.structs.replace(NAMES, node=name) for name in ("pi0", "pi2")]
GROWING = schema_of(2, classes=2, categories=[3])
SETTINGS = settings_of(GROWING, rounds=2, max_depth=3)
CELLS = np.random.default_rng(1).integers(0, 3, (3, 60)).astype(float)
SITE = site_of((CELLS, CELLS[0] > 0, np.zeros(60, bool)))
GROWTH = trees.TreeGrowth.begin(GROWING, SETTINGS, SITE)
GROWN = [GROWTH.pack()]
while not GROWTH.done:
    GROWTH.take(GROWTH.next_part().arrays, 1)
    GROWN.append(GROWTH.pack())
SHARED = SimpleNamespace(sizes={"first": 6, "second": 6}, dtype="<f8")
SHARED_STATE = np.array([3, 9, 6, 0], "<i8").tobytes() + bytes(4 * 6 + 8 * 6)
LEARNER = SimpleNamespace(table=SimpleNamespace(schema=GROWING), settings=SETTINGS, site=SITE, adopt=lambda _: None)
TREES = SimpleNamespace(_learner=LEARNER, _keys=[b"a", b"b"], write=lambda: None)
grow_on = partial(trees.TreeGrowth.unpack, schema=GROWING, settings=SETTINGS, site=SITE)
take_trees = partial(tree_rounds.GrownState.unpack, TREES)


def lay_out(names):
    return table.FigureLayout([*OTHERS, names], {"target": "state"}).digest


def take_state(raw):
    rounds, model, adopt = accounts.AlikeRounds.unpack(SHARED, raw, 6)
    adopt()
    assert rounds >= 0
    assert (model.shape, model.dtype) == ((6,), np.float32)
    assert all(array.size == 6 for array in SHARED.common.values())


def go_on(growth):
    assert grow_on(growth.pack()).pack() == growth.pack()
    return growth.done or growth.next_part()


add("figures", JSON, VALUE, table.unpack, table.pack(PROPOSAL))
add("names of columns", JSON, FAULT, then(table.unpack_names, lay_out), table.pack(NAMES))
add("shared state", None, VALUE, take_state, SHARED_STATE)
add("trees", MSGPACK, FAULT, then(trees.Forest.unpack, lambda forest: forest.pack()), GROWTH.forest().pack())
add("growing trees", MSGPACK, FAULT, then(grow_on, go_on), *GROWN)
add("trees of others", MSGPACK, VALUE, take_trees, msgpack.encode(([0, 1], GROWN[-1])))

# -- requests and answers of HTTP --------------------------------------------------------------------------------------


async def ask_page(raw):
    """Ask a status page: none of its own errors may show in its log or its loop."""
    errors, log = [], logging.getLogger("p2pfl.page.faults")
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    with patch.object(log, "error", lambda *said, **_: errors.append(said)):
        async with status.StatusPage("127.0.0.1:0", lambda: {"rounds": 7}, token="t" * 20) as page:
            reader, writer = await asyncio.open_connection("127.0.0.1", page.port)
            writer.write(raw)
            writer.write_eof()
            with suppress(ConnectionError, TimeoutError):  # a flood is not answered
                await asyncio.wait_for(reader.read(), 0.5)
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()
    assert not errors, f"an error of the page: {errors}"


GUARD = status.Guard(listen=net.Address("127.0.0.1", 80), token="t" * 20)
PROXY, SAYS = net.parse_proxy("http://proxy:3128"), {"node": "pi1", "phase": "training", "rounds": 3, "accuracy": 0.5}
SAYS |= {"metrics": {"f1": 0.5}, "measures": [{"name": "f1", "higher_is_better": True}]}
REQUESTS = (
    f"GET /status HTTP/1.1\r\nHost: 127.0.0.1:80\r\nAuthorization: Bearer {'t' * 20}\r\nCookie: p2pfl-80=1\r\n\r\n",
    "POST /enter HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost\r\nContent-Length: 3\r\n\r\nabc",
)
judge = partial(PROXY.judge, address=GUARD.listen)
trust = partial(status.trusted_host, listen=GUARD.listen, names=frozenset())


def scores(raw):
    return status.scores_of(status._fields_of(raw, reporting.NodeStatus))


add("request to the page", TEXT, FAULT, lambda raw: asyncio.run(ask_page(raw)), *REQUESTS)
add("token in a request", TEXT, FAULT, GUARD.shows_token, *REQUESTS)
add_text("host of a request", trust, "[::1]:80", "pi1.local:80")
add("answer of a proxy", TEXT, (net.UnreachedError,), judge, "HTTP/1.1 200 OK\r\nproxy-authenticate: basic\r\n\r\n")
add("answer of a page", JSON, FAULT, scores, json.dumps(SAYS))
add("JSON of others", JSON, UNREADABLE, read_json, json.dumps(SAYS))

# -- what people carry, type and write ---------------------------------------------------------------------------------

INVITED = config.invite_of(WARD, "pi9", TOKEN)
REQUEST = config.JoinRequest(config.federation_id(WARD), "pi9", key_of(9).public, "10.0.0.9:80", TOKEN)


def check_invite(raw):
    return config.read_invite(config._line(config.INVITE, raw))


def sign_request(raw):
    return config.read_request(config._line(config.REQUEST, key_of(9).sign(b"p2pfl-request-1\n" + raw) + raw))


def visit(call):
    """Run what asks an inviter, who answers with these bytes."""

    def act(raw):
        async def answer(*_):
            return raw

        with patch("p2pfl.features.members.pairing._visit", answer):
            asyncio.run(call())

    return act


ASKS = visit(lambda: members.fetch(INVITED, None, ADMIN)), visit(lambda: members.ask_to_join(INVITED, None, ADMIN, "x"))
add("invite", MSGPACK, USER, check_invite, config._raw(INVITED.line(), config.INVITE, "", ""))
add("request to join", MSGPACK, USER, sign_request, msgpack.encode(REQUEST))
add("files for a new machine", MSGPACK, USER, ASKS[0], msgpack.encode({"federation.toml": b"x", "task.py": b"y"}))
add("answer to a request", MSGPACK, (net.UnreachableError,), ASKS[1], msgpack.encode(members.Answer("no", {"a": b"x"})))
add_text("line of an invite", config.read_invite, INVITED.line(), refuses=USER)
add_text("compressor", again(compress.parse), "top-k:0.05+rotate+q4+zstd", "fragment:8")
add_text("rule", again(aggregate.parse_rule), "nnm+trimmed-mean:b=1", "hampel:b=1")
add_text("method", methods.parse_method, "variate:beta=0.1", "file.py:object,a=1")
add_text("learning rate", config.parse_schedule.__wrapped__, "tail:rounds=40,last=8,to=0.1")
add_text("stop", config.parse_stop, "no improvement of accuracy by 0.001 in 20 rounds or after 2 h")
add_text("partition", learn.parse_partition, "dirichlet:0.3,5", "shards:2", refuses=USER)
add_text("attack", again(parse_attack, attrgetter("spec"), attrgetter("spec")), "alie", "noise:2", "sign-flip")
add_text("graph", lambda spec: build(spec, 8), "ring", "random-regular:degree=4", "watts-strogatz:k=4,p=0.1")
add_text("distance", read_far, "28-29=60ms", ".5-3 = 2s")
ADDRESSES = "[::1]:80", "wss://host:443/p2pfl#sha256=" + "0f" * 32
parse_address = again(partial(net.parse_address, key=""), of=attrgetter("host", "port", "tls", "path"))
add_text("address", parse_address, *ADDRESSES, refuses=USER)
add_text("address of a member", members.read_address, "pi1=10.0.0.1:8470", "pi1=wss://host/p2pfl", refuses=USER)
add_text("address of a page", status.place_of, "http://127.0.0.1:80/status#token", "[::1]:80", refuses=USER)
add_text("proxy", again(net.parse_proxy, of=attrgetter("port")), "http://user:p%20w@proxy:3128")
add_text("URL of a relay", config.relays().read, "wss://relay.example.org/p2pfl")
add_text("hours", config.hours().read, "20:00-06:00")

ADMIN_KEY = public_text(ADMIN.public)
NEW = [config.NewMember(name=f"pi{n}", key=public_text(key_of(n).public), address=f"10.0.0.{n}:80") for n in range(3)]
WHOLE = config.federation_text(name="ward", topology="ring", task="csv", members=NEW, admin=ADMIN_KEY)
MORE = "[privacy]\nepsilon = 3\ndelta = 1e-5\nrounds = 50\n[stats]\nleast_rows = 10\n"
NODE = '[node]\nlisten = "0.0.0.0:8470"\nthreads = 2\n[network]\nhours = "20:00-06:00"\n[data]\npath = "x"\n'
WORLD = """
compute = {step_s = 0.01, speed = "log-uniform:0.1,1", jitter = 0.2, engine_s = 0.001}
links = {latency_s = "uniform:0.001,0.05", jitter_s = 0.01, bandwidth = 125_000, loss = 0.05, redial_s = 0.5}
slow = [{nodes = "pi1", far_s = 0.2, bandwidth = 1000, speed = 0.5}]
partition = [{groups = ["0", [1, "pi2"]], at_s = 10, until_s = 20}]
crash = [{nodes = [1, "2"], at_s = 5, down_s = 2, amnesia = true}, {count = 2, at_s = 6, down_s = "none"}]
churn = {fraction = 0.34, up_s = 60, down_s = 5, until_s = 600, amnesia = 0.1}
join = [{nodes = "0-1", at_s = 1.5}]
liars = {attack = "noise:0.5", fraction = 0.34}
run = {evaluate_every_s = 2, limit_s = 1000}
"""
SWEEP = '[sweep]\nseeds = 5\nnodes = 20\n[axes]\ntopology = ["ring", "torus"]\nbyzantine = [0, 2]\n'
RECIPE = 'target = "num"\nnumeric = ["age"]\npositive = [1, 2]\n[categories]\ncp = [1, 2]\n[means]\nage = 50.0\n'
PERMITTED = written("node.budget", privacy.give_permission, FOLDER / "node.key", accounts.Promise("record", 3.0, 1e-5))


def read_charter(path):
    mistakes = config.Mistakes(path)
    return config.read_members_file(path, WARD, mistakes), shown(mistakes.errors)


def read_graph(path):
    graph = read_topology(path)
    assert len(graph.names) in {0, graph.nodes}
    assert not len(graph.ends) or graph.ends.max() < graph.nodes
    return json.dumps(graph.names, ensure_ascii=False).encode()


TICKETS = written("tickets.toml", relay.write_tickets, WARD, ADMIN, now_s=7.0)
add_file("federation.toml", TOML, lambda path: shown(config.read_federation(path)[1]), WHOLE, WHOLE + MORE)
add_file("pi1/node.toml", TOML, lambda path: shown(config.node_mistakes(path, WARD)), NODE)
add_file("signed/members.toml", TOML, read_charter, *(config.members_text(each, "ward") for each in CHARTERS))
add_file("tickets.toml", TOML, lambda _: relay.credentials_here(WARD), TICKETS)
add_file("schema.toml", TOML, lambda path: table.read_schema(path, {}), RECIPE)
add_file("world.toml", TOML, lambda path: read_world(path, WARD), WORLD)
add_file("sweep.toml", TOML, load_sweep, SWEEP)
add_file("relay/federation.toml", TOML, lambda path: relay.read_listed([path], []), WHOLE)
add_file("node.budget", TOML, lambda path: privacy.read_permission(path.with_suffix(".key")), PERMITTED)
add_file("node.key", TEXT, Identity.load, f"p2pfl-key-1:{config.to_text(bytes(range(32)))}\n")
add_file("relay.token", TEXT, relay.read_token, written("relay.token", relay.make_token, FOLDER / "relay.token"))
add_file("site.csv", TEXT, lambda path: table.look_at(path, table.guess_layout(path)), CSV, CSV.replace(",", ";"))
add_file("own.csv", TEXT, lambda path: table.read_table(path, SCHEMA, LAYOUT), CSV)
add_file("named.edgelist", TEXT, lambda path: build(str(path), 3, names=("a", "b", "c")), "a b\nb c\n")
add_file("counts.csv", TEXT, lambda path: read_counts(path, 2, ("a", "b")), "name,x,y\na,1,2\nb,3,4\n", "1,2\n3,4\n")
for ending in ("edgelist", "adjlist", "graphml", "gml", "json", "npz"):
    name, form = f"graph.{ending}", {"json": JSON, "npz": NPZ}.get(ending, TEXT)
    add_file(name, form, read_graph, written(name, write_topology, build("ring", 6), FOLDER / name))

# -- what nodes and commands leave on disk -----------------------------------------------------------------------------

IDX = bytes([0, 0, 8, 1, 0, 0, 0, 4, 1, 2, 3, 4])
WEIGHTS = {"0.weight": np.ones((2, SCHEMA.width), np.float32), "0.bias": np.zeros(2, np.float32)}
ABOUT = {learn.PREPROCESSING: json.dumps(table.preprocessing_of(SCHEMA, {}, ["0"]))}
PLACE = learn.NodeContext(node=0, nodes=2, name="a", seed=0, base_dir=FOLDER)
QUADRATIC = learn.QuadraticTask(size=3).learner(PLACE, config.TrainingConfig())
CHECKPOINT = learn.to_safetensors(QUADRATIC, np.ones(3, np.float32), {"rounds": "3"})
NOW, LOG, SUMS = datetime(2026, 1, 1, tzinfo=UTC), storage.log_path(FOLDER, 1), sums.KeptSums(FOLDER, [b"a", b"b"])
LEDGER = privacy.LedgerFile(FOLDER / "node.key", "ward", "pi1")
PAID = accounts.Ledger(unit="record", word="0f", spent=(accounts.Spend(1.0, 0.5, 3),))
ASKED = stats.LogLine(time=NOW, asker="pi1", serial=3, columns=("age",), by=None, answer="answered")
STATE = storage.State(header={"a": 1}, arrays={"model": np.ones(3, np.float32)}, blobs={"x": b"abc"})
SNAPSHOT = storage.Snapshot(generation=1, state=STATE, log_end=bytes(32))
SAVED = written("snapshot-00000001", storage.save, FOLDER, SNAPSHOT)
CHECKED = Form(json.loads, lambda tree: JSON.dump(tree | {"check": privacy._check("ward", "pi1", tree["ledger"])}))
MONTHS = '{"2026-01": {"total": 5}}'
HERE = {"federation": "w", "node": "a", "pid": 1, "listen": "a:1", "status": None}
REPORT = report([point(1.0), point(2.0)], warnings=["slow"], staleness={"mean": 0.5, "max": 2})
ROWS = msgpack.encode([stats.HashedTable("ward", {0: bytes(32)})])


def predict(path):
    learned, layout, _ = tables.read_model(path, TABLE)
    return learned.scores(table.read_table(TABLE, learned.schema, layout, scoring=True))


def read_checkpoint(raw):
    return learn.metadata_of(raw), learn.from_safetensors(QUADRATIC, raw)


def keep_log():
    wal = storage.Wal.create(LOG, bytes(32))
    for number in range(3):
        wal.append("mix", {"n": number}, [bytes(number)])
    wal.flush()
    wal.close()


def read_log(path):
    records = storage.read_log(path).records
    assert [record.header["n"] for record in records] == [*range(len(records))]


def recall(folder):
    shared_noise.NoiseState(SimpleNamespace(rows=None, packed_bytes=0), folder, 6).recall()


def in_folder(name, form, read, *samples):
    add_file(name, form, lambda path: read(path.parent), *samples)


add("checkpoint", TENSORS, USER, read_checkpoint, CHECKPOINT)
add("report", JSON, (ValueError,), reporting.Report.from_json, json.dumps(REPORT))
add_file("model.safetensors", TENSORS, predict, safetensors.numpy.save(WEIGHTS, ABOUT))
add_file("labels", None, lambda path: learn.read_idx(path, 1), IDX)
add_file("labels.gz", None, lambda path: learn.read_idx(path, 1), gzip.compress(IDX))
add_file(LOG.name, None, read_log, written(LOG.name, keep_log))
in_folder("snapshot-00000001", None, partial(storage.load, generation=1), SAVED)
in_folder("sums", None, sums.KeptSums, written("sums", SUMS.add, bytes(32), frozenset({0, 1})))
in_folder("rows-of-all.json", JSON, recall, b'{"rows": 9}')
in_folder("sums.life", TEXT, sums.next_life, "12")
in_folder("page-token", TEXT, status.read_token, "t" * 20)
in_folder("stats.log", LINES, stats.QuestionLog, written("stats.log", stats.QuestionLog(FOLDER).add, ASKED))
in_folder("stats.rows", MSGPACK, stats.AnsweredRows, ROWS)
in_folder("stats.bounds", MSGPACK, partial(stats.keep_bound, data=D1, least_rows=5), msgpack.encode({D1: 5}))
in_folder("node.ledger", CHECKED, lambda _: LEDGER.read(), written("node.ledger", LEDGER.write, PAID))
in_folder("traffic.json", JSON, lambda folder: MonthCount(folder, 1e9, NOW).add(9, NOW, 1e9), MONTHS)
in_folder("address.json", JSON, status.find_running, json.dumps(HERE))
in_folder("result.json", JSON, status._result, b'{"node": "pi1", "rounds": 3, "finished": true}')
in_folder("invites.json", JSON, lambda _: members._read_invites(WARD), b'[{"name": "pi9", "token": "00", "until": 7}]')
in_folder("kept/charter", behind(96), partial(node.load_kept, federation=WARD), *PACKED)
