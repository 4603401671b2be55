"""Every limit on what peers and time may cost a node: its default, what it bounds, and what an honest node uses of it.

`p2pfl check --limits` shows them. A name says the unit. `Limits` are for one node, which may have others.
"""

from __future__ import annotations

from dataclasses import dataclass

# Strangers and connections
STRANGERS_SHARE = 0.06
"""The share of loop time for all strangers together; addresses of members together get the same again."""
ADDRESS_SHARE = 0.04
"""The share of loop time for one address or one IPv6 /64."""
ACCEPTING_SHARE = 0.02
"""The share of loop time for connections that are closed as soon as they are accepted."""
QUOTA_BURST_S = 0.1
"""The seconds of loop time that each of these may take at once."""
NEIGHBOR_BURST_S = 0.02
"""The additional burst for each neighbor: all neighbors may share one address, and start together."""
MOST_GROUPS = 1024
"""The maximum number of address groups that have a budget, or whose handshakes are counted: the latest. Honest: one for
each address of a member.
"""
GREETING_BYTES = 2**14
"""The bytes that a peer may send before it has shown that it knows our key. Honest: an HTTP request and 48 bytes."""
SLICE_BYTES = 2**11
"""The bytes read from such a peer before its time budget is checked again: at most 341 empty pings."""
MOST_CONTROL = 8
"""The maximum number of simultaneous control connections; each may bring a MiB. Honest: none, but while it joins or
fetches a charter.
"""
CONTROL_PER_S = 0.5
"""Visits a second, from unlisted peers in one group of addresses, and from one member without a session. Honest: one in
some seconds, by a member just added.
"""
CONTROL_BURST = 16.0
"""Such visits at once."""
NEIGHBOR_HANDSHAKES = 2.0
"""The handshakes allowed at once for each neighbor: all neighbors may share one address, and start together."""
BACKLOG = 100
"""The connections that the operating system queues until they are accepted."""
ACCEPTED_AT_ONCE = 16
"""The connections accepted in a row before the loop does other work."""
MOST_UNPROVEN = 32
"""The most connections without time of their own that may yet show that they are no strangers'."""
PROOF_BYTES = 2**12
"""The beginning of what they say, which has to show it."""
ACCEPTING_BURST_S = 0.02
"""The seconds that accepting and closing may take at once."""
UNSENT_BYTES = 2**16
"""The bytes that may wait in a transport before a writer waits: inside TLS the default is eight times as much."""
IDLE_BYTES = 2**21
"""The bytes that may arrive without completing a message. For an honest peer, aiohttp holds back 768 KiB, and one
incomplete message has 256 KiB.
"""
PINGS_PER_S = 10.0
"""Pings and pongs allowed per second, beyond a burst of `BURST`: an honest end sends none. 256 KiB of them at once
would hold up the loop for a tenth of a second or more. Honest: none.
"""
REASON_BYTES = 200
"""The longest reason of a refusal that is logged."""
LINE_BYTES = 512
"""The longest line; `STAMP_BYTES` of it are for the time, the level and the name before the text."""
REASON_VARIANTS = 4
"""The number of reasons with the same wording that are logged."""
PROXY_ANSWER_BYTES = 2**14
"""The longest answer of a proxy that is read."""
PROXY_SILENCE_S = 8.0
"""How long a proxy may be silent before it is named as what stands in the way; the whole dial has a little longer."""
MOST_HINTS = 4
"""The maximum number of hints dialed at a time, and kept for a member that is not currently a neighbor."""
MOST_HINTS_KEPT = 512
"""The most hints kept for a neighbor; half of them hold one port for each machine on a usual network (/24)."""

# Extension channels
CHANNEL_PER_S = {
    "charter": 5.0,
    "pause": 0.1,
    "schema": 200.0,
    "standings": 2000.0,
    "stats": 200.0,
    "sums": 4000.0,
    "vitals": 10.0,
}
"""The messages per second on an extension channel; what comes faster is a fault."""
CHANNEL_AT_ONCE = {
    "charter": 400.0,
    "pause": 8.0,
    "schema": 4000.0,
    "standings": 20_000.0,
    "stats": 4000.0,
    "sums": 20_000.0,
    "vitals": 200.0,
}
"""Such messages at once."""

