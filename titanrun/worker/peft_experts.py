"""Adapters of stacked experts as the `peft` package keeps those of parameters: `target_parameters` of adapter_config.json.

transformers has one parameter of the gates and values of all experts, and peft one adapter for it. Adapters of gates and of values are
such a one of the double rank: their A one below the other, and B with a block for each and zeros elsewhere. alpha is doubled too.
Shapes: E experts, I and O width before and after a matrix, R rank of an adapter of peft. It keeps A as [E * R, I] and B as [O, R * E].
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from types import ModuleType

import torch
from torch import Tensor

from titanrun.components.checkpoints.adapters import STACKED
from titanrun.config.problems import fail
from titanrun.models.shared.decoder_config import Shapes

A, B = STACKED
WRAPPER = ".base_layer"


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of transformers' experts.

    Fields:
        name: in transformers.
        matrices: titanrun's stacks, whose rows are the parameter's, one below the other.
        adapted: those of them with adapters.
        turned: whether peft takes it for [E, I, O] where it is [E, O, I], or the reverse, and so A for B.
    """

    name: str
    matrices: tuple[str, ...]
    adapted: tuple[str, ...]
    turned: bool

    @property
    def holder(self) -> str:
        """The module that has the parameter."""
        return self.name.rpartition(".")[0]


def parameters_of(module: ModuleType, stacks: Iterable[str]) -> list[Parameter]:
    """The parameters that these stacks are in, in transformers' order; `module` has the names of the family."""
    known, turned, given = (
        getattr(module, "EXPERT_PARAMETERS", {}),
        getattr(module, "PEFT_TURNS_EXPERTS", False),
        set(stacks),
    )
    found = []
    for layer in sorted({int(name.split(".", 2)[1]) for name in given}):
        for theirs, ours in known.items():
            matrices = tuple(f"layers.{layer}.{name}" for name in ours)
            adapted = tuple(name for name in matrices if name in given)
            if adapted:
                found.append(Parameter(f"model.layers.{layer}.{theirs}", matrices, adapted, turned))
    return found


def keys(names: Iterable[str]) -> dict[str, str]:
    """Where peft keeps the adapter of each of these parameters: it wraps a module once for each, in their order, the last outermost."""
    places = {}
    for holder, within in groupby(names, lambda name: name.rpartition(".")[0]):
        for depth, name in enumerate(reversed(list(within))):
            places[name] = holder + WRAPPER * depth
    return places


def joined(
    parameter: Parameter, adapters: Mapping[str, Tensor], shapes: Shapes
) -> tuple[Tensor, Tensor]:
    """lora_A and lora_B of the parameter that do what the adapters of its stacks do."""
    a_ERI, b_EOR = blocks(parameter, adapters, shapes)
    if parameter.turned:
        a_ERI, b_EOR = b_EOR.mT, a_ERI.mT
    return a_ERI.flatten(0, 1).contiguous(), b_EOR.permute(1, 2, 0).flatten(1, 2).contiguous()


def blocks(
    parameter: Parameter, adapters: Mapping[str, Tensor], shapes: Shapes
) -> tuple[Tensor, Tensor]:
    """A [E, R, I] and B [E, O, R] of a parameter: a block of B for each adapter."""
    a_ERI = torch.cat([adapters[name + A] for name in parameter.adapted], dim=1)
    rows, columns = [], 0
    for name in parameter.matrices:
        row_EOR = a_ERI.new_zeros(a_ERI.size(0), shapes[name][1], a_ERI.size(1))
        if name in parameter.adapted:
            b_EOR = adapters[name + B]
            row_EOR[:, :, columns : columns + b_EOR.size(2)] = b_EOR
            columns += b_EOR.size(2)
        rows.append(row_EOR)
    return a_ERI, torch.cat(rows, dim=1)


def parted(
    parameter: Parameter, lora_a: Tensor, lora_b: Tensor, shapes: Shapes, rank: int
) -> dict[str, Tensor]:
    """The adapters of rank `rank` of the parameter's stacks, which do what the parameter's does.

    Of one of that rank for gates and values together both get the same A. Raises a problem where there are none.
    """
    count = shapes[parameter.matrices[0]][0]
    check_sizes(parameter, lora_a, lora_b, shapes, rank)
    a_ERI, b_EOR = (
        lora_a.unflatten(0, (count, -1)),
        lora_b.unflatten(1, (-1, count)).permute(2, 0, 1),
    )
    if parameter.turned:
        a_ERI, b_EOR = b_EOR.mT, a_ERI.mT
    step = 0 if a_ERI.size(1) == rank else rank
    adapters, rest_EOR, row, column = {}, b_EOR.clone(), 0, 0
    for name in parameter.matrices:
        rows, columns = slice(row, row + shapes[name][1]), slice(column, column + rank)
        if name in parameter.adapted:
            adapters[name + A], adapters[name + B] = (
                a_ERI[:, columns].contiguous(),
                b_EOR[:, rows, columns].contiguous(),
            )
            rest_EOR[:, rows, columns] = 0
            column += step
        row = rows.stop
    if rest_EOR.any():
        message = f"the adapter of {parameter.name} changes more than one of rank {rank} for {' and '.join(parameter.adapted)} can"
        raise fail(
            "checkpoint",
            message,
            path=("converters",),
            help="let target_modules name all matrices that it changes, with its rank",
        )
    return adapters


def check_sizes(
    parameter: Parameter, lora_a: Tensor, lora_b: Tensor, shapes: Shapes, rank: int
) -> None:
    """Raises a problem unless the matrices are those of the run's rank, or of as many such adapters as the parameter's stacks have."""
    count, _, inputs = shapes[parameter.matrices[0]]
    outputs = sum(shapes[name][1] for name in parameter.matrices)
    if parameter.turned:
        inputs, outputs = outputs, inputs
    found = tuple(lora_a.shape), tuple(lora_b.shape)
    if found not in [
        ((count * each, inputs), (outputs, each * count))
        for each in (rank, rank * len(parameter.adapted))
    ]:
        message = f"the adapter of {parameter.name} has other sizes than one of rank {rank} of {count} experts: {found[0]} and {found[1]}"
        raise fail(
            "checkpoint",
            message,
            path=("converters",),
            help="rank of the recipe must be that of the adapter",
        )
