"""`tinygpt sample`: parse, check, load, generate, report."""

from __future__ import annotations

from pathlib import Path

import click

from tinygpt.cli.output import TextOutput, check_writable, note
from tinygpt.cli.sample.options import DEMO_PROMPT, build_options, sample_options
from tinygpt.cli.sample.prompt import Prompt, PromptSource, read_prompt, stdin_is_data
from tinygpt.cli.signals import Signals


@click.command(
    "sample",
    epilog="The order is: repetition penalty, top-k, top-p, min-p, temperature, draw. Each filter "
    "sees the model's own distribution over what the one before it kept; the temperature only "
    "reshapes what is left. 'unlimited' tokens need --streaming-llm-window to stay in memory.",
)
@click.argument("model", required=False, type=click.Path(path_type=Path))
@sample_options
@click.pass_context
def sample(context: click.Context, /, **_: object) -> int:
    """Generate text from MODEL, a .tinygpt or .gguf file.

    The text goes to stdout, the prompt first; everything else goes to stderr. Without MODEL, a
    small one of English novels that is a part of this program goes on from a prompt of its own.

    \b
    tinygpt sample
    tinygpt sample model.tinygpt --prompt "Once upon a time" --temperature 0
    tinygpt sample model.gguf --chat --prompt "Why is the sky blue?" --seed 7
    tinygpt sample model.gguf --kv-quantize int8 --streaming-llm-sink 4 \\
        --streaming-llm-window 256 --tokens unlimited < chapter.txt
    """
    from tinygpt.cli.device import use_device  # these bring in MLX, which --help can do without
    from tinygpt.cli.sample.run import Run
    from tinygpt.cli.sample.session import open_session

    options = build_options(context)
    signals = context.find_object(Signals) or Signals()
    if options.stats_json is not None:
        check_writable(options.stats_json, "--stats-json")
    output = TextOutput()
    say = (lambda line: None) if options.quiet else note
    prompt = read_prompt(options.source)
    if context.params["model"] is None and prompt == Prompt() and options.source == PromptSource():
        prompt = Prompt(text=DEMO_PROMPT)
        if stdin_is_data():
            say("stdin is empty: the text starts from the demo's own prompt")
    elif prompt == Prompt() and options.source == PromptSource() and stdin_is_data():
        say("stdin is empty: the text starts from nothing")
    use_device(options.device)
    session = open_session(options, prompt, say)
    return Run(options, session, output, say, signals).go(prompt)
