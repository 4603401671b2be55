"""Take each named defence out of a copy of the program, one at a time: the tests that prove it must turn red.

    make defences            all of them; ONLY="opening tag,rekeying" for some

docs/explanation/threats.md names each defence, and tests/test_defences.py keeps the page and this table alike. In the
table, `=` begins the defences of a file. Each has a name and its tests, the lines that make it (`-`), and what stands
in their place without it (`+`): nothing said means `if False:` for a condition, and `pass` for another statement.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIMIT_S = 300
"""How long the tests of one defence may take."""
TABLE = r"""
= p2pfl/crypto/session.py
opening tag: crypto/test_handshake.py::test_a_dialer_that_does_not_know_our_key_is_dropped_before_any_curve_arithmetic
- if not sodium_memcmp(tag, opening_tag(self._identity.public, theirs)):
proof of the shared secret: crypto/test_handshake.py::test_a_listed_liar_cannot_pass_on_what_another_node_said_to_it
- if not sodium_memcmp(mac, digest("introduction", statement, key=leg.mac_key)):
signature of the transcript: crypto/test_handshake.py::test_a_listed_liar_cannot_pass_on_what_another_node_said_to_it
- VerifyKey(public).verify(statement, signature)
low-order points: crypto/test_handshake.py::test_a_point_of_low_order_is_refused_from_either_end
- raise HandshakeFault("the peer's ephemeral key is a point of low order") from error
+ shared = bytes(KEY_BYTES)
the dialed key: crypto/test_handshake.py::test_a_listed_node_that_was_not_dialed_is_refused
- if responder.public != self._peer_public:
listed keys: crypto/test_handshake.py::test_an_unlisted_key_is_refused_and_named
- if not self._allowed(initiator.public):
the federation in the handshake: crypto/test_handshake.py::test_both_ends_name_the_section_that_differs
- if ours == theirs:
+ if True:
blinded settings: crypto/test_handshake.py::test_a_blinded_section_tells_nothing_across_sessions
- sections = [digest("section", transcript, name.encode(), value) for name, value in self.sections]
+ sections = [digest("section", name.encode(), value) for name, value in self.sections]
ephemeral keys: crypto/test_handshake.py::test_an_ephemeral_key_is_let_go_by_the_step_that_uses_it
- ours, self._ephemeral = _unused(self._ephemeral), None
+ ours = _unused(self._ephemeral)
rekeying: crypto/test_session.py::test_both_ends_change_the_key_each_time_the_threshold_is_passed
- if self._unrekeyed_bytes < self._rekey_bytes:
+ if True:
marked end: crypto/test_session.py::test_the_final_chunk_says_so_and_nothing_may_follow_it
- if self._in_final:
= p2pfl/crypto/identity.py
private key file: crypto/test_identity.py::test_a_key_file_that_others_can_touch_is_refused
- if HAS_MODES and mode & 0o077:
= p2pfl/wire/__init__.py
announced sizes: wire/test_assemble.py::test_a_body_beyond_the_limit_is_refused_before_it_is_allocated
- if header_bytes > MAX_HEADER_BYTES or body_bytes > limit:
values in range: wire/test_frame.py::test_a_value_out_of_range_is_refused_from_a_peer_and_never_sent
- Counter = Annotated[int, Meta(ge=0, lt=2**53)]
+ Counter = int
small pieces: wire/test_assemble.py::test_any_other_cut_is_refused_and_final
- if not least <= len(chunk) <= most:
+ if len(chunk) > most:
= p2pfl/engine/engine.py
finite models: engine/test_exchange.py::test_a_bad_request_is_refused_and_leaves_no_trace
- if not replica <= min(limit, NORM_CEILING):
= p2pfl/net/acceptor.py
time to a session: net/test_refusals.py::test_a_connection_that_dawdles_is_closed
- self._deadline = loop.call_at(self.ends_at, self.abort)
+ self._deadline = loop.call_at(self.ends_at + 1e6, self.abort)
a place for each stage: net/test_acceptor.py::test_whoever_has_come_further_never_goes_for_those_behind
- room = self._rooms[stage]
+ room = self._rooms[ConnectionStage.CONNECTED]
bytes before a greeting: net/test_acceptor.py::test_a_gate_hears_no_more_than_a_greeting_at_first
- super().__init__(idle_bytes=pending.greeting_bytes)
+ super().__init__()
handshakes of one address: net/test_acceptor.py::test_handshakes_are_limited_by_address
- if stage is ConnectionStage.ADDRESSED and not self._may(self._handshakes, gate.group, handshakes):
networks as one address: net/test_acceptor.py::test_addresses_that_one_peer_has_as_it_likes_are_one_group
- NETWORK_BITS = 64
+ NETWORK_BITS = 128
= p2pfl/net/limits.py
budget of strangers: net/test_cpu_quota.py::test_strangers_spend_their_share_of_the_core_that_the_node_gets
- return self._pot(group).left_s(group, self._clock()) > 0.0
+ return True
budget of members' addresses: net/test_cpu_quota.py::test_a_flood_takes_nothing_of_those_at_members_addresses
- return self._known if group in self._known_groups else self._strangers
+ return self._strangers
= p2pfl/net/transport.py
few pings: net/test_links.py::test_a_flood_of_pings_ends_the_session_and_proves_nothing
- if self._pings.take(asyncio.get_running_loop().time()) > 0.0:
printable log lines: net/test_refusal_lines.py::test_a_line_is_one_line_and_short_whatever_is_in_it
- line = printable(text[:most_bytes])
+ line = text[:most_bytes]
= p2pfl/net/link.py
few empty chunks: net/test_links.py::test_empty_chunks_are_worth_no_more_than_an_honest_end_sends
- if self._beats.take(monotonic()) > 0.0:
sealed heartbeats: net/test_links.py::test_a_session_over_a_line_that_holds_all_back_is_closed_by_both_ends
- looks = 0 if self._inbox.hears() else looks + 1
+ looks = 0
memory of unfinished messages:
  net/test_refusals.py::test_many_neighbors_that_announce_at_once_hold_no_more_than_the_budget
