"""The gateway's command line, where it cannot start. That it serves is tested with the clients."""

import sys

from components.gateway.__main__ import main


def test_what_cannot_be_served_is_said_in_one_line(tmp_path, monkeypatch, capsys):
    options = ["--sampler", "http://127.0.0.1:9", "--model", str(tmp_path), "--context", "100"]
    monkeypatch.setattr(sys, "argv", ["gateway", *options])
    assert main() == 2
    (tmp_path / "config.json").write_text(
        '{"vocab_size": 9, "num_experts": 2, "num_hidden_layers": 1, "num_experts_per_tok": 1, '
        '"max_position_embeddings": 100, "architectures": ["Qwen3MoeForCausalLM"]}'
    )
    assert main() == 2
    folder, sampler = capsys.readouterr().err.splitlines()
    assert str(tmp_path) in folder
    assert "127.0.0.1:9" in sampler
