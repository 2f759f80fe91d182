"""`titanrun completion`: shell completion scripts, which call `titanrun __complete`."""

import sys

from titanrun.cli.arguments import CommandParser

EXAMPLES = """  titanrun completion bash > ~/.local/share/bash-completion/completions/titanrun
  titanrun completion zsh > ~/.zfunc/_titanrun  with fpath+=~/.zfunc before compinit in ~/.zshrc
  titanrun completion fish > ~/.config/fish/completions/titanrun.fish"""

BASH_SCRIPT = r"""# bash completion for titanrun, written by: titanrun completion bash
_titanrun() {
    local word joined=() glue=0 index
    # bash splits words at = and :, titanrun does not
    for ((index = 1; index <= COMP_CWORD; index++)); do
        word=${COMP_WORDS[index]}
        if ((${#joined[@]})) && { ((glue)) || [[ $word == [=:]* ]]; }; then
            joined[${#joined[@]} - 1]+=$word
        else
            joined+=("$word")
        fi
        glue=0
        [[ $word == *[=:] ]] && glue=1
    done
    local current=${joined[${#joined[@]} - 1]} candidate
    local done_before=""
    [[ $COMP_WORDBREAKS == *[=:]* ]] && done_before=${current%"${current##*[=:]}"}
    COMPREPLY=()
    while IFS= read -r candidate; do
        COMPREPLY+=("${candidate#"$done_before"}")
    done < <("${COMP_WORDS[0]}" __complete "${joined[@]}" 2>/dev/null)
    if ((${#COMPREPLY[@]} == 1)) && [[ ${COMPREPLY[0]} == *[=./] ]]; then
        compopt -o nospace 2>/dev/null
    fi
    return 0
}
complete -F _titanrun titanrun
"""

ZSH_SCRIPT = r"""#compdef titanrun
# zsh completion for titanrun, written by: titanrun completion zsh
_titanrun() {
    local candidate
    for candidate in "${(@f)$("${words[1]}" __complete "${(@)words[2,CURRENT]}" 2>/dev/null)}"; do
        case $candidate in
            '') ;;
            *[=./]) compadd -S '' -- "$candidate" ;;
            *) compadd -- "$candidate" ;;
        esac
    done
}
if [[ $funcstack[1] == _titanrun ]]; then
    _titanrun "$@"
else
    compdef _titanrun titanrun
fi
"""

FISH_SCRIPT = r"""# fish completion for titanrun, written by: titanrun completion fish
function __titanrun_complete
    set -l before (commandline -opc)
    set -l current (commandline -ct)
    $before[1] __complete $before[2..-1] "$current" 2>/dev/null
end
complete -c titanrun -f -a '(__titanrun_complete)'
"""

SCRIPTS = {"bash": BASH_SCRIPT, "zsh": ZSH_SCRIPT, "fish": FISH_SCRIPT}


def run(arguments: list[str]) -> int:
    """Print the script of one shell."""
    parser = CommandParser("completion", "Print a completion script for your shell.", EXAMPLES)
    parser.add_argument("shell", choices=tuple(SCRIPTS))
    sys.stdout.write(SCRIPTS[parser.parse_args(arguments).shell])
    return 0
