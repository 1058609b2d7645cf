"""Writes classes that refuse every virtual function of TensorRT's implementation classes, by its name.

The simulator derives from them and overrides what the shim calls; a call that it doesn't know ends the process and says which.

usage: generate.py INCLUDE_DIR >refusing.h
"""

import pathlib
import re
import sys

# Of TensorRT-RTX only.
OPTIONAL = ["VRuntimeCache"]
CLASSES = [
    "VHostMemory", "VRuntime", "VCudaEngine", "VExecutionContext", "VRuntimeConfig", *OPTIONAL,
    "VBuilder", "VBuilderConfig", "VNetworkDefinition", "VOptimizationProfile",
]
FUNCTION = re.compile(r"virtual ([^;{}()]*?)(\w+)\(([^()]*)\)( const)?( noexcept)?\s*= 0;", re.DOTALL)

headers = pathlib.Path(sys.argv[1])
text = (headers / "NvInferImpl.h").read_text()
text = re.sub(r"//[^\n]*", "", text).replace("TRT_NODISCARD", "")
print("// Written by generate.py.\n#pragma once\n#include \"simulator.h\"")
print("#pragma GCC diagnostic ignored \"-Wunused-parameter\"\nnamespace simulator {\nusing namespace nvinfer1;")
for name in CLASSES:
    body = re.search(r"class %s : public VRoot\s*\{(.*?)\n\};" % name, text, re.DOTALL)
    if body is None and name in OPTIONAL:
        continue
    functions = FUNCTION.findall(body.group(1)) if body else []
    if len(functions) < 2 or len(functions) != body.group(1).count("virtual"):
        sys.exit(f"{name} in {headers} has {len(functions)} functions that this script can read; adapt it to the headers")
    print(f"struct Refusing{name} : apiv::{name} {{")
    for result, function, arguments, const, noexcept in functions:
        result, arguments = " ".join(result.split()), " ".join(arguments.split())
        print(f"    {result} {function}({arguments}){const}{noexcept} override {{ refuse(\"{name}::{function}\"); }}")
    print("};")
print("}  // namespace simulator")
