"""The style check: each rule finds its fault and passes plain text."""

import subprocess
from pathlib import Path

import pytest

from tools.style import check, check_classes, check_code, check_identifier, check_subjects, check_text


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("The sender is told of it.", "word"),
        ("NOBODY answers", "word"),
        ("It is kept for ever.", "phrase"),
        ("two files, of which one is new", "phrase"),
        ("who asks gets 503", "word"),
    ],
)
def test_banned_wording_in_prose_is_found(text: str, rule: str) -> None:
    assert rule in {problem.rule for problem in check_text("docs/x.md", 1, text)}


@pytest.mark.parametrize("text", ["The hub reports it.", "a keyword", "password file", "essays", "no more than 3"])
def test_plain_prose_passes(text: str) -> None:
    assert list(check_text("docs/x.md", 1, text)) == []


def test_line_of_a_finding_counts_from_the_start_of_the_text() -> None:
    (problem,) = check_text("docs/x.md", 10, "one\ntwo\nanew")
    assert problem.line == 12


@pytest.mark.parametrize("name", ["told", "_told_at", "MachinesHeard", "ASK_SECONDS", "value_words"])
def test_banned_part_of_an_identifier_is_found(name: str) -> None:
    assert [problem.rule for problem in check_identifier("src/x.py", 1, name)] == ["name"]


@pytest.mark.parametrize("name", ["reported", "keyword", "password_file", "task", "Basket"])
def test_plain_identifier_passes(name: str) -> None:
    assert list(check_identifier("src/x.py", 1, name)) == []


@pytest.mark.parametrize("opening", ["What", "Who", "Whose", "How", "It", "Those"])
def test_docstring_that_starts_with_a_clause_is_found(opening: str) -> None:
    source = f'def f() -> None:\n    """{opening} a node reports."""\n'
    assert [problem.rule for problem in check_code("src/x.py", source)] == ["docstring"]
    assert list(check_code("tests/x.py", source)) == []


def test_second_class_of_a_name_is_found_in_another_module() -> None:
    files = [("src/a.py", "class Row: ...\n"), ("src/b.py", "class _Row: ...\n"), ("src/c.py", "class Table: ...\n")]
    assert [(problem.path, problem.rule) for problem in check_classes(files)] == [("src/b.py", "class")]


def repository(folder: Path, *subjects: str) -> Path:
    def git(*arguments: str) -> None:
        subprocess.run(
            ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", *arguments],
            cwd=folder,
            check=True,
            capture_output=True,
        )

    git("init", "-q")
    (folder / "tools").mkdir()
    (folder / "tools" / "style.py").write_text("")
    git("add", ".")
    git("commit", "-qm", "Whatever came before the check, however long it may be, is not judged by it at all")
    for subject in subjects:
        git("commit", "-q", "--allow-empty", "-m", subject)
    return folder


def test_commit_subjects_are_checked_since_the_check_exists(tmp_path: Path) -> None:
    assert list(check_subjects(repository(tmp_path, "hub: reject batches from retired machines"))) == []


@pytest.mark.parametrize(
    ("subject", "rule"), [("hub: " + "x" * 80, "subject"), ("Reject batches", "subject"), ("hub: mend a name", "word")]
)
def test_bad_commit_subject_is_found(tmp_path: Path, subject: str, rule: str) -> None:
    assert rule in {problem.rule for problem in check_subjects(repository(tmp_path, subject))}


def test_files_of_a_checkout_are_checked_by_path(tmp_path: Path) -> None:
    root = repository(tmp_path)
    for path, text in {"src/a.py": "told = 1\n", "docs/a.md": "anew\n", "other/a.md": "anew\n"}.items():
        (root / path).parent.mkdir(exist_ok=True)
        (root / path).write_text(text)
    found = {problem.path for problem in check(root=root)}
    assert found >= {"src/a.py", "docs/a.md"}
    assert "other/a.md" not in found
    assert {problem.path for problem in check(["docs"], root=root)} == {"docs/a.md"}
