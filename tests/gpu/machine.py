"""The machine that is measured: its driver's files, its card by NVML, and a simulated card where that is what there is.

Python's standard library alone, 3.8 or newer.
"""

import ctypes
import json
import os
import pathlib
import subprocess
import sys

MIB = 1 << 20
GRAPHICS_UTIL, SM_UTIL = 1, 2  # NVML_GPM_METRIC_GRAPHICS_UTIL, _SM_UTIL


class Missing(Exception):
    """What a check needs is not on this machine; the text says what."""


def loaded_from(name):
    """The file that `dlopen(name)` gives to a program here, links resolved, asked in a process of its own."""
    code = ("import ctypes, sys\nctypes.CDLL(sys.argv[1])\n"
            "stem = sys.argv[1].split('.so')[0] + '.so'\n"
            "print(next(line.split(None, 5)[5] for line in open('/proc/self/maps') if stem in line.rsplit('/', 1)[-1]))")
    done = subprocess.run([sys.executable, "-c", code, name], capture_output=True, text=True)
    if done.returncode:
        raise Missing(f"{name}: {done.stderr.strip().splitlines()[-1] if done.stderr.strip() else 'cannot be loaded'}")
    return os.path.realpath(done.stdout.strip())


class Machine:
    """Attributes: cuda, nvml (files), simulated (bool), card (index), name, uuid, driver, memory_mib."""

    def __init__(self, card):
        self.card = card
        self.cuda = loaded_from("libcuda.so.1")
        self.nvml = loaded_from("libnvidia-ml.so.1")
        self.simulated = bool(os.environ.get("SLUICE_SIM_DIR"))
        self.api = ctypes.CDLL(self.nvml)
        self.call("nvmlInit_v2")
        self.device = ctypes.c_void_p()
        self.call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(card), ctypes.byref(self.device))
        self.name = self.text("nvmlDeviceGetName", self.device)
        self.uuid = self.text("nvmlDeviceGetUUID", self.device)
        self.driver = self.text("nvmlSystemGetDriverVersion")
        self.memory_mib = self.memory()["total"] // MIB
        self.gpm_works = None

    def call(self, name, *arguments):
        function = getattr(self.api, name, None)
        if function is None:
            raise Missing(f"libnvidia-ml has no {name}")
        code = function(*arguments)
        if code:
            raise Missing(f"{name} answers {code}")

    def text(self, name, *handle):
        buffer = ctypes.create_string_buffer(128)
        self.call(name, *handle, buffer, ctypes.c_uint(len(buffer)))
        return buffer.value.decode()

    def memory(self):
        """Bytes of the card by nvmlDeviceGetMemoryInfo."""
        figures = (ctypes.c_ulonglong * 3)()
        self.call("nvmlDeviceGetMemoryInfo", self.device, figures)
        return {"total": figures[0], "free": figures[1], "used": figures[2]}

    def process_bytes(self, pid):
        """What NVML says that a process holds; None when it does not list the process or does not say."""
        class Process(ctypes.Structure):
            _fields_ = [("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong), ("gpu", ctypes.c_uint), ("compute", ctypes.c_uint)]
        count = ctypes.c_uint(256)
        list_ = (Process * 256)()
        self.call("nvmlDeviceGetComputeRunningProcesses_v3", self.device, ctypes.byref(count), list_)
        for process in list_[:count.value]:
            if process.pid == pid and process.used != ctypes.c_ulonglong(-1).value:
                return process.used
        return None

    def utilisation(self):
        """GPU-Util as nvidia-smi shows it, percent."""
        rates = (ctypes.c_uint * 2)()
        self.call("nvmlDeviceGetUtilizationRates", self.device, rates)
        return rates[0]

    def gpm_sample(self):
        """A sample for gpm_between, or None where the card has no GPM (before Hopper) or we may not use it."""
        if self.gpm_works is False:
            return None
        sample = ctypes.c_void_p()
        try:
            support = (ctypes.c_uint * 2)(1, 0)
            self.call("nvmlGpmQueryDeviceSupport", self.device, support)
            if not support[1]:
                raise Missing("no GPM")
            self.call("nvmlGpmSampleAlloc", ctypes.byref(sample))
            self.call("nvmlGpmSampleGet", self.device, sample)
            self.gpm_works = True
            return sample
        except Missing:
            self.gpm_works = False
            return None

    def gpm_between(self, first, second):
        """{"graphics", "sm"}: percent of the time between two samples, by the card's counters (nvml.h, GPM)."""
        class Metric(ctypes.Structure):
            _fields_ = [("id", ctypes.c_uint), ("code", ctypes.c_int), ("value", ctypes.c_double), ("names", ctypes.c_char_p * 3)]

        class Get(ctypes.Structure):
            _fields_ = [("version", ctypes.c_uint), ("count", ctypes.c_uint), ("first", ctypes.c_void_p),
                        ("second", ctypes.c_void_p), ("metrics", Metric * 512)]
        get = Get(version=1, count=2, first=first, second=second)
        get.metrics[0].id, get.metrics[1].id = GRAPHICS_UTIL, SM_UTIL
        self.call("nvmlGpmMetricsGet", ctypes.byref(get))
        return {"graphics": get.metrics[0].value, "sm": get.metrics[1].value}

    def gpm_free(self, sample):
        self.call("nvmlGpmSampleFree", sample)

    def card_log(self, tools, *options):
        """The simulated card's own log; its windows are the truth there."""
        file = pathlib.Path(os.environ["SLUICE_SIM_DIR"]) / f"card{self.card}"
        return json.loads(subprocess.run([str(tools / "sluice-sim"), "log", str(file), "--json", *options],
                                         capture_output=True, text=True, check=True).stdout)

    def card_now_ms(self, tools):
        file = pathlib.Path(os.environ["SLUICE_SIM_DIR"]) / f"card{self.card}"
        shown = subprocess.run([str(tools / "sluice-sim"), "show", str(file), "--json"], capture_output=True, text=True, check=True)
        return json.loads(shown.stdout)["now_ns"] // 1_000_000


def torch_version(python):
    """PyTorch's version in that interpreter, or None."""
    done = subprocess.run([python, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else None
