"""Documents in lines.

Market ledgers, ship's logs, timetables, duty rosters, word lists, store rooms.
"""

from tiny_corpus.dice import Dice
from tiny_corpus.lexicon import (
    ANIMALS,
    CHORES,
    GOODS,
    NUMBERS,
    PEOPLE,
    PLACES,
    PLAIN,
    QUALITIES,
    ROOMS,
    THINGS,
    WEEK,
    WINDS,
    listing,
)


def ledger(dice: Dice) -> str:
    """Draw a price table, numbered sales at these prices, and the goods sold in order."""
    goods = dice.distinct(GOODS, dice.between(4, 6))
    prices = {good: dice.between(2, 99) for good in goods}
    people = dice.distinct(PEOPLE, dice.between(2, 4))
    lines = [
        f"Market of {dice.word(PLACES)}. Prices: "
        f"{', '.join(f'{good} {price}' for good, price in prices.items())}."
    ]
    sold = [dice.pick(goods) for _ in range(dice.between(6, 9))]
    for number, good in enumerate(sold, start=1):
        person = dice.pick(people)
        if dice.chance(0.5):
            lines.append(f"{number}. {person} bought {good} for {prices[good]}.")
        else:
            lines.append(f"{number}. {person} paid {prices[good]} for {good}.")
    lines.append(f"Sold: {listing(sold)}.")
    return "\n".join(lines)


def ships_log(dice: Dice) -> str:
    """Days at sea: the watch goes round, the water goes down by the same amount each day."""
    captain, *crew = dice.distinct(PEOPLE, dice.between(4, 5))
    ship = f"{dice.word(QUALITIES)} {dice.word(ANIMALS)}".title()
    home, goal = dice.distinct(PLACES, 2)
    water, daily = dice.between(40, 99), dice.between(1, 5)
    lines = [f"Log of the {ship}, {captain} master, from {home} to {goal}, with {listing(crew)}."]
    for day in range(1, dice.between(5, 8)):
        lines.append(
            f"Day {day}. Wind {dice.pick(WINDS)}. Water {water}. Watch: {', '.join(crew)}."
        )
        water -= daily
        crew = [*crew[1:], crew[0]]
        if dice.chance(0.4):
            lines.append(
                f"{dice.pick(crew)} told {captain} of "
                f"{dice.pick(('a sail', 'land', 'fog', 'ice', 'a whale', 'birds'))}."
            )
    lines.append(f"The {ship} lies in {goal}. {captain} thanks {listing(crew)}.")
    return "\n".join(lines)


def timetable(dice: Dice) -> str:
    """Draw stops with their hours, asked for afterwards, and the way back."""
    stops = dice.distinct(PLACES, dice.between(5, 7))
    hour = dice.between(1, 6)
    hours = {}
    for stop in stops:
        hours[stop] = hour
        hour += dice.between(1, 3)
    vehicle = dice.pick(("ferry", "coach", "mail cart", "night train", "barge"))
    driver = dice.word(PEOPLE)
    lines = [
        f"The {vehicle} of {driver}: "
        f"{', '.join(f'{stop} at {when}' for stop, when in hours.items())}."
    ]
    for _ in range(dice.between(4, 6)):
        start, end = sorted(dice.sample(range(len(stops)), 2))
        traveller = dice.word(PEOPLE)
        lines.append(
            f"{traveller} boards at {hours[stops[start]]} in {stops[start]} and leaves at "
            f"{hours[stops[end]]} in {stops[end]}."
        )
    lines.append(f"{driver} drives back: {', '.join(stops[::-1])}.")
    return "\n".join(lines)


def roster(dice: Dice) -> str:
    """Who does what on which day, and the same again the week after."""
    days = sorted(dice.sample(range(7), dice.between(4, 6)))
    people = dice.distinct(PEOPLE, dice.between(2, 4))
    duties = [f"{dice.pick(people)} {dice.word(CHORES)} the {dice.word(THINGS)}" for _ in days]
    lines = [f"Duties in {dice.word(PLACES)}."]
    lines += [f"{WEEK[day]}: {duty}." for day, duty in zip(days, duties, strict=True)]
    changed = dice.below(len(days))
    duties[changed] = f"{dice.pick(people)} {dice.word(CHORES)} the {dice.word(THINGS)}"
    lines.append(f"Next week, new on {WEEK[days[changed]]}:")
    lines += [f"{WEEK[day]}: {duty}." for day, duty in zip(days, duties, strict=True)]
    return "\n".join(lines)


def word_list(dice: Dice) -> str:
    """Foreign words with their meaning, then phrases with their translation."""
    meanings = dict(zip(dice.distinct(GOODS, 7), dice.distinct(PLAIN, 7), strict=True))
    lines = [f"Words of {dice.word(PLACES)}, told by {dice.word(PEOPLE)}."]
    lines.append(", ".join(f"{word} is {meaning}" for word, meaning in meanings.items()) + ".")
    for _ in range(dice.between(5, 8)):
        phrase = dice.sample(list(meanings), dice.between(3, 4))
        lines.append(f"{' '.join(phrase)}: {' '.join(meanings[word] for word in phrase)}.")
    return "\n".join(lines)


def store_room(dice: Dice) -> str:
    """Boxes with colours and contents, opened one after the other."""
    keeper = dice.word(PEOPLE)
    labels = dice.distinct(QUALITIES, dice.between(4, 6))
    contents = [f"{dice.pick(NUMBERS[2:])} {dice.word(GOODS)}" for _ in labels]
    lines = [
        f"In the {dice.word(ROOMS)} of {dice.word(PLACES)} {keeper} has {NUMBERS[len(labels)]} "
        f"boxes."
    ]
    lines += [
        f"The {label} box holds {content}." for label, content in zip(labels, contents, strict=True)
    ]
    for place in dice.shuffled(range(len(labels))):
        visitor = dice.word(PEOPLE)
        lines.append(f"{visitor} opens the {labels[place]} box and finds {contents[place]}.")
    lines.append(f"{keeper} counts: {listing(contents)}.")
    return " ".join(lines)
