"""The pre-tokenizers that `tokenizer.ggml.pre` names: rules that cut a text, one after another.

A rule cuts every piece that the rules before it left, matches from gaps. The rules are those of
the models' own tokenizer.json files where these have them, and llama.cpp's else.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Regex, pre_tokenizers

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_ENDS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_MARKS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+",
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*",
)
_SLASHED = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_ENDS}"
_PATTERN_WORDS = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"
    r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+"
)
_GPT4O_WORDS = "|".join(f"{cased}{_CONTRACTIONS}?" for cased in _CASED)
_CJK, _KANA = (
    "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
)
_CASED_LETTERS = (  # in escapes: editors that normalise would change some of them
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af"
    "\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1"
    "\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5"
    "\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a"
    "\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d"
    "\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3"
    "\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115"
    "\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149"
    "\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d"
    "\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06"
    "\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
    "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df"
    "\U0001e900-\U0001e943"
)

_GPT2 = (r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",)
_DIGITS_GPT2 = (r"\p{N}", *_GPT2)
_LLAMA3 = (rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}{{1,3}}|{_MARKS}|{_ENDS}",)
_QWEN2 = (rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}|{_MARKS}|{_ENDS}",)
_DEEPSEEK3 = (r"\p{N}{1,3}", _KANA, rf"{_PATTERN_WORDS}[\r\n]*|{_ENDS}")
_GPT4O = (rf"{_GPT4O_WORDS}|\p{{N}}{{1,3}}|{_SLASHED}",)
_BLOOM = (r" ?[^(\s|.,!?…。，、।۔،)]+",)
_BAILING = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+",
)
_DEFAULT = (r"[\p{P}\$\+<=>\^~\|]+", *_GPT2, r"\p{N}+", "[0-9][0-9][0-9]")

_RULES: dict[tuple[str, ...], tuple[str, ...]] = {
    ("default",): _DEFAULT,
    (
        *("gpt-2", "gpt2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling"),
        *("gigachat", "a.x-4.0", "mellum", "modern-bert", "exaone4"),
    ): _GPT2,
    (
        *("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"),
        "mellum2",
    ): _DIGITS_GPT2,
    (
        *("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0"),
        *("lfm2", "dbrx", "smaug-bpe", "glm4", "chatglm-bpe"),
    ): _LLAMA3,
    (
        *("qwen2", "deepseek-r1-qwen", "kormo", "megrez", "stablelm2", "hunyuan", "solar-open"),
        "grok-2",
    ): _QWEN2,
    ("qwen35",): (
        rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
        rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_ENDS}",
    ),
    ("deepseek-llm",): (
        r"[\r\n]",
        rf"\s?[{_CASED_LETTERS}]+",
        "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
        r"\s+$",
        _CJK,
        r"\p{N}+",
    ),
    ("deepseek-coder",): (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, r"\p{N}"),
    ("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"): _DEEPSEEK3,
    ("falcon",): (r"[\p{P}\$\+<=>\^~\|`]+", *_GPT2, "[0-9][0-9][0-9]"),
    ("bloom", "poro-chat", "gpt3-finnish"): _BLOOM,
    ("viking",): (*_BLOOM, r"\p{N}"),
    ("tekken",): (rf"{'|'.join(_CASED)}|\p{{N}}|{_SLASHED}",),
    ("gpt-4o", "llama4", "kanana2", "minimax-m2"): _GPT4O,
    ("chameleon",): (
        r"<sentinel:[0-9]+>",
        r"(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
        r"([\t\n]|    |  )",
        r"\p{N}",
        r"[\p{P}!-/:-@\[-`{-~]",
        *_GPT2,
    ),
    ("bailingmoe", "bailingmoe2", "llada-moe"): _BAILING,
    ("seed-coder",): (rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_ENDS}",),
    ("exaone-moe",): (
        rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
    ),
    ("laguna",): (r"[^\n]+|[\n]+", *_QWEN2),
    ("minicpm5",): (
        r"\p{N}{1,3}",
        rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}+|{_MARKS}|{_ENDS}",
    ),
}
_IGNORE_MERGES = {"tekken", "minicpm5"}
_LLAMA3_NAMES = {"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0"}
_LLAMA3_NAMES |= {"lfm2"}


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """How a text is cut, and what the name implies beside that.

    `ignore_merges`: a piece that is a token is taken whole. `adds_bos`: where the file is silent.
    """

    rules: tuple[str, ...]
    ignore_merges: bool = False
    adds_bos: bool = False

    def build(self) -> pre_tokenizers.PreTokenizer:
        """The rules, then bytes spelled by GPT-2's alphabet."""
        splits = [pre_tokenizers.Split(Regex(rule), "isolated") for rule in self.rules]
        spell = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([*splits, spell])


def _table() -> dict[str, PreTokenizer]:
    llama3 = _LLAMA3_NAMES
    return {
        name: PreTokenizer(
            rules,
            ignore_merges=name in llama3 | _IGNORE_MERGES,
            adds_bos=name in llama3 | {"tekken", "chameleon"},
        )
        for names, rules in _RULES.items()
        for name in names
    }


PRE_TOKENIZERS = _table()
