"""What is known to fail, and why: exceptions.toml, judged both ways."""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path
from typing import Any

PATH = Path(__file__).with_name("exceptions.toml")


@dataclasses.dataclass(frozen=True)
class Rule:
    """Cases that are expected to fail. Empty `names`, `dtypes` or `checks` mean all of them."""

    names: frozenset[str]
    dtypes: frozenset[str]
    checks: frozenset[str]
    reason: str

    def covers(self, result: dict[str, Any]) -> bool:
        """Whether a result is one of these cases."""
        return (
            (not self.names or result["key"] in self.names)
            and (not self.dtypes or result["dtype"] in self.dtypes)
            and (not self.checks or result["check"] in self.checks)
        )


def load(path: Path = PATH) -> list[Rule]:
    """The rules of the file. Raises ValueError for one that names nothing, or has no reason."""
    rules = []
    for item in tomllib.loads(path.read_text()).get("exception", []):
        unknown = set(item) - {"names", "dtypes", "checks", "reason"}
        if unknown or not item.get("reason") or not (item.get("names") or item.get("dtypes")):
            raise ValueError(f"{path.name}: an exception needs a reason, and names or dtypes: {item}")
        rules.append(
            Rule(
                frozenset(item.get("names", ())), frozenset(item.get("dtypes", ())), frozenset(item.get("checks", ())),
                " ".join(item["reason"].split()),
            )  # fmt: skip
        )
    return rules


def judge(results: list[dict[str, Any]], rules: list[Rule]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(failures that no rule covers, cases that a rule covers although they pass).

    A rule without names speaks of a dtype as a whole, so single cases of it may pass.
    """
    failures, stale = [], []
    for result in results:
        covering = [rule for rule in rules if rule.covers(result)]
        if result["outcome"] in ("fail", "crash", "timeout") and not covering:
            failures.append(result)
        elif result["outcome"] == "pass" and any(rule.names for rule in covering):
            stale.append(result)
    return failures, stale
