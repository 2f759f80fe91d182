"""Share of replies that a model generates verbatim."""

from collections import defaultdict
from collections.abc import Sequence
from itertools import islice

from titanrun.components.data.chat_config import ConversationsConfig
from titanrun.components.data.chat_dataset import iter_conversations
from titanrun.components.data.spec.chat_content import Message, join_parts
from titanrun.components.evaluation.config import ExactMatchTaskConfig
from titanrun.components.evaluation.eval_model import EvalModel, TaskMetrics
from titanrun.components.tokenizers.chat_template import ChatTemplate, load_chat_template
from titanrun.components.tokenizers.end_of_turn import find_end_ids
from titanrun.components.tokenizers.tokenizer_protocol import ChatTokenizer
from titanrun.config.pluralize import pluralize
from titanrun.config.problems import problem_error


def evaluate_exact_match(config: ExactMatchTaskConfig, *, eval_model: EvalModel) -> TaskMetrics:
    """Return the share of equal replies, ignoring outer white space, and their number.

    Also return how many are left out since their prompts fill the context of the model, if any.
    """
    dataset, holdout = config.dataset, None
    if dataset is None and eval_model.held_out is not None:
        dataset, holdout = eval_model.held_out
    tokenizer = eval_model.tokenizer
    if not isinstance(dataset, ConversationsConfig):
        message = "task exact_match needs a conversation dataset"
        raise problem_error(
            "data", message, path=("dataset",), hint="name a dataset with conversations"
        )
    if not isinstance(tokenizer, ChatTokenizer):
        raise problem_error(
            "data", "exact_match needs a tokenizer with a chat template", path=("dataset",)
        )
    chat = dataset.to_chat_config()
    template = load_chat_template(tokenizer)
    conversations = islice(iter_conversations(chat, holdout=holdout), config.limit)
    asked = [
        pair
        for conversation in conversations
        for pair in extract_reply_prompts(
            template.with_tools(conversation.tools),
            conversation.messages,
            is_last_only=chat.train_on == "last_reply",
        )
    ]
    prompts = [tokenizer.encode(text, add_bos=False, add_eos=False) for text, _ in asked]
    given = generate_replies(
        eval_model,
        prompts,
        max_new_tokens=config.max_new_tokens,
        end_ids=find_end_ids(template, tokenizer),
    )
    right = sum(
        tokenizer.decode(ids).strip() == asked[number][1].strip() for number, ids in given.items()
    )
    left_out = len(asked) - len(given)
    metrics = {"exact_match": right / max(1, len(given)), "replies": len(given)}
    return {**metrics, "left_out": left_out} if left_out else metrics


def generate_replies(
    eval_model: EvalModel,
    prompts: Sequence[list[int]],
    *,
    max_new_tokens: int,
    end_ids: frozenset[int],
) -> dict[int, list[int]]:
    """Return the replies to prompts by their numbers.

    A reply ends with the context of the model at the latest. Prompts that leave no room for one are
    left out.

    Raises:
        ProblemsFound: A data problem if all of them are.
    """
    by_limit = defaultdict[int, list[int]](list)
    for number, prompt in enumerate(prompts):
        by_limit[min(max_new_tokens, eval_model.max_seq_len - len(prompt))].append(number)
    found: dict[int, list[int]] = {}
    # with one limit for a batch, what a reply is does not depend on the others in the batch
    for limit, numbers in by_limit.items():
        for start in range(0, len(numbers) if limit > 0 else 0, eval_model.batch_size):
            part = numbers[start : start + eval_model.batch_size]
            replies = eval_model.generate_greedy(
                [prompts[number] for number in part], max_new_tokens=limit, end_ids=end_ids
            )
            found |= zip(part, replies, strict=True)
    if prompts and not found:
        longest = eval_model.max_seq_len
        raise problem_error(
            "data",
            f"no prompt leaves room for a reply: the model supports {pluralize(longest, 'token')}",
            path=("dataset",),
            hint="use shorter conversations, or a model with a longer context",
        )
    return found


def extract_reply_prompts(
    template: ChatTemplate, messages: list[Message], *, is_last_only: bool
) -> list[tuple[str, str]]:
    """Return the text before each reply, and the reply; or only those of the last one.

    Replies without text, which call a tool, are left out.
    """
    found = [
        (messages[:number], join_parts(message["content"]))
        for number, message in enumerate(messages)
        if message["role"] == "assistant" and message["content"]
    ]
    return [
        (template.render(before, add_generation_prompt=True), reply)
        for before, reply in (found[-1:] if is_last_only else found)
    ]
