// The command line of nvidia-smi: which view, of which cards, how often.

#include <fmt/core.h>

#include <charconv>
#include <chrono>
#include <cstdio>
#include <thread>

#include "sim/nvidia_smi.h"

namespace sluice::sim::smi {
namespace {

constexpr const char* kUsage =
    "nvidia-smi (simulated cards) shows the NVIDIA cards that NVML knows\n\n"
    "  nvidia-smi                                    table of cards and their processes\n"
    "  nvidia-smi -L | --list-gpus                   one line per card\n"
    "  nvidia-smi -q | --query                       everything about each card\n"
    "  nvidia-smi --query-gpu=FIELDS --format=csv[,noheader][,nounits]\n"
    "  nvidia-smi --query-compute-apps=FIELDS --format=csv[,noheader][,nounits]\n"
    "  nvidia-smi --help-query-gpu | --help-query-compute-apps\n\n"
    "  -i ID | --id=ID       only these cards: index, UUID or PCI bus id, separated by commas\n"
    "  -l SEC | --loop=SEC   repeat every SEC seconds until stopped\n"
    "  -lms MS | --loop-ms=MS  repeat every MS milliseconds until stopped\n"
    "  -f FILE | --filename=FILE  write to a file\n"
    "  -h | --help, --version\n\n"
    "Exit codes: 0 success, 2 wrong arguments, 6 no such card, 9 no driver, 12 NVML missing, 255 other\n";

enum class View { kTable, kList, kDetails, kGpuFields, kAppFields, kHelpGpu, kHelpApps, kHelp, kVersion };

struct Options {
  View view = View::kTable;
  std::string fields, ids, file;
  bool format_given = false;
  CsvOptions csv;
  int64_t loop_ms = 0;
};

Result<int64_t> parse_positive(const std::string& text, const char* option) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1 || value > 86400000) {
    return invalid(fmt::format("{} takes a whole number from 1, not \"{}\"", option, text));
  }
  return value;
}

Result<void> parse_format(const std::string& text, Options& options) {
  bool csv = false;
  for (size_t start = 0; start <= text.size();) {
    const size_t end = std::min(text.find(',', start), text.size());
    const std::string word = text.substr(start, end - start);
    start = end + 1;
    if (word == "csv")
      csv = true;
    else if (word == "noheader")
      options.csv.header = false;
    else if (word == "nounits")
      options.csv.units = false;
    else
      return invalid(fmt::format("--format knows csv, noheader and nounits, not \"{}\"", word));
  }
  if (!csv) return invalid("--format needs \"csv\", e.g. --format=csv,noheader");
  options.format_given = true;
  return {};
}

struct Flag {
  const char* name;
  const char* long_name;
  bool takes_value;
};
const Flag kFlags[] = {
    {"-L", "--list-gpus", false},    {"-q", "--query", false},
    {"-h", "--help", false},         {"", "--version", false},
    {"", "--help-query-gpu", false}, {"", "--help-query-compute-apps", false},
    {"", "--query-gpu", true},       {"", "--query-compute-apps", true},
    {"", "--format", true},          {"-i", "--id", true},
    {"-l", "--loop", true},          {"-lms", "--loop-ms", true},
    {"-f", "--filename", true},
};

Result<void> apply(const std::string& flag, const std::string& value, Options& options) {
  if (flag == "--list-gpus")
    options.view = View::kList;
  else if (flag == "--query")
    options.view = View::kDetails;
  else if (flag == "--help")
    options.view = View::kHelp;
  else if (flag == "--version")
    options.view = View::kVersion;
  else if (flag == "--help-query-gpu")
    options.view = View::kHelpGpu;
  else if (flag == "--help-query-compute-apps")
    options.view = View::kHelpApps;
  else if (flag == "--format")
    return parse_format(value, options);
  else if (flag == "--id")
    options.ids = value;
  else if (flag == "--filename")
    options.file = value;
  else if (flag == "--query-gpu" || flag == "--query-compute-apps") {
    options.view = flag == "--query-gpu" ? View::kGpuFields : View::kAppFields;
    options.fields = value;
    return check_fields(value, options.view == View::kAppFields);
  } else {
    const Result<int64_t> number = parse_positive(value, flag.c_str());
    if (!number.ok()) return number.error();
    options.loop_ms = flag == "--loop" ? *number * 1000 : *number;
  }
  return {};
}

Result<Options> parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const size_t equals = word.rfind("--", 0) == 0 ? word.find('=') : std::string::npos;
    const std::string name = word.substr(0, equals);
    const Flag* found = nullptr;
    for (const Flag& flag : kFlags) {
      if (name == flag.long_name || (*flag.name != '\0' && name == flag.name)) found = &flag;
    }
    if (found == nullptr)
      return invalid(fmt::format("unknown option \"{}\"; nvidia-smi -h lists those there are", word));
    std::string value;
    if (found->takes_value) {
      if (equals != std::string::npos)
        value = word.substr(equals + 1);
      else if (i + 1 < argc)
        value = argv[++i];
      else if (std::string(found->long_name) == "--loop")
        value = "5";
      else
        return invalid(fmt::format("{} needs a value; nvidia-smi -h shows how", name));
    }
    const Result<void> applied = apply(found->long_name, value, options);
    if (!applied.ok()) return applied.error();
  }
  const bool fields = options.view == View::kGpuFields || options.view == View::kAppFields;
  if (fields && !options.format_given) {
    return invalid("--query-gpu and --query-compute-apps need --format=csv (with noheader or nounits at will)");
  }
  return options;
}

