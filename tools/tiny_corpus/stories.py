"""Documents in sentences: journeys, conversations, chain tales, villages, recipes, families."""

from tiny_corpus.dice import Dice
from tiny_corpus.lexicon import (
    ANIMALS,
    CHASES,
    FOODS,
    JOBS,
    LANDSCAPES,
    MATERIALS,
    NUMBERS,
    PEOPLE,
    PLACES,
    QUALITIES,
    ROOMS,
    THINGS,
    listing,
    plural,
    with_article,
)


def described(dice: Dice, thing: str) -> str:
    """Put a quality or a material in front of the thing."""
    return f"{dice.word(QUALITIES if dice.chance(0.6) else MATERIALS)} {thing}"


def journey(dice: Dice) -> str:
    """Tell how two travellers go away and come home the same way.

    They pack a sack, pass through places, and lose and trade things.
    """
    hero, friend = dice.distinct(PEOPLE, 2)
    route = dice.distinct(PLACES, dice.between(3, 5))
    sack = [described(dice, thing) for thing in dice.distinct(THINGS, dice.between(3, 5))]
    lines = [
        f"{hero} and {friend} left {route[0]} in "
        f"{dice.pick(('spring', 'summer', 'autumn', 'winter'))}."
    ]
    lines.append(f"They packed {listing([with_article(item) for item in sack])}.")
    for place in route[1:]:
        lines.append(f"{dice.pick(('Then', 'Next', 'Soon', 'Later'))} they came to {place}.")
        lines += [
            journey_event(dice, dice.shuffled((hero, friend)), sack)
            for _ in range(dice.between(1, 2))
        ]
    lines.append(f"They went home by {listing(route[-2::-1])}.")
    lines.append(f"{dice.pick((hero, friend))} opened the sack: {listing(sack)}.")
    return " ".join(lines)


def journey_event(dice: Dice, pair: list[str], sack: list[str]) -> str:
    """One thing that happens on the way; a trade changes the sack."""
    one, other = pair
    place = dice.below(len(sack))
    item = sack[place]
    kind = dice.below(5)
    if kind == 0:
        sack[place] = described(dice, dice.word(THINGS))
        return f"{one} traded the {item} for {with_article(sack[place])}."
    if kind == 1:
        stranger, job = dice.word(PEOPLE), dice.word(JOBS)
        return (
            f"{with_article(job).capitalize()} called {stranger} wanted the {item}, but {one} "
            f"kept it. {stranger} laughed at {other}."
        )
    if kind == 2:
        return f"{one} dropped the {item} near the {dice.word(LANDSCAPES)} and {other} found it."
    if kind == 3:
        return (
            f"{one} saw {with_article(dice.word(ANIMALS))} by the {dice.word(LANDSCAPES)}, and "
            f"{other} hid the {item}."
        )
    return f"{one} asked {other} for the {item}."


def conversation(dice: Dice) -> str:
    """One of two people says where things are, then they ask each other."""
    one, other = dice.distinct(PEOPLE, 2)
    things = dice.distinct(THINGS, dice.between(4, 6))
    where = {
        thing: f"the {room}"
        for thing, room in zip(things, dice.distinct(ROOMS, len(things)), strict=True)
    }
    lines = [f"{one}, new in {dice.word(PLACES)}, asks {other}."]
    lines.append(
        f"{other}: "
        + ", ".join(f"the {described(dice, thing)} is in {where[thing]}" for thing in things)
        + "."
    )
    for turn, thing in enumerate(dice.shuffled(things) + dice.sample(things, 2)):
        asking, answering = (one, other) if turn % 2 == 0 else (other, one)
        question = dice.pick(
            ("Where is the {}?", "Who has seen the {}?", "And the {}?", "I need the {}.")
        )
        answer = dice.pick(("Look in {}.", "In {}.", "It is in {}.", "I left it in {}."))
        lines.append(f"{asking}: {question.format(thing)}")
        lines.append(f"{answering}: {answer.format(where[thing])}")
    return "\n".join(lines)


