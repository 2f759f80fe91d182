"""What to do where the Hugging Face Hub is needed, but cannot be reached. Torch-free."""

from collections.abc import Iterator, Mapping

OFFLINE_VARIABLE = "HF_HUB_OFFLINE"
OFFLINE_ERROR = "OfflineModeIsEnabled"
"""Error of the Hub's library where the variable is set."""
TRUE_WORDS = ("1", "ON", "YES", "TRUE")
# errors of the Hub's HTTP clients, packages that vary by version, and of the operating system
UNREACHABLE_ERRORS = {"ConnectError", "ConnectTimeout", "ConnectionError", "gaierror"}


def advise_model(repository: str, first_step: str) -> str:
    """Return how to get a model of the Hub, with a network first and then without one."""
    name = repository.rpartition("/")[2]
    return (
        f"{first_step}; without a network, run titanrun download {repository} -o {name} on a "
        "machine that has one, copy the folder here, and name it instead of the model"
    )


def advise_dataset(repository: str, revision: str | None, first_step: str) -> str:
    """Return how to get a dataset of the Hub, with a network first and then without one."""
    commit = "" if revision is None else f" --revision {revision}"
    name = repository.rpartition("/")[2]
    return (
        f"{first_step}; without a network, run hf download {repository} --repo-type dataset"
        f"{commit} --local-dir {name} on a machine that has one, copy the folder here, and name "
        "the files of the split as path in place of repo, of dataset text in place of hub"
    )


def advise_again(*, is_offline: bool) -> str:
    """Return what to do on a machine that has a network."""
    return (
        f"unset {OFFLINE_VARIABLE} and run the same command again"
        if is_offline
        else "check the network and HF_ENDPOINT, and run the same command again"
    )


def is_set_offline(environment: Mapping[str, str]) -> bool:
    """Return whether the Hub's library must not use the network."""
    return environment.get(OFFLINE_VARIABLE, "").upper() in TRUE_WORDS


def is_refused_offline(error: BaseException) -> bool:
    """Return whether the Hub was not asked because of HF_HUB_OFFLINE."""
    return any(
        OFFLINE_ERROR in (type(one).__name__, str(one).rpartition("(")[2].removesuffix(")"))
        for one in iter_error_chain(error)
    )


def is_unreachable(error: BaseException) -> bool:
    """Return whether the Hub did not answer at all, or was not asked."""
    names = {base.__name__ for one in iter_error_chain(error) for base in type(one).mro()}
    return is_refused_offline(error) or not names.isdisjoint(UNREACHABLE_ERRORS)


def iter_error_chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and those that led to it."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
