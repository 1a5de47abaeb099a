"""Signs of faulty texts, as parts of a pattern for `re` and for RE2 alike.

Alone, since `look` and the checks of rows know them.
"""

# UTF-8 read as Latin-1 or Windows-1252 shows each letter beyond ASCII as a lead (by the number of its bytes) and
# _FOLLOW signs. Honest texts have some of these pairs, as in `NESCAFÉ®` or `Spaß“`: so a pair counts alone only
# for leads and signs that no text has side by side, and others only if two letters in a row are misread.
_FOLLOW = "[\u0080-\u00bf\u0152\u0153\u0160\u0161\u0178\u017d\u017e\u0192\u02c6\u02dc\u2013-\u203a\u20ac\u2122]"
_SELDOM = (
    "[\u0080-\u009f\u00a1-\u00a8\u00aa\u00ac\u00ad\u00af\u00b1\u00b4-\u00b8\u00bc-\u00bf"
    "\u0152\u0153\u0160\u0161\u0178\u017d\u017e\u0192\u02c6\u02dc\u201a\u201e\u2020\u2021\u2030\u2039\u203a\u20ac]"
)
MISREAD = "|".join(
    (
        f"[\u00c2\u00c3]{_FOLLOW}",  # Western European letters
        f"[\u00c4\u00c5]{_SELDOM}",  # Polish, Czech, Turkish
        f"(?:[\u00c4-\u00df]{_FOLLOW}){{2}}",  # Greek, Cyrillic, Hebrew, Arabic
        "\u00e2(?:\u20ac|\u201a\u00ac|\u201e\u00a2|\u0153)",  # dashes, quotes, the signs of euro and trade mark
        f"(?:[\u00e0-\u00ef]{_FOLLOW}{_FOLLOW}){{2}}",  # Chinese, Japanese, Korean, Indian scripts
        "\u00f0[\u0178\u009f]",  # emoji
        "[\u0080-\u0084\u0086-\u009f]",  # control characters that only misreading makes; U+0085 is a line break
        "(?:[\u0420\u0421][^\\s\u0420\u0421]){4}",  # Cyrillic read as Windows-1251
        "\u951f\u65a4\u62f7",  # replacement characters read as GBK
        "\ufffd",
    )
)
MARKUP = r"&(?:[a-zA-Z]{2,8}|#\d{1,6});|</?[a-zA-Z][^<>]{0,40}>"
