"""Loss weights of the roles of a conversation."""

from titanrun.config.base import Config
from titanrun.config.conflict import conflict_error
from titanrun.config.fields import numerics
from titanrun.config.types import PositiveFloat


class RoleWeights(Config):
    """Loss weights of the tokens of each role. Roles without a weight do not count."""

    system: PositiveFloat | None = numerics(None, examples=[0.1])
    """Loss weight of system messages, including the template text around them."""
    developer: PositiveFloat | None = numerics(None, examples=[0.1])
    """Loss weight of developer messages, including the template text around them."""
    user: PositiveFloat | None = numerics(None, examples=[0.2])
    """Loss weight of user messages, including the template text around them."""
    assistant: PositiveFloat | None = numerics(None, examples=[1.0])
    """Loss weight of replies, from where the template opens them to the end of their turn."""
    tool: PositiveFloat | None = numerics(None, examples=[0.5])
    """Loss weight of tool messages, including the template text around them."""

    def get_weights(self) -> dict[str, float]:
        """Return the roles in the loss with their weights."""
        weights = {role: getattr(self, role) for role in type(self).model_fields}
        return {role: weight for role, weight in weights.items() if weight is not None}


def check_role_weights(train_on: str, role_weights: RoleWeights, turn_weights: str | None) -> None:
    """Check that weights agree with train_on and that each has an effect."""
    if role_weights.get_weights() and train_on != "roles":
        raise conflict_error(
            f"role_weights has no effect with train_on: {train_on}",
            "role_weights",
            hint="set train_on: roles",
        )
    if train_on == "roles" and not role_weights.get_weights():
        raise conflict_error(
            "train_on: roles needs a weight",
            "role_weights",
            hint="set role_weights: {assistant: 1.0, user: 0.1}",
        )
    if train_on == "all" and turn_weights is not None:
        message = "turn_weights weights single messages, but train_on: all counts the whole text"
        raise conflict_error(message, "turn_weights", hint="set train_on: roles, and role_weights")
