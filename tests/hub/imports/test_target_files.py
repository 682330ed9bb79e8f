"""Target files that change while the hub runs."""

import os
from pathlib import Path

from gpufleet.hub.imports.targets import MAX_FILES, TargetFiles


def write(path: Path, *targets: str) -> None:
    path.write_text("".join(f"- targets: ['{one}']\n" for one in targets) or "[]")


def addresses(files: TargetFiles) -> list[str]:
    return [address for group in files.scan().groups for address in group.targets]


def test_target_files_are_read_in_order_and_on_change(tmp_path: Path) -> None:
    files = TargetFiles((str(tmp_path / "*.yml"), str(tmp_path / "more.json")))
    write(tmp_path / "b.yml", "b:1")
    write(tmp_path / "a.yml", "a:1", "a:2")
    (tmp_path / "other.txt").write_text("- targets: [c:1]")
    assert addresses(files) == ["a:1", "a:2", "b:1"]
    assert files.scan().problems.keys() == {str(tmp_path / "more.json")}
    (tmp_path / "more.json").write_text('[{"targets": ["m:1"]}]')
    write(tmp_path / "a.yml", "a:3")
    (tmp_path / "b.yml").unlink()
    assert addresses(files) == ["a:3", "m:1"]
    assert not files.scan().problems


def test_broken_target_file_keeps_the_last_valid_list(tmp_path: Path) -> None:
    path = tmp_path / "a.yml"
    files = TargetFiles((str(tmp_path / "*.yml"),))
    write(path, "a:1")
    assert addresses(files) == ["a:1"]
    for content in ("- targets: [a:2", "", "- targets: {}", "x" * (2 << 20)):
        path.write_text(content)
        for _ in range(2):  # the problem stays while the file is unchanged
            scan = files.scan()
            assert [one.targets for one in scan.groups] == [("a:1",)]
            assert set(scan.problems) == {str(path)}
    write(path)
    assert files.scan().groups == ()
    assert not files.scan().problems


def test_special_files_do_not_block_the_other_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.yml")
    (tmp_path / "b.yml").mkdir()
    write(tmp_path / "c.yml", "c:1")
    scan = TargetFiles((str(tmp_path / "*.yml"),)).scan()
    assert [one.targets for one in scan.groups] == [("c:1",)]
    assert set(scan.problems) == {str(tmp_path / "a.yml"), str(tmp_path / "b.yml")}


def test_number_of_target_files_is_bounded(tmp_path: Path) -> None:
    for number in range(MAX_FILES + 3):
        write(tmp_path / f"{number:04}.yml", f"n{number}:1")
    scan = TargetFiles((str(tmp_path / "*.yml"),)).scan()
    assert len(scan.groups) == MAX_FILES
    assert list(scan.problems) == [str(tmp_path / f"{MAX_FILES:04}.yml")]


def test_file_that_becomes_unreadable_keeps_its_targets(tmp_path: Path) -> None:
    path = tmp_path / "a.yml"
    write(path, "a:1")
    files = TargetFiles((str(path),))
    assert addresses(files) == ["a:1"]
    path.unlink()
    path.symlink_to(path)  # a loop: it exists and cannot be opened
    assert addresses(files) == ["a:1"]
    assert set(files.scan().problems) == {str(path)}
