"""The Modelfile with which Ollama runs a GGUF file."""

from collections.abc import Mapping, Sequence

from titanrun.components.tokenizers.chat_template import ChatTemplate
from titanrun.components.tokenizers.spec.named_templates import get_template_path
from titanrun.config.problems import ProblemsFound

CHATML = (
    "{{ if .System }}<|im_start|>system\n{{ .System }}<|im_end|>\n{{ end }}"
    "{{ if .Prompt }}<|im_start|>user\n{{ .Prompt }}<|im_end|>\n{{ end }}"
    "<|im_start|>assistant\n{{ .Response }}<|im_end|>\n"
)
HEADER = "<|start_header_id|>{}<|end_header_id|>\n\n"
LLAMA3 = (
    f"{{{{ if .System }}}}{HEADER.format('system')}{{{{ .System }}}}<|eot_id|>{{{{ end }}}}"
    f"{{{{ if .Prompt }}}}{HEADER.format('user')}{{{{ .Prompt }}}}<|eot_id|>{{{{ end }}}}"
    f"{HEADER.format('assistant')}{{{{ .Response }}}}<|eot_id|>"
)
GEMMA3 = (
    "<start_of_turn>user\n{{ if .System }}{{ .System }}\n\n{{ end }}{{ .Prompt }}<end_of_turn>\n"
    "<start_of_turn>model\n{{ .Response }}<end_of_turn>\n"
)
PHI3 = (
    "{{ if .System }}<|system|>\n{{ .System }}<|end|>\n{{ end }}"
    "{{ if .Prompt }}<|user|>\n{{ .Prompt }}<|end|>\n{{ end }}"
    "<|assistant|>\n{{ .Response }}<|end|>\n"
)
# of the templates that ship with titanrun, in Go's syntax; the runtime adds the begin-of-text token
GO_TEMPLATES: Mapping[str, str] = {
    "chatml": CHATML,
    "gemma3": GEMMA3,
    "llama3": LLAMA3,
    "phi3": PHI3,
    "qwen3": CHATML,
    "qwen3_instruct": CHATML,
}


SYSTEM = {"role": "system", "content": "Be short."}
USER = {"role": "user", "content": "Hello?"}
CONVERSATIONS = (
    (USER,),
    (SYSTEM, USER),
    (SYSTEM, USER, {"role": "assistant", "content": "Yes."}, {"role": "user", "content": "Go on."}),
)
"""Two templates are taken for equal if they write these alike."""
SPECIAL_TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


def build_modelfile(
    gguf_name: str, template: str | None, stops: Sequence[str], context: int
) -> str:
    """Return the text of a Modelfile beside the GGUF file.

    TEMPLATE is left out for a template that writes conversations otherwise than those that ship
    with titanrun.
    """
    lines = [f"FROM ./{gguf_name}", *(f'PARAMETER stop "{text}"' for text in stops)]
    lines += [f"PARAMETER num_ctx {context}"]
    found = None if template is None else find_go_template(template)
    return "\n".join([*lines, *([f'TEMPLATE """{found}"""'] if found else [])]) + "\n"


def find_go_template(template: str) -> str | None:
    """Return the equivalent of a template in Go's syntax, None for one that is not known."""
    texts = {name: get_template_path(name).read_text(encoding="utf-8") for name in GO_TEMPLATES}
    if template in texts.values():
        return GO_TEMPLATES[next(name for name in texts if texts[name] == template)]
    written = render_conversations(template)
    if written is None:
        return None
    return next(
        (GO_TEMPLATES[name] for name in texts if render_conversations(texts[name]) == written), None
    )


def render_conversations(template: str) -> list[str] | None:
    """Return the prompts that a template writes, None if it rejects one of the conversations."""
    compiled = ChatTemplate(template, SPECIAL_TOKENS, source="the template")
    try:
        return [compiled.render(turns, add_generation_prompt=True) for turns in CONVERSATIONS]
    except ProblemsFound:
        return None
