"""Makes a LoRA adapter with random weights for the model of make_model.py. The same versions make the same adapter.

usage: python make_lora.py DIR
"""
import json
import pathlib
import sys

import torch
from safetensors.torch import save_file

out = pathlib.Path(sys.argv[1])
out.mkdir(parents=True, exist_ok=True)
torch.manual_seed(7)
tensors = {}
for layer in range(2):
    for name, width in (("q_proj", 128), ("v_proj", 64)):
        at = f"base_model.model.model.layers.{layer}.self_attn.{name}"
        tensors[at + ".lora_A.weight"] = torch.randn(8, 128) * 0.3
        tensors[at + ".lora_B.weight"] = torch.randn(width, 8) * 0.3
save_file(tensors, out / "adapter_model.safetensors")
(out / "adapter_config.json").write_text(json.dumps({
    "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 8, "lora_alpha": 16, "lora_dropout": 0.0, "bias": "none",
    "target_modules": ["q_proj", "v_proj"], "base_model_name_or_path": "tiny", "inference_mode": True}))
