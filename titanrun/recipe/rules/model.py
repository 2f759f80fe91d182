"""Rules about the model."""

from collections.abc import Iterator
from typing import Literal

from titanrun.models.shared.config import AttentionConfig, refused_attention
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.book import Finding, rule


@rule("attention-runs")
def attention_runs(run: Recipe) -> Iterator[Finding]:
    """The attention back end must be built and able to apply the mask: sdpa with mask causal always is."""
    attention = getattr(run.model, "attention", None)
    problem = refused_attention(attention) if isinstance(attention, AttentionConfig) else None
    if problem is not None:
        code: Literal["not-built", "conflict"] = "not-built" if problem.code == "not-built" else "conflict"
        yield Finding(problem.message, (problem.path, ("model", "flavor")), help=problem.help, code=code)