def chain_tale(dice: Dice) -> str:
    """Tell a cumulative tale: each line adds a clause in front of all the clauses before."""
    owner = dice.word(PEOPLE)
    tail = f"the {described(dice, dice.word(THINGS))} of {owner}"
    lines = [f"Here is {tail}."]
    beasts = dice.distinct(ANIMALS, dice.between(4, 6))
    for beast, verb in zip(beasts, dice.distinct(CHASES, len(beasts)), strict=True):
        tail = f"the {dice.word(QUALITIES)} {beast} that {verb} {tail}"
        lines.append(f"Here is {tail}.")
    return "\n".join(lines)


def village(dice: Dice) -> str:
    """Who lives where with which trade and animal, and then what each of them did."""
    place = dice.word(PLACES)
    people = dice.distinct(PEOPLE, dice.between(4, 5))
    jobs = dice.distinct(JOBS, len(people))
    beasts = dice.distinct(ANIMALS, len(people))
    lines = [f"In {place} live {listing(people)}."]
    for person, job, beast in zip(people, jobs, beasts, strict=True):
        lines.append(f"{person} is the {job} and keeps {dice.pick(NUMBERS[2:])} {plural(beast)}.")
    for _ in range(dice.between(6, 9)):
        giver, taker = dice.sample(range(len(people)), 2)
        deed = dice.below(4)
        if deed == 0:
            lines.append(
                f"The {jobs[giver]}, who is {people[giver]}, met {people[taker]}, the "
                f"{jobs[taker]}."
            )
        elif deed == 1:
            lines.append(f"{people[giver]} sold the {plural(beasts[giver])} to {people[taker]}.")
            beasts[giver], beasts[taker] = beasts[taker], beasts[giver]
        elif deed == 2:
            lines.append(
                f"The {plural(beasts[giver])} of {people[giver]} ran to the "
                f"{dice.word(LANDSCAPES)}."
            )
        else:
            lines.append(
                f"{people[giver]} the {jobs[giver]} gave the {jobs[taker]} "
                f"{with_article(described(dice, dice.word(THINGS)))}."
            )
    return " ".join(lines)


def recipe(dice: Dice) -> str:
    """Ingredients with amounts, then a step for each of them."""
    foods = dice.distinct(FOODS, dice.between(5, 7))
    amounts = [dice.between(2, 12) for _ in foods]
    kind = dice.pick(("soup", "stew", "pie", "salad", "cake", "bread", "jam"))
    cook = dice.word(PEOPLE)
    lines = [f"{cook}'s {dice.word(PLACES)} {kind}", "Take:"]
    lines += [f"{amount} {plural(food)}" for amount, food in zip(amounts, foods, strict=True)]
    verbs = [
        dice.pick(
            ("Wash", "Chop", "Boil", "Peel", "Salt", "Fry", "Crush", "Grate", "Roast", "Slice")
        )
        for _ in foods
    ]
    for verb, amount, food in zip(verbs, amounts, foods, strict=True):
        lines.append(f"{verb} the {amount} {plural(food)}.")
    first, second = dice.sample(foods, 2)
    lines.append(
        f"{cook} says: more {plural(first)} than {plural(second)} in {with_article(kind)}."
    )
    lines.append(f"Buy again: {listing([plural(food) for food in foods])}.")
    return "\n".join(lines)


def family(dice: Dice) -> str:
    """Tell a line of descent, upwards and downwards."""
    line = dice.distinct(PEOPLE, dice.between(5, 7))
    homes = [dice.word(PLACES) for _ in line]
    lines = []
    for parent, child, home in zip(line, line[1:], homes[1:], strict=False):
        lines.append(f"{parent} had {child} the {dice.word(JOBS)} in {home}.")
    lines.append(f"So {', then '.join(line)}.")
    lines.append(f"Back again: {', '.join(line[::-1])}.")
    for place in dice.sample(range(1, len(line)), 3):
        lines.append(f"{line[place]}, child of {line[place - 1]}, lies in {homes[place]}.")
    return " ".join(lines)
