"""Resources that stay reserved while actors come and go: placement groups and the slots in them."""

from __future__ import annotations

from dataclasses import dataclass, field

import ray
from ray.util.placement_group import PlacementGroup as RayPlacementGroup
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rlep.config.roles import ActorConfig

_NOTHING = {"memory": 1.0}
"""A bundle whose actors ask for nothing: Ray has no empty ones, so one byte, which no node lacks."""


@dataclass(slots=True)
class PlacementGroup:
    """Bundles that are reserved together or not at all, each on one node."""

    name: str
    bundles: tuple[ActorConfig, ...]
    """What each holds, and where it may be."""
    one_node: bool
    """All bundles on the same node."""
    reserved: RayPlacementGroup = field(init=False)

    @property
    def together(self) -> ActorConfig:
        """All bundles as one; they have the same labels."""
        return ActorConfig(
            cpus=sum(bundle.cpus for bundle in self.bundles),
            gpus=sum(bundle.gpus for bundle in self.bundles),
            label_selector=self.bundles[0].label_selector,
        )

    def release(self) -> None:
        """Free the resources; actors still in it end."""
        if ray.is_initialized():  # otherwise it ended with the cluster
            remove_placement_group(self.reserved)


@dataclass(frozen=True, slots=True)
class BundleSlot:
    """A place in one bundle of a placement group; several actors may share it."""

    group: PlacementGroup
    bundle: int = 0

    @property
    def strategy(self) -> PlacementGroupSchedulingStrategy:
        """For the options of the actor that is placed there."""
        return PlacementGroupSchedulingStrategy(self.group.reserved, placement_group_bundle_index=self.bundle)


def create_placement_group(group: PlacementGroup, name: str) -> None:
    """Ask Ray for it, under a name that ``ray list placement-groups`` shows; the resources may come later or never."""
    amounts = [
        {key: amount for key, amount in (("CPU", bundle.cpus), ("GPU", bundle.gpus)) if amount}
        for bundle in group.bundles
    ]
    labels = [dict(bundle.label_selector) for bundle in group.bundles]
    group.reserved = placement_group(
        [bundle or _NOTHING for bundle in amounts],
        strategy="STRICT_PACK" if group.one_node else "PACK",
        name=name,
        bundle_label_selector=labels if any(labels) else None,
    )
