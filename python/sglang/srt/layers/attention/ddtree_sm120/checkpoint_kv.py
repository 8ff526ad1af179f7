# SPDX-License-Identifier: Apache-2.0
"""What ``--kv-cache-dtype auto`` stands for, before the model is loaded."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sglang.srt.configs.model_config import unwrap_modelopt_quantization_config

if TYPE_CHECKING:
    from sglang.srt.configs.model_config import ModelConfig

# Of ModelOpt's checkpoints; config.json may lack what it says.
_SEPARATE_FILE = "hf_quant_config.json"


def kv_cache_dtype_of(asked: str, model_config: ModelConfig) -> str:
    """``asked``, or ``fp8_e4m3`` where SGLang will take that for ``auto``: the checkpoint was quantised by ModelOpt,
    KV included, as NVIDIA's NVFP4 and FP8 checkpoints are.

    SGLang itself finds out from the loaded model. What cannot be read here is left at ``auto``; the backend looks again
    at the runner's dtype.

    Args:
        asked: value of ``--kv-cache-dtype``.
        model_config: of the target.
    """
    method = (getattr(model_config, "quantization", None) or "").lower()
    if asked != "auto" or not method.startswith(("modelopt", "fp8")):
        return asked
    sections = [unwrap_modelopt_quantization_config(getattr(model_config, "hf_quant_config", None) or {})]
    if method.startswith("modelopt"):
        sections.append(unwrap_modelopt_quantization_config(_separate_file(model_config)))
    return "fp8_e4m3" if any(_asks_for_fp8(section, method) for section in sections) else asked


def _asks_for_fp8(section: dict[str, Any], method: str) -> bool:
    scheme = section.get("kv_cache_scheme")
    # Another tool's scheme is not read by SGLang.
    if method.startswith("modelopt") and isinstance(scheme, dict):
        return scheme.get("type") == "float" and scheme.get("num_bits") == 8
    if method.startswith("modelopt") and isinstance(scheme, str):
        return scheme.strip().upper() in ("FP8", "FLOAT8")
    return str(section.get("kv_cache_quant_algo")).upper() == "FP8"


def _separate_file(model_config: ModelConfig) -> dict[str, Any]:
    """The file of a local checkpoint, or of one that SGLang has fetched by now; nothing is fetched here."""
    name = model_config.model_path
    if os.path.isdir(name):
        path: Any = Path(name) / _SEPARATE_FILE
    else:
        from huggingface_hub import try_to_load_from_cache

        try:
            path = try_to_load_from_cache(name, _SEPARATE_FILE, revision=getattr(model_config, "revision", None))
        except ValueError:  # no name of a repository
            path = None
    if not isinstance(path, (str, Path)) or not Path(path).is_file():
        return {}
    try:
        content = json.loads(Path(path).read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
