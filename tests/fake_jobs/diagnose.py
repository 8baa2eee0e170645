"""A report. The verdict after a leg is red where the campaign's name begins with `red`."""

from tests.fake_jobs.stages import run


def stage(store, spec):
    prefix, legs = f"campaigns/{spec['campaign']}/diagnose", spec["inputs"]["through"] is not None
    red = legs and spec["campaign"].startswith("red")
    store.put_bytes(f"{prefix}/report.md", ("# " + ", ".join(sorted(spec["inputs"]["results"]))).encode())
    store.put_bytes(f"{prefix}/figures/gap.png", b"png")
    store.put_bytes(f"{prefix}/report.html", b"<h1>report</h1>")
    findings = [{"name": "turns", "severity": "info", "text": "fine"}]
    return {
        "report": f"{prefix}/report.md",
        "page": f"{prefix}/report.html",
        "figures": [f"{prefix}/figures/gap.png"],
        "verdict": "red: planted" if red else "ok: fine",
        "severity": "red" if red else "ok",
        "findings": findings,
        "trajectories": [],
    }


if __name__ == "__main__":
    run(stage)
