"""Resources that stay reserved while actors come and go: placement groups and the slots in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

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
    """Resources and labels of each bundle."""
    reserved: RayPlacementGroup = field(init=False)

    @property
    def together(self) -> ActorConfig:
        """All bundles as one; they have the same labels."""
        return ActorConfig(
            cpus=sum(bundle.cpus for bundle in self.bundles),
            gpus=sum(bundle.gpus for bundle in self.bundles),
            label_selector=self.bundles[0].label_selector,
        )

    def shortfall(self) -> str:
        """Say what all bundles need together, and what the cluster has."""
        return shortfall(self.together, self.bundles)

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
        """Scheduling option of the actor that is placed there."""
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
        strategy="PACK",
        name=name,
        bundle_label_selector=labels if any(labels) else None,
    )


def shortfall(together: ActorConfig, bundles: Sequence[ActorConfig]) -> str:
    """Say what bundles need, and what the cluster lacks for them."""
    lacking = unplaceable(bundles)
    lacking = lacking or f"free now: {_amounts(ray.available_resources())}"
    return f"needs {_amounts(_wanted(together))}{_labels(together.label_selector)}; {lacking}"


def unplaceable(bundles: Sequence[ActorConfig]) -> str:
    """Say why no cluster of these nodes could ever hold the bundles; an empty string where one could."""
    return next(filter(None, map(_infeasible, bundles)), "")


def crowded(roles: Mapping[str, ActorConfig]) -> str:
    """Say why all these actors together do not fit a private cluster, which does not grow; an empty string where they do."""
    wanted = {"CPU": sum(role.cpus for role in roles.values()), "GPU": sum(role.gpus for role in roles.values())}
    held = ray.cluster_resources()
    if all(amount <= held.get(key, 0.0) + 1e-6 for key, amount in wanted.items()):
        return ""
    asking = ", ".join(f"{name} {_amounts(_wanted(role))}" for name, role in roles.items())
    return f"this machine has {_amounts(held)}, the run's actors ask for {_amounts(wanted)} together ({asking})"


def _infeasible(role: ActorConfig) -> str:
    """Say why no node could ever hold such an actor; an empty string where one could."""
    labels = role.label_selector
    labelled = [node for node in ray.nodes() if node["Alive"] and _is_labelled(node, labels)]
    if not labelled:
        return f"no node has the labels{_labels(labels)}"
    for key, amount in _wanted(role).items():
        most = max(node["Resources"].get(key, 0.0) for node in labelled)
        if amount > most:
            return f"needs {amount:g} {key}, the largest node{_labels(labels)} has {most:g}"
    return ""


def may_hold(node: Mapping[str, Any], role: ActorConfig) -> bool:
    """Return True if a node has the labels of a role, and ever room for one of its actors."""
    resources = node["Resources"]
    return _is_labelled(node, role.label_selector) and all(
        amount <= resources.get(key, 0.0) for key, amount in _wanted(role).items()
    )


def _is_labelled(node: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    return all(node.get("Labels", {}).get(key) == value for key, value in labels.items())


def _wanted(role: ActorConfig) -> dict[str, float]:
    return {"CPU": role.cpus, "GPU": role.gpus}


def _amounts(resources: Mapping[str, float]) -> str:
    return ", ".join(f"{resources.get(key, 0):g} {key}" for key in ("CPU", "GPU"))


def _labels(labels: Mapping[str, str]) -> str:
    return "" if not labels else " " + ", ".join(f"{key}={value}" for key, value in labels.items())
