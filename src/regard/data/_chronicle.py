"""A village's diary, written by a small grammar: the longer part of the embedded text.

People keep their habits, animals and colors throughout, so that a model that reads it has something to learn beyond
the order of words.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

from regard.data._random import random_number

T = TypeVar("T")

DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
SEASONS = ("spring", "summer", "autumn", "winter")


@dataclass(frozen=True)
class Person:
    name: str
    subject: str
    owner: str
    work: str
    place: str
    animal: str
    thing: str
    day: str
    habit: str


PEOPLE = (
    Person(
        "Mara", "she", "her", "baked bread", "bakery", "grey cat", "brown coat", "Sunday", "looked out of the window"
    ),
    Person(
        "Tomas",
        "he",
        "his",
        "counted the boats",
        "lighthouse",
        "white dog",
        "long scarf",
        "Monday",
        "cleaned the glass",
    ),
    Person(
        "Ines",
        "she",
        "her",
        "taught the children",
        "school",
        "small owl",
        "green bicycle",
        "Wednesday",
        "collected stones",
    ),
    Person("Bertil", "he", "his", "built a boat", "yard", "old goat", "blue brush", "Saturday", "painted a boat blue"),
    Person(
        "Nora",
        "she",
        "her",
        "ground the corn",
        "mill",
        "brown horse",
        "yellow cart",
        "Tuesday",
        "brought flour to the bakery",
    ),
    Person(
        "Anton",
        "he",
        "his",
        "mended a clock",
        "workshop",
        "black crow",
        "black hat",
        "Thursday",
        "gave back what was mended",
    ),
)

WEATHER = {
    "spring": (("it rained", "wet"), ("the sun was shining", "warm"), ("there was fog over the river", "grey")),
    "summer": (("the sun was shining", "hot"), ("there was no wind", "quiet"), ("a storm came from the west", "loud")),
    "autumn": (("it rained", "wet"), ("the wind took the leaves", "loud"), ("there was fog over the sea", "grey")),
    "winter": (("it snowed", "white"), ("the river was frozen", "quiet"), ("the wind came from the north", "cold")),
}

FOOD = {"spring": "eggs", "summer": "berries", "autumn": "apples", "winter": "nuts"}
LOST = ("a key", "a glove", "a button", "a letter", "a spoon", "a ring")
FOUND_AT = ("under the bridge", "behind the mill", "on the beach", "at the gate", "in the harbor", "by the old oak")
WENT = ("to the harbor", "to the bridge", "to the beach", "to the market", "up the hill", "into the wood")
SMALL = ("two", "three", "four", "five", "six", "seven")


class _Dice:
    """Draws of one day, in order."""

    def __init__(self, seed: int, day: int) -> None:
        self.key, self.count = (seed, "chronicle", day), 0

    def pick(self, choices: tuple[T, ...]) -> T:
        self.count += 1
        return choices[random_number(len(choices), *self.key, self.count)]

    def two(self, choices: tuple[T, ...]) -> tuple[T, T]:
        first = self.pick(choices)
        return first, self.pick(tuple(choice for choice in choices if choice != first))


def chronicle(days: int, *, seed: int = 0) -> str:
    """The diary of a number of days, with a paragraph for each.

    >>> from regard.data._chronicle import chronicle
    >>> chronicle(1).split(" ")[:2]
    ['On', 'Monday']
    """
    return "\n\n".join(" ".join(_sentences(day, _Dice(seed, day))) for day in range(days))


def _sentences(day: int, dice: _Dice) -> Iterator[str]:
    weekday, season = DAYS[day % 7], SEASONS[day // 7 % 4]
    weather, feeling = dice.pick(WEATHER[season])
    yield dice.pick(
        (
            f"On {weekday} {weather}.",
            f"On {weekday} {weather}, and the whole village was {feeling}.",
            f"It was a {feeling} {weekday} in {season}, and {weather}.",
        )
    )
    for person in PEOPLE:
        if person.day == weekday:
            yield dice.pick(
                (
                    f"As on every {weekday}, {person.name} {person.habit}.",
                    f"{person.name} {person.habit}, because it was {weekday}.",
                )
            )
    one, other = dice.two(PEOPLE)
    yield from dice.pick((_at_work, _lost, _visit, _animals, _market))(one, other, season, dice)
    third, fourth = dice.two(PEOPLE)
    yield from dice.pick((_at_work, _lost, _visit, _animals))(third, fourth, season, dice)
    yield from dice.pick((_evening, _boats))(one, third, season, dice)


def _at_work(one: Person, other: Person, season: str, dice: _Dice) -> Iterator[str]:
    yield f"{one.name} {one.work} at the {one.place} and {other.name} {other.work} at the {other.place}."
    if "Mara" not in (one.name, other.name):
        yield f"At noon Mara sent them both {dice.pick(('bread', 'a cake', FOOD[season]))}."


def _lost(one: Person, other: Person, season: str, dice: _Dice) -> Iterator[str]:
    lost, place = dice.pick(LOST), dice.pick(FOUND_AT)
    yield f"{one.name} had lost {lost} and looked for it {place}."
    yield dice.pick(
        (
            f"In the end {other.name} found it in {other.owner} {other.place}, where nobody had looked.",
            f"{other.name}'s {other.animal} found it {dice.pick(FOUND_AT)}.",
            f"It was in the pocket of {one.owner} coat, and {other.name} laughed.",
        )
    )


def _visit(one: Person, other: Person, season: str, dice: _Dice) -> Iterator[str]:
    went = dice.pick(WENT)
    yield f"{one.name} went {went} with {one.owner} {one.thing} and met {other.name} there."
    yield dice.pick(
        (
            f"They talked about the {other.place} and ate {FOOD[season]}.",
            f"{other.name} had {other.owner} {other.animal} along, and {one.subject} was not afraid of it.",
            f"{one.subject.capitalize()} asked for {dice.pick(LOST)}, and {other.name} gave it without a word.",
        )
    )


def _animals(one: Person, other: Person, season: str, dice: _Dice) -> Iterator[str]:
    yield f"The {one.animal} of {one.name} followed the {other.animal} of {other.name} {dice.pick(WENT)}."
    yield dice.pick(
        (
            f"{one.name} waited at the {one.place} until {dice.pick(SMALL)}.",
            f"{other.name} called, but only the {one.animal} came.",
            "Both came home when they were hungry.",
        )
    )


def _market(one: Person, other: Person, season: str, dice: _Dice) -> Iterator[str]:
    price = dice.pick(SMALL)
    yield f"At the market {one.name} sold {dice.pick(SMALL)} baskets of {FOOD[season]} to {other.name}."
    yield f"The price was {price} coins, and when {other.subject} argued it was still {price} coins."


def _evening(one: Person, other: Person, season: str, dice: _Dice) -> Iterator[str]:
    yield dice.pick(
        (
            f"In the evening there was music at the {one.place}.",
            f"In the evening {other.name} sat by the fire with {other.owner} {other.animal}.",
            "In the evening the windows were bright until late.",
        )
    )


def _boats(one: Person, other: Person, season: str, dice: _Dice) -> Iterator[str]:
    count = dice.pick(SMALL)
    yield f"In the morning {count} boats went out, and in the evening Tomas counted {count}."
