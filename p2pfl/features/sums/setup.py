"""One set-up: whose keys serve its sums, this member's secrets, and the shares that it holds of others.

Secrets of a sum are dealt beforehand, one pair for each sum (Bonawitz et al. 2017, round 1; that one set-up serves many
sums is Flamingo's point, Ma et al. 2023, eprint 2023/486, but its decryption by committee would need a group with
ElGamal). A restarted member has forgotten its secrets and is a drop-out until the next set-up: an opening names the
very keys that its members have drawn since they started, so nothing that was signed before a restart is signed again
after it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping

from nacl.bindings import crypto_aead_chacha20poly1305_ietf_decrypt, crypto_aead_chacha20poly1305_ietf_encrypt
from nacl.exceptions import CryptoError

from p2pfl.features.sums.masks import (
    COMMITMENT_BYTES,
    KEY_BYTES,
    NONCE,
    Words,
    combined,
    commitment,
    own_seed,
    pair_seed,
    public_of,
    shared,
    sign,
    stream,
)
from p2pfl.features.sums.partners import holders_left, order, partners, withstands
from p2pfl.features.sums.shares import PRIME, deal, rebuild_checked
from p2pfl.features.sums.sum_messages import PAIR_BYTES, SEAL_BYTES, Keys, Parcel, SetupOpening, members_of
from p2pfl.features.sums.sum_settings import SumSettings

Draw = Callable[[int], bytes]
"""Returns so many random bytes: `os.urandom`, and in tests what a seed gives."""


def drawn_secret(draw: Draw) -> bytes:
    """32 bytes: a uniform number below the prime, which is a private key of X25519 too."""
    return (int.from_bytes(draw(48), "little") % PRIME).to_bytes(KEY_BYTES, "little")


class SetupSecrets:
    """A member's secrets for one set-up; those of a sum are erased once it has ended."""

    def __init__(self, draw: Draw, sums: int) -> None:
        self.box = drawn_secret(draw)
        self.masks: list[bytes | None] = [drawn_secret(draw) for _ in range(sums)]
        self.seeds: list[bytes | None] = [drawn_secret(draw) for _ in range(sums)]

    def keys(self, life: int, serial: int) -> Keys:
        """The public halves."""
        box = public_of(self.box)
        masks = b"".join(public_of(_present(secret)) for secret in self.masks)
        seeds = b"".join(commitment(_present(secret), box, number) for number, secret in enumerate(self.seeds))
        return Keys(life=life, serial=serial, box=box, masks=masks, seeds=seeds)


