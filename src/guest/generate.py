#!/usr/bin/env python3
"""Writes the exports of the guest's two libraries: assembly entries, the version script and the stubs they link with.

Every name of the table becomes an exported function: a jump to its hook where hooks.inc lists one, else a jump through
a slot that is bound to the real driver's function at the first call. The lazy path saves every register that may carry
an argument (also rax, which counts vector registers of a variadic call), since the caller thinks it is calling the
function itself.
"""
import argparse
import os
import re

ENTRY_HOOKED = """\t.globl {name}
\t.type {name}, @function
\t.p2align 4
{name}:
\tendbr64
\tjmp hook_{name}
\t.size {name}, .-{name}
"""

ENTRY_FORWARDED = """\t.globl {name}
\t.type {name}, @function
\t.p2align 4
{name}:
\tendbr64
\tjmp *(sluice_export_slots + {offset})(%rip)
.Lbind_{index}:
\tendbr64
\tpushq ${index}
\tjmp .Lbind_common
\t.size {name}, .-{name}
"""

BIND_COMMON = """\t.p2align 4
.Lbind_common:
\tpushq %rdi
\tpushq %rsi
\tpushq %rdx
\tpushq %rcx
\tpushq %r8
\tpushq %r9
\tpushq %rax
\tsubq $136, %rsp
\tmovups %xmm0, 0(%rsp)
\tmovups %xmm1, 16(%rsp)
\tmovups %xmm2, 32(%rsp)
\tmovups %xmm3, 48(%rsp)
\tmovups %xmm4, 64(%rsp)
\tmovups %xmm5, 80(%rsp)
\tmovups %xmm6, 96(%rsp)
\tmovups %xmm7, 112(%rsp)
\tmovq 192(%rsp), %rdi
\tcall sluice_bind_export
\tmovq %rax, %r11
\tmovups 0(%rsp), %xmm0
\tmovups 16(%rsp), %xmm1
\tmovups 32(%rsp), %xmm2
\tmovups 48(%rsp), %xmm3
\tmovups 64(%rsp), %xmm4
\tmovups 80(%rsp), %xmm5
\tmovups 96(%rsp), %xmm6
\tmovups 112(%rsp), %xmm7
\taddq $136, %rsp
\tpopq %rax
\tpopq %r9
\tpopq %r8
\tpopq %rcx
\tpopq %rdx
\tpopq %rsi
\tpopq %rdi
\taddq $8, %rsp
\tjmp *%r11
"""


def names_of(table):
    with open(table, encoding="utf-8") as lines:
        return [line.split("\t")[0] for line in lines if line.strip() and not line.startswith("#")]


def hooks_of(path):
    with open(path, encoding="utf-8") as text:
        return re.findall(r"^SLUICE_(?:HOOK|REFUSE)\((\w+)", text.read(), re.M)


# What the driver calls these results, where the words are not those of the constant's name.
RESULT_TEXTS = {
    "CUDA_SUCCESS": "no error",
    "CUDA_ERROR_INVALID_VALUE": "invalid argument",
    "CUDA_ERROR_NOT_INITIALIZED": "initialization error",
    "CUDA_ERROR_NO_DEVICE": "no CUDA-capable device is detected",
    "CUDA_ERROR_INVALID_DEVICE": "invalid device ordinal",
    "CUDA_ERROR_SYSTEM_NOT_READY": "system not yet initialized",
    "CUDA_ERROR_UNKNOWN": "unknown error",
}


def result_names(enums):
    """SLUICE_RESULT(constant, "text") for every result of the enumeration CUresult."""
    with open(enums, encoding="utf-8") as text:
        body = re.search(r"typedef enum CUresult \{(.*?)\} CUresult;", text.read(), re.S).group(1)
    lines = ["// Written by src/guest/generate.py.\n"]
    for name in re.findall(r"(CUDA_\w+) =", body):
        words = RESULT_TEXTS.get(name, name.replace("CUDA_ERROR_", "").replace("_", " ").lower())
        lines.append(f'SLUICE_RESULT({name}, "{words}")\n')
    return "".join(lines)


def write(path, text):
    if os.path.exists(path):
        with open(path, encoding="utf-8") as old:
            if old.read() == text:
                return
    with open(path, "w", encoding="utf-8") as out:
        out.write(text)


def assembly(names, hooked):
    forwarded = [name for name in names if name not in hooked]
    out = ["# Written by src/guest/generate.py.\n\t.text\n"]
    for name in names:
        if name in hooked:
            out.append(ENTRY_HOOKED.format(name=name))
        else:
            index = forwarded.index(name)
            out.append(ENTRY_FORWARDED.format(name=name, index=index, offset=8 * index))
    out.append(BIND_COMMON)
    out.append("\t.data\n\t.p2align 6\n\t.globl sluice_export_slots\n\t.hidden sluice_export_slots\n")
    out.append("sluice_export_slots:\n")
    out += [f"\t.quad .Lbind_{index}\n" for index in range(len(forwarded))]
    out.append("\t.section .data.rel.ro,\"aw\"\n\t.p2align 3\n\t.globl sluice_export_names\n")
    out.append("\t.hidden sluice_export_names\nsluice_export_names:\n")
    out += [f"\t.quad .Lname_{index}\n" for index in range(len(forwarded))]
    out.append("\t.section .rodata.str,\"aMS\",@progbits,1\n")
    out += [f".Lname_{index}:\n\t.string \"{name}\"\n" for index, name in enumerate(forwarded)]
    out.append("\t.section .note.GNU-stack,\"\",@progbits\n")
    return "".join(out)


def version_script(names):
    return "{\n  global:\n" + "".join(f"    {name};\n" for name in names) + "  local: *;\n};\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", required=True, help="folder of cuda_names.tsv and nvml_names.tsv")
    parser.add_argument("--hooks", required=True, help="folder of hooks.inc and nvml_hooks.inc")
    parser.add_argument("--out", required=True)
    arguments = parser.parse_args()
    os.makedirs(arguments.out, exist_ok=True)
    for library, hooks_file in (("cuda", "hooks.inc"), ("nvml", "nvml_hooks.inc")):
        names = names_of(os.path.join(arguments.tables, f"{library}_names.tsv"))
        hooked = hooks_of(os.path.join(arguments.hooks, hooks_file))
        if library == "cuda":
            hooked += hooks_of(os.path.join(arguments.hooks, "refused.inc"))
        unknown = sorted(set(hooked) - set(names))
        if unknown:
            raise SystemExit(f"{hooks_file}: hooks for names that the table does not have: {', '.join(unknown)}")
        write(os.path.join(arguments.out, f"exports_{library}.S"), assembly(names, set(hooked)))
        write(os.path.join(arguments.out, f"exports_{library}.map"), version_script(names))
    write(os.path.join(arguments.out, "result_names.inc"), result_names(os.path.join(arguments.tables, "cuda_enums.h")))
    write(os.path.join(arguments.out, "stub.c"), "/* Written by src/guest/generate.py: a library without contents. */\n")


if __name__ == "__main__":
    main()