- if needed > held and self.used - held + needed > self.limit_bytes:
pace of a message: net/test_refusals.py::test_a_message_that_stops_coming_is_a_fault
- self.deadline = now + self._window_s
+ self.deadline = None
peers that never read: net/test_links.py::test_a_peer_that_never_reads_a_chunk_is_closed
- async with asyncio.timeout(self._shared.limits.drain_s) as self._bodies.draining:
+ async with asyncio.timeout(None) as self._bodies.draining:
innocent behind a relay: relay/test_lying_relays.py::test_whatever_a_relay_does_the_messages_arrive_once_through_another
- if line.relay is not None and not isinstance(fault, MalformedError | OtherVersionError):
= p2pfl/net/session_table.py
session churn: net/test_churn.py::test_a_hundred_sessions_a_second_are_few
- if place.sessions.take(now) == 0.0:
+ if True:
= p2pfl/core/neighbor.py
message flood:
  core/test_standing.py::test_a_flood_of_any_message_ends_the_session_and_the_second_one_leads_to_quarantine
- if self.hearing.take(now) == 0.0:
+ if True:
= p2pfl/core/limits.py
quarantine: core/test_standing.py::test_five_models_that_cannot_be_lead_to_quarantine
- if self._points < ENOUGH or self.is_quarantined(now):
+ if True:
share of the engine: core/test_pacing.py::test_a_neighbor_gets_a_fifth_of_the_time_beside_others_that_take_little
- return ENGINE_WINDOW_S * log(spent_s / allowed_s) if spent_s > allowed_s else 0.0
+ return 0.0
rest after resyncs: core/test_standing.py::test_a_storm_of_resyncs_ends_the_session_and_raises_an_alarm
- if len(self.times) <= RESYNCS_PER_WINDOW:
+ if True:
= p2pfl/core/exchange.py
bounded factor: core/test_initiator.py::test_a_factor_out_of_bounds_is_never_applied_but_leads_to_a_new_incarnation
- if not 0.0 <= reply.factor <= most:
smaller weight counts:
  core/test_initiator.py::test_the_factor_is_gamma_times_the_smaller_weight_times_the_smaller_staleness
