"""Direct ways: neighbors that meet at a relay tell each other their addresses, and soon need the relay no more.

Only where both say `share_addresses`. What is told is a hint: who is there is decided by the handshake.
"""

from __future__ import annotations

FEATURE = "p2pfl.features.direct.feature:DirectFeature"
FINDINGS = "p2pfl.features.direct.findings:DirectFindings"
