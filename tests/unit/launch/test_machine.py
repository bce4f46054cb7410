"""What a record says of the machine."""

from pathlib import Path

import pytest

from manyhands.launch.machine import cpu_name

INTEL = "processor\t: 0\nmodel name\t: Intel(R) Xeon(R) Processor\nmodel name\t: another\n"
ARM = "processor\t: 0\nCPU implementer\t: {}\nCPU part\t: {}\n"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (INTEL, "Intel(R) Xeon(R) Processor"),
        (ARM.format("0x41", "0xd0c"), "Arm Neoverse-N1"),
        (ARM.format("0x41", "0xfff"), "aarch64, implementer 0x41, part 0xfff"),
        (ARM.format("0x61", "0xd0c"), "aarch64, implementer 0x61, part 0xd0c"),
        ("", "a processor"),
    ],
)
def test_the_processor_has_a_name(text, name, monkeypatch):
    monkeypatch.setattr(Path, "read_text", lambda self: text)
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    monkeypatch.setattr("platform.processor", lambda: "a processor")
    assert cpu_name() == name
