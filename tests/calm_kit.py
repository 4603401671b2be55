"""Members of one federation in virtual time, each with its display: by the code of this process, or, with this file as
its program, in a process of another version.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from functools import partial

import faces  # noqa: F401 - names come from packages
from page_site import Made

from p2pfl.features.status import MESSAGE_BYTES, ExtensionChannel, spread

CHANNEL: ExtensionChannel = spread.CHANNEL


class Host:
    """Members of this process's version, which train nothing. Calls return what they send: source, target, content."""

    def __init__(self, nodes, topology):
        self.shape, self.now, self.members, self.sent = (nodes, topology), 0.0, {}, []

    def begin(self):
        """Forget all members, for another federation."""
        self.members.clear()

    def start(self, now, index):
        self.now = now
        made = self.members[index] = Made(*self.shape, own=index, send=partial(self._send, index))
        made.accuracy = lambda _: 0.9
        for peer in made.edges:
            made.lose(peer)

    def stop(self, index):
        del self.members[index]

    def _send(self, index, peer, message, *, urgent=False):
        self.sent.append((index, peer, CHANNEL.pack(message).body.hex()))
        return True

    def hear(self, index, peer, content):
        self.members[index].display.hear(peer, CHANNEL.unpack(bytes.fromhex(content)))
        return self._take()

    def second(self, now, there, pulled):
        """Let a second pass: sessions are open with the members `there`, and those that are `pulled` are silent."""
        self.now = now
        for index, made in self.members.items():
            made.sent[index] += 15  # heartbeats
            made.pulled = set(made.edges if index in pulled else pulled)
            for peer, edge in made.edges.items():
                if edge.is_open and peer not in there:
                    made.lose(peer)
                elif not edge.is_open and peer in there:
                    edge.is_open = True
                    made.display.opened(peer)
            made.hearing.look(made.edges)
            made.display.tick()
        return self._take()

    def _take(self):
        sent, self.sent = self.sent, []
        return sent

    def gone(self, index):
        """Return the members that one calls quiet or lost, and those of which its log says so, or that they are new."""
        made = self.members[index]
        roster = made.display.roster
        gone = [member for member, row in roster.rows.items() if roster.is_gone(row, self.now)]
        return gone, [event.about for event in made.feed.events if event.kind in ("not-heard", "joined")]


class Elsewhere:
    """A host in a process of its own, which runs the code in `tree`."""

    def __init__(self, tree, *shape):
        command, pipe = [sys.executable, __file__, json.dumps(shape)], subprocess.PIPE
        environment = os.environ | {"PYTHONPATH": str(tree)}
        self.process = subprocess.Popen(command, env=environment, cwd=tree, stdin=pipe, stdout=pipe, text=True)

    def __getattr__(self, name):
        return partial(self._ask, name)

    def _ask(self, name, *arguments):
        print(json.dumps([name, arguments]), file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())


class Federation:
    """All members. `host_of` says which host has each; those without one are off."""

    def __init__(self):
        self.now, self.host_of, self.pulled, self.bytes = 1000.0, {}, [], Counter()

    def start(self, host, *members):
        for index in members:
            self.host_of[index] = host
            host.start(self.now, index)

    def stop(self, member):
        self.host_of.pop(member).stop(member)

    def pass_time(self, seconds):
        """Let time pass; yield after each second."""
        for _ in range(seconds):
            self.now += 1.0
            hosts = dict.fromkeys(self.host_of.values())
            mail = [each for host in hosts for each in host.second(self.now, list(self.host_of), self.pulled)]
            while mail:
                source, target, content = mail.pop(0)
                self.bytes[frozenset((source, target))] += len(content) // 2 + MESSAGE_BYTES
                if target in self.host_of and not {source, target} & set(self.pulled):
                    mail += self.host_of[target].hear(target, source, content)
            yield

    def gone(self, index):
        return self.host_of[index].gone(index)


def main():
    host = Host(*json.loads(sys.argv[1]))
    time.monotonic = lambda: host.now
    for line in sys.stdin:
        name, arguments = json.loads(line)
        print(json.dumps(getattr(host, name)(*arguments)), flush=True)  # noqa: T201 - the answer


if __name__ == "__main__":
    main()
