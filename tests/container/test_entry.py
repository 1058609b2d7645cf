"""What the container's entry point says and chooses before it serves; tests/deploy has more of it without an engine."""

from conftest import DEMO, IMAGE, Container, docker


def run(*options):
    found = docker("run", "--rm", "--network", "none", *options, IMAGE, "serve", check=False)
    return found.returncode, found.stderr


def test_read_only_without_a_place_to_write_to_says_what_is_missing():
    code, said = run("--read-only")
    assert code == 1 and "--tmpfs /tmp" in said and "mktemp" not in said


def test_two_models_are_an_error(tmp_path):
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    tmp_path.chmod(0o755)
    code, said = run("--volume", f"{tmp_path}:/opt/ml/model:ro")
    assert code == 1 and "has 2 models, and one is served: first second" in said


def test_only_unknown_variables_are_named():
    """The server's own help says which there are."""
    with Container(env={"FORETYPE_TYPO": "1", "FORETYPE_BEAMS": "8", "FORETYPE_LOG_FORMAT": "json"}) as container:
        container.healthy()
        warnings = [line for line in container.logs().splitlines() if "there is no variable" in line]
        assert len(warnings) == 1 and "FORETYPE_TYPO" in warnings[0]


def test_many_models_share_the_memory_that_there_is():
    with Container(model=None, env={"SAGEMAKER_MULTI_MODEL": "true"}, options=["--memory", "2g"]) as container:
        container.healthy()
        assert "models may take 1638 MiB together" in container.logs()
