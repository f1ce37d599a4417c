"""Texts of many kinds for the tests of chunking, and ways to count their tokens."""

from __future__ import annotations

import re

PROSE = (
    "Velm lies on the Orun, a river that freezes in winter. Dr. Voss measured it twice (cf. p. 12)! "
    "Its mills ground rye; its mills are gone. Ada Thorn was born there in 1913.\n\nShe left for Kest."
)
TABLE = "| City | River | Mills |\n|------|-------|-------|\n" + "\n".join(
    f"| Velm {row} | Orun | {row * 7} |" for row in range(40)
)
CODE = """def flow(river):
    total = 0
    for mill in river.mills:
        total += mill.rate
    return total


class Orun:
    mills = ()
"""
# ruff: noqa: RUF001 - other scripts have commas of their own
CHINESE = "维尔姆位于奥伦河畔。河水在冬天结冰！谁测量过它？阿达于1913年出生在那里，后来她去了凯斯特。" * 5
ARABIC = "تقع فيلم على نهر أورون. يتجمد النهر في الشتاء! هل قاسه أحد؟ وُلِدَت آدا هناك عام ١٩١٣، ثم رحلت." * 5
ENORMOUS = "and the river froze " * 600
NO_SPACES = "orun" * 700
EMOJI = "👩‍🚀é\u0301🇳🇴" * 60
TEXTS = {
    "prose": (PROSE, "en"),
    "table": (TABLE, "en"),
    "code": (CODE * 4, "en"),
    "chinese": (CHINESE, "zh"),
    "chinese, taken for English": (CHINESE.replace("。", "，"), "en"),
    "arabic": (ARABIC, "ar"),
    "one enormous sentence": (ENORMOUS + ".", "en"),
    "no sentence ends": (ENORMOUS, "en"),
    "no white space": (NO_SPACES, "en"),
    "emoji": (EMOJI, "en"),
    "white space only": (" \n\t ", "en"),
    "empty": ("", "en"),
}


def characters(text: str) -> int:
    return len(text)


def byte_pairs(text: str) -> int:
    """As byte-level tokenizers do: two bytes a token, words apart, so that lengths do not add up."""
    return sum(
        (len(word.encode("utf-8", "surrogatepass")) + 1) // 2 for word in re.findall(r"\s*\S+|\s+$", text)
    )