Result<std::vector<Gpu>> choose(const Nvml& nvml, const std::string& ids, unsigned* attached) {
  if (nvml.nvmlDeviceGetCount_v2(attached) != NVML_SUCCESS) return internal("the cards cannot be counted");
  std::vector<Gpu> gpus;
  if (ids.empty()) {
    for (unsigned i = 0; i < *attached; ++i) {
      Gpu gpu{i, nullptr};
      const nvmlReturn_t result = nvml.nvmlDeviceGetHandleByIndex_v2(i, &gpu.handle);
      if (result != NVML_SUCCESS) {
        return unavailable(fmt::format("GPU {} does not answer: {}", i, nvml.nvmlErrorString(result)));
      }
      gpus.push_back(gpu);
    }
    return gpus;
  }
  for (size_t start = 0; start <= ids.size();) {
    const size_t end = std::min(ids.find(',', start), ids.size());
    const std::string id = ids.substr(start, end - start);
    start = end + 1;
    Gpu gpu;
    unsigned index = 0;
    const auto [stop, error] = std::from_chars(id.data(), id.data() + id.size(), index);
    const bool is_index = error == std::errc() && stop == id.data() + id.size();
    nvmlReturn_t result = NVML_ERROR_NOT_FOUND;
    if (is_index)
      result = nvml.nvmlDeviceGetHandleByIndex_v2(index, &gpu.handle);
    else if (id.rfind("GPU-", 0) == 0)
      result = nvml.nvmlDeviceGetHandleByUUID(id.c_str(), &gpu.handle);
    else if (id.find(':') != std::string::npos)
      result = nvml.nvmlDeviceGetHandleByPciBusId_v2(id.c_str(), &gpu.handle);
    if (result != NVML_SUCCESS || nvml.nvmlDeviceGetIndex(gpu.handle, &gpu.index) != NVML_SUCCESS) {
      return not_found(fmt::format("no card is \"{}\"; give an index below {}, a UUID or a PCI bus id (nvidia-smi -L)",
                                   id, *attached));
    }
    gpus.push_back(gpu);
  }
  return gpus;
}

Result<void> show(const Nvml& nvml, const Options& options, const std::vector<Gpu>& gpus, unsigned attached,
                  bool first) {
  switch (options.view) {
    case View::kList:
      return print_list(nvml, gpus);
    case View::kDetails:
      return print_details(nvml, gpus, attached);
    case View::kGpuFields:
      return print_gpu_fields(nvml, gpus, options.fields, options.csv, first);
    case View::kAppFields:
      return print_app_fields(nvml, gpus, options.fields, options.csv, first);
    default:
      return print_table(nvml, gpus);
  }
}

int fail(const Error& error, int code) {
  std::fprintf(stderr, "nvidia-smi: %s\n", error.message.c_str());
  return code;
}

int run(int argc, char** argv) {
  const Result<Options> options = parse(argc, argv);
  if (!options.ok()) return fail(options.error(), 2);
  if (options->view == View::kHelp) return std::fputs(kUsage, stdout), 0;
  if (options->view == View::kHelpGpu || options->view == View::kHelpApps) {
    print_field_help(options->view == View::kHelpApps);
    return 0;
  }
  if (!options->file.empty() && std::freopen(options->file.c_str(), "w", stdout) == nullptr) {
    return fail(invalid("\"" + options->file + "\" cannot be written; name a file in a folder that you may write"), 2);
  }
  const Result<Nvml> nvml = load_nvml();
  if (!nvml.ok()) return fail(nvml.error(), nvml.error().code == ErrorCode::kNotFound ? 12 : 9);
  if (options->view == View::kVersion) {
    fmt::print("NVIDIA-SMI version  : {0}\nDRIVER version      : {0}\nCUDA Version        : {1}\n",
               driver_version(*nvml), cuda_version(*nvml));
    return 0;
  }
  for (bool first = true;; first = false) {
    unsigned attached = 0;
    const Result<std::vector<Gpu>> gpus = choose(*nvml, options->ids, &attached);
    if (!gpus.ok()) return fail(gpus.error(), 6);
    if (gpus->empty()) return fail(unavailable("there is no card on this machine"), 6);
    const Result<void> shown = show(*nvml, *options, *gpus, attached, first);
    if (!shown.ok()) return fail(shown.error(), 255);
    std::fflush(stdout);
    if (options->loop_ms == 0 || std::ferror(stdout)) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(options->loop_ms));
  }
  nvml->nvmlShutdown();
  return 0;
}

}  // namespace
}  // namespace sluice::sim::smi

int main(int argc, char** argv) {
  const int status = sluice::sim::smi::run(argc, argv);
  // As base/output.h does it, which this program, free of libraries, does not link.
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return status;
  std::fputs("nvidia-smi: cannot write standard output\n", stderr);
  return status == 0 ? 255 : status;
}
