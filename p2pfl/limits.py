"""Every limit on what peers and time may cost a node: name and value; what it bounds; and what an honest node uses.

`p2pfl check --limits` shows this table, which it reads from here. A name says the unit.
"""

from __future__ import annotations

from dataclasses import dataclass

# Strangers and connections
STRANGERS_SHARE = 0.06  # the share of loop time for all strangers together; members' addresses get the same again
ADDRESS_SHARE = 0.04  # the share of loop time for one address or one IPv6 /64
ACCEPTING_SHARE = 0.02  # the share of loop time for connections that are closed as soon as they are accepted
QUOTA_BURST_S = 0.1  # the seconds of loop time that each of these may take at once
NEIGHBOR_BURST_S = 0.02  # the additional burst for each neighbor: all may share one address, and start together
MOST_GROUPS = 1024  # the latest groups of addresses that have a budget; honest: one for each address of a member
GREETING_BYTES = 2**14  # all from a peer that has not shown that it knows our key; honest: an HTTP request and 48 bytes
SLICE_BYTES = 2**11  # what is read from such a peer before its budget is checked again: at most 341 empty pings
MOST_CONTROL = 8  # the control connections at a time, each with up to a MiB; honest: one to join or fetch a charter
CONTROL_PER_S = 0.5  # visits per second of an unlisted address, or of a member without a session
CONTROL_BURST = 16.0  # such visits at once
NEIGHBOR_HANDSHAKES = 2.0  # the handshakes at once for each neighbor: all may share one address, and start together
MOST_OPENINGS = 1024  # the latest openings of handshakes, none of which is answered again; honest: each is sent once
BACKLOG = 100  # the connections that the operating system queues until they are accepted
ACCEPTED_AT_ONCE = 16  # the connections accepted in a row before the loop does other work
MOST_UNPROVEN = 32  # the most connections without time of their own that may yet show that they are no strangers'
PROOF_BYTES = 2**12  # the beginning of what they say, which has to show it
ACCEPTING_BURST_S = 0.02  # the seconds that accepting and closing may take at once
UNSENT_BYTES = 2**16  # the bytes that may wait in a transport before a writer waits: TLS' default is eight times that
IDLE_BYTES = 2**21  # the bytes that may arrive without completing a message; honest: 1 MiB, 768 KiB of it in aiohttp
PINGS_PER_S = 10.0  # pings and pongs per second beyond MESSAGE_BURST: 256 KiB of them hold up the loop; honest: none
REASON_BYTES = 200  # the longest reason of a refusal that is logged
LINE_BYTES = 512  # the longest such line; `STAMP_BYTES` of it are for time, level and name before the text
REASON_VARIANTS = 4  # the number of reasons with the same wording that are logged
PROXY_ANSWER_BYTES = 2**14  # the longest answer of a proxy that is read
PROXY_SILENCE_S = 8.0  # how long a proxy may be silent before it is named as what stands in the way
MOST_HINTS = 4  # the most hints dialed at a time, and kept for a member that is no neighbor now
MOST_HINTS_KEPT = 512  # the most hints kept for a neighbor; half of them hold one port for each machine of a /24

# Messages on extension channels
# Per second, and at once: what comes faster is a fault.
CHANNEL_PER_S = {
    "charter": 5.0,
    "pause": 0.1,
    "schema": 200.0,
    "standings": 2000.0,
    "stats": 200.0,
    "sums": 4000.0,
    "vitals": 10.0,
}
CHANNEL_AT_ONCE = {
    "charter": 400.0,
    "pause": 8.0,
    "schema": 4000.0,
    "standings": 20_000.0,
    "stats": 4000.0,
    "sums": 20_000.0,
    "vitals": 200.0,
}

