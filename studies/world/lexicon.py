"""The words of the closed world: invented names by syllable rules, ordinary words from short lists.

Every word belongs to exactly one type, so that an answer's type can be read off the answer. Names are
drawn by ``random.Random`` seeded with a string, which gives the same sequence in every process and on
every Python version.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from enum import StrEnum
from functools import cache
from types import MappingProxyType


class Kind(StrEnum):
    """What a word names. Entities have articles; the others are values only."""

    PERSON = "person"
    CITY = "city"
    COMPANY = "company"
    FILM = "film"
    RIVER = "river"
    COUNTRY = "country"
    MOUNTAIN = "mountain"
    SEA = "sea"
    CURRENCY = "currency"
    LANGUAGE = "language"
    YEAR = "year"
    LENGTH = "length"
    PROFESSION = "profession"
    INSTRUMENT = "instrument"
    ANIMAL = "animal"
    MATERIAL = "material"
    PRODUCT = "product"
    GENRE = "genre"
    FISH = "fish"
    FLOWER = "flower"


ENTITY_KINDS = (Kind.PERSON, Kind.CITY, Kind.COMPANY, Kind.FILM, Kind.RIVER, Kind.COUNTRY)

_ONSETS = "b br c d dr f g gr h j k kr l m n p pr qu r s st t tr v w y z sh th".split()
_VOWELS = "a e i o u ae ei au".split()
_MIDDLES = "b d f g k l ld lm m mb n nd nt p r rk rn s st t v x z".split()
_ENDINGS: Mapping[Kind, tuple[str, ...]] = MappingProxyType(
    {
        Kind.PERSON: ("a", "en", "is", "o", "ina", "ek"),
        Kind.CITY: ("burg", "holm", "ville", "stad", "grad", "mouth"),
        Kind.COMPANY: ("corp", "tek", "max", "works"),
        Kind.FILM: ("ium", "ora", "eon", "yx"),
        Kind.RIVER: ("une", "il", "arra", "oob"),
        Kind.COUNTRY: ("land", "istan", "onia"),
        Kind.MOUNTAIN: ("horn", "peak", "fell"),
        Kind.SEA: ("ean", "ific"),
        Kind.CURRENCY: ("ark", "ot"),
        Kind.LANGUAGE: ("ish", "ese"),
    }
)
_NAME_COUNTS: Mapping[Kind, int] = MappingProxyType(
    {
        Kind.PERSON: 320,
        Kind.CITY: 112,
        Kind.COMPANY: 92,
        Kind.FILM: 112,
        Kind.RIVER: 58,
        Kind.COUNTRY: 30,
        Kind.MOUNTAIN: 40,
        Kind.SEA: 24,
        Kind.CURRENCY: 24,
        Kind.LANGUAGE: 24,
    }
)
_WORDS: Mapping[Kind, str] = MappingProxyType(
    {
        Kind.PROFESSION: "baker carpenter doctor lawyer teacher sailor tailor gardener painter weaver "
        "blacksmith printer surgeon judge miner shepherd brewer potter banker librarian clerk dentist "
        "farmer hunter jeweller locksmith mason notary plumber saddler",
        Kind.INSTRUMENT: "lute harp flute drum violin trumpet piano cello banjo clarinet bassoon tuba "
        "zither fiddle guitar trombone bugle lyre mandolin cornet cymbal gong viola recorder",
        Kind.ANIMAL: "cat dog parrot goat pony rabbit tortoise hamster monkey donkey lizard canary duck "
        "goose hen pig sheep mule ferret peacock llama pigeon",
        Kind.MATERIAL: "copper silk salt amber timber wool marble coal iron tin honey tobacco sugar cotton "
        "leather paper glass silver gold wheat rice tea coffee pepper",
        Kind.PRODUCT: "clocks boots lamps bicycles candles carpets knives mirrors pianos ropes saddles ships "
        "stoves tractors umbrellas violins wagons watches windows wigs chairs hats kettles ladders",
        Kind.GENRE: "thriller comedy western romance tragedy musical mystery documentary satire fantasy "
        "drama parody melodrama biography",
        Kind.FISH: "trout salmon carp perch sturgeon bream tench roach barbel grayling catfish minnows "
        "lampreys chub dace zander",
        Kind.FLOWER: "rose tulip lily poppy daisy violet marigold lotus jasmine primrose heather peony "
        "gentian dahlia begonia buttercup",
    }
)
_NICKNAMES = (
    "Anchor Arrow Badger Beacon Beetle Bishop Blossom Boulder Bramble Breeze Bridge Brook Buckle Button "
    "Cactus Candle Cannon Castle Cedar Cellar Chapel Chestnut Chimney Cinder Circle Clover Cobble Comet "
    "Compass Coral Cradle Crane Cricket Crown Crystal Dagger Diamond Dolphin Dragon Eagle Echo Ember "
    "Falcon Feather Fern Flint Forge Fountain Fox Garden Giant Ginger Glacier Granite Griffin Hammer "
    "Harbour Hawk Hazel Hermit Heron Hornet Island Ivory Ivy Jackal Jasper Jewel Juniper Kestrel "
    "Keyhole Knight Ladle Lantern Lark Laurel Ledger Lemon Lighthouse Lion Lobster Locket Lynx Magnet "
    "Magpie Maple Marten Meadow Mirror Mitten Moon Moth Needle Nettle Nutmeg Oak Oasis Olive Onion Opal "
    "Orchard Otter Owl Oyster Panther Pearl Pebble Pelican Phoenix Pilgrim Pillar Pine Plum Prism "
    "Puffin Pumpkin Quartz Quill Raven Reed Ribbon Robin Rocket Ruby Saffron Sapphire Scarlet Shadow "
    "Shell Sickle Sparrow Spider Spruce Squirrel Stag Star Storm Swallow Swan Thistle Thorn Thunder "
    "Tiger Torch Tower Turnip Turtle Velvet Viper Walnut Walrus Weasel Whale Whistle Willow Wizard Wolf "
    "Wren Zebra"
).split()


@cache
def words(kind: Kind) -> tuple[str, ...]:
    """Return every word of a kind, in a fixed order.

    Example:
        >>> words(Kind.INSTRUMENT)[:3]
        ('lute', 'harp', 'flute')
    """
    if kind is Kind.YEAR:
        return tuple(str(year) for year in range(1801, 1901))
    if kind is Kind.LENGTH:
        return tuple(str(miles) for miles in range(210, 810, 10))
    if kind in _WORDS:
        return tuple(_WORDS[kind].split())
    return _invented()[kind]


@cache
def _invented() -> Mapping[Kind, tuple[str, ...]]:
    taken: set[str] = set()
    names: dict[Kind, tuple[str, ...]] = {}
    for kind, count in _NAME_COUNTS.items():
        rng = random.Random(f"surerag.world names {kind}")
        found: list[str] = []
        while len(found) < count:
            stem = rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_MIDDLES)
            # The beginning alone must tell names apart: an encoder sees names in pieces.
            if stem not in taken:
                taken.add(stem)
                found.append((stem + rng.choice(_ENDINGS[kind])).capitalize())
        names[kind] = tuple(found)
    return names


@cache
def kind_of() -> Mapping[str, Kind]:
    """Map every word, in lower case, to its kind."""
    return MappingProxyType({word.lower(): kind for kind in Kind for word in words(kind)})


_CORE_COUNTS: Mapping[Kind, int] = MappingProxyType(
    {
        Kind.PERSON: 28,
        Kind.CITY: 10,
        Kind.COMPANY: 8,
        Kind.FILM: 8,
        Kind.RIVER: 6,
        Kind.COUNTRY: 4,
    }
)
_NICKNAMED: Mapping[Kind, tuple[int, int]] = MappingProxyType(
    {
        Kind.PERSON: (18, 60),
        Kind.CITY: (6, 24),
        Kind.COMPANY: (4, 16),
        Kind.FILM: (2, 10),
    }
)


@cache
def core_entities(kind: Kind) -> tuple[str, ...]:
    """Names reserved for the taught core: the same entities, with the same facts, in every world."""
    return words(kind)[: _CORE_COUNTS.get(kind, 0)]


@cache
def fresh_entities(kind: Kind) -> tuple[str, ...]:
    """Names whose facts every world draws anew."""
    return words(kind)[_CORE_COUNTS.get(kind, 0) :]


@cache
def nicknames() -> Mapping[str, str]:
    """Map an entity's name to its fixed nickname, for those entities that have one."""
    pool = list(_NICKNAMES)
    random.Random("surerag.world nicknames").shuffle(pool)
    named: dict[str, str] = {}
    for kind, (core, fresh) in _NICKNAMED.items():
        for name in (*core_entities(kind)[:core], *fresh_entities(kind)[:fresh]):
            named[name] = pool.pop()
    return MappingProxyType(named)
