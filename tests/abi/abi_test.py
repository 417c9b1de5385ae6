"""src/abi against the published headers: names, constants, layouts, prototypes; then faults that must be noticed."""

import os
import pathlib
import re
import sys
import tempfile

SOURCE = pathlib.Path(os.environ["SLUICE_SOURCE"])
GENERATED = pathlib.Path(os.environ["SLUICE_BUILD"]) / "generated"
sys.path[:0] = [str(SOURCE / "tests" / "abi"), str(SOURCE / "tests" / "clients"), str(SOURCE / "src" / "abi")]
sys.dont_write_bytecode = True

import abi_compare  # noqa: E402
import generate  # noqa: E402
import environment  # noqa: E402

ABI = SOURCE / "src" / "abi"
INTERNAL = ["-D__CUDA_API_VERSION_INTERNAL"]


def vendor_folder():
    packages = environment.ensure(SOURCE / "tests" / "abi" / "requirements.txt")
    return next(environment.site_packages(packages).glob("nvidia/cu13/include"))


def faults_of(abi, vendor, work):
    """All differences between the folder `abi` (ours, perhaps mutated) and the vendor's headers."""
    stubs = work / "stubs"
    abi_compare.write_stubs(stubs)
    ours_flags = [f"-I{abi.parent}"]
    flags = [f"-I{vendor}", f"-I{stubs}"]
    faults = []

    cuda = abi_compare.Declarations(*[(abi / name).read_text() for name in
                                      ("cuda.h", "cuda_enums.h", "cuda_flags.h", "cuda_structs.h")])
    nvml = abi_compare.Declarations(*[(abi / name).read_text() for name in
                                      ("nvml.h", "nvml_enums.h", "nvml_structs.h")])
    assert len(cuda.constants) > 650 and len(cuda.structures) > 70, "our headers were not understood"
    assert len(nvml.constants) > 250 and len(nvml.structures) > 55, "our headers were not understood"
    faults += abi_compare.compare_layout(cuda, (["abi/cuda.h"], ours_flags), (["cuda.h", "cudaProfiler.h"], flags + INTERNAL),
                                         (vendor / "cuda.h").read_text(), work)
    faults += abi_compare.compare_layout(nvml, (["abi/nvml.h"], ours_flags), (["nvml.h"], flags),
                                         (vendor / "nvml.h").read_text(), work)

    table = {row["name"] for row in generate.load_cuda(abi / "cuda_names.tsv")}
    modes = [[], INTERNAL, ["-DCUDA_API_PER_THREAD_DEFAULT_STREAM"]]
    declared = abi_compare.declared_names(abi_compare.CUDA_HEADERS, modes, r"CUresult\s+(cu[A-Z]\w+)\s*\(", flags, work)
    # Declared for Windows only, but part of the interface that programs ask a driver for.
    faults += abi_compare.compare_names(table, declared, {"cuWGLGetDevice"})
    versions = {}
    for name in ("cudaTypedefs.h", "cudaGLTypedefs.h", "cudaEGLTypedefs.h", "cudaVDPAUTypedefs.h",
                 "cudaProfilerTypedefs.h"):
        for base, since, stream in re.findall(r"PFN_(cu\w+?)_v(\d+)(?:_(ptds|ptsz))?\)", (vendor / name).read_text()):
            versions.setdefault((base, stream or "-"), set()).add(int(since))
    for row in generate.load_cuda(abi / "cuda_names.tsv"):
        known = versions.get((row["base"], row["stream"]), set())
        if row["since"] not in known and row["name"] not in ("cuWGLGetDevice", "cuGetProcAddress_v2_ptsz"):
            faults.append(f"{row['name']}: since {row['since']}, published: {sorted(known)}")

    rows = generate.load_nvml(abi / "nvml_names.tsv")
    declared = abi_compare.declared_names(["nvml.h"], [[], ["-DNVML_NO_UNVERSIONED_FUNC_DEFS"]],
                                          r"(?:nvmlReturn_t|char\*?)\s*\*?\s*(nvml[A-Z]\w+)\s*\(", flags, work)
    library_only = {row["name"] for row in rows if row["header"] == "library"}
    faults += abi_compare.compare_names({row["name"] for row in rows}, declared, library_only)

    for vendor_headers, library, load, defines in (
            (abi_compare.CUDA_HEADERS, "cuda", generate.load_cuda, INTERNAL),
            (["nvml.h"], "nvml", generate.load_nvml, ["-DNVML_NO_UNVERSIONED_FUNC_DEFS"])):
        path = work / f"{library}_prototypes.h"
        path.write_text(generate.prototypes(load(abi / f"{library}_names.tsv"), "", "", ""))
        faults += abi_compare.compare_prototypes(vendor_headers, path, defines, flags, work)
    return faults


# Each must be noticed: (file, what to replace, by what, words of the complaint).
MUTATIONS = [
    ("cuda_enums.h", r"CUDA_ERROR_OUT_OF_MEMORY = 2,", "CUDA_ERROR_OUT_OF_MEMORY = 3,", "CUDA_ERROR_OUT_OF_MEMORY"),
    ("cuda_structs.h", r"size_t srcXInBytes;", "unsigned int srcXInBytes;", "srcXInBytes"),
    ("nvml_structs.h", r"unsigned long long reserved;", "unsigned int reserved;", "nvmlMemory_v2_t"),
    ("cuda.h", r"CU_MEMHOSTALLOC_DEVICEMAP 0x02", "CU_MEMHOSTALLOC_DEVICEMAP 0x03", "CU_MEMHOSTALLOC_DEVICEMAP"),
    ("cuda_names.tsv", r"cuInit\tcuInit\t\d+.*\n", "", "cuInit"),
    ("cuda_names.tsv", r"cuMemGetInfo_v2\tcuMemGetInfo\t3020", "cuMemGetInfo_v2\tcuMemGetInfo\t3030", "cuMemGetInfo_v2"),
    ("cuda_names.tsv", r"typed\tCUdeviceptr \*, size_t\n", "typed\tCUdeviceptr *, unsigned int\n", "cuMemAlloc_v2"),
    ("nvml_names.tsv", r"nvmlShutdown\t", "nvmlShutDown\t", "nvmlShutdown"),
]


def main():
    vendor = vendor_folder()
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        faults = faults_of(ABI, vendor, work)
        for fault in faults:
            print(fault)
        if faults:
            sys.exit(f"{len(faults)} differences between src/abi and the published headers")
        for number, (name, pattern, replacement, complaint) in enumerate(MUTATIONS):
            copy = work / f"mutation{number}" / "abi"
            copy.mkdir(parents=True)
            for path in ABI.iterdir():
                if path.is_file():
                    (copy / path.name).write_text(path.read_text())
            text = (copy / name).read_text()
            mutated = re.sub(pattern, lambda _: replacement, text, count=1)
            assert mutated != text, f"mutation {number} changes nothing"
            (copy / name).write_text(mutated)
            noticed = faults_of(copy, vendor, work)
            if not any(complaint in fault for fault in noticed):
                sys.exit(f"{name}: replacing /{pattern}/ was not noticed; faults: {noticed[:5]}")
    print(f"names, constants, layouts and prototypes agree; all {len(MUTATIONS)} seeded faults were noticed")


if __name__ == "__main__":
    main()
