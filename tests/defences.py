"""Take each named defence out of a copy of the program, one at a time: the tests that prove it must turn red.

    make defences            all of them; ONLY="opening tag, rekeying" for some

docs/explanation/threats.md names each. In the table `=` is a file; after the name and tests of a defence, `-` has the
lines that make it, `->` or `+` what stands in their place without it, by default `if False:` for a condition and `pass`
for others.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
LIMIT_S = 600
TABLE = r"""
= p2pfl/crypto/session.py
opening tag: crypto/test_handshake.py::test_a_dialer_that_does_not_know_our_key_is_dropped_before_any_curve_arithmetic
- if not sodium_memcmp(tag, opening_tag(self._identity.public, theirs)):
proof of the shared secret: crypto/test_handshake.py::test_a_listed_liar_cannot_pass_on_what_another_node_said_to_it
- if not sodium_memcmp(mac, digest("introduction", statement, key=leg.mac_key)):
signature of the transcript: crypto/test_handshake.py::test_a_listed_liar_cannot_pass_on_what_another_node_said_to_it
- VerifyKey(public).verify(statement, signature)
the dialed key: crypto/test_handshake.py::test_a_listed_node_that_was_not_dialed_is_refused
- if responder.public != self._peer_public:
listed keys: crypto/test_handshake.py::test_an_unlisted_key_is_refused_and_named
- if not self._allowed(initiator.public):
rekeying: crypto/test_session.py::test_both_ends_change_the_key_each_time_the_threshold_is_passed
- if self._unrekeyed_bytes < self._rekey_bytes: -> if True:
= p2pfl/crypto/identity.py
private key file: crypto/test_identity.py::test_a_key_file_that_others_can_touch_is_refused
- if HAS_MODES and mode & 0o077:
= p2pfl/wire/__init__.py
announced sizes: wire/test_assemble.py::test_a_body_beyond_the_limit_is_refused_before_it_is_allocated
- if header_bytes > MAX_HEADER_BYTES or body_bytes > limit:
values in range: wire/test_frame.py::test_a_value_out_of_range_is_refused_from_a_peer_and_never_sent
- Counter = Annotated[int, Meta(ge=0, lt=2**53)] -> Counter = int
= p2pfl/engine/engine.py
finite models: engine/test_exchange.py::test_a_bad_request_is_refused_and_leaves_no_trace
- if not replica <= min(limit, NORM_CEILING):
reply after its record:
  property/test_conservation.py::test_the_weighted_sum_is_conserved_whatever_happens_to_messages_links_and_nodes
- return Outcome(RequestApplied(peer=op.peer, request=request, reply=reply, chain=chain), change, urgent=True)
+ return Outcome(RequestApplied(peer=op.peer, request=request, reply=reply, chain=chain), change)
= p2pfl/node/engine_thread.py
messages held for a flush:
  node/test_flushing.py::test_nothing_leaves_during_a_flush_and_all_that_comes_meanwhile_shares_the_next
- if outcome.urgent and is_sent and self.durability == "exchange":
= p2pfl/net/acceptor.py
time to a session: net/test_refusals.py::test_a_connection_that_dawdles_is_closed
- self._deadline = loop.call_at(self.ends_at, self.abort)
+ self._deadline = loop.call_at(self.ends_at + 1e6, self.abort)
a place for each stage: net/test_acceptor.py::test_whoever_has_come_further_never_goes_for_those_behind
- room = self._rooms[stage] -> room = self._rooms[ConnectionStage.CONNECTED]
bytes before a greeting: net/test_acceptor.py::test_a_gate_hears_no_more_than_a_greeting_at_first
- super().__init__(idle_bytes=pending.greeting_bytes) -> super().__init__()
= p2pfl/net/limits.py
budget of strangers: net/test_cpu_quota.py::test_what_strangers_say_beyond_their_time_is_not_parsed_and_a_member_gets_in
- self._pot(group).spend(group, cost_s, self._clock())
budget of members' addresses: net/test_cpu_quota.py::test_a_flood_takes_nothing_of_those_at_members_addresses
- return self._known if group in self._known_groups else self._strangers -> return self._strangers
= p2pfl/net/link.py
sealed heartbeats: net/test_links.py::test_a_session_over_a_line_that_holds_all_back_is_closed_by_both_ends
- looks = 0 if self._inbox.hears() else looks + 1 -> looks = 0
farewell: net/test_links.py::test_a_line_that_is_cut_off_is_told_from_a_session_that_its_end_closes
- if final:
memory of unfinished messages:
  net/test_refusals.py::test_many_neighbors_that_announce_at_once_hold_no_more_than_the_budget