# Sessions and messages
MAX_SECTIONS = 64
"""The most sections of a federation file that a handshake compares."""
SESSION_MAX_S = 3600
"""The age at which a session ends: another one, with new keys, has begun before."""
REKEY_BYTES = 1 << 30
"""The bytes after which a direction of a session changes its key."""
CHUNK_BYTES = 256 * 1024
"""The largest sealed chunk without its seal; a longer message is split."""
MOST_TERMS = 16
"""The maximum number of values that a learning method may put in one message."""
MOST_LIVES_TOLD = 256
"""The maximum number of lifetimes in one message."""
MAX_HEADER_BYTES = 64 * 1024
"""The largest message without its body."""
MAX_RETRY_AFTER_S = 3600.0
"""The longest time for which a peer may ask to be left alone."""
LEAST_CHUNK_BYTES = 4096
"""The smallest chunk of a body that is not its last: a peer cannot make a message expensive by tiny pieces."""
MOST_OFFERS = 64
"""The maximum number of extension channels at one end."""
MOST_NAME_BYTES = 32
"""The maximum length of an extension channel's name, including its version."""
MOST_SIDE_BYTES = 60 * 1024
"""The maximum size of a message on an extension channel."""
LOUD_FAULTS = 20
"""How many faults of one neighbor are logged as warnings; further ones are only counted. Honest: none."""
LISTENER_PATIENCE_S = 60.0
"""How much longer than the dialer the end that was dialed lets a session last: only the dialer can dial again."""
SILENCE_LOOKS = 9
"""The number of checks within the longest silence allowed. Checks are counted, not seconds: a process that was stopped
for an hour must first read what arrived in the meantime.
"""
BEATS_PER_S = 1.0
"""Empty chunks allowed per second, beyond a burst of `BURST`: an honest end sends fewer. Honest: .25."""

# A neighbor in the core
MESSAGE_BURST = 32.0
"""The messages of any one rate that may come at once."""
LONGEST_WAIT_S = 60.0
"""The longest time for which a neighbor that asks too often is put off."""
TELLS_PER_S = 500.0
"""The average number of versions that a node may send a neighbor per second; a later one makes up for one left out."""
OTHERS_PER_S = 50.0
"""The maximum rate of other messages per second: repeats once a second, and one more for each of 20 Busy a second."""
HEARD_MULTIPLE = 2.0
"""What is accepted, as a multiple of what an honest node sends. Honest: 1."""
LONGEST_STALL_S = 45.0
"""For so many seconds a process may hang and still accept all messages sent then; after that its sessions end."""
RESYNC_WINDOW_S = 60.0
"""The seconds in which resyncs are counted."""
RESYNCS_PER_WINDOW = 5
"""The resyncs of an edge in such a window. Honest: one after a restart."""
RESYNC_HOLD_S = 30.0
"""The time for which an edge with more is left alone."""
PATIENCE_MULTIPLE = 4.0
"""How long a round waits for a neighbor, as a multiple of its usual time."""
MOST_MISSES = 10
"""The rounds in a row that a neighbor may miss before rounds no longer wait for it."""
WAIT_SHARE = 0.05
"""The fraction of time that rounds may wait for one neighbor that is much slower than the others."""
WAIT_BURST_S = 3.0
"""The seconds that such a neighbor may cost at once, at the start or after a minute; no minute costs more than six."""
ENGINE_SHARE_OF_ALL = 0.2
"""The share of engine time that any neighbor may take, whatever the others do."""
ENGINE_SHARE_ALONE = 0.75
"""The share of engine time that a neighbor may take if it is the only one."""
FORGIVEN_S = 300.0
"""How long it takes to forgive one point, in seconds; points fall linearly, so that every machine computes the same."""
QUARANTINE_POINTS = 4.5
"""The points that lead to quarantine: five refused models within two minutes. Honest: none."""
FIRST_QUARANTINE_S = 60.0
"""The first quarantine; each further one is twice as long. Honest: none."""
LONGEST_QUARANTINE_S = 3600.0
"""The longest quarantine."""
INBOX = 8
"""The messages of a neighbor that wait for the engine."""
UNANSWERED_S = 45.0
"""A neighbor that has a session but exchanges nothing for this many rounds and seconds is reported."""
LARGEST_COUNTER = 2**53 - 2
"""The largest counter that is accepted. Honest: one for each exchange."""
LONGEST_JUMP = 2**20
"""The largest step of an incarnation: a malicious peer must not exhaust them, and no honest end needs more."""
LARGEST_GENERATION = 2**40
"""The largest generation: far above what any member can reach, and far below the largest that a message can hold.
Honest: one for each process.
"""
LARGEST_STEP = 2**20
"""How far others' reports may raise a generation in one step: a malicious peer must not exhaust all of them at once."""
NEWS_PER_S = 8.0
"""The reports of lifetimes accepted from a neighbor per second. Honest: one for each start of a member."""
LEAST_NEWS = 512.0
"""The reports of lifetimes accepted from a neighbor at once (or twice the number of members); then `NEWS_PER_S`."""
MOST_CLAIMS = 8
"""How often a process may raise its own generation: two copies of one key must not outbid each other forever. Honest:
none.
"""
MOST_PROCESSES = 64
"""How many of a neighbor's processes a node remembers. Honest: one."""
MOST_SENDS = 16
"""How many times in a row the same sets go to a neighbor: with a robust rule two nodes may never agree."""
LONGEST_PACE_S = 3600.0
"""The longest time that a neighbor's word may make a round last."""
LONGEST_JOIN_S = 60.0
"""How long a node keeps joining while no replica is filled, in seconds: large models take long on slow lines."""
LONGEST_MULTIPLE = 50.0
"""How long a node goes on once it has completed, as a multiple of its training time: enough for fiftyfold speeds."""
NORM_CEILING = 1e15
"""The largest allowed norm of a model or replica: far above any real one, far below the limit of float32."""
NORM_MULTIPLE = 1e3
"""The largest norm of a replica, as a multiple of our own model's; a whole model after a resync must pass."""
MOST_SHARED = 255
"""The most messages that are averaged in one value of a fragment. Honest: one for each neighbor."""