# Sessions and messages
MAX_SECTIONS = 64  # the most sections of a federation file that a handshake compares
SESSION_MAX_S = 3600  # the age at which a session ends: another one, with new keys, has begun before
REKEY_BYTES = 1 << 30  # the bytes after which a direction of a session changes its key
CHUNK_BYTES = 256 * 1024  # the largest sealed chunk without its seal; a longer message is split
MOST_TERMS = 16  # the most values that a learning method may put in one message
MOST_LIVES_TOLD = 256  # the most lifetimes in one message
MAX_HEADER_BYTES = 64 * 1024  # the largest message without its body
MAX_RETRY_AFTER_S = 3600.0  # the longest time for which a peer may ask to be left alone
LEAST_CHUNK_BYTES = 4096  # the smallest chunk of a body but its last: tiny pieces must not make a message expensive
MOST_OFFERS = 64  # the most extension channels at one end
MOST_NAME_BYTES = 32  # the longest name of an extension channel, with its version
MOST_SIDE_BYTES = 60 * 1024  # the largest message on an extension channel
LOUD_FAULTS = 20  # how many faults of one neighbor are logged as warnings; further ones are only counted; honest: none
LISTENER_PATIENCE_S = 60.0  # how much longer than the dialer its peer lets a session last: only the dialer dials again
# Checks are counted, not seconds: a process that was stopped for an hour must first read what arrived meanwhile.
SILENCE_LOOKS = 9  # the number of checks within the longest silence allowed
BEATS_PER_S = 1.0  # empty chunks per second, beyond MESSAGE_BURST; honest: .25

# A neighbor in the core
MESSAGE_BURST = 32.0  # the messages of any one rate that may come at once
LONGEST_WAIT_S = 60.0  # the longest wait that these rates demand
TELLS_PER_S = 500.0  # the versions that a node may send a neighbor per second; a later one makes up for one left out
OTHERS_PER_S = 50.0  # other messages per second; honest: repeats once a second, and one more for each of 20 Busy
HELLOS_PER_S = 2.0  # greetings answered per second; honest: one for each session, and one a second until ours is there
HEARD_MULTIPLE = 2.0  # what is accepted, as a multiple of what an honest node sends; honest: 1
LONGEST_STALL_S = 45.0  # for so long a process may hang and still accept all messages sent then; then its sessions end
RESYNC_WINDOW_S = 60.0  # the seconds in which resyncs are counted
RESYNCS_PER_WINDOW = 5  # the resyncs of an edge in such a window
RESYNC_HOLD_S = 30.0  # the time for which an edge with more is left alone
PATIENCE_MULTIPLE = 4.0  # how long a round waits for a neighbor, as a multiple of its usual time
MOST_MISSES = 10  # each round in a row that a neighbor misses halves the wait for it; so many times at most
WAIT_SHARE = 0.05  # the share of time that rounds may wait for one neighbor that is much slower than the others
WAIT_BURST_S = 3.0  # the seconds that it may cost at once, at the start or after a minute; no minute costs over six
ENGINE_SHARE_OF_ALL = 0.2  # the share of engine time that any neighbor may take, whatever the others do
ENGINE_SHARE_ALONE = 0.75  # the share of engine time that a neighbor may take if it is the only one
FORGIVEN_S = 300.0  # the time that forgives a point; points fall linearly, so that every machine computes the same
QUARANTINE_POINTS = 4.5  # the points that lead to quarantine: five refused models within two minutes; honest: none
FIRST_QUARANTINE_S = 60.0  # the first quarantine; each further one is twice as long; honest: none
LONGEST_QUARANTINE_S = 3600.0  # the longest quarantine
INBOX = 8  # the messages of a neighbor that wait for their turn
UNANSWERED_S = 45.0  # a neighbor that has a session but exchanges nothing for so long, and ten rounds, is reported
LARGEST_COUNTER = 2**53 - 2  # the largest counter that is accepted; honest: one for each exchange
LONGEST_JUMP = 2**20  # the largest step of an incarnation: a peer must not exhaust them, and no honest end needs more
LARGEST_GENERATION = 2**40  # the largest generation; honest: one for each process
LARGEST_STEP = 2**20  # how far others' reports may raise a generation at once: a malicious peer must not exhaust them
NEWS_PER_S = 8.0  # the reports of lifetimes accepted from a neighbor per second; honest: one for each start of a member
LEAST_NEWS = 512.0  # such reports accepted at once (or twice the number of members)
MOST_CLAIMS = 8  # how often a process may raise its own generation: two copies of one key must not go on forever
MOST_PROCESSES = 64  # how many of a neighbor's processes a node remembers; honest: one for each start
MOST_SENDS = 16  # how often in a row the same sets go to a neighbor: with a robust rule two nodes may never agree
LONGEST_PACE_S = 3600.0  # the longest time of a round that a neighbor's report may claim
LONGEST_JOIN_S = 60.0  # how long a node keeps joining while no replica is filled: large models take long on slow lines
LONGEST_MULTIPLE = 50.0  # how long a node goes on once it has completed, in times of its training: for fiftyfold speeds
NORM_CEILING = 1e15  # the largest norm of a model or replica: far above any real one, far below float32's end
NORM_MULTIPLE = 1e3  # the largest norm of a replica, in times of our own model's; after a resync a whole one must pass
MOST_SHARED = 255  # the most messages that are averaged in one value of a fragment

