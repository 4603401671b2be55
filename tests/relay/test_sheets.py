"""Tickets and removals that travel with the charter: what is signed, kept, passed on, and shown to relays."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import pytest
from charter_kit import ADMIN, STRANGER, after, first, key_of, sign, ward
from memory_kit import MemoryNetwork
from relay_kit import RelayHere, nobody, parts, until

from p2pfl.config import CharterError, realm_of, without_member
from p2pfl.errors import PeerFault, StorageError, UserError
from p2pfl.features.members import TICKETS, CharterKeeper, CharterTalk, CharterTold
from p2pfl.features.relay import (
    KEPT_NAME,
    MOST_REMOVED,
    TICKET_LOOK_S,
    Admissions,
    Credentials,
    CredentialsHead,
    CredentialsKeeper,
    ListedFederation,
    RelayLink,
    Ticket,
    TicketAge,
    TicketError,
    credentials_here,
    register,
    tickets_file,
    write_tickets,
)

WARD = ward(3)
REALM = realm_of(WARD)
LISTED = ListedFederation(name="ward", realm=REALM, admin=WARD.admin)
YEAR_S = 365 * 86_400


def sheet_of(*numbers, removed=(), issued=1_000, until=2**33, admin=ADMIN):
    keys, lost = [key_of(one).public for one in numbers], [key_of(one).public for one in removed]
    return Credentials.sign(admin, realm=REALM, keys=keys, removed=lost, issued=issued, until=until)


def opened(raw):
    return Credentials.unpack(raw, realm=REALM, admin=WARD.admin)


def test_a_sheet_has_a_genuine_ticket_for_each_member_and_names_the_removed():
    found = opened(sheet_of(0, 1, removed=[2]).packed())
    assert found.ticket_of(key_of(1).public).is_genuine()
    assert found.ticket_of(key_of(2).public) is None
    assert found.head.removed == (key_of(2).public,)
    assert CredentialsHead.unpack(found.head.packed()) == found.head


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        sheet_of(0).packed()[:-1],
        sheet_of(0, admin=STRANGER).packed(),
        replace(sheet_of(0), rows=sheet_of(1).rows).packed(),
        replace(sheet_of(0), head=replace(sheet_of(0).head, issued=2_000)).packed(),
        replace(sheet_of(0), head=replace(sheet_of(0).head, removed=(key_of(1).public,))).packed(),
        replace(sheet_of(0), head=replace(sheet_of(0).head, realm=bytes(32))).packed(),
    ],
)
def test_what_no_admin_has_signed_for_this_federation_is_no_sheet(raw):
    with pytest.raises(TicketError):
        opened(raw)


def test_the_largest_federation_fits_into_what_a_visit_may_bring():
    many = [number.to_bytes(32, "big") for number in range(10_000)]
    raw = replace(sheet_of(), rows=b"".join(key + bytes(64) for key in many)).packed()
    head = replace(sheet_of().head, removed=tuple(many[:MOST_REMOVED]), signature=bytes(64)).packed()
    assert len(raw) + len(head) < 1 << 20
    assert len(head) < 64 * 1024


@pytest.fixture
def setup(tmp_path):
    """What a node's files hold, in a folder of its own."""
    (tmp_path / "state").mkdir()
    return SimpleNamespace(
        federation=replace(WARD, path=tmp_path / "federation.toml"),
        node=SimpleNamespace(state_dir=tmp_path / "state", relay_token=None, relays=()),
        identity=key_of(1),
    )


def sheets_at(setup, on_alarm=None, *, federation=None):
    return CredentialsKeeper(federation or setup.federation, setup.node.state_dir, on_alarm)


def test_a_file_of_an_admin_is_read_whole_and_the_next_one_is_newer_even_if_the_clock_was_set_back(setup):
    federation = after(setup.federation, first(WARD))
    made = write_tickets(federation, ADMIN, now_s=5_000.0)
    assert credentials_here(federation) == made
    removed = after(federation, sign(without_member(federation, "pi2")))
    again = write_tickets(removed, ADMIN, now_s=4_000.0)
    assert (again.head.issued, again.head.removed) == (5_001, (key_of(2).public,))
    shelf = sheets_at(setup, federation=federation)
    assert shelf.ticket(key_of(1).public).until == again.head.until
    file = tickets_file(federation)
    file.write_text("\n".join(line for line in file.read_text("utf-8").splitlines() if "# pi1" not in line), "utf-8")
    assert credentials_here(federation) is None
    assert shelf.ticket(key_of(0).public).until == again.head.until, "what was read remains"


