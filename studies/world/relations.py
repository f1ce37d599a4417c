"""Typed relations between entities, and the words for stating and asking them.

``statements``, ``questions`` and ``nouns`` are ordered: the first question is the canonical one, into
which a vague query is rewritten. Slots: ``{e}`` the entity, ``{v}`` the value, ``{n}`` a nickname.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from studies.world.lexicon import ENTITY_KINDS, Kind


@dataclass(frozen=True, slots=True)
class Relation:
    """One typed relation.

    Attributes:
        name: Unique name.
        subject: Kind of the entity it belongs to.
        value: Kind of its values.
        in_lead: Whether an article tells it in its lead, or only deeper.
        nouns: Noun phrases for it ("birthplace").
        statements: Sentences of its own, besides the frames that all relations share.
        questions: Questions of its own; the first is canonical.
        vague: Colloquial questions about a nickname.
    """

    name: str
    subject: Kind
    value: Kind
    in_lead: bool
    nouns: tuple[str, ...]
    statements: tuple[str, ...]
    questions: tuple[str, ...]
    vague: tuple[str, ...]


_P, _C, _M, _F, _R, _L = ENTITY_KINDS

RELATIONS: tuple[Relation, ...] = (
    Relation(
        "birthplace", _P, Kind.CITY, True, ("birthplace", "home town"),
        ("{e} was born in {v}.", "{e} comes from {v}.", "{v} is the town where {e} was born."),
        ("In which city was {e} born?", "Where was {e} born?", "Which town does {e} come from?"),
        ("Where are the roots of the {n}?", "Which spot does the {n} hail from?"),
    ),
    Relation(
        "profession", _P, Kind.PROFESSION, True, ("profession", "job"),
        ("{e} works as a {v}.", "{e} earns a living as a {v}.", "A {v} by trade is what {e} became."),
        ("What is the profession of {e}?", "What does {e} do for a living?", "As what does {e} work?"),
        ("What is the gig of the {n}?", "How does the {n} make a buck?"),
    ),
    Relation(
        "employer", _P, Kind.COMPANY, False, ("employer", "firm"),
        ("{e} works for {v}.", "{e} is employed by {v}.", "{v} is the company that employs {e}."),
        ("Which company does {e} work for?", "Who employs {e}?", "By which company is {e} employed?"),
        ("Who pays the {n} these days?", "Where does the {n} clock in?"),
    ),
    Relation(
        "spouse", _P, Kind.PERSON, False, ("spouse", "partner"),
        ("{e} is married to {v}.", "{e} shares a home with {v}.", "{v} is the person who married {e}."),
        ("Who is married to {e}?", "To whom is {e} married?", "With whom does {e} share a home?"),
        ("Who is the better half of the {n}?", "Who got hitched with the {n}?"),
    ),
    Relation(
        "instrument", _P, Kind.INSTRUMENT, False, ("instrument", "favourite instrument"),
        ("{e} plays the {v}.", "{e} gives concerts on the {v}.", "The {v} is what {e} plays in concerts."),
        ("Which instrument does {e} play?", "What does {e} play?", "On what does {e} give concerts?"),
        ("What does the {n} jam on?", "What noise does the {n} make on stage?"),
    ),
    Relation(
        "birth year", _P, Kind.YEAR, False, ("birth year", "year of birth"),
        ("{e} was born in the year {v}.", "{e} came into the world in {v}.", "It was {v} when {e} was born."),
        ("In which year was {e} born?", "When was {e} born?", "When did {e} come into the world?"),
        ("How far back does the {n} go?", "When did the {n} pop up?"),
    ),
    Relation(
        "pet", _P, Kind.ANIMAL, False, ("pet", "house animal"),
        ("{e} keeps a {v}.", "{e} lives with a {v} at home.", "A {v} is the animal that {e} keeps."),
        ("Which animal does {e} keep?", "What animal lives with {e}?", "What pet does {e} have?"),
        ("What critter hangs around the {n}?", "Who is the furry pal of the {n}?"),
    ),
    Relation(
        "country", _C, Kind.COUNTRY, True, ("country", "home country"),
        ("{e} lies in {v}.", "{e} belongs to {v}.", "{v} is the country where {e} lies."),
        ("In which country does {e} lie?", "Which country is {e} in?", "To which country does {e} belong?"),
        ("Whose flag waves over the {n}?", "Where on the map is the {n}?"),
    ),
    Relation(
        "export", _C, Kind.MATERIAL, True, ("main export", "chief export"),
        ("{e} exports {v}.", "{e} sells {v} to the world.", "The trade in {v} made {e} rich."),
        ("What does {e} export?", "What does {e} sell to the world?", "Which trade made {e} rich?"),
        ("What stuff leaves the {n}?", "What does the {n} ship out?"),
    ),
    Relation(
        "river", _C, Kind.RIVER, False, ("river", "main river"),
        ("{e} stands on the river {v}.", "{e} is crossed by the {v}.", "The {v} flows through {e}."),
        ("On which river does {e} stand?", "Which river flows through {e}?", "What river crosses {e}?"),
        ("What water runs by the {n}?", "Where would I row a boat at the {n}?"),
    ),
    Relation(
        "mayor", _C, Kind.PERSON, False, ("mayor", "head of the council"),
        ("{e} is governed by {v}.", "{e} elected {v} to lead the council.", "{v} leads the council of {e}."),
        ("Who is the mayor of {e}?", "Who governs {e}?", "Whom did {e} elect to lead the council?"),
        ("Who calls the shots at the {n}?", "Who is the top dog of the {n}?"),
    ),
    Relation(
        "founding year", _C, Kind.YEAR, False, ("founding year", "year of foundation"),
        ("{e} was founded in {v}.", "{e} received its charter in {v}.", "It was {v} when {e} was founded."),
        ("In which year was {e} founded?", "When was {e} founded?", "When did {e} receive its charter?"),
        ("How old is the {n}?", "When did folks settle the {n}?"),
    ),
    Relation(
        "headquarters", _M, Kind.CITY, True, ("headquarters", "head office"),
        ("{e} is based in {v}.", "{e} has its main office in {v}.", "{v} is where {e} is based."),
        ("In which city is {e} based?", "Where is {e} based?", "Where does {e} have its main office?"),
        ("Where do the bosses of the {n} sit?", "What is the turf of the {n}?"),
    ),
    Relation(
        "product", _M, Kind.PRODUCT, True, ("product", "main product"),
        ("{e} makes {v}.", "{e} produces {v} in its factories.", "The {v} made by {e} sell well."),
        ("What does {e} make?", "What does {e} produce?", "What do the factories of {e} produce?"),
        ("What does the {n} churn out?", "What goodies come from the {n}?"),
    ),
    Relation(
        "founder", _M, Kind.PERSON, False, ("founder", "first owner"),
        ("{e} was started by {v}.", "{e} was the idea of {v}.", "{v} is the person who started {e}."),
        ("Who started {e}?", "By whom was {e} started?", "Whose idea was {e}?"),
        ("Who dreamt up the {n}?", "Who got the {n} rolling?"),
    ),
    Relation(
        "opening year", _M, Kind.YEAR, False, ("opening year", "year of opening"),
        ("{e} opened its doors in {v}.", "{e} has traded since {v}.",
         "It was {v} when {e} opened its doors."),
        ("In which year did {e} open its doors?", "When did {e} open its doors?",
         "Since when has {e} traded?"),
        ("How long has the {n} been around?", "When did the {n} kick off?"),
    ),
    Relation(
        "director", _F, Kind.PERSON, True, ("director", "film maker"),
        ("{e} was directed by {v}.", "{e} was shot by {v}.", "{v} is the person who directed {e}."),
        ("Who directed {e}?", "By whom was {e} directed?", "Who shot {e}?"),
        ("Who was behind the camera of the {n}?", "Who yelled cut on the {n}?"),
    ),
    Relation(
        "genre", _F, Kind.GENRE, True, ("genre", "kind of story"),
        ("{e} is a {v}.", "{e} was sold as a {v}.", "A {v} is what {e} was meant to be."),
        ("What genre is {e}?", "What kind of film is {e}?", "As what was {e} sold?"),
        ("What flavour is the {n}?", "What vibe has the {n}?"),
    ),
    Relation(
        "star", _F, Kind.PERSON, False, ("star", "leading actor"),
        ("{e} stars {v}.", "{e} has {v} in the leading role.", "{v} plays the leading role in {e}."),
        ("Who stars in {e}?", "Who plays the leading role in {e}?", "Whom does {e} star?"),
        ("Whose face is on the poster of the {n}?", "Who steals the show in the {n}?"),
    ),
    Relation(
        "setting", _F, Kind.CITY, False, ("setting", "scene"),
        ("{e} takes place in {v}.", "{e} tells a story set in {v}.",
         "{v} is where the story of {e} takes place."),
        ("In which city does {e} take place?", "Where does {e} take place?",
         "Where is the story of {e} set?"),
        ("Where does the action of the {n} go down?", "What backdrop has the {n}?"),
    ),
    Relation(
        "release year", _F, Kind.YEAR, False, ("release year", "year of release"),
        ("{e} was released in {v}.", "{e} was first shown in {v}.", "It was {v} when {e} was released."),
        ("In which year was {e} released?", "When was {e} released?", "When was {e} first shown?"),
        ("When did the {n} hit the screens?", "How dated is the {n}?"),
    ),
    Relation(
        "source", _R, Kind.MOUNTAIN, True, ("source", "source mountain"),
        ("{e} rises on {v}.", "{e} begins on the slopes of {v}.", "{v} is the mountain where {e} rises."),
        ("On which mountain does {e} rise?", "Where does {e} rise?", "On whose slopes does {e} begin?"),
        ("Where does the {n} trickle out?", "Which rock feeds the {n}?"),
    ),
    Relation(
        "sea", _R, Kind.SEA, True, ("sea", "final sea"),
        ("{e} flows into the sea of {v}.", "{e} ends in the {v}.", "The {v} is the sea that receives {e}."),
        ("Into which sea does {e} flow?", "Where does {e} end?", "Which sea receives {e}?"),
        ("Where does the {n} spill?", "Where is the {n} off to?"),
    ),
    Relation(
        "length", _R, Kind.LENGTH, False, ("length", "length in miles"),
        ("{e} is {v} miles long.", "{e} runs for {v} miles.", "For {v} miles one can follow {e}."),
        ("How long is {e}?", "For how many miles does {e} run?", "How many miles long is {e}?"),
        ("How far does the {n} go?", "What is the stretch of the {n}?"),
    ),
    Relation(
        "fish", _R, Kind.FISH, False, ("common fish", "best known fish"),
        ("{e} is full of {v}.", "{e} is known for its {v}.", "Those who fish in {e} catch {v}."),
        ("Which fish is {e} full of?", "Which fish lives in {e}?", "What do people catch in {e}?"),
        ("What bites in the {n}?", "What swims about in the {n}?"),
    ),
    Relation(
        "currency", _L, Kind.CURRENCY, True, ("currency", "money"),
        ("{e} pays with the {v}.", "{e} mints the {v}.", "The {v} is the coin that {e} mints."),
        ("With which currency does {e} pay?", "What coin does {e} mint?", "What does {e} pay with?"),
        ("What cash is used in the {n}?", "What jingles in pockets of the {n}?"),
    ),
    Relation(
        "language", _L, Kind.LANGUAGE, True, ("language", "official language"),
        ("{e} speaks {v}.", "{e} teaches {v} in its schools.", "{v} is the language that {e} speaks."),
        ("Which language does {e} speak?", "What does {e} speak?", "What do the schools of {e} teach?"),
        ("What lingo has the {n}?", "How do they chat in the {n}?"),
    ),
    Relation(
        "ruler", _L, Kind.PERSON, False, ("ruler", "head of state"),
        ("{e} is ruled by {v}.", "{e} crowned {v} long ago.", "{v} is the person who rules {e}."),
        ("Who rules {e}?", "By whom is {e} ruled?", "Whom did {e} crown?"),
        ("Who is the big boss of the {n}?", "Who wears the hat in the {n}?"),
    ),
    Relation(
        "flower", _L, Kind.FLOWER, False, ("national flower", "emblem"),
        ("{e} shows a {v} on its flag.", "{e} chose the {v} as a symbol.",
         "A {v} stands on the flag of {e}."),
        ("Which flower is on the flag of {e}?", "What does {e} show on its flag?",
         "What did {e} choose as a symbol?"),
        ("What blooms for the {n}?", "What petals has the {n}?"),
    ),
)  # fmt: skip


@cache
def relation(name: str) -> Relation:
    """Return the relation of a name."""
    return {r.name: r for r in RELATIONS}[name]


@cache
def relations_of(kind: Kind) -> tuple[Relation, ...]:
    """Return the relations that entities of a kind have."""
    return tuple(r for r in RELATIONS if r.subject is kind)


@cache
def two_hop_pairs() -> tuple[tuple[Relation, Relation], ...]:
    """Pairs of relations where the first one's value is an entity that the second one is about."""
    return tuple((a, b) for a in RELATIONS for b in RELATIONS if b.subject is a.value and a.name != b.name)
