"""`twintape doctor`: each finding is judged rightly and says what to do next."""

import argparse
import json
import resource
from pathlib import Path

import pytest

from twintape import doctor, machine
from twintape.doctor import Finding, Status

MIB = 1 << 20


@pytest.mark.parametrize(
    ("line", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_292"', 8),
        ('openjdk version "21" 2023-09-19', 21),
        ("command not found", None),
    ],
)
def test_java_version_is_read_from_its_first_line(line: str, major: int | None) -> None:
    assert machine.java_major(line) == major


@pytest.mark.parametrize(
    ("finding", "status"),
    [
        (doctor.judge_python((3, 11), "CPython"), Status.OK),
        (doctor.judge_python((3, 10), "CPython"), Status.MISSING),
        (doctor.judge_python((3, 11), "PyPy"), Status.MISSING),
        (doctor.judge_java(None), Status.MISSING),
        (doctor.judge_java(None, "/no/java"), Status.MISSING),
        (doctor.judge_java(machine.Java("/usr/bin/java", 11)), Status.MISSING),
        (doctor.judge_java(machine.Java("/usr/bin/java", 17)), Status.OK),
        (doctor.judge_compiler(None), Status.MISSING),
        (doctor.judge_shared_memory(64 * MIB, 60 * MIB), Status.WARNING),
        (doctor.judge_shared_memory(1024 * MIB, 1000 * MIB), Status.OK),
        (doctor.judge_open_files(1024, 4096), Status.WARNING),
        (doctor.judge_open_files(resource.RLIM_INFINITY, resource.RLIM_INFINITY), Status.OK),
        (doctor.judge_locked_memory(8 * MIB), Status.WARNING),
        (doctor.judge_locked_memory(resource.RLIM_INFINITY), Status.OK),
        (doctor.judge_receive_buffer(212_992), Status.WARNING),
        (doctor.judge_receive_buffer(8 * MIB), Status.OK),
        (doctor.judge_cores(1), Status.WARNING),
        (doctor.judge_cores(2), Status.OK),
        (doctor.judge_clock("hpet"), Status.WARNING),
        (doctor.judge_clock("tsc"), Status.OK),
        (doctor.judge_kernels(["feeds.a_kernels"], 3), Status.WARNING),
        (doctor.judge_kernels([], 3), Status.OK),
        (doctor.judge_tool(machine.TEST_TOOLS[0], None, is_needed_now=True), Status.MISSING),
        (doctor.judge_tool(machine.FUTURE_TOOLS[0], None, is_needed_now=False), Status.OK),
    ],
    ids=lambda value: value.subject if isinstance(value, Finding) else value.value,
)
def test_findings_are_judged_and_those_that_are_not_ok_say_what_to_do(
    finding: Finding, status: Status
) -> None:
    assert finding.status is status
    assert bool(finding.next_step) == (status is not Status.OK)


def test_packages_that_differ_from_the_lock_are_named() -> None:
    finding = doctor.judge_packages(
        {"numpy": "2.4.6", "rich": "15.0.0"}, {"numpy": "2.4.6", "rich": "14.0.0"}
    )
    assert finding.status is Status.WARNING
    assert finding.found == "rich 14.0.0 instead of 15.0.0"


def test_absent_core_package_means_that_we_cannot_run() -> None:
    finding = doctor.judge_packages({"numpy": "2.4.6"}, {})
    assert not doctor.is_fit([finding])


def test_only_a_missing_requirement_makes_the_machine_unfit() -> None:
    optional = Finding("Java", Status.MISSING, "none", "install it")
    required = Finding("Python", Status.MISSING, "3.9", "install it", is_required=True)
    assert doctor.is_fit([optional])
    assert not doctor.is_fit([optional, required])


def test_lock_files_pin_every_package_with_its_hash_and_name_no_index(project_root: Path) -> None:
    for name in machine.LOCK_FILES:
        text = (project_root / name).read_text(encoding="utf-8")
        blocks = [block for block in text.split("\n") if block and not block.startswith((" ", "#"))]
        assert blocks
        assert all(block.endswith(" \\") and "==" in block for block in blocks)
        assert len(machine.locked_versions(text)) == len(blocks)
        assert not any(word in text for word in ("://", "--index", "--find-links", "--extra", "--trusted"))


def test_locked_names_are_compared_as_indexes_do() -> None:
    assert machine.locked_versions("Iex_Parser==1.7.0 \\\n    --hash=sha256:00\n") == {"iex-parser": "1.7.0"}


def test_table_and_json_tell_the_same_of_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    findings = doctor.examine()
    table = doctor.as_table(findings, use_colour=False)
    told = json.loads(doctor.as_json(findings))
    assert [row["subject"] for row in told["findings"]] == [finding.subject for finding in findings]
    assert all(finding.found in table and finding.next_step in table for finding in findings)
    assert told["is_fit"] is doctor.is_fit(findings)

    assert doctor.run(argparse.Namespace(json=True)) == (0 if told["is_fit"] else 1)
    assert {"is_fit", "findings"} == json.loads(capsys.readouterr().out).keys()
