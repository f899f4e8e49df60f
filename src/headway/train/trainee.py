"""What learns, of one process or of a rank: the model that computes, master weights with moments, the guard over updates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from headway.model.away import Away
from headway.model.decoder import Decoder
from headway.model.init import initialise
from headway.model.objective import OneByOne, Passes
from headway.model.precision import ComputeModel, Computes
from headway.model.tally import balance_biases
from headway.optim.build import Optimizer, build_optimizer, optimizer_of
from headway.optim.guard import Guard
from headway.optim.home import BESIDE, Home, InHostMemory
from headway.optim.parts import WHOLE, Parts
from headway.parallel.mesh import Axes, Mesh
from headway.parallel.replica_groups import ReplicaGroups
from headway.parallel.state import LocalParts, local_values
from headway.recipe.spec import Spec
from headway.recipe.trainable import refuse_untrainable

ONE_PROCESS = Axes()
Veto = Callable[[int, float, float], bool]
"""Step (from 1), its loss and gradient norm -> whether its update is left out. Asked again where a step is repeated."""


@dataclass
class Trainee:
    """What learns: fp32 master weights and moments, the model that computes, the count of updates applied."""

    spec: Spec
    compute: Computes
    passes: Passes
    optimizer: Optimizer
    guard: Guard
    parameters: list[torch.nn.Parameter]  # this rank's parts
    balance_biases: dict[str, torch.Tensor]  # by layer, of routers that balance without a loss
    updates: int = 0
    mesh: Mesh | None = None  # None: one process
    veto: Veto | None = None  # the same answer on all ranks; None: nothing but the guard leaves an update out
    parts: Parts = WHOLE  # how parameters lie on the ranks
    groups: ReplicaGroups | None = None  # that add their gradients; None: this is the only one

    def state(self) -> dict[str, torch.Tensor]:
        """The flat state: param/..., m/..., v/..., guard/... All of it is restored."""
        return self.optimizer.state_tensors() | self.guard.state_tensors()

    def saved_state(self) -> dict[str, torch.Tensor]:
        """What is written to checkpoints, and digested: without what another stage of a pipeline writes as well."""
        return {name: value for name, value in self.state().items() if self.parts.saves(name.partition("/")[2])}

    def own_state(self) -> dict[str, torch.Tensor]:
        """What this rank holds of the state, as plain tensors over the same memory."""
        return local_values(self.state())

    def gradients(self) -> dict[str, torch.Tensor]:
        """Of this rank's parts, between the passes and the update."""
        return {name: part.grad for name, part in self.optimizer.parameters.items() if part.grad is not None}

    def memory_of_state(self, name: str) -> memoryview:
        """Bytes of a tensor of this rank's state, for drills."""
        return _memory(self.own_state()[name])

    def memory_of_gradients(self, name: str) -> memoryview:
        return _memory(self.gradients()[name])


def _memory(tensor: torch.Tensor) -> memoryview:
    return tensor.detach().view(-1).view(torch.uint8).numpy().data


def build_trainee(spec: Spec, mesh: Mesh | None = None, axes: Axes = ONE_PROCESS) -> Trainee:
    """Model on initial weights (a pure function of seed, name and index) and optimiser with zero moments.

    With a ``mesh``: this rank's part of both, by the mesh's axes; ``axes`` are those of one process. A mesh of one rank has
    nothing to share out: it is one process.
    """
    refuse_untrainable(spec.precision)
    if mesh is None or mesh.axes.world == 1:
        return _alone(spec, axes if mesh is None else mesh.axes)
    return sharded(spec, mesh)


def sharded(spec: Spec, mesh: Mesh) -> Trainee:
    """A rank's part, also where there is only one."""
    from headway.parallel.model import ShardedModel  # one process needs none of it, and its imports take long

    if mesh.axes.pp > 1:
        from headway.parallel.pipeline import Pipeline  # not at every start: it imports torch's compiler, as long as torch itself

        pipeline = Pipeline(spec.model, spec.precision, spec.seed, mesh)
        return _trainee(spec, mesh, pipeline, pipeline, pipeline.parts, pipeline.decoders)
    compute = ShardedModel(spec.model, spec.precision, spec.seed, mesh)
    return _trainee(spec, mesh, compute, OneByOne(compute), compute.parts, [compute.decoder])


def _trainee(
    spec: Spec, mesh: Mesh, compute: Computes, passes: Passes, parts: LocalParts, decoders: Sequence[Decoder]
) -> Trainee:
    return Trainee(
        spec=spec,
        compute=compute,
        passes=passes,
        optimizer=optimizer_of(parts.local, spec.model, spec.optimizer, parts, _home(mesh.axes)),
        guard=Guard(spec.stability.skip_above),
        parameters=list(parts.local.values()),
        balance_biases={name: bias for decoder in decoders for name, bias in balance_biases(decoder).items()},
        mesh=mesh,
        parts=parts,
    )


def _home(axes: Axes) -> Home:
    return InHostMemory() if axes.offload.moments else BESIDE


def _alone(spec: Spec, axes: Axes) -> Trainee:
    decoder = Decoder(spec.model)
    initialise(decoder, spec.model, spec.seed)
    compute = ComputeModel(decoder, spec.precision, axes.recompute, Away() if axes.offload.activations else None)
    return Trainee(
        spec=spec,
        compute=compute,
        passes=OneByOne(compute),
        optimizer=build_optimizer(decoder, spec.optimizer, _home(axes)),
        guard=Guard(spec.stability.skip_above),
        parameters=list(decoder.parameters()),
        balance_biases=balance_biases(decoder),
    )
