"""Sentences in many languages with entities, as texts with spans and as words with tags."""

import itertools
import re

# For each language, sentences with placeholders for names, and lists of persons and places.
SENTENCES = {
    "english": (
        [
            "{PER} lives in {LOC}.",
            "#{LOC} isn't far, said {PER}'s aunt",
            "{PER} ❤️ #{LOC}!",
            "Anti-{LOC} talk: don't ask {PER}",
        ],
        ["Anna", "Bob Jones", "O'Neill", "Zoë"],
        ["Berlin", "New York", "Paris", "Rome"],
    ),
    "german": (
        [
            "Der {LOC}besuch von {PER} war kurz.",
            "{PER} fährt nach {LOC}.",
            "Im {LOC}er Zoo sah {PER} Affen",
            "Die {PER}straße in {LOC}",
        ],
        ["Goethe", "Anna Müller", "Schiller", "Beethoven"],
        ["Berlin", "Hamburg", "Köln", "Wien"],
    ),
    "french": (
        [
            "{PER} aime l'{LOC}.",
            "Qu'{PER} vienne d'{LOC} !",
            "{PER} est né à {LOC}",
            "L’{LOC} plaît à {PER}.",
        ],
        ["Émile", "Anne Dupont", "Inès", "Hugo"],
        ["Italie", "Espagne", "Angola", "Égypte"],
    ),
    "turkish": (
        [
            "{PER} {LOC}'da yaşıyor.",
            "{LOC}lılar {PER}i tanıyor",
            "{PER} {LOC}dan geldi.",
            "{LOC}da {PER}e sorduk",
        ],
        ["Ayşe", "Mehmet Öz", "Işıl", "Çağla"],
        ["İstanbul", "Ankara", "Bursa", "Muğla"],
    ),
    "finnish": (
        [
            "{PER} asuu {LOC}ssa.",
            "{LOC}sta tuli {PER}",
            "{PER}n talo on {LOC}ssa",
            "Tapasin {PER}n {LOC}lla.",
        ],
        ["Aino", "Väinö Lahti", "Ilona", "Eero"],
        ["Turku", "Espoo", "Pori", "Oulu"],
    ),
    "russian": (
        [
            "{PER} живёт в {LOC}е.",
            "{LOC}ский друг: {PER}",
            "У {PER}а дом в {LOC}е",
            "{LOC} и {PER}",
        ],
        ["Иван", "Пётр Ильич", "Антон", "Олег"],
        ["Лондон", "Псков", "Ростов", "Берлин"],
    ),
    "arabic": (
        ["يعيش {PER} في {LOC}.", "وصل {PER} ب{LOC}", "و{PER} يحب {LOC}", "سافر {PER} ل{LOC}."],
        ["أحمد", "سعيد علي", "مريم", "نور"],
        ["باريس", "دمشق", "بغداد", "تونس"],
    ),
    "korean": (
        [
            "{PER}는 {LOC}에 산다.",
            "{LOC}에서 {PER}가 왔다",
            "{PER}의 집은 {LOC}이다",
            "{LOC}과 {PER}",
        ],
        ["민수", "김 지수", "영희", "철수"],
        ["서울", "부산", "대구", "파리"],
    ),
    "chinese": (
        [
            "{PER}住在{LOC}。",
            "我和{PER}去{LOC}旅行",
            "{LOC}的{PER}先生很忙",
            "昨天{LOC}下雨，{PER}没来。",
        ],
        ["王小明", "李华", "张伟", "陈静"],
        ["北京", "上海", "纽约", "台北"],
    ),
    "japanese": (
        [
            "{PER}は{LOC}に住んでいます。",
            "{LOC}で{PER}さんに会った",
            "{PER}と{LOC}へ行く",
            "{LOC}の{PER}です。",
        ],
        ["田中", "山田花子", "ジョン", "さくら"],
        ["東京", "大阪", "パリ", "ロンドン"],
    ),
    "thai": (
        ["{PER}อยู่ที่{LOC}", "ฉันพบ{PER}ใน{LOC}", "{LOC}เป็นบ้านของ{PER}", "{PER}ชอบ{LOC}มาก"],
        ["สมชาย", "มาลี", "วิชัย", "นารี"],
        ["กรุงเทพ", "ปารีส", "ลอนดอน", "เชียงใหม่"],
    ),
    "khmer": (
        ["{PER}រស់នៅ{LOC}", "ខ្ញុំជួប{PER}នៅ{LOC}", "{LOC}ជាផ្ទះរបស់{PER}", "{PER}ចូលចិត្ត{LOC}"],
        ["សុខា", "ដារ៉ា", "ចាន់", "បូផា"],
        ["ភ្នំពេញ", "ប៉ារីស", "កំពត", "ឡុងដ៍"],
    ),
    "burmese": (
        ["{PER}သည်{LOC}တွင်နေသည်။", "{LOC}မှ{PER}လာသည်", "{PER}က{LOC}ကိုချစ်သည်", "{LOC}နှင့်{PER}"],
        ["မောင်မောင်", "အေးအေး", "လှလှ", "စုစု"],
        ["ရန်ကုန်", "မန္တလေး", "ပါရီ", "လန်ဒန်"],
    ),
}
LANGUAGES = list(SENTENCES)


def parts_of(language: str) -> list[list[tuple[str, str | None]]]:
    """Return sixteen sentences of a language, as lists of parts with their entity types."""
    frames, *names = SENTENCES[language]
    found = []
    for i, j in itertools.product(range(len(frames)), range(4)):
        given = dict(zip(("PER", "LOC"), (values[(i + j) % 4] for values in names), strict=True))
        parts = re.split(r"\{(PER|LOC)\}", frames[i])
        found.append([(given.get(part, part), part if part in given else None) for part in parts])
    return [[(text, kind) for text, kind in parts if text] for parts in found]


def with_spans(language: str) -> tuple[list[str], list[list[dict]]]:
    """Return the sentences as texts, with their spans."""
    texts, spans = [], []
    for parts in parts_of(language):
        ends = [*itertools.accumulate(len(text) for text, _ in parts)]
        texts.append("".join(text for text, _ in parts))
        spans.append(
            [
                {"start": end - len(text), "end": end, "label": kind}
                for (text, kind), end in zip(parts, ends, strict=True)
                if kind
            ]
        )
    return texts, spans


def with_tags(language: str) -> tuple[list[list[str]], list[list[str]]]:
    """Return the sentences as words with tags."""
    words, tags = [], []
    for parts in parts_of(language):
        row = [
            (word, f"{'I' if number else 'B'}-{kind}" if kind else "O")
            for text, kind in parts
            for number, word in enumerate(text.split())
        ]
        words.append([word for word, _ in row])
        tags.append([tag for _, tag in row])
    return words, tags
