"""Adapters of stacked experts in peft's format (`target_parameters`).

transformers has one parameter for gates and values of all experts, and peft one adapter for it.
Separate adapters of gates and values are equal to one adapter of double rank: their A matrices are
stacked, and B has a block for each and zeros elsewhere. alpha is doubled too. adapter_config.json
lists the parameters.

Shapes: E experts, I and O input and output size of a matrix, R rank of a peft adapter. peft stores
A as [E * R, I] and B as [O, R * E].
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from types import ModuleType

import torch
from torch import Tensor

from titanrun.components.checkpoints.adapter_weights import EXPERT_LORA_SUFFIXES
from titanrun.config.problems import problem_error
from titanrun.models.shared.decoder_config import Shapes

A, B = EXPERT_LORA_SUFFIXES
WRAPPER_SUFFIX = ".base_layer"


@dataclass(frozen=True, slots=True)
class ExpertParameter:
    """Parameter of transformers' experts.

    Args:
        name: name in transformers.
        matrices: titanrun's stacks, whose rows are concatenated in the parameter.
        adapted_matrices: the stacks with adapters.
        is_transposed: whether peft takes the parameter for [E, I, O] although it is [E, O, I], or
            the reverse, and so swaps A and B.
    """

    name: str
    matrices: tuple[str, ...]
    adapted_matrices: tuple[str, ...]
    is_transposed: bool

    @property
    def module_name(self) -> str:
        """Module that has the parameter."""
        return self.name.rpartition(".")[0]


def find_expert_parameters(module: ModuleType, stacks: Iterable[str]) -> list[ExpertParameter]:
    """Return the parameters that contain these stacks, in transformers' order.

    Args:
        module: the family's module with the names of parameters.
        stacks: names of titanrun's stacks.
    """
    known, is_transposed, given = (
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
                found.append(
                    ExpertParameter(
                        f"model.layers.{layer}.{theirs}", matrices, adapted, is_transposed
                    )
                )
    return found


def get_adapter_locations(names: Iterable[str]) -> dict[str, str]:
    """Return the module path of each parameter's adapter in peft.

    peft wraps a module once per parameter, in their order, the last outermost.
    """
    locations = {}
    for holder, within in groupby(names, lambda name: name.rpartition(".")[0]):
        for depth, name in enumerate(reversed(list(within))):
            locations[name] = holder + WRAPPER_SUFFIX * depth
    return locations


def join_adapters(
    parameter: ExpertParameter, adapters: Mapping[str, Tensor], shapes: Shapes
) -> tuple[Tensor, Tensor]:
    """Combine the adapters of a parameter's stacks into lora_A and lora_B."""
    a_ERI, b_EOR = build_adapter_blocks(parameter, adapters, shapes)
    if parameter.is_transposed:
        a_ERI, b_EOR = b_EOR.mT, a_ERI.mT
    return a_ERI.flatten(0, 1).contiguous(), b_EOR.permute(1, 2, 0).flatten(1, 2).contiguous()


def build_adapter_blocks(
    parameter: ExpertParameter, adapters: Mapping[str, Tensor], shapes: Shapes
) -> tuple[Tensor, Tensor]:
    """Return A [E, R, I] and block B [E, O, R] of a parameter, with a block for each adapter."""
    a_ERI = torch.cat([adapters[name + A] for name in parameter.adapted_matrices], dim=1)
    rows, columns = [], 0
    for name in parameter.matrices:
        row_EOR = a_ERI.new_zeros(a_ERI.size(0), shapes[name][1], a_ERI.size(1))
        if name in parameter.adapted_matrices:
            b_EOR = adapters[name + B]
            row_EOR[:, :, columns : columns + b_EOR.size(2)] = b_EOR
            columns += b_EOR.size(2)
        rows.append(row_EOR)
    return a_ERI, torch.cat(rows, dim=1)


def split_adapter(
    parameter: ExpertParameter, lora_a: Tensor, lora_b: Tensor, shapes: Shapes, rank: int
) -> dict[str, Tensor]:
    """Split the adapter of a parameter into adapters of rank `rank` for its stacks.

    If gates and values share an adapter of that rank, both get the same A.

    Raises:
        ProblemsFound: the adapter cannot be split.
    """
    count = shapes[parameter.matrices[0]][0]
    check_adapter_sizes(parameter, lora_a, lora_b, shapes, rank)
    a_ERI, b_EOR = (
        lora_a.unflatten(0, (count, -1)),
        lora_b.unflatten(1, (-1, count)).permute(2, 0, 1),
    )
    if parameter.is_transposed:
        a_ERI, b_EOR = b_EOR.mT, a_ERI.mT
    step = 0 if a_ERI.size(1) == rank else rank
    adapters, rest_EOR, row, column = {}, b_EOR.clone(), 0, 0
    for name in parameter.matrices:
        rows, columns = slice(row, row + shapes[name][1]), slice(column, column + rank)
        if name in parameter.adapted_matrices:
            adapters[name + A], adapters[name + B] = (
                a_ERI[:, columns].contiguous(),
                b_EOR[:, rows, columns].contiguous(),
            )
            rest_EOR[:, rows, columns] = 0
            column += step
        row = rows.stop
    if rest_EOR.any():
        message = (
            f"the adapter of {parameter.name} changes more than adapters of rank {rank} "
            f"for {' and '.join(parameter.adapted_matrices)} can"
        )
        raise problem_error(
            "checkpoint",
            message,
            path=("converters",),
            hint="set target_modules to all matrices that it changes, with its rank",
        )
    return adapters


def check_adapter_sizes(
    parameter: ExpertParameter, lora_a: Tensor, lora_b: Tensor, shapes: Shapes, rank: int
) -> None:
    """Check that the adapter's rank is the run's, or that times the adapted stacks.

    Raises:
        ProblemsFound: it is not.
    """
    count, _, inputs = shapes[parameter.matrices[0]]
    outputs = sum(shapes[name][1] for name in parameter.matrices)
    if parameter.is_transposed:
        inputs, outputs = outputs, inputs
    found = tuple(lora_a.shape), tuple(lora_b.shape)
    if found not in [
        ((count * each, inputs), (outputs, each * count))
        for each in (rank, rank * len(parameter.adapted_matrices))
    ]:
        message = (
            f"the adapter of {parameter.name} does not fit rank {rank} and {count} experts: "
            f"its shapes are {found[0]} and {found[1]}"
        )
        raise problem_error(
            "checkpoint",
            message,
            path=("converters",),
            hint="set rank in the recipe to that of the adapter",
        )
