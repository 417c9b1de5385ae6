"""The driver's names: what cuGetProcAddress answers against dlsym, and the dynamic symbols against our tables."""

import mmap
import struct

from building import SOURCE
from containers import Containers

SHT_DYNSYM, SHT_GNU_VERDEF = 11, 0x6FFFFFFD  # System V ABI; the LSB for symbol versions
# Data that a debugger looks for in the driver's own file, and the names of tools' interfaces: not programs' business.
NOT_FOR_US = ("cudbg", "_cudbg", "cuprof")


def dynamic_symbols(path):
    """(defined names, whether the file defines symbol versions) of a 64-bit little-endian ELF file."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data[:6] != b"\x7fELF\x02\x01":
            raise ValueError(f"{path} is no 64-bit ELF file")
        offset, = struct.unpack_from("<Q", data, 0x28)
        size, count = struct.unpack_from("<HH", data, 0x3A)
        sections = [struct.unpack_from("<IIQQQQIIQQ", data, offset + i * size) for i in range(count)]
        names = set()
        for section in sections:
            if section[1] != SHT_DYNSYM:
                continue
            strings = sections[section[6]]
            for at in range(section[4], section[4] + section[5], 24):
                name, _, _, index, _, _ = struct.unpack_from("<IBBHQQ", data, at)
                if index != 0:
                    start = strings[4] + name
                    names.add(data[start:data.find(b"\0", start)].decode())
        return names, any(section[1] == SHT_GNU_VERDEF for section in sections)


def table(file):
    lines = (SOURCE / "src" / "abi" / file).read_text(encoding="ascii").splitlines()
    return {line.split("\t")[0] for line in lines if not line.startswith("#")}


def check_dynsym(context):
    for library, path, file, prefix in (("libcuda", context.machine.cuda, "cuda_names.tsv", "cu"),
                                        ("libnvidia-ml", context.machine.nvml, "nvml_names.tsv", "nvml")):
        exported, versioned = dynamic_symbols(path)
        ours = table(file)
        calls = {name for name in exported if name.startswith(prefix) and not name.startswith(NOT_FOR_US)}
        unknown = sorted(calls - ours)
        context.results.judge("symbols", f"{library}: exported names that our table lacks", not unknown, len(unknown), "0",
                              ", ".join(unknown[:12]) + (" ..." if len(unknown) > 12 else ""))
        context.results.add("symbols", f"{library}: names of our table that this driver lacks", len(ours - calls), note=
                            f"{len(calls)} exported; symbol versions: {'yes' if versioned else 'no'}; "
                            f"for debuggers and tools: {sum(n.startswith(NOT_FOR_US) for n in exported)}")


def check_pointers(context):
    table_file = SOURCE / "src" / "abi" / "cuda_names.tsv"
    command = context.python_program("driver_program.py", "pointers", table_file)
    alone = context.answer("symbols", "cuGetProcAddress, the driver alone", context.run(command))
    if alone:
        context.results.judge(
            "symbols", "the driver's cuGetProcAddress gives dlsym's address", not alone["differ"] and alone["same"] > 300,
            f"{alone['same']} same, {len(alone['differ'])} differ", "0 differ, over 300 same",
            "; ".join(filter(None, [", ".join(alone["differ"][:8]), f"driver interface {alone['driver_version']}",
                                    f"only by dlsym {len(alone['only_symbol'])}, only by look-up {len(alone['only_look_up'])}"])))
    with Containers(context, a=(0, 0)) as node:
        guest = context.answer("symbols", "cuGetProcAddress, under the guest",
                               node.run("a", [*command, SOURCE / "src" / "guest" / "hooks.inc"]))
    if guest:
        context.results.judge("symbols", "the guest's cuGetProcAddress gives its hooks", not guest["not_hooked"] and guest["hooked"] > 150,
                              f"{guest['hooked']} of ours, {len(guest['not_hooked'])} not", "all of ours, over 150",
                              ", ".join(guest["not_hooked"][:8]))
        lost = sorted(set(guest["only_symbol"]) - set((alone or {}).get("only_symbol", [])))
        context.results.judge("symbols", "names that cuGetProcAddress knows only without the guest", not lost, len(lost), "0", ", ".join(lost[:8]))


CHECKS = {"symbols": [check_dynsym, check_pointers]}
