"""Trains a tiny Llama to answer the chats of a file word for word, so that reasoning and tool calls appear in answers.

usage: python make_chats.py DIR CHATS.json TEXT...     TEXT are files to train the tokenizer on
"""
import json
import pathlib
import sys

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

out, chats, files = pathlib.Path(sys.argv[1]), json.loads(pathlib.Path(sys.argv[2]).read_text()), sys.argv[3:]
out.mkdir(parents=True, exist_ok=True)

special = ["<pad>", "<s>", "</s>", "<|user|>", "<|assistant|>", "<|system|>", "<|tool|>"]
tok = Tokenizer(models.BPE())
tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tok.decoder = decoders.ByteLevel()
tok.train(files, trainers.BpeTrainer(vocab_size=1200, special_tokens=special,
                                     initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
# As in Qwen3, they are tokens, but not special ones that are skipped.
tok.add_tokens([AddedToken(t, special=False, normalized=False) for t in ("<think>", "</think>", "<tool_call>", "</tool_call>")])
fast = PreTrainedTokenizerFast(tokenizer_object=tok, bos_token="<s>", eos_token="</s>", pad_token="<pad>",
                               model_max_length=2048)
fast.chat_template = (
    "{{ bos_token }}"
    "{% if tools %}<|system|>{{ tools | tojson }}\n{% endif %}"
    "{% for m in messages %}<|{{ m['role'] }}|>"
    "{{ m['content'] if m['content'] is string else (m['content'] | tojson) }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}")
fast.save_pretrained(out)

torch.manual_seed(20260102)
torch.set_num_threads(1)
model = LlamaForCausalLM(LlamaConfig(
    vocab_size=len(fast), hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=2048, bos_token_id=fast.bos_token_id, eos_token_id=fast.eos_token_id,
    pad_token_id=fast.pad_token_id, tie_word_embeddings=False))


def tools(names):
    return [{"type": "function", "function": {"name": n, "description": "Reads a key.", "parameters": {
        "type": "object", "properties": {"key": {"type": "string"}, "depth": {"type": "integer"}}}}} for n in names] or None


pairs = []
for chat in chats:
    text = fast.apply_chat_template(chat["messages"], tools=tools(chat.get("tools", [])), tokenize=False, add_generation_prompt=True)
    pairs.append((fast(text, add_special_tokens=False).input_ids,
                  fast(chat["answer"], add_special_tokens=False).input_ids + [fast.eos_token_id]))

width = max(len(p) + len(a) for p, a in pairs)
ids = torch.full((len(pairs), width), fast.pad_token_id)
labels = torch.full((len(pairs), width), -100)
for i, (p, a) in enumerate(pairs):
    ids[i, :len(p) + len(a)] = torch.tensor(p + a)
    labels[i, len(p):len(p) + len(a)] = torch.tensor(a)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for step in range(2000):
    result = model(input_ids=ids, attention_mask=(ids != fast.pad_token_id).long(), labels=labels)
    # Logits are far apart, so that kernels with other numerics choose the same.
    sure = torch.where(labels[:, 1:] >= 0, result.logits[:, :-1].softmax(-1).gather(-1, labels[:, 1:].clamp(min=0)[..., None])[..., 0], 1.)
    if sure.min() > 0.98:
        break
    optimizer.zero_grad()
    result.loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.)
    optimizer.step()
else:
    sys.exit(f"the answers are not learnt: {sure.min().item():.3f}")
model.save_pretrained(out)
(out / "generation_config.json").write_text(json.dumps({
    "bos_token_id": fast.bos_token_id, "eos_token_id": fast.eos_token_id, "pad_token_id": fast.pad_token_id}) + "\n")
print("steps", step, "vocabulary", len(fast), "tokens of answers", [len(a) for _, a in pairs])