- if needed > held and self.used - held + needed > self.limit_bytes:
peers that never read: net/test_links.py::test_a_peer_that_never_reads_a_chunk_is_closed
- async with asyncio.timeout(self._shared.limits.drain_s) as self._bodies.draining:
+ async with asyncio.timeout(None) as self._bodies.draining:
= p2pfl/net/greeting.py
answered openings: net/test_refusals.py::test_an_opening_is_answered_once_however_often_it_comes
- if first in self._openings:
= p2pfl/net/outbox.py
Busy of an own request: net/test_outbox.py::test_a_word_of_being_busy_brings_no_answer_and_no_other_request_again
- if (self._latest or ())[:3] == (Request, busy.incarnation, busy.seq): -> if True:
= p2pfl/net/session_table.py
session churn: net/test_churn.py::test_a_hundred_sessions_a_second_are_few
- if place.sessions.take(now) == 0.0: -> if True:
= p2pfl/core/neighbor.py
message flood:
  core/test_standing.py::test_a_flood_at_a_steady_rate_is_found_and_leads_to_quarantine_however_little_it_exceeds_what_is_heard
- if self.hearing.take(now) == 0.0: -> if True:
answered greetings:
  core/test_session.py::test_greetings_are_answered_at_a_bounded_rate_over_all_sessions_and_one_a_second_always
- if self.mine is None or hello.have_yours or self.greetings.take(now) > 0.0:
+ if self.mine is None or hello.have_yours:
= p2pfl/core/limits.py
quarantine: core/test_standing.py::test_five_models_that_cannot_be_lead_to_quarantine
- if self._points < QUARANTINE_POINTS or self.is_quarantined(now): -> if True:
= p2pfl/core/exchange.py
bounded factor: core/test_initiator.py::test_a_factor_out_of_bounds_is_never_applied_but_leads_to_a_new_incarnation
- if not 0.0 <= reply.factor <= most:
= p2pfl/core/members.py
clone of a node: core/test_amending.py::test_only_the_return_of_a_process_after_another_proves_two
- if not returned or before is None: -> if True:
= p2pfl/core/core.py
word of two:
  core/test_amending.py::test_of_two_neighbors_one_alone_makes_nobody_resign_even_while_the_other_is_away
- there = sum(not edge.line.has_ended for edge in self.edges.values())
+ there = sum(edge.is_open for edge in self.edges.values())
word of b + 1: core/test_amending.py::test_where_b_neighbors_may_lie_one_alone_makes_nobody_resign
- needed = max(self.settings.profile.words_needed, min(2, there)) -> needed = 1
= p2pfl/core/messages.py
chains of both ends: core/test_session.py::test_ends_that_cannot_go_on_do_not
- return initiator.seq == responder.seq and initiator.chain == responder.chain
+ return initiator.seq == responder.seq
= p2pfl/storage/disk.py
digest of a record: storage/test_log.py::test_a_changed_byte_ends_the_log_there_and_is_reported_if_data_follow
- if digest != next_link(link, [body], form):
log on the disk: storage/test_crashes.py::test_a_power_loss_after_any_operation_recovers_all_that_was_acknowledged
- self._write_out()
-         with storage_errors(self._path):
-             sync(self._fd, only_content=True)
+ self._write_out()
no link followed: storage/test_disk.py::test_a_log_that_is_a_link_is_neither_cut_nor_continued
- os.O_WRONLY | os.O_APPEND | BINARY | NO_FOLLOW -> os.O_WRONLY | os.O_APPEND | BINARY
= p2pfl/storage/store.py
digest of a snapshot: storage/test_log.py::test_every_changed_or_missing_byte_is_noticed
- if content[:_HEAD_BYTES] != _head(FAST if content.startswith(FAST.snapshot_magic) else PLAIN, generation, [body]):
logs in a chain:
  storage/test_store.py::test_damage_in_the_older_log_keeps_the_newer_one_from_being_replayed_over_the_gap
