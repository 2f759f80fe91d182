"""Rules about the accelerators that a submitted run asks for."""

from collections.abc import Iterator

from titanrun.config.problems import DataPath
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.registry import RuleViolation, rule

DEVICE: DataPath = ("device",)
# field that requests the accelerators of a machine. A partition of Slurm may assign them unasked
REQUESTS = {"kubernetes": "gpus_per_node", "skypilot": "accelerators"}


@rule("submitted-runs-request-accelerators")
def submitted_runs_request_accelerators(run: Recipe) -> Iterator[RuleViolation]:
    """Warn of a Job or task without accelerators unless the recipe has device: cpu.

    Kubernetes and SkyPilot give a run only what it requests: without launch.gpus_per_node or
    launch.accelerators all ranks train on CPUs. With device: gpu that is an error.
    """
    field = REQUESTS.get(run.launch.name)
    if field is None or run.device == "cpu" or getattr(run.launch, field) is not None:
        return
    resource = getattr(run.launch, "gpu_resource", "")
    if any(escape_pointer(resource) in line or resource in line for line in list_patches(run)):
        return
    ranks = getattr(run.launch, "nproc_per_node", 1)
    example = f"{ranks}" if field == "gpus_per_node" else f"H100:{ranks}"
    is_error = run.device != "auto"
    yield RuleViolation(
        f"device is {run.device}, but launch {run.launch.name} requests no accelerators"
        if is_error
        else f"launch {run.launch.name} requests no accelerators: all ranks train on CPUs",
        (("launch", "nproc_per_node"), ("launch", "name"), DEVICE),
        hint=f"set launch.{field}: {example}, or device: cpu",
        code="conflict" if is_error else "slow",
        severity="error" if is_error else "warning",
    )


def escape_pointer(name: str) -> str:
    """Escape a key for a path of a JSON patch."""
    return name.replace("~", "~0").replace("/", "~1")


def list_patches(run: Recipe) -> tuple[str, ...]:
    """Return the patches of a Job, none for other launchers."""
    return getattr(run.launch, "patch", ())
