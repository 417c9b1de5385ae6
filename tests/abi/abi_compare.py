"""Compares the declarations of a header of ours with the vendor's: names, constants, layouts, prototypes.

Nothing is parsed out of the vendor's headers by us: a small program is generated from *our* header (which constants,
structures and fields it declares), compiled once against each header, and what the two print must be the same.
Prototypes are declared a second time after the vendor's, which a compiler refuses when they differ.
"""

import pathlib
import re
import subprocess

STUBS = {
    "GL/gl.h": "typedef unsigned int GLuint;\ntypedef unsigned int GLenum;\n",
    "EGL/egl.h": "typedef void *EGLStreamKHR;\ntypedef int EGLint;\ntypedef void *EGLImageKHR;\ntypedef void *EGLSyncKHR;\n",
    "EGL/eglext.h": "",
    "vdpau/vdpau.h": "typedef unsigned int VdpDevice;\ntypedef int VdpGetProcAddress();\n"
                     "typedef unsigned int VdpVideoSurface;\ntypedef unsigned int VdpOutputSurface;\n",
}
# Structures that the vendor defines inside another one, and so by no name that C++ sees outside.
TAGGED = {f"CUstreamMemOp{member[0].upper()}{member[1:]}Params": f"decltype(CUstreamBatchMemOpParams_v1::{member})"
          for member in ("waitValue", "writeValue", "flushRemoteWrites", "memoryBarrier", "atomicReduction")}
CUDA_HEADERS = ["vdpau/vdpau.h", "cuda.h", "cudaGL.h", "cudaEGL.h", "cudaVDPAU.h", "cudaProfiler.h"]


class Declarations:
    """What a header of ours declares: constants, macros, and {structure: [paths of its fields]}."""

    def __init__(self, *texts):
        self.constants, self.macros, self.structures = [], [], {}
        for text in texts:
            text = re.sub(r"//[^\n]*", "", text)
            self.macros += re.findall(r"^#define (\w+) +[^\n(]*\S", text, flags=re.M)
            self.macros += re.findall(r"^#define (\w+) \(\(", text, flags=re.M)
            self.macros += re.findall(r"^#define (\w+) \(-", text, flags=re.M)
            for body in re.findall(r"typedef enum \w+ \{(.*?)\}", text, flags=re.S):
                self.constants += re.findall(r"(\w+) = ", body)
            self._structures(text)
        self.macros = [m for m in dict.fromkeys(self.macros) if not m.startswith("SLUICE_")]

    def _structures(self, text):
        current, path = None, []
        for line in text.splitlines():
            line = line.strip()
            start = re.match(r"typedef (?:struct|union) (\w+) \{$", line)
            if start:
                current, path = start[1], []
                self.structures[current] = []
                pending = []
                continue
            if current is None:
                continue
            if re.match(r"(__extension__ )?(struct|union) \{$", line):
                path.append(len(pending))
                continue
            if line.startswith("}"):
                if not path:
                    self.structures[current] = pending
                    current = None
                    continue
                since = path.pop()
                name = re.match(r"\} ?(\w*)((?:\[\d+\])*);", line)
                if name[1]:
                    inner = pending[since:]
                    index = "[0]" * name[2].count("[")
                    pending = pending[:since] + [name[1]] + [f"{name[1]}{index}.{field}" for field in inner]
                continue
            pointer = re.search(r"\(\*(\w+)\)", line)
            field = pointer or re.search(r"(\w+)(?:\[\d+\])*;$", line)
            if field and " : " not in line:
                pending.append(field[1])

    def program(self, includes, header_text=None):
        """C++ source that prints one line per fact. With `header_text` (the vendor's), structures that it names by
        their tag alone get the plain name first."""
        out = [f'#include "{name}"\n' for name in includes]
        for structure in self.structures if header_text else ():
            if not re.search(rf"[\s}}]{structure}[;,]", header_text):
                out.append(f"using {structure} = {TAGGED[structure]};\n")
        out.append("#include <cstddef>\n#include <cstdio>\n#include <cstdint>\n"
                   "template <typename T> constexpr long long number(T value) {\n"
                   "  if constexpr (__is_enum(T)) return static_cast<long long>(value);\n"
                   "  else return (long long)value;\n}\n"
                   "static void show(const char *what, auto value) { std::printf(\"%s %lld\\n\", what, (long long)value); }\n"
                   "int main() {\n")
        out += [f'  show("{name}", number({name}));\n' for name in self.constants + self.macros]
        for structure, fields in self.structures.items():
            out.append(f'  show("sizeof {structure}", sizeof({structure}));\n')
            for field in fields:
                out.append(f'  show("{structure}.{field}", offsetof({structure}, {field}));\n')
                out.append(f'  show("sizeof {structure}.{field}", sizeof((({structure} *)0)->{field}));\n')
        out.append("}\n")
        return "".join(out)


def run(source, name, work, flags):
    """Compiles and runs `source`; returns (what it printed, the compiler's errors)."""
    path = work / f"{name}.cc"
    path.write_text(source)
    build = subprocess.run(["g++", "-std=c++20", "-w", "-fpermissive", *flags, str(path), "-o", str(work / name)],
                           capture_output=True, text=True)
    if build.returncode:
        return "", build.stderr
    return subprocess.run([str(work / name)], capture_output=True, text=True, check=True).stdout, ""


def compare_layout(declarations, ours, vendor, header_text, work):
    """Faults, as sentences. `ours` and `vendor`: (headers, compiler flags)."""
    printed = {}
    for side, (headers, flags) in {"ours": ours, "vendor": vendor}.items():
        printed[side], errors = run(
            declarations.program(headers, header_text if side == "vendor" else None), side, work, flags)
        if errors:
            return [f"{side} does not compile: " + line for line in errors.splitlines() if "error:" in line]
    faults = []
    for mine, theirs in zip(printed["ours"].splitlines(), printed["vendor"].splitlines()):
        if mine != theirs:
            faults.append(f"ours: {mine}, the published header: {theirs.split()[-1]}")
    return faults


def write_stubs(folder):
    for name, text in STUBS.items():
        path = pathlib.Path(folder) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def declared_names(headers, modes, pattern, flags, work):
    """Names that the vendor's headers declare under any of `modes` (lists of macro definitions)."""
    names = set()
    source = work / "names.cc"
    source.write_text("#include <cstddef>\n" + "".join(f'#include "{name}"\n' for name in headers))
    for mode in modes:
        text = subprocess.run(["g++", "-E", "-P", *mode, *flags, str(source)], capture_output=True, text=True,
                              check=True).stdout
        names |= set(re.findall(pattern, text))
    return names


def compare_names(table, declared, allowed_extra):
    faults = [f"{name}: declared by the published header, missing in the table" for name in sorted(declared - table)]
    faults += [f"{name}: in the table, not declared by the published header"
               for name in sorted(table - declared - allowed_extra)]
    return faults


def compare_prototypes(vendor_headers, prototypes, defines, flags, work):
    """Declares every prototype again after the vendor's; a difference is a compile error."""
    source = work / "prototypes.cc"
    source.write_text("#include <cstddef>\n" + "".join(f'#include "{name}"\n' for name in vendor_headers) +
                      f'#include "{prototypes}"\n')
    build = subprocess.run(["g++", "-std=c++20", "-fsyntax-only", "-w", *defines, *flags, str(source)],
                           capture_output=True, text=True)
    return [line for line in build.stderr.splitlines() if "error:" in line]