- if log.previous != recovery.end:
= p2pfl/features/privacy/budget.py
witness of an old copy: node/test_budget.py::test_only_what_a_node_has_signed_and_does_not_have_is_evidence
- elif account.steps > own.steps if same else later: -> elif False:
= p2pfl/config/charter.py
signature of a charter: config/test_charter.py::test_a_changed_byte_is_refused
- VerifyKey(signer).verify(SIGNED + digest, signature)
charter of one federation: config/test_charter.py::test_a_charter_of_somebody_else_or_for_another_federation_is_refused
- if charter.realm != realm:
= p2pfl/features/members/charters.py
newer charters only: node/test_charters.py::test_an_older_one_and_the_same_one_change_nothing_also_after_a_restart
- offered, known = edition_of(raw), self.edition -> offered, known = edition_of(raw), NONE
= p2pfl/features/members/pairing.py
plain names of files: node/test_pairing.py::test_a_path_that_leaves_the_folder_is_refused
- if not PLAIN.fullmatch(name) or name == invite.name:
= p2pfl/aggregate/distances.py
clipped pulls: aggregate/test_rule_bounds.py::test_the_clipped_sum_is_robust_with_rho_two
- return np.divide(radius, gaps, out=np.ones_like(gaps), where=gaps > radius) -> return np.ones_like(gaps)
= p2pfl/features/relay/tickets.py
signed nonce of a relay: relay/test_tickets.py::test_an_answer_serves_once
- return _is_signed(registration.key, _proven_by(registration, nonce), registration.signature) -> return True
= p2pfl/features/relay/server.py
fresh nonce of a relay:
  relay/test_hostile_members.py::test_a_registration_that_somebody_has_recorded_opens_no_other_line
- now_s, nonce = self._clock(), os.urandom(32) -> now_s, nonce = self._clock(), bytes(32)
= p2pfl/features/relay/switchboard.py
dialed name of a relay: relay/test_switchboard.py::test_who_signs_in_by_another_name_of_the_relay_takes_nobodys_seat
- place = (dialed, key) -> place = ("", key)
credit of a line:
  relay/test_switchboard.py::test_who_sends_beyond_its_credit_loses_the_line_and_the_relay_holds_no_more_than_that
- if size > end.allowed_bytes:
= p2pfl/features/sums/records.py
atoms of earlier sums: sums/test_attacks.py::test_the_same_data_again_without_one_member_is_refused
- return min(map(len, self._split(data, members))) >= self._least -> return True
= p2pfl/features/sums/statement_log.py
whole ids: sums/test_scale.py::test_an_author_cannot_hide_from_neighbors_that_they_have_other_statements_of_it
- kind, size = (WideHave, ID_BYTES) if peer in self.wide else (Have, SHORT) -> kind, size = Have, SHORT
signed statements: sums/test_attacks.py::test_a_statement_in_anothers_name_is_a_fault_of_who_brings_it
- self._verify[post.author].verify(self._domain + post.body, post.signature)
= p2pfl/features/sums/messages.py
more than half sign: sums/test_pure_parts.py::test_two_lists_of_one_slot_are_never_both_certified
- return (members + colluders) // 2 + 1 -> return members // 2
= p2pfl/features/sums/setup.py
whole groups: sums/test_groups.py::test_a_liar_that_proposes_a_part_of_a_group_is_found_out_and_stops_nobody
- if settings.whole(left) != left:
= p2pfl/learn/averaging.py
check of a hidden part:
  shared_noise/test_hidden_nodes.py::test_a_garbled_part_is_noticed_by_its_check_and_the_round_is_made_again
- check_of(words) == check and not self.packing.exceeds -> not self.packing.exceeds
= p2pfl/features/status/page.py
known hosts: net/test_page.py::test_forged_host_and_origin_are_refused
- if not trusted_host(host, self.listen, self.names):
same origin: net/test_page.py::test_forged_host_and_origin_are_refused
- if origin is not None and origin not in (f"http://{host}", f"https://{host}"):
token: net/test_page.py::test_under_a_name_nothing_is_told_without_the_token
- if request.path not in self.open_paths and not may_look:
address of who asks:
  net/test_page.py::test_whoever_asks_from_another_machine_needs_the_token_whatever_host_it_names
