"""Conditions for settings of parallelism, compilation and debugging to be read."""

from titanrun.config.fields import ReadWhen


def needs_degree(rule: str, degree: str) -> ReadWhen:
    """Return the condition that a degree of parallelism is above 1."""
    hint = f"set {degree} above 1, or remove it"
    return ReadWhen(rule, f".{degree}", "is 1", hint, not_values=(1,))


TENSOR_PARALLEL = needs_degree("settings-need-tp", "tensor_parallel_degree")
CONTEXT_PARALLEL = needs_degree("settings-need-cp", "context_parallel_degree")
EXPERT_PARALLEL = needs_degree("settings-need-ep", "expert_parallel_degree")
PIPELINE = needs_degree("settings-need-pp", "pipeline_parallel_degree")
STAGES_BY_COUNT = ReadWhen(
    "parts-decide-stages",
    ".module_fqns_per_model_part",
    "names the modules of each stage",
    "remove one of the two",
    values=(None,),
)
NAMED_SCHEDULE = ReadWhen(
    "file-decides-schedule",
    ".pipeline_parallel_schedule_csv",
    "orders the pipeline",
    "remove one of the two",
    values=(None,),
)
DUAL_PIPE = ReadWhen(
    "overlap-needs-dualpipe",
    ".pipeline_parallel_schedule",
    "is not DualPipeV",
    "remove it",
    fact="runs_dual_pipe",
)
OVERLAPPED = (
    needs_degree("overlap-needs-dualpipe", "pipeline_parallel_degree"),
    DUAL_PIPE,
    needs_degree("overlap-needs-dualpipe", "expert_parallel_degree"),
)
SHARDED = ReadWhen(
    "resharding-needs-shards",
    ".data_parallel_shard_degree",
    "gives each rank all weights",
    "let ranks share the weights, or remove it",
    fact="shards_weights",
)
COMPILED = ReadWhen(
    "settings-need-compile",
    ".enable",
    "is false",
    "set compile.enable: true, or remove it",
    values=(True,),
)
INDUCTOR = ReadWhen(
    "tuning-needs-inductor",
    ".backend",
    "is not inductor",
    "remove it, or set compile.backend: inductor",
    values=("inductor",),
)
FLIGHT_RECORDER = ReadWhen(
    "settings-need-flight-recorder",
    ".trace_buf_size",
    "is 0",
    "set comm.trace_buf_size above 0, or remove it",
    not_values=(0,),
)
DETERMINISTIC = ReadWhen(
    "warning-needs-deterministic",
    ".deterministic",
    "is false",
    "set debug.deterministic: true, or remove it",
    values=(True,),
    only_for=(True,),
)
HAS_EXPERTS = ReadWhen(
    "balance-needs-experts",
    "model.name",
    "{run.model.name} has no experts",
    "remove it",
    fact="has_experts",
)
