# SPDX-License-Identifier: Apache-2.0
"""A trace becomes a table of where a step goes."""

import gzip
import json

import pytest

from benchmark.serve.profile import DEVICE, HOST, IDLE, kind_of, read_trace, steps_of

STEP_US = 1000.0


def trace_of(steps: int) -> dict:
    """Each step: a draft graph of 10 kernels, a target graph of 20, and one launch of its own."""
    events = [{"name": "no category of ours", "cat": "ac2g", "ts": 0}]

    def add(name, start, duration, launch, cat="kernel"):
        events.append({"name": name, "cat": cat, "ts": start, "dur": duration, "args": {"correlation": launch}})

    for step in range(steps):
        at = step * STEP_US
        add("cudaGraphLaunch", at, 25, 3 * step + 10, cat="cuda_runtime")
        add("cudaGraphLaunch", at + 200, 15, 3 * step + 12, cat="cuda_runtime")
        for i in range(10):
            add("_fwd_kernel" if i == 0 else "nvjet_tst_64x8", at + 10 * i, 10, 3 * step + 10)
        add("void tree_build_kernel<8>(Args)", at + 100, 50, 3 * step + 11)
        for i in range(20):
            add("mla_tree_verify_kernel" if i < 6 else "nvjet_tst_64x8", at + 200 + 20 * i, 20, 3 * step + 12)
        add("Memcpy DtoH (Device -> Pageable)", at + 590, 20, 3 * step + 13, cat="gpu_memcpy")
    return {"traceEvents": events}


@pytest.fixture
def profile(tmp_path):
    path = tmp_path / "x.trace.json.gz"
    with gzip.open(path, "wt") as file:
        json.dump(trace_of(12), file)
    return steps_of(read_trace(path, DEVICE), read_trace(path, HOST))


def test_kinds_are_microseconds_a_step(profile):
    assert profile.steps == 10
    assert profile.total == pytest.approx(STEP_US)
    assert profile.kinds["draft attention"] == pytest.approx(10)
    assert profile.kinds["draft GEMM"] == pytest.approx(90)
    assert profile.kinds["target attention"] == pytest.approx(120)
    assert profile.kinds["target GEMM"] == pytest.approx(280)
    assert profile.kinds["tree operators"] == pytest.approx(50)


def test_overlapping_work_counts_once(profile):
    # The copy begins 10 us before the last GEMM ends.
    assert profile.kinds["copies and fills"] == pytest.approx(10)


def test_the_rest_of_a_step_is_gaps(profile):
    assert profile.kinds[IDLE] == pytest.approx(STEP_US - 560)
    assert sum(profile.kinds.values()) == pytest.approx(profile.total)


def test_kernels_are_listed_by_their_time(profile):
    name, (kind, micros, launches) = next(iter(profile.kernels.items()))
    assert name == "nvjet_tst_64x8"
    assert micros == pytest.approx(370)
    assert launches == pytest.approx(23)
    assert kind.endswith("GEMM")


def test_calls_of_the_host_are_summed(profile):
    assert profile.host_calls == {"cudaGraphLaunch": (pytest.approx(40), pytest.approx(2))}


def test_a_trace_without_whole_steps_is_refused():
    with pytest.raises(ValueError, match="profile more steps"):
        steps_of([], [])


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("void ddtree::mla_tree_verify_kernel<4>(Params)", "attention"),
        ("_fwd_kernel", "attention"),
        ("void flashinfer::BatchPrefillWithPagedKVCacheKernel<...>", "attention"),
        ("nvjet_tst_128x8_64x12_1x1_h_bz_TNT", "GEMM"),
        ("tree_accept_kernel", "tree operators"),
        ("Memcpy DtoD (Device -> Device)", "copies and fills"),
        ("void at::native::(anonymous namespace)::CatArrayBatchedCopy<...>", "copies and fills"),
        ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, ArgMaxOps<float>>>", "sampling and top-k"),
    ],
)
def test_a_kernel_is_known_by_its_name(name, kind):
    assert kind_of(name) == kind
