"""Replies that a model gives word by word."""

from itertools import islice

from titanrun.components.data.chat import conversations_in, template_of
from titanrun.components.data.config import ConversationsConfig
from titanrun.components.evaluation.config import ExactMatchTaskConfig
from titanrun.components.evaluation.subject import Numbers, Subject
from titanrun.components.tokenizers.chat_template import ChatTemplate, Message
from titanrun.components.tokenizers.tokenizer import ChatTokenizer
from titanrun.config.problems import fail


def measure_exact_match(config: ExactMatchTaskConfig, *, subject: Subject) -> Numbers:
    """The share of replies that are the same text, white space at the ends aside, and how many replies there were."""
    dataset, tokenizer = config.dataset, subject.tokenizer
    if not isinstance(dataset, ConversationsConfig):
        message = "exact_match asks for replies, and the dataset has no conversations"
        raise fail("data", message, path=("dataset",), help="name one that has")
    if not isinstance(tokenizer, ChatTokenizer):
        raise fail("data", "exact_match needs a tokenizer with a chat template", path=("dataset",))
    chat = dataset.as_chat()
    template = template_of(chat, tokenizer)
    conversations = islice(conversations_in(chat, scratch=subject.cache_folder), config.limit)
    asked = [
        pair
        for messages in conversations
        for pair in questions(messages, last_only=chat.train_on == "last_reply")
    ]
    prompts = [
        tokenizer.encode(template.render(before, with_reply_opened=True), bos=False, eos=False)
        for before, _ in asked
    ]
    ends = end_ids(template, tokenizer)
    given: list[list[int]] = []
    for start in range(0, len(prompts), subject.batch_size):
        part = prompts[start : start + subject.batch_size]
        given += subject.continued(part, max_new_tokens=config.max_new_tokens, end_ids=ends)
    right = sum(
        tokenizer.decode(ids).strip() == reply.strip()
        for ids, (_, reply) in zip(given, asked, strict=True)
    )
    return {"exact_match": right / max(1, len(asked)), "replies": len(asked)}


def questions(messages: list[Message], *, last_only: bool) -> list[tuple[list[Message], str]]:
    """What was said before each reply, and the reply; or only the last of them."""
    found = [
        (messages[:number], str(message["content"]))
        for number, message in enumerate(messages)
        if message["role"] == "assistant"
    ]
    return found[-1:] if last_only else found


def end_ids(template: ChatTemplate, tokenizer: ChatTokenizer) -> frozenset[int]:
    """The tokens that end a reply: the tokenizer's end-of-text token, and the one that the template puts right behind a reply."""
    found = set() if tokenizer.eos_id is None else {tokenizer.eos_id}
    reply = "xyzzy"
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": reply}]
    after = template.render(messages).rpartition(reply)[2]
    ids = tokenizer.encode(after, bos=False, eos=False)
    # a special token has no text of its own: anything else may stand within a reply as well
    if ids and not tokenizer.decode(ids[:1]):
        found.add(ids[0])
    return frozenset(found)