- factor = profile.gamma_of(peer) * min(request.weight, weight) * staleness
+ factor = profile.gamma_of(peer) * request.weight * staleness
incarnations in reach: core/test_standing.py::test_an_incarnation_out_of_range_counts
- if incarnation > min(LARGEST_COUNTER, record.incarnation + LONGEST_JUMP):
requests once: core/test_initiator.py::test_an_older_request_is_ignored
- if request.seq < record.seq or not self.line.is_open:
+ if not self.line.is_open:
= p2pfl/core/members.py
clone of a node: core/test_amending.py::test_only_the_return_of_a_process_after_another_proves_two
- if not returned or before is None:
+ if True:
generations in reach: core/test_amending.py::test_no_generation_is_far_above_what_was_known
- if lifetime.generation > min(LARGEST_GENERATION, least + LARGEST_STEP):
= p2pfl/core/core.py
word of b + 1: core/test_amending.py::test_where_b_neighbors_may_lie_one_alone_makes_nobody_resign
- needed = max(self.settings.profile.words_needed, min(2, there))
+ needed = 1
= p2pfl/storage/disk.py
digest of a record: storage/test_log.py::test_a_changed_byte_ends_the_log_there_and_is_reported_if_data_follow
- if digest != next_link(link, [body], form):
log on the disk: storage/test_crashes.py::test_a_power_loss_after_any_operation_recovers_all_that_was_acknowledged
- self._write_out()
-         with storage_errors(self._path):
-             sync(self._fd, only_content=True)
+ self._write_out()
folder on the disk: storage/test_crashes.py::test_a_power_loss_after_any_operation_recovers_all_that_was_acknowledged
- part.replace(path)
-             sync_folder(path.parent)
+ part.replace(path)
state of the user alone: storage/test_disk.py::test_a_folder_that_others_may_write_to_is_refused_with_what_to_do
- if there.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
no link followed: storage/test_disk.py::test_a_log_that_is_a_link_is_neither_cut_nor_continued
- os.O_WRONLY | os.O_APPEND | BINARY | NO_FOLLOW
+ os.O_WRONLY | os.O_APPEND | BINARY
one process for a folder: storage/test_store.py::test_a_second_process_is_told_that_the_folder_is_in_use
- with suppress(BlockingIOError):
-             lock(fd)
-             return
+ return
= p2pfl/storage/store.py
digest of a snapshot: storage/test_log.py::test_every_changed_or_missing_byte_is_noticed
- if content[:_HEAD_BYTES] != _head(FAST if content.startswith(FAST.snapshot_magic) else PLAIN, generation, [body]):
logs in a chain:
  storage/test_store.py::test_damage_in_the_older_log_keeps_the_newer_one_from_being_replayed_over_the_gap
- if log.previous != recovery.end:
room for a snapshot:
  storage/test_disk.py::test_a_log_that_has_filled_the_disk_gives_way_to_a_snapshot
  storage/test_disk.py::test_the_older_generation_is_given_up_only_where_there_is_no_room_beside_it
- if not (is_full(error) and self._base is not None and discard_before(self._folder, self._base)):
+ if True:
= p2pfl/features/privacy/ledger_file.py
check of the ledger:
  node/test_budget.py::test_the_file_beside_the_key_is_refused_if_damaged_another_federation_s_or_out_of_reach
- if content is None or content.check != _check(content.federation, content.node, content.ledger):
+ if content is None:
= p2pfl/features/privacy/budget.py
witness of an old copy: node/test_budget.py::test_only_what_a_node_has_signed_and_does_not_have_is_evidence
- elif account.steps > own.steps if same else later:
+ elif False:
= p2pfl/config/charter.py
signature of a charter: config/test_charter.py::test_a_changed_byte_is_refused
- VerifyKey(signer).verify(SIGNED + digest, signature)
admin keys: config/test_charter.py::test_a_charter_of_somebody_else_or_for_another_federation_is_refused
- if signer not in admin:
charter of one federation: config/test_charter.py::test_a_charter_of_somebody_else_or_for_another_federation_is_refused
- if charter.realm != realm:
canonical charter: config/test_charter.py::test_another_spelling_of_the_same_is_refused_even_if_an_admin_has_signed_it
- if decoded.form != FORM or charter.statement != statement:
removed for good: config/test_charter.py::test_the_next_charter_keeps_every_row_and_takes_nobody_back
- and after.retired >= before.retired
+  
= p2pfl/features/members/charters.py
newer charters only: node/test_charters.py::test_an_older_one_and_the_same_one_change_nothing_also_after_a_restart
- if offered > known:
+ if True:
= p2pfl/features/members/pairing.py
token of an invite: node/test_pairing.py::test_the_line_with_another_token_key_or_name_opens_nothing
- (request.key, request.token, request.name) != (key, self.invite.token, self.invite.name)
+ False
plain names of files: node/test_pairing.py::test_a_path_that_leaves_the_folder_is_refused
- if not PLAIN.fullmatch(name) or name == invite.name:
= p2pfl/aggregate/distances.py
clipped pulls: aggregate/test_rule_bounds.py::test_the_clipped_sum_is_robust_with_rho_two
- return np.divide(radius, gaps, out=np.ones_like(gaps), where=gaps > radius)
+ return np.ones_like(gaps)
= p2pfl/aggregate/rules.py
cut ends: aggregate/test_rule_bounds.py::test_no_coordinate_leaves_the_range_of_honest_ones
- cut = self.trimmed(source.count)
+ cut = 0
= p2pfl/engine/rounds.py
bounded result of a rule: engine/test_rule.py::test_whatever_a_rule_does_wrong_leaves_everything_as_it_was
- if model.shape != own.shape or not norm(model) <= self.longest:
= p2pfl/features/relay/tickets.py
signed nonce of a relay: relay/test_tickets.py::test_an_answer_serves_once
- return _is_signed(registration.key, _proven_by(registration, nonce), registration.signature)
+ return True
= p2pfl/features/relay/switchboard.py
dialed name of a relay: relay/test_switchboard.py::test_who_signs_in_by_another_name_of_the_relay_takes_nobodys_seat
- place = (dialed, key)
+ place = ("", key)
credit of a line:
  relay/test_switchboard.py::test_who_sends_beyond_its_credit_loses_the_line_and_the_relay_holds_no_more_than_that
