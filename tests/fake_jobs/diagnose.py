"""A report."""

from tests.fake_jobs.stages import run


def stage(store, spec):
    prefix = f"campaigns/{spec['campaign']}/diagnose"
    store.put_bytes(f"{prefix}/report.md", ("# " + ", ".join(sorted(spec["inputs"]["results"]))).encode())
    store.put_bytes(f"{prefix}/figures/gap.png", b"png")
    findings = [{"name": "turns", "severity": "info", "text": "fine"}]
    return {
        "report": f"{prefix}/report.md",
        "figures": [f"{prefix}/figures/gap.png"],
        "verdict": "green",
        "findings": findings,
    }


if __name__ == "__main__":
    run(stage)
