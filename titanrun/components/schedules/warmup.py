"""Linear warmup to the peak, shared by the schedules that begin with one."""

from titanrun.components.schedules.config import DecayingConfig, WarmedConfig


class Warmed:
    """Warmup over W steps from a share of the peak, then what `later` gives, between the floor and the peak.

    With `first_step` 1 step s uses the rate that s + 1 steps of warmup lead to, so that no batch is spent at a rate of 0.
    """

    def __init__(self, config: WarmedConfig) -> None:
        assert isinstance(config.warmup_steps, int), "steps are decided before"
        self.warmup_steps = config.warmup_steps
        self.start, self.floor, self.first_step = (
            config.warmup_start_factor,
            config.min_lr_factor,
            config.first_step,
        )

    def factor(self, step: int) -> float:
        """Share of the peak learning rate that optimizer step `step` uses, counted from 0; the floor past the horizon."""
        if step < self.warmup_steps:
            return self.start + (1 - self.start) * ((step + self.first_step) / self.warmup_steps)
        left = self.later(step)
        return 1.0 if left == 1.0 else self.floor + (1 - self.floor) * left

    def later(self, step: int) -> float:
        """What is left of the way from the peak to the floor after the warmup: 1 to 0."""
        raise NotImplementedError


class Decaying(Warmed):
    """A warmed schedule that reaches its floor at a horizon of T steps."""

    def __init__(self, config: DecayingConfig) -> None:
        super().__init__(config)
        assert isinstance(config.total_steps, int), "steps are decided before"
        self.horizon = config.total_steps
        self.warmup_steps = min(self.warmup_steps, self.horizon)

    def progress(self, step: int) -> float:
        """Share of the steps after the warmup that lie behind; 1 from the horizon on."""
        rest = self.horizon - self.warmup_steps
        return min((step - self.warmup_steps) / rest, 1.0) if rest else 1.0
