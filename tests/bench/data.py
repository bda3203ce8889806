"""The data that both sides train on: dense texts, and chats of mixed length as users have them."""

import json
import random

WORDS = """yard track signal engine freight wagon brake switch tunnel bridge station whistle lantern rail steam coal
crane depot ledger timetable coupling axle driver shunter platform cargo timber grain iron copper the a of and to in
under over before after slowly quickly morning evening first second third last north south river hill valley""".split()


def write_dense(path, rows, tokens):
    """Texts that each fill `tokens` tokens and more, so that no row has padding."""
    choose = random.Random(7)
    with open(path, "w", encoding="utf-8") as f:
        for _ in range(rows):
            f.write(json.dumps({"text": " ".join(choose.choices(WORDS, k=tokens + 64))}) + "\n")


def write_chats(path, rows):
    """Chats in the order in which they came up: most are short, a few long, so lengths are skewed to the right."""
    choose = random.Random(6)
    with open(path, "w", encoding="utf-8") as f:
        for _ in range(rows):
            # Log-normal. Of 64 rendered chats half have up to 105 tokens, a tenth more than 242, the longest 398.
            words = min(max(int(choose.lognormvariate(4.3, 0.9)), 8), 345)
            turns = 1 if words < 60 else choose.choice([1, 1, 2])
            f.write(json.dumps({"messages": chat(choose, words, turns)}) + "\n")


def chat(choose, words, turns):
    """About half of the words are answers, spread over the turns."""
    messages = []
    for _ in range(turns):
        asked = max(3, int(words / turns * choose.uniform(0.25, 0.65)))
        answered = max(3, words // turns - asked)
        messages.append({"role": "user", "content": sentence(choose, asked) + "?"})
        messages.append({"role": "assistant", "content": sentence(choose, answered) + "."})
    return messages


def sentence(choose, words):
    return " ".join(choose.choices(WORDS, k=words)).capitalize()