class SumSetup:
    """`keys` are those of the opening's members. Raises ValueError: the opening does not fit them."""

    def __init__(
        self,
        settings: SumSettings,
        identity: bytes,
        opening: SetupOpening,
        keys: Mapping[int, Keys],
        secrets: SetupSecrets,
    ) -> None:
        self.id, self.settings, self.keys = identity, settings, keys
        self.members = members_of(opening.members)
        self.circle = order(self.members, identity)
        self.reach = settings.reach(len(self.members))
        if self.reach < len(self.members) - 1:
            self.reach -= self.reach % 2
        self.partners = partners(self.circle, self.reach)
        self.roster: frozenset[int] = frozenset()
        """Those who mask with each other; empty: it is not certified yet."""
        self.held: dict[int, bytearray] = {}
        """The shares that this member holds, by dealer: seed and mask key for each sum."""
        self._secrets = secrets
        if not all(each.fit(settings.sums) for each in keys.values()):
            raise ValueError(f"keys for another number of sums than {settings.sums}")

    def deal(self, draw: Draw) -> dict[int, bytes]:
        """Cut all secrets in shares; returns the sealed parcel for each partner."""
        own, index = self._secrets, self.settings.index
        holders = self.partners[index]
        parcels: dict[int, bytearray] = {holder: bytearray() for holder in holders}
        for seed, mask in zip(own.seeds, own.masks, strict=True):
            for secret in (_present(seed), _present(mask)):
                line = [int.from_bytes(drawn_secret(draw), "little") for _ in range(self.settings.threshold - 1)]
                dealt = deal(int.from_bytes(secret, "little"), line, [holder + 1 for holder in holders])
                for holder, share in zip(holders, dealt, strict=True):
                    parcels[holder] += share.to_bytes(KEY_BYTES, "little")
        return {
            holder: crypto_aead_chacha20poly1305_ietf_encrypt(
                bytes(plain), self.id, NONCE, self._parcel_key(index, holder)
            )
            for holder, plain in parcels.items()
        }

    def receive(self, dealer: int, parcel: Parcel) -> bool:
        """Take a partner's shares; False: they are not what a partner seals."""
        size = self.settings.sums * PAIR_BYTES
        if dealer not in self.partners[self.settings.index] or len(parcel.sealed) != size + SEAL_BYTES:
            return False
        try:
            key = self._parcel_key(dealer, self.settings.index)
            plain = crypto_aead_chacha20poly1305_ietf_decrypt(parcel.sealed, self.id, NONCE, key)
        except CryptoError:
            return False
        self.held.setdefault(dealer, bytearray(plain))
        return True

    def _parcel_key(self, dealer: int, holder: int) -> bytes:
        other = holder if dealer == self.settings.index else dealer
        agreed = shared(self._secrets.box, self.keys[other].box)
        ends = dealer.to_bytes(4, "little") + holder.to_bytes(4, "little")
        return hashlib.blake2b(self.id + ends, digest_size=KEY_BYTES, key=agreed, person=b"sums parcel").digest()

    def may_be_roster(self, roster: Collection[int], acks: Mapping[int, Collection[int]]) -> bool:
        """True if these can bear the loss of t: enough hold each one's shares, and their masks stay connected."""
        settings = self.settings
        return (
            len(roster) >= max(settings.quorum, settings.least)
            and set(roster) <= set(self.members)
            and all(self._holders(member, roster, acks) >= settings.acks_needed(len(self.members)) for member in roster)
            and withstands(self.circle, self.reach, roster, settings.colluders)
        )

    def largest_roster(self, acks: Mapping[int, Collection[int]]) -> frozenset[int]:
        """All members who answer and whose shares enough of the others hold."""
        found = {member for member in self.members if member in acks}
        needed = self.settings.acks_needed(len(self.members))
        while weak := {member for member in found if self._holders(member, found, acks) < needed}:
            found -= weak
        return frozenset(found)

    def _holders(self, member: int, roster: Collection[int], acks: Mapping[int, Collection[int]]) -> int:
        return sum(holder in roster and member in acks.get(holder, ()) for holder in self.partners[member])

    def flaw(self, members: Collection[int]) -> str:
        """What is wrong with a list of a sum's members; empty: nothing."""
        settings, left = self.settings, frozenset(members)
        if not left <= self.roster:
            return "a member who is not on the roster"
        if len(left) < settings.least:
            return f"{len(left)} members are fewer than {settings.least}"
        if any(holders_left(self.partners, left, member) < settings.threshold for member in self.roster):
            return "too few are left who hold shares"
        if not withstands(self.circle, self.reach, left, settings.colluders):
            return "too few masks are left"
        return ""

    def masked(self, values: Words, number: int) -> Words:
        """This member's vector behind all its masks; (d,)."""
        own, index = self._secrets, self.settings.index
        mask = _present(own.masks[number])
        masks = [(1, stream(own_seed(_present(own.seeds[number]), self.id, number), values.size))]
        masks += [
            (sign(index, partner), self._pair_stream(mask, index, partner, number, values.size))
            for partner in self.partners[index]
            if partner in self.roster
        ]
        return combined(values, masks)

    def _pair_stream(self, secret: bytes, index: int, partner: int, number: int, size: int) -> Words:
        """The mask of a pair, by the secret key of the one and the public key of the other."""
        public = self.keys[partner].masks[number * KEY_BYTES : (number + 1) * KEY_BYTES]
        pair = min(index, partner), max(index, partner)
        return stream(pair_seed(shared(secret, public), self.id, number, pair), size)

    def own_secret(self, number: int, *, in_list: bool) -> bytes:
        """What this member reveals of its own: the seed if it is in the sum, else the mask key. Never both."""
        own = self._secrets
        return (own.seeds if in_list else own.masks)[number] or b""

    def share(self, member: int, number: int, *, in_list: bool) -> bytes:
        """The share held of a member's seed if it is in the sum, else of its mask key; empty: there is none."""
        held = self.held.get(member)
        start = number * PAIR_BYTES + (0 if in_list else KEY_BYTES)
        share = bytes(held[start : start + KEY_BYTES]) if held else b""
        return share if any(share) else b""

    def is_right(self, member: int, number: int, secret: bytes, *, in_list: bool) -> bool:
        """True if a revealed secret is what the member committed to in its keys."""
        keys = self.keys[member]
        if len(secret) != KEY_BYTES:
            return False
        if in_list:
            wanted = keys.seeds[number * COMMITMENT_BYTES : (number + 1) * COMMITMENT_BYTES]
            return commitment(secret, keys.box, number) == wanted
        return public_of(secret) == keys.masks[number * KEY_BYTES : (number + 1) * KEY_BYTES]

    def rebuilt(self, member: int, number: int, shares: Mapping[int, bytes], *, in_list: bool) -> bytes | None:
        """A member's secret from what its holders have revealed; None: too few of them told the truth yet."""
        points = {
            holder + 1: int.from_bytes(share, "little")
            for holder, share in shares.items()
            if holder in self.partners[member]
        }

        def is_right(secret: int) -> bool:
            return self.is_right(member, number, secret.to_bytes(KEY_BYTES, "little"), in_list=in_list)

        found = rebuild_checked(points, self.settings.threshold, is_right)
        return None if found is None else found.to_bytes(KEY_BYTES, "little")

    def needs(self, members: Collection[int]) -> Iterator[tuple[int, bool]]:
        """The members of whom a secret is needed to unmask this sum: those in it, and partners of those who are not."""
        for member in sorted(self.roster):
            if member in members or any(partner in members for partner in self.partners[member]):
                yield member, member in members

    def unmasked(self, total: Words, number: int, members: Collection[int], secrets: Mapping[int, bytes]) -> Words:
        """The sum of the members' vectors, from the sum of their masked ones; (d,)."""

        def masks() -> Iterator[tuple[int, Words]]:
            for member, secret in sorted(secrets.items()):
                if member in members:
                    yield -1, stream(own_seed(secret, self.id, number), total.size)
                    continue
                for partner in self.partners[member]:
                    if partner in members:
                        yield -sign(partner, member), self._pair_stream(secret, member, partner, number, total.size)

        return combined(total, masks())

    def erase(self, number: int) -> None:
        """Forget all secrets of a sum."""
        own = self._secrets
        own.masks[number] = own.seeds[number] = None
        for held in self.held.values():
            held[number * PAIR_BYTES : (number + 1) * PAIR_BYTES] = bytes(PAIR_BYTES)


def _present(secret: bytes | None) -> bytes:
    if secret is None:
        raise RuntimeError("a sum's secrets are used once")
    return secret
