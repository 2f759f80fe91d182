"""The Modelfile with which Ollama runs a GGUF file."""

from collections.abc import Mapping, Sequence

from titanrun.components.tokenizers.spec.named_templates import get_template_path

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


def build_modelfile(
    gguf_name: str, template: str | None, stops: Sequence[str], context: int
) -> str:
    """Return the text of a Modelfile beside the GGUF file.

    TEMPLATE is left out for a template that does not ship with titanrun.
    """
    lines = [f"FROM ./{gguf_name}", *(f'PARAMETER stop "{text}"' for text in stops)]
    lines += [f"PARAMETER num_ctx {context}"]
    found = find_go_template(template)
    return "\n".join([*lines, *([f'TEMPLATE """{found}"""'] if found else [])]) + "\n"


def find_go_template(template: str | None) -> str | None:
    """Return the equivalent of a template in Go's syntax, None for one that is not known."""
    return next(
        (
            text
            for name, text in GO_TEMPLATES.items()
            if get_template_path(name).read_text(encoding="utf-8") == template
        ),
        None,
    )
