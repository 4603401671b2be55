"""One room for each feature. The order of the list is that in which a node calls them."""

from __future__ import annotations

from p2pfl.features.lan.feature import LanFeature
from p2pfl.features.members.feature import MembersFeature
from p2pfl.features.privacy.feature import PrivacyFeature
from p2pfl.features.status.feature import StatusFeature
from p2pfl.node.feature import Feature

FEATURES: tuple[Feature, ...] = (PrivacyFeature(), MembersFeature(), StatusFeature(), LanFeature())
