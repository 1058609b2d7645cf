"""Writes what the container's binary is made of, as CycloneDX 1.6 in JSON.

The crates that are linked into it come from Cargo.lock by way of `cargo metadata`, with their hashes and licences. ONNX Runtime is
loaded at run time and comes from its lock. What the image's base and nginx are made of, the image knows: `syft IMAGE` lists that.
The same commit gives the same bytes.

usage: sbom.py FILE METADATA.json TREE.txt
"""

import json
import re
import subprocess
import sys
import tomllib
import uuid
from datetime import UTC, datetime
from pathlib import Path

from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import LicenseExpression
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

ROOT = Path(__file__).resolve().parents[1]


def expression(text):
    """Some crates still write the older MIT/Apache-2.0."""
    return [LicenseExpression(text.replace("/", " OR "))] if text else []


def linked(metadata, tree):
    """The identifiers of the crates that end up in the binary, each with those that it depends on."""
    there = {tuple(line.split()[:2]) for line in tree.splitlines() if line}
    packages = {package["id"]: (package["name"], f"v{package['version']}") for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    todo, found = [metadata["resolve"]["root"]], {}
    while todo:
        name = todo.pop()
        if name not in found:
            needed = [dep["pkg"] for dep in nodes[name]["deps"] if any(kind["kind"] is None for kind in dep["dep_kinds"])]
            needed = [one for one in needed if packages[one] in there]
            found[name] = needed
            todo += needed
    return found


def component(package, checksum, kind):
    hashes = [HashType(alg=HashAlgorithm.SHA_256, content=checksum)] if checksum else []
    # A crate of this repository is in no registry.
    purl = PackageURL("cargo", name=package["name"], version=package["version"]) if package["source"] else None
    return Component(
        type=kind,
        name=package["name"],
        version=package["version"],
        purl=purl,
        bom_ref=f"{package['name']}@{package['version']}",
        hashes=hashes,
        licenses=expression(package["license"]),
        description=package["description"],
    )


def commit_time():
    found = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True, check=False)
    return datetime.fromtimestamp(int(found.stdout.strip() or 0), UTC)


def bill(metadata, tree):
    locked = tomllib.loads((ROOT / "Cargo.lock").read_text())["package"]
    checksums = {(package["name"], package["version"]): package.get("checksum") for package in locked}
    packages = {package["id"]: package for package in metadata["packages"]}
    graph, root = linked(metadata, tree), metadata["resolve"]["root"]
    made = {}
    for name in graph:
        kind = ComponentType.APPLICATION if name == root else ComponentType.LIBRARY
        package = packages[name]
        made[name] = component(package, checksums.get((package["name"], package["version"])), kind)
    runtime = re.search(r"^onnxruntime==(\S+)", (ROOT / "tools/requirements/onnxruntime.txt").read_text(), re.M)[1]
    onnxruntime = Component(
        type=ComponentType.LIBRARY,
        name="onnxruntime",
        version=runtime,
        purl=PackageURL("pypi", name="onnxruntime", version=runtime),
        bom_ref=f"onnxruntime@{runtime}",
        licenses=expression("MIT"),
        description="ONNX Runtime; the shared library of its wheel is loaded at run time",
    )
    bom = Bom(components=[onnxruntime, *(one for name, one in made.items() if name != root)])
    bom.metadata.component, bom.metadata.timestamp = made[root], commit_time()
    names = sorted(f"{one.name}@{one.version}" for one in bom.components)
    bom.serial_number = uuid.uuid5(uuid.NAMESPACE_URL, " ".join([bom.metadata.timestamp.isoformat(), *names]))
    for name, needed in graph.items():
        bom.register_dependency(made[name], [made[one] for one in needed] + ([onnxruntime] if name == root else []))
    return bom


def main():
    path, metadata, tree = map(Path, sys.argv[1:])
    text = JsonV1Dot6(bill(json.loads(metadata.read_text()), tree.read_text())).output_as_string(indent=2)
    wrong = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    if wrong:
        sys.exit(f"sbom: this is no CycloneDX: {wrong}")
    path.write_text(text + "\n")


if __name__ == "__main__":
    main()