- return is_loopback(str(peer[0])) and is_loopback(_name_in(host) or "") -> return is_loopback(_name_in(host) or "")
= p2pfl/reporting/vitals.py
signed vitals: net/test_spread.py::test_what_its_member_has_not_signed_is_refused_and_nobody_stops
- VerifyKey(key).verify(realm + raw[:-SIGNATURE_BYTES], raw[-SIGNATURE_BYTES:])
= p2pfl/foreign.py
printable text: cli/test_hostile_pages.py::test_escapes_in_a_page_do_not_reach_the_terminal
- return "".join(sign if sign.isprintable() or sign in keep else "?" for sign in text) -> return text
no waiting for pipes: cli/test_score.py::test_a_pipe_a_device_or_a_folder_is_refused_at_once
- if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
bytes of a file: config/test_tables.py::test_of_a_file_that_is_far_too_large_little_is_read
- raw = file.read(-1 if most_bytes is None else most_bytes + 1) -> raw = file.read()
= deploy/install.sh
links that leave:
  deploy/test_install_checks.py::test_a_link_that_leaves_the_folder_is_refused_since_root_would_copy_what_it_names
- refuse "$1: a link that leaves the folder: $advice" -> :
"""


class Defence(NamedTuple):
    file: str
    name: str
    tests: list[str]
    source: list[str]
    without: list[str]


def defences() -> list[Defence]:
    found, file = [], ""
    for line in TABLE.strip().splitlines():
        sign, rest = line[0], line[2:]
        if sign == "=":
            file = rest
        elif sign in "-+":
            source, _, without = rest.partition(" -> ") if sign == "-" else ("", "", rest)
            found[-1].source.extend([source] if source else [])
            found[-1].without.extend([without] if without else [])
        else:
            if sign != " ":
                found.append(Defence(file, line.partition(":")[0], [], [], []))
            found[-1].tests.extend(word for word in line.split() if "::" in word)
    return found


def outcome(tree: Path, tests: list[str]) -> str:
    """Run the tests until one fails. "broken": they cannot be run, or do not end."""
    command = [sys.executable, "-m", "pytest", "-qx", "-p", "no:cacheprovider", *(f"tests/{test}" for test in tests)]
    with (tree.parent / "said").open("wb") as said, suppress(subprocess.TimeoutExpired):
        there = {"cwd": tree, "env": {**os.environ, "PYTHONPATH": str(tree)}, "stdout": said, "stderr": said}
        status = subprocess.run(command, check=False, timeout=LIMIT_S, **there).returncode
        return {0: "green", 1: "red"}.get(status, "broken")
    return "broken"


def main() -> int:
    only = {name.strip() for name in os.environ.get("ONLY", "").split(",") if name.strip()}
    chosen = [each for each in defences() if not only or each.name in only]
    begun, counts = time.monotonic(), Counter()
    with tempfile.TemporaryDirectory(prefix="p2pfl-defences-") as folder:
        tree = Path(folder, "tree")
        shutil.copytree(ROOT, tree, symlinks=True, ignore=shutil.ignore_patterns(".*", "*-out", "__pycache__", "dist"))
        if outcome(tree, sorted({test for each in chosen for test in each.tests})) != "green":
            sys.exit(f"{Path(folder, 'said').read_text()[-4000:]}\nthese tests do not pass as it is")
        for each in chosen:
            text, source, word = (tree / each.file).read_text(encoding="utf-8"), "\n".join(each.source), "not found"
            if text.count(source) == 1:
                without = "\n".join(each.without) or ("if False:" if source.startswith("if ") else "pass")
                (tree / each.file).write_text(text.replace(source, without), encoding="utf-8")
                word = outcome(tree, each.tests)
                (tree / each.file).write_text(text, encoding="utf-8")
            counts[word] += 1
            print(f"{word:10}{each.name}", flush=True)  # noqa: T201
    words = ", ".join(f"{counts[word]} {word}" for word in ("red", "green", "not found", "broken"))
    print(f"{len(chosen)} defences: {words}, {time.monotonic() - begun:.0f} s")  # noqa: T201
    return int(counts["red"] < len(chosen))


if __name__ == "__main__":
    sys.exit(main())