# Memory, disk, log
STRANGERS_LINES_AN_HOUR = (48, 32, 48)  # log lines about strangers: reasons, mentions, reasons of anybody; honest: none
MEMBER_LINES_AN_HOUR = (12, 20, 4)  # the same about one member
PAGE_FAULTS_PER_S = 1 / 180  # log lines about our own errors: whoever can reach the page can trigger them
PAGE_FAULTS_BURST = 20.0  # such lines at once
WAITING_BYTES = 64 << 20  # memory for models that wait for their test, which may take longer than the time between two
USUAL_LOG_BYTES = 4 << 20  # the least log, in bytes, after which a snapshot is written
LOG_MULTIPLE = 4  # the usual size of the log, in snapshots; a longer one would take too long to replay
LEAST_LOG_BYTES = 64 << 10  # the smallest size limit of a log: a shorter log would end after every few exchanges
FIRST_ALARMS = 5  # the alarms of one kind from one neighbor that are logged; then the 100th, the 200th, the 400th ...
LATER_ALARMS = 100  # the first of these later ones
DISK_DRAIN_S = 5.0  # the longest wait at a node's end for a disk that holds messages up
MOST_EVENTS = 100  # the latest events that a status shows
FIRST_NEIGHBOR_LINES = 10  # the lines about a neighbor that comes and goes; honest: one for each time
LATER_NEIGHBOR_LINES = 100  # after these one in so many is logged
MALFORMED_REST_S = 30.0  # the time for which a neighbor that has sent malformed data is refused
MOST_CHARACTERS = 2 << 20  # the most characters in a TOML file; honest: 170 a member with a long name and address
MOST_KEY_PARTS = 8  # the most parts in a dotted key: the parser's time is quadratic in them, minutes at 100,000
MOST_RELAYS = 8  # the most relays in a federation file
MOST_CHARTER_BYTES = 1 << 20  # the largest charter
MOST_MEMBERS = 10_000  # the rows of a charter; honest: the members, and those removed

# Status, page, vitals
PAGE_CONNECTIONS = 32  # the page's connections without its token; as many may have it
PAGE_CONNECTION_BYTES = 2**17  # the most bytes of requests on one connection, in the 10 s that it has without the token
MOST_TOKEN_CHARACTERS = 256  # the longest token that is compared; honest: 24
PAGE_BODY_BYTES = 4096  # the largest body of a request to the page
MOST_STATUS_BYTES = 16 << 20  # the largest status that `p2pfl status` reads
MOST_POINTS = 240  # the points of a curve on the page; older ones are thinned out
EDGE_BYTES_PER_S = 1000.0  # the bytes of vitals sent per second to one neighbor
VITALS_BURST_BYTES = 2000.0  # such bytes at once
HEARD_ROWS_PER_S = 8.0  # the rows per second read from one neighbor; honest: half as many
HEARD_AT_ONCE = 64.0  # such rows at once
MOST_VITALS_ROWS = 16  # the rows in one message
MOST_ROW_BYTES = 384  # the largest row with its signature; honest: 200
WATCHDOG_LINES = 12.0  # events told at once about other members; then one in five minutes; honest: one for each start
MOST_MONTHS = 12  # a clock that is wrong counts in other months; this many are kept
MOST_LOOKUPS = 8  # the most names per member that are resolved at the same time
MOST_ADDRESSES = 4  # the addresses of a name that are kept
MDNS_BYTES = 9000  # the largest packet of multicast DNS that is read
MOST_ANNOUNCED = 1000  # the most names that are kept, because anyone can make them up; honest: one for each node

