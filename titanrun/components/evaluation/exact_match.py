"""Share of replies that a model generates verbatim."""

from itertools import islice

from titanrun.components.data.chat_config import ConversationsConfig
from titanrun.components.data.chat_dataset import iter_conversations
from titanrun.components.data.spec.chat_content import Message, join_parts
from titanrun.components.evaluation.config import ExactMatchTaskConfig
from titanrun.components.evaluation.eval_model import EvalModel, TaskMetrics
from titanrun.components.tokenizers.chat_template import ChatTemplate, load_chat_template
from titanrun.components.tokenizers.end_of_turn import find_end_ids
from titanrun.components.tokenizers.tokenizer_protocol import ChatTokenizer
from titanrun.config.problems import problem_error


def evaluate_exact_match(config: ExactMatchTaskConfig, *, eval_model: EvalModel) -> TaskMetrics:
    """Return the share of equal replies, ignoring outer white space, and their number."""
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
    conversations = islice(
        iter_conversations(chat, scratch=eval_model.cache_folder, holdout=holdout), config.limit
    )
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
    ends = find_end_ids(template, tokenizer)
    given: list[list[int]] = []
    for start in range(0, len(prompts), eval_model.batch_size):
        part = prompts[start : start + eval_model.batch_size]
        given += eval_model.generate_greedy(
            part, max_new_tokens=config.max_new_tokens, end_ids=ends
        )
    right = sum(
        tokenizer.decode(ids).strip() == reply.strip()
        for ids, (_, reply) in zip(given, asked, strict=True)
    )
    return {"exact_match": right / max(1, len(asked)), "replies": len(asked)}


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
