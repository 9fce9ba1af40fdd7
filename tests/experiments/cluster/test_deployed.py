"""What deploy/ray holds is read by those who will read it, and asks Coterie for what there is."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import typer
import yaml

from coterie.cli import app

FOLDER = Path(__file__).parents[3] / "deploy" / "ray"
JOB_KEYS = {
    "entrypoint",
    "submissionMode",
    "shutdownAfterJobFinishes",
    "ttlSecondsAfterFinished",
    "backoffLimit",
    "rayClusterSpec",
}
CLUSTER_KEYS = {"rayVersion", "authOptions", "headGroupSpec", "workerGroupSpecs"}
GROUP_KEYS = {"groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template"}


def understood(line: str) -> dict[str, Any]:
    """The options of a `coterie run`, read by the command line's own parser."""
    words = shlex.split(line)
    assert words[:2] == ["coterie", "run"]
    command: Any = typer.main.get_command(app)
    run = command.get_command(command.make_context("coterie", ["run"], resilient_parsing=True), "run")
    return dict(run.make_context("run", words[2:]).params)


def test_the_job_script_of_slurm() -> None:
    script = FOLDER / "slurm.sh"
    subprocess.run(["bash", "-n", str(script)], check=True)
    text = script.read_text()
    assert "export RAY_AUTH_MODE=token" in text
    assert all(
        line.startswith("#") for line in text[: text.rindex("#SBATCH")].splitlines()
    )  # or they are late
    found = [line.strip() for line in text.splitlines() if line.strip().startswith("coterie ")]
    begin = next(understood(line) for line in found if "--config" in line)
    assert begin["engine"] == "ray"
    assert any("--resume" in line and understood(line)["resume"] for line in found)


def test_the_manifest_of_kuberay() -> None:
    job = yaml.safe_load((FOLDER / "kuberay.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    assert job["spec"].keys() == JOB_KEYS
    assert understood(job["spec"]["entrypoint"])["engine"] == "ray"
    cluster = job["spec"]["rayClusterSpec"]
    assert cluster.keys() == CLUSTER_KEYS
    assert cluster["authOptions"] == {"mode": "token"}
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    for group in groups:
        assert group.keys() <= GROUP_KEYS
        (container,) = group["template"]["spec"]["containers"]
        assert all(isinstance(entry["value"], str) for entry in container["env"])
        assert {mount["name"] for mount in container["volumeMounts"]} == {
            volume["name"] for volume in group["template"]["spec"]["volumes"]
        }
        assert container["resources"].keys() == {"requests", "limits"}
    pins = (FOLDER.parents[1] / "constraints.txt").read_text()
    assert re.search(r"^ray==(.*)$", pins, re.MULTILINE)[1] == cluster["rayVersion"]  # type: ignore[index]