# Memory, disk and log of a node
STRANGERS_LINES_AN_HOUR = (48, 32, 48)
"""Log lines per hour about strangers: reasons, mentions of them, and reasons that anybody could cause. Honest: none."""
MEMBER_LINES_AN_HOUR = (12, 20, 4)
"""The same about one member."""
PAGE_FAULTS_PER_S, PAGE_FAULTS_BURST = 1 / 180, 20.0
"""Lines about our own errors: whoever can reach the page can trigger errors."""
WAITING_BYTES = 64 << 20
"""Memory for models that wait for their test; testing a large one may take longer than the interval between tests."""
USUAL_LOG_BYTES = 4 << 20
"""The least log, in bytes, after which a snapshot is written."""
LOG_MULTIPLE = 4
"""The usual size of the log, in snapshots; a longer one would take too long to replay."""
LEAST_LOG_BYTES = 64 << 10
"""The smallest size limit of a log: a shorter log would end after every few exchanges."""
FIRST_ALARMS = 5
"""The alarms of one kind from one neighbor that are logged; then the 100th, the 200th, the 400th and so on."""
LATER_ALARMS = 100
"""The first of these later ones."""
DISK_DRAIN_S = 5.0
"""The longest wait at a node's end for a disk that holds messages up."""
MOST_EVENTS = 100
"""The latest events that a status shows."""
FIRST_NEIGHBOR_LINES = 10
"""The lines about a neighbor that comes and goes. Honest: one for each time."""
LATER_NEIGHBOR_LINES = 100
"""After these one in so many is logged."""
MALFORMED_REST_S = 30.0
"""The time for which a neighbor that has sent malformed data is refused."""
MOST_CHARACTERS = 2 << 20
"""The most characters in a TOML file: 10,000 members with long names and addresses need 1.7 million. Honest: 170 a
member.
"""
MOST_KEY_PARTS = 8
"""The most parts in a dotted key: the parser's time is quadratic in them, and reaches minutes at 100,000."""
MOST_RELAYS = 8
"""The most relays in a federation file."""
MOST_CHARTER_BYTES = 1 << 20
"""The largest size of a charter in bytes."""
MOST_MEMBERS = 10_000
"""The most rows, including removed members. Honest: the members, and those removed."""

# Status, page, vitals
PAGE_CONNECTIONS = 32
"""The page's connections without its token; as many may have it."""
PAGE_CONNECTION_BYTES = 2**17
"""The most bytes that requests may send on one connection in the 10 s that it has without the token."""
MOST_TOKEN_CHARACTERS = 256
"""The longest token that is compared. Honest: 24."""
PAGE_BODY_BYTES = 4096
"""The largest body of a request to the page."""
MOST_STATUS_BYTES = 16 << 20
"""The largest status that `p2pfl status` reads."""
MOST_POINTS = 240
"""The points of a curve on the page; older ones are thinned out."""
EDGE_BYTES_PER_S = 1000.0
"""The bytes of vitals sent per second to one neighbor."""
VITALS_BURST_BYTES = 2000.0
"""The bytes that may be sent at once in one direction after a pause."""
HEARD_ROWS_PER_S = 8.0
"""The rows per second read from one neighbor, besides a burst of HEARD_AT_ONCE: twice an honest one's. Honest: half as
many.
"""
HEARD_AT_ONCE = 64.0
"""The rows read from one neighbor at once."""
MOST_VITALS_ROWS = 16
"""The most rows per message."""
MOST_ROW_BYTES = 384
"""The largest size of a row in bytes, including its signature. Honest: 200."""
WATCHDOG_LINES = 12.0
"""The most events that may be reported in a burst for members other than neighbors; after that, one in five minutes.
Honest: one for each start.
"""
MOST_MONTHS = 12
"""A clock that is wrong counts in other months; this many are kept."""
MOST_LOOKUPS = 8
"""The most names per member that are resolved at the same time."""
MOST_ADDRESSES = 4
"""The addresses of a name that are kept."""
MDNS_BYTES = 9000
"""The largest packet of multicast DNS that is read."""
MOST_ANNOUNCED = 1000
"""The most names that are kept, because anyone can make them up. Honest: one for each node."""

