"""`python -m components.planner`: which layouts of a model fit a device budget, and how to split it.

    python -m components.planner --model configs/t1-122b.yaml --gpus 64 --memory-gib 95
    python -m components.planner --model /models/Qwen3.5-35B-A3B --gpus 16 --memory-gib 80 --context 32768
    python -m components.planner --model configs/miniature.yaml

`--model` is a Hugging Face folder, its `config.json`, or a campaign. Without `--gpus`, a campaign is judged as it is
before it starts: its own layout against the GPUs that it names, or all of it against the memory of this machine.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from components.config import CampaignConfig, ModelConfig, load
from components.config.hugging_face import read_shape
from components.errors import ConfigError, LongshellError
from components.planner.balance import Split, balance
from components.planner.capacity import OVERHEAD_GIB, CapacityReport
from components.planner.require import assess
from components.planner.search import layouts
from components.planner.shape import ModelShape
from components.planner.table import describe, document, judgement, sentence, table

EXIT_OVER, EXIT_REFUSED = 1, 2


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the plan; 0 when something fits, 1 when nothing does, 2 when the question makes no sense."""
    arguments = _parser().parse_args(argv)
    try:
        if not Path(arguments.model).exists():
            raise ConfigError([f"--model: there is no {arguments.model}"], "planner")
        campaign = load(arguments.model) if Path(arguments.model).suffix in (".yaml", ".yml") else None
        if arguments.gpus is None:
            return _as_configured(campaign, as_json=arguments.json)
        model = campaign.model if campaign else read_shape(Path(arguments.model))
        return _devices(arguments, model, campaign)
    except LongshellError as error:
        print(error, file=sys.stderr)
        return EXIT_REFUSED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m components.planner", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", required=True, help="Hugging Face folder, config.json, or a campaign's YAML")
    parser.add_argument("--gpus", type=int, help="devices of the trainer; of everything, with --rollout and --update")
    parser.add_argument("--memory-gib", type=float, default=80.0, help="memory of one device (80)")
    parser.add_argument("--context", type=int, help="tokens of a micro-batch (the campaign's, or the model's longest)")
    parser.add_argument("--overhead-gib", type=float, default=OVERHEAD_GIB, help=f"b_0 of a device ({OVERHEAD_GIB:g})")
    parser.add_argument("--activation-bytes", type=float, help="α, bytes a token, when it was measured")
    parser.add_argument("--rollout", type=float, help="R of Eq 22: device-time that generates one step's batch")
    parser.add_argument("--update", type=float, help="C of Eq 22: device-time of one update, in the same unit")
    parser.add_argument("--sampler-gpus", type=int, default=8, help="devices of one sampler, for Eq 22 (8)")
    parser.add_argument("--json", action="store_true", help="one JSON object, in bytes, with every layout")
    return parser


def _as_configured(campaign: CampaignConfig | None, *, as_json: bool) -> int:
    if campaign is None:
        raise ConfigError(["--gpus is needed for a model; only a campaign says what it trains on"], "planner")
    report = assess(campaign)
    if not as_json:
        print(report.explain())
    else:
        print(json.dumps(judgement(report)))
    return 0 if report.fits else EXIT_OVER


def _devices(arguments: argparse.Namespace, model: ModelConfig, campaign: CampaignConfig | None) -> int:
    if (arguments.rollout is None) != (arguments.update is None):
        raise ConfigError(["--rollout and --update come together"], "planner")
    if arguments.gpus < 1:
        raise ConfigError([f"--gpus {arguments.gpus} is not a number of devices"], "planner")
    shape = ModelShape.of(model)
    tokens = arguments.context
    if tokens is None:
        tokens = campaign.trainer.micro_batch_tokens if campaign else model.max_position_embeddings

    def reports(devices: int) -> list[CapacityReport]:
        return layouts(
            shape,
            devices,
            tokens,
            memory_gib=arguments.memory_gib,
            overhead_gib=arguments.overhead_gib,
            activation_bytes_per_token=arguments.activation_bytes,
        )

    split: Split | None = None
    if arguments.rollout is not None:
        unit = arguments.sampler_gpus
        split = balance(
            arguments.rollout,
            arguments.update,
            arguments.gpus,
            sampling_unit=unit,
            training_unit=unit,
            admits=lambda training: reports(training)[0].fits,
        )
    found = reports(split.training if split else arguments.gpus)
    if arguments.json:
        print(json.dumps(document(shape, found, split)))
    else:
        training = f"{split.training if split else arguments.gpus} devices of {arguments.memory_gib:g} GiB"
        head = [
            describe(shape),
            *([sentence(split)] if split else []),
            f"{training} train {tokens:,} tokens; GiB each:",
        ]
        print("\n".join([*head, "", table(found)]))
    return 0 if found[0].fits else EXIT_OVER


if __name__ == "__main__":
    sys.exit(main())
