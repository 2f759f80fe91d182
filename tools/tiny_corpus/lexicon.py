"""The words of the tiny corpus.

Plain English ones are listed here; names and goods are built from syllables.
"""

from tiny_corpus.dice import Dice, Ranked


def rank(words: str) -> Ranked:
    """Split a text into words, the most frequent first."""
    return Ranked(tuple(words.split()))


# fixed, and apart from the seeds of the documents: the lexicon is the same for training and
# held-out text
LEXICON_SEED = 7001
# syllables also build English words and unfortunate ones
REFUSED = frozenset(
    (
        "cony",
        "cundeth",
        "gory",
        "gumy",
        "many",
        "muma",
        "nana",
        "pesteth",
        "pumak",
        "rustak",
        "wany",
    )
)

ONSETS = (
    "b",
    "br",
    "c",
    "d",
    "dr",
    "f",
    "g",
    "gr",
    "h",
    "j",
    "k",
    "l",
    "m",
    "n",
    "p",
    "r",
    "s",
    "st",
    "t",
    "th",
    "v",
    "w",
)
VOWELS = ("a", "e", "i", "o", "u", "a", "e", "o")
CODAS = ("l", "m", "n", "r", "v", "nd", "rn", "ld", "lv", "st")
PERSON_ENDINGS = ("a", "an", "el", "en", "ia", "in", "o", "or", "eth", "y")
PLACE_ENDINGS = ("by", "dale", "ford", "ham", "holm", "mere", "mouth", "ton", "wick", "wold")
GOODS_ENDINGS = ("ak", "et", "im", "ot", "ul", "esk", "arn")

THINGS = rank(
    """lantern rope net kettle basket knife blanket barrel hammer candle ladder mirror whistle
    bucket needle saddle compass drum ribbon bottle spoon key bell clock cloak hat boot glove
    ring coin map book letter pen brush broom chair table bench stool shelf box trunk sack purse
    jar bowl plate cup jug pot pan lid hook nail saw axe spade rake wheel cart sledge oar sail
    anchor flag kite ball top puppet flute horn harp fiddle lamp torch pipe bead button belt
    scarf shawl apron mask cane crutch crown shield spear bow tent pillow carpet curtain cradle
    cage collar leash bridle plough sickle sieve churn loom spindle thimble bolt hinge lock
    chain wire lens scale stamp ledger tile brick plank beam pole stake peg wedge lever pulley
    bellows"""
)
MATERIALS = rank(
    """copper iron oak silver wooden glass leather paper silk clay stone brass woollen ivory tin
    golden bone wicker velvet steel marble linen amber cedar"""
)
QUALITIES = rank(
    """old small red heavy blue broken long green new bright black plain painted white rusty light
    yellow narrow round borrowed grey folded cracked polished thin striped odd stolen dusty
    brown crooked empty spare"""
)
ANIMALS = rank(
    """dog cat horse goose goat hen fox bear hare mule pig owl crow duck sheep wolf mouse frog
    heron otter badger swan rat toad hawk bee snail deer lamb stork"""
)
JOBS = rank(
    """baker miller smith weaver fisher potter tailor doctor carpenter teacher sailor farmer
    shepherd hunter mason painter cooper tanner brewer clerk judge piper gardener glazier porter
    saddler printer barber dyer ferryman"""
)
FOODS = rank(
    """onion carrot leek turnip egg apple pear plum bean pea mushroom cabbage radish fig date lemon
    olive nut cherry potato tomato pepper clove beet parsnip peach sprout herring trout oyster"""
)
LANDSCAPES = rank(
    """river forest marsh hill bridge meadow cave harbour ruin orchard quarry mill
    well road tower beach island moor glen cliff"""
)
ROOMS = rank(
    """kitchen cellar barn attic stable garden hall pantry loft shed yard
    chapel tower study porch workshop parlour larder"""
)
CHASES = rank(
    """chased fed saw kicked followed bit found heard woke carried pushed led watched caught pulled
    washed called hid feared loved scared met helped taught stole saved sold"""
)
CHORES = rank(
    """mends cleans carries counts paints sells buys hides borrows draws tests weighs wraps
    polishes stacks fills guards sorts repairs lifts"""
)
PLAIN = rank(
    """river stone cold fire moon bread night water tree wind bird hand eye road snow sun rain salt
    fish star house child mother hill seed song door milk leaf wolf sea cloud root blood gold
    smoke ash grass ice sleep"""
)
WEEK = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
WINDS = ("north", "east", "south", "west")
NUMBERS = (
    "no",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
)


def build_words(dice: Dice, *, count: int, endings: tuple[str, ...]) -> tuple[str, ...]:
    """`count` different pronounceable words: onset, vowel, coda, ending."""
    words: dict[str, None] = {}
    while len(words) < count:
        word = dice.pick(ONSETS) + dice.pick(VOWELS) + dice.pick(CODAS) + dice.pick(endings)
        if word not in REFUSED:
            words[word] = None
    return tuple(words)


PEOPLE = Ranked(
    tuple(
        word.capitalize()
        for word in build_words(Dice(LEXICON_SEED), count=240, endings=PERSON_ENDINGS)
    )
)
PLACES = Ranked(
    tuple(
        word.capitalize()
        for word in build_words(Dice(LEXICON_SEED + 1), count=120, endings=PLACE_ENDINGS)
    )
)
GOODS = Ranked(build_words(Dice(LEXICON_SEED + 2), count=120, endings=GOODS_ENDINGS))


def with_article(phrase: str) -> str:
    """Put `a` or `an` in front of the phrase."""
    return f"{'an' if phrase[0] in 'aeiou' else 'a'} {phrase}"


def plural(noun: str) -> str:
    """Form the regular plural, and the few others that the lists hold."""
    others = {
        "goose": "geese",
        "mouse": "mice",
        "sheep": "sheep",
        "deer": "deer",
        "wolf": "wolves",
        "trout": "trout",
        "herring": "herring",
    }
    if noun in others:
        return others[noun]
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return f"{noun[:-1]}ies"
    return f"{noun}es" if noun.endswith(("s", "x", "sh", "ch", "potato", "tomato")) else f"{noun}s"


def listing(items: list[str]) -> str:
    """Join the items to a phrase: `x, y and z`."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"
