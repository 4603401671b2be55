"""One core under test: its settings, what its neighbor says, and what its engine answers."""

from __future__ import annotations

from msgspec.structs import replace

from p2pfl import core

SAMPLES = 30.0
WEIGHT = SAMPLES / 2
"""a_i of a node with one neighbor."""


def settings(*, liars=None, least=0, gamma=1.0, gammas=None, **changes):
    """The robust profile where `liars` are named, else the conservative one."""
    plain = {
        "rounds": 3,
        "time_s": None,
        "closing_rounds": 2,
        "profile": core.Robust(liars=liars, least=least)
        if liars
        else core.Conservative(gamma=gamma, gammas=gammas or {}),
        "staleness": core.parse_staleness("hinge-polynomial:4,0.5"),
        "speed_limit": 1.0,
        "start_wait_s": 2.0,
        "linger_s": 5.0,
        "max_wait_s": 5.0,
        "exchanges_per_s": 200.0,
        "audit_every": 64,
    }
    return core.Settings(**(plain | changes))


def only(effects, *kinds):
    return [effect for effect in effects if isinstance(effect, kinds)]


def hello(**changes):
    """The greeting of a neighbor that has never met us."""
    plain = {
        "incarnation": 0,
        "seq": 0,
        "pending": None,
        "request_digest": b"",
        "has_replicas": True,
        "chain": core.NO_CHAIN,
        "chain_before": core.NO_CHAIN,
        "version": 0,
        "closing": None,
        "level": 0,
        "done": False,
        "have_yours": False,
    }
    return core.Hello(**(plain | changes))


def own_hello(**changes):
    """The greeting of a node with these settings."""
    return hello(**({"bound": settings().rounds} | changes))


def request(**changes):
    plain = {
        "incarnation": 0,
        "seq": 1,
        "version": 1,
        "echo": None,
        "weight": WEIGHT,
        "staleness": 0.0,
        "pace_s": 0.0,
        "audit": b"",
        "body": b"body",
    }
    unsigned = core.Request(**(plain | changes))
    return replace(unsigned, digest=core.request_digest(unsigned))


def reply_to(asked, **changes):
    plain = {
        "incarnation": asked.incarnation,
        "seq": asked.seq,
        "request_digest": asked.digest,
        "version": 1,
        "factor": 0.0,
        "pace_s": 0.0,
        "body": b"answer",
    }
    return core.Reply(**(plain | changes))


def make_node(
    index,
    *neighbors,
    samples=SAMPLES,
    fresh=True,
    version=0,
    rounds_done=0,
    records=None,
    durable=True,
    young=False,
    turns=None,
    ended=False,
    elapsed_s=0.0,
    **changes,
):
    """A `young` node has not trained yet and mixes with nobody; others here are past that, whatever they count."""
    node = core.Core(
        index=index,
        neighbors=neighbors,
        settings=settings(**changes),
        samples=samples,
        durable=durable,
        turns=turns,
        memory=core.Memory(
            fresh=fresh,
            version=version,
            rounds=rounds_done,
            records=records or {},
            ended=ended,
            elapsed_s=elapsed_s,
        ),
    )
    node.facts.joining = young
    return node


def say(node, peer, message, now=0.0, session=1):
    return node.handle(core.MessageReceived(peer=peer, session=session, message=message), now)


def open_session(node, peer, now=0.0, session=1, greeting=None):
    """Session up and both greetings through; what that leads to."""
    effects = node.handle(core.SessionOpened(peer=peer, session=session), now)
    return effects + say(node, peer, greeting or hello(), now, session)


def has_completed(node, *peers, now=0.0):
    """These neighbors have trained all that they had to: they do not keep the node from its end."""
    for peer in peers:
        node.members.hear(peer, 0, core.bitmap(1 << peer), core.bitmap(1 << peer), now)


def frozen(op, **changes):
    """The request that an engine makes of a Freeze."""
    names = ("incarnation", "seq", "version", "echo", "weight", "staleness", "pace_s")
    return request(**{name: getattr(op, name) for name in names} | changes)


def freeze(node, effects, now=0.0, body=b"body"):
    """Answer the one Freeze among `effects`; the request, and what follows."""
    (op,) = only(effects, core.Freeze)
    built = frozen(op, body=body)
    return built, node.handle(core.RequestFrozen(peer=op.peer, request=built), now)


def apply_request(node, effects, now=0.0, chain=b"c" * 16):
    """Answer the one ApplyRequest among `effects`; the reply, and what follows."""
    (op,) = only(effects, core.ApplyRequest)
    reply = reply_to(op.request, version=op.version, factor=op.factor, pace_s=op.pace_s)
    event = core.RequestApplied(peer=op.peer, request=op.request, reply=reply, chain=chain)
    return reply, node.handle(event, now)


def apply_reply(node, effects, now=0.0, chain=b"c" * 16):
    """Answer the one ApplyReply among `effects`; what follows."""
    (op,) = only(effects, core.ApplyReply)
    return node.handle(core.ReplyApplied(peer=op.peer, reply=op.reply, chain=chain), now)


def commit(node, effects, now, *, samples=int(SAMPLES), failed=False):
    """Answer the one CommitRound among `effects`; what follows."""
    (op,) = only(effects, core.CommitRound)
    rounds = node.facts.rounds + op.trained
    return node.handle(core.RoundCommitted(version=op.version, rounds=rounds, samples=samples, failed=failed), now)


def initiator(**changes):
    """Node 0 with neighbor 1, not started, session 1 open; and its first effects, a Freeze among them."""
    node = make_node(0, 1, **changes)
    return node, open_session(node, 1)


def responder(**changes):
    """Node 1 with neighbor 0, not started, session 1 open."""
    node = make_node(1, 0, **changes)
    open_session(node, 0)
    return node


def pending_initiator(**changes):
    """An initiator whose first request is out; node and request."""
    node, effects = initiator(**changes)
    asked, _ = freeze(node, effects)
    return node, asked


def exchange_as_initiator(node, effects, now=0.0, version=1, factor=0.0):
    """One whole transaction from its Freeze on; what follows it."""
    peer = only(effects, core.Freeze)[0].peer
    asked, _ = freeze(node, effects, now)
    return apply_reply(node, say(node, peer, reply_to(asked, version=version, factor=factor), now), now)


def filled(node, effects, *, now=0.0):
    """Ticks and exchanges until the node starts from the median; the effects then."""
    for _ in range(60):
        if only(effects, core.Bootstrap):
            return effects
        after = []
        for op in only(effects, core.Freeze):
            after += exchange_as_initiator(node, [op], now, version=50)
        for op in only(effects, core.CommitRound):
            after += commit(node, [op], now)
        effects = after
    raise AssertionError("never filled")


def known_to(record):
    """The greeting of a neighbor whose end stands where this record does."""
    return hello(seq=record.seq, chain=record.chain, chain_before=record.chain_before)


def started(node, now=0.0):
    return node.handle(core.Started(), now)


def begun_alone(node, now=0.0):
    """As a node that has begun with a neighbor, which has gone again: it does not begin without any."""
    return started(node, now) + node.rounds._begin(now)


def sent(effects):
    return [effect.message for effect in only(effects, core.Send)]