# Members
MOST_CHARTER_ASKS = 3
"""The most requests for one charter in one session. Honest: 1."""
BODIES_PER_S = 0.1
"""Charters per second asked of a neighbor, or sent to it. Honest: one for each change."""
BODIES_AT_ONCE = 8.0
"""Such charters at once."""
MOST_CHARTER_PART_BYTES = 48 * 1024
"""The largest size of a charter's piece in one message."""
CHARTER_PATIENCE_S = 30.0
"""The seconds to wait for the next piece of a requested charter before asking again."""

# Relays
MOST_RELAY_LINES = 128
"""The most lines of one member at one relay. Honest: one for each neighbor."""
MOST_PAIR_LINES = 8
"""The most lines between the same two members: a session, two dials that cross, and those that are about to end.
Honest: 1.
"""
RELAY_SILENCE_S = 60.0
"""The longest time without a frame, after which either end takes the other for dead. Honest: 20."""
RELAY_SMALL_BYTES = 4096
"""The most bytes in a frame that carries no data."""
REMOVED_BYTES = 64 * 1024
"""The most bytes in a frame that names removed members."""
OPENS_PER_S = 4.0
"""Lines that one member opens per second. Honest: one for each session."""
OPENS_BURST = 2.0 * MOST_RELAY_LINES
"""Such lines at once."""
RELAY_HELD_BYTES = 128 << 20
"""The bytes held for one federation, above which only some of its members are read. Honest: 0.8 MiB for each line that
is slow.
"""
MOST_SEATS = 8
"""The most seats of one member, by the names that it says it dialed. Honest: 1."""
PINGS_BURST = 8
"""The most frames without data that wait for a member that does not read its connection, in multiples of its lines."""
MOST_COMERS = 4096
"""The most members whose registrations are counted."""
COMES_PER_S = 0.2
"""Registrations of one member per second. Honest: one for each start."""
COMES_BURST = 30.0
"""Such registrations at once."""
RELAY_DRAIN_S = 30.0
"""The longest wait for a member to read a frame."""
MOST_REMOVED = 1500
"""The most removed members that a head names: those with the highest indices."""
MOST_CREDENTIALS_BYTES = 1 << 20
"""The largest file of credentials. Honest: 96 a member."""
RELAY_CONTROL_PER_S = 1.0
"""Control connections per second through one relay."""
RELAY_CONTROL_BURST = 32.0
"""Such connections at once; each may bring a MiB."""
MOST_CHUNKS = 1 << 15
"""The most chunks that wait to be read, however small they are. Honest: 3."""
MOST_DOUBTED_KEYS = 1024
"""The most members whose doubts and control connections are counted: a relay may make up any number of them."""
STRAYS_PER_S = 500.0
"""Frames per second that belong to no line. Honest: what was under way."""
STRAY_BURST = 8000.0
"""Such frames at once."""

