"""Makes a tiny Llama with random weights and a tokenizer of its own, so that nothing has to be downloaded. The same
versions make the same model.

usage: python make_model.py DIR TEXT...     TEXT are files to train the tokenizer on
"""
import json
import pathlib
import sys

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

out, files = pathlib.Path(sys.argv[1]), sys.argv[2:]
out.mkdir(parents=True, exist_ok=True)

special = ["<pad>", "<s>", "</s>", "<|user|>", "<|assistant|>", "<|system|>", "<|tool|>", "<tool_call>", "</tool_call>"]
tok = Tokenizer(models.BPE())
tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tok.decoder = decoders.ByteLevel()
tok.train(files, trainers.BpeTrainer(vocab_size=2000, special_tokens=special,
                                     initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
fast = PreTrainedTokenizerFast(tokenizer_object=tok, bos_token="<s>", eos_token="</s>", pad_token="<pad>",
                               model_max_length=2048)
fast.chat_template = (
    "{{ bos_token }}"
    "{% if tools %}<|system|>{{ tools | tojson }}\n{% endif %}"
    "{% for m in messages %}<|{{ m['role'] }}|>"
    "{{ m['content'] if m['content'] is string else (m['content'] | tojson) }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}")
fast.save_pretrained(out)

torch.manual_seed(20260101)
config = LlamaConfig(vocab_size=len(fast), hidden_size=128, intermediate_size=256, num_hidden_layers=2,
                     num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=2048,
                     bos_token_id=fast.bos_token_id, eos_token_id=fast.eos_token_id, pad_token_id=fast.pad_token_id,
                     tie_word_embeddings=False)
model = LlamaForCausalLM(config)
with torch.no_grad():  # weights larger than the default keep logits apart, so that greedy answers are stable
    for parameter in model.parameters():
        if parameter.dim() == 2:
            parameter.normal_(0, 0.12)
model.to(torch.float32).save_pretrained(out)
(out / "generation_config.json").write_text(json.dumps({
    "bos_token_id": fast.bos_token_id, "eos_token_id": fast.eos_token_id, "pad_token_id": fast.pad_token_id}) + "\n")
print("vocabulary", len(fast), "parameters", sum(p.numel() for p in model.parameters()))
