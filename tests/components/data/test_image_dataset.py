"""Pictures with captions: folders and tar files, where a picture is cut, and what is left out."""

import io
import logging
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from titanrun.components.data.config import FolderImagesConfig, TinyImagesConfig, WebDatasetConfig
from titanrun.components.data.dataloader import DistributedDataLoader
from titanrun.components.data.image_dataset import (
    ImageDataset,
    build_image_folder_dataset,
    build_tiny_image_dataset,
    build_webdataset,
    crop_square,
)
from titanrun.config.problems import ProblemsFound

sys.path.insert(0, str(Path(__file__).parents[3] / "tools"))
import make_tiny_images

OPTIONS: dict[str, Any] = {"tokenizer": None, "sample_length": 1, "cache_folder": Path()}


def picture(width: int, height: int, *, mode: str = "RGB", kind: str = "PNG") -> bytes:
    """Red grows to the right, green downwards."""
    rows, columns = np.mgrid[:height, :width]
    pixels = np.stack([columns * 255 // width, rows * 255 // height, 0 * rows], axis=2).astype(
        np.uint8
    )
    file = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(file, format=kind)
    return file.getvalue()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three pictures in two folders, and what is left out of them."""
    (tmp_path / "in").mkdir()
    for name, content in {
        "a.png": picture(40, 32),
        "a.txt": b" wide \xc3\xa4\n",
        "in/b.jpg": picture(32, 64, kind="JPEG"),
        "in/b.txt": b"tall",
        "c.webp": picture(32, 32, mode="L", kind="WEBP"),
        "c.txt": b"grey",
        "small.png": picture(40, 31),
        "small.txt": b"small",
        "alone.png": picture(32, 32),
        "broken.png": b"no picture",
        "broken.txt": b"broken",
    }.items():
        (tmp_path / name).write_bytes(content)
    return tmp_path


def tar(path: Path, members: dict[str, bytes], *, mode: str = "w") -> Path:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return path


def captions(rows: ImageDataset) -> list[str]:
    return [rows[index]["caption"].item().decode() for index in range(len(rows))]


def test_a_folder_gives_pictures_with_a_text_of_their_name(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    rows = build_image_folder_dataset(
        FolderImagesConfig(path=str(folder), image_size=32), **OPTIONS
    )
    assert captions(rows) == ["wide ä", "grey", "tall"]
    assert "1 without a caption, 1 smaller than image_size, 1 not readable" in caplog.text
    assert rows[0]["pixels"].shape == (3, 32, 32)
    grey = rows[1]["pixels"].astype(int)
    assert abs(grey[0] - grey[1]).max() <= 4


def test_tar_files_give_members_of_one_name(tmp_path: Path) -> None:
    first = {
        "x/1.png": picture(32, 32),
        "x/1.txt": b"one",
        "x/1.json": b"{}",
        "y/1.txt": b"other",
        "y/1.png": picture(33, 32),
    }
    tar(tmp_path / "0.tar", first)
    tar(
        tmp_path / "1.tar",
        {"2.jpg": picture(64, 32, kind="JPEG"), "2.txt": b"two", "3.txt": b"no picture"},
    )
    rows = build_webdataset(
        WebDatasetConfig(path=str(tmp_path / "*.tar"), image_size=32), **OPTIONS
    )
    assert captions(rows) == ["one", "other", "two"]
    whole = np.asarray(Image.open(io.BytesIO(picture(32, 32)))).transpose(2, 0, 1)
    assert np.array_equal(rows[0]["pixels"], whole)


def test_the_shorter_side_is_resized_and_the_key_says_which_part_is_cut_out() -> None:
    wide = Image.open(io.BytesIO(picture(128, 64)))
    cuts = [crop_square(wide, 32, key) for key in range(40)]
    assert {cut.shape for cut in cuts} == {(32, 32, 3)}
    # red tells the columns: 64 of them are left, of which a cut has 32
    starts = {int(cut[0, 0, 0]) for cut in cuts}
    assert len(starts) > 10
    assert min(starts) < 20
    assert max(starts) > 100
    assert all(np.array_equal(cut[:, :, 1], cuts[0][:, :, 1]) for cut in cuts)
    assert np.array_equal(crop_square(wide, 32, 7), cuts[7])


def test_a_row_is_drawn_anew_each_epoch_and_the_same_on_every_layout(folder: Path) -> None:
    rows = build_image_folder_dataset(
        FolderImagesConfig(path=str(folder), image_size=16), **OPTIONS
    )

    def keys(**options: Any) -> list[int]:
        loader = DistributedDataLoader(
            rows, **{"seed": 0, "shuffle": False, "repeat": True, "global_batch_size": 4} | options
        )
        return [int(row["key"]) for _ in range(3) for row in loader.next_samples()]

    whole = keys()
    assert len(set(whole)) == 12
    assert min(whole) >= 0
    first, second = (keys(dp_rank=rank, dp_size=2) for rank in (0, 1))
    assert first == whole[0:2] + whole[4:6] + whole[8:10]
    assert second == whole[2:4] + whole[6:8] + whole[10:12]
    assert keys(seed=1) != whole


def test_going_to_a_position_gives_the_rows_that_come_next(folder: Path) -> None:
    rows = build_image_folder_dataset(
        FolderImagesConfig(path=str(folder), image_size=16), **OPTIONS
    )
    first, second = (
        DistributedDataLoader(rows, seed=0, shuffle=True, repeat=True, global_batch_size=3)
        for _ in range(2)
    )
    first.next_samples()
    second.load_state_dict(first.state_dict())
    assert first.next_samples().tobytes() == second.next_samples().tobytes()


def test_other_pictures_or_another_size_have_another_fingerprint(folder: Path) -> None:
    def fingerprint(size: int = 16) -> str:
        return build_image_folder_dataset(
            FolderImagesConfig(path=str(folder), image_size=size), **OPTIONS
        ).fingerprint

    before = fingerprint()
    assert fingerprint() == before
    assert fingerprint(32) != before
    (folder / "a.txt").write_text("another caption")
    assert fingerprint() != before


def test_a_file_that_changes_is_a_problem(folder: Path) -> None:
    rows = build_image_folder_dataset(
        FolderImagesConfig(path=str(folder), image_size=16), **OPTIONS
    )
    loader = DistributedDataLoader(rows, seed=0, shuffle=False, repeat=True, global_batch_size=1)
    loader.next_samples()
    (folder / "c.txt").write_text("a longer caption")
    with pytest.raises(ProblemsFound, match=r"c\.txt' changed while the run reads it"):
        for _ in range(5):
            loader.next_samples()


def test_a_damaged_picture_is_a_problem_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(picture(640, 640)[:-300])
    (tmp_path / "a.txt").write_text("half")
    rows = build_image_folder_dataset(
        FolderImagesConfig(path=str(tmp_path), image_size=16), **OPTIONS
    )
    with pytest.raises(ProblemsFound, match=r"a\.png' is damaged"):
        rows[0]


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("a.tar", b"nothing", "cannot be read as a tar file"),
        ("a.tar", None, "has no image with a caption to train on: 1 without a caption"),
        ("a.txt", b"text", r"names no \.tar file"),
    ],
)
def test_tar_files_that_hold_nothing_are_a_problem(
    name: str, content: bytes | None, told: str, tmp_path: Path
) -> None:
    if content is None:
        tar(tmp_path / name, {"1.png": picture(16, 16)})
    else:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ProblemsFound, match=told):
        build_webdataset(WebDatasetConfig(path=str(tmp_path), image_size=16), **OPTIONS)


def test_a_compressed_tar_file_is_a_problem(tmp_path: Path) -> None:
    tar(tmp_path / "a.tar", {"1.png": picture(16, 16), "1.txt": b"one"}, mode="w:gz")
    with pytest.raises(ProblemsFound, match="cannot be read as a tar file") as found:
        build_webdataset(WebDatasetConfig(path=str(tmp_path), image_size=16), **OPTIONS)
    assert found.value.problems[0].hint == "name complete tar files that are not compressed"


def test_a_long_caption_is_cut_between_characters(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(picture(16, 16))
    (tmp_path / "a.txt").write_text("ä" * 3000)
    rows = build_image_folder_dataset(
        FolderImagesConfig(path=str(tmp_path), image_size=16), **OPTIONS
    )
    assert captions(rows) == ["ä" * 2048]


def test_the_pictures_that_ship_are_those_of_their_tool_and_small() -> None:
    assert make_tiny_images.differences(make_tiny_images.ASSETS) == []
    assert sum(file.stat().st_size for file in make_tiny_images.ASSETS.iterdir()) < 200_000
    parts = [
        captions(build_tiny_image_dataset(TinyImagesConfig(split=split, image_size=16), **OPTIONS))
        for split in ("train", "held_out")
    ]
    assert [len(set(part)) for part in parts] == [48, 12]
    assert not set(parts[0]) & set(parts[1])
    # each shape, colour and place of the held-out part is in the training part too
    assert {word for caption in parts[1] for word in caption.split()} <= {
        word for caption in parts[0] for word in caption.split()
    }
