"""Number of parameters of a model, and of those that are trained."""

from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True, slots=True)
class ParameterCounts:
    """Parameters of a whole model, and those of them that are trained."""

    total: int
    trainable: int

    def format(self) -> str:
        """Format the share that is trained.

        Examples: `trainable: 2,293,760 of 598,343,680 parameters (0.38%)`, `trainable: all
        598,343,680 parameters`.
        """
        if self.trainable == self.total:
            return f"trainable: all {self.total:,} parameters"
        share = self.trainable / self.total
        return f"trainable: {self.trainable:,} of {self.total:,} parameters ({share:.2%})"


def count_trainable_parameters(model: nn.Module) -> ParameterCounts:
    """Count the parameters of a model that is not split over pipeline ranks."""
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in model.parameters()]
    return ParameterCounts(
        total=sum(size for size, _ in sizes),
        trainable=sum(size for size, is_trained in sizes if is_trained),
    )
