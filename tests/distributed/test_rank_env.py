import os
import subprocess
import sys

import pytest

from titanrun.config.problems import ProblemsFound
from titanrun.distributed.rank_env import (
    RankInfo,
    build_single_device_environment,
    get_allocator_options,
    read_rank_info,
    set_allocator_default,
    set_compile_cache_default,
)


def test_a_process_that_nobody_placed_is_alone() -> None:
    assert read_rank_info({}) == RankInfo(rank=0, local_rank=0, world_size=1)
    assert read_rank_info({"RANK": ""}) == RankInfo()


def test_the_launcher_says_which_process_this_is() -> None:
    assert read_rank_info({"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8"}) == RankInfo(
        rank=5, local_rank=1, world_size=8
    )


@pytest.mark.parametrize("text", ["-1", "one", "1.0", " 1", "²"])
def test_a_rank_that_is_no_number_is_one_problem(text: str) -> None:
    with pytest.raises(ProblemsFound, match="environment variable RANK") as caught:
        read_rank_info({"RANK": text})
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ({}, "expandable_segments:True"),
        ({"PYTORCH_ALLOC_CONF": ""}, "expandable_segments:True"),
        ({"PYTORCH_ALLOC_CONF": "max_split_size_mb:64"}, "max_split_size_mb:64"),
        ({"PYTORCH_CUDA_ALLOC_CONF": "backend:native"}, "backend:native"),
    ],
)
def test_segments_grow_unless_the_user_chose_other_options(
    own: dict[str, str], expected: str
) -> None:
    set_allocator_default(own)
    assert get_allocator_options(own) == expected
    assert len([value for value in own.values() if value]) == 1


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ({"HOME": "/home/a"}, "/home/a/.cache/titanrun/inductor"),
        ({"HOME": "/home/a", "XDG_CACHE_HOME": "/scratch"}, "/scratch/titanrun/inductor"),
        ({"HOME": "/home/a", "TORCHINDUCTOR_CACHE_DIR": "/mine"}, "/mine"),
    ],
)
def test_compiled_kernels_are_kept_unless_the_user_chose_a_folder(
    own: dict[str, str], expected: str
) -> None:
    set_compile_cache_default(own)
    assert own["TORCHINDUCTOR_CACHE_DIR"] == expected


def test_a_worker_sets_the_allocator_before_it_imports_torch() -> None:
    program = (
        "import os, sys, titanrun.worker.__main__ as worker\n"
        "sys.argv = ['worker', 'no such file']\n"
        "names = ('PYTORCH_ALLOC_CONF', 'TORCHINDUCTOR_CACHE_DIR')\n"
        "class Look:\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'torch': print(*map(os.environ.get, names), flush=True)\n"
        "sys.meta_path.insert(0, Look())\n"
        "worker.main()\n"
    )
    # inductor sets the variable in a process that has compiled something, such as one of tests
    own = {name: value for name, value in os.environ.items() if "INDUCTOR" not in name}
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={**own, "XDG_CACHE_HOME": "/scratch"},
    )
    assert done.stdout.split() == ["expandable_segments:True", "/scratch/titanrun/inductor"]


def test_other_programs_do_not_get_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    for own, given in (("expandable_segments:True", None), ("backend:native", "backend:native")):
        monkeypatch.setenv("PYTORCH_ALLOC_CONF", own)
        assert build_single_device_environment(0).get("PYTORCH_ALLOC_CONF") == given
