"""tools/check_changelog.py: what it finds, and that releases stay as they were."""

from pathlib import Path

import pytest

from tools.check_changelog import find_faults, freeze_sections, read_released

SOUND = """\
# Changelog

## [Unreleased]

### Fixed

- A fault.

## [0.2.0] - 2027-02-01

### Added

- A feature.

### Removed

- Another one.

## [0.1.0] - 2027-01-31

### Added

- Everything.
"""


@pytest.fixture
def record(tmp_path: Path) -> Path:
    """Return the record of the two releases."""
    path = tmp_path / "released.txt"
    freeze_sections(SOUND, path)
    return path


def test_a_sound_changelog_has_no_faults_and_new_releases_have_to_be_recorded(record: Path) -> None:
    assert list(find_faults(SOUND, read_released(record))) == []
    assert [fault[:42] for fault in find_faults(SOUND, {})] == [
        "the section of 0.2.0 is not recorded: run ",
        "the section of 0.1.0 is not recorded: run ",
    ]


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("- Everything.", "- Nearly everything.", "the section of 0.1.0 has changed since"),
        ("2027-01-31", "2027-01-30", "the section of 0.1.0 has changed since"),
        ("## [0.1.0] - 2027-01-31", "", "the section of 0.1.0, which was released, is gone"),
        ("2027-02-01", "2027-01-01", "0.2.0 (2027-01-01) stands above 0.1.0 (2027-01-31)"),
        ("2027-02-01", "2027-02-30", "0.2.0: there is no day 2027-02-30"),
        ("[0.2.0] - 2027-02-01", "0.2.0", "'0.2.0' is not '[MAJOR.MINOR.PATCH] - YYYY-MM-DD'"),
        ("[0.2.0]", "[0.0.2]", "0.0.2 (2027-02-01) stands above 0.1.0 (2027-01-31)"),
        ("### Fixed", "### Repaired", "[Unreleased]: unknown group 'Repaired'"),
        ("- A fault.", "", "[Unreleased]: nothing stands under 'Fixed'"),
        ("### Fixed\n", "### Fixed\n\n- A\n\n### Added\n", "[Unreleased]: groups are repeated or"),
        ("### Fixed", "- A\n\n### Fixed", "[Unreleased]: an entry stands before the first group"),
        ("- A fault.", f"- {'a' * 149}", "line 7 has 151 columns, at most 150 are allowed"),
        ("## [Unreleased]", "## Next", "the first section is not [Unreleased]"),
    ],
)
def test_each_fault_is_named(old: str, new: str, fault: str, record: Path) -> None:
    assert old in SOUND
    found = list(find_faults(SOUND.replace(old, new, 1), read_released(record)))
    assert any(one.startswith(fault) for one in found), found


def test_what_was_recorded_is_not_recorded_again(record: Path) -> None:
    before = record.read_text()
    freeze_sections(SOUND.replace("Everything", "Nothing"), record)
    assert record.read_text() == before
