#!/usr/bin/env python3
"""Makes tiny GGUF files of every architecture and of two kinds of tokenizers, with what the reference reads in them.

    make_gguf_models.py FOLDER    as make_architectures.py, and gguf and llama-cpp-python; FOLDER is `gguf` beside it

The models are those of `architectures`, as far as the format can say what they are: Qwen2 without its window, Qwen3
with YaRN's usual ramp. Their logits are those of transformers, of the same weights in a folder. The tokens of a
SentencePiece tokenizer are llama.cpp's, those of a byte-level one transformers'.
"""
import json
import sys
from pathlib import Path

import gguf
import llama_cpp
import numpy as np
import tokenizers
import torch
import transformers

from make_architectures import LENGTHS, MODELS, VOCABULARY, base_model, batch, stored_type

LOGITS_AT = (0, 8, 45, LENGTHS[0] - 1)
PARTS = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
         "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
         "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
         "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
WHOLE = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
         "lm_head.weight": "output.weight"}

CORPUS = """The yard master waits for the night train; eleven wagons stand on track 42, three of them loaded with coal.
She writes: "Move the 3 wagons, then couple the engine." It isn't late, we'll be there before 10:45, I'm sure.
Die Lokomotive fährt über die Brücke, während der Wärter die Weiche stellt. Größe: 1.234,56 m.
Küçük istasyonda bekleyen yolcular çay içiyor; tren gecikti, ama kimse şikâyet etmiyor.
Поезд стоит на станции. 火车停在车站，旅客在等。 駅で待つ。
def couple(engine, wagons):
    for wagon in wagons:
        engine.load += wagon.weight  # in tons
    return engine
"""
TEXTS = ["", "Hello world", " Hello world", "  two spaces", "The yard master waits for the night train.",
         "It isn't late, we'll be there at 10:45!", "tab\tand\nnew\n\nlines\n", "   ", "1234567890 and 3.14159",
         "Größe über die Brücke", "Küçük çay ŞİKÂYET", "Поезд 火车停在车站 駅", "emoji \U0001F60A and \U0001F468‍\U0001F469",
         "é decomposed e\u0301", "def couple(engine):\n    return engine", "<0x41> is no byte", "a▁b", "x" * 30,
         "trailing space ", "mixed 中文and English，完"]


def permuted(weight, heads):
    """Rows of each head's halves interleaved, as files of `llama` want them."""
    return weight.reshape(heads, 2, -1, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def add_tensor(writer, name, value, kind):
    if kind == torch.bfloat16:
        data = value.to(kind).view(torch.uint8).numpy()
        writer.add_tensor(name, data, raw_dtype=gguf.GGMLQuantizationType.BF16)
    else:
        writer.add_tensor(name, value.to(kind).numpy())


def add_shape(writer, config):
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)


def add_rope(writer, config, model):
    rope = config.rope_parameters
    if rope["rope_type"] == "llama3":
        plain = 1.0 / rope["rope_theta"] ** (torch.arange(0, config.head_dim, 2) / config.head_dim)
        writer.add_tensor("rope_freqs.weight", (plain / model.model.rotary_emb.inv_freq).numpy())
    elif rope["rope_type"] == "yarn":
        usual = 0.1 * np.log(rope["factor"]) + 1.0
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        writer.add_rope_scaling_attn_factors(model.model.rotary_emb.attention_scaling / usual)
        writer.add_rope_scaling_yarn_beta_fast(rope.get("beta_fast") or 32)
        writer.add_rope_scaling_yarn_beta_slow(rope.get("beta_slow") or 1)


