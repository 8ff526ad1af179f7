# SPDX-License-Identifier: Apache-2.0
"""Whether what was measured after the switch may stay."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from sglang_ddtree.probe import Measurement
from sglang_ddtree.server import Answer


@dataclass(frozen=True)
class Limits:
    """What is still accepted.

    Attributes:
        tie_nats: two correct kernels round differently, so a token whose rival is this close in log-probability may
            turn into that rival. A quarter is one step of a bf16 logit between 32 and 64.
        max_diverged: share of the prompts whose answers may part at such a near tie.
        min_speed_ratio: tokens a second after, over those before.
        max_ulp, max_mean_ulp, max_beyond_2_ulp: of the comparison in ``validate``; the last is a share of the rows.
            Each is some times what two correct kernels have shown (docs/cutover.md), as rows whose terms cancel each
            other differ by more, and the largest error grows with the number of rows.
    """

    tie_nats: float = 0.25
    max_diverged: float = 0.5
    min_speed_ratio: float = 0.9
    max_ulp: float = 32.0
    max_mean_ulp: float = 0.25
    max_beyond_2_ulp: float = 0.01

    def record(self) -> dict[str, float]:
        """For the JSON record."""
        return asdict(self)


@dataclass
class Verdict:
    """What was found, and what of it is beyond a limit."""

    found: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """Whether nothing is beyond a limit."""
        return not self.reasons

    def record(self) -> dict[str, Any]:
        """For the JSON record."""
        return {"good": self.good, "found": self.found, "reasons": self.reasons}


def judge(before: Measurement, after: Measurement, limits: Limits) -> Verdict:
    """Compare answers and speed."""
    verdict = Verdict()
    _judge_answers(before, after, limits, verdict)
    ratio = after.tokens_per_second / max(before.tokens_per_second, 1e-9)
    speeds = f"{before.tokens_per_second:.1f} tokens/s before, {after.tokens_per_second:.1f} after ({ratio:.2f} times)"
    verdict.found.append(speeds)
    if ratio < limits.min_speed_ratio:
        verdict.reasons.append(f"too slow: {speeds}; --min-speed-ratio is {limits.min_speed_ratio:g}")
    return verdict


def _judge_answers(before: Measurement, after: Measurement, limits: Limits, verdict: Verdict) -> None:
    same, ties = 0, 0
    for number, old in before.answers.items():
        new = after.answers.get(number)
        if new is None:
            verdict.reasons.append(f"prompt {number + 1}: answered before, refused after")
            continue
        place = _parting(old.ids, new.ids)
        if place is None:
            same += 1
            continue
        gap = _gap(old, new, place)
        if gap is not None and gap <= limits.tie_nats:
            ties += 1
            verdict.found.append(f"prompt {number + 1}: parts at token {place + 1}, a near tie ({gap:.3f} nats)")
            continue
        how = "its rival is not even among the likely ones" if gap is None else f"{gap:.3f} nats apart"
        verdict.reasons.append(
            f"prompt {number + 1}: another answer from token {place + 1} on ({how}); --tie-nats is {limits.tie_nats:g}"
        )
    verdict.found += [f"prompt {number + 1} is too long for this server and was left out" for number in before.too_long]
    total = len(before.answers)
    verdict.found.insert(0, f"{same} of {total} answers equal, {ties} part at a near tie")
    if ties > limits.max_diverged * total:
        verdict.reasons.append(
            f"{ties} of {total} answers part, if only at near ties; --max-diverged is {limits.max_diverged:g}"
        )


def _parting(old: list[int], new: list[int]) -> int | None:
    if old == new:
        return None
    return next(
        (i for i, pair in enumerate(zip(old, new, strict=False)) if pair[0] != pair[1]), min(len(old), len(new))
    )


def _gap(old: Answer, new: Answer, place: int) -> float | None:
    """How much less likely the new token was before the switch; None if it was not among the likely ones."""
    if place >= min(len(old.alternatives), len(new.ids)):
        return None
    tops = old.alternatives[place]
    if old.ids[place] not in tops or new.ids[place] not in tops:
        return None
    return abs(tops[old.ids[place]] - tops[new.ids[place]])


def judge_validation(ranks: list[dict[str, Any]], limits: Limits) -> Verdict:
    """Hold the comparison of the two kernels, each rank's, to the limits."""
    verdict = Verdict()
    for number, rank in enumerate(ranks):
        where = f"rank {number}: " if len(ranks) > 1 else ""
        seen = rank.get("validation")
        if not seen or not seen.get("steps"):
            verdict.reasons.append(f"{where}no forward was compared; is the verify of this server on another path?")
            continue
        rows = max(seen["rows"], 1)
        share = seen["rows_beyond_2_ulp"] / rows
        verdict.found.append(
            f"{where}{seen['steps']} forwards, {seen['rows']} rows compared: max {seen['max_ulp']:.3g} ulp, mean "
            f"{seen['mean_ulp']:.3g}, {seen['rows_beyond_2_ulp']} rows beyond 2, {seen['rows_not_finite']} not finite"
        )
        checks = (
            (seen["rows_not_finite"] > 0, f"{seen['rows_not_finite']} rows are not finite"),
            (seen["max_ulp"] > limits.max_ulp, f"max error {seen['max_ulp']:.3g} ulp; --max-ulp is {limits.max_ulp:g}"),
            (
                seen["mean_ulp"] > limits.max_mean_ulp,
                f"mean error {seen['mean_ulp']:.3g} ulp; --max-mean-ulp is {limits.max_mean_ulp:g}",
            ),
            (
                share > limits.max_beyond_2_ulp,
                f"{share:.2g} of the rows are beyond 2 ulp; --max-beyond-2-ulp is {limits.max_beyond_2_ulp:g}",
            ),
        )
        verdict.reasons += [where + text for beyond, text in checks if beyond]
    return verdict
