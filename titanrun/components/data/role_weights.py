"""What is learned of each role of a conversation."""

from titanrun.config.base import Config
from titanrun.config.conflict import conflict
from titanrun.config.fields import numerics
from titanrun.config.types import PositiveFloat


class RoleWeights(Config):
    """What the tokens of a role weigh in the loss; of a role without a number nothing is learned."""

    system: PositiveFloat | None = numerics(None, examples=[0.1])
    """What a message from system weighs, with the words that the template puts around it."""
    developer: PositiveFloat | None = numerics(None, examples=[0.1])
    """What a message from developer weighs, with the words that the template puts around it."""
    user: PositiveFloat | None = numerics(None, examples=[0.2])
    """What a message from user weighs, with the words that the template puts around it."""
    assistant: PositiveFloat | None = numerics(None, examples=[1.0])
    """What replies weigh, from where the template opens them to the end of their turn."""
    tool: PositiveFloat | None = numerics(None, examples=[0.5])
    """What a message from tool weighs, with the words that the template puts around it."""

    def named(self) -> dict[str, float]:
        """The roles of which something is learned, each with its weight."""
        return {role: weight for role, weight in self.model_dump().items() if weight is not None}


def check_weights(train_on: str, roles: RoleWeights, turns: str | None) -> None:
    """Weights go with what is trained on, and each has an effect."""
    if roles.named() and train_on != "roles":
        raise conflict(
            f"role_weights has no effect with train_on: {train_on}",
            "role_weights",
            help="set train_on: roles",
        )
    if train_on == "roles" and not roles.named():
        raise conflict(
            "train_on: roles needs a weight",
            "role_weights",
            help="set role_weights: {assistant: 1.0, user: 0.1}",
        )
    if train_on == "all" and turns is not None:
        message = "turn_weights weighs single messages, and train_on: all counts the whole text"
        raise conflict(message, "turn_weights", help="set train_on: roles, and role_weights")