- if size > end.allowed_bytes:
turns of federations:
  relay/test_switchboard.py::test_a_quiet_federation_waits_for_one_turn_of_a_flood_and_not_for_all_of_it
- if size_bytes > turn.deficit_bytes:
memory of a relay:
  relay/test_switchboard.py::test_above_the_last_bound_nobody_is_read_and_the_member_for_which_most_waits_is_ended
- if tenant.held_bytes > 2 * HELD_BYTES and tenant.seats:
= p2pfl/features/sums/records.py
atoms of earlier sums: sums/test_attacks.py::test_the_same_data_again_without_one_member_is_refused
- return min(map(len, self._split(data, members))) >= self._least
+ return True
= p2pfl/features/sums/statement_log.py
signed statements: sums/test_attacks.py::test_a_statement_in_anothers_name_is_a_fault_of_who_brings_it
- self._verify[post.author].verify(self._domain + post.body, post.signature)
= p2pfl/features/sums/messages.py
statements of one federation: sums/test_attacks.py::test_a_statement_of_another_federation_counts_for_nothing
- + self.federation + numbers.encode()
+ + numbers.encode()
more than half sign: sums/test_pure_parts.py::test_two_lists_of_one_slot_are_never_both_certified
- return (members + colluders) // 2 + 1
+ return members // 2
= p2pfl/features/sums/setup.py
whole groups: sums/test_groups.py::test_no_member_may_ask_for_a_part_of_a_group
- if settings.whole(left) != left:
= p2pfl/learn/averaging.py
check of a hidden part:
  shared_noise/test_hidden_nodes.py::test_a_garbled_part_is_noticed_by_its_check_and_the_round_is_made_again
- check_of(words) == check and not self.packing.exceeds
+ not self.packing.exceeds
= p2pfl/features/stats/survey.py
few rows: stats/test_survey.py::test_a_value_that_one_site_alone_has_is_hidden_whatever_its_rows
- return (counts > 0) & ((counts < self.least_rows) | (sites < LEAST_SITES))
+ return (counts > 0) & (counts < self.least_rows)
= p2pfl/features/stats/query_policy.py
near tables: stats/test_desk.py::test_a_table_that_has_changed_by_a_few_rows_is_not_answered_about
- return any(table.is_near(before, least_rows) for before in self._tables)
+ return False
= p2pfl/features/status/page.py
known hosts: net/test_page.py::test_forged_host_and_origin_are_refused
- if not trusted_host(host, self.listen, self.names):
same origin: net/test_page.py::test_forged_host_and_origin_are_refused
- if origin is not None and origin not in (f"http://{host}", f"https://{host}"):
token: net/test_page.py::test_under_a_name_nothing_is_told_without_the_token
- if request.path not in self.open_paths and not may_look:
proxies are strangers: net/test_page.py::test_who_comes_through_a_proxy_of_this_machine_needs_the_token
- if any(name in request.headers for name in PROXIED):
content policy: net/test_page.py::test_everything_has_a_policy_that_lets_no_script_but_ours_run
- script-src 'self'; style-src
+ script-src 'self' 'unsafe-inline'; style-src
= p2pfl/reporting/vitals.py
signed vitals: net/test_spread.py::test_what_its_member_has_not_signed_is_refused_and_nobody_stops
- VerifyKey(key).verify(realm + raw[:-SIGNATURE_BYTES], raw[-SIGNATURE_BYTES:])
= p2pfl/foreign.py
printable text: cli/test_hostile_pages.py::test_escapes_in_a_page_do_not_reach_the_terminal
- return "".join(sign if sign.isprintable() or sign in keep else "?" for sign in text)
+ return text
no waiting for pipes: cli/test_check.py::test_a_named_pipe_in_place_of_a_file_is_refused_and_not_waited_for
- if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
bounded files: config/test_tables.py::test_a_file_that_is_too_large_is_refused_before_all_of_it_is_read
- file.read(-1 if most_bytes is None else most_bytes + 1)
+ file.read()
= p2pfl/config/tables.py
bounded nesting: config/test_tables.py::test_a_key_of_too_many_parts_is_refused_before_it_is_parsed
- if deep := _DEEP_KEY.search(text):
+ if deep := None:
= deploy/install.sh
links that leave:
  deploy/test_install_checks.py::test_a_link_that_leaves_the_folder_is_refused_since_root_would_copy_what_it_names