def test_the_newest_sheet_is_kept_passed_on_and_used_at_the_next_registration(setup):
    said, shelf = [], sheets_at(setup)
    keeper = sheets_at(setup, lambda *alarm: said.append(alarm))
    talk = CharterTalk(
        keeper, lambda peer, channel, message: said.append((peer, channel, message)), lambda: 0.0, TICKETS
    )
    talk.opened(7)
    assert shelf.ticket(key_of(1).public) is None
    keeper.offer(sheet_of(0, 1, removed=[2]).packed())
    assert said[-1] == (7, TICKETS, CharterTold(version=1_000, fingerprint=sheet_of(0, 1).head.rows))
    assert shelf.ticket(key_of(1).public).until == 2**33
    keeper.offer(sheet_of(0, issued=900).packed())
    with pytest.raises(CharterError, match=r"not one of federation\.admin"):
        keeper.offer(sheet_of(0, issued=2_000, admin=STRANGER).packed())
    again = sheets_at(setup, said.append)
    assert (again.edition.version, again.packed) == (1_000, sheet_of(0, 1, removed=[2]).packed())
    (setup.node.state_dir / KEPT_NAME).write_bytes(b"damaged")
    assert sheets_at(setup, said.append).edition.version == 0


def test_a_damaged_file_neither_hides_what_neighbors_have_brought_nor_lets_an_older_sheet_in(setup):
    newest = sheet_of(0, 1, removed=[2])
    sheets_at(setup, print).offer(newest.packed())
    tickets_file(setup.federation).write_text("tickets = 3", "utf-8")
    again = sheets_at(setup, print)
    again.offer(sheet_of(0, 1, 2, issued=900).packed())
    assert again.packed == newest.packed()
    shelf = sheets_at(setup)
    assert shelf.head() == newest.head.packed()
    with pytest.raises(UserError, match="tickets"):
        shelf.ticket(key_of(1).public)


def test_a_sheet_of_an_admin_key_that_was_replaced_is_not_used(setup):
    """Relays that list the new key alone would refuse it."""
    old = replace(setup.federation, admin=(STRANGER.public,))
    write_tickets(old, STRANGER, now_s=2**33)
    sheets = sheets_at(setup)
    assert sheets.ticket(key_of(1).public) is None
    sheets.offer(sheet_of(1).packed())
    assert sheets.ticket(key_of(1).public).signer == ADMIN.public


def test_tickets_that_the_disk_refuses_are_used_meanwhile_and_written_later(setup, monkeypatch):
    alarms, disk = [], []

    def refuse(*_):
        raise StorageError("full")

    monkeypatch.setattr("p2pfl.features.relay.tickets.replace_file", refuse)
    keeper = sheets_at(setup, lambda *alarm: alarms.append(alarm))
    keeper.offer(sheet_of(1).packed())
    assert (keeper.edition.version, alarms[0][0]) == (1_000, "storage")
    monkeypatch.setattr("p2pfl.features.relay.tickets.replace_file", lambda *written: disk.append(written))
    keeper.save()
    keeper.save()
    assert len(disk) == 1


def test_a_visitor_may_bring_tickets_as_it_brings_a_charter(setup):
    sheets = sheets_at(setup)
    keeper = CharterKeeper(
        WARD, setup.node.state_dir / "charter", on_charter=print, on_alarm=print, on_tickets=sheets.offer
    )
    keeper.bring(first(WARD).packed())
    keeper.bring(sheet_of(1).packed())
    assert (keeper.version, sheets.edition.version) == (1, 1_000)
    with pytest.raises(PeerFault, match="tickets that cannot be accepted"):
        keeper.bring(sheet_of(1, admin=STRANGER).packed())


def test_a_relay_learns_who_was_removed_from_an_admin_alone_and_never_forgets_it():
    """A newer sheet may be of an admin who has not heard of the removal, an older one may name another member."""
    admissions = Admissions([LISTED])
    assert admissions.learn(LISTED, sheet_of(removed=[2]).head.packed()) == {key_of(2).public}
    assert admissions.learn(LISTED, sheet_of(0, 1, 2, issued=1_500).head.packed()) == frozenset()
    assert admissions.learn(LISTED, sheet_of(removed=[2, 0], issued=900).head.packed()) == {key_of(0).public}
    assert admissions.learn(LISTED, sheet_of(removed=[1], issued=2_000, admin=STRANGER).head.packed()) == frozenset()
    forged = replace(sheet_of(removed=[1], issued=2_000).head, issued=3_000)
    with pytest.raises(PeerFault, match="that no admin names"):
        admissions.learn(LISTED, forged.packed())
    assert [number for number in range(3) if admissions.is_removed(LISTED, key_of(number).public)] == [0, 2]