# Members
MOST_CHARTER_ASKS = 3  # the most requests for one charter in one session; honest: 1
BODIES_PER_S = 0.1  # charters per second asked of a neighbor, or sent to it; honest: one for each change
BODIES_AT_ONCE = 8.0  # such charters at once
MOST_CHARTER_PART_BYTES = 48 * 1024  # the largest piece of a charter in one message
CHARTER_PATIENCE_S = 30.0  # the seconds to wait for the next piece of a requested charter before asking again

# Relays
MOST_RELAY_LINES = 128  # the most lines of one member at one relay; honest: one for each neighbor
MOST_PAIR_LINES = 8  # the most lines between two members: a session, two dials that cross, those about to end
RELAY_SILENCE_S = 60.0  # the longest time without a frame, after which either end takes the other for dead; honest: 20
RELAY_SMALL_BYTES = 4096  # the most bytes in a frame that carries no data
REMOVED_BYTES = 64 * 1024  # the most bytes in a frame that names removed members
OPENS_PER_S = 4.0  # lines that one member opens per second; honest: one for each session
OPENS_BURST = 2.0 * MOST_RELAY_LINES  # such lines at once
RELAY_HELD_BYTES = 128 << 20  # held for one federation; above, some members are not read; honest: 768 KiB a slow line
MOST_SEATS = 8  # the most seats of one member, by the names that it says it dialed
PINGS_BURST = 8  # the most frames without data that wait for a member that does not read, in multiples of its lines
MOST_COMERS = 4096  # the most members whose registrations are counted
COMES_PER_S = 0.2  # registrations of one member per second; honest: one for each start
COMES_BURST = 30.0  # such registrations at once
RELAY_DRAIN_S = 30.0  # the longest wait for a member to read a frame
MOST_REMOVED = 1500  # the most removed members that a head names: those with the highest indices
MOST_CREDENTIALS_BYTES = 1 << 20  # the largest file of credentials; honest: 96 a member
RELAY_CONTROL_PER_S = 1.0  # control connections per second through one relay
RELAY_CONTROL_BURST = 32.0  # such connections at once; each may bring a MiB
MOST_CHUNKS = 1 << 15  # the most chunks that wait to be read, however small they are
MOST_DOUBTED_KEYS = 1024  # the most members whose doubts and visits are counted: a relay may make up any number of them
STRAYS_PER_S = 500.0  # frames per second that belong to no line; honest: what was under way
STRAY_BURST = 8000.0  # such frames at once