- refuse "$1: a link that leaves the folder: $advice"
+ :
"""


@dataclass
class Defence:
    file: str
    name: str = ""
    tests: list[str] = field(default_factory=list)
    lines: dict[str, list[str]] = field(default_factory=lambda: {"-": [], "+": []})

    @property
    def source(self) -> str:
        return "\n".join(self.lines["-"])

    def removed_from(self, text: str) -> str:
        usual = "if False:" if self.source.startswith("if ") else "pass"
        return text.replace(self.source, "\n".join(self.lines["+"]) or usual)


def defences() -> list[Defence]:
    found, file = [], ""
    for line in TABLE.strip().splitlines():
        sign, rest = line[:1], line[2:]
        if sign == "=":
            file = rest
        elif sign in "-+":
            found[-1].lines[sign].append(rest)
        else:
            if sign != " ":
                found.append(Defence(file, line.partition(":")[0]))
            found[-1].tests += [word for word in line.split() if "::" in word]
    return found


def passes(tree: Path, tests: list[str]) -> bool | None:
    """Run the tests until one fails. None: they could not be run, or did not end."""
    names = [f"tests/{test}" for test in tests]
    command = [sys.executable, "-m", "pytest", "-qx", "-p", "no:cacheprovider", "--hypothesis-seed=0", *names]
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    log = (tree.parent / "said").open("w+")
    run = subprocess.Popen(command, cwd=tree, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        return {0: True, 1: False}.get(run.wait(LIMIT_S * max(1, len(tests) // 4)))
    except subprocess.TimeoutExpired:
        return None
    finally:
        try:
            os.killpg(run.pid, signal.SIGKILL)  # processes that a test has left
        except ProcessLookupError:
            pass
        log.close()


def outcome(tree: Path, defence: Defence) -> str:
    file = tree / defence.file
    text = file.read_text(encoding="utf-8")
    if text.count(defence.source) != 1:
        return "not found"
    try:
        file.write_text(defence.removed_from(text), encoding="utf-8")
        return {True: "green", False: "red", None: "broken"}[passes(tree, defence.tests)]
    finally:
        file.write_text(text, encoding="utf-8")


def main() -> int:
    only = [name.strip() for name in os.environ.get("ONLY", "").split(",") if name.strip()]
    chosen = [each for each in defences() if not only or each.name in only]
    begun, counts = time.monotonic(), Counter()
    with tempfile.TemporaryDirectory(prefix="p2pfl-defences-") as folder:
        tree = Path(folder, "tree")
        listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
        for name in subprocess.check_output(listed, cwd=ROOT, text=True).splitlines():
            if (ROOT / name).is_file():
                (tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, tree / name)
        if not passes(tree, sorted({test for each in chosen for test in each.tests})):
            print((Path(folder) / "said").read_text()[-4000:], "not all of these tests pass as it is", sep="\n")
            return 1
        for each in chosen:
            counts[word := outcome(tree, each)] += 1
            print(f"{word:10}{each.name}", flush=True)
    words = ", ".join(f"{counts[word]} {word}" for word in ("red", "green", "not found", "broken"))
    print(f"{len(chosen)} defences: {words}, {time.monotonic() - begun:.0f} s")
    return int(counts["red"] < len(chosen))


if __name__ == "__main__":
    sys.exit(main())
