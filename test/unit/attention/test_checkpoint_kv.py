# SPDX-License-Identifier: Apache-2.0
"""What ``--kv-cache-dtype auto`` stands for is read as SGLang's own quantisation classes read it."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import sglang  # noqa: F401  first, for the CPU engine
from sglang.srt.layers.attention.ddtree_sm120.checkpoint_kv import kv_cache_dtype_of
from sglang.srt.layers.quantization import get_quantization_config

FLOAT8 = {"type": "float", "num_bits": 8}
NVFP4 = {"quant_algo": "NVFP4", "group_size": 16, "ignore": []}
FP8 = {"quant_algo": "FP8", "ignore": []}
BLOCK_FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}

# What config.json says of the quantisation, by SGLang's name of the method.
CHECKPOINTS = [
    ("modelopt_fp4", NVFP4),
    ("modelopt_fp4", NVFP4 | {"kv_cache_quant_algo": "FP8"}),
    ("modelopt_fp4", NVFP4 | {"kv_cache_scheme": FLOAT8}),
    ("modelopt_fp4", NVFP4 | {"kv_cache_scheme": {"type": "float", "num_bits": 4}}),
    ("modelopt_fp4", NVFP4 | {"kv_cache_scheme": "fp8"}),
    ("modelopt_fp8", FP8),
    ("modelopt_fp8", FP8 | {"kv_cache_quant_algo": "FP8"}),
    ("modelopt_fp8", FP8 | {"kv_cache_scheme": FLOAT8}),
    ("fp8", BLOCK_FP8),
    ("fp8", BLOCK_FP8 | {"kv_cache_quant_algo": "FP8"}),
    ("fp8", BLOCK_FP8 | {"kv_cache_scheme": FLOAT8}),
]


def _model(method: str | None, section: dict, path: str = "owner/name") -> SimpleNamespace:
    return SimpleNamespace(quantization=method, hf_quant_config=section, model_path=path, revision=None)


@pytest.mark.parametrize("method,section", CHECKPOINTS)
def test_as_sglang_will_find_it(method, section):
    algorithm = get_quantization_config(method).from_config(dict(section)).kv_cache_quant_algo
    expected = "fp8_e4m3" if str(algorithm).upper() == "FP8" else "auto"
    assert kv_cache_dtype_of("auto", _model(method, section)) == expected


def test_both_answers_occur():
    assert {kv_cache_dtype_of("auto", _model(*checkpoint)) for checkpoint in CHECKPOINTS} == {"auto", "fp8_e4m3"}


@pytest.mark.parametrize("asked", ["bf16", "fp8_e5m2"])
def test_a_dtype_that_was_asked_for_stays(asked):
    assert kv_cache_dtype_of(asked, _model("modelopt_fp4", NVFP4 | {"kv_cache_quant_algo": "FP8"})) == asked


@pytest.mark.parametrize("method", [None, "compressed-tensors", "awq"])
def test_other_methods_keep_the_models_dtype(method):
    assert kv_cache_dtype_of("auto", _model(method, {"kv_cache_scheme": FLOAT8})) == "auto"


@pytest.mark.parametrize("algorithm,expected", [("FP8", "fp8_e4m3"), (None, "auto")])
def test_the_file_of_older_checkpoints(tmp_path, algorithm, expected):
    section = {"quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": algorithm}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(section))
    assert kv_cache_dtype_of("auto", _model("modelopt_fp4", {}, str(tmp_path))) == expected


@pytest.mark.parametrize("path", ["owner/name", "no/name/of/a/repository", "/absent"])
def test_a_file_that_is_not_here_is_not_fetched(monkeypatch, tmp_path, path):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert kv_cache_dtype_of("auto", _model("modelopt_fp4", {}, path)) == "auto"