# Secure sums, statistics, tables
MOST_SUMS = 512  # the sums of one set-up of keys
MOST_ID_BYTES = 48_000  # the bytes of ids in one message
MOST_SUM_STATEMENT_BYTES = 50_000  # the largest statement
MOST_ENTRIES = 2**20  # the most entries of one sum
MOST_SHARE_TRIES = 5000  # the sets of shares that are tried when some of them are wrong
MOST_RECORD_KEYS = 4  # the latest keys of an author that are kept
MOST_QUEUED = 4  # the large messages that wait for one neighbor, of which the oldest is dropped
MOST_SMALL_BYTES = 2**22  # the bytes of the small ones
STANDINGS_KEPT = 3  # the latest states that are kept for others
MOST_KEPT_BYTES = 2**26  # where so many would take more, only the latest is kept, in the memory of the state itself
MOST_STRIKES = 3  # the strikes after which a neighbor is left out of sums; honest: none
MOST_OF_A_KIND = 3  # statements of a kind that an author may make in one slot: acks may grow, shares be revealed late
MOST_WAVES = 8  # the waves of a sum of which statements are kept
MOST_AUTHOR_KEYS = 2  # an author's latest keys that are kept: those of the present set-up, and fresh ones
MOST_SETUPS = 6  # the latest set-ups of one member that are kept
MOST_SETUPS_IN_ALL = 12  # the latest set-ups of all members
MOST_EARLY = 16  # the statements of an author that wait for their set-up's opening
MOST_EARLY_BYTES = 2**17  # the bytes of these
MOST_SLOTS = 8  # the latest sums of a set-up of which an author's statements are kept
MOST_REFUSED_STATEMENTS = 512  # the latest statements of an author that were refused, by their ids; honest: none
MOST_POLLS = 4  # a neighbor that leaves so many polls unanswered is left out of the wave; more where vectors are large
MOST_WORKING = 12  # polls in which a neighbor may say that it waits itself; half as many after each wave so held
MOST_EPOCHS = 4  # waves of one root, if each finds another set of members
MOST_TURNS = 7  # waves of one member in all, if it is the root time and again
MOST_BOUNDS = 50  # the latest bounds of columns that are remembered
MOST_TABLES_KEPT = 50  # the latest tables that are remembered
MOST_LEAST_ROWS = 1000  # the largest `least_rows` of a member, which counts for all; honest: 10
MOST_REFUSALS = 50  # questions of one member refused within 24 hours; any more are neither answered nor logged
STATEMENTS_KEPT_S = 150.0  # the time for which statements are told to neighbors that come later
MOST_REASON = 300  # the longest reason of a refusal, in characters
MOST_PROPOSAL_BYTES = 1 << 18  # the largest proposal of a schema


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    connect_s: float = 10.0  # how long a dial may take
    handshake_s: float = 10.0  # from accepting a connection, or from having dialed one, to an open session
    contest_s: float = 3.0  # how long a newcomer is held back in favor of a session that may be dead at the other end
    pending: int = 64  # the most connections in one stage that are not sessions yet (`acceptor`)
    pending_per_address: int = 32  # the most such connections from one IPv4 address or one IPv6 /64
    handshakes_per_s: float = 100.0  # handshakes per second with one address or /64
    handshake_burst: float = 128.0  # such handshakes at once
    sessions_per_s: float = 1.0  # sessions per second with one neighbor; who exceeds this gets none for a while
    session_burst: float = 20.0  # such sessions at once
    churn_rest_s: float = 30.0  # this while
    min_rate: float = 1024.0  # the least bytes per second of an incomplete message, on average
    rate_window_s: float = 30.0  # the window of this average
    partial_bytes: int | None = None  # memory for parts of messages; None: one of maximum size per neighbor
    queue_messages: int = 64  # the messages in a session's queue
    drain_s: float = 30.0  # how long a chunk may wait for the peer to read it, from the peer's last receipt on
    # A chunk takes a second or two at the line's rate (`outbox`); to a node of protocol version 9 it has 256 KiB, so
    # that lines below about 150 kbit/s are too slow.
    silence_s: float = 45.0  # the longest time without a sealed chunk, whatever the state of the connection; honest: 4
    beat_s: float = 4.0  # how long an end is silent before it seals an empty chunk
    close_s: float = 1.0  # how long a goodbye may take
    retry_first_s: float = 0.2  # the pause after the first dial that failed
    retry_ceiling_s: float = 15.0  # the longest such pause
    settled_s: float = 5.0  # a session that lasts this long proves that dialing works: the next dial is not delayed
    direct_again_s: float = 30.0  # between two attempts to reach a neighbor directly while its session is by a relay
    session_s: float | None = None  # the age at which the dialer renews a session; None leaves that to the cipher
    max_kbit_s: float | None = None  # the most that all sessions together send on average; None for as much as they can