def write_model(path, name, config, data):
    """The file, and the logits of some tokens."""
    config.update({"vocab_size": VOCABULARY, "max_position_embeddings": 256, "use_cache": False, "rms_norm_eps": 1e-5,
                   "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0})
    if name == "qwen2":
        config.update({"use_sliding_window": False, "sliding_window": None,
                       "layer_types": ["full_attention"] * config.num_hidden_layers})
    if name == "qwen3":
        config.rope_parameters.pop("truncate")
    model = base_model(config)
    is_llama = name in ("llama", "mistral")
    writer = gguf.GGUFWriter(str(path), "llama" if is_llama else name)
    add_shape(writer, config)
    add_rope(writer, config, model)
    if name == "mistral":
        writer.add_sliding_window(config.sliding_window)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for key, value in model.state_dict().items():
        if key == "lm_head.weight" and config.tie_word_embeddings:
            continue
        if key in WHOLE:
            add_tensor(writer, WHOLE[key], value, stored_type(key))
            continue
        _, _, layer, module, kind = [*key.split(".")[:3], ".".join(key.split(".")[3:-1]), key.split(".")[-1]]
        if is_llama and module.split(".")[-1] in heads:
            value = permuted(value, heads[module.split(".")[-1]])
        add_tensor(writer, f"blk.{layer}.{PARTS[module]}.{kind}", value.contiguous(), stored_type(key))
    finish(writer)
    with torch.no_grad():
        logits = model(input_ids=data["input_ids"][:1]).logits[0]
    return [logits[at].tolist() for at in LOGITS_AT]


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_tokenizer(path, kind, pre, tokens, types, scores=None, merges=None, bos=None, eos=0, unknown=None):
    """A model of one narrow layer around a tokenizer."""
    writer = gguf.GGUFWriter(str(path), "llama")
    config = transformers.LlamaConfig(hidden_size=4, intermediate_size=4, num_hidden_layers=1, num_attention_heads=1,
                                      num_key_value_heads=1, vocab_size=len(tokens), tie_word_embeddings=True)
    add_shape(writer, config)
    writer.add_tokenizer_model(kind)
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    if scores:
        writer.add_token_scores(scores)
    if merges:
        writer.add_token_merges(merges)
    for id, add in ((bos, writer.add_bos_token_id), (eos, writer.add_eos_token_id), (unknown, writer.add_unk_token_id)):
        if id is not None:
            add(id)
    ones = lambda *shape: np.ones(shape, np.float16 if len(shape) > 1 else np.float32)
    writer.add_tensor("token_embd.weight", ones(len(tokens), 4))
    for part in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        writer.add_tensor(f"blk.0.{part}.weight", ones(4, 4))
    for norm in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"):
        writer.add_tensor(f"{norm}.weight", ones(4))
    finish(writer)


def sentencepiece(path):
    trained = tokenizers.Tokenizer(tokenizers.models.BPE())
    trained.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=420, show_progress=False, min_frequency=2)
    trained.train_from_iterator(CORPUS.splitlines(), trainer)
    vocab = sorted(trained.get_vocab(), key=trained.get_vocab().get)
    pieces = [piece for piece in vocab if len(piece) > 1] + [piece for piece in vocab if len(piece) == 1]
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)] + pieces
    types = [gguf.TokenType.UNKNOWN] + [gguf.TokenType.CONTROL] * 2 + [gguf.TokenType.BYTE] * 256
    scores = [0.0] * len(types) + [-float(rank) for rank in range(len(pieces))]
    types += [gguf.TokenType.NORMAL] * len(pieces)
    write_tokenizer(path, "llama", "default", tokens, types, scores=scores, bos=1, eos=2, unknown=0)
    model = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    return [{"text": text, "ids": model.tokenize(text.encode(), add_bos=False, special=False)} for text in TEXTS]


def byte_level(path):
    trained = tokenizers.Tokenizer(tokenizers.models.BPE())
    trained.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, show_progress=False)
    trained.train_from_iterator(CORPUS.splitlines(), trainer)
    model = json.loads(trained.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get) + ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    types = [gguf.TokenType.NORMAL] * (len(tokens) - 3) + [gguf.TokenType.CONTROL] * 3
    write_tokenizer(path, "gpt2", "qwen2", tokens, types, merges=[" ".join(pair) for pair in model["merges"]],
                    eos=len(tokens) - 1)
    reference = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    assert reference.backend_tokenizer.normalizer is None
    # The file does not say that Qwen's text is brought into NFC; its own tokenizer.json does.
    reference.backend_tokenizer.normalizer = tokenizers.normalizers.NFC()
    return [{"text": text, "ids": reference(text, add_special_tokens=False)["input_ids"]} for text in TEXTS]


def main():
    out = Path(sys.argv[1])
    torch.set_num_threads(1)
    data = batch()
    logits = {name: write_model(out / f"{name}.gguf", name, config, data) for name, config in MODELS.items()}
    tokens = {"sentencepiece": sentencepiece(out / "sentencepiece.gguf"), "qwen2": byte_level(out / "byte_level.gguf")}
    facts = {"logits_at": LOGITS_AT, "input_ids": data["input_ids"][0, :LENGTHS[0]].tolist(), "logits": logits}
    (out / "models.json").write_text(json.dumps(facts, separators=(",", ":")) + "\n")
    (out / "tokenizers.json").write_text(json.dumps(tokens, separators=(",", ":"), ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
