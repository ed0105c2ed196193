"""What a case is: a configuration of a producer, a number format, a seed, and for a bug its edits and its right names."""

import hashlib
from dataclasses import dataclass, field

SEED = 20261122


@dataclass
class Case:
    id: str
    producer: str
    cfg: dict = field(default_factory=dict)
    dtype: str = "f32"
    seed: int = 0
    what: str = ""
    edits: tuple = ()
    family: str = ""  # of the configuration, or of the bug: what the halves are split by
    names: tuple = ()  # ids of `verify faults`, or option changes, that would be a right first name
    stages: tuple = ()  # checks where the bug is
    bug: bool = False


def half(case):
    key = f"{case['producer']} {case['family']}".encode()
    return "open" if hashlib.sha256(key).digest()[0] % 2 == 0 else "sealed"