def test_what_an_admin_has_a_relay_remember_is_bounded(monkeypatch):
    monkeypatch.setattr("p2pfl.features.relay.server.MOST_KNOWN", 3)
    admissions = Admissions([LISTED])
    for number in range(5):
        admissions.learn(LISTED, sheet_of(removed=[number], issued=number).head.packed())
    assert [number for number in range(5) if admissions.is_removed(LISTED, key_of(number).public)] == [2, 3, 4]


async def test_a_removed_member_is_out_as_soon_as_one_member_knows_and_stays_out():
    network, heads = MemoryNetwork(), {0: b"", 2: b""}

    def link(number):
        identity = key_of(number)
        ticket = Ticket.sign(ADMIN, realm=REALM, key=identity.public, until=2**33).packed()
        answer = lambda name, challenge: register(identity, challenge, relay=name, ticket=ticket)  # noqa: E731
        return RelayLink(relay.url, replace(parts(network, identity), answer=answer, removals=lambda: heads[number]))

    async with RelayHere(network, listed=[LISTED]) as relay:
        honest, removed = link(0), link(2)
        tasks = [asyncio.create_task(one.keep(nobody)) for one in (removed,)]
        await until(lambda: removed.is_registered)
        heads[0] = sheet_of(0, 1, removed=[2]).head.packed()
        tasks.append(asyncio.create_task(honest.keep(nobody)))
        await until(lambda: not removed.is_registered and "this member was removed" in removed.why)
        again = link(2)
        tasks.append(asyncio.create_task(again.keep(nobody)))
        await until(lambda: "this member was removed" in again.why)
        assert honest.is_registered
        for task in tasks:
            task.cancel()


async def test_an_expired_ticket_is_told_with_both_clocks(monkeypatch):
    monkeypatch.setattr("p2pfl.features.relay.link.seconds_now", lambda: 1_000_000_000.0)
    network, identity = MemoryNetwork(), key_of(0)
    ticket = Ticket.sign(ADMIN, realm=REALM, key=identity.public, until=1_500_000_000).packed()
    answer = lambda name, challenge: register(identity, challenge, relay=name, ticket=ticket)  # noqa: E731
    async with RelayHere(network, listed=[LISTED], wall_clock=lambda: 1_600_000_000.0) as relay:
        link = RelayLink(relay.url, replace(parts(network, identity), answer=answer))
        task = asyncio.create_task(link.keep(nobody))
        await until(lambda: "expired" in link.why)
        said = link.why
        task.cancel()
    assert said == (
        "the ticket expired at 2017-07-14 02:40 UTC, and by the relay's clock it is 2020-09-13 12:26 UTC, by this "
        "machine's 2001-09-09 01:46 UTC: `p2pfl member hand` makes new ones; or set the clock that is wrong"
    )


async def test_a_node_whose_ticket_runs_out_registers_again_at_once_if_it_has_a_new_one():
    network, identity, until_s = MemoryNetwork(), key_of(0), [150]

    def answer(name, challenge):
        ticket = Ticket.sign(ADMIN, realm=REALM, key=identity.public, until=until_s[0]).packed()
        return register(identity, challenge, relay=name, ticket=ticket)

    now = [100.0]
    async with RelayHere(network, listed=[LISTED], wall_clock=lambda: now[0]) as relay:
        link = RelayLink(relay.url, replace(parts(network, identity), answer=answer))
        task = asyncio.create_task(link.keep(nobody))
        await until(lambda: link.is_registered)
        now[0], until_s[0] = 200.0, 300
        relay.server.end_expired()
        await until(lambda: not link.is_registered)
        await until(lambda: link.is_registered)
        task.cancel()


def test_a_node_says_once_that_its_ticket_expires_soon_and_that_it_has_a_new_one(setup, monkeypatch):
    monkeypatch.setattr("p2pfl.features.relay.feature.seconds_now", lambda: 10_000.0)
    said, now = [], [0.0]
    feed = SimpleNamespace(settle=lambda event, _: said.append(event), tell=lambda *_: None)
    node = SimpleNamespace(
        setup=lambda: setup, clock=lambda: now[0], alarm=lambda kind, _, text: said.append((kind, text)), feed=feed
    )
    age, keeper = TicketAge(node), sheets_at(setup, said.append)

    def look():
        now[0] += TICKET_LOOK_S
        age.look()

    look()
    keeper.offer(sheet_of(1, until=20_000).packed())
    for _ in range(3):
        look()
    keeper.offer(sheet_of(1, issued=2_000, until=10_000 + YEAR_S).packed())
    for _ in range(3):
        look()
    alarm = "it expires at 1970-01-01 05:33 UTC, and by this machine's clock it is 1970-01-01 02:46 UTC"
    assert said == [("relay-ticket", alarm), "relay-ticket-renewed"]
