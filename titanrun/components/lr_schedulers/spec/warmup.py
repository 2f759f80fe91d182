"""Linear warmup to the peak, shared by the schedules that begin with one."""

from titanrun.components.lr_schedulers.config import DecayScheduleConfig, WarmupScheduleConfig


class WarmupSchedule:
    """Warmup over W steps from a share of the peak, then `decay_factor`.

    The factor is between the floor and the peak. With `first_step` 1, step s uses the rate after s
    + 1 steps of warmup, so that no batch is spent at a rate of 0.
    """

    def __init__(self, config: WarmupScheduleConfig) -> None:
        assert isinstance(config.warmup_steps, int), "steps are decided before"
        self.warmup_steps = config.warmup_steps
        self.start, self.floor, self.first_step = (
            config.warmup_start_factor,
            config.min_lr_factor,
            config.first_step,
        )

    def factor(self, step: int) -> float:
        """Return the factor of the peak learning rate for optimizer step `step`, from 0.

        After the horizon, it is the floor.
        """
        if step < self.warmup_steps:
            return self.start + (1 - self.start) * ((step + self.first_step) / self.warmup_steps)
        return self.floor + (1 - self.floor) * self.decay_factor(step)

    def decay_factor(self, step: int) -> float:
        """Return the remaining fraction of the way from peak to floor after the warmup, 1 to 0."""
        raise NotImplementedError


class DecaySchedule(WarmupSchedule):
    """Schedule with warmup that reaches its floor at a horizon of T steps."""

    def __init__(self, config: DecayScheduleConfig) -> None:
        super().__init__(config)
        assert isinstance(config.total_steps, int), "steps are decided before"
        self.horizon = config.total_steps
        self.warmup_steps = min(self.warmup_steps, self.horizon)

    def decay_progress(self, step: int) -> float:
        """Return the completed share of the steps after the warmup, 1 from the horizon on."""
        rest = self.horizon - self.warmup_steps
        return min((step - self.warmup_steps) / rest, 1.0) if rest else 1.0