# Secure sums, statistics, tables
MOST_SUMS = 512
"""The most vectors that one sum begins with."""
MOST_ID_BYTES = 48_000
"""The bytes of ids in one message."""
MOST_SUM_STATEMENT_BYTES = 50_000
"""The largest statement."""
MOST_ENTRIES = 2**20
"""The most entries of one sum."""
MOST_SHARE_TRIES = 5000
"""The sets of shares that are tried when some of them are wrong. Honest: 1."""
MOST_RECORD_KEYS = 4
"""The latest keys of an author that are kept. Honest: 1."""
MOST_QUEUED = 4
"""The large messages that wait for one neighbor, of which the oldest is dropped. Honest: 1."""
MOST_SMALL_BYTES = 2**22
"""The bytes of the small ones."""
STANDINGS_KEPT = 3
"""The latest states that are kept for others. Honest: 1."""
MOST_KEPT_BYTES = 2**26
"""Where so many would take more, only the latest is, in the memory of the state itself."""
MOST_STRIKES = 3
"""The strikes after which a neighbor is left out of sums. Honest: none."""
MOST_OF_A_KIND = 3
"""Statements of one kind that an author may make in one slot: an ack may grow, and shares be revealed late. Honest: 1.
"""
MOST_WAVES = 8
"""The waves of a sum of which statements are kept. Honest: 1."""
MOST_AUTHOR_KEYS = 2
"""An author's latest keys that are kept: those of the present set-up, and fresh ones. Honest: 1."""
MOST_SETUPS = 6
"""The latest set-ups of one member that are kept. Honest: 1."""
MOST_SETUPS_IN_ALL = 12
"""The latest set-ups of all members. Honest: 2."""
MOST_EARLY = 16
"""The statements of an author that wait for their set-up's opening."""
MOST_EARLY_BYTES = 2**17
"""The bytes of these."""
MOST_SLOTS = 8
"""The latest sums of a set-up of which an author's statements are kept."""
MOST_REFUSED_STATEMENTS = 512
"""The latest statements of an author that were refused, by their ids. Honest: none."""
MOST_POLLS = 4
"""A neighbor that leaves so many polls unanswered is left out of the wave; more where large vectors go before."""
MOST_WORKING = 12
"""Polls in which a neighbor may say that it waits itself; half as many after each wave that it has held so."""
MOST_EPOCHS = 4
"""Waves of one root, if each finds another set of members. Honest: 1."""
MOST_TURNS = 7
"""Waves of one member in all, if it is the root time and again. Honest: 1."""
MOST_BOUNDS = 50
"""The latest bounds of columns that are remembered."""
MOST_TABLES_KEPT = 50
"""The latest tables that are remembered."""
MOST_REFUSALS = 50
"""Questions of one member that are refused within 24 hours; any more are neither answered nor logged. Honest: what the
owner refuses.
"""
STATEMENTS_KEPT_S = 150.0
"""The time for which statements are told to neighbors that come later."""
MOST_REASON = 300
"""The longest reason of a refusal, in characters."""
MOST_PROPOSAL_BYTES = 1 << 18
"""The largest proposal of a schema."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    connect_s: float = 10.0
    handshake_s: float = 10.0
    """The time from accepting a connection to an open session; a dialer has the same time from the moment it is
    connected.
    """
    contest_s: float = 3.0
    """How long a newcomer is held back in favor of a session that may be dead at the other end."""
    pending: int = 64
    """The maximum number of connections in one stage that are not sessions yet (`acceptor`)."""
    pending_per_address: int = 32
    """The maximum number of such connections from one IPv4 address or one IPv6 /64."""
    handshakes_per_s: float = 100.0
    """Handshakes per second with one address or /64, beyond a burst of `handshake_burst`."""
    handshake_burst: float = 128.0
    sessions_per_s: float = 1.0
    """Sessions per second with one neighbor, beyond a burst of `session_burst`; a neighbor that exceeds this gets none
    for `churn_rest_s`.
    """
    session_burst: float = 20.0
    churn_rest_s: float = 30.0
    min_rate: float = 1024.0
    """The minimum bytes per second of an incomplete message, averaged over `rate_window_s`."""
    rate_window_s: float = 30.0
    partial_bytes: int | None = None
    """The memory for partly received messages in all sessions; None allows one of maximum size per neighbor."""
    queue_messages: int = 64
    drain_s: float = 30.0
    """How long a chunk may wait for the peer to read it, counted from the peer's last receipt."""
    silence_s: float = 45.0
    """The longest time without a sealed chunk from the other end.

    After that the session is dead, whatever the state of the connection. A chunk takes a second or two at the line's
    rate (`outbox`); to a node of protocol version 9 it has 256 KiB, so that lines below about 150 kbit/s are too slow.
    """
    beat_s: float = 4.0
    """How long an end is silent before it seals an empty chunk."""
    close_s: float = 1.0
    """How long a goodbye may take."""
    retry_first_s: float = 0.2
    retry_ceiling_s: float = 15.0
    settled_s: float = 5.0
    """A session that lasts this long proves that dialing works: the next dial is not delayed."""
    direct_again_s: float = 30.0
    """The time between two attempts to reach a neighbor at its addresses while the session goes through a relay."""
    session_s: float | None = None
    """The age at which the dialer renews a session; None leaves that to the cipher."""
    max_kbit_s: float | None = None
    """The most that all sessions together send on average; None for as much as they can."""
